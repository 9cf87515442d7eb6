/* The table of rules about model classes. Each rule was observed by running the loader's own code
 * (tests/peers/loaders). To add one, add a row, and a condition if no existing one fits (docs/extending.md). */
#include "formats/loaders/class_rules.h"

#include "common/options.h"
#include "common/text.h"
#include "formats/checkpoint/config.h"
#include "formats/json/json.h"

#include <stdio.h>
#include <string.h>

/* ---- conditions on the configuration ---- */

static bool is_modelopt(const tsr_load_query *q)
{
    return tsr_query_method(q, "modelopt");
}

static bool is_modelopt_of_one_algorithm(const tsr_load_query *q)
{
    return tsr_query_method(q, "modelopt") && !q->mixed;
}

static bool is_not_awq(const tsr_load_query *q)
{
    return !tsr_query_method(q, "awq");
}

static bool has_block_scales_of_fp8(const tsr_load_query *q)
{
    return !tsr_query_compressed_tensors(q) && (q->block || tsr_query_method(q, "mxfp8"));
}

/* Finds the "format" of compressed-tensors' configuration. */
static bool find_format(const tsr_load_query *q, tsr_json_text *format)
{
    return tsr_query_compressed_tensors(q) && q->config.data != NULL &&
           tsr_json_find(q->config.data, q->config.size, "format", format);
}

static bool is_not_pack_quantized(const tsr_load_query *q)
{
    tsr_json_text format;
    return find_format(q, &format) && !tsr_json_is(format, "\"pack-quantized\"");
}

/* Returns true if compressed-tensors' configuration has groups of different formats. */
static bool is_mixed_precision(const tsr_load_query *q)
{
    tsr_json_text format;
    return find_format(q, &format) && tsr_json_is(format, "\"mixed-precision\"");
}

/* Returns true if compressed-tensors' list has no expressions, which may match the names of the class as well.
 * UltraVBert has the names of the file, unlike the text model that it contains. */
static bool lists_names_only(const tsr_load_query *q)
{
    bool expressions = false;
    for (size_t i = 0; i < q->ignored->count; i++)
        expressions = expressions || strncmp(q->ignored->entries[i], "re:", 3) == 0;
    return tsr_query_compressed_tensors(q) && !expressions && strcmp(q->model, "ultravbert") != 0;
}

static bool has_latent_queries(const tsr_load_query *q)
{
    return tsr_query_compressed_tensors(q) && q->s->model->q_lora_rank > 0;
}

static bool is_text_model_alone(const tsr_load_query *q)
{
    tsr_json_text text;
    return !tsr_config_find(q->s->checkpoint, "text_config", &text);
}

static bool has_configuration(const tsr_load_query *q)
{
    return q->config.data != NULL;
}

/* ---- conditions on a layer ---- */

static bool is_quantized(const tsr_load_query *q, const tsr_linear *l)
{
    (void)q;
    return tsr_linear_is_quantized(l);
}

/* Returns true if the codes are not in a parameter called "weight". */
static bool is_packed(const tsr_load_query *q, const tsr_linear *l)
{
    return is_quantized(q, l) && !tsr_ends_with(l->weight->data->name, ".weight");
}

static bool is_routed(const tsr_load_query *q, const tsr_linear *l)
{
    return is_quantized(q, l) && l->part == TSR_PART_ROUTED_EXPERTS;
}

static bool is_expert(const tsr_load_query *q, const tsr_linear *l)
{
    return is_routed(q, l) && l->matrices == 1;
}

static bool is_single_expert(const tsr_load_query *q, const tsr_linear *l)
{
    (void)q;
    return l->part == TSR_PART_ROUTED_EXPERTS && l->tensor->rank == 2;
}

static bool is_block_expert(const tsr_load_query *q, const tsr_linear *l)
{
    return is_expert(q, l) && tsr_linear_is_fp8(l) && l->block.rows != 0;
}

static bool is_fp8_tensor(const tsr_load_query *q, const tsr_linear *l, bool static_input)
{
    (void)q;
    return tsr_linear_is_kind(l, "fp8-tensor") && (l->weight->input_scale != NULL) == static_input;
}

