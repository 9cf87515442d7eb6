/* Rules for ModelOpt's dialect: the keys that its readers need, the two files that contain them, and the list of
 * excluded modules, which every loader reads in its own way. (modelopt.py of vLLM, modelopt_quant.py of SGLang.) */
#include "formats/loaders/load_query.h"

#include "common/glob.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_NAME = 1200 };

/* Finds a value, including null, because these readers only test whether a key exists. */
static bool find(tsr_json_text object, const char *path, tsr_json_text *value)
{
    return object.data != NULL && tsr_json_find(object.data, object.size, path, value);
}

static bool is_nvfp4(const tsr_load_query *q)
{
    return tsr_json_says(q->config, "quant_algo", "\"NVFP4\"") ||
           tsr_json_says(q->config, "quant_algo", "\"W4A16_NVFP4\"");
}

/* ---- the list ---- */

void tsr_modelopt_built_name(const tsr_load_query *q, const tsr_linear *l, char *name, size_t size)
{
    char buffer[TSR_MODULE_NAME];
    const size_t experts = tsr_query_experts_length(l);
    if (experts > 0)
        snprintf(name, size, "%.*s", (int)experts - 1, l->module);
    else if (l->fused != NULL)
        tsr_query_joined_name(l, name, size);
    else
        snprintf(name, size, "%s", l->module);
    if (tsr_query_built(q, name, buffer) == buffer)
        snprintf(name, size, "%s", buffer);
}

static const char *all_members(const tsr_load_query *q, const tsr_linear *l)
{
    const char *entry = NULL;
    for (size_t i = 0; i < l->n_members; i++) {
        entry = tsr_ignore_list_find(q->ignored, TSR_MATCH_EXACT, l->members[i]->module);
        if (entry == NULL)
            return NULL;
    }
    return entry;
}

/* Returns the entry because of which the loader builds this layer unquantized. *part: the entry is only a part of its
 * name. */
static const char *find_entry(const tsr_load_query *q, const tsr_linear *l, const char *built, bool *part)
{
    const bool vllm = q->loader == TSR_LOADER_VLLM;
    *part = false;
    for (size_t i = 0; i < q->ignored->count; i++) {
        const char *const entry = q->ignored->entries[i];
        if (strcmp(entry, built) == 0 || tsr_glob_match(entry, built) || (!vllm && tsr_glob_match(entry, l->module)))
            return entry;
    }
    const char *const members = l->fused != NULL ? all_members(q, l) : NULL;
    if (members != NULL || !vllm)
        return members;
    for (size_t i = 0; i < q->ignored->count; i++) {
        const char *const entry = q->ignored->entries[i];
        *part = true;
        if (strstr(built, entry) != NULL || (l->part == TSR_PART_ROUTED_EXPERTS && strstr(entry, built) != NULL))
            return entry;
    }
    return NULL;
}

bool tsr_modelopt_excludes(const tsr_load_query *q, const tsr_linear *l)
{
    char built[MAX_NAME];
    bool part;
    tsr_modelopt_built_name(q, l, built, sizeof built);
    return find_entry(q, l, built, &part) != NULL;
}

static void check_excluded(const tsr_load_query *q, const tsr_linear *l, bool stated)
{
    char built[MAX_NAME];
    bool part;
    tsr_modelopt_built_name(q, l, built, sizeof built);
    const char *const entry = find_entry(q, l, built, &part);
    const char *const key = q->ignored->key == NULL ? "no list" : q->ignored->key;
    if (tsr_linear_is_quantized(l) && entry != NULL && part)
        tsr_query_note(q, true, l->module, "ignore list",
                       "write full names that are not part of other names, or a set around the last letter "
                       "(mlp.gat[e])",
                       "it is quantized, but '%s' in %s also matches '%s': this loader accepts an entry that is part "
                       "of a name, and would read it as plain",
                       entry, key, built);
    else if (tsr_linear_is_quantized(l) && entry != NULL)
        tsr_query_note(q, true, l->module, "ignore list", "remove the entry, or name modules in full",
                       "it is quantized, but because of '%s' in %s this loader reads '%s' as plain", entry, key, built);
    if (!tsr_linear_is_quantized(l) && entry == NULL && stated)
        tsr_query_note(q, true, l->module, "ignore list", "list it under ignore and exclude_modules",
                       "it is %s, but config.json (%s) does not exclude '%s': the loader would read it as codes "
                       "without a scale",
                       tsr_dtype_name((tsr_dtype)l->tensor->dtype), key, built);
}

