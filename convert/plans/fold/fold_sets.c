/* Lists the layers of each family, and builds the sets of their channels. */
#include "convert/plans/fold/fold_sets.h"

#include "common/glob.h"
#include "common/grow.h"
#include "common/options.h"
#include "formats/names/model.h"
#include "quantize/policy/policy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Names below model.layers.N. of a family; NULL: it has none. */
typedef struct family {
    const char *types; /* model types, with spaces */
    const char *router, *experts, *shared, *shared_gate;
    const char *gate, *up, *down; /* last components of an expert's layers */
} family;

static const family kFamilies[] = {
    {"llama mistral qwen2 qwen3", NULL, NULL, NULL, NULL, NULL, NULL, NULL},
    {"qwen3_moe", "mlp.gate", "mlp.experts", NULL, NULL, "gate_proj", "up_proj", "down_proj"},
    {"qwen2_moe", "mlp.gate", "mlp.experts", "mlp.shared_expert", "mlp.shared_expert_gate", "gate_proj", "up_proj",
     "down_proj"},
    {"mixtral", "block_sparse_moe.gate", "block_sparse_moe.experts", NULL, NULL, "w1", "w3", "w2"},
    {"deepseek_v2 deepseek_v3 deepseek_v32 glm_moe_dsa kimi_k2 glm4_moe glm4_moe_lite", "mlp.gate", "mlp.experts",
     "mlp.shared_experts", NULL, "gate_proj", "up_proj", "down_proj"},
};

/* Tensors that a layer of these families may have. Others could read a channel that is scaled. */
static const char *const kKnown[] = {
    "input_layernorm.weight",
    "post_attention_layernorm.weight",
    "self_attn.?_proj.weight",
    "self_attn.?_proj.bias",
    "self_attn.?_norm.weight",
    "self_attn.q_a_proj.weight",
    "self_attn.q_a_layernorm.weight",
    "self_attn.q_b_proj.weight",
    "self_attn.kv_a_proj_with_mqa.weight",
    "self_attn.kv_a_layernorm.weight",
    "self_attn.kv_b_proj.weight",
    "self_attn.indexer.wq_b.weight",
    "self_attn.indexer.wk.weight",
    "self_attn.indexer.k_norm.weight",
    "self_attn.indexer.k_norm.bias",
    "self_attn.indexer.weights_proj.weight",
    "self_attn.rotary_emb.inv_freq",
    "mlp.gate_proj.weight",
    "mlp.up_proj.weight",
    "mlp.down_proj.weight",
    "mlp.gate.weight",
    "mlp.gate.e_score_correction_bias",
    "mlp.experts.*.gate_proj.weight",
    "mlp.experts.*.up_proj.weight",
    "mlp.experts.*.down_proj.weight",
    "mlp.shared_expert*.gate_proj.weight",
    "mlp.shared_expert*.up_proj.weight",
    "mlp.shared_expert*.down_proj.weight",
    "mlp.shared_expert_gate.weight",
    "block_sparse_moe.gate.weight",
    "block_sparse_moe.experts.*.w?.weight",
};

/* Writes the model types of all families. Returns text. */
static const char *list_families(char *text, size_t size)
{
    text[0] = '\0';
    for (size_t i = 0; i < sizeof kFamilies / sizeof *kFamilies; i++)
        snprintf(text + strlen(text), size - strlen(text), "%s%s", i == 0 ? "" : " ", kFamilies[i].types);
    return text;
}

typedef struct building {
    tsr_fold_sets *sets;
    const tsr_checkpoint *c;
    const family *family;
    uint64_t layer;
    tsr_err *err;
} building;

/* ---- tensors ---- */

/* Returns a tensor of the layer by the rest of its name, or NULL. */
static const tsr_tensor *find(const building *b, const char *module, const char *ending)
{
    char name[256];
    snprintf(name, sizeof name, "model.layers.%llu.%s%s", U64(b->layer), module, ending);
    return tsr_checkpoint_find(b->c, name);
}

/* Returns the weight of a part of a module, such as "up_proj" of an MLP, or NULL. */
static const tsr_tensor *find_weight(const building *b, const char *module, const char *part)
{
    char ending[64];
    snprintf(ending, sizeof ending, ".%s.weight", part);
    return find(b, module, ending);
}

