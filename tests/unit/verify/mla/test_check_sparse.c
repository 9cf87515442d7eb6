/* verify mla --sparse: a sound device passes, and every fault that is planted in an index kernel or in sparse attention
 * is found where it is, and named if it is a known mistake. */
#include "common/float_bits.h"
#include "tests/unit/verify/mla/mla_layer.h"
#include "verify/mla/sparse/sparse_lists.h"

#include <math.h>

enum {
    HIDDEN = 64,
    HEADS = 2,
    NOPE = 16,
    ROPE = 8,
    V = 16,
    RANK = 128,
    Q_RANK = 32,
    INDEX_HEADS = 4,
    DIM = 128,
    KEPT = 8
};

static const char kConfig[] =
    "{\"model_type\": \"deepseek_v32\", \"hidden_size\": 64, \"num_attention_heads\": 2, \"qk_nope_head_dim\": 16, "
    "\"qk_rope_head_dim\": 8, \"v_head_dim\": 16, \"kv_lora_rank\": 128, \"q_lora_rank\": 32, \"rope_theta\": 10000, "
    "\"index_n_heads\": 4, \"index_head_dim\": 128, \"index_topk\": 8}";

static const fixture_tensor kTensors[] = {{"q_a_proj.weight", {Q_RANK, HIDDEN}, NULL},
                                          {"q_a_layernorm.weight", {Q_RANK}, NULL},
                                          {"q_b_proj.weight", {HEADS * (NOPE + ROPE), Q_RANK}, NULL},
                                          {"kv_a_proj_with_mqa.weight", {RANK + ROPE, HIDDEN}, NULL},
                                          {"kv_a_layernorm.weight", {RANK}, NULL},
                                          {"kv_b_proj.weight", {HEADS * (NOPE + V), RANK}, NULL},
                                          {"o_proj.weight", {HIDDEN, HEADS *V}, NULL},
                                          {"indexer.wq_b.weight", {INDEX_HEADS * DIM, Q_RANK}, NULL},
                                          {"indexer.wk.weight", {DIM, HIDDEN}, NULL},
                                          {"indexer.k_norm.weight", {DIM}, NULL},
                                          {"indexer.k_norm.bias", {DIM}, NULL},
                                          {"indexer.weights_proj.weight", {INDEX_HEADS, HIDDEN}, NULL}};

static void open_layer(void)
{
    open_layer_of(kConfig, kTensors, sizeof kTensors / sizeof *kTensors);
}

static tsr_kernel_options options_of(bool fp8)
{
    return (tsr_kernel_options){.side = {checkpoint, &weights},
                                .device = &device,
                                .seed = 5,
                                .limits = tsr_kernel_limits_defaults(),
                                .ranks = 1,
                                .mla = {.batch = 4, .context = 150, .new_tokens = 2, .fp8_cache = fp8, .sparse = true}};
}

/* Runs the check. Returns the first judgement that fails, or "". */
static const char *first_failure(bool fp8)
{
    static char what[256];
    const tsr_kernel_options options = options_of(fp8);
    tsr_evidence evidence = {0};
    cr_assert_eq(tsr_check_mla(&options, 0, &evidence, &err), TSR_OK, "%s", err.msg);
    what[0] = '\0';
    cr_assert_gt(evidence.count, 10);
    for (size_t i = 0; i < evidence.count && what[0] == '\0'; i++) {
        if (evidence.items[i].fault != NULL)
            snprintf(what, sizeof what, "%s: %s", evidence.items[i].what, evidence.items[i].fault);
    }
    tsr_evidence_free(&evidence);
    return what;
}

static void expect_failure(size_t number, const char *what)
{
    const char *const found = first_failure(true);
    cr_assert(strncmp(found, what, strlen(what)) == 0, "fault %zu: '%s'", number, found);
}

/* ---- index kernels ---- */

static tsr_device_index sound_index;

/* Runs the CPU's kernel on other arguments. */
static tsr_status run_other(const tsr_device_index *kernel, const tsr_index_scores *args, double *seconds, tsr_err *e)
{
    return sound_index.run(kernel, args, seconds, e);
}

