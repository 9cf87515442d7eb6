/* The keys, in the order that readers' own writer has them. */
#include "convert/ct_config.h"

#include "convert/fp8_config.h"

static void member(tsr_text *t, const char *key, const char *value)
{
    tsr_json_key(t, key);
    if (value == NULL)
        tsr_json_null(t);
    else
        tsr_json_string(t, value);
}

static void write_args(tsr_text *t, const char *type, uint32_t bits, bool symmetric, const char *strategy,
                       uint64_t group, bool dynamic)
{
    tsr_json_begin_object(t, false);
    tsr_json_key(t, "num_bits");
    tsr_json_u64(t, bits);
    member(t, "type", type);
    tsr_json_key(t, "symmetric");
    tsr_json_bool(t, symmetric);
    member(t, "strategy", strategy);
    if (group != 0) {
        tsr_json_key(t, "group_size");
        tsr_json_u64(t, group);
    }
    tsr_json_key(t, "dynamic");
    tsr_json_bool(t, dynamic);
    tsr_json_end_object(t);
}

void tsr_ct_config_write(tsr_text *t, const tsr_ct_config *c, const tsr_tensor **unquantized, size_t n)
{
    tsr_json_begin_object(t, false);
    member(t, "quant_method", "compressed-tensors");
    member(t, "format", c->format);
    member(t, "quantization_status", "compressed");
    tsr_json_key(t, "config_groups");
    tsr_json_begin_object(t, false);
    tsr_json_key(t, "group_0");
    tsr_json_begin_object(t, false);
    tsr_json_key(t, "targets");
    tsr_json_begin_array(t, true);
    tsr_json_string(t, "Linear");
    tsr_json_end_array(t);
    tsr_json_key(t, "weights");
    write_args(t, c->type, c->bits, !c->asymmetric, c->group == 0 ? "channel" : "group", c->group, false);
    tsr_json_key(t, "input_activations");
    if (c->inputs == TSR_CT_INPUTS_PLAIN)
        tsr_json_null(t);
    else
        write_args(t, c->type, 8, !c->asymmetric_inputs, c->inputs == TSR_CT_INPUTS_TOKEN ? "token" : "tensor", 0,
                   c->inputs == TSR_CT_INPUTS_TOKEN);
    member(t, "output_activations", NULL);
    tsr_json_end_object(t);
    tsr_json_end_object(t);
    tsr_json_key(t, "ignore");
    tsr_json_modules(t, unquantized, n);
    member(t, "kv_cache_scheme", NULL);
    tsr_json_end_object(t);
}
