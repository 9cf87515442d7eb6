/* Checks names, shapes and config.json of an output against its source, and runs the other checks. */
#include "verify/compare/check_weights.h"

#include "common/text.h"
#include "formats/checkpoint/config.h"
#include "formats/json/json.h"
#include "formats/weights/kv_names.h"
#include "verify/compare/check_weights_values.h"
#include "verify/compare/origin.h"

#include <stdlib.h>
#include <string.h>

/* ---- names and shapes ---- */

/* Returns true for a scale of the KV cache that an unquantized output must not have. */
static bool is_dropped_cache_scale(const tsr_weights_checking *k, const char *name)
{
    tsr_kv_name read;
    return k->dst->weights->n_scaled == 0 && k->src->weights->n_scaled > 0 && tsr_kv_name_read(name, &read);
}

static tsr_status check_names(tsr_weights_checking *k)
{
    for (size_t i = 0; i < k->c->count; i++) {
        const tsr_pair *const p = &k->c->pairs[i];
        tsr_origin origin = {0};
        k->out->judged[TSR_CHECK_NAMES]++;
        if (p->state == TSR_PAIR_MISSING && !is_dropped_cache_scale(k, tsr_pair_name(p)))
            TSR_TRY(tsr_add_finding(k, TSR_CHECK_NAMES, tsr_pair_name(p), "missing"));
        if (p->state != TSR_PAIR_EXTRA || tsr_is_cache_scale(k, p))
            continue;
        if (k->explained++ < TSR_MAX_EXPLAINED)
            TSR_TRY(tsr_find_origin(k->src, k->dst, p->b, &origin, k->err));
        if (origin.values != NULL &&
            tsr_weights_find(k->dst->weights, k->dst->checkpoint, origin.values->values->name) == NULL)
            TSR_TRY(tsr_add_finding(k, TSR_CHECK_NAMES, tsr_pair_name(p), "misnamed: it holds the values of '%s'",
                                    origin.values->values->name));
        else
            TSR_TRY(tsr_add_finding(k, TSR_CHECK_NAMES, tsr_pair_name(p), "extra: the source has no such tensor"));
    }
    return TSR_OK;
}

static tsr_status check_shapes(const tsr_weights_checking *k)
{
    char a[192], b[192];
    for (size_t i = 0; i < k->c->count; i++) {
        const tsr_pair *const p = &k->c->pairs[i];
        k->out->judged[TSR_CHECK_SHAPES] += p->state <= TSR_PAIR_MISSHAPED;
        if (p->state == TSR_PAIR_MISSHAPED)
            TSR_TRY(tsr_add_finding(k, TSR_CHECK_SHAPES, tsr_pair_name(p), "%s, but %s in the source",
                                    tsr_shape_text(p->b->values, b, sizeof b),
                                    tsr_shape_text(p->a->values, a, sizeof a)));
    }
    return TSR_OK;
}

/* ---- config.json ---- */

/* Returns true for members that conversions may change. */
static bool is_about_storage(tsr_json_text key)
{
    static const char *const kKeys[] = {
        "quantization_config",      "compression_config",   "torch_dtype", "dtype",
        "num_nextn_predict_layers", "transformers_version", "tessera_mla", "expert_dtype"};
    for (size_t i = 0; i < sizeof kKeys / sizeof *kKeys; i++) {
        if (tsr_json_is(key, kKeys[i]))
            return true;
    }
    return false;
}

/* Returns the next byte outside of white space between tokens; 0 at the end. */
static char next_byte(tsr_json_text text, size_t *at, bool *in_string)
{
    while (!*in_string && *at < text.size && strchr(" \t\r\n", text.data[*at]) != NULL)
        ++*at;
    if (*at == text.size)
        return 0;
    const char c = text.data[(*at)++];
    if (c == '"')
        *in_string = !*in_string;
    return c;
}

/* Returns true if two JSON values have the same text, except for white space between tokens. */
static bool is_same_json(tsr_json_text a, tsr_json_text b)
{
    size_t i = 0, k = 0;
    bool in_a = false, in_b = false;
    for (;;) {
        const char x = next_byte(a, &i, &in_a), y = next_byte(b, &k, &in_b);
        if (x != y)
            return false;
        if (x == 0)
            return true;
        /* A character after a backslash does not end the string. */
        if (x == '\\' && (i == a.size || k == b.size || a.data[i++] != b.data[k++]))
            return false;
    }
}

/* Appends up to 100 bytes of a value on one line, without white space between tokens. */
static void append_flat(tsr_text *text, tsr_json_text value)
{
    enum { MOST = 100 };
    const size_t begin = text->size;
    bool in_string = false;
    size_t at = 0;
    for (char c; (c = next_byte(value, &at, &in_string)) != 0 && text->size - begin < MOST && !text->failed;) {
        tsr_text_append(text, &c, 1);
        if (c == '\\' && at < value.size)
            tsr_text_append(text, &value.data[at++], 1);
        else if (!in_string && (c == ',' || c == ':'))
            tsr_text_append(text, " ", 1);
    }
}

/* Reports two different values of a key. */
static tsr_status add_difference(const tsr_weights_checking *k, const char *name, tsr_json_text now, tsr_json_text was)
{
    tsr_text text = {0};
    append_flat(&text, now);
    tsr_text_printf(&text, ", but ");
    append_flat(&text, was);
    tsr_status status = tsr_text_status(&text, k->err);
    if (status == TSR_OK)
        status = tsr_add_finding(k, TSR_CHECK_CONFIG, name, "%s in the source", text.data);
    tsr_text_free(&text);
    return status;
}

