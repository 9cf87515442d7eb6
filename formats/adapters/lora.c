/* Pairs the tensors of an adapter by their names, and checks their shapes. */
#include "formats/adapters/lora.h"

#include "common/checked.h"
#include "common/grow.h"
#include "common/text.h"
#include "formats/checkpoint/config.h"
#include "formats/names/expert_stacks.h"
#include "formats/names/model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char kPrefix[] = "base_model.model.", kA[] = ".lora_A.weight", kB[] = ".lora_B.weight",
                  kNested[] = ".base_layer";

typedef struct pairing {
    tsr_lora *lora;
    const tsr_weights *weights;
    tsr_err *err;
} pairing;

/* A pair of tensors by its name. */
typedef struct named {
    const tsr_tensor *a, *b;
    const char *module; /* without prefix and nesting */
    size_t depth;       /* number of ".base_layer" */
} named;

static const char *path_of(const pairing *p)
{
    return p->lora->adapter->files[0].path;
}

/* ---- names ---- */

/* Returns why a tensor of this name cannot be merged. */
static const char *reason_of(const char *name)
{
    static const struct {
        const char *part, *why;
    } kReasons[] = {
        {".lora_magnitude_vector", "a magnitude of DoRA; merge it with PEFT"},
        {".lora_embedding_", "an update of an embedding; merge it with PEFT"},
        {".lora_A.bias", "a bias; merge it with PEFT"},
        {".lora_B.bias", "a bias; merge it with PEFT"},
        {".lora_A.", "an adapter with a name; save it with PEFT's save_pretrained"},
        {".lora_B.", "an adapter with a name; save it with PEFT's save_pretrained"},
        {".modules_to_save.", "a replacement of a module; merge it with PEFT"},
    };
    for (size_t i = 0; i < sizeof kReasons / sizeof *kReasons; i++) {
        if (strstr(name, kReasons[i].part) != NULL)
            return kReasons[i].why;
    }
    return "neither X.lora_A.weight nor X.lora_B.weight; merge it with PEFT";
}

static tsr_status refuse_tensor(const pairing *p, const tsr_tensor *t)
{
    return tsr_fail_at(p->err,
                       tsr_fail(p->err, TSR_E_UNSUPPORTED, "%s: '%s' cannot be merged: it is %s", path_of(p), t->name,
                                reason_of(t->name)),
                       t->name);
}

/* Finds the partner of an A: the tensor of the same name with lora_B. */
static tsr_status find_b(const pairing *p, named *pair)
{
    const size_t stem = strlen(pair->a->name) - (sizeof kA - 1);
    pair->b = tsr_find_sibling(p->lora->adapter, pair->a->name, stem, kB);
    return pair->b != NULL ? TSR_OK
                           : tsr_fail_at(p->err,
                                         tsr_fail(p->err, TSR_E_FORMAT, "%s: '%s' has no '%.*s%s' beside it",
                                                  path_of(p), pair->a->name, (int)stem, pair->a->name, kB),
                                         pair->a->name);
}

/* Reads the module from the name of an A. */
static tsr_status read_module(const pairing *p, named *pair)
{
    const char *const name = pair->a->name + sizeof kPrefix - 1;
    size_t length = strlen(name) - (sizeof kA - 1);
    for (const size_t n = sizeof kNested - 1; length > n && memcmp(name + length - n, kNested, n) == 0; length -= n)
        pair->depth++;
    pair->module = tsr_arena_dup(&p->lora->arena, name, length);
    if (pair->module == NULL)
        return tsr_out_of_memory(p->err, path_of(p));
    for (size_t i = 0; i < length; i++) {
        if ((unsigned char)name[i] >= 0x80)
            return tsr_fail(p->err, TSR_E_UNSUPPORTED, "%s: '%s' is not ASCII", path_of(p), pair->a->name);
    }
    return TSR_OK;
}

/* ---- the weight of a pair ---- */

