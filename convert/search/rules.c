/* Reads rules files and sensitivities, and decides which schemes can be mixed. */
#include "convert/search/rules.h"

#include "common/file.h"
#include "common/glob.h"
#include "common/grow.h"
#include "convert/plans/ct_plan.h"
#include "formats/json/json.h"
#include "formats/weights/weights.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

enum { MAX_BYTES = 256 << 20 };

bool tsr_mixed_scheme_takes(tsr_scheme scheme, const tsr_checkpoint *source, const tsr_tensor *t)
{
    const tsr_scheme_row *const row = tsr_scheme_row_of(scheme);
    if (row->form == TSR_FORM_PACKED)
        return tsr_ct_takes(source, t, scheme);
    return tsr_ct_takes(source, t, TSR_SCHEME_FP8_CHANNEL) &&
           (row->form != TSR_FORM_GROUPS ||
            t->shape[1] % tsr_mx_describe(scheme, TSR_DIALECT_COMPRESSED_TENSORS, false).scheme.group == 0);
}

tsr_status tsr_mixed_scheme_parse(const char *word, tsr_scheme *scheme, tsr_err *err)
{
    char names[512] = "";
    for (size_t i = 0; tsr_scheme_mixed(i) != TSR_SCHEMES; i++) {
        *scheme = tsr_scheme_mixed(i);
        const char *const name = tsr_scheme_name(*scheme);
        if (strcmp(word, tsr_scheme_spelling(*scheme)) == 0 ||
            (*scheme == TSR_SCHEME_KEEP && strcmp(word, "bf16") == 0))
            return TSR_OK;
        if (name == NULL)
            continue;
        snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", i == 0 ? "" : ", ", name);
    }
    if (strcmp(word, "int8-channel") == 0)
        return tsr_fail(err, TSR_E_USAGE,
                        "int8-channel cannot be mixed with other schemes: loaders expect its row sums for all layers "
                        "or none; use int8-weight-only instead");
    return tsr_fail(err, TSR_E_USAGE,
                    "scheme '%s' cannot be mixed with others; available: %s; some also with options, as in "
                    "'int4-weight-only --group-size 32' (docs/plan-schemes.md)",
                    word, names);
}

tsr_status tsr_mixed_schemes_check(const bool used[TSR_SCHEMES], tsr_dialect dialect, tsr_err *err)
{
    for (tsr_scheme scheme = TSR_SCHEME_KEEP + 1; scheme < TSR_SCHEMES && dialect == TSR_DIALECT_MODELOPT; scheme++) {
        const tsr_scheme_row *const row = tsr_scheme_row_of(scheme);
        if (used[scheme] && row->dialects[TSR_DIALECT_MODELOPT].name == NULL)
            return tsr_fail(
                err, TSR_E_UNSUPPORTED,
                "dialect modelopt has no %s; it supports fp8-tensor, nvfp4, nvfp4-weight-only and mxfp8; use "
                "compressed-tensors for others",
                tsr_scheme_spelling(scheme));
    }
    const tsr_scheme row = used[TSR_SCHEME_FP8_CHANNEL] ? TSR_SCHEME_FP8_CHANNEL : TSR_SCHEME_FP8_TENSOR;
    if ((used[TSR_SCHEME_FP8_BLOCK] || used[TSR_SCHEME_FP8_BLOCK_MSE]) && used[row])
        return tsr_fail(err, TSR_E_UNSUPPORTED,
                        "fp8-block and %s cannot be mixed: their tensors have the same names and dtypes, and "
                        "readers that use one block size would apply it to both",
                        tsr_scheme_name(row));
    return TSR_OK;
}

bool tsr_rules_is_name(const tsr_rules_item *item)
{
    return strpbrk(item->pattern, TSR_GLOB_SPECIAL) == NULL;
}

/* ---- reading ---- */

typedef struct reading {
    tsr_scheme_rules *rules;
    tsr_json_reader json;
    tsr_err *err;
    bool recipe;
} reading;

static tsr_status add(const reading *r, const tsr_rules_item *item)
{
    tsr_scheme_rules *const rules = r->rules;
    if (!tsr_grow(&rules->items, rules->count, &rules->capacity, sizeof *rules->items))
        return tsr_out_of_memory(r->err, rules->path);
    rules->items[rules->count++] = *item;
    rules->hash = XXH64(item->pattern, strlen(item->pattern) + 1, rules->hash + (uint64_t)item->scheme);
    rules->hash = XXH64(&item->weight, sizeof item->weight, rules->hash);
    return TSR_OK;
}

static tsr_status read_text(reading *r, const char *what, const char **text)
{
    tsr_json_kind kind;
    TSR_TRY(tsr_json_peek(&r->json, &kind, r->err));
    if (kind != TSR_JSON_STRING)
        return tsr_fail(r->err, TSR_E_FORMAT, "%s: byte %zu: %s is not a string", r->rules->path, r->json.pos, what);
    return tsr_json_read_text(&r->json, &r->rules->arena, text, r->err);
}