/* Compares two configurations: finds the keys of an object that the other one lacks or, if `values` is set, has with
 * another value. Keys of the model inside a multimodal one count like those of the model. */
typedef struct key_check {
    const tsr_weights_checking *k;
    const tsr_checkpoint *to;
    bool values;
    const char *absent;
} key_check;

static tsr_status check_keys(const key_check *check, tsr_json_text object, const char *prefix);

static tsr_status check_member(const key_check *check, tsr_json_text key, tsr_json_text value, const char *prefix)
{
    const tsr_weights_checking *const k = check->k;
    tsr_json_text other;
    const char *const name = tsr_arena_printf(&k->out->arena, "%s%.*s", prefix, (int)key.size, key.data);
    if (name == NULL)
        return tsr_out_of_memory(k->err, NULL);
    if (!tsr_config_find(check->to, name, &other))
        return tsr_add_finding(k, TSR_CHECK_CONFIG, name, "%s", check->absent);
    if (strcmp(name, "text_config") == 0 && value.data[0] == '{' && other.data[0] == '{')
        return check_keys(check, value, "text_config.");
    if (check->values && !is_same_json(value, other))
        return add_difference(k, name, other, value);
    return TSR_OK;
}

static tsr_status check_keys(const key_check *check, tsr_json_text object, const char *prefix)
{
    tsr_json_reader r = tsr_json_open(TSR_CONFIG_NAME, object.data, object.size);
    tsr_json_text key, value;
    bool more;
    TSR_TRY(tsr_json_enter_object(&r, check->k->err));
    for (;;) {
        TSR_TRY(tsr_json_next_member(&r, &key, &more, check->k->err));
        if (!more)
            return TSR_OK;
        TSR_TRY(tsr_json_skip(&r, &value, check->k->err));
        if (!is_about_storage(key) && !key.escaped && memchr(key.data, '.', key.size) == NULL)
            TSR_TRY(check_member(check, key, value, prefix));
    }
}

/* Returns the suffix of e4m3 scales that loaders of this quant_method expect, or NULL if Tessera does not know them. */
static const char *scale_suffix(const char *method)
{
    static const char *const kSuffixes[][2] = {{"fp8", "_scale_inv"},
                                               {"mxfp8", "_scale_inv"},
                                               {"compressed-tensors", "_scale"},
                                               {"modelopt", "_scale"},
                                               {"quark", "_scale"}};
    for (size_t i = 0; i < sizeof kSuffixes / sizeof *kSuffixes; i++) {
        if (strcmp(method, kSuffixes[i][0]) == 0)
            return kSuffixes[i][1];
    }
    return NULL;
}

/* Compares quant_method with the names of the scales: loaders look for the scales by quant_method. */
static tsr_status check_quantization(const tsr_weights_checking *k)
{
    const tsr_weights *const w = k->dst->weights;
    size_t parts = 0; /* parts of an absorbed kv_b_proj: their consumers need no configuration */
    for (size_t i = 0; i < w->count; i++)
        parts += w->items[i].part != NULL;
    if (k->dst->checkpoint->config == NULL || w->n_scaled == parts)
        return TSR_OK;
    if (w->method == NULL)
        return tsr_add_finding(k, TSR_CHECK_CONFIG, "quantization_config",
                               "missing, although %zu tensors are codes: loaders would read them as values",
                               w->n_scaled - parts);
    const char *const suffix = scale_suffix(w->method);
    for (size_t i = 0; suffix != NULL && i < w->count; i++) {
        const tsr_weight *const x = &w->items[i];
        const bool blocks = x->coding == TSR_CODED_E4M3 && x->part == NULL && x->block.cols < x->cols;
        if (blocks && (tsr_ends_with(x->scale->name, "_scale") || tsr_ends_with(x->scale->name, "_scale_inv")) &&
            !tsr_ends_with(x->scale->name, suffix))
            return tsr_add_finding(k, TSR_CHECK_CONFIG, "quantization_config.quant_method",
                                   "'%s', whose loaders look for '...%s', but the scales are named '%s'", w->method,
                                   suffix, x->scale->name);
    }
    return TSR_OK;
}

static tsr_status check_config(const tsr_weights_checking *k)
{
    const tsr_checkpoint *const s = k->src->checkpoint, *const d = k->dst->checkpoint;
    if (s->config != NULL && d->config != NULL) {
        k->out->judged[TSR_CHECK_CONFIG]++;
        const key_check lost = {k, d, true, "missing: the source has it"};
        const key_check added = {k, s, false, "the source has no such key"};
        TSR_TRY(check_keys(&lost, (tsr_json_text){.data = s->config, .size = s->config_size}, ""));
        TSR_TRY(check_keys(&added, (tsr_json_text){.data = d->config, .size = d->config_size}, ""));
    }
    return check_quantization(k);
}

tsr_status tsr_check_weights(const tsr_side *src, const tsr_side *dst, const tsr_comparison *c,
                             const tsr_weight_limits *limits, tsr_findings *findings, tsr_err *err)
{
    tsr_weights_checking k = {.src = src, .dst = dst, .c = c, .limits = limits, .out = findings, .err = err};
    tsr_status status;
    k.wrong = calloc(c->count + 1, sizeof *k.wrong);
    if (k.wrong == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "out of memory for %zu tensors", c->count);
    TSR_GOTO(check_names(&k));
    TSR_GOTO(check_shapes(&k));
    TSR_GOTO(tsr_check_weight_scales(&k));
    TSR_GOTO(tsr_check_codes(&k));
    TSR_GOTO(tsr_check_values(&k));
    TSR_GOTO(tsr_check_blocks(&k));
    status = check_config(&k);
out:
    free(k.wrong);
    return status;
}