/* Checks the output head: vLLM builds a quantized one unless the list names it. With tied embeddings no tensor loads
 * its scale. */
static void check_head(const tsr_load_query *q)
{
    static const char *const kHeads[] = {"lm_head", "language_model.lm_head"};
    if (tsr_query_quantized_head(q))
        return;
    if (tsr_query_family(q, " afmoe exaone_moe ")) { /* afmoe.py and exaone_moe.py build the head without a prefix */
        tsr_query_note(q, true, NULL, "class", "use `tessera quantize --dialect compressed-tensors`",
                       "the class of '%.40s' builds its output head without a name, so no list excludes it: the loader "
                       "creates a quantized one",
                       q->family);
        return;
    }
    for (size_t i = 0; i < q->ignored->count; i++) {
        const char *const entry = q->ignored->entries[i];
        if (tsr_glob_match(entry, kHeads[0]) || tsr_glob_match(entry, kHeads[1]) || strstr(kHeads[0], entry) != NULL)
            return;
    }
    tsr_query_note(q, true, NULL, "ignore list", "list lm_head under ignore and under exclude_modules",
                   "config.json (%s) does not exclude 'lm_head', which is not quantized: the loader creates a "
                   "quantized one, and leaves its scale uninitialized",
                   q->ignored->key == NULL ? "no list" : q->ignored->key);
}

/* ---- keys ---- */

/* Checks the members that readers of NVFP4 require in their file. */
static void check_keys(const tsr_load_query *q)
{
    static const struct {
        const char *key;
        tsr_loader loader;
    } kWanted[] = {{"group_size", TSR_LOADER_VLLM},
                   {"kv_cache_quant_algo", TSR_LOADER_VLLM},
                   {"exclude_modules", TSR_LOADER_VLLM},
                   {"group_size", TSR_LOADER_SGLANG},
                   {"exclude_modules", TSR_LOADER_SGLANG}};
    tsr_json_text value;
    for (size_t i = 0; is_nvfp4(q) && q->config.data == q->side.data && i < COUNT(kWanted); i++) {
        if (kWanted[i].loader == q->loader && !find(q->side, kWanted[i].key, &value))
            tsr_query_note(q, true, NULL, "configuration", "add the key; null or [] is enough",
                           "hf_quant_config.json has no key '%s' in quantization, which this loader requires for "
                           "NVFP4",
                           kWanted[i].key);
    }
    if (is_nvfp4(q) && q->config.data != q->side.data && q->loader == TSR_LOADER_SGLANG &&
        !find(q->config, "ignore", &value) && !find(q->config, "exclude_modules", &value))
        tsr_query_note(q, true, NULL, "configuration", "add \"ignore\": []",
                       "quantization_config has no key 'ignore', which this loader requires for NVFP4");
}

/* Checks group sizes: SGLang uses one size for all groups. (In MIXED_PRECISION it uses quantized_layers.) */
static void check_group_sizes(const tsr_load_query *q)
{
    tsr_json_text groups, group, name, size, first = {0};
    if (q->loader != TSR_LOADER_SGLANG || q->mixed || !find(q->config, "config_groups", &groups))
        return;
    tsr_json_reader r = tsr_json_members(groups);
    while (tsr_json_member(&r, &name, &group)) {
        if (!tsr_json_get(group, "weights.group_size", &size))
            continue;
        if (first.data != NULL && (first.size != size.size || memcmp(first.data, size.data, size.size) != 0))
            tsr_query_note(q, true, NULL, "groups", "use one group_size for all groups for this loader",
                           "config_groups has group_size %.*s and %.*s, but this loader supports one for all",
                           (int)first.size, first.data, (int)size.size, size.data);
        first = first.data == NULL ? size : first;
    }
}

