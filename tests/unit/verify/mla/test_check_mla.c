/* Tests verify mla: a correct device passes, and every fault planted in a kernel, in W_o or in the sum over ranks is
 * found in its place. */
#include "common/float_bits.h"
#include "tests/unit/unspread_ranks.h"
#include "tests/unit/verify/mla/mla_layer.h"

#include <math.h>

enum { HIDDEN = 64, HEADS = 4, NOPE = 16, ROPE = 8, V = 16, RANK = 128, RANKS = 2 };

static const char kConfig[] =
    "{\"hidden_size\": 64, \"num_attention_heads\": 4, \"qk_nope_head_dim\": 16, \"qk_rope_head_dim\": 8, "
    "\"v_head_dim\": 16, \"kv_lora_rank\": 128, \"q_lora_rank\": null, \"rope_theta\": 10000}";

static const fixture_tensor kTensors[] = {{"q_proj.weight", {HEADS * (NOPE + ROPE), HIDDEN}, NULL},
                                          {"kv_a_proj_with_mqa.weight", {RANK + ROPE, HIDDEN}, NULL},
                                          {"kv_a_layernorm.weight", {RANK}, NULL},
                                          {"kv_b_proj.weight", {HEADS * (NOPE + V), RANK}, NULL},
                                          {"o_proj.weight", {HIDDEN, HEADS *V}, NULL}};

static void open_layer(void)
{
    open_layer_of(kConfig, kTensors, sizeof kTensors / sizeof *kTensors);
}

static uint64_t context = 150;

/* Runs the check. Returns the first judgement that fails, or "". */
static const char *first_failure(void)
{
    static char what[256];
    const tsr_kernel_options options = {.side = {checkpoint, &weights},
                                        .device = &device,
                                        .seed = 5,
                                        .limits = tsr_kernel_limits_defaults(),
                                        .ranks = RANKS,
                                        .mla = {.batch = 4, .context = context, .new_tokens = 2, .fp8_cache = true}};
    tsr_evidence evidence = {0};
    cr_assert_eq(tsr_check_mla(&options, 0, &evidence, &err), TSR_OK, "%s", err.msg);
    what[0] = '\0';
    cr_assert_gt(evidence.count, 10); /* a check that judged nothing finds no fault either */
    for (size_t i = 0; i < evidence.count && what[0] == '\0'; i++) {
        if (evidence.items[i].fault != NULL)
            snprintf(what, sizeof what, "%s: %s", evidence.items[i].what, evidence.items[i].fault);
    }
    tsr_evidence_free(&evidence);
    return what;
}

/* ---- faults: each is the CPU's function over something slightly else ---- */

static tsr_device_mla sound;

static tsr_status drop_last_page(const tsr_device_mla *kernel, size_t rank, const tsr_mla_attention *args,
                                 double *seconds, tsr_err *e)
{
    int32_t seqlens[4];
    tsr_mla_attention other = *args;
    for (size_t b = 0; b < args->batch; b++)
        seqlens[b] = args->seqlens[b] > 64 ? args->seqlens[b] / 64 * 64 : args->seqlens[b];
    other.seqlens = seqlens;
    return sound.run(kernel, rank, &other, seconds, e);
}

static tsr_status use_another_scale(const tsr_device_mla *kernel, size_t rank, const tsr_mla_attention *args,
                                    double *seconds, tsr_err *e)
{
    tsr_mla_attention other = *args;
    other.scale *= 1.01f;
    return sound.run(kernel, rank, &other, seconds, e);
}

/* Makes an error within the worst case, but above the expected one. */
static tsr_status use_nearly_the_scale(const tsr_device_mla *kernel, size_t rank, const tsr_mla_attention *args,
                                       double *seconds, tsr_err *e)
{
    tsr_mla_attention other = *args;
    other.scale *= 1.00001f;
    return sound.run(kernel, rank, &other, seconds, e);
}

static tsr_status leave_the_last_slot(const tsr_device_mla *kernel, size_t rank, const tsr_mla_attention *args,
                                      double *seconds, tsr_err *e)
{
    tsr_mla_attention other = *args;
    other.batch--;
    return sound.run(kernel, rank, &other, seconds, e);
}

