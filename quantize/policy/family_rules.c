/* The tables of the model families: a row for each family, with its rules. Sources: the layers that the official FP8
 * releases of a family keep in BF16, and the linear layers that vLLM and SGLang can quantize. */
#include "quantize/policy/policy_rules.h"

/* Rows that several families share. */
#define MLA_PROJECTIONS                                                                          \
    {"*.self_attn.q_proj.weight", TSR_QUANTIZE, "MLA query projection", false},                  \
        {"*.self_attn.q_a_proj.weight", TSR_QUANTIZE, "MLA query projection, down", false},      \
        {"*.self_attn.q_b_proj.weight", TSR_QUANTIZE, "MLA query projection, up", false},        \
        {"*.self_attn.kv_a_proj_with_mqa.weight", TSR_QUANTIZE, "MLA latent projection", false}, \
        {"*.self_attn.kv_b_proj.weight", TSR_QUANTIZE, "MLA key/value projection, up", false},   \
        {"*.self_attn.o_proj.weight", TSR_QUANTIZE, "attention output", false},                  \
    {                                                                                            \
        "*.self_attn.indexer.wq_b.weight", TSR_QUANTIZE, "sparse attention indexer", false       \
    }
#define LINEAR_ATTENTION                                                             \
    {"*.linear_attn.in_proj_qkv.weight", TSR_QUANTIZE, "linear attention", false},   \
        {"*.linear_attn.in_proj_z.weight", TSR_QUANTIZE, "linear attention", false}, \
    {                                                                                \
        "*.linear_attn.out_proj.weight", TSR_QUANTIZE, "linear attention", false     \
    }
#define FEED_FORWARD                                                 \
    {"*.mlp.*_proj.weight", TSR_QUANTIZE, "feed-forward", false},    \
    {                                                                \
        "*.mlp.experts.*_proj", TSR_QUANTIZE, "fused experts", false \
    }

/* The families: linear layers that their loaders run in FP8. */
static const tsr_rule kMla[] = {
    MLA_PROJECTIONS,
    {"*.self_attn.indexer.wk.weight", TSR_QUANTIZE, "sparse attention indexer", false},
    FEED_FORWARD,
};

static const tsr_rule kGqa[] = {
    {"*.self_attn.?_proj.weight", TSR_QUANTIZE, "attention", false},
    {"*.self_attn.qkv_proj.weight", TSR_QUANTIZE, "attention", false},
    FEED_FORWARD,
};

/* Full attention in some layers, linear attention (gated delta net) in the others. */
static const tsr_rule kLinearAttention[] = {
    {"*.linear_attn.in_proj_qkvz.weight", TSR_QUANTIZE, "linear attention", false},
    LINEAR_ATTENTION,
    {"*.self_attn.?_proj.weight", TSR_QUANTIZE, "attention", false},
    FEED_FORWARD,
};

static const tsr_rule kMixtral[] = {
    {"*.self_attn.?_proj.weight", TSR_QUANTIZE, "attention", false},
    {"*.block_sparse_moe.experts.*.w?.weight", TSR_QUANTIZE, "expert", false},
    {"*.mlp.experts.*_proj", TSR_QUANTIZE, "fused experts", false},
};

#define STACK_OF_GRANITE "a stack of experts: no format can store it (--experts split)"

/* Its experts are stacked as input_linear and output_linear. */
static const tsr_rule kGraniteMoe[] = {
    {"*.self_attn.?_proj.weight", TSR_QUANTIZE, "attention", false},
    {"*.block_sparse_moe.experts.*.*_proj.weight", TSR_QUANTIZE, "expert", false},
    {"*.block_sparse_moe.*put_linear.weight", TSR_KEEP, STACK_OF_GRANITE, true},
    {"*.shared_mlp.*", TSR_KEEP, "small compared with the experts (--include overrides)", false},
};

/* State-space layers beside attention: Bamba, Falcon-H1, Granite 4, Nemotron-H, Zamba 2. */
#define STATE_SPACE "state-space layer: engines divide this joined projection (--include overrides)"