/* ---- agreement of the two files ---- */

/* Returns the sorted entries. Returns NULL when memory is exhausted; then `issues` is marked as failed. */
static const char **sorted(const tsr_load_query *q, const tsr_ignore_list *list)
{
    const char **const all = malloc((list->count + 1) * sizeof *all);
    q->issues->failed = q->issues->failed || all == NULL;
    for (size_t i = 0; all != NULL && i < list->count; i++)
        all[i] = list->entries[i];
    if (all != NULL)
        qsort(all, list->count, sizeof *all, tsr_by_text);
    return all;
}

/* Returns the first entry of `list` that `other` does not have, or NULL. */
static const char *first_missing(const tsr_load_query *q, const tsr_ignore_list *list, const tsr_ignore_list *other)
{
    const char **const all = sorted(q, other);
    const char *missing = NULL;
    for (size_t i = 0; all != NULL && missing == NULL && i < list->count; i++) {
        if (bsearch(&list->entries[i], all, other->count, sizeof *all, tsr_by_text) == NULL)
            missing = list->entries[i];
    }
    free(all);
    return missing;
}

/* Checks that both files exclude the same modules, because some loaders read one file and some the other. */
static void check_agreement(const tsr_load_query *q)
{
    tsr_ignore_list other = {0};
    tsr_json_text array;
    if (q->side.data == NULL || q->config.data == q->side.data || !find(q->side, "exclude_modules", &array) ||
        array.data[0] != '[')
        return;
    if (!tsr_ignore_list_read(&other, "exclude_modules", array)) {
        q->issues->failed = true;
        return;
    }
    const char *const here = first_missing(q, q->ignored, &other), *const there = first_missing(q, &other, q->ignored);
    if (here != NULL || there != NULL)
        tsr_query_note(q, true, NULL, "two configurations", "write the same list into both files",
                       "'%s' is only in %s of %s, but some loaders read one file and some the other",
                       here != NULL ? here : there, here != NULL ? q->ignored->key : "exclude_modules",
                       here != NULL ? "config.json" : "hf_quant_config.json");
    tsr_ignore_list_free(&other);
}

static bool is_same(tsr_json_text a, tsr_json_text b)
{
    return a.size == b.size && memcmp(a.data, b.data, a.size) == 0;
}

static void note_two(const tsr_load_query *q, bool error, const char *what, tsr_json_text here, tsr_json_text there)
{
    tsr_query_note(
        q, error, NULL, "two configurations", "write the same into both files",
        "%s is %.*s in config.json and %.*s in hf_quant_config.json, but some loaders read one file and some the "
        "other",
        what, (int)here.size, here.data, (int)there.size, there.data);
}

/* Compares group sizes. config.json has one for each group of layers. (In MIXED_PRECISION each layer has its own.) */
static void check_two_sizes(const tsr_load_query *q)
{
    tsr_json_text there, here, groups, group, name;
    if (q->mixed || !tsr_json_get(q->side, "group_size", &there))
        return;
    if (tsr_json_get(q->config, "group_size", &here) && !is_same(here, there))
        note_two(q, true, "group_size", here, there);
    if (!find(q->config, "config_groups", &groups))
        return;
    tsr_json_reader r = tsr_json_members(groups);
    while (tsr_json_member(&r, &name, &group)) {
        if (tsr_json_get(group, "weights.group_size", &here) && !is_same(here, there))
            note_two(q, true, "group_size", here, there);
    }
}

static const tsr_json_text kNothing = {.data = "null", .size = 4};

/* Returns the algorithm of the KV cache; config.json may state the bits: 8 is FP8, 4 is NVFP4. */
static tsr_json_text cache_here(const tsr_load_query *q)
{
    static const tsr_json_text kFp8 = {.data = "\"FP8\"", .size = 5}, kNvfp4 = {.data = "\"NVFP4\"", .size = 7};
    tsr_json_text value, bits;
    if (tsr_json_get(q->config, "kv_cache_quant_algo", &value))
        return value;
    if (!tsr_json_get(q->config, "kv_cache_scheme", &value))
        return kNothing;
    if (!tsr_json_get(value, "num_bits", &bits))
        return value;
    return tsr_json_is(bits, "8") ? kFp8 : tsr_json_is(bits, "4") ? kNvfp4 : value;
}

