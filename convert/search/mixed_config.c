/* Writes the configuration of a checkpoint with several schemes. */
#include "convert/search/mixed_config.h"

#include "convert/configs/ct_config.h"
#include "convert/configs/fp8_config.h"
#include "formats/json/json_write.h"
#include "formats/names/model.h"
#include "formats/weights/weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Returns the configuration of a scheme without small groups. */
static tsr_ct_config config_of(const tsr_scheme_row *row)
{
    tsr_ct_config config = {.format = row->dialects[TSR_DIALECT_COMPRESSED_TENSORS].name, .bits = 8};
    if (row->form == TSR_FORM_PACKED) {
        config.type = "int";
        config.bits = row->ints.bits;
        config.group = row->ints.group;
        config.asymmetric = row->ints.asymmetric;
        return config;
    }
    config.type = "float";
    config.inputs = TSR_CT_INPUTS_TOKEN;
    if (row->form == TSR_FORM_BLOCKS)
        config.block = (tsr_block){row->fp8.block_rows, row->fp8.block_cols};
    return config;
}

static const char *format_of(tsr_scheme scheme)
{
    return tsr_scheme_row_of(scheme)->dialects[TSR_DIALECT_COMPRESSED_TENSORS].name;
}

static void write_group(tsr_text *t, tsr_scheme scheme, bool static_inputs, const char *const *targets, size_t n)
{
    const tsr_scheme_row *const row = tsr_scheme_row_of(scheme);
    if (tsr_scheme_is_of_mx_plan(scheme)) {
        const tsr_mx_config config = tsr_mx_describe(scheme, TSR_DIALECT_COMPRESSED_TENSORS, static_inputs).config;
        tsr_mx_config_write_group(t, &config, targets, n);
    } else {
        const tsr_ct_config config = config_of(row);
        tsr_ct_config_write_group(t, &config, targets, n);
    }
}

/* ---- targets ---- */

/* Appends text as a regular expression that matches only this text. */
static void quote(tsr_text *t, const char *text, size_t size)
{
    for (size_t i = 0; i < size; i++)
        tsr_text_printf(t, "%s%c", strchr(".^$*+?{}[]\\|()", text[i]) != NULL ? "\\" : "", text[i]);
}

/* Returns the module's name or, for an expert, a regular expression that matches the same module of all experts of its
 * layer. */
static const char *target_of(tsr_plan *plan, const tsr_tensor *tensor)
{
    const size_t size = tsr_module_length(tensor->name);
    size_t digits;
    const size_t number = tsr_experts_length(tensor->name, &digits), rest = number + digits;
    if (digits == 0 || rest >= size)
        return tsr_arena_dup(&plan->arena, tensor->name, size);
    tsr_text t = {0};
    tsr_text_append(&t, "re:", 3);
    quote(&t, tensor->name, number);
    tsr_text_append(&t, "\\d+", 3);
    quote(&t, tensor->name + rest, size - rest);
    tsr_text_append(&t, "$", 1);
    const char *const target = t.failed ? NULL : tsr_arena_dup(&plan->arena, t.data, t.size);
    tsr_text_free(&t);
    return target;
}

/* Lists the tensors of a scheme, sorted by name. */
static size_t find_tensors(const tsr_plan *plan, const uint8_t *schemes, tsr_scheme scheme, const tsr_tensor **tensors)
{
    const tsr_tensors *const all = &plan->sources[0]->tensors;
    size_t n = 0;
    for (size_t i = 0; i < all->count; i++) {
        if (schemes[i] == scheme)
            tensors[n++] = &all->items[i];
    }
    tsr_sort_by_name(tensors, n);
    return n;
}

/* Appends the names of the fused layers that n sorted tensors form, because SGLang's classes look them up. Returns
 * false when memory is exhausted. */
static bool find_joined(tsr_plan *plan, const tsr_tensor *const *tensors, size_t n, const char **names, size_t *found)
{
    char name[TSR_MODULE_NAME];
    for (size_t i = 0; i < n; i++) {
        if (tsr_joined_module(tensors, n, i, name) &&
            (names[(*found)++] = tsr_arena_dup(&plan->arena, name, strlen(name))) == NULL)
            return false;
    }
    return true;
}

/* Lists the targets of a scheme, sorted, without duplicates, including the names of fused layers. `tensors` and
 * `targets` have room for all. Returns false when memory is exhausted. */
