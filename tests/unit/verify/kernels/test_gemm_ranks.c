/* Tests products divided among ranks: correct ranks pass, and faults planted in a rank or in the sum are found. */
#include "tests/unit/unspread_ranks.h"
#include "tests/unit/verify/kernels/coded_checkpoint.h"

#include "verify/evidence/device_ranks.h"
#include "verify/kernels/check_gemm.h"

#include <math.h>

static tsr_device device;
static tsr_device_gemm sound;

static void open_device(void)
{
    make_block_fp8("down_proj");
    cr_assert_eq(tsr_device_open(&device, TSR_DEVICE_CPU, NULL, &err), TSR_OK);
    sound = device.gemms[1]; /* the model of a tensor core */
    sound_sum = sound.ranks.sum;
    device.gemms[0] = sound;
    device.n_gemms = 1;
}

static void close_device(void)
{
    tsr_device_close(&device);
    remove_checkpoint();
}

typedef struct verdict {
    size_t sums, failed, others_failed; /* sums over ranks, and other judgements */
    char fault[TSR_MAX_FAULT];          /* fault of the first sum that fails */
} verdict;

static verdict judge(const char *glob, uint64_t ranks, unsigned outs)
{
    tsr_kernel_options options = options_for(&device, &glob);
    tsr_evidence evidence = {0};
    verdict v = {0};
    options.ranks = ranks;
    cr_assert_eq(tsr_check_gemm(&options, outs, &evidence, &err), TSR_OK, "%s", err.msg);
    for (size_t i = 0; i < evidence.count; i++) {
        const tsr_judgement *const j = &evidence.items[i];
        const bool sum = strstr(j->what, "ranks in turn: sum") != NULL;
        v.sums += sum;
        v.others_failed += !sum && j->fault != NULL;
        if (sum && j->fault != NULL && v.failed++ == 0)
            snprintf(v.fault, sizeof v.fault, "%s", j->fault);
    }
    tsr_evidence_free(&evidence);
    return v;
}

TestSuite(ranks, .init = open_device, .fini = close_device);

Test(ranks, sound_ones_pass)
{
    for (uint64_t n = 2; n <= 16; n *= 2) {
        for (unsigned experts = 0; experts < 2; experts++) {
            const verdict v = judge(experts ? "*experts*" : "*o_proj*", n, 7);
            cr_expect(v.sums == 3 && v.failed == 0 && v.others_failed == 0, "%d ranks: %zu sums, '%s'", (int)n, v.sums,
                      v.fault);
        }
    }
    cr_expect_eq(judge("*", 1, 7).sums, 0);
}

/* ---- faults ---- */

static tsr_status take_a_rank_twice(tsr_device *of, size_t ranks, tsr_out out, float *parts, size_t n, double *seconds,
                                    tsr_err *e)
{
    memcpy(parts + n, parts, n * sizeof *parts);
    return sound.ranks.sum(of, ranks, out, parts, n, seconds, e);
}

/* Truncates results to BF16 instead of rounding them. */
static tsr_status truncate_sums(tsr_device *of, size_t ranks, tsr_out out, float *parts, size_t n, double *seconds,
                                tsr_err *e)
{
    const tsr_status status = sound.ranks.sum(of, ranks, TSR_OUT_F32, parts, n, seconds, e);
    (void)out;
    for (size_t i = 0; i < ranks * n; i++) {
        uint32_t bits;
        memcpy(&bits, &parts[i], sizeof bits);
        bits &= 0xFFFF0000u;
        memcpy(&parts[i], &bits, sizeof bits);
    }
    return status;
}

/* Adds in BF16 although the result has 32 bits. */
static tsr_status add_in_bf16(tsr_device *of, size_t ranks, tsr_out out, float *parts, size_t n, double *seconds,
                              tsr_err *e)
{
    (void)out;
    return sound.ranks.sum(of, ranks, TSR_OUT_BF16, parts, n, seconds, e);
}

/* Scales of rank 1 are those of the next block. */
static tsr_status shift_scales_of_rank_1(const tsr_device_gemm *kernel, size_t rank, const tsr_fp8_gemm_args *args,
                                         tsr_out out, tsr_err *e)
{
    enum { GRID = N / 128 * (K / 128) };
    tsr_fp8_gemm_args other = *args;
    float scales[GRID];
    const size_t n = args->n / 128 * (args->k / 128);
    for (size_t i = 0; i < n; i++)
        scales[i] = args->scale_w[rank == 1 ? (i + 1) % n : i];
    other.scale_w = scales;
    return sound.run(kernel, rank, &other, out, e);
}

