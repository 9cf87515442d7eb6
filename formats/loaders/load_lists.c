/* Rules about the modules that the configuration declares as quantized, as each loader reads it. */
#include "formats/loaders/load_query.h"
#include "formats/names/heads.h"

#include "common/glob.h"
#include "common/text.h"

#include <stdio.h>
#include <string.h>

/* ---- names that a loader looks up in the list ---- */

/* Writes the name under which vLLM and SGLang look up routed experts, which they run as one layer: "....mlp.experts";
 * for compressed-tensors (`first`), the first expert's module with the leaf of `l`. Returns false if `l` is not a
 * routed expert. */
static bool expert_name(const tsr_linear *l, bool first, char name[TSR_MODULE_NAME])
{
    const int stem = (int)tsr_query_experts_length(l) - 1;
    if (stem < 0)
        return false;
    if (first && l->matrices == 1)
        snprintf(name, TSR_MODULE_NAME, "%.*s.0.%s", stem, l->module, l->leaf);
    else
        snprintf(name, TSR_MODULE_NAME, "%.*s", stem, l->module);
    return true;
}

void tsr_query_joined_name(const tsr_linear *l, char *name, size_t size)
{
    snprintf(name, size, "%.*s%s", (int)(l->leaf - l->module), l->module, l->fused->name);
}

/* Returns true for classes with packed_modules_mapping; DeepSeek's has it only for q_a and kv_a. */
bool tsr_query_sglang_maps(const tsr_load_query *q, const tsr_linear *l)
{
    return strcmp(l->fused->name, "fused_qkv_a_proj") == 0 ||
           tsr_query_family(q, " qwen3_moe qwen3_next qwen3_5 qwen3_5_text qwen3_5_moe qwen3_5_moe_text minimax_m2 "
                               "minimax_m3 minimax_m3_text gemma gemma2 gemma3 gemma3_text llama4 llama4_text ernie4_5 "
                               "exaone4 ");
}

/* Writes the name under which SGLang looks up an expert of compressed-tensors, whatever the file calls its leaf: w1, w3
 * and w2 as gate_proj, up_proj and down_proj. Returns false for other modules. (compressed_tensors.py,
 * get_moe_scheme) */
static bool expert_of_sglang(const tsr_load_query *q, const char *name, char buffer[TSR_MODULE_NAME])
{
    static const char *const kLeaves[] = {"gate_proj", "down_proj", "up_proj"};
    const char *const leaf = strrchr(name, '.');
    if (!tsr_query_compressed_tensors(q) || tsr_query_deepseek_v4(q) || strstr(name, ".experts.") == NULL ||
        leaf[1] != 'w' || leaf[2] < '1' || leaf[2] > '3' || leaf[3] != '\0')
        return false;
    snprintf(buffer, TSR_MODULE_NAME, "%.*s%s", (int)(leaf + 1 - name), name, kLeaves[leaf[2] - '1']);
    return true;
}

/* Writes the name under which vLLM's class looks up routed experts, if it differs from that in the file: minimax_m2.py
 * calls block_sparse_moe "mlp"; nemotron_h.py renames "backbone", but not within the expressions of compressed-tensors,
 * which experts need. */
static bool expert_of_vllm(const tsr_load_query *q, const char *name, char buffer[TSR_MODULE_NAME])
{
    static const struct {
        const char *family, *stored, *built;
        bool expressions; /* only names in expressions differ */
    } kNames[] = {{" minimax_m2 ", ".block_sparse_moe.", ".mlp.", false},
                  {" nemotron_h ", "backbone.", "model.", true}};
    for (size_t i = 0; i < sizeof kNames / sizeof *kNames && strstr(name, ".experts") != NULL; i++) {
        const char *const at = strstr(name, kNames[i].stored);
        if (at == NULL || !tsr_query_family(q, kNames[i].family) ||
            (kNames[i].expressions && !tsr_query_compressed_tensors(q)))
            continue;
        snprintf(buffer, TSR_MODULE_NAME, "%.*s%s%s", (int)(at - name), name, kNames[i].built,
                 at + strlen(kNames[i].stored));
        return true;
    }
    return false;
}