static bool find_targets(tsr_plan *plan, const uint8_t *schemes, tsr_scheme scheme, const tsr_tensor **tensors,
                         const char **targets, size_t *n)
{
    const size_t mine = find_tensors(plan, schemes, scheme, tensors);
    size_t found = 0;
    for (size_t i = 0; i < mine; i++) {
        if ((targets[found++] = target_of(plan, tensors[i])) == NULL)
            return false;
    }
    if (!find_joined(plan, tensors, mine, targets, &found))
        return false;
    if (found > 0)
        qsort(targets, found, sizeof *targets, tsr_by_text);
    *n = 0;
    for (size_t i = 0; i < found; i++) {
        if (*n == 0 || strcmp(targets[i], targets[*n - 1]) != 0)
            targets[(*n)++] = targets[i];
    }
    return true;
}

/* ---- the object ---- */

static bool write_groups(tsr_text *t, tsr_plan *plan, const uint8_t *schemes, bool static_inputs,
                         const tsr_tensor **tensors, const char **targets)
{
    unsigned number = 0;
    tsr_json_member_object(t, "config_groups", false);
    for (size_t k = 1; tsr_scheme_mixed(k) != TSR_SCHEMES; k++) {
        const tsr_scheme scheme = tsr_scheme_mixed(k);
        char name[32];
        size_t n;
        if (!find_targets(plan, schemes, scheme, tensors, targets, &n))
            return false;
        if (n == 0)
            continue;
        snprintf(name, sizeof name, "group_%u", number++);
        tsr_json_key(t, name);
        write_group(t, scheme, static_inputs, targets, n);
    }
    tsr_json_end_object(t);
    return true;
}

/* Returns the common format of all groups, or the word for mixed formats. */
static const char *format_of_all(const uint8_t *schemes, size_t n)
{
    const char *format = NULL;
    for (size_t i = 0; i < n; i++) {
        if (schemes[i] == TSR_SCHEME_KEEP)
            continue;
        const char *const own = format_of((tsr_scheme)schemes[i]);
        if (format != NULL && strcmp(format, own) != 0)
            return "mixed-precision";
        format = own;
    }
    return format;
}

/* Selects the tensors that stay unquantized. */
typedef struct deciding {
    const tsr_checkpoint *c;
    const uint8_t *schemes;
    const tsr_decision *decisions;
} deciding;

static const tsr_tensor *kept(const void *context, size_t i)
{
    const deciding *const d = context;
    const bool stays = d->schemes[i] == TSR_SCHEME_KEEP && d->decisions[i].treatment != TSR_KEEP_EMBEDDING;
    return stays ? &d->c->tensors.items[i] : NULL;
}

static bool write_config(tsr_text *t, tsr_plan *plan, const uint8_t *schemes, const tsr_decision *decisions,
                         bool static_inputs, const char **targets, const tsr_tensor **tensors)
{
    const tsr_tensors *const all = &plan->sources[0]->tensors;
    const deciding d = {plan->sources[0], schemes, decisions};
    tsr_json_begin_object(t, false);
    tsr_ct_config_head(t, format_of_all(schemes, all->count));
    if (!write_groups(t, plan, schemes, static_inputs, tensors, targets))
        return false;
    tsr_json_key(t, "ignore");
    tsr_ct_ignore(t, tensors, tsr_list_unquantized(kept, &d, all->count, tensors));
    tsr_ct_config_tail(t);
    tsr_json_end_object(t);
    return true;
}

/* ---- ModelOpt ---- */

/* Lists the modules of each scheme in one array, group after group, each followed by its fused names. `tensors` has
 * room for all, `modules` for twice as many, of which *used are taken. Returns false when memory is exhausted. */
static bool find_modules(tsr_plan *plan, const uint8_t *schemes, const tsr_tensor **tensors, const char **modules,
                         size_t *used, tsr_modelopt_group *groups, size_t *n)
{
    size_t at = 0;
    *n = 0;
    for (size_t k = 1; tsr_scheme_mixed(k) != TSR_SCHEMES; k++) {
        const tsr_scheme scheme = tsr_scheme_mixed(k);
        const size_t mine = find_tensors(plan, schemes, scheme, tensors), first = at;
        if (mine == 0)
            continue;
        for (size_t i = 0; i < mine; i++) {
            const char *const name = tensors[i]->name;
            if ((modules[at++] = tsr_arena_dup(&plan->arena, name, tsr_module_length(name))) == NULL)
                return false;
        }
        qsort(modules + first, mine, sizeof *modules, tsr_by_text);
        if (!find_joined(plan, tensors, mine, modules, &at))
            return false;
        groups[(*n)++] = (tsr_modelopt_group){.config = tsr_mx_describe(scheme, TSR_DIALECT_MODELOPT, true).config,
                                              .modules = modules + first,
                                              .joined = modules + first + mine,
                                              .n = mine,
                                              .n_joined = at - first - mine};
    }
    *used = at;
    return true;
}