static const tsr_rule kStateSpace[] = {
    {"*.mamba.in_proj.weight", TSR_KEEP, STATE_SPACE, false},
    {"*.mixer.in_proj.weight", TSR_KEEP, STATE_SPACE, false},
    {"*.mamba.out_proj.weight", TSR_QUANTIZE, "state-space layer", false},
    {"*.self_attn.?_proj.weight", TSR_QUANTIZE, "attention", false},
    {"*.feed_forward.*_proj.weight", TSR_QUANTIZE, "feed-forward", false},
    {"*.mixer.*_proj.weight", TSR_QUANTIZE, "attention, feed-forward or expert", false},
    {"*.block_sparse_moe.experts.*.*_proj.weight", TSR_QUANTIZE, "expert", false},
    {"*.block_sparse_moe.*put_linear.weight", TSR_KEEP, STACK_OF_GRANITE, true},
    {"*.shared_mlp.*put_linear.weight", TSR_QUANTIZE, "shared expert", false},
};

/* LFM2 and LFM3: attention and short convolutions, experts with the names of Mixtral. */
static const tsr_rule kLfm[] = {
    {"*.conv.*_proj.weight", TSR_KEEP, "short convolution: engines divide its joined projection (--include overrides)",
     false},
    {"*.self_attn.*_proj.weight", TSR_QUANTIZE, "attention", false},
    {"*.feed_forward.experts.*.w?.weight", TSR_QUANTIZE, "expert", false},
    {"*.feed_forward.w?.weight", TSR_QUANTIZE, "feed-forward", false},
};

/* Gemma 3n and Gemma 4: small tables and projections of each layer beside those of Llama. */
static const tsr_rule kGemmaPerLayer[] = {
    {"*per_layer_*", TSR_KEEP, "inputs of each layer (--include overrides)", false},
    {"*.laurel.*", TSR_KEEP, "low-rank residual (--include overrides)", false},
    {"*.altup.*", TSR_KEEP, "prediction of the residual (--include overrides)", false},
    {"*.self_attn.?_proj.weight", TSR_QUANTIZE, "attention", false},
    {"*.experts.*_proj", TSR_QUANTIZE, "fused experts", false},
    FEED_FORWARD,
};

/* Two attentions and two dense layers in each block, beside one set of experts. */
static const tsr_rule kLongcat[] = {
    {"*.self_attn.?.*_proj.weight", TSR_QUANTIZE, "attention", false},
    {"*.self_attn.?.kv_a_proj_with_mqa.weight", TSR_QUANTIZE, "MLA latent projection", false},
    {"*.mlps.?.*_proj.weight", TSR_QUANTIZE, "feed-forward", false},
    FEED_FORWARD,
};

/* Mistral Large 4 with the names of Mistral's own files. */
static const tsr_rule kMistralNative[] = {
    {"*.attention.indexers_proj.weight", TSR_KEEP, "indexer weights: loaders read them in BF16", false},
    {"*.attention.indexer.*", TSR_KEEP, "sparse attention indexer: loaders read it in BF16", false},
    {"*.attention.w*.weight", TSR_QUANTIZE, "attention", false},
    {"*.attention.o_proj.weight", TSR_QUANTIZE, "attention output", false},
    {"*.experts.*.w?.weight", TSR_QUANTIZE, "expert", false},
    {"*.shared_experts.w?.weight", TSR_QUANTIZE, "shared expert", false},
    {"*.shared_experts.*_proj.weight", TSR_QUANTIZE, "shared expert", false},
    {"*.feed_forward.w?.weight", TSR_QUANTIZE, "feed-forward", false},
    {"*.feed_forward.*_proj.weight", TSR_QUANTIZE, "feed-forward", false},
};

/* Attention with an additional gate; experts with projections before and after them. */
static const tsr_rule kGatedAttention[] = {
    {"*.self_attn.*_proj.weight", TSR_QUANTIZE, "attention", false},
    FEED_FORWARD,
};