static tsr_status not_targeted(const pairing *p, const named *pair, const char *weight)
{
    return tsr_fail_at(p->err,
                       tsr_fail(p->err, TSR_E_FORMAT,
                                "%s: '%s' updates '%s', which " TSR_LORA_CONFIG_NAME
                                " does not target: PEFT would ignore it",
                                path_of(p), pair->a->name, weight),
                       pair->a->name);
}

static tsr_status no_weight(const pairing *p, const named *pair)
{
    return tsr_fail_at(p->err,
                       tsr_fail(p->err, TSR_E_MISMATCH,
                                "%s: '%s' updates the module '%s', which %s does not have; use the base model that the "
                                "adapter was trained on",
                                path_of(p), pair->a->name, pair->module, p->lora->base->path),
                       pair->a->name);
}

/* Returns the position of a parameter among those of a module of experts: PEFT nests them in this order. */
static int position_of(const char *leaf)
{
    return strcmp(leaf, "gate_up_proj") == 0 ? 0 : strcmp(leaf, "down_proj") == 0 ? 1 : 2;
}

/* Finds the parameter of a module that a pair updates. The outermost pair is that of the last parameter. */
static tsr_status find_parameter(const pairing *p, const named *pair, const tsr_weight **weight)
{
    const tsr_weight *found[2] = {NULL, NULL}; /* by position */
    const size_t n = strlen(pair->module);
    size_t count = 0, unknown = 0;
    for (size_t i = 0; i < p->weights->count; i++) {
        const tsr_weight *const w = &p->weights->items[i];
        const char *const name = w->values == NULL ? w->data->name : w->values->name;
        if (strncmp(name, pair->module, n) != 0 || name[n] != '.' || strchr(name + n + 1, '.') != NULL ||
            !tsr_lora_targets_parameter(&p->lora->config, name))
            continue;
        const int position = position_of(name + n + 1);
        count++;
        unknown += position == 2;
        found[position & 1] = w;
    }
    if (count == 0)
        return no_weight(p, pair);
    if (count > 1 && (unknown > 0 || count > 2))
        return tsr_fail(p->err, TSR_E_UNSUPPORTED,
                        "%s: '%s' updates one of %zu parameters of '%s'; their order is only known for gate_up_proj "
                        "and down_proj",
                        path_of(p), pair->a->name, count, pair->module);
    if (pair->depth >= count)
        return tsr_fail(p->err, TSR_E_FORMAT,
                        "%s: '%s' is nested %zu deep, but " TSR_LORA_CONFIG_NAME " targets %zu parameters of '%s'",
                        path_of(p), pair->a->name, pair->depth, count, pair->module);
    *weight = count == 2 ? found[1 - pair->depth] : found[0] != NULL ? found[0] : found[1];
    return TSR_OK;
}

/* Finds the weight that a pair updates, and the name by which the configuration knows it. */
static tsr_status find_weight(const pairing *p, const named *pair, const tsr_weight **weight, const char **key)
{
    const char *const name = tsr_arena_printf(&p->lora->arena, "%s.weight", pair->module);
    if (name == NULL)
        return tsr_out_of_memory(p->err, path_of(p));
    *weight = tsr_weights_find(p->weights, p->lora->base, name);
    *key = pair->module;
    if (*weight == NULL) {
        TSR_TRY(find_parameter(p, pair, weight));
        *key = (*weight)->values == NULL ? (*weight)->data->name : (*weight)->values->name;
        return TSR_OK;
    }
    if (pair->depth == 0 && tsr_lora_targets_module(&p->lora->config, pair->module))
        return TSR_OK;
    *key = name;
    return pair->depth == 0 && tsr_lora_targets_parameter(&p->lora->config, name) ? TSR_OK
                                                                                  : not_targeted(p, pair, name);
}

/* ---- shapes ---- */

/* Returns the name and shape of a weight's values. */
static const tsr_tensor *values_of(const tsr_weight *w)
{
    return w->values == NULL ? w->data : w->values;
}