static tsr_status lose_the_last_block_of_rank_1(const tsr_device_gemm *kernel, size_t rank,
                                                const tsr_fp8_gemm_args *args, tsr_out out, tsr_err *e)
{
    static uint8_t a[64 * K];
    tsr_fp8_gemm_args other = *args;
    memcpy(a, args->a, args->m * args->k);
    for (size_t i = 0; rank == 1 && i < args->m; i++)
        memset(a + (i + 1) * args->k - 128, 0, 128);
    other.a = a;
    return sound.run(kernel, rank, &other, out, e);
}

Test(ranks, planted_faults_are_found)
{
    static const struct {
        const char *fault;
        tsr_device_gemm_fn *run;
        tsr_device_sum_fn *sum;
        unsigned out;
    } kFaults[] = {
        {"the largest error is", NULL, lose_a_rank, 1u << TSR_OUT_BF16},
        {"the largest error is", NULL, take_a_rank_twice, 1u << TSR_OUT_BF16},
        {TSR_RANKS_DIFFER, NULL, forget_to_send, 1u << TSR_OUT_F32},
        {"", NULL, truncate_sums, 1u << TSR_OUT_BF16}, /* by the bound, the RMS or the bias */
        {"the RMS error is", NULL, add_in_bf16, 1u << TSR_OUT_F32},
        {"the largest error is", shift_scales_of_rank_1, NULL, 1u << TSR_OUT_BF16},
        {"the largest error is", lose_the_last_block_of_rank_1, NULL, 1u << TSR_OUT_F32},
    };
    for (size_t i = 0; i < sizeof kFaults / sizeof *kFaults; i++) {
        device.gemms[0].run = kFaults[i].run != NULL ? kFaults[i].run : sound.run;
        device.gemms[0].ranks.sum = kFaults[i].sum != NULL ? kFaults[i].sum : sound.ranks.sum;
        const verdict v = judge("*o_proj*", 2, kFaults[i].out);
        cr_expect(v.failed == 1 && v.others_failed == 0, "fault %zu: %zu of %zu fail, and %zu others", i, v.failed,
                  v.sums, v.others_failed);
        cr_expect(strncmp(v.fault, kFaults[i].fault, strlen(kFaults[i].fault)) == 0, "fault %zu: '%s'", i, v.fault);
    }
}

/* ---- refusals ---- */

static bool gpu_per_rank;

static tsr_status check(const char *glob, uint64_t ranks, tsr_evidence *evidence)
{
    tsr_kernel_options options = options_for(&device, &glob);
    options.ranks = ranks;
    options.gpu_per_rank = gpu_per_rank;
    return tsr_check_gemm(&options, 1u << TSR_OUT_BF16, evidence, &err);
}

Test(ranks, what_cannot_be_divided_is_refused)
{
    tsr_evidence evidence = {0};
    cr_assert_eq(check("*o_proj*", 3, &evidence), TSR_E_USAGE);
    cr_assert_not_null(strstr(err.msg, "--tp 3: 'm.o_proj.weight' has 2048 input features in blocks of 128"));
    cr_assert_str_eq(err.tensor, "m.o_proj.weight");
    cr_assert_eq(check("*o_proj*", 32, &evidence), TSR_E_USAGE); /* half a block each */
    remove_checkpoint();
    strcpy(fixture_folder + strlen(fixture_folder) - 6, "XXXXXX");
    make_block_fp8("up_proj");
    cr_assert_eq(check("*experts*", 2, &evidence), TSR_E_NOT_APPLICABLE);
    cr_assert_not_null(strstr(err.msg, "none of the tensors is a row-parallel weight"));
    tsr_evidence_free(&evidence);
}

Test(ranks, devices_that_are_not_connected)
{
    tsr_evidence evidence = {0};
    device.gemms[1] = device.gemms[0];
    device.n_gemms = 2;
    device.gemms[0].ranks.spread = device.gemms[1].ranks.spread = stay;
    cr_assert_eq(check("*", 2, &evidence), TSR_OK, "%s", err.msg);
    cr_assert_eq(evidence.n_skipped, 1);
    cr_assert_str_eq(evidence.skipped[0].why, "the ranks run one after another on one GPU: no second one");
    cr_assert_eq(evidence.failed, 0);
    tsr_evidence_free(&evidence);
    evidence = (tsr_evidence){0};
    gpu_per_rank = true;
    cr_assert_eq(check("*", 2, &evidence), TSR_E_DEVICE);
    cr_assert_str_eq(err.msg, "--devices: no second one; without --devices, the ranks run one after another");
    gpu_per_rank = false;
    device.gemms[0].ranks.spread = fail_to_connect;
    cr_assert_eq(check("*", 2, &evidence), TSR_E_DEVICE);
    cr_assert_str_eq(err.msg, "no answer");
    tsr_evidence_free(&evidence);
}