/* Queries and keys pass a convolution within the joined projection; the router is a small network. */
static const tsr_rule kZaya[] = {
    {"*.self_attn.qkv_proj.*", TSR_KEEP, "projection with a convolution (--include overrides)", false},
    {"*.self_attn.o_proj.weight", TSR_QUANTIZE, "attention output", false},
    {"*.mlp.experts.*_proj", TSR_QUANTIZE, "fused experts", false},
};

/* Attention is a mixture of experts, too. */
static const tsr_rule kJetMoe[] = {
    {"*put_linear.weight", TSR_KEEP, STACK_OF_GRANITE, true},
    {"*.self_attention.kv_proj.weight", TSR_QUANTIZE, "attention", false},
};

/* Linear layers called c_fc and c_proj as in GPT-2, but stored [out, in]. */
static const tsr_rule kLinearLikeGpt2[] = {
    {"*.c_attn.weight", TSR_QUANTIZE, "attention", false},
    {"*.c_proj.weight", TSR_QUANTIZE, "attention output or feed-forward", false},
    {"*.c_fc*.weight", TSR_QUANTIZE, "feed-forward", false},
    {"*.attention.*_proj.weight", TSR_QUANTIZE, "attention", false},
    {"*.self_attn.?_proj.weight", TSR_QUANTIZE, "attention", false},
};

/* ModernBERT: joined projections, Wqkv of attention and Wi of the gated feed-forward. */
static const tsr_rule kModernBert[] = {
    {"*.attn.Wqkv.weight", TSR_QUANTIZE, "attention", false},
    {"*.attn.Wo.weight", TSR_QUANTIZE, "attention output", false},
    {"*.attn.?_proj.weight", TSR_QUANTIZE, "attention", false},
    {"*.mlp.W?.weight", TSR_QUANTIZE, "feed-forward", false},
    {"head.dense.weight", TSR_KEEP, "prediction head (--include overrides)", false},
};

static const tsr_rule kNomicBert[] = {
    {"*.attn.Wqkv.weight", TSR_QUANTIZE, "attention", false},
    {"*.attn.out_proj.weight", TSR_QUANTIZE, "attention output", false},
    {"*.mlp.fc*.weight", TSR_QUANTIZE, "feed-forward", false},
    {"cls.*", TSR_KEEP, "prediction head (--include overrides)", false},
};

static const tsr_rule kWhisper[] = {
    {"*.self_attn.*_proj.weight", TSR_QUANTIZE, "attention", false},
    {"*.encoder_attn.*_proj.weight", TSR_QUANTIZE, "attention", false},
    {"*.fc?.weight", TSR_QUANTIZE, "feed-forward", false},
};

static const tsr_rule kT5[] = {
    {"*.DenseReluDense.wo.weight", TSR_KEEP, "transformers runs it in F32 (--include overrides)", false},
    {"*.SelfAttention.?.weight", TSR_QUANTIZE, "attention", false},
    {"*.EncDecAttention.?.weight", TSR_QUANTIZE, "attention", false},
    {"*.DenseReluDense.wi*.weight", TSR_QUANTIZE, "feed-forward", false},
};

/* Kimi Delta Attention: low-bit releases quantize only the routed experts. */
static const tsr_rule kKimiLinear[] = {
    {"*.block_sparse_moe.experts.*.w?.weight", TSR_QUANTIZE, "expert", false},
    {"*.self_attn.*", TSR_KEEP, "attention: releases of this family keep it (--include overrides)", false},
    {"*.shared_experts.*", TSR_KEEP, "shared expert: releases of this family keep it (--include overrides)", false},
    {"*_proj.weight", TSR_KEEP, "releases of this family keep it (--include overrides)", false},
};

#define IN_OUT "experts stored [experts, in, out]: loaders would read the scales transposed (--experts split)"

static const tsr_rule kQwen3VlMoe[] = {
    {"*.mlp.experts.*_proj", TSR_KEEP, IN_OUT, true},
    {"*.self_attn.?_proj.weight", TSR_QUANTIZE, "attention", false},
    {"*.mlp.*_proj.weight", TSR_QUANTIZE, "feed-forward", false},
};

