/* The kinds of checkpoints that make_checkpoint writes: dimensions, tensors and configuration. */
#include "tests/make/make_checkpoint.h"

#include "common/float_bits.h"

#include <stdio.h>

#define GIANT_COLUMNS 65536

struct deepseek {
    uint64_t hidden, heads, query_rank, vocabulary, intermediate, expert_intermediate, experts, layers;
};

enum { KV_RANK = 512, ROPE_DIM = 64, NOPE_DIM = 128, VALUE_DIM = 128 };

static void add_mla(struct plan *plan, const char *prefix, const struct deepseek *d)
{
    add_norm(plan, prefix, "input_layernorm.weight", d->hidden);
    add_matrix(plan, prefix, "self_attn.q_a_proj.weight", d->query_rank, d->hidden);
    add_norm(plan, prefix, "self_attn.q_a_layernorm.weight", d->query_rank);
    add_matrix(plan, prefix, "self_attn.q_b_proj.weight", d->heads * (NOPE_DIM + ROPE_DIM), d->query_rank);
    add_matrix(plan, prefix, "self_attn.kv_a_proj_with_mqa.weight", KV_RANK + ROPE_DIM, d->hidden);
    add_norm(plan, prefix, "self_attn.kv_a_layernorm.weight", KV_RANK);
    add_matrix(plan, prefix, "self_attn.kv_b_proj.weight", d->heads * (NOPE_DIM + VALUE_DIM), KV_RANK);
    add_matrix(plan, prefix, "self_attn.o_proj.weight", d->hidden, d->heads * VALUE_DIM);
    add_norm(plan, prefix, "post_attention_layernorm.weight", d->hidden);
}

static void add_deepseek_moe(struct plan *plan, const char *prefix, const struct deepseek *d, bool ordinary)
{
    add_matrix(plan, prefix, "mlp.gate.weight", d->experts, d->hidden);
    add_vector(plan, FILL_BIAS, prefix, "mlp.gate.e_score_correction_bias", d->experts);
    const size_t first = plan->count;
    add_experts(plan, prefix, d->experts, d->hidden, d->expert_intermediate);
    static const enum fill extremes[] = {FILL_ZEROS, FILL_OUTLIERS, FILL_SUBNORMALS, FILL_HUGE};
    for (size_t i = 0; !ordinary && i < sizeof extremes / sizeof *extremes; i++) {
        plan->tensors[first + i].fill = extremes[i];
    }
    char name[128];
    snprintf(name, sizeof name, "%smlp.shared_experts.", prefix);
    add_mlp(plan, name, d->hidden, d->expert_intermediate);
}

static void write_deepseek_config(const struct deepseek *d, const char *directory)
{
    write_text(directory, "config.json",
               "{\n"
               "  \"architectures\": [\n    \"DeepseekV3ForCausalLM\"\n  ],\n"
               "  \"attention_bias\": false,\n"
               "  \"attention_dropout\": 0.0,\n"
               "  \"bos_token_id\": 0,\n"
               "  \"eos_token_id\": 1,\n"
               "  \"ep_size\": 1,\n"
               "  \"first_k_dense_replace\": 1,\n"
               "  \"hidden_act\": \"silu\",\n"
               "  \"hidden_size\": %d,\n"
               "  \"initializer_range\": 0.02,\n"
               "  \"intermediate_size\": %d,\n"
               "  \"kv_lora_rank\": %d,\n"
               "  \"max_position_embeddings\": 163840,\n"
               "  \"model_type\": \"deepseek_v3\",\n"
               "  \"moe_intermediate_size\": %d,\n"
               "  \"moe_layer_freq\": 1,\n"
               "  \"n_group\": 2,\n"
               "  \"n_routed_experts\": %d,\n"
               "  \"n_shared_experts\": 1,\n"
               "  \"norm_topk_prob\": true,\n"
               "  \"num_attention_heads\": %d,\n"
               "  \"num_experts_per_tok\": 2,\n"
               "  \"num_hidden_layers\": %d,\n"
               "  \"num_key_value_heads\": %d,\n"
               "  \"num_nextn_predict_layers\": 1,\n"
               "  \"q_lora_rank\": %d,\n"
               "  \"qk_nope_head_dim\": %d,\n"
               "  \"qk_rope_head_dim\": %d,\n"
               "  \"rms_norm_eps\": 1e-06,\n"
               "  \"rope_scaling\": {\n"
               "    \"beta_fast\": 32,\n"
               "    \"beta_slow\": 1,\n"
               "    \"factor\": 40,\n"
               "    \"mscale\": 1.0,\n"
               "    \"mscale_all_dim\": 1.0,\n"
               "    \"original_max_position_embeddings\": 4096,\n"
               "    \"type\": \"yarn\"\n"
               "  },\n"
               "  \"rope_theta\": 10000.0,\n"
               "  \"routed_scaling_factor\": 2.5,\n"
               "  \"scoring_func\": \"sigmoid\",\n"
               "  \"tie_word_embeddings\": false,\n"
               "  \"topk_group\": 1,\n"
               "  \"topk_method\": \"noaux_tc\",\n"
               "  \"torch_dtype\": \"bfloat16\",\n"
               "  \"transformers_version\": \"4.46.3\",\n"
               "  \"use_cache\": true,\n"
               "  \"v_head_dim\": %d,\n"
               "  \"vocab_size\": %d\n"
               "}\n",
               (int)d->hidden, (int)d->intermediate, KV_RANK, (int)d->expert_intermediate, (int)d->experts,
               (int)d->heads, (int)d->layers, (int)d->heads, (int)d->query_rank, NOPE_DIM, ROPE_DIM, VALUE_DIM,
               (int)d->vocabulary);
}