/* Returns the name that the class uses. SGLang's models/mixtral.py begins its layers' names with "layers" while all
 * others begin with "model.layers". (For ModelOpt's dialect mixtral_quant.py is used.) */
const char *tsr_query_built(const tsr_load_query *q, const char *name, char buffer[TSR_MODULE_NAME])
{
    if (q->loader == TSR_LOADER_VLLM)
        return expert_of_vllm(q, name, buffer) ? buffer : name;
    if (q->loader != TSR_LOADER_SGLANG)
        return name;
    const char *const built = expert_of_sglang(q, name, buffer) ? buffer : name;
    const bool bare = tsr_query_compressed_tensors(q) && tsr_query_family(q, " mixtral ");
    return bare && strncmp(built, "model.", 6) == 0 ? built + 6 : built;
}

static const char *find(const tsr_load_query *q, tsr_matching matching, const char *name)
{
    char buffer[TSR_MODULE_NAME];
    return tsr_ignore_list_find(q->ignored, matching, tsr_query_built(q, name, buffer));
}

static const char *first_of(const char *a, const char *b)
{
    return a != NULL ? a : b;
}

/* Finds the entry for vLLM: fp8.py and is_layer_skipped, compressed_tensors/utils.py. It looks up the name of a fused
 * layer first, then those of its members. Experts count as unquantized if an entry contains the name of their layer. */
static const char *find_vllm(const tsr_load_query *q, const tsr_linear *l)
{
    const bool ct = tsr_query_compressed_tensors(q);
    const tsr_matching matching = ct ? TSR_MATCH_REGEX : TSR_MATCH_EXACT;
    const char *entry = NULL;
    char name[TSR_MODULE_NAME];
    if (expert_name(l, ct, name))
        return find(q, ct ? matching : TSR_MATCH_WITHIN, name);
    if (l->fused != NULL) {
        tsr_query_joined_name(l, name, sizeof name);
        entry = find(q, matching, name);
    } else if (!ct && strstr(l->module, "experts") != NULL) {
        return find(q, TSR_MATCH_WITHIN, l->module);
    }
    return first_of(entry, find(q, matching, l->module));
}

/* Finds the entry for SGLang: fp8.py and is_layer_skipped in utils.py, compressed_tensors/utils.py. */
static const char *find_sglang(const tsr_load_query *q, const tsr_linear *l)
{
    const bool ct = tsr_query_compressed_tensors(q);
    const tsr_matching matching = ct ? TSR_MATCH_SUFFIX_REGEX : TSR_MATCH_PATH;
    char name[TSR_MODULE_NAME];
    if (expert_name(l, ct, name))
        return first_of(find(q, matching, name), ct ? NULL : find(q, TSR_MATCH_WITHIN, name));
    if (ct && l->fused != NULL) {
        tsr_query_joined_name(l, name, sizeof name);
        if (!tsr_query_sglang_maps(q, l))
            return find(q, matching, name);
        if (find(q, TSR_MATCH_EXACT, name) != NULL)
            return find(q, TSR_MATCH_EXACT, name);
    }
    if (!ct && l->fused == NULL && strstr(l->module, "experts") != NULL)
        return first_of(find(q, matching, l->module), find(q, TSR_MATCH_WITHIN, l->module));
    return find(q, matching, l->module);
}

/* Returns the entry of the ignore list that makes this loader treat the layer as unquantized, or NULL. */
static const char *find_entry(const tsr_load_query *q, const tsr_linear *l)
{
    if (q->loader == TSR_LOADER_VLLM)
        return find_vllm(q, l);
    if (q->loader == TSR_LOADER_SGLANG)
        return find_sglang(q, l);
    if (tsr_query_compressed_tensors(q))
        return find(q, TSR_MATCH_REGEX, l->module);
    return find(q, l->fused != NULL && q->who->fuses ? TSR_MATCH_EXACT : q->who->matching, l->module);
}