static tsr_status check_layer_tensor(const building *b, const tsr_tensor *t, size_t prefix)
{
    bool known = false;
    for (size_t i = 0; i < sizeof kKnown / sizeof *kKnown; i++)
        known = known || tsr_glob_match(kKnown[i], t->name + prefix);
    if (!known)
        return tsr_fail(b->err, TSR_E_UNSUPPORTED,
                        "%s: '%s' is not a tensor of this family that fold knows, so it might read a scaled channel",
                        b->c->path, t->name);
    if (t->rank > 2 || t->rank == 0 || !tsr_dtype_is_weight_float((tsr_dtype)t->dtype))
        return tsr_fail(b->err, TSR_E_FORMAT,
                        "%s: '%s' is not a vector or a matrix of BF16, F16 or F32; fold needs a "
                        "checkpoint that is not quantized",
                        b->c->path, t->name);
    return TSR_OK;
}

/* Checks the tensors of all layers. Those of later layers, for multi-token prediction, keep their values. */
static tsr_status check_tensors(const building *b, uint64_t layers)
{
    static const char kLayers[] = "model.layers.";
    for (size_t i = 0; i < b->c->tensors.count; i++) {
        const tsr_tensor *const t = &b->c->tensors.items[i];
        uint64_t layer;
        if (strncmp(t->name, kLayers, sizeof kLayers - 1) != 0 || !tsr_layer_of(t->name, &layer) || layer >= layers)
            continue;
        const char *const dot = strchr(t->name + sizeof kLayers - 1, '.');
        TSR_TRY(dot == NULL ? tsr_fail(b->err, TSR_E_UNSUPPORTED, "%s: unexpected tensor '%s'", b->c->path, t->name)
                            : check_layer_tensor(b, t, (size_t)(dot + 1 - t->name)));
    }
    return TSR_OK;
}

/* ---- sets ---- */

static tsr_fold *fold_of(const tsr_fold_sets *sets, const tsr_checkpoint *c, const tsr_tensor *t)
{
    return &sets->folds[t - c->tensors.items];
}

/* Begins a set. `producer` is a norm, or a layer of `heads` x `channels` rows. */
static tsr_fold_set *begin_set(const building *b, const tsr_tensor *producer, size_t capacity)
{
    tsr_fold_sets *const s = b->sets;
    if (!tsr_grow(&s->items, s->count, &s->capacity, sizeof *s->items))
        return NULL;
    tsr_fold_set *const set = &s->items[s->count];
    *set = (tsr_fold_set){.producer = producer,
                          .consumers = tsr_arena_alloc(s->arena, capacity * sizeof *set->consumers),
                          .channels = (size_t)producer->shape[0],
                          .heads = 1,
                          .head_dim = (size_t)producer->shape[0]};
    return set->consumers == NULL ? NULL : set;
}

static void add_consumer(tsr_fold_set *set, const tsr_tensor *t)
{
    if (t != NULL)
        set->consumers[set->n++] = t;
}

static int8_t *zeros(const building *b, size_t n)
{
    int8_t *const made = tsr_arena_alloc(b->sets->arena, n + 1);
    if (made != NULL)
        memset(made, 0, n + 1);
    return made;
}

/* Ends a set: checks the shapes, and gives its tensors exponents. A set without consumers is dropped. */
static tsr_status end_set(const building *b, tsr_fold_set *set)
{
    const size_t cols = set->channels * set->heads;
    if (set->n == 0)
        return TSR_OK;
    bool made = true;
    for (size_t i = 0; i < set->n; i++) {
        const tsr_tensor *const t = set->consumers[i];
        if (t->rank != 2 || t->shape[1] != cols)
            return tsr_fail(b->err, TSR_E_SHAPE, "%s: '%s' has not the %zu columns that follow from '%s'", b->c->path,
                            t->name, cols, set->producer->name);
        fold_of(b->sets, b->c, t)->columns = zeros(b, cols);
        made = made && fold_of(b->sets, b->c, t)->columns != NULL;
    }
    tsr_fold *const of = fold_of(b->sets, b->c, set->producer);
    int8_t **const own = set->producer->rank == 1 ? &of->columns : &of->rows;
    *own = zeros(b, set->channels);
    made = made && *own != NULL;
    if (set->bias != NULL) {
        if (set->bias->rank != 1 || set->bias->shape[0] != set->channels)
            return tsr_fail(b->err, TSR_E_SHAPE, "%s: '%s' has not the length of '%s'", b->c->path, set->bias->name,
                            set->producer->name);
        fold_of(b->sets, b->c, set->bias)->columns = zeros(b, set->channels);
        made = made && fold_of(b->sets, b->c, set->bias)->columns != NULL;
    }
    b->sets->count++;
    return made ? TSR_OK : tsr_out_of_memory(b->err, "for sets of channels");
}

