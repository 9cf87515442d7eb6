/* Reads adapter_config.json by a table of its options, and matches names as PEFT does. */
#include "formats/adapters/lora_config.h"

#include "common/grow.h"
#include "common/text.h"
#include "formats/json/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The largest rank: more is a damaged file. */
static const double kMostRank = 65536;

typedef struct reading {
    tsr_lora_config *config;
    tsr_json_reader json;
    tsr_arena *arena;
    tsr_err *err;
} reading;

/* An option of the file. `read` reads its value, or rejects it with `why`. `at` is the member of tsr_lora_config. */
typedef struct field {
    const char *key;
    tsr_status (*read)(reading *r, const struct field *f);
    const char *why;
    size_t at;
} field;

static void *member(const reading *r, const field *f)
{
    return (char *)r->config + f->at;
}

static tsr_status bad_value(const reading *r, const field *f, const char *expected)
{
    return tsr_fail(r->err, TSR_E_FORMAT, "%s: byte %zu: '%s' must be %s", r->config->path, r->json.pos, f->key,
                    expected);
}

/* ---- values ---- */

static tsr_status ignore(reading *r, const field *f)
{
    (void)f;
    return tsr_json_skip(&r->json, NULL, r->err);
}

/* Returns true for null, false, "", [] and {}. */
static bool is_unset(tsr_json_text value)
{
    if (tsr_json_is(value, "null") || tsr_json_is(value, "false") || tsr_json_is(value, "\"\""))
        return true;
    return value.size >= 2 && strchr("[{", value.data[0]) != NULL &&
           strspn(value.data + 1, " \t\r\n") == value.size - 2;
}

static tsr_status refuse_set(reading *r, const field *f)
{
    tsr_json_text value;
    TSR_TRY(tsr_json_skip(&r->json, &value, r->err));
    if (is_unset(value))
        return TSR_OK;
    return tsr_fail(r->err, TSR_E_UNSUPPORTED, "%s: '%s' is %.*s, which cannot be merged: %s", r->config->path, f->key,
                    (int)(value.size < 64 ? value.size : 64), value.data, f->why);
}

/* Accepts the value only if it is one of the words of `why`, in quotes. */
static tsr_status read_word(reading *r, const field *f)
{
    tsr_json_text value;
    TSR_TRY(tsr_json_skip(&r->json, &value, r->err));
    for (const char *word = f->why; word != NULL && *word != '\0';) {
        const size_t n = strcspn(word, " ");
        if (value.size == n && memcmp(value.data, word, n) == 0)
            return TSR_OK;
        word += n + (word[n] == ' ');
    }
    return tsr_fail(r->err, TSR_E_UNSUPPORTED, "%s: '%s' is %.*s, which cannot be merged; supported: %s",
                    r->config->path, f->key, (int)(value.size < 64 ? value.size : 64), value.data, f->why);
}

/* Accepts initializations that leave the base unchanged. The others subtract from its weights before training. */
static tsr_status read_initialization(reading *r, const field *f)
{
    static const char *const kPlain[] = {"true", "false", "null", "\"gaussian\"", "\"eva\"", "\"orthogonal\""};
    tsr_json_text value;
    TSR_TRY(tsr_json_skip(&r->json, &value, r->err));
    for (size_t i = 0; i < sizeof kPlain / sizeof *kPlain; i++) {
        if (tsr_json_is(value, kPlain[i]))
            return TSR_OK;
    }
    return tsr_fail(r->err, TSR_E_UNSUPPORTED,
                    "%s: '%s' is %.*s, which may have changed the base weights before training; save the adapter with "
                    "PEFT's path_initial_model_for_weight_conversion, which converts it to plain LoRA",
                    r->config->path, f->key, (int)(value.size < 64 ? value.size : 64), value.data);
}

static tsr_status read_bool(reading *r, const field *f)
{
    tsr_json_text value;
    TSR_TRY(tsr_json_skip(&r->json, &value, r->err));
    *(bool *)member(r, f) = tsr_json_is(value, "true");
    return tsr_json_is(value, "true") || tsr_json_is(value, "false") || tsr_json_is(value, "null")
               ? TSR_OK
               : bad_value(r, f, "true or false");
}

static tsr_status take_number(reading *r, const field *f, double *number)
{
    tsr_json_text value;
    char digits[64];
    const char *end = digits;
    TSR_TRY(tsr_json_skip(&r->json, &value, r->err));
    if (value.size >= sizeof digits)
        return bad_value(r, f, "a number of fewer digits");
    memcpy(digits, value.data, value.size);
    digits[value.size] = '\0';
    return tsr_take_real(&end, number) && *end == '\0' ? TSR_OK : bad_value(r, f, "a number");
}