/* Returns true if a group of compressed-tensors' configuration covers the layer, by the class Linear or by name. */
static bool is_target(const tsr_load_query *q, const tsr_linear *l)
{
    char name[TSR_MODULE_NAME], buffer[TSR_MODULE_NAME];
    const char *const module = q->who->fuses && expert_name(l, true, name) ? name : l->module;
    if (!tsr_query_compressed_tensors(q) || q->n_targets == 0)
        return true;
    for (size_t i = 0; i < q->n_targets; i++) {
        if (tsr_ignore_list_find(&q->targets[i], TSR_MATCH_EXACT, "Linear") != NULL ||
            tsr_ignore_list_find(&q->targets[i], TSR_MATCH_REGEX, tsr_query_built(q, module, buffer)) != NULL)
            return true;
    }
    return false;
}

/* ---- the rules ---- */

/* Checks for a group named "Linear": SGLang takes the block size from it and stops without it. */
static void check_linear_group(const tsr_load_query *q)
{
    bool there = q->n_targets == 0;
    for (size_t i = 0; i < q->n_targets; i++)
        there = there || tsr_ignore_list_find(&q->targets[i], TSR_MATCH_EXACT, "Linear") != NULL;
    if (!there && q->loader == TSR_LOADER_SGLANG && q->block)
        tsr_query_note(q, true, NULL, "targets", "set a group's targets to [\"Linear\"]",
                       "no group's targets are \"Linear\", where the loader looks for the block size");
}

/* Returns another way to match entries by which the list would cover the layer, for the advice. */
static const char *other_way(const tsr_load_query *q, const tsr_linear *l)
{
    static const struct {
        tsr_matching matching;
        const char *how;
    } kWays[] = {{TSR_MATCH_PATH, "as a part of the name"},
                 {TSR_MATCH_REGEX, "as an expression"},
                 {TSR_MATCH_GLOB, "as a shell pattern"},
                 {TSR_MATCH_EXACT, "by the whole name"}};
    for (size_t i = 0; i < COUNT(kWays); i++) {
        if (tsr_ignore_list_find(q->ignored, kWays[i].matching, l->module) != NULL)
            return kWays[i].how;
    }
    return NULL;
}

/* Returns true if the loader's class builds the layer unquantized, whatever the list says: the weights of an indexer's
 * heads. (GLM-5 lists it by another name, DeepSeek-V3.2 has no list.) */
static bool is_built_plain(const tsr_load_query *q, const tsr_linear *l)
{
    return q->loader != TSR_LOADER_TRANSFORMERS && tsr_ends_with(l->module, ".indexer.weights_proj");
}

/* Reports a layer for which the list and the stored tensors disagree. */
static void check_listed(const tsr_load_query *q, const tsr_linear *l)
{
    const bool fused = l->fused != NULL && q->who->fuses, target = is_target(q, l);
    const char *const entry = find_entry(q, l);
    const char *const key = q->ignored->key == NULL ? "no list" : q->ignored->key;
    const char *const unsure = tsr_query_compressed_tensors(q) ? tsr_ignore_list_unsure(q->ignored, l->module) : NULL;
    if (unsure != NULL && entry == NULL) {
        tsr_query_note(q, true, l->module, "ignore list", "write the module's full name",
                       "\'%.200s\' in %s may or may not cover it: Tessera compares ASCII letters only", unsure, key);
        return;
    }
    if (tsr_linear_is_quantized(l) && entry != NULL)
        tsr_query_note(q, true, l->module, "ignore list", "remove the entry, or name modules in full",
                       "it is quantized, but because of '%s' in %s this loader reads it as plain", entry, key);
    if (tsr_linear_is_quantized(l) && entry == NULL && !target)
        tsr_query_note(q, true, l->module, "targets", "set a group's targets to [\"Linear\"]",
                       "it is quantized, but no group of config_groups matches it: the loader would read it as plain");
    const bool strict = q->loader == TSR_LOADER_SGLANG || (q->loader == TSR_LOADER_TRTLLM && q->n_targets > 1);
    if (!tsr_linear_is_quantized(l) && entry == NULL && !target && strict)
        tsr_query_note(q, true, l->module, "targets", "list it under ignore",
                       "it is %s, but neither ignore nor a group's targets match it, which this loader refuses",
                       tsr_dtype_name((tsr_dtype)l->tensor->dtype));
    if (tsr_linear_is_quantized(l) || entry != NULL || !target)
        return;
    const char *const how = other_way(q, l);
    if (how == NULL)
        tsr_query_note(q, true, l->module, "ignore list",
                       "list it under modules_to_not_convert (compressed-tensors: ignore)",
                       "it is %s, but config.json (%s) does not list it: the loader would read it as codes without a "
                       "scale",
                       tsr_dtype_name((tsr_dtype)l->tensor->dtype), key);
    else
        tsr_query_note(q, true, l->module, "ignore list", "name every module in full",
                       "it is %s, and %s matches it only %s, but this loader compares %s",
                       tsr_dtype_name((tsr_dtype)l->tensor->dtype), key, how,
                       fused ? "the members of a joined layer by their whole names" : "another way");
}