/* Adds the set of `producer` (NULL: the layer has none) and at most two consumers, which may be NULL. */
static tsr_status add_pair(const building *b, const tsr_tensor *producer, const tsr_tensor *consumer,
                           const tsr_tensor *other)
{
    if (producer == NULL)
        return TSR_OK;
    tsr_fold_set *const set = begin_set(b, producer, 2);
    if (set == NULL)
        return tsr_out_of_memory(b->err, "for sets of channels");
    add_consumer(set, consumer);
    add_consumer(set, other);
    return end_set(b, set);
}

static tsr_status missing(const building *b, const char *name)
{
    return tsr_fail(b->err, TSR_E_FORMAT, "%s: lacks 'model.layers.%llu.%s'", b->c->path, U64(b->layer), name);
}

static tsr_status add_attention(const building *b)
{
    static const char *const kInputs[] = {"self_attn.q_proj",
                                          "self_attn.k_proj",
                                          "self_attn.v_proj",
                                          "self_attn.q_a_proj",
                                          "self_attn.kv_a_proj_with_mqa",
                                          "self_attn.indexer.wk",
                                          "self_attn.indexer.weights_proj"};
    const tsr_tensor *const norm = find(b, "input_layernorm", ".weight");
    if (norm == NULL)
        return missing(b, "input_layernorm.weight");
    tsr_fold_set *set = begin_set(b, norm, sizeof kInputs / sizeof *kInputs);
    for (size_t i = 0; set != NULL && i < sizeof kInputs / sizeof *kInputs; i++)
        add_consumer(set, find(b, kInputs[i], ".weight"));
    TSR_TRY(set == NULL ? tsr_out_of_memory(b->err, "for sets of channels") : end_set(b, set));
    TSR_TRY(add_pair(b, find(b, "self_attn.q_a_layernorm", ".weight"), find(b, "self_attn.q_b_proj", ".weight"),
                     find(b, "self_attn.indexer.wq_b", ".weight")));
    TSR_TRY(
        add_pair(b, find(b, "self_attn.kv_a_layernorm", ".weight"), find(b, "self_attn.kv_b_proj", ".weight"), NULL));
    const tsr_tensor *const v = find(b, "self_attn.v_proj", ".weight"), *const o =
                                                                            find(b, "self_attn.o_proj", ".weight");
    const tsr_model model = tsr_model_read(b->c);
    if (v == NULL || o == NULL || model.kv_heads == 0 || model.heads % model.kv_heads != 0 ||
        v->shape[0] % model.kv_heads != 0)
        return TSR_OK;
    set = begin_set(b, v, 1);
    if (set == NULL)
        return tsr_out_of_memory(b->err, "for sets of channels");
    set->bias = find(b, "self_attn.v_proj", ".bias");
    set->heads = (size_t)(model.heads / model.kv_heads);
    set->head_dim = (size_t)(v->shape[0] / model.kv_heads);
    add_consumer(set, o);
    return end_set(b, set);
}

/* Adds gate and up of an MLP to the consumers of the norm before it, if it exists. */
static void add_inputs(const building *b, tsr_fold_set *set, const char *module, const char *gate, const char *up)
{
    add_consumer(set, find_weight(b, module, gate));
    add_consumer(set, find_weight(b, module, up));
}

/* Adds the set of up and down of an MLP. */
static tsr_status add_inner(const building *b, const char *module, const char *up, const char *down)
{
    return add_pair(b, find_weight(b, module, up), find_weight(b, module, down), NULL);
}

static size_t count_experts(const building *b)
{
    const family *const f = b->family;
    char module[128];
    size_t n = 0;
    for (; f->experts != NULL; n++) {
        snprintf(module, sizeof module, "%s.%zu", f->experts, n);
        if (find_weight(b, module, f->gate) == NULL)
            break;
    }
    return n;
}