static tsr_status bad_shape(const pairing *p, const named *pair, const tsr_weight *w, const char *what)
{
    char a[192], b[192], shape[192];
    return tsr_fail_at(p->err,
                       tsr_fail(p->err, TSR_E_SHAPE, "%s: '%s' %s and '%s' %s %s '%s' %s", path_of(p), pair->a->name,
                                tsr_shape_text(pair->a, a, sizeof a), pair->b->name,
                                tsr_shape_text(pair->b, b, sizeof b), what, values_of(w)->name,
                                tsr_shape_text(values_of(w), shape, sizeof shape)),
                       pair->a->name);
}

/* Decides how a weight [.., rows, cols] is stored. Square experts do not show it. */
static tsr_status decide_turn(const pairing *p, const named *pair, tsr_lora_update *u, uint64_t rows, uint64_t cols)
{
    const uint64_t in = pair->a->shape[1], out = pair->b->shape[0];
    const bool fits = in == cols && out == rows, fits_turned = in == rows && out == cols;
    tsr_json_text type;
    const tsr_tensor *const values = values_of(u->weight);
    if (!fits && !fits_turned)
        return bad_shape(p, pair, u->weight, "do not fit");
    u->turned = fits_turned;
    if (values->rank == 2) {
        u->turned = p->lora->config.turned;
        return (u->turned ? fits_turned : fits)
                   ? TSR_OK
                   : bad_shape(p, pair, u->weight, "do not fit, as 'fan_in_fan_out' is set in " TSR_LORA_CONFIG_NAME);
    }
    if (!fits || !fits_turned)
        return TSR_OK;
    const bool typed = tsr_config_find_model(p->lora->base, "model_type", &type);
    const char *const model = typed ? tsr_json_string_of(type, &p->lora->arena) : NULL;
    u->turned = tsr_stack_layout_of(model).turned;
    return u->turned ? TSR_OK
                     : bad_shape(p, pair, u->weight, "fit in two ways, [out, in] and [in, out], the square experts of");
}

static tsr_status check_shapes(const pairing *p, const named *pair, tsr_lora_update *u)
{
    const tsr_tensor *const values = values_of(u->weight), *const both[] = {pair->a, pair->b};
    for (size_t i = 0; i < 2; i++) {
        if (!tsr_dtype_is_weight_float((tsr_dtype)both[i]->dtype) || both[i]->rank != 2)
            return tsr_fail_at(p->err,
                               tsr_fail(p->err, TSR_E_SHAPE, "%s: '%s' must be a matrix of BF16, F16 or F32",
                                        path_of(p), both[i]->name),
                               both[i]->name);
    }
    if (values->rank != 2 && values->rank != 3)
        return bad_shape(p, pair, u->weight, "update no matrix:");
    u->experts = values->rank == 3 ? values->shape[0] : 1;
    const uint64_t a = pair->a->shape[0], b = pair->b->shape[1];
    uint64_t all;
    if (!tsr_mul_u64(u->rank, u->experts, &all) || a != all || b != all)
        return tsr_fail_at(p->err,
                           tsr_fail(p->err, TSR_E_SHAPE,
                                    "%s: '%s' and its lora_B have rank %llu and %llu, but " TSR_LORA_CONFIG_NAME
                                    " says %llu%s for it",
                                    path_of(p), pair->a->name, U64(a), U64(b), U64(u->rank),
                                    values->rank == 3 ? " for each expert" : ""),
                           pair->a->name);
    return decide_turn(p, pair, u, values->shape[values->rank - 2], values->shape[values->rank - 1]);
}

/* ---- pairs ---- */

/* Rejects the update of an output head that config.json ties to the embedding: loaders ignore the head's own tensor. */
static tsr_status refuse_tied_head(const pairing *p, const named *pair, const tsr_weight *weight)
{
    tsr_json_text tied;
    if (tsr_part_of(values_of(weight)->name) != TSR_PART_HEAD ||
        !tsr_config_find_model(p->lora->base, "tie_word_embeddings", &tied) || !tsr_json_is(tied, "true"))
        return TSR_OK;
    return tsr_fail_at(p->err,
                       tsr_fail(p->err, TSR_E_UNSUPPORTED,
                                "%s: '%s' updates '%s', but %s/" TSR_CONFIG_NAME
                                " says tie_word_embeddings: loaders would use the embedding in its place; set "
                                "tie_word_embeddings false there",
                                path_of(p), pair->a->name, values_of(weight)->name, p->lora->base->path),
                       pair->a->name);
}