static tsr_status check_rank(const reading *r, const field *f, double rank)
{
    return rank >= 1 && rank <= kMostRank && rank == floor(rank) ? TSR_OK : bad_value(r, f, "an integer from 1 on");
}

static tsr_status read_rank(reading *r, const field *f)
{
    TSR_TRY(take_number(r, f, member(r, f)));
    return check_rank(r, f, r->config->rank);
}

static tsr_status read_alpha(reading *r, const field *f)
{
    return take_number(r, f, member(r, f));
}

/* ---- names ---- */

static tsr_status compile(const reading *r, const field *f, const char *before, const char *text, const char *after,
                          tsr_pattern *pattern)
{
    const char *const whole = tsr_arena_printf(r->arena, "%s%s%s", before, text, after);
    if (whole == NULL)
        return tsr_out_of_memory(r->err, r->config->path);
    return tsr_prepend(r->err, tsr_pattern_compile(pattern, whole, r->arena, r->err), "%s: '%s'", r->config->path,
                       f->key);
}

static tsr_status read_name(reading *r, tsr_lora_names *names)
{
    if (!tsr_grow(&names->items, names->count, &names->capacity, sizeof *names->items))
        return tsr_out_of_memory(r->err, r->config->path);
    return tsr_json_read_text(&r->json, r->arena, &names->items[names->count++], r->err);
}

/* Reads null, a string or a list of strings. A string is an expression, except in layers_pattern. */
static tsr_status read_names(reading *r, const field *f)
{
    tsr_lora_names *const names = member(r, f);
    const bool parts = names == &r->config->layers_pattern;
    tsr_json_kind kind;
    bool more;
    TSR_TRY(tsr_json_peek(&r->json, &kind, r->err));
    if (kind == TSR_JSON_NULL)
        return ignore(r, f);
    names->given = true;
    if (kind == TSR_JSON_STRING && !parts) {
        const char *text;
        tsr_pattern *const pattern = tsr_arena_alloc(r->arena, sizeof *pattern);
        TSR_TRY(tsr_json_read_text(&r->json, r->arena, &text, r->err));
        names->all = names == &r->config->targets && strcmp(text, "all-linear") == 0;
        names->pattern = pattern;
        return pattern == NULL ? tsr_out_of_memory(r->err, r->config->path)
                               : compile(r, f, "(?:", text, ")\\Z", pattern);
    }
    if (kind == TSR_JSON_STRING)
        return read_name(r, names);
    if (kind != TSR_JSON_ARRAY)
        return bad_value(r, f, "a name or a list of names");
    TSR_TRY(tsr_json_enter_array(&r->json, r->err));
    for (;;) {
        TSR_TRY(tsr_json_next_element(&r->json, &more, r->err));
        if (!more)
            return TSR_OK;
        TSR_TRY(read_name(r, names));
    }
}

static tsr_status read_layer(reading *r)
{
    tsr_lora_config *const c = r->config;
    if (!tsr_grow(&c->layers, c->n_layers, &c->layers_capacity, sizeof *c->layers))
        return tsr_out_of_memory(r->err, c->path);
    return tsr_json_read_u64(&r->json, &c->layers[c->n_layers++], r->err);
}

static tsr_status read_layers(reading *r, const field *f)
{
    tsr_json_kind kind;
    bool more;
    TSR_TRY(tsr_json_peek(&r->json, &kind, r->err));
    if (kind == TSR_JSON_NULL)
        return ignore(r, f);
    if (kind == TSR_JSON_NUMBER)
        return read_layer(r);
    if (kind != TSR_JSON_ARRAY)
        return bad_value(r, f, "a number or a list of numbers");
    TSR_TRY(tsr_json_enter_array(&r->json, r->err));
    for (;;) {
        TSR_TRY(tsr_json_next_element(&r->json, &more, r->err));
        if (!more)
            return TSR_OK;
        TSR_TRY(read_layer(r));
    }
}

/* Reads rank_pattern or alpha_pattern: numbers by an expression for the end of a module's name. */
static tsr_status read_rules(reading *r, const field *f)
{
    tsr_lora_rules *const rules = member(r, f);
    tsr_json_kind kind;
    tsr_json_text key;
    bool more;
    TSR_TRY(tsr_json_peek(&r->json, &kind, r->err));
    if (kind == TSR_JSON_NULL)
        return ignore(r, f);
    if (kind != TSR_JSON_OBJECT)
        return bad_value(r, f, "an object of numbers");
    TSR_TRY(tsr_json_enter_object(&r->json, r->err));
    for (;;) {
        TSR_TRY(tsr_json_next_member(&r->json, &key, &more, r->err));
        if (!more)
            return TSR_OK;
        if (!tsr_grow(&rules->items, rules->count, &rules->capacity, sizeof *rules->items))
            return tsr_out_of_memory(r->err, r->config->path);
        tsr_lora_rule *const rule = &rules->items[rules->count++];
        TSR_TRY(tsr_json_decode(&r->json, key, r->arena, &rule->key, r->err));
        TSR_TRY(compile(r, f, "(.*\\.)?(", rule->key, ")$", &rule->pattern));
        TSR_TRY(take_number(r, f, &rule->value));
        if (rules == &r->config->ranks)
            TSR_TRY(check_rank(r, f, rule->value));
    }
}