static void write_tokenizer(const char *directory)
{
    write_text(directory, "tokenizer.json",
               "{\n  \"version\": \"1.0\",\n  \"added_tokens\": [],\n  \"model\": {\n    \"type\": \"BPE\",\n"
               "    \"vocab\": {\"<s>\": 0, \"</s>\": 1},\n    \"merges\": []\n  }\n}\n");
    write_text(directory, "tokenizer_config.json",
               "{\n  \"bos_token\": \"<s>\",\n  \"eos_token\": \"</s>\",\n"
               "  \"tokenizer_class\": \"PreTrainedTokenizerFast\"\n}\n");
    write_text(directory, "generation_config.json",
               "{\n  \"bos_token_id\": 0,\n  \"eos_token_id\": 1,\n  \"temperature\": 0.6,\n  \"top_p\": 0.95\n}\n");
}

static void make_deepseek(struct plan *plan, const struct options *options)
{
    static const struct deepseek scales[] = {
        /* hidden, heads, query rank, vocabulary, intermediate, intermediate of experts, experts, layers */
        [SCALE_SMALL] = {1024, 8, 384, 2048, 2048, 512, 8, 3},
        [SCALE_HALF] = {1024, 8, 384, 1024, 2048, 512, 4, 2},
        [SCALE_TINY] = {256, 2, 128, 256, 256, 128, 4, 2},
    };
    const struct deepseek *d = &scales[options->scale];
    char prefix[64];
    for (uint64_t layer = 0; layer <= d->layers; layer++) { /* the last is the MTP layer */
        add_mla(plan, layer_prefix(prefix, layer), d);
        if (layer == 0) {
            add_mlp(plan, "model.layers.0.mlp.", d->hidden, d->intermediate);
        } else {
            add_deepseek_moe(plan, prefix, d, options->ordinary);
        }
    }
    add_matrix(plan, prefix, "eh_proj.weight", d->hidden, 2 * d->hidden);
    add_norm(plan, prefix, "enorm.weight", d->hidden);
    add_norm(plan, prefix, "hnorm.weight", d->hidden);
    add_norm(plan, prefix, "shared_head.norm.weight", d->hidden);
    add_matrix(plan, prefix, "shared_head.head.weight", d->vocabulary, d->hidden);
    add_matrix(plan, prefix, "embed_tokens.weight", d->vocabulary, d->hidden);
    add_ends(plan, d->vocabulary, d->hidden);
    write_weights(plan, 3, options);
    write_deepseek_config(d, options->directory);
    write_tokenizer(options->directory);
}