static tsr_status add_pair(const pairing *p, const tsr_tensor *a)
{
    named pair = {.a = a};
    const char *key = NULL;
    tsr_lora_update u = {.a = a};
    TSR_TRY(find_b(p, &pair));
    TSR_TRY(read_module(p, &pair));
    TSR_TRY(find_weight(p, &pair, &u.weight, &key));
    TSR_TRY(refuse_tied_head(p, &pair, u.weight));
    u.b = pair.b;
    u.key = key;
    u.rank = tsr_lora_rank(&p->lora->config, key);
    u.scale = (float)(tsr_lora_scale(&p->lora->config, key) * p->lora->factor);
    if (!isfinite(u.scale))
        return tsr_fail(p->err, TSR_E_VALUE, "%s: the scale of '%s' is beyond FP32", p->lora->config.path, key);
    TSR_TRY(check_shapes(p, &pair, &u));
    if (!tsr_grow(&p->lora->updates, p->lora->count, &p->lora->capacity, sizeof *p->lora->updates))
        return tsr_out_of_memory(p->err, path_of(p));
    p->lora->updates[p->lora->count++] = u;
    return TSR_OK;
}

static int by_weight(const void *a, const void *b)
{
    const uintptr_t x = (uintptr_t)((const tsr_lora_update *)a)->weight,
                    y = (uintptr_t)((const tsr_lora_update *)b)->weight;
    return (x > y) - (x < y);
}

/* Orders the updates, and rejects two of the same weight. */
static tsr_status order(const pairing *p)
{
    tsr_lora *const l = p->lora;
    if (l->count == 0)
        return tsr_fail(p->err, TSR_E_FORMAT, "%s: no tensors: nothing to merge", path_of(p));
    qsort(l->updates, l->count, sizeof *l->updates, by_weight);
    for (size_t i = 1; i < l->count; i++) {
        if (l->updates[i].weight == l->updates[i - 1].weight)
            return tsr_fail(p->err, TSR_E_FORMAT, "%s: '%s' and '%s' update the same weight, '%s'", path_of(p),
                            l->updates[i - 1].a->name, l->updates[i].a->name, values_of(l->updates[i].weight)->name);
    }
    return TSR_OK;
}

static tsr_status pair_all(const pairing *p)
{
    const tsr_checkpoint *const c = p->lora->adapter;
    for (size_t i = 0; i < c->tensors.count; i++) {
        const tsr_tensor *const t = &c->tensors.items[i];
        const bool known = strncmp(t->name, kPrefix, sizeof kPrefix - 1) == 0;
        const size_t n = strlen(t->name), b = sizeof kB - 1;
        if (known && tsr_ends_with(t->name + sizeof kPrefix - 1, kA)) {
            TSR_TRY(add_pair(p, t));
            continue;
        }
        if (!known || !tsr_ends_with(t->name + sizeof kPrefix - 1, kB))
            return refuse_tensor(p, t);
        if (tsr_find_sibling(c, t->name, n - b, kA) == NULL)
            return tsr_fail_at(p->err,
                               tsr_fail(p->err, TSR_E_FORMAT, "%s: '%s' has no '%.*s%s' beside it", path_of(p), t->name,
                                        (int)(n - b), t->name, kA),
                               t->name);
    }
    return order(p);
}

/* Returns true if the base has a module that this entry names, or a parameter of that name. */
static bool is_in_base(const pairing *p, const char *entry, bool parameter)
{
    static const char kWeight[] = ".weight";
    bool found = false;
    for (size_t i = 0; i < p->weights->count && !found; i++) {
        const char *const name = values_of(&p->weights->items[i])->name;
        const size_t n = strlen(name) - (!parameter && tsr_ends_with(name, kWeight) ? sizeof kWeight - 1 : 0);
        found = tsr_lora_is_named(name, n, entry);
    }
    return found;
}