static const tsr_rule kLlama4[] = {
    {"*.feed_forward.experts.*_proj", TSR_KEEP, IN_OUT, true},
    {"*.feed_forward.experts.*.*_proj.weight", TSR_QUANTIZE, "expert", false},
    {"*.feed_forward.*", TSR_KEEP, "small compared with the experts (--include overrides)", false},
    {"*.self_attn.*", TSR_KEEP, "attention: releases of this family keep it (--include overrides)", false},
};

static const tsr_rule kGptOss[] = {
    {"*.mlp.experts.*_proj", TSR_KEEP, IN_OUT, true},
    {"*.mlp.experts.*.*_proj.weight", TSR_QUANTIZE, "expert", false},
    {"*.self_attn.*", TSR_KEEP, "attention: releases of this family keep it (--include overrides)", false},
};

/* DeepSeek-V4 and V4.1 with their own names. Releases have the experts in FP4, and all layers listed here in FP8. */
#define V4_KEEPS                                                                                               \
    {"embed.weight", TSR_KEEP_EMBEDDING, "embedding", false}, {"head.weight", TSR_KEEP, "output head", false}, \
        {"*.engram.embed.weight", TSR_KEEP_EMBEDDING, "n-gram table", false},                                  \
        {"*.compressor.*", TSR_KEEP, "compressor: loaders read it in BF16", false},                            \
        {"*.indexer.wk.weight", TSR_KEEP, "indexer: loaders read it in BF16", false},                          \
    {                                                                                                          \
        "aligner.*", TSR_KEEP, "vision tower: engines run it unquantized", false                               \
    }

static const tsr_rule kDeepseekV4[] = {
    V4_KEEPS,
    {"*.attn.w?_?.weight", TSR_QUANTIZE, "attention", false},
    {"*.attn.wkv.weight", TSR_QUANTIZE, "attention", false},
    {"*.attn.indexer.wq_b.weight", TSR_QUANTIZE, "sparse attention indexer", false},
    {"*.ffn.experts.*.w?.weight", TSR_QUANTIZE, "expert", false},
    {"*.ffn.shared_experts.w?.weight", TSR_QUANTIZE, "shared expert", false},
    {"*.engram.wkv.weight", TSR_QUANTIZE, "n-gram memory", false},
    {"mtp.*.?_proj.weight", TSR_QUANTIZE, "projection of an MTP stage", false},
};

/* Families that loaders support but that have no official low-bit release: the rules of their parents, and the layers
 * that vLLM's classes run unquantized. */
#define HYPER_CONNECTION "hyper-connection"
#define ENGINES_BF16     "engines run it in BF16 (--include overrides)"

/* Jamba: vLLM builds Mamba's first kind of state-space layer without a quantization. */
static const tsr_rule kJamba[] = {
    {"*.mamba.*", TSR_KEEP, "state-space layer: " ENGINES_BF16, false},
    {"*.self_attn.?_proj.weight", TSR_QUANTIZE, "attention", false},
    {"*.feed_forward.*_proj.weight", TSR_QUANTIZE, "feed-forward", false},
};

/* MiMo-V2: its releases join q, k and v in as many parts as they had ranks. */
static const tsr_rule kMimoV2[] = {
    {"*.self_attn.qkv_proj.weight", TSR_KEEP, "q, k and v joined in parts, which loaders reorder (--include overrides)",
     false},
    {"*.self_attn.?_proj.weight", TSR_QUANTIZE, "attention", false},
    FEED_FORWARD,
};

static const tsr_rule kHyV4[] = {
    {"*.hc_*", TSR_KEEP, HYPER_CONNECTION, false},
    {"*.linear_gate.*", TSR_KEEP, "gate of the layer's output", false},
    MLA_PROJECTIONS,
    {"*.self_attn.indexer.wk.weight", TSR_KEEP, "indexer: loaders read it in BF16", false},
    FEED_FORWARD,
};

#define QWEN4_KEEPS                                                                                           \
    {"*.ple.*", TSR_KEEP, "n-gram memory", false}, {"*hyper_connection*", TSR_KEEP, HYPER_CONNECTION, false}, \
    {                                                                                                         \
        "*.self_attn.indexer*", TSR_KEEP, "sparse attention indexer: " ENGINES_BF16, false                    \
    }