/* ---- the file ---- */

#define AT(name) offsetof(tsr_lora_config, name)

static const char kVariant[] = "only updates of the form scale * B * A can be; merge it with PEFT";

static const field kFields[] = {
    {"peft_type", read_word, "\"LORA\"", 0},
    {"r", read_rank, NULL, AT(rank)},
    {"lora_alpha", read_alpha, NULL, AT(alpha)},
    {"use_rslora", read_bool, NULL, AT(rslora)},
    {"fan_in_fan_out", read_bool, NULL, AT(turned)},
    {"target_modules", read_names, NULL, AT(targets)},
    {"exclude_modules", read_names, NULL, AT(exclude)},
    {"target_parameters", read_names, NULL, AT(parameters)},
    {"layers_to_transform", read_layers, NULL, 0},
    {"layers_pattern", read_names, NULL, AT(layers_pattern)},
    {"rank_pattern", read_rules, NULL, AT(ranks)},
    {"alpha_pattern", read_rules, NULL, AT(alphas)},
    {"init_lora_weights", read_initialization, NULL, 0},
    {"bias", read_word, "\"none\" null", 0},
    {"modules_to_save", refuse_set, "these modules replace those of the base; merge it with PEFT", 0},
    {"trainable_token_indices", refuse_set, "these rows replace those of the embedding; merge it with PEFT", 0},
    {"layer_replication", refuse_set, "it changes the number of layers", 0},
    {"alora_invocation_tokens", refuse_set, "an activated LoRA applies only to the tokens after an invocation", 0},
    /* These say how the adapter was trained, or where it came from. */
    {"auto_mapping", ignore, NULL, 0},
    {"base_model_name_or_path", ignore, NULL, 0},
    {"corda_config", ignore, NULL, 0},
    {"ensure_weight_tying", ignore, NULL, 0},
    {"eva_config", ignore, NULL, 0},
    {"inference_mode", ignore, NULL, 0},
    {"loftq_config", ignore, NULL, 0},
    {"lora_dropout", ignore, NULL, 0},
    {"lora_ga_config", ignore, NULL, 0},
    {"megatron_core", ignore, NULL, 0},
    {"peft_version", ignore, NULL, 0},
    {"qalora_group_size", ignore, NULL, 0},
    {"revision", ignore, NULL, 0},
    {"runtime_config", ignore, NULL, 0},
    {"task_type", ignore, NULL, 0},
};

static const field *field_of(tsr_json_text key)
{
    for (size_t i = 0; i < sizeof kFields / sizeof *kFields; i++) {
        if (tsr_json_is(key, kFields[i].key))
            return &kFields[i];
    }
    return NULL;
}

static tsr_status read_members(reading *r)
{
    bool more, seen[sizeof kFields / sizeof *kFields] = {false};
    tsr_json_text key;
    TSR_TRY(tsr_json_enter_object(&r->json, r->err));
    for (;;) {
        TSR_TRY(tsr_json_next_member(&r->json, &key, &more, r->err));
        if (!more)
            break;
        const field *const f = field_of(key);
        if (f == NULL) {
            field other = {.read = refuse_set, .why = kVariant};
            TSR_TRY(tsr_json_decode(&r->json, key, r->arena, &other.key, r->err));
            TSR_TRY(refuse_set(r, &other));
            continue;
        }
        if (seen[f - kFields])
            return tsr_fail(r->err, TSR_E_FORMAT, "%s: byte %zu: a second '%s'", r->config->path, r->json.pos, f->key);
        seen[f - kFields] = true;
        TSR_TRY(f->read(r, f));
    }
    for (size_t i = 0; i < 3; i++) {
        if (!seen[i])
            return tsr_fail(r->err, TSR_E_FORMAT, "%s: '%s' is missing; is this a LoRA adapter of PEFT?",
                            r->config->path, kFields[i].key);
    }
    return TSR_OK;
}

