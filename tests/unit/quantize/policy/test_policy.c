/* Tests the rules of the policy, its options, and decisions for fused layers. tests/cli/policy_table.txt has the
 * table of families. */
#include "quantize/policy/policy.h"

#include "tests/unit/fixture.h"

enum { MOST = 16 };

static tsr_checkpoint *checkpoint;
static tsr_arena arena;
static tsr_decision decisions[MOST];

/* Opens a checkpoint of these tensors and decides. */
static void decide(const char *config, const char *model_type, const tsr_policy_options *options,
                   const fixture_tensor *tensors, size_t n)
{
    tsr_err err = {0};
    cr_assert_leq(n, MOST);
    fixture_make();
    fixture_text("config.json", config);
    fixture_shard("model.safetensors", tensors, n);
    cr_assert_eq(tsr_checkpoint_open(&checkpoint, fixture_folder, NULL, 0, &err), TSR_OK, "%s", err.msg);
    cr_assert_eq(checkpoint->tensors.count, n);
    cr_assert_eq(tsr_policy_decide(checkpoint, model_type, options, &arena, decisions, &err), TSR_OK, "%s", err.msg);
}

static void discard(void)
{
    tsr_arena_free(&arena);
    tsr_checkpoint_close(checkpoint);
    fixture_remove();
}

TestSuite(policy, .fini = discard);

static void expect(const char *name, tsr_treatment treatment, const char *reason)
{
    const tsr_tensor *const t = tsr_checkpoint_find(checkpoint, name);
    cr_assert_not_null(t, "%s", name);
    const tsr_decision *const d = &decisions[t - checkpoint->tensors.items];
    cr_expect_eq(d->treatment, treatment, "%s: %s", name, d->reason);
    cr_expect_not_null(strstr(d->reason, reason), "%s: %s", name, d->reason);
}

static const tsr_policy_options kBlocks = {.block_rows = 128};

#define ATTENTION "model.layers.0.self_attn."
#define MLP       "model.layers.0.mlp."

static const fixture_tensor kLlama[] = {
    {"model.embed_tokens.weight", {512, 256}, NULL},
    {"lm_head.weight", {512, 256}, NULL},
    {"model.layers.0.input_layernorm.weight", {256}, NULL},
    {ATTENTION "q_proj.weight", {256, 256}, NULL},
    {ATTENTION "k_proj.weight", {128, 256}, NULL},
    {ATTENTION "v_proj.weight", {128, 256}, NULL},
    {ATTENTION "o_proj.weight", {256, 256}, NULL},
    {MLP "gate_proj.weight", {512, 256}, NULL},
    {MLP "up_proj.weight", {512, 256}, NULL},
    {MLP "down_proj.weight", {256, 512}, NULL},
    {"model.layers.0.adapter.weight", {256, 256}, NULL},
};
enum { N_LLAMA = sizeof kLlama / sizeof *kLlama };

Test(policy, a_family_has_its_table)
{
    cr_assert(tsr_policy_knows("llama"));
    decide("{}", "llama", &kBlocks, kLlama, N_LLAMA);
    expect("model.embed_tokens.weight", TSR_KEEP_EMBEDDING, "embedding");
    expect("lm_head.weight", TSR_KEEP, "output head");
    expect("model.layers.0.input_layernorm.weight", TSR_KEEP, "norm");
    expect(ATTENTION "q_proj.weight", TSR_QUANTIZE, "attention");
    expect(MLP "down_proj.weight", TSR_QUANTIZE, "feed-forward");
    expect("model.layers.0.adapter.weight", TSR_KEEP, "no rule of this model_type matches its name");
}

Test(policy, options_are_stronger_than_tables_and_exclude_than_include)
{
    static const char *const kInclude[] = {"*adapter*", "*norm*", "*down_proj*", "lm_head*"};
    static const char *const kExclude[] = {"*down_proj*"};
    const tsr_policy_options options = {
        .include = kInclude, .n_include = 4, .exclude = kExclude, .n_exclude = 1, .block_rows = 128};
    decide("{}", "llama", &options, kLlama, N_LLAMA);
    expect("model.layers.0.adapter.weight", TSR_QUANTIZE, "--include '*adapter*'");
    expect("lm_head.weight", TSR_QUANTIZE, "--include 'lm_head*'");
    expect(MLP "down_proj.weight", TSR_KEEP, "--exclude '*down_proj*'");
    expect("model.layers.0.input_layernorm.weight", TSR_KEEP, "norm"); /* a vector, which no loader could read */
}

