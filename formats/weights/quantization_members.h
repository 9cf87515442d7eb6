/* The members of quantization_config that Tessera knows: those of transformers' quantization_config.py and of the
 * packages that write such checkpoints. Others may change how weights are decoded.
 *
 * Lists are words separated by spaces, for tsr_is_listed. */
#pragma once

#include "formats/weights/pairing.h"

/* Members that auto-round adds to those of the format that it exports to. */
#define TSR_MEMBERS_AUTO_ROUND                                                                                  \
    " provider autoround_version iters nsamples seqlen lr minmax_lr enable_quanted_input enable_minmax_tuning " \
    "enable_norm_bias_tuning amp low_gpu_mem_usage gradient_accumulate_steps to_quant_block_names model_free "  \
    "data_type act_bits act_group_size act_sym act_dynamic act_data_type"

#define TSR_MEMBERS_FP8                                                                                         \
    "quant_method fmt activation_scheme weight_block_size scale_fmt modules_to_not_convert modules_to_convert " \
    "ignored_layers ignore dequantize expert_dtype moe_quant_algo kv_cache_scheme kv_cache_quant_algo "         \
    "kv_cache_dtype is_checkpoint_fp8_serialized packed_modules_mapping"
#define TSR_MEMBERS_COMPRESSED_TENSORS                                                                       \
    "quant_method config_groups format quantization_status kv_cache_scheme global_compression_ratio ignore " \
    "run_compressed dequantize use_optimized_inference sparsity_config transform_config version "            \
    "packed_modules_mapping" TSR_MEMBERS_AUTO_ROUND
#define TSR_MEMBERS_MODELOPT                                                                                     \
    "quant_method quant_algo kv_cache_quant_algo kv_cache_scheme producer config_groups ignore exclude_modules " \
    "group_size quantized_layers has_zero_point pre_quant_scale packed_modules_mapping"
#define TSR_MEMBERS_MXFP4 "quant_method modules_to_not_convert ignored_layers ignore dequantize"
#define TSR_MEMBERS_MXFP8 TSR_MEMBERS_MXFP4 " fmt activation_scheme weight_block_size scale_fmt"
#define TSR_MEMBERS_W4AFP8                                                                                 \
    "quant_method fmt activation_scheme linear_activation_scheme moe_activation_scheme weight_block_size " \
    "group_size modules_to_not_convert ignored_layers ignore is_checkpoint_fp8_serialized "                \
    "is_checkpoint_w4afp8_serialized"
#define TSR_MEMBERS_AWQ                                                                                              \
    "quant_method bits w_bit group_size q_group_size zero_point version backend modules_to_not_convert do_fuse "     \
    "fuse_max_seq_len modules_to_fuse exllama_config format checkpoint_format pack_dtype desc_act sym lm_head meta " \
    "dynamic" TSR_MEMBERS_AUTO_ROUND
#define TSR_MEMBERS_GPTQ                                                                                           \
    "quant_method bits group_size desc_act act_group_aware sym true_sequential static_groups damp_percent "        \
    "damp_auto_increment mse lm_head dynamic format checkpoint_format pack_dtype pack_impl parallel_packing meta " \
    "device is_marlin_format model_name_or_path model_file_base_name tokenizer dataset backend model_seqlen "      \
    "block_name_to_quantize module_name_preceding_first_block modules_in_block_to_quantize "                       \
    "modules_to_not_convert batch_size pad_token_id max_input_length cache_block_outputs cache_examples_on_gpu "   \
    "use_cuda_fp16 use_exllama disable_exllama exllama_config" TSR_MEMBERS_AUTO_ROUND

/* A group of compressed-tensors and ModelOpt, and its weights and input_activations (compressed-tensors'
 * quant_scheme.py and quant_args.py). */
#define TSR_MEMBERS_GROUP "targets weights input_activations output_activations format"
#define TSR_MEMBERS_ARGUMENTS                                                                                \
    "num_bits type symmetric group_size strategy block_structure dynamic actorder observer observer_kwargs " \
    "scale_dtype zp_dtype"

/* Reads members of an object up to one that is not in the list `known`. Returns false if there is none. */
bool tsr_next_unknown_member(tsr_json_reader *r, const char *known, tsr_json_text *key, tsr_json_text *value);

/* Checks the members of the quantization object `q` at `path`, and those of its groups. Others than p->members cause a
 * warning (NULL: they are not checked), because packages add members that describe the calibration. In a group of
 * compressed-tensors others are rejected, TSR_E_UNSUPPORTED, as that package does. */
tsr_status tsr_check_members(tsr_pairing *p, tsr_json_text q, const char *path);