static void write_llama_config(const char *directory, uint64_t hidden, uint64_t intermediate, uint64_t layers,
                               uint64_t heads, uint64_t key_value_heads, uint64_t vocabulary)
{
    write_text(directory, "config.json",
               "{\n"
               "  \"architectures\": [\n    \"LlamaForCausalLM\"\n  ],\n"
               "  \"attention_bias\": false,\n"
               "  \"head_dim\": %d,\n"
               "  \"hidden_act\": \"silu\",\n"
               "  \"hidden_size\": %d,\n"
               "  \"intermediate_size\": %d,\n"
               "  \"max_position_embeddings\": 2048,\n"
               "  \"mlp_bias\": false,\n"
               "  \"model_type\": \"llama\",\n"
               "  \"num_attention_heads\": %d,\n"
               "  \"num_hidden_layers\": %d,\n"
               "  \"num_key_value_heads\": %d,\n"
               "  \"rms_norm_eps\": 1e-05,\n"
               "  \"rope_theta\": 10000.0,\n"
               "  \"tie_word_embeddings\": false,\n"
               "  \"torch_dtype\": \"bfloat16\",\n"
               "  \"vocab_size\": %d\n"
               "}\n",
               (int)(hidden / heads), (int)hidden, (int)intermediate, (int)heads, (int)layers, (int)key_value_heads,
               (int)vocabulary);
}

static void add_llama_layer(struct plan *plan, uint64_t layer, uint64_t hidden, uint64_t intermediate,
                            uint64_t key_value_rows)
{
    char prefix[64], mlp[128];
    add_attention(plan, layer_prefix(prefix, layer), hidden, key_value_rows);
    snprintf(mlp, sizeof mlp, "%smlp.", prefix);
    add_mlp(plan, mlp, hidden, intermediate);
}

static void make_llama(struct plan *plan, const struct options *options)
{
    for (uint64_t layer = 0; layer < 2; layer++) {
        add_llama_layer(plan, layer, 256, 512, 128);
    }
    add_ends(plan, 512, 256);
    write_weights(plan, 1, options);
    write_llama_config(options->directory, 256, 512, 2, 4, 2, 512);
    write_tokenizer(options->directory);
}

/* Writes two layers of four experts: with norms of queries and keys, or with stacked experts. */
static void write_moe_weights(struct plan *plan, const struct options *options, bool stacked)
{
    char prefix[64];
    for (uint64_t layer = 0; layer < 2; layer++) {
        add_attention(plan, layer_prefix(prefix, layer), 256, 128);
        if (!stacked) {
            add_norm(plan, prefix, "self_attn.q_norm.weight", 128);
            add_norm(plan, prefix, "self_attn.k_norm.weight", 128);
        }
        add_matrix(plan, prefix, "mlp.gate.weight", 4, 256);
        if (stacked) {
            add_stack(plan, prefix, "mlp.experts.gate_up_proj", 4, 2 * 128, 256);
            add_stack(plan, prefix, "mlp.experts.down_proj", 4, 256, 128);
        } else {
            add_experts(plan, prefix, 4, 256, 128);
        }
    }
    add_ends(plan, 512, 256);
    write_weights(plan, 1, options);
}

static void make_qwen3_moe(struct plan *plan, const struct options *options)
{
    write_moe_weights(plan, options, false);
    write_text(options->directory, "config.json",
               "{\n"
               "  \"architectures\": [\n    \"Qwen3MoeForCausalLM\"\n  ],\n"
               "  \"attention_bias\": false,\n"
               "  \"decoder_sparse_step\": 1,\n"
               "  \"head_dim\": 128,\n"
               "  \"hidden_act\": \"silu\",\n"
               "  \"hidden_size\": 256,\n"
               "  \"intermediate_size\": 512,\n"
               "  \"max_position_embeddings\": 2048,\n"
               "  \"mlp_only_layers\": [],\n"
               "  \"model_type\": \"qwen3_moe\",\n"
               "  \"moe_intermediate_size\": 128,\n"
               "  \"norm_topk_prob\": true,\n"
               "  \"num_attention_heads\": 2,\n"
               "  \"num_experts\": 4,\n"
               "  \"num_experts_per_tok\": 2,\n"
               "  \"num_hidden_layers\": 2,\n"
               "  \"num_key_value_heads\": 1,\n"
               "  \"rms_norm_eps\": 1e-06,\n"
               "  \"rope_theta\": 1000000.0,\n"
               "  \"tie_word_embeddings\": false,\n"
               "  \"torch_dtype\": \"bfloat16\",\n"
               "  \"vocab_size\": 512\n"
               "}\n");
    write_tokenizer(options->directory);
}