Test(policy, fused_members_are_decided_as_one)
{
    static const char *const kExclude[] = {"*k_proj*"};
    const tsr_policy_options options = {.exclude = kExclude, .n_exclude = 1, .block_rows = 128};
    decide("{}", "llama", &options, kLlama, N_LLAMA);
    expect(ATTENTION "k_proj.weight", TSR_KEEP, "--exclude");
    expect(ATTENTION "q_proj.weight", TSR_KEEP, "fused with " ATTENTION "k_proj.weight");
    expect(ATTENTION "v_proj.weight", TSR_KEEP, "fused with " ATTENTION "k_proj.weight");
    expect(ATTENTION "o_proj.weight", TSR_QUANTIZE, "attention");
    expect(MLP "gate_proj.weight", TSR_QUANTIZE, "feed-forward");
}

/* gate and up end inside a block. up is the last, so its end does not matter. */
static const fixture_tensor kRagged[] = {
    {MLP "gate_proj.weight", {192, 256}, NULL},    {MLP "up_proj.weight", {192, 256}, NULL},
    {ATTENTION "q_proj.weight", {256, 256}, NULL}, {ATTENTION "k_proj.weight", {128, 256}, NULL},
    {ATTENTION "v_proj.weight", {192, 256}, NULL},
};

Test(policy, members_must_end_on_a_block_boundary_except_the_last)
{
    decide("{}", "llama", &kBlocks, kRagged, 5);
    expect(MLP "gate_proj.weight", TSR_KEEP, "its 192 rows end inside a block of 128");
    expect(MLP "up_proj.weight", TSR_KEEP, "fused with " MLP "gate_proj.weight");
    expect(ATTENTION "q_proj.weight", TSR_QUANTIZE, "attention");
    expect(ATTENTION "v_proj.weight", TSR_QUANTIZE, "attention");
}

Test(policy, no_blocks_no_boundary)
{
    const tsr_policy_options rows = {.block_rows = 1};
    decide("{}", "llama", &rows, kRagged, 5);
    expect(MLP "gate_proj.weight", TSR_QUANTIZE, "feed-forward");
    expect(MLP "up_proj.weight", TSR_QUANTIZE, "feed-forward");
}

Test(policy, include_overrides_the_boundary)
{
    static const char *const kInclude[] = {"*gate_proj*"};
    const tsr_policy_options options = {.include = kInclude, .n_include = 1, .block_rows = 128};
    decide("{}", "llama", &options, kRagged, 5);
    expect(MLP "gate_proj.weight", TSR_QUANTIZE, "--include");
    expect(MLP "up_proj.weight", TSR_QUANTIZE, "feed-forward");
}

#define EXPERT "model.layers.0.mlp.experts."

Test(policy, the_experts_of_a_layer_are_decided_as_one)
{
    static const char *const kExclude[] = {"*layers.0.*experts.1.down_proj*"};
    static const fixture_tensor kExperts[] = {
        {EXPERT "0.down_proj.weight", {256, 256}, NULL},
        {EXPERT "1.down_proj.weight", {256, 256}, NULL},
        {"model.layers.1.mlp.experts.1.down_proj.weight", {256, 256}, NULL},
        {"model.layers.0.mlp.gate.weight", {8, 256}, NULL},
    };
    const tsr_policy_options options = {.exclude = kExclude, .n_exclude = 1, .block_rows = 128};
    decide("{}", "qwen3_moe", &options, kExperts, 4);
    expect(EXPERT "0.down_proj.weight", TSR_KEEP, EXPERT "1.down_proj.weight is kept: --exclude");
    expect("model.layers.1.mlp.experts.1.down_proj.weight", TSR_QUANTIZE, "feed-forward");
    expect("model.layers.0.mlp.gate.weight", TSR_KEEP, "router");
}

