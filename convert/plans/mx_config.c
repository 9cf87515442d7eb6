/* The keys, in the order in which the producers have them. */
#include "convert/plans/mx_config.h"

#include "formats/json/json_write.h"

#include <string.h>

/* The releases whose form this is. */
#define COMPRESSED_TENSORS_VERSION "0.19.0"
#define MODELOPT_VERSION           "0.47.0"

static void text(tsr_text *t, const char *key, const char *value)
{
    tsr_json_key(t, key);
    if (value == NULL)
        tsr_json_null(t);
    else
        tsr_json_string(t, value);
}

static void empty_object(tsr_text *t, const char *key)
{
    tsr_json_key(t, key);
    tsr_json_begin_object(t, true);
    tsr_json_end_object(t);
}

static void modules(tsr_text *t, const char *key, const tsr_mx_config *c)
{
    tsr_json_key(t, key);
    tsr_json_begin_array(t, false);
    for (size_t i = 0; i < c->n_unquantized; i++)
        tsr_json_string(t, c->unquantized[i]);
    tsr_json_end_array(t);
}

static void targets(tsr_text *t, const char *const *names, size_t n)
{
    tsr_json_key(t, "targets");
    tsr_json_begin_array(t, n <= 1);
    for (size_t i = 0; i < n; i++)
        tsr_json_string(t, names[i]);
    tsr_json_end_array(t);
}

static void linear_targets(tsr_text *t)
{
    targets(t, (const char *const[]){"Linear"}, 1);
}

/* ---- compressed-tensors ---- */

/* Quantized while the model runs: not at all; all of it; or the scales of groups alone, below a stored global one. */
typedef enum dynamic { STORED, DYNAMIC, LOCAL } dynamic;

static void arguments(tsr_text *t, const tsr_mx_config *c, dynamic when)
{
    tsr_json_begin_object(t, false);
    tsr_json_member_u64(t, "num_bits", c->bits);
    text(t, "type", "float");
    tsr_json_member_bool(t, "symmetric", true);
    tsr_json_member_u64(t, "group_size", c->group);
    text(t, "strategy", c->global ? "tensor_group" : "group");
    text(t, "block_structure", NULL);
    if (when == LOCAL)
        text(t, "dynamic", "local");
    else
        tsr_json_member_bool(t, "dynamic", when == DYNAMIC);
    text(t, "actorder", NULL);
    text(t, "scale_dtype", c->global ? "torch.float8_e4m3fn" : "torch.uint8");
    text(t, "zp_dtype", NULL);
    text(t, "observer", when == LOCAL ? "static_minmax" : NULL);
    empty_object(t, "observer_kwargs");
    tsr_json_end_object(t);
}

void tsr_mx_config_write_group(tsr_text *t, const tsr_mx_config *c, const char *const *names, size_t n)
{
    tsr_json_begin_object(t, false);
    text(t, "format", c->name);
    targets(t, names, n);
    tsr_json_key(t, "weights");
    arguments(t, c, STORED);
    tsr_json_key(t, "input_activations");
    if (c->inputs)
        arguments(t, c, c->global ? LOCAL : DYNAMIC);
    else
        tsr_json_null(t);
    text(t, "output_activations", NULL);
    tsr_json_end_object(t);
}

static void compressed_tensors(tsr_text *t, const tsr_mx_config *c)
{
    text(t, "quant_method", "compressed-tensors");
    text(t, "format", c->name);
    text(t, "quantization_status", "compressed");
    tsr_json_key(t, "config_groups");
    tsr_json_begin_object(t, false);
    tsr_json_key(t, "group_0");
    tsr_mx_config_write_group(t, c, (const char *const[]){"Linear"}, 1);
    tsr_json_end_object(t);
    modules(t, "ignore", c);
    text(t, "global_compression_ratio", NULL);
    text(t, "kv_cache_scheme", NULL);
    empty_object(t, "sparsity_config");
    empty_object(t, "transform_config");
    text(t, "version", COMPRESSED_TENSORS_VERSION);
}

/* ---- ModelOpt ---- */

/* Loaders look for this name. What stands behind the plus says who made it. */
static void producer(tsr_text *t)
{
    tsr_json_key(t, "producer");
    tsr_json_begin_object(t, true);
    text(t, "name", "modelopt");
    text(t, "version", MODELOPT_VERSION "+tessera." TSR_VERSION);
    tsr_json_end_object(t);
}

static void modelopt_arguments(tsr_text *t, const char *key, const tsr_mx_config *c)
{
    tsr_json_key(t, key);
    tsr_json_begin_object(t, true);
    tsr_json_member_bool(t, "dynamic", false);
    tsr_json_member_u64(t, "num_bits", c->bits);
    text(t, "type", "float");
    tsr_json_member_u64(t, "group_size", c->group);
    tsr_json_end_object(t);
}

static void modelopt(tsr_text *t, const tsr_mx_config *c)
{
    tsr_json_key(t, "config_groups");
    tsr_json_begin_object(t, false);
    tsr_json_key(t, "group_0");
    tsr_json_begin_object(t, false);
    if (c->inputs)
        modelopt_arguments(t, "input_activations", c);
    modelopt_arguments(t, "weights", c);
    linear_targets(t);
    tsr_json_end_object(t);
    tsr_json_end_object(t);
    modules(t, "ignore", c);
    text(t, "quant_algo", c->name);
    producer(t);
    text(t, "quant_method", "modelopt");
}

void tsr_mx_config_write_modelopt_file(tsr_text *t, const tsr_mx_config *c)
{
    tsr_json_begin_object(t, false);
    producer(t);
    tsr_json_key(t, "quantization");
    tsr_json_begin_object(t, false);
    text(t, "quant_algo", c->name);
    text(t, "kv_cache_quant_algo", NULL);
    tsr_json_member_u64(t, "group_size", c->group);
    modules(t, "exclude_modules", c);
    tsr_json_end_object(t);
    tsr_json_end_object(t);
    tsr_text_append(t, "\n", 1);
}

/* ---- quant_method mxfp8 ---- */

static void deepseek(tsr_text *t, const tsr_mx_config *c)
{
    text(t, "quant_method", c->name);
    text(t, "fmt", "e4m3");
    text(t, "activation_scheme", "dynamic");
    tsr_json_key(t, "weight_block_size");
    tsr_json_begin_array(t, true);
    tsr_json_u64(t, 1);
    tsr_json_u64(t, c->group);
    tsr_json_end_array(t);
    text(t, "scale_fmt", "ue8m0");
    modules(t, "ignored_layers", c);
}

void tsr_mx_config_write(tsr_text *t, tsr_mx_dialect dialect, const tsr_mx_config *c)
{
    static void (*const kWriters[])(tsr_text *, const tsr_mx_config *) = {
        [TSR_MX_DIALECT_DEEPSEEK] = deepseek,
        [TSR_MX_DIALECT_COMPRESSED_TENSORS] = compressed_tensors,
        [TSR_MX_DIALECT_MODELOPT] = modelopt,
    };
    tsr_json_begin_object(t, false);
    kWriters[dialect](t, c);
    tsr_json_end_object(t);
}