/* Checks that both files state the same quantization. */
static void check_two(const tsr_load_query *q)
{
    tsr_json_text here, there;
    if (q->side.data == NULL || q->config.data == q->side.data)
        return;
    check_two_sizes(q);
    if (tsr_json_get(q->config, "quant_algo", &here) && tsr_json_get(q->side, "quant_algo", &there) &&
        !is_same(here, there))
        note_two(q, true, "quant_algo", here, there);
    here = cache_here(q);
    there = tsr_json_get(q->side, "kv_cache_quant_algo", &there) ? there : kNothing;
    /* A cache that one file does not mention is served in BF16 by loaders that read that file. */
    if (!is_same(here, there))
        note_two(q, !is_same(here, kNothing) && !is_same(there, kNothing), "the algorithm of the KV cache", here,
                 there);
}

/* Checks layers that are joined in the file. SGLang's class of W4A16_NVFP4 has a global scale for each member of a
 * joined layer and uses the largest. If the file has only one scale, it is loaded for the first member, and those of
 * the others stay uninitialized. (ModelOptNvFp4A16LinearMethod is not in WEIGHT_LOADER_V2_SUPPORTED.) */
static void check_joined(const tsr_load_query *q, const tsr_linear *l, tsr_json_text algorithm)
{
    static const char *const kJoined[] = {"qkv_proj", "gate_up_proj"};
    const char *const dot = strrchr(l->module, '.'), *const leaf = dot == NULL ? l->module : dot + 1;
    bool joined = false;
    for (size_t i = 0; i < COUNT(kJoined); i++)
        joined = joined || strcmp(leaf, kJoined[i]) == 0;
    if (q->loader == TSR_LOADER_SGLANG && joined && tsr_linear_is_quantized(l) && l->part != TSR_PART_ROUTED_EXPERTS &&
        tsr_json_is(algorithm, "\"W4A16_NVFP4\""))
        tsr_query_note(
            q, true, l->tensor->name, "global scales",
            "`tessera convert --to nvfp4-weight-only` writes a supported "
            "format",
            "it is stored as one layer with one weight_scale_2, which this loader's W4A16_NVFP4 applies to the first "
            "member only: those of the others stay uninitialized");
}

void tsr_modelopt_check_layer(const tsr_load_query *q, const tsr_linear *l, tsr_json_text algorithm)
{
    check_joined(q, l, algorithm);
    if (tsr_linear_is_quantized(l) && (tsr_json_is(algorithm, "\"NVFP4\"") || tsr_json_is(algorithm, "\"FP8\"")))
        tsr_query_need_input_scale(q, l);
}

void tsr_rule_modelopt(const tsr_load_query *q)
{
    tsr_json_text value = {0};
    if (!tsr_query_method(q, "modelopt")) {
        if (q->side.data != q->config.data && q->side.data != NULL && q->loader == TSR_LOADER_TRTLLM)
            tsr_query_note(q, true, NULL, "two configurations", "remove hf_quant_config.json",
                           "it reads hf_quant_config.json, and config.json says quant_method '%s'",
                           q->s->weights->method == NULL ? "" : q->s->weights->method);
        return;
    }
    check_keys(q);
    check_group_sizes(q);
    check_agreement(q);
    check_two(q);
    /* In MIXED_PRECISION, quantized_layers states which layers are quantized (load_mixed.c). */
    const bool stated = find(q->config, "quant_algo", &value) && !q->mixed;
    if (stated && q->loader == TSR_LOADER_VLLM)
        check_head(q);
    for (size_t i = 0; i < q->linears->count; i++) {
        if (!tsr_query_reads(q, &q->linears->items[i]))
            continue;
        check_excluded(q, &q->linears->items[i], stated);
        if (stated)
            tsr_modelopt_check_layer(q, &q->linears->items[i], value);
    }
}