static tsr_status swap_heads_of_rank_1(const tsr_device_mla *kernel, size_t rank, const tsr_mla_attention *args,
                                       double *seconds, tsr_err *e)
{
    float first[RANK];
    const tsr_status status = sound.run(kernel, rank, args, seconds, e);
    if (rank == 1) {
        memcpy(first, args->out, sizeof first);
        memcpy(args->out, args->out + RANK, sizeof first);
        memcpy(args->out + RANK, first, sizeof first);
    }
    return status;
}

static tsr_status drop_last_column(const tsr_device_mla *kernel, size_t rank, const tsr_project_args *args, tsr_err *e)
{
    tsr_project_args other = *args;
    other.k--;
    return sound.project(kernel, rank, &other, e);
}

static tsr_status add_in_bf16(tsr_device *of, size_t ranks, tsr_out out, float *parts, size_t n, double *seconds,
                              tsr_err *e)
{
    tsr_out_round(TSR_OUT_BF16, parts, ranks * n);
    return sound.ranks.sum(of, ranks, out, parts, n, seconds, e);
}

/* Makes an error within the worst case, but above the expected one. */
static tsr_status add_in_19_bits(tsr_device *of, size_t ranks, tsr_out out, float *parts, size_t n, double *seconds,
                                 tsr_err *e)
{
    for (size_t i = 0; i < ranks * n; i++) {
        const float shifted = parts[i] * 33;
        parts[i] = shifted - (shifted - parts[i]);
    }
    return sound.ranks.sum(of, ranks, out, parts, n, seconds, e);
}

/* Makes a tensor core's result that is off by one part in 150 if `variant` is set. */
static tsr_status run_in_bf16(const tsr_device_mla *kernel, size_t rank, const tsr_mla_attention *args, double *seconds,
                              tsr_err *e)
{
    const size_t n = args->batch * args->s_q * args->heads * args->latent;
    const tsr_status status = sound.run(kernel, rank, args, seconds, e);
    for (size_t i = 0; kernel->variant != 0 && i < n; i++)
        args->out[i] *= 1 + 1 / 150.0f;
    tsr_out_round(TSR_OUT_BF16, args->out, n);
    return status;
}

static tsr_device_prefill sound_prefill;

/* Makes each query also see the next token. */
static tsr_status look_ahead(const tsr_device_prefill *kernel, const tsr_causal_attention *args, double *seconds,
                             tsr_err *e)
{
    int32_t tokens[5];
    tsr_causal_attention other = *args;
    for (size_t b = 0; b <= args->batch; b++)
        tokens[b] = args->cu_seqlens_k[b] + (b == 1 ? 1 : 0);
    other.cu_seqlens_k = tokens;
    return sound_prefill.run(kernel, &other, seconds, e);
}

static tsr_status miss_the_rope(const tsr_device_prefill *kernel, const tsr_causal_attention *args, double *seconds,
                                tsr_err *e)
{
    static uint16_t zeros[1000 * ROPE];
    tsr_causal_attention other = *args;
    other.k_rope = zeros;
    return sound_prefill.run(kernel, &other, seconds, e);
}

static tsr_status leave_the_last_query(const tsr_device_prefill *kernel, const tsr_causal_attention *args,
                                       double *seconds, tsr_err *e)
{
    int32_t queries[5];
    tsr_causal_attention other = *args;
    memcpy(queries, args->cu_seqlens_q, (args->batch + 1) * sizeof *queries);
    queries[args->batch]--;
    other.cu_seqlens_q = queries;
    return sound_prefill.run(kernel, &other, seconds, e);
}

/* Makes an error within the worst case, but above the expected one. */
static tsr_status prefill_with_nearly_the_scale(const tsr_device_prefill *kernel, const tsr_causal_attention *args,
                                                double *seconds, tsr_err *e)
{
    tsr_causal_attention other = *args;
    other.scale *= 1.00001f;
    return sound_prefill.run(kernel, &other, seconds, e);
}

TestSuite(mla, .init = open_layer, .fini = close_layer);

Test(mla, a_sound_device_passes)
{
    cr_assert_str_eq(first_failure(), "");
}

