/* Which group of compressed-tensors' configuration a loader uses for a layer if targets of several groups match: the
 * first in its own order. (vLLM's and SGLang's find_matched_target, which try names before classes; TensorRT-LLM's
 * quant_config_utils.py, which sorts.) */
#include "formats/loaders/load_query.h"

#include <string.h>

enum { NO_GROUP = TSR_LOAD_GROUPS };

static bool is_expression(const char *target)
{
    return strncmp(target, "re:", 3) == 0;
}

static bool is_class(const char *target)
{
    return !is_expression(target) && strchr(target, '.') == NULL;
}

/* Compares targets in TensorRT-LLM's order: whole names before expressions, then by text. */
static bool stands_before(const char *a, const char *b)
{
    return is_expression(a) != is_expression(b) ? !is_expression(a) : strcmp(a, b) < 0;
}

static size_t first_that(const tsr_load_query *q, tsr_matching matching, const char *name, const char **target)
{
    char buffer[TSR_MODULE_NAME];
    for (size_t i = 0; i < q->n_targets; i++) {
        *target = tsr_ignore_list_find(&q->targets[i], matching, tsr_query_built(q, name, buffer));
        if (*target != NULL)
            return i;
    }
    return NO_GROUP;
}

static size_t first_of_vllm(const tsr_load_query *q, const tsr_linear *l, const char **target)
{
    const size_t group = first_that(q, TSR_MATCH_REGEX, l->module, target);
    return group != NO_GROUP ? group : first_that(q, TSR_MATCH_EXACT, "Linear", target);
}

/* Finds the group for SGLang: by the name of the fused layer, then by class; by the members only if the model's class
 * lists them. */
static size_t first_of_sglang(const tsr_load_query *q, const tsr_linear *l, const char **target)
{
    char name[TSR_MODULE_NAME];
    if (l->fused == NULL || l->part == TSR_PART_ROUTED_EXPERTS)
        return first_of_vllm(q, l, target);
    tsr_query_joined_name(l, name, sizeof name);
    size_t group = first_that(q, TSR_MATCH_REGEX, name, target);
    if (group == NO_GROUP)
        group = first_that(q, TSR_MATCH_EXACT, "Linear", target);
    if (group == NO_GROUP && tsr_query_sglang_maps(q, l))
        group = first_that(q, TSR_MATCH_REGEX, l->members[0]->module, target);
    return group;
}

/* Finds the group for TensorRT-LLM: the first target by text may be in any group, so all targets are tested. */
static size_t first_of_trtllm(const tsr_load_query *q, const tsr_linear *l, const char **target)
{
    size_t group = NO_GROUP;
    *target = NULL;
    for (size_t i = 0; i < q->n_targets; i++) {
        for (size_t k = 0; k < q->targets[i].count; k++) {
            const tsr_ignore_list one = {
                .entries = &q->targets[i].entries[k], .count = 1, .patterns = &q->targets[i].patterns[k]};
            const char *const entry = tsr_ignore_list_find(&one, TSR_MATCH_REGEX, l->module);
            if (entry == NULL || (*target != NULL && !stands_before(entry, *target)))
                continue;
            *target = entry;
            group = i;
        }
    }
    return group;
}

/* Returns true if a group's statement about weights matches the stored ones: bits, and columns per scale. */
static bool fits_group(tsr_json_text group, const tsr_linear *l)
{
    uint64_t bits = 8, columns = 0;
    (void)tsr_json_find_u64(group.data, group.size, "weights.num_bits", &bits);
    if (!tsr_json_find_u64(group.data, group.size, "weights.group_size", &columns))
        columns = 0;
    const uint64_t stored = l->block.rows == 1 ? l->block.cols : 0;
    return bits == l->weight->bits && columns == stored;
}