/* Lists "model.layers.3.mlp.experts" for each layer whose routed experts stay unquantized. Otherwise vLLM applies the
 * scheme of a shared expert to them. Returns false when memory is exhausted. */
static bool find_plain_experts(tsr_plan *plan, const uint8_t *schemes, const tsr_tensor **tensors, const char **names,
                               size_t *n)
{
    const size_t kept = find_tensors(plan, schemes, TSR_SCHEME_KEEP, tensors);
    *n = 0;
    for (size_t i = 0; i < kept; i++) {
        size_t digits;
        const char *const name = tensors[i]->name;
        const size_t size = tsr_experts_length(name, &digits);
        if (size == 0 || (*n > 0 && strlen(names[*n - 1]) == size - 1 && memcmp(names[*n - 1], name, size - 1) == 0))
            continue;
        if ((names[(*n)++] = tsr_arena_dup(&plan->arena, name, size - 1)) == NULL)
            return false;
    }
    return true;
}

static bool has_quantized_head(const tsr_checkpoint *c, const uint8_t *schemes)
{
    for (size_t i = 0; i < c->tensors.count; i++) {
        if (schemes[i] != TSR_SCHEME_KEEP && tsr_part_of(c->tensors.items[i].name) == TSR_PART_HEAD)
            return true;
    }
    return false;
}

static tsr_status plan_mixed_precision(tsr_plan *plan, const uint8_t *schemes, const tsr_tensor **tensors,
                                       const char **modules, tsr_err *err)
{
    tsr_modelopt_group groups[TSR_SCHEMES];
    tsr_text value = {0}, file = {0};
    tsr_modelopt_mix scheme = {.groups = groups};
    size_t used = 0;
    if (!find_modules(plan, schemes, tensors, modules, &used, groups, &scheme.n) ||
        !find_plain_experts(plan, schemes, tensors, modules + used, &scheme.n_plain))
        return tsr_out_of_memory(err, "while planning");
    scheme.plain = modules + used;
    if (!has_quantized_head(plan->sources[0], schemes))
        modules[used + scheme.n_plain++] = "lm_head"; /* the same rule as for a single scheme (mx_plan.c) */
    tsr_mx_config_write_mixed_file(&file, &scheme);
    TSR_TRY(tsr_plan_take_text(plan, "", TSR_HF_QUANT_CONFIG_NAME, &file, tsr_text_status(&file, err), err));
    tsr_mx_config_write_mixed(&value, &scheme);
    return tsr_plan_take_quantization(plan, &value, err);
}

static tsr_status plan_mixed_groups(tsr_plan *plan, const uint8_t *schemes, const tsr_decision *decisions,
                                    bool static_inputs, const tsr_tensor **tensors, const char **targets, tsr_err *err)
{
    tsr_text value = {0};
    const tsr_status status = write_config(&value, plan, schemes, decisions, static_inputs, targets, tensors)
                                  ? tsr_plan_take_quantization(plan, &value, err)
                                  : tsr_out_of_memory(err, "while planning");
    tsr_text_free(&value);
    return status;
}

tsr_status tsr_plan_mixed_config(tsr_plan *plan, const uint8_t *schemes, const tsr_decision *decisions,
                                 tsr_dialect dialect, bool static_inputs, tsr_err *err)
{
    const tsr_checkpoint *const c = plan->sources[0];
    if (c->config == NULL)
        return TSR_OK;
    const char **const names = calloc(2 * c->tensors.count + 2, sizeof *names);
    const tsr_tensor **const tensors = calloc(c->tensors.count + 1, sizeof *tensors);
    tsr_status status;
    if (names == NULL || tensors == NULL)
        status = tsr_out_of_memory(err, "while planning");
    else if (dialect == TSR_DIALECT_MODELOPT)
        status = plan_mixed_precision(plan, schemes, tensors, names, err);
    else
        status = plan_mixed_groups(plan, schemes, decisions, static_inputs, tensors, names, err);
    free(tensors);
    free(names);
    return status;
}