Test(mla, planted_faults_are_found)
{
    const struct {
        const char *what;
        tsr_device_mla_fn *run;
        tsr_device_project_fn *project;
        tsr_device_sum_fn *sum;
    } kFaults[] = {
        {"cpu, paged decode, BF16 cache: above", drop_last_page, NULL, NULL},
        {"cpu, paged decode, BF16 cache: above", use_another_scale, NULL, NULL},
        {"cpu, paged decode, BF16 cache: errors above", use_nearly_the_scale, NULL, NULL},
        {"cpu, paged decode, BF16 cache: above", leave_the_last_slot, NULL, NULL},
        {"cpu, paged decode, 2 ranks in turn: their heads: above", swap_heads_of_rank_1, NULL, NULL},
        {"cpu, paged decode: W_v and W_o uncut, in FP32: above", NULL, drop_last_column, NULL},
        {"cpu, paged decode, 2 ranks in turn: sum against uncut: above", NULL, NULL, lose_a_rank},
        {"cpu, paged decode, 2 ranks in turn: sum against uncut: above", NULL, NULL, add_in_bf16},
        {"cpu, paged decode, 2 ranks in turn: sum against uncut: errors above", NULL, NULL, add_in_19_bits},
        {"cpu, paged decode, 2 ranks in turn: sum against uncut: ranks hold", NULL, NULL, forget_to_send},
    };
    sound = device.mlas[0];
    sound_sum = sound.ranks.sum;
    for (size_t i = 0; i < sizeof kFaults / sizeof *kFaults; i++) {
        device.mlas[0].run = kFaults[i].run != NULL ? kFaults[i].run : sound.run;
        device.mlas[0].project = kFaults[i].project != NULL ? kFaults[i].project : sound.project;
        device.mlas[0].ranks.sum = kFaults[i].sum != NULL ? kFaults[i].sum : sound.ranks.sum;
        const char *const found = first_failure();
        cr_assert(strncmp(found, kFaults[i].what, strlen(kFaults[i].what)) == 0, "fault %zu: '%s'", i, found);
    }
}

Test(mla, planted_faults_of_prefill_are_found)
{
    const struct {
        const char *what;
        tsr_device_prefill_fn *run;
    } kFaults[] = {{"cpu, prefill: above", look_ahead},
                   {"cpu, prefill: above", miss_the_rope},
                   {"cpu, prefill: above", leave_the_last_query},
                   {"cpu, prefill: errors above", prefill_with_nearly_the_scale}};
    sound_prefill = device.prefills[0];
    for (size_t i = 0; i < sizeof kFaults / sizeof *kFaults; i++) {
        device.prefills[0].run = kFaults[i].run;
        const char *const found = first_failure();
        cr_assert(strncmp(found, kFaults[i].what, strlen(kFaults[i].what)) == 0, "fault %zu: '%s'", i, found);
    }
}

Test(mla, what_the_bound_hides_the_expected_error_shows)
{
    sound = device.mlas[0];
    device.mlas[0].run = run_in_bf16;
    device.mlas[0].tensor_core = device.mlas[0].to_bf16 = true;
    cr_assert_str_eq(first_failure(), "");
    device.mlas[0].variant = 1;
    cr_assert_str_eq(first_failure(), "cpu, paged decode, BF16 cache: errors above those of its accumulation");
}

/* ---- steep scores ---- */

/* Computes like a tensor core's kernel: pages of 64 one after another, each with the largest score so far. With
 * `variant`, the sum before a much larger score is not rescaled. Random scores never differ so much. */
static void attend_by_pages(const tsr_mla_attention *args, const float *q, const float *rows, size_t n, bool forgets,
                            float *out)
{
    const size_t width = args->latent + args->rope;
    double most = -INFINITY, sum = 0, acc[RANK] = {0}, scores[64];
    for (size_t at = 0; at < n; at += 64) {
        const size_t tokens = n - at < 64 ? n - at : 64;
        double next = most;
        for (size_t t = 0; t < tokens; t++) {
            scores[t] = 0;
            for (size_t i = 0; i < width; i++)
                scores[t] += (double)q[i] * (double)rows[(at + t) * width + i];
            scores[t] *= (double)args->scale;
            next = fmax(next, scores[t]);
        }
        const double rescale = forgets && at > 0 && next - most > 4 ? 1 : exp(most - next);
        sum *= rescale;
        for (size_t i = 0; i < RANK; i++)
            acc[i] *= rescale;
        for (size_t t = 0; t < tokens; t++) {
            const double p = (double)tsr_f32_from_bf16(tsr_bf16_from_f64(exp(scores[t] - next)));
            sum += exp(scores[t] - next);
            for (size_t i = 0; i < RANK; i++)
                acc[i] += p * (double)rows[(at + t) * width + i];
        }
        most = next;
    }
    for (size_t i = 0; i < RANK; i++)
        out[i] = n == 0 ? 0 : (float)(acc[i] / sum);
}