static void check_fused(const tsr_load_query *q, const tsr_linear *l)
{
    size_t quantized = 0;
    if (l->fused == NULL || l->members[0] != l || !q->who->fuses)
        return;
    for (size_t i = 0; i < l->n_members; i++)
        quantized += tsr_linear_is_quantized(l->members[i]);
    for (size_t i = 1; quantized == l->n_members && i < l->n_members; i++) {
        if (l->members[i]->weight->kind != l->weight->kind)
            tsr_query_note(q, true, l->members[i]->module, "fused group", "use one format for all members",
                           "it is %s and '%s' is %s, but the loader runs them as one layer, %s",
                           l->members[i]->weight->kind->title, l->module, l->weight->kind->title, l->fused->name);
    }
    if (quantized != 0 && quantized != l->n_members)
        tsr_query_note(q, true, l->module, "fused group", "quantize all members or none, as tessera quantize does",
                       "%zu of the %zu members of %s are quantized, but the loader runs them as one layer", quantized,
                       l->n_members, l->fused->name);
}

/* Returns true if compressed-tensors' list has the name of a fused layer whose members all exist. */
static bool is_joined(const tsr_load_query *q, const char *entry)
{
    char name[TSR_MODULE_NAME];
    for (size_t i = 0; tsr_query_compressed_tensors(q) && i < q->linears->count; i++) {
        const tsr_linear *const l = &q->linears->items[i];
        if (l->fused == NULL || l->members[0] != l || !tsr_ends_with(entry, l->fused->name))
            continue;
        tsr_query_joined_name(l, name, sizeof name);
        if (strcmp(name, entry) == 0)
            return true;
    }
    return false;
}

/* Copies the name of the output head's module in the class of this model to `name`. */
static const char *head_module(const tsr_load_query *q, char name[96])
{
    const char *const weight = tsr_head_of(q->s->checkpoint)->name;
    snprintf(name, 96, "%.*s", (int)tsr_module_length(weight), weight);
    return name;
}

/* Reports an entry that matches no tensor. Often it is the name of a fused layer, which exists only in the loader. */
static void check_entries(const tsr_load_query *q)
{
    const tsr_tensors *const all = &q->s->checkpoint->tensors;
    const char *first = NULL;
    char head[96];
    size_t n = 0;
    head_module(q, head);
    for (size_t i = 0; i < q->ignored->count; i++) {
        const char *const entry = q->ignored->entries[i];
        char name[1200];
        const bool fits = snprintf(name, sizeof name, "%s.weight", entry) < (int)sizeof name;
        bool found = strncmp(entry, "re:", 3) == 0 || strcmp(entry, "lm_head") == 0 || strcmp(entry, head) == 0 ||
                     (fits && tsr_weights_find(q->s->weights, q->s->checkpoint, name) != NULL);
        for (size_t k = 0; !found && k < all->count; k++)
            found = strstr(all->items[k].name, entry) != NULL || tsr_glob_match(entry, all->items[k].name);
        if (!found && !is_joined(q, entry) && n++ == 0)
            first = entry;
    }
    if (n > 0)
        tsr_query_note(q, false, NULL, "ignore list", "use the names of the tensors without .weight",
                       "'%s' in %s, and %zu other entries, match no module; loaders look up joined layers by their "
                       "members",
                       first, q->ignored->key, n - 1);
}

