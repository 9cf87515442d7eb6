/* Reading rules and sensitivities, and the table of the schemes that can be mixed. */
#include "convert/plans/rules.h"

#include "common/file.h"
#include "convert/plans/ct_plan.h"
#include "formats/json/json.h"
#include "formats/model/weights.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

enum { MAX_BYTES = 256 << 20 };

static const struct mix {
    const char *name;
    tsr_mix_codes codes;
} kMixes[TSR_MIXES] = {
    [TSR_MIX_KEEP] = {"keep", {.form = TSR_MIX_PLAIN}},
    [TSR_MIX_NVFP4] = {"nvfp4", {.form = TSR_MIX_GROUPS, .target = TSR_MX_NVFP4}},
    [TSR_MIX_NVFP4_WEIGHT_ONLY] = {"nvfp4-weight-only", {.form = TSR_MIX_GROUPS, .target = TSR_MX_NVFP4_WEIGHT_ONLY}},
    [TSR_MIX_MXFP4] = {"mxfp4", {.form = TSR_MIX_GROUPS, .target = TSR_MX_MXFP4}},
    [TSR_MIX_MXFP4_WEIGHT_ONLY] = {"mxfp4-weight-only", {.form = TSR_MIX_GROUPS, .target = TSR_MX_MXFP4_WEIGHT_ONLY}},
    [TSR_MIX_MXFP8] = {"mxfp8", {.form = TSR_MIX_GROUPS, .target = TSR_MX_MXFP8}},
    [TSR_MIX_MXFP8_WEIGHT_ONLY] = {"mxfp8-weight-only", {.form = TSR_MIX_GROUPS, .target = TSR_MX_MXFP8_WEIGHT_ONLY}},
    [TSR_MIX_FP8_BLOCK] = {"fp8-block", {.form = TSR_MIX_E4M3, .block = {128, 128}}},
    [TSR_MIX_FP8_CHANNEL] = {"fp8-channel", {.form = TSR_MIX_E4M3}},
    [TSR_MIX_INT8_WEIGHT_ONLY] = {"int8-weight-only",
                                  {.form = TSR_MIX_PACKED,
                                   .integers = {.bits = 8, .divisor = 127.5f, .scale_dtype = TSR_BF16}}},
    [TSR_MIX_INT4_WEIGHT_ONLY] = {"int4-weight-only",
                                  {.form = TSR_MIX_PACKED,
                                   .integers = {.bits = 4, .group = 128, .divisor = 7.5f, .scale_dtype = TSR_BF16}}},
};

const char *tsr_mix_name(tsr_mix mix)
{
    return kMixes[mix].name;
}

const tsr_mix_codes *tsr_mix_codes_of(tsr_mix mix)
{
    return &kMixes[mix].codes;
}

tsr_mx_description tsr_mix_describe(tsr_mix mix, tsr_mx_dialect dialect)
{
    return tsr_mx_describe(kMixes[mix].codes.target, dialect);
}

bool tsr_mix_takes(tsr_mix mix, const tsr_checkpoint *source, const tsr_tensor *t)
{
    static const tsr_int_scheme kBytes = {.bits = 8};
    const tsr_mix_codes *const codes = tsr_mix_codes_of(mix);
    if (codes->form == TSR_MIX_PACKED)
        return tsr_ct_takes(source, t, TSR_CT_PACKED, &codes->integers);
    return tsr_ct_takes(source, t, TSR_CT_FP8, &kBytes) &&
           (codes->form != TSR_MIX_GROUPS ||
            t->shape[1] % tsr_mix_describe(mix, TSR_MX_DIALECT_COMPRESSED_TENSORS).scheme.group == 0);
}

tsr_status tsr_mix_parse(const char *word, tsr_mix *mix, tsr_err *err)
{
    char names[256] = "";
    for (tsr_mix i = 0; i < TSR_MIXES; i++) {
        if (strcmp(word, kMixes[i].name) == 0 || (i == TSR_MIX_KEEP && strcmp(word, "bf16") == 0)) {
            *mix = i;
            return TSR_OK;
        }
        snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", i == 0 ? "" : ", ", kMixes[i].name);
    }
    if (strcmp(word, "int8-channel") == 0)
        return tsr_fail(err, TSR_E_USAGE,
                        "int8-channel cannot be mixed with others: the sums of its rows stand in a file of their own, "
                        "which is of models that are int8 throughout; int8-weight-only can");
    return tsr_fail(err, TSR_E_USAGE, "no scheme '%s' to mix with others: there are %s", word, names);
}

