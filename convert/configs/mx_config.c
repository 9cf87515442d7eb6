/* Writes the configurations of MXFP4, MXFP8 and NVFP4. Keys have the order of each producer. */
#include "convert/configs/mx_config.h"

#include "convert/configs/ct_config.h"
#include "formats/json/json_write.h"

#include <stdio.h>

/* Release of ModelOpt that the written configuration follows. */
#define MODELOPT_VERSION "0.47.0"

static void modules(tsr_text *t, const char *key, const tsr_mx_config *c)
{
    tsr_json_member_array(t, key, false);
    for (size_t i = 0; i < c->n_unquantized; i++)
        tsr_json_string(t, c->unquantized[i]);
    tsr_json_end_array(t);
}

/* ---- compressed-tensors ---- */

/* How a tensor is quantized at run time: not at all (stored), completely (dynamic), or only the scales of groups, below
 * a stored global scale (local). */
typedef enum dynamic { STORED, DYNAMIC, LOCAL } dynamic;

static void arguments(tsr_text *t, const tsr_mx_config *c, dynamic when)
{
    tsr_json_begin_object(t, false);
    tsr_json_member_u64(t, "num_bits", c->bits);
    tsr_json_member_string(t, "type", "float");
    tsr_json_member_bool(t, "symmetric", true);
    tsr_json_member_u64(t, "group_size", c->group);
    tsr_json_member_string(t, "strategy", c->global ? "tensor_group" : "group");
    tsr_json_member_string(t, "block_structure", NULL);
    if (when == LOCAL)
        tsr_json_member_string(t, "dynamic", "local");
    else
        tsr_json_member_bool(t, "dynamic", when == DYNAMIC);
    tsr_json_member_string(t, "actorder", NULL);
    tsr_json_member_string(t, "scale_dtype", c->global ? "torch.float8_e4m3fn" : "torch.uint8");
    tsr_json_member_string(t, "zp_dtype", NULL);
    tsr_json_member_string(t, "observer", when == LOCAL ? "static_minmax" : NULL);
    tsr_json_member_empty(t, "observer_kwargs");
    tsr_json_end_object(t);
}

/* Writes FP8 with one scale per tensor, which has the arguments of older readers. */
static void write_tensor_group(tsr_text *t, const tsr_mx_config *c, const char *format, const char *const *names,
                               size_t n)
{
    const tsr_ct_config config = {.format = format,
                                  .type = "float",
                                  .bits = c->bits,
                                  .whole = true,
                                  .inputs = c->static_inputs ? TSR_CT_INPUTS_TENSOR : TSR_CT_INPUTS_TOKEN};
    tsr_ct_config_write_group(t, &config, names, n);
}

void tsr_mx_config_write_group(tsr_text *t, const tsr_mx_config *c, const char *const *names, size_t n)
{
    if (c->group == 0) {
        write_tensor_group(t, c, c->name, names, n);
        return;
    }
    tsr_json_begin_object(t, false);
    tsr_json_member_string(t, "format", c->name);
    tsr_json_member_strings(t, "targets", names, n);
    tsr_json_key(t, "weights");
    arguments(t, c, STORED);
    tsr_json_key(t, "input_activations");
    if (c->inputs)
        arguments(t, c, c->global ? LOCAL : DYNAMIC);
    else
        tsr_json_null(t);
    tsr_json_member_string(t, "output_activations", NULL);
    tsr_json_end_object(t);
}

static const char *const kLinear[] = {"Linear"};

static void compressed_tensors(tsr_text *t, const tsr_mx_config *c)
{
    tsr_ct_config_head(t, c->name);
    tsr_json_member_object(t, "config_groups", false);
    tsr_json_key(t, "group_0");
    if (c->group == 0)
        write_tensor_group(t, c, NULL, kLinear, 1);
    else
        tsr_mx_config_write_group(t, c, kLinear, 1);
    tsr_json_end_object(t);
    modules(t, "ignore", c);
    tsr_ct_config_tail(t);
}

/* ---- ModelOpt ---- */

/* Writes the producer. Loaders look for this name; the text after the plus names Tessera. */
static void producer(tsr_text *t)
{
    tsr_json_member_object(t, "producer", true);
    tsr_json_member_string(t, "name", "modelopt");
    tsr_json_member_string(t, "version", MODELOPT_VERSION "+tessera." TSR_VERSION);
    tsr_json_end_object(t);
}

static void group_size(tsr_text *t, const tsr_mx_config *c)
{
    if (c->group != 0)
        tsr_json_member_u64(t, "group_size", c->group);
}

static void modelopt_arguments(tsr_text *t, const char *key, const tsr_mx_config *c)
{
    tsr_json_member_object(t, key, true);
    tsr_json_member_bool(t, "dynamic", false);
    tsr_json_member_u64(t, "num_bits", c->bits);
    tsr_json_member_string(t, "type", "float");
    group_size(t, c);
    tsr_json_end_object(t);
}