/* hidden_size 256 is the input of gate and up. The second layer's stacks have it in the wrong dimension. */
Test(policy, stacked_experts_must_be_stored_out_in)
{
    static const fixture_tensor kStacks[] = {
        {EXPERT "gate_up_proj", {4, 512, 256}, NULL},
        {EXPERT "down_proj", {4, 256, 384}, NULL},
        {"model.layers.1.mlp.experts.gate_up_proj", {4, 256, 512}, NULL},
        {"model.layers.1.mlp.experts.down_proj", {4, 384, 256}, NULL},
        {"model.layers.1.conv.weight", {4, 256, 512}, NULL},
    };
    decide("{\"hidden_size\": 256}", "qwen3_moe", &kBlocks, kStacks, 5);
    expect(EXPERT "gate_up_proj", TSR_QUANTIZE, "fused experts");
    expect(EXPERT "down_proj", TSR_QUANTIZE, "fused experts");
    expect("model.layers.1.mlp.experts.gate_up_proj", TSR_KEEP, "[experts, in, out]");
    expect("model.layers.1.mlp.experts.down_proj", TSR_KEEP, "[experts, in, out]");
    expect("model.layers.1.conv.weight", TSR_KEEP, "three dimensions, but not a stack of experts");
}

Test(policy, the_matrices_of_a_shared_mlp_are_decided_as_one)
{
    static const char *const kExclude[] = {"*shared_mlp.down_proj*"};
    static const fixture_tensor kShared[] = {
        {MLP "shared_mlp.gate_proj.weight", {256, 256}, NULL},
        {MLP "shared_mlp.up_proj.weight", {256, 256}, NULL},
        {MLP "shared_mlp.down_proj.weight", {256, 256}, NULL},
    };
    const tsr_policy_options options = {.exclude = kExclude, .n_exclude = 1, .block_rows = 128};
    decide("{}", "hunyuan_v1_moe", &options, kShared, 3);
    expect(MLP "shared_mlp.gate_proj.weight", TSR_KEEP, MLP "shared_mlp.down_proj.weight is kept: --exclude");
}

/* q ends on a boundary. k, whose 64 rows follow, does not. */
Test(policy, q_k_and_v_in_one_tensor_must_meet_on_boundaries)
{
    static const fixture_tensor kJoined[] = {{ATTENTION "qkv_proj.weight", {384, 256}, NULL}};
    decide("{\"hidden_size\": 256, \"num_attention_heads\": 4, \"num_key_value_heads\": 1, \"head_dim\": 64}", "phi3",
           &kBlocks, kJoined, 1);
    expect(ATTENTION "qkv_proj.weight", TSR_KEEP, "q, k and v meet at row 320, inside a block of 128");
}

Test(policy, gate_and_up_in_one_tensor_must_meet_on_a_boundary)
{
    static const fixture_tensor kJoined[] = {
        {MLP "gate_up_proj.weight", {384, 256}, NULL},
        {"model.layers.1.mlp.gate_up_proj.weight", {512, 256}, NULL},
    };
    decide("{}", "phi3", &kBlocks, kJoined, 2);
    expect(MLP "gate_up_proj.weight", TSR_KEEP, "gate and up meet at row 192, inside a block of 128");
    expect("model.layers.1.mlp.gate_up_proj.weight", TSR_QUANTIZE, "feed-forward");
}

Test(policy, an_unknown_model_type_gets_the_general_rules)
{
    static const fixture_tensor kUnknown[] = {
        {"net.0.attn_proj.weight", {256, 256}, NULL},  {"net.0.fc1.weight", {256, 256}, NULL},
        {"net.0.small_proj.weight", {64, 256}, NULL},  {"net.0.mixer.weight", {256, 256}, NULL},
        {"net.0.codes_proj.weight", {256, 256}, "U8"}, {"net.0.norm.weight", {256}, NULL},
    };
    cr_assert_not(tsr_policy_knows("of_tomorrow"));
    cr_assert_not(tsr_policy_knows(NULL));
    decide("{}", "of_tomorrow", &kBlocks, kUnknown, 6);
    expect("net.0.attn_proj.weight", TSR_QUANTIZE, "linear by its name");
    expect("net.0.fc1.weight", TSR_QUANTIZE, "linear by its name");
    expect("net.0.small_proj.weight", TSR_KEEP, "fewer than 128");
    expect("net.0.mixer.weight", TSR_KEEP, "no general rule matches its name");
    expect("net.0.codes_proj.weight", TSR_KEEP, "not BF16, F16 or F32");
}

