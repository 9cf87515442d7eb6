/* Writes the quantization_config of block FP8 in both dialects. */
#include "convert/configs/fp8_config.h"

#include "convert/configs/ct_config.h"
#include "formats/checkpoint/config.h"
#include "formats/json/json.h"
#include "formats/json/json_edit.h"
#include "formats/json/json_write.h"
#include "formats/names/heads.h"
#include "formats/names/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct description {
    const tsr_fp8_block *block;
    const tsr_tensor **unquantized;
    size_t n_unquantized;
} description;

static void deepseek_config(tsr_text *t, const description *c)
{
    tsr_json_begin_object(t, false);
    tsr_json_member_string(t, "quant_method", "fp8");
    tsr_json_member_string(t, "fmt", "e4m3");
    tsr_json_member_string(t, "activation_scheme", "dynamic");
    tsr_json_member_u64s(t, "weight_block_size", (const uint64_t[]){c->block->block_rows, c->block->block_cols}, 2);
    if (c->block->scale_fmt == TSR_SCALE_UE8M0)
        tsr_json_member_string(t, "scale_fmt", "ue8m0");
    tsr_json_key(t, "modules_to_not_convert");
    tsr_json_modules(t, c->unquantized, c->n_unquantized);
    tsr_json_end_object(t);
}

/* Writes w4afp8 of SGLang, which reads the method alone (W4AFp8Config.from_config); the rest describes the files. */
static void sglang_config(tsr_text *t, const description *c)
{
    tsr_json_begin_object(t, false);
    tsr_json_member_string(t, "quant_method", "w4afp8");
    tsr_json_member_string(t, "linear_activation_scheme", "dynamic");
    tsr_json_member_string(t, "moe_activation_scheme", "static");
    tsr_json_member_u64s(t, "weight_block_size", (const uint64_t[]){c->block->block_rows, c->block->block_cols}, 2);
    tsr_json_member_u64(t, "group_size", 128);
    tsr_json_key(t, "modules_to_not_convert");
    tsr_json_modules(t, c->unquantized, c->n_unquantized);
    tsr_json_end_object(t);
}

static void compressed_tensors_config(tsr_text *t, const description *c)
{
    const tsr_ct_config config = {.format = "float-quantized",
                                  .type = "float",
                                  .bits = 8,
                                  .block = {c->block->block_rows, c->block->block_cols},
                                  .inputs = TSR_CT_INPUTS_TOKEN};
    tsr_ct_config_write(t, &config, c->unquantized, c->n_unquantized);
}

/* Replaces the text of the value at `path`, "KEY" or "OUTER.KEY", or removes it (value NULL). */
static tsr_status edit_object(tsr_text *out, tsr_json_text config, const char *path, const char *value, tsr_err *err)
{
    const char *const dot = strchr(path, '.');
    tsr_json_text object = config;
    if (dot != NULL) {
        char outer[64];
        snprintf(outer, sizeof outer, "%.*s", (int)(dot - path), path);
        if (!tsr_json_find(config.data, config.size, outer, &object))
            return tsr_fail(err, TSR_E_FORMAT, TSR_CONFIG_NAME ": no '%s'", outer);
    }
    const char *const key = dot == NULL ? path : dot + 1;
    const char *const end = object.data + object.size;
    tsr_text_append(out, config.data, (size_t)(object.data - config.data));
    TSR_TRY(value == NULL ? tsr_json_edit_remove(out, object.data, object.size, key, err)
                          : tsr_json_edit_set(out, object.data, object.size, key, value, err));
    tsr_text_append(out, end, (size_t)(config.data + config.size - end));
    return tsr_text_status(out, err);
}

/* Replaces or removes the values at all of these paths, one after the other. */
static tsr_status edit_all(tsr_text *out, const tsr_checkpoint *c, const char *const *paths, size_t n,
                           const char *value, tsr_err *err)
{
    tsr_text before = {0}, after = {0};
    tsr_json_text config = {.data = c->config, .size = c->config_size};
    tsr_status status = TSR_OK;
    for (size_t i = 0; i < n && status == TSR_OK; i++) {
        status = edit_object(&after, config, paths[i], value, err);
        tsr_text_free(&before);
        before = after;
        after = (tsr_text){0};
        config = (tsr_json_text){.data = before.data, .size = before.size};
    }
    if (status == TSR_OK) {
        tsr_text_append(out, config.data, config.size);
        status = tsr_text_status(out, err);
    }
    tsr_text_free(&before);
    tsr_text_free(&after);
    return status;
}

/* Sets it where config.json already has a quantization, else at the top level. */
tsr_status tsr_quantization_set(tsr_text *out, const tsr_checkpoint *checkpoint, const char *value, tsr_err *err)
{
    const char *paths[TSR_QUANTIZATION_PATHS] = {"quantization_config"};
    const size_t found = tsr_quantization_paths(checkpoint, paths);
    return edit_all(out, checkpoint, paths, found == 0 ? 1 : found, value, err);
}

/* Appends `list` (a JSON array or empty text) with the modules of the tensors added at its end. */
static void extend_list(tsr_text *out, tsr_json_text list, const tsr_tensor **tensors, size_t n)
{
    /* the closing bracket and the white space before it are excluded */
    size_t end = list.size == 0 ? 0 : list.size - 1;
    while (end > 0 && strchr(" \t\r\n", list.data[end - 1]) != NULL)
        end--;
    const bool empty = end <= 1;
    tsr_text_append(out, empty ? "[" : list.data, empty ? 1 : end);
    for (size_t i = 0; i < n; i++) {
        tsr_text_printf(out, "%s", empty && i == 0 ? "" : ", ");
        tsr_json_quoted_part(out, tensors[i]->name, tsr_module_length(tensors[i]->name));
    }
    tsr_text_append(out, "]", 1);
}