static tsr_status run_by_pages(const tsr_device_mla *kernel, size_t rank, const tsr_mla_attention *args,
                               double *seconds, tsr_err *e)
{
    enum { MOST = 2048 };
    static float rows[MOST * (RANK + ROPE)];
    const size_t width = args->latent + args->rope,
                 bytes = tsr_mla_cache_row_bytes(args->latent, args->rope, args->fp8);
    (void)rank, (void)e;
    *seconds = 1e-6;
    for (size_t b = 0; b < args->batch; b++) {
        const size_t n = (size_t)args->seqlens[b];
        for (size_t t = 0; t < n; t++)
            tsr_mla_cache_read((const uint8_t *)args->cache +
                                   ((size_t)args->block_table[b * args->max_pages + t / 64] * 64 + t % 64) * bytes,
                               args->latent, args->rope, args->fp8, rows + t * width);
        for (size_t i = 0; i < args->s_q * args->heads; i++) {
            const size_t s = i / args->heads, at = b * args->s_q * args->heads + i;
            const size_t seen = n + s + 1 > args->s_q ? n + s + 1 - args->s_q : 0;
            float q[RANK + ROPE];
            for (size_t c = 0; c < width; c++)
                q[c] = tsr_f32_from_bf16(args->q[at * width + c]);
            attend_by_pages(args, q, rows, seen, kernel->variant != 0, args->out + at * args->latent);
        }
    }
    tsr_out_round(TSR_OUT_BF16, args->out, args->batch * args->s_q * args->heads * args->latent);
    return TSR_OK;
}

Test(mla, a_rescale_that_is_left_out_shows_with_steep_scores)
{
    device.mlas[0].run = run_by_pages;
    device.mlas[0].tensor_core = device.mlas[0].to_bf16 = true;
    for (context = 300; context <= 2000; context += 1700) {
        for (device.mlas[0].variant = 0; device.mlas[0].variant < 2; device.mlas[0].variant++) {
            const char *const found = first_failure(), *const forgotten =
                                                           "cpu, paged decode, BF16 cache, steep scores: ";
            const size_t length = device.mlas[0].variant == 0 ? sizeof "" : strlen(forgotten);
            cr_assert(strncmp(found, length == 1 ? "" : forgotten, length) == 0, "context %d: '%s'", (int)context,
                      found);
        }
    }
}

/* ---- cases that a device does not support are skipped with a reason, not failed ---- */

static tsr_status refuse(const tsr_device_mla *kernel, size_t rank, const tsr_mla_attention *args, double *seconds,
                         tsr_err *e)
{
    (void)kernel, (void)rank, (void)args, (void)seconds;
    return tsr_fail(e, TSR_E_UNSUPPORTED, "no such shape");
}

Test(mla, what_is_not_taken_is_skipped)
{
    const tsr_kernel_options options = {.side = {checkpoint, &weights},
                                        .device = &device,
                                        .limits = tsr_kernel_limits_defaults(),
                                        .ranks = RANKS,
                                        .mla = {.batch = 2, .context = 9, .new_tokens = 1}};
    tsr_evidence evidence = {0};
    tsr_device_mla other = device.mlas[0];
    other.name = "other";
    other.run = refuse;
    other.ranks.spread = stay;
    cr_assert_eq(tsr_device_add_mla(&device, &other, &err), TSR_OK);
    cr_assert_eq(tsr_check_mla(&options, 0, &evidence, NULL), TSR_OK); /* the message may be NULL */
    cr_assert_eq(evidence.failed, 0);
    cr_assert_eq(evidence.n_skipped, 2);
    cr_assert_str_eq(evidence.skipped[0].why, "no such shape");
    cr_assert_str_eq(evidence.skipped[1].why, "the ranks run one after another on one GPU: no second one");
    cr_assert_gt(evidence.count, 0);
    for (size_t i = 0; i < evidence.count; i++)
        cr_assert_null(strstr(evidence.items[i].what, "other"));
    tsr_evidence_free(&evidence);
    evidence = (tsr_evidence){0};
    device.mlas[1].ranks.spread = fail_to_connect;
    cr_assert_eq(tsr_check_mla(&options, 0, &evidence, &err), TSR_E_DEVICE);
    cr_assert_str_eq(err.msg, "no answer");
    tsr_evidence_free(&evidence);
}