static bool is_static_fp8_tensor(const tsr_load_query *q, const tsr_linear *l)
{
    return is_fp8_tensor(q, l, true);
}

static bool is_dynamic_fp8_expert(const tsr_load_query *q, const tsr_linear *l)
{
    return is_expert(q, l) && is_fp8_tensor(q, l, false);
}

/* Returns true for q_a_proj and kv_a_proj_with_mqa, which are one layer in DeepSeek's classes. */
static bool is_latent_projection(const tsr_linear *l)
{
    return strcmp(l->leaf, "q_a_proj") == 0 || strcmp(l->leaf, "kv_a_proj_with_mqa") == 0;
}

static bool is_static_fp8_latent(const tsr_load_query *q, const tsr_linear *l)
{
    return is_latent_projection(l) && is_fp8_tensor(q, l, true) && l->weight->input_scale->rank == 1;
}

static bool is_int8_expert(const tsr_load_query *q, const tsr_linear *l)
{
    return is_expert(q, l) && l->coding == TSR_CODED_INT8;
}

static bool is_packed_expert(const tsr_load_query *q, const tsr_linear *l)
{
    return is_expert(q, l) && l->coding == TSR_CODED_PACKED;
}

static bool is_shifted_expert(const tsr_load_query *q, const tsr_linear *l)
{
    return is_packed_expert(q, l) && l->zero_points;
}

static bool is_pairs_of_int4(const tsr_load_query *q, const tsr_linear *l)
{
    return is_expert(q, l) && tsr_linear_is_kind(l, "int4-sglang");
}

static bool is_nvfp4_expert(const tsr_load_query *q, const tsr_linear *l)
{
    return is_expert(q, l) && tsr_linear_is_kind(l, "nvfp4-ct");
}

static bool is_mxfp8_expert(const tsr_load_query *q, const tsr_linear *l)
{
    return is_expert(q, l) && tsr_linear_is_kind(l, "mxfp8");
}

static bool is_packed_shared(const tsr_load_query *q, const tsr_linear *l)
{
    return l->part == TSR_PART_SHARED_EXPERTS && is_packed(q, l);
}

static bool is_packed_latent(const tsr_load_query *q, const tsr_linear *l)
{
    return is_latent_projection(l) && is_quantized(q, l) && l->coding == TSR_CODED_PACKED;
}

static bool is_in_linear_attention(const tsr_linear *l)
{
    return strstr(l->module, ".linear_attn.in_proj") != NULL;
}

static bool is_input_of_linear_attention(const tsr_load_query *q, const tsr_linear *l)
{
    return is_in_linear_attention(l) && is_quantized(q, l);
}

static bool is_packed_linear_attention(const tsr_load_query *q, const tsr_linear *l)
{
    return is_in_linear_attention(l) && is_packed(q, l);
}

static bool is_nvfp4_linear_attention(const tsr_load_query *q, const tsr_linear *l)
{
    return is_in_linear_attention(l) && is_quantized(q, l) && tsr_linear_is_kind(l, "nvfp4-modelopt");
}

static bool is_query_key_value(const tsr_load_query *q, const tsr_linear *l)
{
    return is_quantized(q, l) && l->fused != NULL && strcmp(l->fused->name, "qkv_proj") == 0;
}

/* Returns true for a single column of blocks, from which compressed-tensors' own code infers one scale per row. */
static bool is_column_of_blocks(const tsr_load_query *q, const tsr_linear *l)
{
    return is_quantized(q, l) && tsr_linear_is_fp8(l) && l->block.rows != 0 && l->grid_cols == 1 && l->grid_rows > 1;
}

static bool is_in_state_space(const tsr_load_query *q, const tsr_linear *l)
{
    return is_quantized(q, l) && (strstr(l->module, ".mamba.") != NULL || strstr(l->module, ".mixer.") != NULL);
}