tsr_status tsr_quantization_keep(tsr_text *out, const tsr_checkpoint *checkpoint, const tsr_tensor **tensors, size_t n,
                                 tsr_err *err)
{
    static const char *const kLists[] = {"modules_to_not_convert", "ignored_layers", "ignore"};
    const char *const path = tsr_quantization_path(checkpoint);
    tsr_json_text quantization, list = {0};
    size_t k = 0;
    if (path == NULL || !tsr_config_find(checkpoint, path, &quantization))
        return tsr_fail(err, TSR_E_FORMAT, "%s/" TSR_CONFIG_NAME ": no quantization_config", checkpoint->path);
    while (k < 3 && (!tsr_config_find_in(checkpoint, quantization, kLists[k], &list) || list.data[0] != '['))
        k++;
    if (k == 3)
        list = (tsr_json_text){0};
    tsr_text extended = {0}, value = {0};
    extend_list(&extended, list, tensors, n);
    tsr_status status = tsr_text_status(&extended, err);
    if (status == TSR_OK)
        status = tsr_json_edit_set(&value, quantization.data, quantization.size, kLists[k % 3], extended.data, err);
    if (status == TSR_OK) { /* spliced in without reformatting, because its lines are already indented */
        const char *const end = quantization.data + quantization.size;
        tsr_text_append(out, checkpoint->config, (size_t)(quantization.data - checkpoint->config));
        tsr_text_append(out, value.data, value.size);
        tsr_text_append(out, end, (size_t)(checkpoint->config + checkpoint->config_size - end));
        status = tsr_text_status(out, err);
    }
    tsr_text_free(&extended);
    tsr_text_free(&value);
    return status;
}

size_t tsr_list_unquantized(tsr_kept_fn *kept, const void *context, size_t n, const tsr_tensor **list)
{
    size_t found = 0;
    for (size_t i = 0; i < n; i++) {
        const tsr_tensor *const t = kept(context, i);
        if (t != NULL && t->rank >= 2 && tsr_dtype_is_weight_float((tsr_dtype)t->dtype))
            list[found++] = t;
    }
    return found;
}

static bool has_module(const tsr_tensor *const *list, size_t n, const char *name, size_t length)
{
    for (size_t i = 0; i < n; i++) {
        if (tsr_module_length(list[i]->name) == length && strncmp(list[i]->name, name, length) == 0)
            return true;
    }
    return false;
}

size_t tsr_list_head(const tsr_checkpoint *c, const tsr_tensor **list, size_t n)
{
    const tsr_tensor *const head = tsr_head_of(c);
    for (size_t i = 0; i < c->tensors.count; i++) {
        const char *const name = c->tensors.items[i].name;
        if (c->tensors.items[i].rank >= 2 && tsr_part_of(name) == TSR_PART_HEAD &&
            !has_module(list, n, name, tsr_module_length(name)))
            return n;
    }
    if (!has_module(list, n, head->name, tsr_module_length(head->name)))
        list[n++] = head;
    return n;
}

tsr_status tsr_plan_take_quantization(tsr_plan *plan, tsr_text *value, tsr_err *err)
{
    tsr_text config = {0};
    tsr_status status = tsr_text_status(value, err);
    if (status == TSR_OK)
        status = tsr_quantization_set(&config, plan->sources[0], value->data, err);
    tsr_text_free(value);
    return tsr_plan_take_text(plan, "", TSR_CONFIG_NAME, &config, status, err);
}

tsr_status tsr_plan_fp8_config(tsr_plan *plan, const tsr_fp8_block *block, tsr_dialect dialect, tsr_kept_fn *kept,
                               const void *context, size_t n, tsr_err *err)
{
    if (plan->sources[0]->config == NULL)
        return TSR_OK;
    description d = {.block = block, .unquantized = calloc(n + 1, sizeof *d.unquantized)};
    if (d.unquantized == NULL)
        return tsr_out_of_memory(err, "while planning");
    d.n_unquantized = tsr_list_unquantized(kept, context, n, d.unquantized);
    d.n_unquantized = tsr_list_head(plan->sources[0], d.unquantized, d.n_unquantized);
    tsr_text value = {0};
    (dialect == TSR_DIALECT_COMPRESSED_TENSORS ? compressed_tensors_config
     : dialect == TSR_DIALECT_SGLANG           ? sglang_config
                                               : deepseek_config)(&value, &d);
    const tsr_status status = tsr_plan_take_quantization(plan, &value, err);
    free(d.unquantized);
    return status;
}

const char *const tsr_quantization_files[] = {TSR_AZP_NAME,           TSR_HF_QUANT_CONFIG_NAME,
                                              "quantize_config.json", "quantization_config.json",
                                              "quant_config.json",    NULL};

tsr_status tsr_fp8_config_remove(tsr_text *out, const tsr_checkpoint *checkpoint, tsr_err *err)
{
    static const char *const kExperts[] = {"expert_dtype", "text_config.expert_dtype"};
    enum { EXPERTS = sizeof kExperts / sizeof *kExperts };
    const char *paths[TSR_QUANTIZATION_PATHS + EXPERTS];
    size_t n = tsr_quantization_paths(checkpoint, paths);
    tsr_json_text value;
    for (size_t i = 0; i < EXPERTS; i++) {
        if (tsr_config_find(checkpoint, kExperts[i], &value))
            paths[n++] = kExperts[i];
    }
    return edit_all(out, checkpoint, paths, n, NULL, err);
}