static tsr_status see_one_more(const tsr_device_index *kernel, const tsr_index_scores *args, double *seconds,
                               tsr_err *e)
{
    int32_t seen[256];
    tsr_index_scores other = *args;
    for (size_t i = 0; i < args->queries; i++)
        seen[i] = args->seen[i] < (int32_t)args->keys ? args->seen[i] + 1 : args->seen[i];
    other.seen = seen;
    return run_other(kernel, &other, seconds, e);
}

static tsr_status see_one_less(const tsr_device_index *kernel, const tsr_index_scores *args, double *seconds,
                               tsr_err *e)
{
    int32_t seen[256];
    tsr_index_scores other = *args;
    for (size_t i = 0; i < args->queries; i++)
        seen[i] = args->seen[i] - 1;
    other.seen = seen;
    return run_other(kernel, &other, seconds, e);
}

static tsr_status scale_keys(const tsr_device_index *kernel, const tsr_index_scores *args, bool twice, double *seconds,
                             tsr_err *e)
{
    float scales[256];
    tsr_index_scores other = *args;
    for (size_t j = 0; j < args->keys; j++)
        scales[j] = twice ? args->k_scale[j] * args->k_scale[j] : 1;
    other.k_scale = scales;
    return run_other(kernel, &other, seconds, e);
}

static tsr_status scale_twice(const tsr_device_index *kernel, const tsr_index_scores *args, double *seconds, tsr_err *e)
{
    return scale_keys(kernel, args, true, seconds, e);
}

static tsr_status forget_the_scale(const tsr_device_index *kernel, const tsr_index_scores *args, double *seconds,
                                   tsr_err *e)
{
    return scale_keys(kernel, args, false, seconds, e);
}

static tsr_status weigh_by_one(const tsr_device_index *kernel, const tsr_index_scores *args, double *seconds,
                               tsr_err *e)
{
    float ones[256 * INDEX_HEADS];
    tsr_index_scores other = *args;
    for (size_t i = 0; i < args->queries * args->heads; i++)
        ones[i] = 1;
    other.weights = ones;
    return run_other(kernel, &other, seconds, e);
}

/* relu(x) - relu(-x) is x: the scores of the negated queries are subtracted. */
static tsr_status forget_relu(const tsr_device_index *kernel, const tsr_index_scores *args, double *seconds, tsr_err *e)
{
    static uint8_t negated[256 * INDEX_HEADS * DIM];
    static float of_negated[256 * 256];
    tsr_index_scores other = *args;
    for (size_t i = 0; i < args->queries * args->heads * args->width; i++)
        negated[i] = args->q[i] ^ 0x80;
    other.q = negated;
    other.logits = of_negated;
    const tsr_status status = run_other(kernel, &other, seconds, e);
    if (status != TSR_OK)
        return status;
    const tsr_status again = run_other(kernel, args, seconds, e);
    for (size_t at = 0; at < args->queries * args->keys; at++)
        args->logits[at] = isinf(args->logits[at]) ? args->logits[at] : args->logits[at] - of_negated[at];
    return again;
}

/* Within the worst case, beyond the expected. */
static tsr_status round_to_18_bits(const tsr_device_index *kernel, const tsr_index_scores *args, double *seconds,
                                   tsr_err *e)
{
    const tsr_status status = run_other(kernel, args, seconds, e);
    for (size_t at = 0; at < args->queries * args->keys; at++) {
        const float shifted = args->logits[at] * 65;
        args->logits[at] = isinf(args->logits[at]) ? args->logits[at] : shifted - (shifted - args->logits[at]);
    }
    return status;
}

static tsr_status skip_the_last_head(const tsr_device_index *kernel, const tsr_index_scores *args, double *seconds,
                                     tsr_err *e)
{
    float fewer[256 * INDEX_HEADS];
    tsr_index_scores other = *args;
    for (size_t i = 0; i < args->queries * args->heads; i++)
        fewer[i] = i % args->heads == args->heads - 1 ? 0 : args->weights[i];
    other.weights = fewer;
    return run_other(kernel, &other, seconds, e);
}