static void modelopt_group(tsr_text *t, const tsr_mx_config *c, const char *const *targets, size_t n)
{
    tsr_json_begin_object(t, false);
    if (c->inputs)
        modelopt_arguments(t, "input_activations", c);
    modelopt_arguments(t, "weights", c);
    tsr_json_member_strings(t, "targets", targets, n);
    tsr_json_end_object(t);
}

static void modelopt(tsr_text *t, const tsr_mx_config *c)
{
    tsr_json_member_object(t, "config_groups", false);
    tsr_json_key(t, "group_0");
    modelopt_group(t, c, kLinear, 1);
    tsr_json_end_object(t);
    modules(t, "ignore", c);
    tsr_json_member_string(t, "quant_algo", c->name);
    producer(t);
    tsr_json_member_string(t, "quant_method", "modelopt");
}

void tsr_mx_config_write_modelopt_file(tsr_text *t, const tsr_mx_config *c)
{
    tsr_json_begin_object(t, false);
    producer(t);
    tsr_json_member_object(t, "quantization", false);
    tsr_json_member_string(t, "quant_algo", c->name);
    tsr_json_member_string(t, "kv_cache_quant_algo", NULL);
    group_size(t, c);
    modules(t, "exclude_modules", c);
    tsr_json_end_object(t);
    tsr_json_end_document(t);
}

/* ---- MIXED_PRECISION ---- */

static const char kMixed[] = "MIXED_PRECISION";

static void layers(tsr_text *t, const tsr_mx_config *c, const char *const *names, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        tsr_json_member_object(t, names[i], true);
        tsr_json_member_string(t, "quant_algo", c->name);
        group_size(t, c);
        tsr_json_end_object(t);
    }
}

static void quantized_layers(tsr_text *t, const tsr_modelopt_mix *mix)
{
    tsr_json_member_object(t, "quantized_layers", false);
    for (size_t i = 0; i < mix->n; i++) {
        const tsr_modelopt_group *const g = &mix->groups[i];
        layers(t, &g->config, g->modules, g->n);
        layers(t, &g->config, g->joined, g->n_joined);
    }
    tsr_json_end_object(t);
}

void tsr_mx_config_write_mixed(tsr_text *t, const tsr_modelopt_mix *mix)
{
    tsr_json_begin_object(t, false);
    tsr_json_member_object(t, "config_groups", false);
    for (size_t i = 0; i < mix->n; i++) {
        char name[32];
        snprintf(name, sizeof name, "group_%zu", i);
        tsr_json_key(t, name);
        modelopt_group(t, &mix->groups[i].config, mix->groups[i].modules, mix->groups[i].n);
    }
    tsr_json_end_object(t);
    quantized_layers(t, mix);
    tsr_json_member_strings(t, "ignore", mix->plain, mix->n_plain);
    tsr_json_member_string(t, "quant_algo", kMixed);
    producer(t);
    tsr_json_member_string(t, "quant_method", "modelopt");
    tsr_json_end_object(t);
}

void tsr_mx_config_write_mixed_file(tsr_text *t, const tsr_modelopt_mix *mix)
{
    tsr_json_begin_object(t, false);
    producer(t);
    tsr_json_member_object(t, "quantization", false);
    tsr_json_member_string(t, "quant_algo", kMixed);
    tsr_json_member_string(t, "kv_cache_quant_algo", NULL);
    quantized_layers(t, mix);
    tsr_json_member_strings(t, "exclude_modules", mix->plain, mix->n_plain);
    tsr_json_end_object(t);
    tsr_json_end_document(t);
}

/* ---- quant_method mxfp8 ---- */

static void deepseek(tsr_text *t, const tsr_mx_config *c)
{
    tsr_json_member_string(t, "quant_method", c->name);
    tsr_json_member_string(t, "fmt", "e4m3");
    tsr_json_member_string(t, "activation_scheme", "dynamic");
    tsr_json_member_u64s(t, "weight_block_size", (const uint64_t[]){1, c->group}, 2);
    tsr_json_member_string(t, "scale_fmt", "ue8m0");
    modules(t, "ignored_layers", c);
}

/* ---- quant_method mxfp4 ---- */

static void gpt_oss(tsr_text *t, const tsr_mx_config *c)
{
    tsr_json_member_string(t, "quant_method", c->name);
    modules(t, "modules_to_not_convert", c);
}

void tsr_mx_config_write(tsr_text *t, tsr_dialect dialect, const tsr_mx_config *c)
{
    static void (*const kWriters[])(tsr_text *, const tsr_mx_config *) = {
        [TSR_DIALECT_DEEPSEEK] = deepseek,
        [TSR_DIALECT_COMPRESSED_TENSORS] = compressed_tensors,
        [TSR_DIALECT_MODELOPT] = modelopt,
        [TSR_DIALECT_GPT_OSS] = gpt_oss,
    };
    tsr_json_begin_object(t, false);
    kWriters[dialect](t, c);
    tsr_json_end_object(t);
}