static bool is_split_gate(const tsr_load_query *q, const tsr_linear *l)
{
    return is_quantized(q, l) && (strcmp(l->leaf, "up_gate_proj") == 0 || strcmp(l->leaf, "qkv_proj") == 0);
}

static bool is_wqkv(const tsr_load_query *q, const tsr_linear *l)
{
    return is_quantized(q, l) && strcmp(l->leaf, "Wqkv") == 0;
}

/* ---- conditions on a tensor of rank 3 ---- */

static bool is_stack(const tsr_linear *l)
{
    return l->matrices > 1 && l->part == TSR_PART_ROUTED_EXPERTS;
}

static bool is_plain_stack(const tsr_load_query *q, const tsr_linear *l)
{
    return is_stack(l) && !is_quantized(q, l);
}

static bool is_convolution(const tsr_load_query *q, const tsr_linear *l)
{
    return is_quantized(q, l) && l->tensor->rank == 3 && !is_stack(l);
}

/* Returns true for a quantized stack that is not in the layout of gpt-oss, which every loader reads. */
static bool is_coded_stack(const tsr_load_query *q, const tsr_linear *l)
{
    return is_quantized(q, l) && l->tensor->rank == 3 && is_stack(l) && !(l->scale != NULL && l->weight->transposed);
}

static bool is_fp8_stack(const tsr_load_query *q, const tsr_linear *l)
{
    return is_coded_stack(q, l) && tsr_linear_is_fp8(l);
}

static bool is_other_stack(const tsr_load_query *q, const tsr_linear *l)
{
    return is_coded_stack(q, l) && !tsr_linear_is_fp8(l);
}

/* ---- the rules ---- */

enum {
    VLLM = 1 << TSR_LOADER_VLLM,
    SGLANG = 1 << TSR_LOADER_SGLANG,
    TRANSFORMERS = 1 << TSR_LOADER_TRANSFORMERS,
    ALL = (1 << TSR_LOADER_COUNT) - 1,
};

/* Families whose experts are [experts, in, out] in the file. */
#define IN_OUT " llama4 llama4_text qwen3_vl_moe qwen3_vl_moe_text "

#define AN_EXPERT    "an expert of compressed-tensors"
#define KEEP_QUERIES "keep attention in BF16 with `tessera quantize --exclude '*_attn.*'`"
#define OTHER_SCHEME "use another scheme for this loader"
#define DEEPSEEK     "use --dialect deepseek, or another scheme for this loader"
#define TO_PLAIN     "use another loader, or `tessera convert --to bf16`"
#define TOGETHER     "`tessera convert --to bf16 --experts stack` stacks them"
#define SPLIT        "`tessera convert --to fp8-block --experts split` splits them"
#define SPLIT_AGAIN  "`tessera convert --to bf16` and then `tessera quantize --experts split` splits them"
#define AS_STACK     "`tessera convert --to bf16` makes plain stacks of them"
#define NO_NAMES \
    "use `tessera quantize --scheme fp8-block`, or load it with CompressedTensorsConfig(run_compressed=False)"
#define OF_CT       TRANSFORMERS, NULL, tsr_query_compressed_tensors
#define CANNOT_JOIN "the loader cannot join such experts"
#define ONE_TENSOR  "the loader reads the experts of this model as one tensor for each layer"