/* Sums the products as a Hopper tensor core does. Where `variant` says so, the last heads count a little too much. */
static tsr_status run_on_a_tensor_core(const tsr_device_index *kernel, const tsr_index_scores *args, double *seconds,
                                       tsr_err *e)
{
    static float sums[INDEX_HEADS * 256];
    float ones[INDEX_HEADS];
    (void)e;
    *seconds = 1e-6;
    for (size_t h = 0; h < INDEX_HEADS; h++)
        ones[h] = 1;
    for (size_t i = 0; i < args->queries; i++) {
        const tsr_fp8_gemm_args gemm = {.a = args->q + i * args->heads * args->width,
                                        .w = args->k,
                                        .scale_a = ones,
                                        .scale_w = ones,
                                        .d = sums,
                                        .m = args->heads,
                                        .n = args->keys,
                                        .k = args->width,
                                        .ld_scale_a = args->heads,
                                        .ldd = args->keys,
                                        .block_n = 256,
                                        .block_k = 128};
        device.cpu.fp8_gemm_tensor_core(&gemm);
        for (size_t j = 0; j < args->keys; j++) {
            float sum = 0;
            for (size_t h = 0; h < args->heads; h++)
                sum += args->weights[i * args->heads + h] * fmaxf(sums[h * args->keys + j], 0);
            args->logits[i * args->keys + j] =
                (int64_t)j < args->seen[i] ? args->k_scale[j] * sum * (kernel->variant ? 1.004f : 1) : -INFINITY;
        }
    }
    return TSR_OK;
}

/* ---- sparse attention ---- */

static tsr_device_mla sound;

/* Runs the CPU's kernel on lists that `change` has changed. */
static tsr_status run_changed(const tsr_device_mla *kernel, size_t rank, const tsr_mla_attention *args,
                              int32_t (*change)(const tsr_mla_attention *, size_t, int32_t), double *seconds,
                              tsr_err *e)
{
    const size_t n = args->batch * args->s_q * args->top_k;
    tsr_mla_attention other = *args;
    if (args->indices == NULL)
        return sound.run(kernel, rank, args, seconds, e);
    int32_t *const changed = malloc(n * sizeof *changed);
    cr_assert_not_null(changed);
    for (size_t i = 0; i < n; i++)
        changed[i] = change(args, i, args->indices[i]);
    other.indices = changed;
    const tsr_status status = sound.run(kernel, rank, &other, seconds, e);
    free(changed);
    return status;
}

static int32_t as_position(const tsr_mla_attention *args, size_t i, int32_t entry)
{
    const size_t b = i / args->top_k / args->s_q;
    if (entry < 0 || entry >= args->seqlens[b])
        return -1;
    return args->block_table[b * args->max_pages + (size_t)entry / args->page] * (int32_t)args->page +
           entry % (int32_t)args->page;
}

static int32_t count_none(const tsr_mla_attention *args, size_t i, int32_t entry)
{
    /* The queries without tokens stay as they are. */
    const size_t query = i / args->top_k, before = (size_t)args->seqlens[query / args->s_q] + query % args->s_q + 1;
    return entry < 0 && before > args->s_q ? 0 : entry;
}

static int32_t count_all_none(const tsr_mla_attention *args, size_t i, int32_t entry)
{
    (void)args, (void)i;
    return entry < 0 ? 0 : entry;
}

static int32_t drop_first_entry(const tsr_mla_attention *args, size_t i, int32_t entry)
{
    for (size_t at = i / args->top_k * args->top_k; at < i; at++) {
        if (args->indices[at] >= 0)
            return entry;
    }
    return -1;
}

static int32_t stop_at_none(const tsr_mla_attention *args, size_t i, int32_t entry)
{
    for (size_t at = i / args->top_k * args->top_k; at < i; at++)
        entry = args->indices[at] < 0 ? -1 : entry;
    return entry;
}