static bool has_rule_for(const pairing *p, const tsr_lora_rule *rule)
{
    size_t i = 0;
    while (i < p->lora->count && !tsr_pattern_match(&rule->pattern, p->lora->updates[i].key, NULL))
        i++;
    return i < p->lora->count;
}

static void list_names(const pairing *p, const char *option, const tsr_lora_names *names, bool parameter, tsr_text *t)
{
    for (size_t i = 0; names->pattern == NULL && i < names->count; i++) {
        if (!is_in_base(p, names->items[i], parameter))
            tsr_text_printf(t, "%s%s '%s'", t->size == 0 ? "" : ", ", option, names->items[i]);
    }
}

static void list_rules(const pairing *p, const char *option, const tsr_lora_rules *rules, tsr_text *t)
{
    for (size_t i = 0; i < rules->count; i++) {
        if (!has_rule_for(p, &rules->items[i]))
            tsr_text_printf(t, "%s%s '%s'", t->size == 0 ? "" : ", ", option, rules->items[i].key);
    }
}

/* Lists the names of the configuration that match nothing. */
static tsr_status list_unmatched(const pairing *p)
{
    tsr_lora *const l = p->lora;
    tsr_text t = {0};
    list_names(p, "target_modules", &l->config.targets, false, &t);
    list_names(p, "target_parameters", &l->config.parameters, true, &t);
    list_rules(p, "rank_pattern", &l->config.ranks, &t);
    list_rules(p, "alpha_pattern", &l->config.alphas, &t);
    l->unmatched = t.size == 0 ? NULL : tsr_arena_dup(&l->arena, t.data, t.size);
    const bool failed = t.failed || (t.size > 0 && l->unmatched == NULL);
    tsr_text_free(&t);
    return failed ? tsr_out_of_memory(p->err, path_of(p)) : TSR_OK;
}

static tsr_status read_config(const pairing *p)
{
    const char *text;
    size_t size;
    const tsr_checkpoint *const c = p->lora->adapter;
    TSR_TRY(tsr_checkpoint_side_text(c, TSR_LORA_CONFIG_NAME, &p->lora->arena, &text, &size, p->err));
    if (text == NULL)
        return tsr_fail(p->err, TSR_E_FORMAT, "%s: no " TSR_LORA_CONFIG_NAME "; is this an adapter of PEFT?", c->path);
    const char *const path = tsr_arena_printf(&p->lora->arena, "%s/" TSR_LORA_CONFIG_NAME, c->path);
    if (path == NULL)
        return tsr_out_of_memory(p->err, c->path);
    return tsr_lora_config_read(&p->lora->config, path, text, size, &p->lora->arena, p->err);
}

tsr_status tsr_lora_read(tsr_lora *lora, const tsr_checkpoint *adapter, double factor, const tsr_checkpoint *base,
                         const tsr_weights *weights, tsr_err *err)
{
    *lora = (tsr_lora){.adapter = adapter, .base = base, .factor = factor};
    const pairing p = {lora, weights, err};
    tsr_status status = read_config(&p);
    if (status == TSR_OK)
        status = pair_all(&p);
    if (status == TSR_OK)
        status = list_unmatched(&p);
    status = tsr_arena_status(&lora->arena, status, err);
    if (status != TSR_OK)
        tsr_lora_free(lora);
    return status;
}

const tsr_lora_update *tsr_lora_update_of(const tsr_lora *lora, const tsr_weight *weight)
{
    const tsr_lora_update key = {.weight = weight};
    return lora->count == 0 ? NULL : bsearch(&key, lora->updates, lora->count, sizeof key, by_weight);
}

void tsr_lora_free(tsr_lora *lora)
{
    tsr_lora_config_free(&lora->config);
    free(lora->updates);
    tsr_arena_free(&lora->arena);
    *lora = (tsr_lora){.adapter = NULL};
}