Test(policy, integers_are_kept_from_layers_whose_loader_reads_none)
{
    static const fixture_tensor kIndexer[] = {{ATTENTION "indexer.wk.weight", {128, 256}, NULL},
                                              {ATTENTION "indexer.wq_b.weight", {256, 256}, NULL}};
    const tsr_policy_options integers = {.block_rows = 1, .not_fp8 = true};
    decide("{}", "deepseek_v32", &integers, kIndexer, 2);
    expect(ATTENTION "indexer.wk.weight", TSR_KEEP, "BF16 or FP8 only");
    expect(ATTENTION "indexer.wq_b.weight", TSR_QUANTIZE, "indexer");
}

static const fixture_tensor kOutput[] = {{"layers.0.attn.wo_a.weight", {512, 256}, NULL},
                                         {"layers.0.attn.wo_b.weight", {256, 512}, NULL}};

Test(policy, the_operand_of_deepseek_v4_is_kept_from_what_is_not_in_blocks)
{
    const tsr_policy_options rows = {.block_rows = 1};
    decide("{}", "deepseek_v4", &rows, kOutput, 2);
    expect("layers.0.attn.wo_a.weight", TSR_KEEP, "BF16 or block FP8 only");
    expect("layers.0.attn.wo_b.weight", TSR_QUANTIZE, "attention");
}

Test(policy, the_operand_of_deepseek_v4_is_read_in_blocks)
{
    const tsr_policy_options blocks = {.block_rows = 128};
    decide("{}", "deepseek_v4", &blocks, kOutput, 2);
    expect("layers.0.attn.wo_a.weight", TSR_QUANTIZE, "attention");
}

static void expect_type(const char *config, const char *type)
{
    tsr_err err = {0};
    fixture_text("config.json", config);
    cr_assert_eq(tsr_checkpoint_open(&checkpoint, fixture_folder, NULL, 0, &err), TSR_OK, "%s", err.msg);
    const char *const got = tsr_policy_model_type(checkpoint, &arena);
    cr_expect(type == NULL ? got == NULL : got != NULL && strcmp(got, type) == 0, "%s: %s", config, got);
    tsr_checkpoint_close(checkpoint);
    checkpoint = NULL;
}

/* A wrapper with a table uses its own name, any other that of its language model. */
Test(policy, the_model_type_of_a_multimodal_model)
{
    fixture_make();
    fixture_shard("model.safetensors", kLlama, 1);
    expect_type("{\"model_type\": \"llama\", \"text_config\": {\"model_type\": \"qwen3\"}}", "llama");
    expect_type("{\"model_type\": \"wrapper\", \"text_config\": {\"model_type\": \"qwen3\"}}", "qwen3");
    expect_type("{\"model_type\": \"wrapper\"}", "wrapper");
    expect_type("{\"model_type\": 3}", NULL);
    expect_type("{}", NULL);
}

Test(policy, embeddings_are_known_by_name)
{
    cr_expect(tsr_policy_is_embedding("model.embed_tokens.weight"));
    cr_expect(tsr_policy_is_embedding("wte.weight"));
    cr_expect_not(tsr_policy_is_embedding("lm_head.weight"));
    cr_expect_not(tsr_policy_is_embedding("model.layers.0.mlp.up_proj.weight"));
}

/* Matrices of gpt2 are stored transposed. With no option would a loader read their scales. */
Test(policy, what_no_loader_could_read_is_kept_whatever_is_asked)
{
    static const char *const kAll[] = {"*"};
    static const fixture_tensor kConv1d[] = {{"h.0.attn.c_attn.weight", {256, 768}, NULL}};
    const tsr_policy_options options = {.include = kAll, .n_include = 1, .block_rows = 128};
    decide("{}", "gpt2", &options, kConv1d, 1);
    expect("h.0.attn.c_attn.weight", TSR_KEEP, "stored [in, out]");
}