#define CHANGED(name, change)                                                                                         \
    static tsr_status name(const tsr_device_mla *kernel, size_t rank, const tsr_mla_attention *args, double *seconds, \
                           tsr_err *e)                                                                                \
    {                                                                                                                 \
        return run_changed(kernel, rank, args, change, seconds, e);                                                   \
    }

CHANGED(take_positions, as_position)
CHANGED(attend_to_row_0, count_none)
CHANGED(fill_empty_queries, count_all_none)
CHANGED(leave_the_first_entry, drop_first_entry)
CHANGED(end_at_the_first_none, stop_at_none)

static tsr_status ignore_lists(const tsr_device_mla *kernel, size_t rank, const tsr_mla_attention *args,
                               double *seconds, tsr_err *e)
{
    tsr_mla_attention other = *args;
    other.indices = NULL;
    return sound.run(kernel, rank, &other, seconds, e);
}

/* Entries of -1 have a score of 0 and values of 0: the weights of the others become smaller. */
static tsr_status count_zeros(const tsr_device_mla *kernel, size_t rank, const tsr_mla_attention *args, double *seconds,
                              tsr_err *e)
{
    const size_t width = args->latent + args->rope,
                 bytes = tsr_mla_cache_row_bytes(args->latent, args->rope, args->fp8);
    const tsr_status status = sound.run(kernel, rank, args, seconds, e);
    for (size_t at = 0; args->indices != NULL && at < args->batch * args->s_q * args->heads; at++) {
        const int32_t *const list = args->indices + at / args->heads * args->top_k;
        double with = 0, without = 0;
        for (size_t t = 0; t < args->top_k; t++) {
            double score = 0;
            if (list[t] < 0) {
                without++;
                continue;
            }
            tsr_mla_cache_read(args->cache + (size_t)list[t] * bytes, args->latent, args->rope, args->fp8, args->row);
            for (size_t i = 0; i < width; i++)
                score += (double)tsr_f32_from_bf16(args->q[at * width + i]) * (double)args->row[i];
            with += exp(score * (double)args->scale);
        }
        for (size_t i = 0; i < args->latent; i++)
            args->out[at * args->latent + i] *= (float)(with / (with + without));
    }
    return status;
}

/* Within the worst case, beyond the expected. */
static tsr_status use_nearly_the_scale(const tsr_device_mla *kernel, size_t rank, const tsr_mla_attention *args,
                                       double *seconds, tsr_err *e)
{
    tsr_mla_attention other = *args;
    other.scale *= args->indices != NULL ? 1.00001f : 1;
    return sound.run(kernel, rank, &other, seconds, e);
}

static tsr_status refuse_lists(const tsr_device_mla *kernel, size_t rank, const tsr_mla_attention *args,
                               double *seconds, tsr_err *e)
{
    return args->indices != NULL ? tsr_fail(e, TSR_E_UNSUPPORTED, "lists of another length")
                                 : sound.run(kernel, rank, args, seconds, e);
}

static tsr_status refuse_fp8(const tsr_device_mla *kernel, size_t rank, const tsr_mla_attention *args, double *seconds,
                             tsr_err *e)
{
    return args->fp8 ? tsr_fail(e, TSR_E_UNSUPPORTED, "no FP8 cache") : sound.run(kernel, rank, args, seconds, e);
}

static tsr_status refuse_index(const tsr_device_index *kernel, const tsr_index_scores *args, double *seconds,
                               tsr_err *e)
{
    (void)kernel, (void)args, (void)seconds;
    return tsr_fail(e, TSR_E_UNSUPPORTED, "no such indexer");
}

TestSuite(sparse, .init = open_layer, .fini = close_layer);

Test(sparse, a_sound_device_passes)
{
    cr_assert_str_eq(first_failure(true), "");
}