static tsr_status add_mlp(const building *b)
{
    const family *const f = b->family;
    const size_t experts = count_experts(b);
    const tsr_tensor *const norm = find(b, "post_attention_layernorm", ".weight");
    char module[128];
    if (norm == NULL)
        return missing(b, "post_attention_layernorm.weight");
    tsr_fold_set *const set = begin_set(b, norm, 2 * experts + 6);
    if (set == NULL)
        return tsr_out_of_memory(b->err, "for sets of channels");
    if (experts > 0)
        add_consumer(set, find(b, f->router, ".weight"));
    add_inputs(b, set, "mlp", "gate_proj", "up_proj");
    if (f->shared != NULL)
        add_inputs(b, set, f->shared, "gate_proj", "up_proj");
    if (f->shared_gate != NULL)
        add_consumer(set, find(b, f->shared_gate, ".weight"));
    for (size_t e = 0; e < experts; e++) {
        snprintf(module, sizeof module, "%s.%zu", f->experts, e);
        add_inputs(b, set, module, f->gate, f->up);
    }
    TSR_TRY(end_set(b, set));
    TSR_TRY(add_inner(b, "mlp", "up_proj", "down_proj"));
    if (f->shared != NULL)
        TSR_TRY(add_inner(b, f->shared, "up_proj", "down_proj"));
    for (size_t e = 0; e < experts; e++) {
        snprintf(module, sizeof module, "%s.%zu", f->experts, e);
        TSR_TRY(add_inner(b, module, f->up, f->down));
    }
    return TSR_OK;
}

static const family *family_of(const char *type)
{
    for (size_t i = 0; type != NULL && i < sizeof kFamilies / sizeof *kFamilies; i++) {
        if (tsr_is_listed(kFamilies[i].types, type))
            return &kFamilies[i];
    }
    return NULL;
}

tsr_status tsr_fold_sets_find(tsr_fold_sets *sets, const tsr_checkpoint *c, tsr_arena *arena, tsr_err *err)
{
    const char *const type = tsr_policy_model_type(c, arena);
    building b = {.sets = sets, .c = c, .family = family_of(type), .err = err};
    const uint64_t layers = tsr_model_read(c).layers;
    char names[256];
    *sets = (tsr_fold_sets){.arena = arena, .folds = tsr_arena_alloc(arena, (c->tensors.count + 1) * sizeof(tsr_fold))};
    if (sets->folds == NULL)
        return tsr_out_of_memory(err, "for sets of channels");
    memset(sets->folds, 0, (c->tensors.count + 1) * sizeof(tsr_fold));
    if (b.family == NULL)
        return tsr_fail(err, TSR_E_UNSUPPORTED, "%s: fold knows no model_type '%s', but: %s", c->path,
                        type == NULL ? "" : type, list_families(names, sizeof names));
    TSR_TRY(check_tensors(&b, layers));
    for (b.layer = 0; b.layer < layers; b.layer++) {
        TSR_TRY(add_attention(&b));
        TSR_TRY(add_mlp(&b));
    }
    return TSR_OK;
}

void tsr_fold_set_try(const tsr_fold_sets *sets, const tsr_fold_set *set, const tsr_checkpoint *c,
                      const int8_t *exponents)
{
    for (size_t i = 0; i < set->n; i++) {
        int8_t *const columns = fold_of(sets, c, set->consumers[i])->columns;
        for (size_t k = 0; k < set->channels * set->heads; k++)
            columns[k] = exponents[k / (set->head_dim * set->heads) * set->head_dim + k % set->head_dim];
    }
}

void tsr_fold_set_apply(const tsr_fold_sets *sets, const tsr_fold_set *set, const tsr_checkpoint *c,
                        const int8_t *exponents)
{
    tsr_fold *const of = fold_of(sets, c, set->producer);
    int8_t *const own = set->producer->rank == 1 ? of->columns : of->rows;
    tsr_fold_set_try(sets, set, c, exponents);
    for (size_t k = 0; k < set->channels; k++) {
        own[k] = (int8_t)-exponents[k];
        if (set->bias != NULL)
            fold_of(sets, c, set->bias)->columns[k] = (int8_t)-exponents[k];
    }
}