static const tsr_rule kQwen4[] = {
    QWEN4_KEEPS,
    LINEAR_ATTENTION,
    {"*.self_attn.?_proj.weight", TSR_QUANTIZE, "attention", false},
    FEED_FORWARD,
};

/* vLLM's class runs both kinds of attention, latent and linear, in BF16, whatever config.json says. */
static const tsr_rule kGlm5Next[] = {
    {"*.self_attn.*", TSR_KEEP, "attention: " ENGINES_BF16, false},
    {"*.hc_*", TSR_KEEP, HYPER_CONNECTION, false},
    {"*.mhc*", TSR_KEEP, HYPER_CONNECTION, false},
    FEED_FORWARD,
};

static const tsr_rule kStep5[] = {
    {"*.self_attn.*", TSR_KEEP, "attention: " ENGINES_BF16, false},
    {"*.share_expert.*", TSR_KEEP, "shared expert: " ENGINES_BF16, false},
    {"*.moe.experts.*.*_proj.weight", TSR_QUANTIZE, "expert", false},
    {"*.moe.*_proj.weight", TSR_KEEP, "a stack of experts: no format can store it", true},
    {"*.mlp.*_proj.weight", TSR_KEEP, "dense layer: " ENGINES_BF16, false},
};

/* Its class fuses q, k and v with the indexer's index_q_proj and index_k_proj, so all would need the same format. */
static const tsr_rule kMinimaxM3[] = {
    {"*.self_attn.*", TSR_KEEP, "attention: joined with the indexer's projections (--include overrides)", false},
    {"*.block_sparse_moe.experts.*.w?.weight", TSR_QUANTIZE, "expert", false},
    {"*.block_sparse_moe.shared_experts.*_proj.weight", TSR_QUANTIZE, "shared expert", false},
    FEED_FORWARD,
};

static const tsr_rule kConv1d[] = {
    {"*", TSR_KEEP, "its linear layers are stored [in, out] (Conv1D): loaders would read the scales transposed", true},
};

/* I-BERT quantizes its weights itself while it runs. */
static const tsr_rule kOwnQuantization[] = {
    {"*", TSR_KEEP, "its class quantizes weights itself and reads no codes", true},
};

static const tsr_rule kBert[] = {
    {"*.attention.self.query.weight", TSR_QUANTIZE, "attention", false},
    {"*.attention.self.key.weight", TSR_QUANTIZE, "attention", false},
    {"*.attention.self.value.weight", TSR_QUANTIZE, "attention", false},
    {"*.dense.weight", TSR_QUANTIZE, "dense layer", false},
};

/* Additional layers that 4-bit releases keep. */
#define KEPT_IN_4_BITS "4-bit releases of this family keep it (--include overrides)"

/* DeepSeek-R1 and V3 in FP4: attention stays unquantized. */
static const tsr_rule kMlaFourBits[] = {
    FEED_FORWARD,
    {"*.self_attn.*", TSR_KEEP, "attention: " KEPT_IN_4_BITS, false},
};

/* Kimi K2 Thinking, K2.5, K2.6: only the routed experts are quantized. */
static const tsr_rule kKimiK2FourBits[] = {
    {"*.mlp.experts.*.*_proj.weight", TSR_QUANTIZE, "expert", false},
    {"*.mlp.experts.*_proj", TSR_QUANTIZE, "fused experts", false},
    {"*.self_attn.*", TSR_KEEP, "attention: " KEPT_IN_4_BITS, false},
    {"*.shared_experts.*", TSR_KEEP, "shared expert: " KEPT_IN_4_BITS, false},
    {"*.mlp.*_proj.weight", TSR_KEEP, "dense layer: " KEPT_IN_4_BITS, false},
};

/* Qwen3.5 in NVFP4: in a mixture of experts only the routed experts are quantized; both kinds of attention lose too
 * much. */