static void make_fused_experts(struct plan *plan, const struct options *options)
{
    write_moe_weights(plan, options, true);
    write_text(options->directory, "config.json",
               "{\n"
               "  \"architectures\": [\n    \"StackedMoeForCausalLM\"\n  ],\n"
               "  \"hidden_size\": 256,\n"
               "  \"model_type\": \"stacked_moe\",\n"
               "  \"moe_intermediate_size\": 128,\n"
               "  \"num_attention_heads\": 4,\n"
               "  \"num_experts\": 4,\n"
               "  \"num_experts_per_tok\": 2,\n"
               "  \"num_hidden_layers\": 2,\n"
               "  \"num_key_value_heads\": 2,\n"
               "  \"rms_norm_eps\": 1e-06,\n"
               "  \"torch_dtype\": \"bfloat16\",\n"
               "  \"vocab_size\": 512\n"
               "}\n");
}

static uint64_t llama_layer_bytes(uint64_t hidden)
{
    const uint64_t intermediate = hidden / 2 * 7;
    return 2 * (2 * hidden * hidden + 2 * hidden * hidden / 4 + 3 * hidden * intermediate + 2 * hidden);
}

static void make_bench(struct plan *plan, const struct options *options)
{
    const uint64_t bytes = options->bytes ? options->bytes : (uint64_t)4 << 30;
    uint64_t hidden = 4096;
    while (hidden > 512 && 2 * llama_layer_bytes(hidden) > bytes) {
        hidden /= 2;
    }
    const uint64_t layer_bytes = llama_layer_bytes(hidden), intermediate = hidden / 2 * 7;
    const uint64_t layers = bytes / layer_bytes;
    if (!layers) {
        die("bench needs --bytes of at least %llu", (unsigned long long)layer_bytes);
    }
    const uint64_t vocabulary = ((bytes - layers * layer_bytes) / (4 * hidden) / BLOCK + 1) * BLOCK;
    for (uint64_t layer = 0; layer < layers; layer++) {
        add_llama_layer(plan, layer, hidden, intermediate, hidden / 4);
    }
    add_ends(plan, vocabulary, hidden);
    plan->pool = allocate(POOL_ELEMENTS * sizeof *plan->pool);
    uint64_t state = options->seed;
    for (uint64_t i = 0; i < POOL_ELEMENTS; i++) {
        plan->pool[i] = tsr_bf16_from_f32(0.02f * gaussian(&state));
    }
    for (size_t i = 0; i < plan->count; i++) {
        if (plan->tensors[i].fill == FILL_WEIGHT) {
            plan->tensors[i].fill = FILL_POOL;
        }
    }
    write_weights(plan, 5, options);
    write_llama_config(options->directory, hidden, intermediate, layers, hidden / 128, hidden / 512, vocabulary);
    write_tokenizer(options->directory);
}

static void make_giant(struct plan *plan, const struct options *options)
{
    const uint64_t bytes = options->bytes ? options->bytes : (uint64_t)6 << 30;
    const uint64_t rows = bytes / (2 * GIANT_COLUMNS) / BLOCK * BLOCK;
    if (!rows) {
        die("giant needs --bytes of at least %d", 2 * GIANT_COLUMNS * BLOCK);
    }
    add_norm(plan, "model.layers.0.", "input_layernorm.weight", 256);
    add_matrix(plan, "model.layers.0.", "mlp.up_proj.weight", 256, 256);
    add_filled(plan, FILL_ROWS, "model.layers.0.", "mlp.down_proj.weight", rows, GIANT_COLUMNS);
    add_ends(plan, 256, 256);
    write_weights(plan, 1, options);
    write_llama_config(options->directory, rows, GIANT_COLUMNS, 1, 128, 128, 256);
}

static void make_many(struct plan *plan, const struct options *options)
{
    for (uint64_t i = 0; i < options->tensors; i++) {
        char prefix[128];
        snprintf(prefix, sizeof prefix, "model.layers.%llu.mlp.experts.%llu.", (unsigned long long)(i / 256),
                 (unsigned long long)(i % 256));
        add_filled(plan, i % 1000 ? FILL_HOLE : FILL_WEIGHT, prefix, "up_proj.weight", BLOCK, BLOCK);
    }
    write_weights(plan, MAX_SHARDS, options);
    write_llama_config(options->directory, BLOCK, BLOCK, (options->tensors + 255) / 256, 1, 1, 256);
}

const struct kind kinds[] = {
    {"deepseek-v3", make_deepseek},
    {"llama", make_llama},
    {"qwen3-moe", make_qwen3_moe},
    {"fused-experts", make_fused_experts},
    {"bench", make_bench},
    {"giant", make_giant},
    {"many", make_many},
    {0},
};
