/* Lists the families of a forward pass: what their layers have in place of Llama's, and the names of their weights. */
#include "verify/forward/forward_parts.h"

#include <stdio.h>
#include <string.h>

static const tsr_norm_names kBefore = {"input_layernorm", NULL, "post_attention_layernorm", NULL},
                            kAfter = {NULL, "post_attention_layernorm", NULL, "post_feedforward_layernorm"},
                            kGemma = {"input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
                                      "post_feedforward_layernorm"},
                            kOne = {"input_layernorm", NULL, NULL, NULL},
                            kShort = {"attn_norm", NULL, "ffn_norm", NULL}, kMixer = {"norm", NULL, "norm", NULL},
                            kGlm = {"input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm",
                                    "post_mlp_layernorm"};

static const tsr_mlp_names kGated = {"gate_proj", "up_proj", "down_proj", "gate_up_proj"},
                           kUngated = {NULL, "up_proj", "down_proj", NULL}, kW = {"w1", "w3", "w2", NULL},
                           kLinears = {NULL, NULL, "output_linear", "input_linear"};

#define BIAS   "e_score_correction_bias"
#define STACKS "mlp.experts.gate_up_proj", "mlp.experts.down_proj"

static const tsr_moe_names kMoe = {.router = "mlp.gate",
                                   .bias = "mlp.gate." BIAS,
                                   .experts = "mlp.experts",
                                   .shared = "mlp.shared_experts",
                                   .expert = &kGated,
                                   .of_shared = &kGated,
                                   .stacks = {STACKS}};
static const tsr_moe_names kV4 = {.router = "ffn.gate",
                                  .bias = "ffn.gate.bias",
                                  .table = "ffn.gate.tid2eid",
                                  .experts = "ffn.experts",
                                  .shared = "ffn.shared_experts",
                                  .expert = &kW,
                                  .of_shared = &kW};
static const tsr_moe_names kMixtral = {
    .router = "block_sparse_moe.gate", .experts = "block_sparse_moe.experts", .expert = &kW};
static const tsr_moe_names kMiniMax = {.router = "block_sparse_moe.gate",
                                       .bias = "block_sparse_moe." BIAS,
                                       .experts = "block_sparse_moe.experts",
                                       .expert = &kW};
static const tsr_moe_names kMiniMax3 = {.router = "block_sparse_moe.gate",
                                        .bias = "block_sparse_moe." BIAS,
                                        .experts = "block_sparse_moe.experts",
                                        .shared = "block_sparse_moe.shared_experts",
                                        .expert = &kW,
                                        .of_shared = &kGated};
static const tsr_moe_names kQwen = {.router = "mlp.gate",
                                    .experts = "mlp.experts",
                                    .shared = "mlp.shared_expert",
                                    .shared_gate = "mlp.shared_expert_gate",
                                    .expert = &kGated,
                                    .of_shared = &kGated,
                                    .stacks = {STACKS}};
static const tsr_moe_names kErnie = {.router = "mlp.gate",
                                     .bias = "mlp.moe_statics." BIAS,
                                     .experts = "mlp.experts",
                                     .shared = "mlp.shared_experts",
                                     .expert = &kGated,
                                     .of_shared = &kGated,
                                     .stacks = {STACKS}};
static const tsr_moe_names kExaone = {.router = "mlp.gate",
                                      .bias = "mlp." BIAS,
                                      .experts = "mlp.experts",
                                      .shared = "mlp.shared_experts",
                                      .expert = &kGated,
                                      .of_shared = &kGated,
                                      .stacks = {STACKS}};
static const tsr_moe_names kHunyuan = {.router = "mlp.gate.wg",
                                       .experts = "mlp.experts",
                                       .shared = "mlp.shared_mlp",
                                       .expert = &kGated,
                                       .of_shared = &kGated,
                                       .stacks = {STACKS}};
static const tsr_moe_names kHunyuan3 = {.router = "mlp.router.gate",
                                        .bias = "mlp.expert_bias",
                                        .experts = "mlp.experts",
                                        .shared = "mlp.shared_mlp",
                                        .expert = &kGated,
                                        .of_shared = &kGated,
                                        .stacks = {STACKS}};
static const tsr_moe_names kGranite = {.router = "block_sparse_moe.router.layer",
                                       .experts = "block_sparse_moe.experts",
                                       .shared = "shared_mlp",
                                       .dense = "shared_mlp",
                                       .expert = &kGated,
                                       .of_shared = &kLinears,
                                       .stacks = {"block_sparse_moe.input_linear", "block_sparse_moe.output_linear"}};