/* Checks the output head. For the target "Linear" of compressed-tensors, transformers gives every linear module codes
 * and scales, including the output head, and for FP8 if a list exists, even an empty one. With tied embeddings no
 * tensor fills these. (compressed_tensors.quantization.apply_quantization_config; quantizers/base.py) */
static void check_head(const tsr_load_query *q)
{
    char head[96];
    const bool compressed = tsr_query_compressed_tensors(q);
    bool target = compressed ? q->n_targets == 0 : q->ignored->key != NULL;
    for (size_t i = 0; i < q->n_targets; i++)
        target = target || tsr_ignore_list_find(&q->targets[i], TSR_MATCH_EXACT, "Linear") != NULL;
    if (target && !tsr_query_quantized_head(q) &&
        tsr_ignore_list_find(q->ignored, compressed ? TSR_MATCH_REGEX : q->who->matching, head_module(q, head)) == NULL)
        tsr_query_note(q, true, NULL, "ignore list", "list the output head there",
                       "config.json (%s) does not list '%s', which is not quantized: the loader creates codes and a "
                       "scale for it, which stay uninitialized",
                       q->ignored->key == NULL ? "no list" : q->ignored->key, head);
}

/* Reports a plain layer under quant_method w4afp8, for which SGLang reads no list and makes each linear layer FP8
 * (W4AFp8Config.from_config). It joins the indexer's wk with weights_proj in BF16, from FP8 as well. */
static void check_without_list(const tsr_load_query *q, const tsr_linear *l)
{
    if (q->loader == TSR_LOADER_SGLANG && tsr_query_method(q, "w4afp8") && !tsr_linear_is_quantized(l) &&
        !tsr_ends_with(l->module, ".indexer.wk"))
        tsr_query_note(
            q, true, l->module, "ignore list",
            "quantize it too, or use `tessera quantize --scheme fp8-block`, for which the loader reads a list",
            "it is %s, but under quant_method w4afp8 this loader reads no list of unquantized modules: it "
            "would read it as codes without a scale",
            tsr_dtype_name((tsr_dtype)l->tensor->dtype));
}

void tsr_rule_lists(const tsr_load_query *q)
{
    /* Other methods derive it from the tensors or have rules of their own (load_modelopt.c), as does DeepSeek-V4's
     * code. */
    const bool known = tsr_query_compressed_tensors(q) || (tsr_query_fp8(q) && !tsr_query_deepseek_v4(q)) ||
                       tsr_query_method(q, "mxfp8");
    const bool ask = known && q->who->lists && q->config.data != NULL && q->s->weights->n_scaled > 0;
    if (ask && q->ignored->odd != NULL)
        tsr_query_note(q, true, NULL, "ignore list", "write each module name as a string", "%s: %s", q->ignored->key,
                       q->ignored->odd);
    if (ask && q->ignored->unknown != NULL && tsr_query_compressed_tensors(q))
        tsr_query_note(q, true, NULL, "ignore list", "write the modules' full names, or a simpler expression",
                       "'%.200s' in %s: Tessera cannot tell what it matches: %s", q->ignored->unknown, q->ignored->key,
                       q->ignored->why);
    if (ask && tsr_query_compressed_tensors(q))
        check_linear_group(q);
    if (ask && q->loader == TSR_LOADER_TRANSFORMERS)
        check_head(q);
    if (ask)
        check_entries(q);
    for (size_t i = 0; i < q->linears->count; i++) {
        const tsr_linear *const l = &q->linears->items[i];
        if (!tsr_query_reads(q, l))
            continue;
        if (ask && !tsr_deepseek_v4_asks(q, l) && (tsr_linear_is_quantized(l) || !is_built_plain(q, l)))
            check_listed(q, l);
        check_without_list(q, l);
        check_fused(q, l);
    }
}