/* transformers: conversion_mapping.py. gpt-oss: gpt_oss.py of vLLM and SGLang. */
static const tsr_class_rule kRules[] = {
    {ALL, " gpt_oss ", NULL, is_single_expert, "stacked experts", "a single expert", ONE_TENSOR, TOGETHER},
    {TRANSFORMERS, IN_OUT " granitemoe granitemoehybrid granitemoeshared hy_v4 mistral4 ", NULL, is_single_expert,
     "stacked experts", "a single expert", ONE_TENSOR, TOGETHER},

    {ALL, NULL, NULL, is_convolution, "convolution", "a tensor of three dimensions that is not a stack of experts",
     "no loader reads codes of it", "keep it in BF16, as tessera quantize does"},

    {ALL, NULL, NULL, is_other_stack, "stacked experts", "a stack of experts",
     "as a stack, loaders read only gpt-oss's layout and FP8", SPLIT},
    {ALL, " gpt_oss ", NULL, is_fp8_stack, "stacked experts", "a stack of experts, [experts, in, out]",
     "the loader reads plain stacks of this model, or MXFP4 in its own layout: it applies other scales transposed, or "
     "ignores them",
     AS_STACK},
    {TRANSFORMERS, IN_OUT, NULL, is_fp8_stack, "stacked experts", "a stack of experts, [experts, in, out]",
     "the loader applies scales transposed, or initializes the experts randomly, without an error", AS_STACK},
    {TRANSFORMERS, NULL, NULL, is_fp8_stack, "stacked experts", "a stack of experts",
     "on a GPU without FP8 the loader ignores the scales and uses the codes as values, without an error", AS_STACK},
    {VLLM, " llama4 llama4_text qwen3_5_moe qwen3_5_moe_text ", NULL, is_fp8_stack, NULL, "a stack of experts", NULL,
     NULL},
    {ALL, IN_OUT, NULL, is_fp8_stack, "stacked experts", "a stack of experts, [experts, in, out]",
     "the loader reads each expert from its own tensor", SPLIT_AGAIN},
    {ALL, NULL, NULL, is_fp8_stack, "stacked experts", "a stack of experts",
     "the loader reads each expert from its own tensor", SPLIT},
    {TRANSFORMERS, " gpt_oss llama4 llama4_text ", has_configuration, is_plain_stack, "stacked experts",
     "a plain stack of experts in a quantized checkpoint",
     "the loader initializes this model's experts randomly, without an error",
     "quantize for another loader, or keep the whole model in BF16"},

    /* transformers joins experts while it loads (conversion_mapping.py), but not every kind of them. */
    {OF_CT, is_block_expert, "experts", AN_EXPERT " in blocks", CANNOT_JOIN, DEEPSEEK},
    {TRANSFORMERS, NULL, is_mixed_precision, is_static_fp8_tensor, "formats",
     "FP8 per tensor with a stored input scale, beside other formats",
     "with run_compressed=False the loader decodes it by the format of another group, and fails",
     "leave out --activations and --input-scale, or use fp8-channel in place of fp8-tensor"},
    {OF_CT, is_int8_expert, "experts", AN_EXPERT ", int8 by rows", CANNOT_JOIN, DEEPSEEK},
    {OF_CT, is_shifted_expert, "experts", AN_EXPERT ", with zero points", CANNOT_JOIN, DEEPSEEK},
    {OF_CT, is_mxfp8_expert, "experts", AN_EXPERT ", MXFP8", CANNOT_JOIN, DEEPSEEK},
    {OF_CT, is_nvfp4_expert, "experts", AN_EXPERT ", NVFP4",
     "the loader joins such experts without their global scales, and reports no error", DEEPSEEK},
    {OF_CT, is_column_of_blocks, "experts", "one column of blocks, in compressed-tensors",
     "the loader reads its scales as scales of rows", DEEPSEEK},

    /* Layers that it renames, joins or splits without their scales. */
    {TRANSFORMERS, " gte ", NULL, is_split_gate, "conversion", "a joined layer",
     "the loader splits it, but not its scales; it fails, or uses codes as values", TO_PLAIN},
    {TRANSFORMERS, " nomic_bert ", NULL, is_wqkv, "conversion", "the joined layer Wqkv",
     "the loader splits it, but not its scales, and uses codes as values without an error", TO_PLAIN},
    {TRANSFORMERS,
     " depth_anything depth_pro dinov2 dinov2_with_registers gradium_phonon_tts nemo_speechlm prompt_depth_anything "
     " sapiens2 tipsv2 zamba ",
     NULL, is_quantized, "conversion", "any quantized layer", "the loader's conversion for this model fails for scales",
     TO_PLAIN},
    {TRANSFORMERS, " hrm_text molmo2 molmo2_text qianfan_ocr unlimited_ocr ", NULL, is_quantized, "conversion",
     "any quantized layer",
     "the loader splits joined layers of this model only without scales; it fails, or uses codes as values", TO_PLAIN},
    {TRANSFORMERS, " ernie4_5_vl_moe ", NULL, is_routed, "conversion", "an expert",
     "the loader joins and splits the experts of this model without their scales; it fails, or uses codes as values",
     TO_PLAIN},
    {TRANSFORMERS, " bailing_hybrid glm5_next glm5_next_text kimi_linear olmo_hybrid step3p7 ", NULL, is_packed,
     "conversion", "packed codes", "the loader's conversion for this model fails for them", TO_PLAIN},
    {TRANSFORMERS,
     " conditional_detr d_fine dab-detr deformable_detr deimv2 detr eomt eomt_dinov3 minimax_m3_vl pp_doclayout_v2 "
     " pp_doclayout_v3 pp_doclayout_v4 rt_detr rt_detr_v2 table-transformer videomt ",
     tsr_query_compressed_tensors, is_quantized, "conversion", "any quantized layer of compressed-tensors",
     "the loader's conversion for this model fails for its scales", DEEPSEEK},
    {TRANSFORMERS, " neomme ", has_block_scales_of_fp8, is_quantized, "conversion", "FP8 in blocks",
     "the loader's conversion for this model fails for its scales",
     "use `tessera quantize --scheme fp8-channel`, or another loader"},
    {TRANSFORMERS, " lara_mini ", NULL, is_input_of_linear_attention, "conversion", "in_proj of linear attention",
     "the loader splits it, but not its scales, and uses codes as values without an error",
     "keep it in BF16 with `tessera quantize --exclude '*.linear_attn.in_proj.*'`"},

    /* Classes that build plain layers as quantized, because the list has the names of the file. Then classes that read
     * weights while they initialize others. */
    {TRANSFORMERS,
     " altclip aria audioflamingo3 axk2 aya_vision bailing_hybrid bark cohere_asr cosmos3_edge cosmos3_omni "
     " deepseek_ocr2 fuyu gemma3 glm5_next glm5_next_text glmasr got_ocr2 granite_speech granite_speech_plus "
     " grounding-dino hunyuan_vl hy_v4_vl hyperclovax_vision_v2 internvl jina_embeddings_v3 kimi_k25 kimi_linear "
     " lfm3_vl lfm3_vl_vision llava llava_next llava_next_video llava_onevision lw_detr mask2former mistral3 "
     " mistral_large4 mistral_large4_text mm-grounding-dino musicflamingo nemotron_h nemotron_h_omni neomme "
     " oneformer paddleocr_vl paligemma pe_audio_video phi4_multimodal phimoe pi0 pp_chart2table qwen2_5_omni "
     " qwen2_5_omni_thinker qwen2_5_vl qwen2_audio qwen2_vl qwen3_omni_moe qwen3_omni_moe_thinker radio rf_detr "
     " sam3_tracker sam3_tracker_video sam3_video sarvam_moe segformer shieldgemma2 speecht5 timesfm2_5 "
     " tipsv2_text_model ultrabert vibevoice_asr video_llava vipllava vision-text-dual-encoder voxtral "
     " voxtral_realtime ",
     lists_names_only, is_quantized, "conversion", "any quantized layer of compressed-tensors",
     "the class has other names for layers than the file: it builds plain layers as quantized, and finds no scales",
     NO_NAMES},
    {TRANSFORMERS,
     " blt bridgetower chinese_clip_vision_model chmv2 clap clipseg clvp cvt dinov3_vit falcon falcon_mamba "
     " fastspeech2_conformer fastspeech2_conformer_with_hifigan gpt_bigcode groupvit hiera higgs_audio_v2_tokenizer "
     " ijepa kosmos-2 lw_detr_vit mamba mamba2 mgp-str mlcd mlcd_vision_model modernbert modernbert-decoder "
     " modernvbert mt5 nanochat omdet-turbo owlv2 owlvit pe_audio pix2struct pvt pvt_v2 recurrent_gemma "
     " rf_detr_dinov2 rwkv seggpt siglip siglip2 siglip2_vision_model siglip_vision_model slanet slanext swin2sr t5 "
     " timesformer umt5 videoprism videoprism_vision_model vitdet vitmatte vitpose vitpose_backbone vjepa2 "
     " xclip xcodec xlstm ",
     tsr_query_compressed_tensors, is_packed, "conversion", "packed codes of compressed-tensors",
     "the class reads parameters 'weight' while it initializes, and fails without them",
     "use `tessera quantize --scheme fp8-channel`, or another loader"},
    {TRANSFORMERS,
     " bark blip-2 csm falcon fuyu jina_embeddings_v3 kimi_k25 kyutai_speech_to_text mask2former nemotron_h_omni "
     " oneformer pe_audio_video phi4_multimodal pp_doclayout_v3 radio rf_detr sam3_tracker_video sarvam_moe "
     " siglip2_vision_model siglip_vision_model tipsv2_text_model ",
     has_block_scales_of_fp8, is_quantized, "conversion", "FP8 in blocks",
     "the class builds some plain layers as FP8 without scales, or FP8 ones as plain", TO_PLAIN},
    /* layers/mamba/mamba_mixer.py passes no quantization to its linear layers. */
    {VLLM, " falcon_mamba jamba mamba ", NULL, is_in_state_space, "class", "a layer of the state-space mixer",
     "the class builds it unquantized, and finds no place for its scales",
     "keep it in BF16 with `tessera quantize --exclude GLOB`"},
    {SGLANG, " dots1 flex_olmo jamba solar_open ", NULL, is_quantized, "class", "any quantized layer",
     "the loader has no class for this model, and its generic class refuses it", "use another loader"},
    /* models/llama.py, and the classes that inherit its load_weights */
    {SGLANG, " llama mistral mistral3 phi3 internlm3 iquestcoder ministral3 teleflm ", has_block_scales_of_fp8,
     is_quantized, "scale name", "FP8 or MXFP8 in blocks, not of compressed-tensors",
     "the class renames weight_scale_inv to weight_scale, and then loads no scale at all",
     "use `tessera quantize --dialect compressed-tensors`, or `tessera convert --to fp8-block "
     "--dialect compressed-tensors`"},
    {SGLANG, NULL, is_not_pack_quantized, is_packed_expert, "experts",
     "a packed expert in a checkpoint whose format is not pack-quantized",
     "the loader reads packed integers of experts only if that is the format of the whole checkpoint",
     "use `tessera quantize --scheme int4-weight-only`, or a rule with another scheme for experts"},
    {SGLANG, " afmoe ", NULL, is_packed_expert, "experts", "a packed expert",
     "the class needs a parameter 'weight' of an expert, which packed codes do not have", OTHER_SCHEME},
    {SGLANG, " glm4_moe glm4_moe_lite ", is_not_awq, is_packed_shared, "experts", "a packed shared expert",
     "the class needs a parameter 'weight' of a shared expert, which packed codes do not have",
     "keep shared experts in BF16 with `tessera quantize --exclude GLOB`, or use another scheme for them"},
    {VLLM | SGLANG, NULL, tsr_query_compressed_tensors, is_dynamic_fp8_expert, "experts",
     AN_EXPERT ", FP8 per tensor without a stored input scale",
     "the loader runs such experts only with a scale of the input",
     "use `tessera quantize --scheme fp8-channel`, or give the ranges of the inputs with --activations"},
    {SGLANG, NULL, has_latent_queries, is_static_fp8_latent, "input scale",
     "q_a_proj and kv_a_proj_with_mqa, FP8 per tensor with a stored input scale",
     "the class joins them and their input scales, and has room for one",
     "use `tessera quantize --scheme fp8-tensor --dialect modelopt --input-scale 1`, or leave out the input scales"},
    {SGLANG, NULL, tsr_query_compressed_tensors, is_int8_expert, "experts", AN_EXPERT ", int8 by rows",
     "the loader runs such experts on NPUs only", OTHER_SCHEME},
    {SGLANG, NULL, tsr_query_compressed_tensors, is_shifted_expert, "zero points", AN_EXPERT ", with zero points",
     "the loader does not support zero points of experts", "quantize without --zero-points"},
    {SGLANG, " mixtral ", NULL, is_pairs_of_int4, "experts", "an expert in int4 of w4afp8",
     "the class for this method builds each expert as linear layers, in FP8",
     "use `tessera quantize --scheme fp8-block`"},
    {SGLANG, " llama4_text ", is_text_model_alone, is_routed, "experts", "an expert of the text model alone",
     "Llama4ForCausalLM, the class of the text model alone, does not load experts and reports no error",
     "use another loader, or the whole Llama 4 with its vision tower"},
    {SGLANG, NULL, has_latent_queries, is_packed_latent, "weight_shape",
     "a packed q_a_proj or kv_a_proj_with_mqa of compressed-tensors",
     "the loader joins q_a_proj and kv_a_proj_with_mqa, and then fails at weight_shape",
     "keep q_a_proj and kv_a_proj_with_mqa in BF16 with `tessera quantize --exclude GLOB`"},

    /* qwen3_next.py: the class has four scales of each kind for in_proj_qkvz but loads only one, or stops. It builds
     * q, k and v unquantized, except in MIXED_PRECISION. */
    {SGLANG, " qwen3_next ", NULL, is_packed_linear_attention, "weight_shape", "packed linear attention",
     "the class needs a parameter 'weight' of linear attention, which packed codes do not have",
     "keep linear attention in BF16 with `tessera quantize --exclude '*.linear_attn.*'`"},
    {SGLANG, " qwen3_next ", is_modelopt, is_nvfp4_linear_attention, "kind", "linear attention in ModelOpt's NVFP4",
     "the class joins four layers but needs one global scale for them: it refuses a scale of inputs, and without one "
     "leaves three of the global scales uninitialized",
     KEEP_QUERIES},
    {SGLANG, " qwen3_next ", is_modelopt_of_one_algorithm, is_query_key_value, "kind", "q, k or v of ModelOpt",
     "for this dialect the class builds q, k and v unquantized", KEEP_QUERIES},
};

