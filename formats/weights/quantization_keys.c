/* Warns of members of quantization_config that Tessera does not know: they may change how weights are decoded. */
#include "formats/weights/pairing.h"

#include "common/checked.h"
#include "common/options.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

/* The members that each quant_method has in transformers' quantization_config.py and in the packages that write it. A
 * method without a row has too many, and is not checked. */
static const struct {
    const char *method, *known;
} kMethods[] = {
    {"fp8",
     "quant_method fmt activation_scheme weight_block_size scale_fmt modules_to_not_convert modules_to_convert "
     "ignored_layers ignore dequantize expert_dtype moe_quant_algo kv_cache_scheme kv_cache_quant_algo kv_cache_dtype "
     "is_checkpoint_fp8_serialized packed_modules_mapping"},
    {"compressed-tensors",
     "quant_method config_groups format quantization_status kv_cache_scheme global_compression_ratio "
     "ignore run_compressed dequantize use_optimized_inference sparsity_config transform_config "
     "version packed_modules_mapping"},
    {"modelopt", "quant_method quant_algo kv_cache_quant_algo kv_cache_scheme producer config_groups ignore "
                 "exclude_modules group_size quantized_layers has_zero_point pre_quant_scale packed_modules_mapping"},
    {"mxfp4", "quant_method modules_to_not_convert ignored_layers ignore dequantize"},
    {"mxfp8", "quant_method modules_to_not_convert ignored_layers ignore dequantize fmt activation_scheme "
              "weight_block_size scale_fmt"},
    {TSR_W4AFP8, "quant_method fmt activation_scheme linear_activation_scheme moe_activation_scheme weight_block_size "
                 "group_size modules_to_not_convert ignored_layers ignore is_checkpoint_fp8_serialized "
                 "is_checkpoint_w4afp8_serialized"},
    {"awq", "quant_method bits w_bit group_size q_group_size zero_point version backend modules_to_not_convert do_fuse "
            "fuse_max_seq_len modules_to_fuse exllama_config"},
    {"gptq",
     "quant_method bits group_size desc_act act_group_aware sym true_sequential static_groups damp_percent "
     "damp_auto_increment mse lm_head dynamic format checkpoint_format pack_dtype pack_impl parallel_packing meta "
     "device is_marlin_format model_name_or_path model_file_base_name tokenizer dataset backend model_seqlen "
     "block_name_to_quantize module_name_preceding_first_block modules_in_block_to_quantize "
     "modules_to_not_convert batch_size pad_token_id max_input_length cache_block_outputs cache_examples_on_gpu "
     "use_cuda_fp16 use_exllama disable_exllama exllama_config"},
};

/* The members of a group of compressed-tensors and ModelOpt, and of its weights and inputs (quant_scheme.py and
 * quant_args.py of compressed-tensors). */
static const char kGroup[] = "targets weights input_activations output_activations format",
                  kArguments[] =
                      "num_bits type symmetric group_size strategy block_structure dynamic actorder scale_dtype "
                      "zp_dtype observer observer_kwargs";

/* Warns of the first member of an object that is not known, and counts the others. */
static void check(tsr_pairing *p, tsr_json_text object, const char *known, const char *where)
{
    tsr_json_text key, value;
    tsr_json_reader r = tsr_json_members(object);
    while (tsr_json_member(&r, &key, &value)) {
        char word[64];
        snprintf(word, sizeof word, "%.*s", (int)tsr_min_u64(key.size, sizeof word - 1), key.data);
        if (tsr_is_listed(known, word) || tsr_json_is(value, "null") || p->w->n_warned++ > 0)
            continue;
        p->w->warning =
            tsr_arena_printf(&p->w->arena,
                             "%s: unknown member '%s': Tessera ignores it, and if it changes how weights are "
                             "decoded, they are decoded wrongly",
                             where, word);
    }
}

static void check_part(tsr_pairing *p, tsr_json_text group, const char *name, const char *known, const char *where)
{
    char path[320];
    tsr_json_text part;
    snprintf(path, sizeof path, "%s.%s", where, name);
    if (tsr_json_get(group, name, &part) && part.data[0] == '{')
        check(p, part, known, path);
}

void tsr_warn_of_unknown_members(tsr_pairing *p, tsr_json_text q, const char *where)
{
    tsr_json_text groups, name, group;
    for (size_t i = 0; i < sizeof kMethods / sizeof *kMethods; i++) {
        if (strcasecmp(p->w->method, kMethods[i].method) == 0)
            check(p, q, kMethods[i].known, where);
    }
    if (!tsr_json_get(q, "config_groups", &groups) || groups.data[0] != '{')
        return;
    tsr_json_reader r = tsr_json_members(groups);
    while (tsr_json_member(&r, &name, &group)) {
        char path[288];
        snprintf(path, sizeof path, "%s.config_groups.%.*s", where, (int)tsr_min_u64(name.size, 64), name.data);
        if (group.data[0] != '{')
            continue;
        check(p, group, kGroup, path);
        check_part(p, group, "weights", kArguments, path);
        check_part(p, group, "input_activations", kArguments, path);
    }
}