/* Returns true if inputs have a static scale: `dynamic` is false, its default, or "local", as for NVFP4. */
static bool has_static_inputs(tsr_json_text group)
{
    tsr_json_text inputs;
    return tsr_json_get(group, "input_activations", &inputs) && inputs.data[0] == '{' &&
           !tsr_json_says(group, "input_activations.dynamic", "true");
}

static void check_group(const tsr_load_query *q, const tsr_linear *l)
{
    const char *target;
    const size_t group = q->loader == TSR_LOADER_VLLM     ? first_of_vllm(q, l, &target)
                         : q->loader == TSR_LOADER_SGLANG ? first_of_sglang(q, l, &target)
                                                          : first_of_trtllm(q, l, &target);
    if (group != NO_GROUP && has_static_inputs(q->groups[group]))
        tsr_query_need_input_scale(q, l);
    if (q->n_targets < 2 && q->loader != TSR_LOADER_SGLANG)
        return; /* a single group has no order */
    if (group == NO_GROUP && q->loader == TSR_LOADER_SGLANG && l->fused != NULL)
        tsr_query_note(q, true, l->tensor->name, "targets",
                       "add the fused layer's own name to the targets, as tessera quantize does",
                       "no target matches %s, the name under which the loader's class of '%.40s' looks for it",
                       l->fused->name, q->family);
    if (group != NO_GROUP && !fits_group(q->groups[group], l))
        tsr_query_note(
            q, true, l->tensor->name, "targets", "write targets of which exactly one matches each module",
            "it is %s, but the first target that matches it in this loader's order, '%.200s', belongs to a group of "
            "config_groups that says otherwise",
            l->weight->kind->title, target);
}

/* Reports class names as targets: with several groups, TensorRT-LLM does not support them. */
static void check_classes(const tsr_load_query *q)
{
    for (size_t i = 0; i < q->n_targets; i++) {
        for (size_t k = 0; k < q->targets[i].count; k++) {
            if (is_class(q->targets[i].entries[k]))
                tsr_query_note(q, true, NULL, "targets",
                               "write expressions that match modules, such as "
                               "\"re:.*mlp.*\"",
                               "'%.200s' is a target of one of %zu groups: with several groups this loader needs "
                               "names of modules, not of classes",
                               q->targets[i].entries[k], q->n_targets);
        }
    }
}

/* Reports classes of SGLang that look up names which the file does not have: the prefixes of hy_v3.py and hunyuan.py
 * begin with a dot, afmoe.py joins gate and up of single experts, and the experts of Nemotron-H and Granite have no
 * gate_proj, which it looks up. */
static void check_other_names(const tsr_load_query *q)
{
    bool by_name = false;
    for (size_t i = 0; i < q->n_targets; i++)
        by_name = by_name || tsr_ignore_list_find(&q->targets[i], TSR_MATCH_EXACT, "Linear") == NULL;
    if (by_name && q->loader == TSR_LOADER_SGLANG &&
        tsr_query_family(q, " afmoe granitemoe hunyuan_v1_moe hy_v3 nemotron_h "))
        tsr_query_note(q, true, NULL, "targets",
                       "set a group's targets to [\"Linear\"], with one scheme for all layers, or use another loader",
                       "config_groups names modules, and the class of '%.40s' looks up other names than those of the "
                       "file",
                       q->family);
}

void tsr_rule_targets(const tsr_load_query *q)
{
    bool inputs = false;
    for (size_t i = 0; i < q->n_targets; i++)
        inputs = inputs || has_static_inputs(q->groups[i]);
    if (!tsr_query_compressed_tensors(q) || (q->n_targets < 2 && q->loader != TSR_LOADER_SGLANG && !inputs))
        return;
    check_other_names(q);
    if (q->loader == TSR_LOADER_TRTLLM && q->n_targets > 1)
        check_classes(q);
    for (size_t i = 0; i < q->linears->count; i++) {
        const tsr_linear *const l = &q->linears->items[i];
        if (l->scale != NULL && tsr_query_reads(q, l))
            check_group(q, l);
    }
}