static const tsr_moe_names kKimi = {.router = "block_sparse_moe.gate",
                                    .bias = "block_sparse_moe.gate." BIAS,
                                    .experts = "block_sparse_moe.experts",
                                    .shared = "block_sparse_moe.shared_experts",
                                    .expert = &kW,
                                    .of_shared = &kGated};
static const tsr_moe_names kGemma4 = {.router = "router.proj",
                                      .router_scale = "router.scale",
                                      .expert_scale = "router.per_expert_scale",
                                      .experts = "experts",
                                      .expert = &kGated,
                                      .stacks = {"experts.gate_up_proj", "experts.down_proj"}};
static const tsr_moe_names kGptOss = {
    .router = "mlp.router", .experts = "mlp.experts", .expert = &kGated, .stacks = {STACKS}, .alternating = true};

static const tsr_moe_names kNemotron = {.router = "mixer.gate",
                                        .bias = "mixer.gate." BIAS,
                                        .experts = "mixer.experts",
                                        .shared = "mixer.shared_experts",
                                        .dense = "mixer",
                                        .expert = &kUngated,
                                        .of_shared = &kUngated};

enum {
    GEMMA = TSR_GAIN_FROM_ONE | TSR_SOFT_CAPS | TSR_SCALED_EMBEDDING,
    GEMMA4 = TSR_SOFT_CAPS | TSR_SCALED_EMBEDDING | TSR_LOCAL_ROPE | TSR_NORMALIZED | TSR_GLOBAL_HEADS |
             TSR_VALUE_NORM | TSR_LAYER_SCALAR,
    COHERE = TSR_CENTERED | TSR_PARALLEL | TSR_ADJACENT_ROPE,
    MIMO = TSR_SIGMOID | TSR_PARTIAL_ROPE | TSR_LOCAL_ROPE | TSR_SINKS | TSR_WINDOW_HEADS,
    MINIMAX3 = TSR_GAIN_FROM_ONE | TSR_NORMALIZED | TSR_SIGMOID | TSR_PARTIAL_ROPE | TSR_CLAMPED,
    QWEN_NEXT = TSR_GAIN_FROM_ONE | TSR_PARTIAL_ROPE | TSR_OUTPUT_GATE,
};