/* Rejects a configuration that adapts nothing, and expressions in layers_pattern. */
static tsr_status check_targets(const reading *r)
{
    static const char kPlain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_";
    const tsr_lora_config *const c = r->config;
    for (size_t i = 0; i < c->layers_pattern.count; i++) {
        const char *const item = c->layers_pattern.items[i];
        if (item[strspn(item, kPlain)] != '\0')
            return tsr_fail(r->err, TSR_E_UNSUPPORTED, "%s: 'layers_pattern' has '%s', which is not a plain name",
                            c->path, item);
    }
    return c->targets.given || c->parameters.given
               ? TSR_OK
               : tsr_fail(r->err, TSR_E_FORMAT, "%s: neither 'target_modules' nor 'target_parameters' is given",
                          c->path);
}

tsr_status tsr_lora_config_read(tsr_lora_config *config, const char *path, const char *text, size_t size,
                                tsr_arena *arena, tsr_err *err)
{
    *config = (tsr_lora_config){.path = path};
    reading r = {config, tsr_json_open(path, text, size), arena, err};
    tsr_status status = read_members(&r);
    if (status == TSR_OK)
        status = tsr_json_finish(&r.json, err);
    if (status == TSR_OK)
        status = check_targets(&r);
    if (status != TSR_OK)
        tsr_lora_config_free(config);
    return status;
}

void tsr_lora_config_free(tsr_lora_config *config)
{
    free(config->targets.items);
    free(config->exclude.items);
    free(config->parameters.items);
    free(config->layers_pattern.items);
    free(config->layers);
    free(config->ranks.items);
    free(config->alphas.items);
    *config = (tsr_lora_config){.path = NULL};
}

/* ---- matching ---- */

bool tsr_lora_is_named(const char *name, size_t length, const char *entry)
{
    const size_t n = strlen(entry);
    return length >= n && memcmp(name + length - n, entry, n) == 0 && (length == n || name[length - n - 1] == '.');
}

static bool has_name(const tsr_lora_names *names, const char *name)
{
    if (names->all)
        return true;
    if (names->pattern != NULL)
        return tsr_pattern_match(names->pattern, name, NULL);
    for (size_t i = 0; i < names->count; i++) {
        if (tsr_lora_is_named(name, strlen(name), names->items[i]))
            return true;
    }
    return false;
}

/* Returns true if `name` has a component that is an entry of layers_pattern, or any if there is none, and then the
 * number of a layer. The first such number counts; PEFT needs a component before the pair if there is no pattern. */
static bool layer_of(const tsr_lora_config *c, const char *name, uint64_t *layer)
{
    const tsr_lora_names *const patterns = &c->layers_pattern;
    for (const char *at = name; (at = strchr(at, '.')) != NULL; at++) {
        const char *end = at + 1, *before = at;
        if (!tsr_take_decimal(&end, layer) || *end != '.')
            continue;
        while (before > name && before[-1] != '.')
            before--;
        bool fits = patterns->count == 0 && before > name;
        for (size_t i = 0; i < patterns->count; i++)
            fits = fits || (strlen(patterns->items[i]) == (size_t)(at - before) &&
                            memcmp(patterns->items[i], before, (size_t)(at - before)) == 0);
        if (fits)
            return true;
    }
    return false;
}

static bool in_layers(const tsr_lora_config *c, const char *module)
{
    uint64_t layer;
    if (c->n_layers == 0 || c->targets.pattern != NULL)
        return true;
    if (!layer_of(c, module, &layer))
        return false;
    for (size_t i = 0; i < c->n_layers; i++) {
        if (c->layers[i] == layer)
            return true;
    }
    return false;
}

bool tsr_lora_targets_module(const tsr_lora_config *config, const char *module)
{
    return config->targets.given && has_name(&config->targets, module) && in_layers(config, module) &&
           !(config->exclude.given && has_name(&config->exclude, module));
}

bool tsr_lora_targets_parameter(const tsr_lora_config *config, const char *parameter)
{
    return config->parameters.given && has_name(&config->parameters, parameter);
}

static double value_of(const tsr_lora_rules *rules, const char *module, double otherwise)
{
    for (size_t i = 0; i < rules->count; i++) {
        if (tsr_pattern_match(&rules->items[i].pattern, module, NULL))
            return rules->items[i].value;
    }
    return otherwise;
}

uint64_t tsr_lora_rank(const tsr_lora_config *config, const char *module)
{
    return (uint64_t)value_of(&config->ranks, module, config->rank);
}

double tsr_lora_scale(const tsr_lora_config *config, const char *module)
{
    const double rank = (double)tsr_lora_rank(config, module), alpha = value_of(&config->alphas, module, config->alpha);
    return alpha / (config->rslora ? sqrt(rank) : rank);
}