/* Reads the patterns of one rule, a string or a list of strings. *item is used for each of them. */
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
    return tsr_fail(r->err, TSR_E_FORMAT, "%s: byte %zu: unknown key '%.*s'; known keys: %s", r->rules->path,
                    r->json.pos, (int)(key.size < 64 ? key.size : 64), key.data, known);
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
            return unknown_key(r, key, "match, scheme and note, each at most once");
        matched = matched || tsr_json_is(key, "match");
    }
    if (word == NULL || r->rules->count == first)
        return tsr_fail(r->err, TSR_E_FORMAT, "%s: byte %zu: a rule needs %s", r->rules->path, r->json.pos,
                        word == NULL ? "a scheme" : "something to match");
    const tsr_status status = tsr_mixed_scheme_parse(word, &item.scheme, r->err);
    if (status != TSR_OK)
        return tsr_prepend(r->err, TSR_E_UNSUPPORTED, "%s: rule for '%s'", r->rules->path,
                           r->rules->items[first].pattern);
    for (size_t i = first; i < r->rules->count; i++)
        r->rules->items[i].scheme = item.scheme;
    r->rules->hash = XXH64(word, strlen(word), r->rules->hash);
    return TSR_OK;
}

/* Reads the dialect. Its configuration must support several schemes. */
static tsr_status read_dialect(const reading *r, const char *dialect)
{
    static const tsr_dialect kMixed[] = {TSR_DIALECT_COMPRESSED_TENSORS, TSR_DIALECT_MODELOPT};
    for (size_t i = 0; i < sizeof kMixed / sizeof *kMixed; i++) {
        r->rules->dialect = kMixed[i];
        if (strcmp(dialect, tsr_dialect_name(kMixed[i])) == 0)
            return TSR_OK;
    }
    if (strcmp(dialect, "deepseek") == 0)
        return tsr_fail(r->err, TSR_E_UNSUPPORTED,
                        "%s: dialect deepseek supports one scheme for all layers only; use compressed-tensors or "
                        "modelopt for several schemes",
                        r->rules->path);
    return tsr_fail(r->err, TSR_E_FORMAT, "%s: unknown dialect '%s'; use compressed-tensors or modelopt",
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

/* Returns true for members of a recipe that a rules file does not have (convert/jobs/recipe.h). */
static bool is_of_recipe(tsr_json_text key)
{
    static const char *const kKeys[] = {"release", "model_types", "options", "source", "published", "loaders"};
    bool is = false;
    for (size_t i = 0; i < sizeof kKeys / sizeof *kKeys; i++)
        is = is || tsr_json_is(key, kKeys[i]);
    return is;
}

static tsr_status read_rules(reading *r)
{
    const char *text, *const schema = r->recipe ? "tessera-recipe/1" : "tessera-rules/1";
    tsr_json_text key, value;
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
        if (r->recipe && is_of_recipe(key)) {
            TSR_TRY(tsr_json_skip(&r->json, &value, r->err));
            continue;
        }
        if (!tsr_json_is(key, "schema") && !tsr_json_is(key, "dialect") && !tsr_json_is(key, "note"))
            return unknown_key(r, key, "schema, dialect, note and rules, each at most once");
        TSR_TRY(read_text(r, "this", &text));
        if (tsr_json_is(key, "schema") && strcmp(text, schema) != 0)
            return tsr_fail(r->err, TSR_E_FORMAT, "%s: schema is '%s', not %s", r->rules->path, text, schema);
        if (tsr_json_is(key, "dialect"))
            TSR_TRY(read_dialect(r, text));
    }
    if (!listed)
        return tsr_fail(r->err, TSR_E_FORMAT,
                        "%s: the list of rules is missing: {\"rules\": [{\"match\": ..., \"scheme\": ...}]}",
                        r->rules->path);
    return TSR_OK;
}

/* Reads a number, or null as NaN. */
static tsr_status read_number(reading *r, double *number)
{
    tsr_json_text value;
    char digits[64];
    *number = NAN;
    TSR_TRY(tsr_json_skip(&r->json, &value, r->err));
    if (value.size < sizeof digits && strchr("-0123456789", value.data[0]) != NULL) {
        memcpy(digits, value.data, value.size);
        digits[value.size] = '\0';
        *number = strtod(digits, NULL);
    }
    return TSR_OK;
}

static bool is_sensitivity(double weight)
{
    return isfinite(weight) && weight > 0 && weight <= 1e30;
}

/* Reads a group of a measurement. One that was not measured has no sensitivity. */
static tsr_status read_measured_group(void *context, tsr_err *err)
{
    reading *const r = context;
    const size_t first = r->rules->count;
    tsr_rules_item item = {.weight = NAN};
    tsr_json_text key, value;
    bool more;
    TSR_TRY(tsr_json_enter_object(&r->json, err));
    for (;;) {
        TSR_TRY(tsr_json_next_member(&r->json, &key, &more, err));
        if (!more)
            break;
        if (tsr_json_is(key, "match"))
            TSR_TRY(read_patterns(r, &item));
        else if (tsr_json_is(key, "sensitivity"))
            TSR_TRY(read_number(r, &item.weight));
        else
            TSR_TRY(tsr_json_skip(&r->json, &value, err));
    }
    if (r->rules->count == first || !is_sensitivity(item.weight))
        return tsr_fail(err, TSR_E_FORMAT, "%s: byte %zu: a group needs match, and sensitivity, a positive number",
                        r->rules->path, r->json.pos);
    for (size_t i = first; i < r->rules->count; i++)
        r->rules->items[i].weight = item.weight;
    return TSR_OK;
}

/* Reads a result of tessera sensitivities from the value of its first member, the schema. */
static tsr_status read_measurement(reading *r)
{
    const char *schema;
    tsr_rules_item otherwise = {.pattern = "*", .weight = NAN};
    tsr_json_text key, value;
    bool more;
    TSR_TRY(read_text(r, "schema", &schema));
    if (strcmp(schema, "tessera-sensitivities/1") != 0)
        return tsr_fail(r->err, TSR_E_FORMAT, "%s: schema is '%s', not tessera-sensitivities/1", r->rules->path,
                        schema);
    r->rules->measured = true;
    for (;;) {
        TSR_TRY(tsr_json_next_member(&r->json, &key, &more, r->err));
        if (!more)
            break;
        if (tsr_json_is(key, "groups"))
            TSR_TRY(tsr_json_read_array(&r->json, read_measured_group, r, r->err));
        else if (tsr_json_is(key, "otherwise"))
            TSR_TRY(read_number(r, &otherwise.weight));
        else
            TSR_TRY(tsr_json_skip(&r->json, &value, r->err));
        if (tsr_json_is(key, "weighted"))
            r->rules->weighted = tsr_json_is(value, "true");
    }
    if (r->rules->count == 0 || !is_sensitivity(otherwise.weight))
        return tsr_fail(r->err, TSR_E_FORMAT, "%s: it needs groups, and otherwise, a positive number", r->rules->path);
    return add(r, &otherwise);
}

static tsr_status read_weights(reading *r)
{
    tsr_json_text key;
    bool more;
    TSR_TRY(tsr_json_enter_object(&r->json, r->err));
    for (;;) {
        tsr_rules_item item;
        TSR_TRY(tsr_json_next_member(&r->json, &key, &more, r->err));
        if (!more)
            return TSR_OK;
        if (r->rules->count == 0 && tsr_json_is(key, "schema"))
            return read_measurement(r);
        TSR_TRY(tsr_json_decode(&r->json, key, &r->rules->arena, &item.pattern, r->err));
        TSR_TRY(read_number(r, &item.weight));
        if (!is_sensitivity(item.weight))
            return tsr_fail(r->err, TSR_E_FORMAT, "%s: '%s': the weight of errors must be a positive number",
                            r->rules->path, item.pattern);
        item.scheme = TSR_SCHEME_KEEP;
        TSR_TRY(add(r, &item));
    }
}

static tsr_status read_file(tsr_scheme_rules *rules, const char *path, tsr_status (*read)(reading *), tsr_err *err)
{
    const char *text;
    size_t size;
    *rules = (tsr_scheme_rules){.dialect = TSR_DIALECT_COMPRESSED_TENSORS, .path = path};
    tsr_status status = tsr_read_file(path, MAX_BYTES, &rules->arena, &text, &size, err);
    if (status == TSR_OK) {
        reading r = {.rules = rules, .json = tsr_json_open(path, text, size), .err = err};
        status = read(&r);
        if (status == TSR_OK)
            status = tsr_json_finish(&r.json, err);
    }
    status = tsr_arena_status(&rules->arena, status, err);
    if (status != TSR_OK)
        tsr_rules_free(rules);
    return status;
}

tsr_status tsr_rules_read(tsr_scheme_rules *rules, const char *path, tsr_err *err)
{
    return read_file(rules, path, read_rules, err);
}

static tsr_status read_recipe(reading *r)
{
    r->recipe = true;
    return read_rules(r);
}

tsr_status tsr_rules_read_recipe(tsr_scheme_rules *rules, const char *path, tsr_err *err)
{
    return read_file(rules, path, read_recipe, err);
}

tsr_status tsr_sensitivity_read(tsr_scheme_rules *rules, const char *path, tsr_err *err)
{
    return read_file(rules, path, read_weights, err);
}

void tsr_rules_free(tsr_scheme_rules *rules)
{
    free(rules->items);
    tsr_arena_free(&rules->arena);
    *rules = (tsr_scheme_rules){.path = NULL};
}