Test(sparse, planted_faults_of_index_kernels_are_found)
{
    const struct {
        const char *what;
        tsr_device_index_fn *run;
    } kFaults[] = {
        {"cpu, index scores: negative sums of heads count: ReLU is missing", forget_relu},
        {"cpu, index scores: the scales of the keys are not applied", forget_the_scale},
        {"cpu, index scores: the scales of the keys are applied twice", scale_twice},
        {"cpu, index scores: the weights of the heads are not applied", weigh_by_one},
        {"cpu, index scores: tokens that a query does not see have a score", see_one_more},
        {"cpu, index scores: above", see_one_less},
        {"cpu, index scores: above", skip_the_last_head},
        {"cpu, index scores: errors above", round_to_18_bits},
    };
    sound_index = device.indexes[0];
    for (size_t i = 0; i < sizeof kFaults / sizeof *kFaults; i++) {
        device.indexes[0].run = kFaults[i].run;
        expect_failure(i, kFaults[i].what);
    }
}

Test(sparse, each_list_has_entries_without_a_row)
{
    for (size_t top_k = 1; top_k < 200; top_k++) {
        const size_t list = tsr_mla_list_length(top_k);
        cr_assert(list > top_k && list <= top_k + 64 && list % 64 == 0, "%zu: %zu", top_k, list);
    }
}

/* The model of a tensor core is not within the limits of FP32. */
Test(sparse, a_tensor_core_has_limits_of_its_own)
{
    device.indexes[0].run = run_on_a_tensor_core;
    expect_failure(0, "cpu, index scores: ");
    device.indexes[0].tensor_core = true;
    cr_assert_str_eq(first_failure(true), "");
    device.indexes[0].variant = 1;
    expect_failure(1, "cpu, index scores");
}

Test(sparse, planted_faults_of_attention_are_found)
{
    const struct {
        const char *what;
        tsr_device_mla_fn *run;
    } kFaults[] = {
        {"cpu, paged decode, sparse, BF16 cache: indices are taken as positions", take_positions},
        {"cpu, paged decode, sparse, BF16 cache: entries of -1 count, as row 0", attend_to_row_0},
        {"cpu, paged decode, sparse, BF16 cache: entries of -1 count, as keys and values of zeros", count_zeros},
        {"cpu, paged decode, sparse, BF16 cache: the lists are ignored", ignore_lists},
        {"cpu, paged decode, sparse, BF16 cache: a query whose entries are all -1 does not get zeros",
         fill_empty_queries},
        {"cpu, paged decode, sparse, BF16 cache: above", leave_the_first_entry},
        {"cpu, paged decode, sparse, BF16 cache: above", end_at_the_first_none},
        {"cpu, paged decode, sparse, BF16 cache: errors above", use_nearly_the_scale},
    };
    sound = device.mlas[0];
    for (size_t i = 0; i < sizeof kFaults / sizeof *kFaults; i++) {
        device.mlas[0].run = kFaults[i].run;
        expect_failure(i, kFaults[i].what);
    }
}

/* A kernel that cannot do something is listed once, with the reason, and is not judged there. */
static void expect_skipped(const char *why, size_t judged)
{
    const tsr_kernel_options options = options_of(true);
    tsr_evidence evidence = {0};
    size_t kernels = 0;
    cr_assert_eq(tsr_check_mla(&options, 0, &evidence, &err), TSR_OK, "%s", err.msg);
    cr_assert_eq(evidence.failed, 0);
    cr_assert_eq(evidence.n_skipped, 1, "%zu", evidence.n_skipped);
    cr_assert_str_eq(evidence.skipped[0].why, why);
    for (size_t i = 0; i < evidence.count; i++)
        kernels += evidence.items[i].kind == TSR_ERROR_KERNEL;
    cr_assert_eq(kernels, judged, "%s: %zu", why, kernels);
    tsr_evidence_free(&evidence);
}

/* All: 3 without lists, 2 of prefill, 2 of the indexer, and 4 sparse ones in each of two batches. */
Test(sparse, what_is_not_supported_is_skipped)
{
    sound = device.mlas[0];
    sound_index = device.indexes[0];
    device.mlas[0].run = refuse_lists;
    expect_skipped("lists of another length", 7);
    device.mlas[0].run = refuse_fp8;
    expect_skipped("no FP8 cache", 10);
    device.mlas[0].run = sound.run;
    device.indexes[0].run = refuse_index;
    expect_skipped("no such indexer", 13);
}