static const tsr_rule kQwen35MoeFourBits[] = {
    {"mtp.*", TSR_KEEP, "MTP layer: " KEPT_IN_4_BITS, false},
    {"*.mtp.*", TSR_KEEP, "MTP layer: " KEPT_IN_4_BITS, false},
    {"*.mlp.experts.*.*_proj.weight", TSR_QUANTIZE, "expert", false},
    {"*.mlp.experts.*_proj", TSR_QUANTIZE, "fused experts", false},
    {"*.linear_attn.*", TSR_KEEP, "linear attention: " KEPT_IN_4_BITS, false},
    {"*.self_attn.*", TSR_KEEP, "attention: " KEPT_IN_4_BITS, false},
    {"*.shared_expert.*", TSR_KEEP, "shared expert: " KEPT_IN_4_BITS, false},
};

static const tsr_rule kQwen35FourBits[] = {
    {"mtp.*", TSR_KEEP, "MTP layer: " KEPT_IN_4_BITS, false},
    {"*.mtp.*", TSR_KEEP, "MTP layer: " KEPT_IN_4_BITS, false},
    {"*.linear_attn.*", TSR_KEEP, "linear attention: " KEPT_IN_4_BITS, false},
    {"*.self_attn.*", TSR_KEEP, "attention: " KEPT_IN_4_BITS, false},
    {"*.mlp.*_proj.weight", TSR_QUANTIZE, "feed-forward", false},
};

static const tsr_rule kQwen4FourBits[] = {
    QWEN4_KEEPS,
    {"mtp.*", TSR_KEEP, "MTP layer: kept as in Qwen3.5's 4-bit releases (--include overrides)", false},
    {"*.mtp.*", TSR_KEEP, "MTP layer: kept as in Qwen3.5's 4-bit releases (--include overrides)", false},
    {"*.mlp.experts.*.*_proj.weight", TSR_QUANTIZE, "expert", false},
    {"*.mlp.experts.*_proj", TSR_QUANTIZE, "fused experts", false},
    {"*.linear_attn.*", TSR_KEEP, "linear attention: kept as in Qwen3.5's 4-bit releases (--include overrides)", false},
    {"*.self_attn.*", TSR_KEEP, "attention: kept as in Qwen3.5's 4-bit releases (--include overrides)", false},
    {"*.shared_expert.*", TSR_KEEP, "shared expert: kept as in Qwen3.5's 4-bit releases (--include overrides)", false},
};

static const tsr_rule kHyV4FourBits[] = {
    {"*.hc_*", TSR_KEEP, HYPER_CONNECTION, false},
    {"*.self_attn.*", TSR_KEEP, "attention: kept as in DeepSeek's 4-bit releases (--include overrides)", false},
    {"*.linear_gate.*", TSR_KEEP, "gate of the layer's output", false},
    FEED_FORWARD,
};

static const tsr_rule kDeepseekV4FourBits[] = {
    V4_KEEPS,
    {"*.ffn.experts.*.w?.weight", TSR_QUANTIZE, "expert", false},
    {"*.attn.*", TSR_KEEP, "attention: " KEPT_IN_4_BITS, false},
    {"*.ffn.shared_experts.*", TSR_KEEP, "shared expert: " KEPT_IN_4_BITS, false},
    {"mtp.*", TSR_KEEP, "MTP stage: " KEPT_IN_4_BITS, false},
};

#define TABLE(table)                        \
    {                                       \
        table, sizeof table / sizeof *table \
    }
#define RULES(table)            TABLE(table), TABLE(table), false
#define RULES_8_4(eight, four)  TABLE(eight), TABLE(four), false
#define UNSEEN(table)           TABLE(table), TABLE(table), true
#define UNSEEN_8_4(eight, four) TABLE(eight), TABLE(four), true