const tsr_class_rule *tsr_class_rules(size_t *count)
{
    *count = COUNT(kRules);
    return kRules;
}

static bool concerns(const tsr_class_rule *r, tsr_loader loader, const char *whole, const char *text)
{
    return (r->loaders >> loader & 1) != 0 &&
           (r->families == NULL || tsr_is_listed(r->families, whole) || tsr_is_listed(r->families, text));
}

/* Returns true if the row applies to a model of these two types, that of the whole model and that of its text part. */
static bool applies(const tsr_class_rule *r, tsr_loader loader, const char *whole, const char *text)
{
    for (const tsr_class_rule *before = kRules; before < r; before++) {
        if (before->layer == r->layer && before->when == r->when && concerns(before, loader, whole, text))
            return false;
    }
    return concerns(r, loader, whole, text);
}

bool tsr_class_rule_applies(const tsr_class_rule *r, tsr_loader loader, const char *model_type)
{
    return applies(r, loader, model_type, "");
}

static void check(const tsr_load_query *q, const tsr_class_rule *r)
{
    char model[64] = "";
    if (r->families != NULL)
        snprintf(model, sizeof model, " of '%.40s'", q->family);
    for (size_t i = 0; i < q->linears->count; i++) {
        const tsr_linear *const l = &q->linears->items[i];
        if (tsr_query_reads(q, l) && r->layer(q, l))
            tsr_query_note(q, true, l->tensor->name, r->rule, r->advice, "%s%s (%s): %s", r->what, model,
                           tsr_linear_is_quantized(l) ? l->weight->kind->title : "plain", r->why);
    }
}

void tsr_rule_classes(const tsr_load_query *q)
{
    for (const tsr_class_rule *r = kRules; r < kRules + COUNT(kRules); r++) {
        if (r->why != NULL && applies(r, q->loader, q->model, q->family) && (r->when == NULL || r->when(q)))
            check(q, r);
    }
}