tsr_status tsr_mix_check(const bool used[TSR_MIXES], tsr_mx_dialect dialect, tsr_err *err)
{
    for (tsr_mix mix = TSR_MIX_KEEP + 1; mix < TSR_MIXES && dialect == TSR_MX_DIALECT_MODELOPT; mix++) {
        const tsr_mix_codes *const codes = tsr_mix_codes_of(mix);
        if (used[mix] && (codes->form != TSR_MIX_GROUPS ||
                          tsr_mx_check_dialect(codes->target, TSR_MX_DIALECT_MODELOPT, NULL) != TSR_OK))
            return tsr_fail(err, TSR_E_UNSUPPORTED,
                            "dialect modelopt: of %s there is none; a mixture in it is of nvfp4, nvfp4-weight-only and "
                            "mxfp8, and compressed-tensors holds others",
                            tsr_mix_name(mix));
    }
    if (used[TSR_MIX_FP8_BLOCK] && used[TSR_MIX_FP8_CHANNEL])
        return tsr_fail(err, TSR_E_UNSUPPORTED,
                        "fp8-block and fp8-channel cannot be mixed: their tensors have the same names and dtypes, and "
                        "readers that know one size of blocks would take it for both");
    return TSR_OK;
}

bool tsr_rules_is_name(const tsr_rules_item *item)
{
    return strpbrk(item->pattern, "*?") == NULL;
}

/* ---- reading ---- */

typedef struct reading {
    tsr_rules *rules;
    tsr_json_reader json;
    tsr_err *err;
} reading;

static tsr_status add(const reading *r, const tsr_rules_item *item)
{
    tsr_rules *const rules = r->rules;
    if (rules->count == rules->capacity) {
        const size_t capacity = rules->capacity == 0 ? 64 : 2 * rules->capacity;
        tsr_rules_item *const items = realloc(rules->items, capacity * sizeof *items);
        if (items == NULL)
            return tsr_out_of_memory(r->err, rules->path);
        rules->items = items;
        rules->capacity = capacity;
    }
    rules->items[rules->count++] = *item;
    rules->hash = XXH64(item->pattern, strlen(item->pattern) + 1, rules->hash + (uint64_t)item->scheme);
    rules->hash = XXH64(&item->weight, sizeof item->weight, rules->hash);
    return TSR_OK;
}

static tsr_status read_text(reading *r, const char *what, const char **text)
{
    tsr_json_text value;
    tsr_json_kind kind;
    TSR_TRY(tsr_json_peek(&r->json, &kind, r->err));
    if (kind != TSR_JSON_STRING)
        return tsr_fail(r->err, TSR_E_FORMAT, "%s: byte %zu: %s is not a text", r->rules->path, r->json.pos, what);
    TSR_TRY(tsr_json_read_string(&r->json, &value, r->err));
    return tsr_json_decode(&r->json, value, &r->rules->arena, text, r->err);
}

/* The patterns of one rule, for which *item is the rest: a text, or a list of them. */
static tsr_status read_patterns(reading *r, tsr_rules_item *item)
{
    tsr_json_kind kind;
    bool more;
    TSR_TRY(tsr_json_peek(&r->json, &kind, r->err));
    if (kind != TSR_JSON_ARRAY) {
        TSR_TRY(read_text(r, "match", &item->pattern));
        return add(r, item);
    }
    TSR_TRY(tsr_json_enter_array(&r->json, r->err));
    for (;;) {
        TSR_TRY(tsr_json_next_element(&r->json, &more, r->err));
        if (!more)
            return TSR_OK;
        TSR_TRY(read_text(r, "a pattern of match", &item->pattern));
        TSR_TRY(add(r, item));
    }
}

static tsr_status unknown_key(const reading *r, tsr_json_text key, const char *known)
{
    return tsr_fail(r->err, TSR_E_FORMAT, "%s: byte %zu: the key '%.*s' means nothing here; there are %s",
                    r->rules->path, r->json.pos, (int)(key.size < 64 ? key.size : 64), key.data, known);
}

static tsr_status read_rule(reading *r)
{
    const size_t first = r->rules->count;
    const char *word = NULL, *note;
    tsr_rules_item item = {.weight = 1};
    tsr_json_text key;
    bool more, matched = false;
    TSR_TRY(tsr_json_enter_object(&r->json, r->err));
    for (;;) {
        TSR_TRY(tsr_json_next_member(&r->json, &key, &more, r->err));
        if (!more)
            break;
        if (tsr_json_is(key, "match") && !matched)
            TSR_TRY(read_patterns(r, &item));
        else if (tsr_json_is(key, "scheme") && word == NULL)
            TSR_TRY(read_text(r, "scheme", &word));
        else if (tsr_json_is(key, "note"))
            TSR_TRY(read_text(r, "note", &note));
        else
            return unknown_key(r, key, "match, scheme and note, once each");
        matched = matched || tsr_json_is(key, "match");
    }
    if (word == NULL || r->rules->count == first)
        return tsr_fail(r->err, TSR_E_FORMAT, "%s: byte %zu: a rule needs %s", r->rules->path, r->json.pos,
                        word == NULL ? "a scheme" : "something to match");
    const tsr_status status = tsr_mix_parse(word, &item.scheme, r->err);
    if (status != TSR_OK)
        return tsr_prepend(r->err, TSR_E_UNSUPPORTED, "%s: rule for '%s'", r->rules->path,
                           r->rules->items[first].pattern);
    for (size_t i = first; i < r->rules->count; i++)
        r->rules->items[i].scheme = item.scheme;
    r->rules->hash = XXH64(word, strlen(word), r->rules->hash);
    return TSR_OK;
}