static const tsr_family_row kFamilies[] = {
    {"llama", 0, TSR_WINDOW_UNKNOWN, &kBefore, &kGated, &kMoe, 0, 0},
    {"mistral", 0, TSR_WINDOW_ALL, &kBefore, &kGated, &kMoe, 0, 0},
    {"mixtral", TSR_NORMALIZED, TSR_WINDOW_ALL, &kBefore, &kGated, &kMixtral, 0, 0},
    {"qwen2", 0, TSR_WINDOW_LATER, &kBefore, &kGated, &kMoe, 0, 0},
    {"qwen2_moe", 0, TSR_WINDOW_LATER, &kBefore, &kGated, &kQwen, 0, 0},
    {"qwen3", 0, TSR_WINDOW_LATER, &kBefore, &kGated, &kMoe, 0, 0},
    {"qwen3_moe", 0, TSR_WINDOW_LATER, &kBefore, &kGated, &kMoe, 0, 0},
    {"deepseek_v2", TSR_LATENT, TSR_WINDOW_UNKNOWN, &kBefore, &kGated, &kMoe, 0, 0},
    {"deepseek_v3", TSR_LATENT | TSR_SIGMOID, TSR_WINDOW_UNKNOWN, &kBefore, &kGated, &kMoe, 0, 0},
    {"deepseek_v32", TSR_LATENT | TSR_SIGMOID, TSR_INDEXED_ALL, &kBefore, &kGated, &kMoe, 0, 0},
    {"deepseek_v4", TSR_STREAMS, TSR_COMPRESSED_LISTED, &kShort, &kW, &kV4, 0, 0},
    {"glm4_moe_lite", TSR_LATENT | TSR_SIGMOID, TSR_WINDOW_UNKNOWN, &kBefore, &kGated, &kMoe, 0, 0},
    {"glm_moe_dsa", TSR_LATENT | TSR_SIGMOID | TSR_ADJACENT_ROPE | TSR_SHARED_CHOICE, TSR_INDEXED_ALL, &kBefore,
     &kGated, &kMoe, 0, 0},
    {"kimi_k2", TSR_LATENT | TSR_SIGMOID, TSR_WINDOW_UNKNOWN, &kBefore, &kGated, &kMoe, 0, 0},
    {"mistral4", TSR_LATENT | TSR_PAIRED_GROUPS | TSR_LONG_QUERIES, TSR_WINDOW_UNKNOWN, &kBefore, &kGated, &kMoe, 0, 0},
    {"sarvam_mla", TSR_LATENT | TSR_SIGMOID, TSR_WINDOW_UNKNOWN, &kBefore, &kGated, &kMoe, 0, 0},
    {"youtu", TSR_LATENT, TSR_WINDOW_UNKNOWN, &kBefore, &kGated, &kMoe, 0, 0},
    {"glm4_moe", TSR_SIGMOID | TSR_PARTIAL_ROPE, TSR_WINDOW_UNKNOWN, &kBefore, &kGated, &kMoe, 0, 0.5},
    {"gemma2", GEMMA, TSR_WINDOW_EVEN, &kGemma, &kGated, &kMoe, 0, 0},
    {"gemma3_text", GEMMA | TSR_LOCAL_ROPE, TSR_WINDOW_PATTERN, &kGemma, &kGated, &kMoe, 1e6, 0},
    {"gemma4_text", GEMMA4, TSR_WINDOW_LISTED, &kGemma, &kGated, &kGemma4, 0, 0},
    {"gpt_oss", TSR_NORMALIZED | TSR_CLAMPED | TSR_SINKS, TSR_WINDOW_EVEN, &kBefore, &kGated, &kGptOss, 150000, 0},
    {"minimax_m2", TSR_NORMALIZED | TSR_SIGMOID | TSR_PARTIAL_ROPE | TSR_WIDE_NORMS, TSR_WINDOW_UNKNOWN, &kBefore,
     &kGated, &kMiniMax, 5e6, 0},
    {"minimax_m3_vl", MINIMAX3, TSR_INDEXED_LISTED, &kBefore, &kGated, &kMiniMax3, 5e6, 0},
    {"minimax_m3_vl_text", MINIMAX3, TSR_INDEXED_LISTED, &kBefore, &kGated, &kMoe, 5e6, 0},
    {"mimo_v2_flash", MIMO, TSR_WINDOW_LISTED, &kBefore, &kGated, &kMoe, 5e6, 0.334},
    {"seed_oss", 0, TSR_WINDOW_UNKNOWN, &kBefore, &kGated, &kMoe, 0, 0},
    {"internlm3", 0, TSR_WINDOW_UNKNOWN, &kBefore, &kGated, &kMoe, 0, 0},
    {"iquestcoder", 0, TSR_WINDOW_UNKNOWN, &kBefore, &kGated, &kMoe, 0, 0},
    {"ministral", 0, TSR_WINDOW_ALL, &kBefore, &kGated, &kMoe, 0, 0},
    {"ministral3", TSR_LONG_QUERIES, TSR_WINDOW_ALL, &kBefore, &kGated, &kMoe, 0, 0},
    {"arcee", 0, TSR_WINDOW_UNKNOWN, &kBefore, &kUngated, &kMoe, 0, 0},
    {"smollm3", TSR_LISTED_ROPE, TSR_WINDOW_LISTED, &kBefore, &kGated, &kMoe, 2e6, 0},
    {"helium", TSR_ADJACENT_ROPE, TSR_WINDOW_UNKNOWN, &kBefore, &kGated, &kMoe, 100000, 0},
    {"ernie4_5", TSR_ADJACENT_ROPE, TSR_WINDOW_UNKNOWN, &kBefore, &kGated, &kMoe, 500000, 0},
    {"ernie4_5_moe", TSR_ADJACENT_ROPE | TSR_NORMALIZED, TSR_WINDOW_UNKNOWN, &kBefore, &kGated, &kErnie, 500000, 0},
    {"phi3", TSR_PARTIAL_ROPE, TSR_WINDOW_ALL, &kBefore, &kGated, &kMoe, 0, 0},
    {"glm", TSR_ADJACENT_ROPE | TSR_PARTIAL_ROPE, TSR_WINDOW_UNKNOWN, &kBefore, &kGated, &kMoe, 0, 0.5},
    {"glm4", TSR_ADJACENT_ROPE | TSR_PARTIAL_ROPE, TSR_WINDOW_UNKNOWN, &kGlm, &kGated, &kMoe, 0, 0.5},
    {"cohere", COHERE, TSR_WINDOW_UNKNOWN, &kOne, &kGated, &kMoe, 0, 0},
    {"cohere2", COHERE | TSR_WINDOW_ROPE, TSR_WINDOW_LISTED, &kOne, &kGated, &kMoe, 0, 0},
    {"olmo2", TSR_WIDE_NORMS, TSR_WINDOW_UNKNOWN, &kAfter, &kGated, &kMoe, 0, 0},
    {"olmo3", TSR_WIDE_NORMS | TSR_LOCAL_PLAIN, TSR_WINDOW_LISTED, &kAfter, &kGated, &kMoe, 500000, 0},
    {"olmoe", TSR_WIDE_NORMS, TSR_WINDOW_UNKNOWN, &kBefore, &kGated, &kMoe, 0, 0},
    {"flex_olmo", TSR_WIDE_NORMS, TSR_WINDOW_UNKNOWN, &kAfter, &kGated, &kMoe, 500000, 0},
    {"exaone4", TSR_WINDOW_ROPE, TSR_WINDOW_LISTED, &kAfter, &kGated, &kMoe, 0, 0},
    {"exaone_moe", TSR_WINDOW_ROPE | TSR_SIGMOID, TSR_WINDOW_LISTED, &kBefore, &kGated, &kExaone, 0, 0},
    {"hunyuan_v1_dense", TSR_LATE_NORMS | TSR_ALPHA_ROPE, TSR_WINDOW_UNKNOWN, &kBefore, &kGated, &kHunyuan, 0, 0},
    {"hunyuan_v1_moe", TSR_LATE_NORMS | TSR_ALPHA_ROPE | TSR_NORMALIZED, TSR_WINDOW_UNKNOWN, &kBefore, &kGated,
     &kHunyuan, 0, 0},
    {"hy_v3", TSR_SIGMOID | TSR_NORMALIZED, TSR_WINDOW_UNKNOWN, &kBefore, &kGated, &kHunyuan3, 11158840, 0},
    {"dots1", TSR_SIGMOID, TSR_WINDOW_FROM, &kBefore, &kGated, &kMoe, 0, 0},
    {"solar_open", TSR_SIGMOID | TSR_PARTIAL_ROPE, TSR_WINDOW_UNKNOWN, &kBefore, &kGated, &kMoe, 1e6, 0},
    {"mellum", TSR_LOCAL_ROPE, TSR_WINDOW_LISTED, &kBefore, &kGated, &kMoe, 500000, 0},
    {"granite", TSR_MULTIPLIERS, TSR_WINDOW_UNKNOWN, &kBefore, &kGated, &kMoe, 0, 0},
    {"granitemoe", TSR_MULTIPLIERS | TSR_NORMALIZED, TSR_WINDOW_UNKNOWN, &kBefore, &kLinears, &kGranite, 0, 0},
    {"granitemoeshared", TSR_MULTIPLIERS | TSR_NORMALIZED, TSR_WINDOW_UNKNOWN, &kBefore, &kLinears, &kGranite, 0, 0},
    {"qwen3_next", QWEN_NEXT, TSR_DELTA_PATTERN, &kBefore, &kGated, &kQwen, 0, 0.25},
    {"qwen3_5_text", QWEN_NEXT, TSR_DELTA_PATTERN, &kBefore, &kGated, &kMoe, 0, 0.25},
    {"qwen3_5_moe_text", QWEN_NEXT | TSR_NORMALIZED, TSR_DELTA_PATTERN, &kBefore, &kGated, &kQwen, 0, 0.25},
    {"granitemoehybrid", TSR_MULTIPLIERS | TSR_NORMALIZED | TSR_STATED_ROPE, TSR_SCAN_LISTED, &kBefore, &kLinears,
     &kGranite, 0, 0},
    {"nemotron_h", TSR_ONE_BLOCK | TSR_STATED_ROPE | TSR_SIGMOID, TSR_BLOCKS_LISTED, &kMixer, &kUngated, &kNemotron, 0,
     0},
    {"kimi_linear", TSR_LATENT | TSR_STATED_ROPE | TSR_SIGMOID | TSR_NORMALIZED, TSR_KIMI_LISTED, &kBefore, &kGated,
     &kKimi, 0, 0},
    {0},
};

const tsr_family_row *tsr_forward_family(const char *type)
{
    const tsr_family_row *row = kFamilies;
    while (row->type != NULL && (type == NULL || strcmp(type, row->type) != 0))
        row++;
    return row->type == NULL ? NULL : row;
}

const char *tsr_forward_families(char *text, size_t size)
{
    size_t used = 0;
    for (const tsr_family_row *row = kFamilies; row->type != NULL && used < size; row++)
        used += (size_t)snprintf(text + used, size - used, "%s%s", used > 0 ? ", " : "", row->type);
    return text;
}
