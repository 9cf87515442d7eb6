/* Writes the quantization_config of compressed-tensors. Keys have the order of compressed-tensors' own writer. */
#include "convert/configs/ct_config.h"
#include "formats/json/json_write.h"
#include "formats/names/fused.h"
#include "formats/names/model.h"
#include "formats/weights/weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Release of compressed-tensors that the written configuration follows. */
#define VERSION "0.19.0"

static int by_name(const void *a, const void *b)
{
    return strcmp((*(const tsr_tensor *const *)a)->name, (*(const tsr_tensor *const *)b)->name);
}

void tsr_sort_by_name(const tsr_tensor **tensors, size_t n)
{
    if (n > 0)
        qsort(tensors, n, sizeof *tensors, by_name);
}

bool tsr_joined_module(const tsr_tensor *const *tensors, size_t n, size_t i, char name[TSR_MODULE_NAME])
{
    const char *const whole = tensors[i]->name;
    const int size = (int)tsr_module_length(whole);
    if (snprintf(name, TSR_MODULE_NAME - 64, "%.*s", size, whole) != size || size >= TSR_MODULE_NAME - 64)
        return false;
    char *const dot = strrchr(name, '.'), *const leaf = dot == NULL ? name : dot + 1;
    const size_t room = (size_t)(name + TSR_MODULE_NAME - leaf);
    const tsr_fused *const fused = tsr_fused_find(name);
    if (fused == NULL || strcmp(leaf, fused->members[0]) != 0 || tsr_part_of(whole) == TSR_PART_ROUTED_EXPERTS)
        return false;
    for (size_t k = 1; k < TSR_FUSED_MEMBERS && fused->members[k] != NULL; k++) {
        const tsr_tensor member = {.name = name}, *const key = &member;
        snprintf(leaf, room, "%s%s", fused->members[k], whole + size);
        if (bsearch(&key, tensors, n, sizeof *tensors, by_name) == NULL)
            return false;
    }
    snprintf(leaf, room, "%s", fused->name);
    return true;
}

/* Returns the length of "model.layers.3.mlp.experts" in the name of an expert or of a stack; 0: it is neither. */
static size_t experts_length(const char *name)
{
    const char *const at = strstr(name, ".experts.");
    return at == NULL ? 0 : (size_t)(at - name) + strlen(".experts");
}

/* `joined`: also the names of fused layers. `experts`: also the module of all experts of a layer. */
static void write_modules(tsr_text *out, const tsr_tensor **tensors, size_t n, bool joined, bool experts)
{
    char module[TSR_MODULE_NAME];
    tsr_sort_by_name(tensors, n);
    tsr_json_begin_array(out, false);
    for (size_t i = 0; i < n; i++) {
        const size_t length = experts ? experts_length(tensors[i]->name) : 0;
        if (length > 0 && (i == 0 || experts_length(tensors[i - 1]->name) != length ||
                           strncmp(tensors[i - 1]->name, tensors[i]->name, length) != 0))
            tsr_json_string_part(out, tensors[i]->name, length);
        tsr_json_string_part(out, tensors[i]->name, tsr_module_length(tensors[i]->name));
        if (joined && tsr_joined_module(tensors, n, i, module))
            tsr_json_string(out, module);
    }
    tsr_json_end_array(out);
}

void tsr_json_modules(tsr_text *out, const tsr_tensor **tensors, size_t n)
{
    write_modules(out, tensors, n, false, true);
}

void tsr_ct_ignore(tsr_text *out, const tsr_tensor **tensors, size_t n)
{
    write_modules(out, tensors, n, true, false);
}

/* Elements that share a scale: `strategy` and its size members, if it has any. */
typedef struct sharing {
    const char *strategy;
    uint64_t group;
    tsr_block block;
    bool ordered;
} sharing;

static void write_args(tsr_text *t, const char *type, uint32_t bits, bool symmetric, sharing s, bool dynamic)
{
    tsr_json_begin_object(t, false);
    tsr_json_member_u64(t, "num_bits", bits);
    tsr_json_member_string(t, "type", type);
    tsr_json_member_bool(t, "symmetric", symmetric);
    tsr_json_member_string(t, "strategy", s.strategy);
    if (s.group != 0) {
        tsr_json_member_u64(t, "group_size", s.group);
    }
    if (s.block.rows != 0) {
        tsr_json_member_u64s(t, "block_structure", (const uint64_t[]){s.block.rows, s.block.cols}, 2);
    }
    tsr_json_member_bool(t, "dynamic", dynamic);
    if (s.ordered)
        tsr_json_member_string(t, "actorder", "group");
    tsr_json_end_object(t);
}

static sharing of_weights(const tsr_ct_config *c)
{
    if (c->block.rows != 0)
        return (sharing){.strategy = "block", .block = c->block};
    if (c->whole)
        return (sharing){.strategy = "tensor"};
    return (sharing){.strategy = c->group == 0 ? "channel" : "group", .group = c->group, .ordered = c->ordered};
}

static sharing of_inputs(const tsr_ct_config *c)
{
    if (c->block.rows != 0)
        return (sharing){.strategy = "group", .group = c->block.cols};
    return (sharing){.strategy = c->inputs == TSR_CT_INPUTS_TOKEN ? "token" : "tensor"};
}

/* Only configurations of several groups have the key `format` in a group; older readers reject it elsewhere. */
static void write_group(tsr_text *t, const tsr_ct_config *c, const char *format, const char *const *targets, size_t n)
{
    tsr_json_begin_object(t, false);
    if (format != NULL)
        tsr_json_member_string(t, "format", format);
    tsr_json_member_strings(t, "targets", targets, n);
    tsr_json_key(t, "weights");
    write_args(t, c->type, c->bits, !c->asymmetric, of_weights(c), false);
    tsr_json_key(t, "input_activations");
    if (c->inputs == TSR_CT_INPUTS_PLAIN)
        tsr_json_null(t);
    else
        write_args(t, c->float_inputs ? "float" : c->type, 8, !c->asymmetric_inputs, of_inputs(c),
                   c->inputs == TSR_CT_INPUTS_TOKEN);
    tsr_json_member_string(t, "output_activations", NULL);
    tsr_json_end_object(t);
}

void tsr_ct_config_write_group(tsr_text *t, const tsr_ct_config *c, const char *const *targets, size_t n)
{
    write_group(t, c, c->format, targets, n);
}

void tsr_ct_config_head(tsr_text *t, const char *format)
{
    tsr_json_member_string(t, "quant_method", "compressed-tensors");
    tsr_json_member_string(t, "format", format);
    tsr_json_member_string(t, "quantization_status", "compressed");
}

void tsr_ct_config_tail(tsr_text *t)
{
    tsr_json_member_string(t, "global_compression_ratio", NULL);
    tsr_json_member_string(t, "kv_cache_scheme", NULL);
    tsr_json_member_empty(t, "sparsity_config");
    tsr_json_member_empty(t, "transform_config");
    tsr_json_member_string(t, "version", VERSION);
}

void tsr_ct_config_write(tsr_text *t, const tsr_ct_config *c, const tsr_tensor **unquantized, size_t n)
{
    tsr_json_begin_object(t, false);
    tsr_ct_config_head(t, c->format);
    tsr_json_member_object(t, "config_groups", false);
    tsr_json_key(t, "group_0");
    write_group(t, c, NULL, (const char *const[]){"Linear"}, 1);
    tsr_json_end_object(t);
    tsr_json_key(t, "ignore");
    tsr_ct_ignore(t, unquantized, n);
    tsr_json_member_string(t, "kv_cache_scheme", NULL);
    tsr_json_end_object(t);
}