/* A multimodal wrapper is listed under its own name if config.json states that name. */
static const tsr_policy_family kFamilies[] = {
    {" deepseek_v2 deepseek_v3 deepseek_v32 glm_moe_dsa glm4_moe_lite mistral4 minicpm3 youtu"
     " sarvam_mla ",
     RULES_8_4(kMla, kMlaFourBits)},
    {" deepseek_v4 deepseek_v4_text deepseek_v41 deepseek_v41_text ", RULES_8_4(kDeepseekV4, kDeepseekV4FourBits)},
    {" kimi_k2 kimi_k25 ", RULES_8_4(kMla, kKimiK2FourBits)},
    {" kimi_k3 kimi_linear ", RULES(kKimiLinear)},
    {" mistral_large4 mistral_large4_text ", RULES(kMistralNative)},
    {" longcat_flash ", RULES(kLongcat)},
    {" llama mistral mistral3 ministral qwen2 qwen2_moe qwen2_vl qwen2_5_vl qwen3 qwen3_moe qwen3_vl"
     " qwen3_vl_text gemma gemma2 gemma3 gemma3_text glm4 glm4_moe glm4v glm4v_moe ernie4_5"
     " ernie4_5_moe granite olmo2 olmo3 olmoe cohere cohere2 smollm3 phi3 seed_oss hunyuan_v1_dense"
     " hunyuan_v1_moe apertus apertus1p5_text arcee cohere2_moe cwm diffllama dots1 emu3 exaone4"
     " exaone_moe flex_olmo glm glm4v_text glm_ocr_text glm_image_text granite_swa helium"
     " hunyuan_vl_text hy_v3 hyperclovax internlm3 iquestcoder jais2 mellum mimo_v2_flash ministral3"
     " nemotron olmo qwen2_vl_text qwen2_5_vl_text solar_open stablelm phi4_multimodal ",
     RULES(kGqa)},
    {" llama4 llama4_text ", RULES(kLlama4)},
    {" qwen3_vl_moe qwen3_vl_moe_text ", RULES(kQwen3VlMoe)},
    {" qwen3_next ", RULES(kLinearAttention)},
    {" qwen3_5 qwen3_5_text ", RULES_8_4(kLinearAttention, kQwen35FourBits)},
    {" qwen3_5_moe qwen3_5_moe_text ", RULES_8_4(kLinearAttention, kQwen35MoeFourBits)},
    {" gemma3n gemma3n_text gemma4 gemma4_text gemma4_unified gemma4_unified_text ", RULES(kGemmaPerLayer)},
    {" gpt_oss ", RULES(kGptOss)},
    {" gpt2 openai-gpt decision_transformer imagegpt ", RULES(kConv1d)},
    {" gpt_bigcode gpt_neo starcoder2 exaone ", RULES(kLinearLikeGpt2)},
    {" granitemoe granitemoeshared ", RULES(kGraniteMoe)},
    {" granitemoehybrid bamba falcon_h1 nemotron_h ", RULES(kStateSpace)},
    {" jamba ", RULES(kJamba)},
    {" mimo_v2 ", RULES(kMimoV2)},
    {" phimoe mixtral minimax_m2 ", RULES(kMixtral)},
    {" lfm2 lfm2_moe lfm3 ", RULES(kLfm)},
    {" afmoe laguna muse_spark muse_spark_text muse_glimmer muse_glimmer_text ", RULES(kGatedAttention)},
    {" zaya ", RULES(kZaya)},
    {" jetmoe ", RULES(kJetMoe)},
    {" minimax_m3 minimax_m3_text minimax_m3_vl ", UNSEEN(kMinimaxM3)},
    {" hy_v4 ", UNSEEN_8_4(kHyV4, kHyV4FourBits)},
    {" qwen4_exp qwen4_exp_text ", UNSEEN_8_4(kQwen4, kQwen4FourBits)},
    {" glm5_next glm5_next_text ", UNSEEN(kGlm5Next)},
    {" step5 step5_text ", UNSEEN(kStep5)},
    {" step3p7 ", RULES(kStep5)},
    {" bert camembert electra roberta xlm-roberta ", RULES(kBert)},
    {" modernbert modernbert-decoder ", RULES(kModernBert)},
    {" nomic_bert ", RULES(kNomicBert)},
    {" ibert ", RULES(kOwnQuantization)},
    {" whisper ", RULES(kWhisper)},
    {" t5 mt5 umt5 ", RULES(kT5)},
};

const tsr_policy_family *tsr_families(size_t *count)
{
    *count = sizeof kFamilies / sizeof *kFamilies;
    return kFamilies;
}