/* Whose configuration can hold several schemes. */
static tsr_status read_dialect(const reading *r, const char *dialect)
{
    static const tsr_mx_dialect kMixed[] = {TSR_MX_DIALECT_COMPRESSED_TENSORS, TSR_MX_DIALECT_MODELOPT};
    for (size_t i = 0; i < sizeof kMixed / sizeof *kMixed; i++) {
        r->rules->dialect = kMixed[i];
        if (strcmp(dialect, tsr_mx_dialect_name(kMixed[i])) == 0)
            return TSR_OK;
    }
    if (strcmp(dialect, "deepseek") == 0)
        return tsr_fail(r->err, TSR_E_UNSUPPORTED,
                        "%s: dialect deepseek: quant_method fp8 and mxfp8 have one scheme for all layers; "
                        "compressed-tensors and modelopt hold a mixture",
                        r->rules->path);
    return tsr_fail(r->err, TSR_E_FORMAT, "%s: no dialect '%s'; compressed-tensors and modelopt hold a mixture",
                    r->rules->path, dialect);
}

static tsr_status read_list(reading *r)
{
    bool more;
    TSR_TRY(tsr_json_enter_array(&r->json, r->err));
    for (;;) {
        TSR_TRY(tsr_json_next_element(&r->json, &more, r->err));
        if (!more)
            return TSR_OK;
        TSR_TRY(read_rule(r));
    }
}

static tsr_status read_rules(reading *r)
{
    const char *text;
    tsr_json_text key;
    bool more, listed = false;
    TSR_TRY(tsr_json_enter_object(&r->json, r->err));
    for (;;) {
        TSR_TRY(tsr_json_next_member(&r->json, &key, &more, r->err));
        if (!more)
            break;
        if (tsr_json_is(key, "rules") && !listed) {
            listed = true;
            TSR_TRY(read_list(r));
            continue;
        }
        if (!tsr_json_is(key, "schema") && !tsr_json_is(key, "dialect") && !tsr_json_is(key, "note"))
            return unknown_key(r, key, "schema, dialect, note and rules, once each");
        TSR_TRY(read_text(r, "this", &text));
        if (tsr_json_is(key, "schema") && strcmp(text, "tessera-rules/1") != 0)
            return tsr_fail(r->err, TSR_E_FORMAT, "%s: schema is '%s', not tessera-rules/1", r->rules->path, text);
        if (tsr_json_is(key, "dialect"))
            TSR_TRY(read_dialect(r, text));
    }
    if (!listed)
        return tsr_fail(r->err, TSR_E_FORMAT,
                        "%s: there is no list of rules: {\"rules\": [{\"match\": ..., "
                        "\"scheme\": ...}]}",
                        r->rules->path);
    return TSR_OK;
}

static tsr_status read_weights(reading *r)
{
    tsr_json_text key, value;
    char digits[64];
    bool more;
    TSR_TRY(tsr_json_enter_object(&r->json, r->err));
    for (;;) {
        tsr_rules_item item = {.weight = NAN};
        TSR_TRY(tsr_json_next_member(&r->json, &key, &more, r->err));
        if (!more)
            return TSR_OK;
        TSR_TRY(tsr_json_decode(&r->json, key, &r->rules->arena, &item.pattern, r->err));
        TSR_TRY(tsr_json_skip(&r->json, &value, r->err));
        if (value.size < sizeof digits && strchr("-0123456789", value.data[0]) != NULL) {
            memcpy(digits, value.data, value.size);
            digits[value.size] = '\0';
            item.weight = strtod(digits, NULL);
        }
        if (!isfinite(item.weight) || item.weight <= 0 || item.weight > 1e30)
            return tsr_fail(r->err, TSR_E_FORMAT, "%s: '%s': a weight is a positive number", r->rules->path,
                            item.pattern);
        TSR_TRY(add(r, &item));
    }
}

static tsr_status read_file(tsr_rules *rules, const char *path, tsr_status (*read)(reading *), tsr_err *err)
{
    const char *text;
    size_t size;
    *rules = (tsr_rules){.dialect = TSR_MX_DIALECT_COMPRESSED_TENSORS, .path = path};
    tsr_status status = tsr_read_file(path, MAX_BYTES, &rules->arena, &text, &size, err);
    if (status == TSR_OK) {
        reading r = {rules, tsr_json_open(path, text, size), err};
        status = read(&r);
        if (status == TSR_OK)
            status = tsr_json_finish(&r.json, err);
    }
    status = tsr_arena_status(&rules->arena, status, err);
    if (status != TSR_OK)
        tsr_rules_free(rules);
    return status;
}

tsr_status tsr_rules_read(tsr_rules *rules, const char *path, tsr_err *err)
{
    return read_file(rules, path, read_rules, err);
}

tsr_status tsr_sensitivity_read(tsr_rules *rules, const char *path, tsr_err *err)
{
    return read_file(rules, path, read_weights, err);
}

void tsr_rules_free(tsr_rules *rules)
{
    free(rules->items);
    tsr_arena_free(&rules->arena);
    *rules = (tsr_rules){.path = NULL};
}
