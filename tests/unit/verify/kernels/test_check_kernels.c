/* Tests the check of block FP8 products: correct kernels pass, and planted faults are found. */
#include "tests/unit/verify/kernels/coded_checkpoint.h"

#include "kernels/cpu/cpu.h"
#include "tests/unit/kernels/fp8_product.h"
#include "verify/kernels/check_gemm.h"

static void make_checkpoint(void)
{
    make_block_fp8("up_proj");
}

/* How many kernel judgements fail, of how many. */
static size_t failures(tsr_device *device, const char *glob, unsigned outs, size_t *all)
{
    const tsr_kernel_options options = options_for(device, &glob);
    tsr_evidence evidence = {0};
    size_t failed = 0;
    cr_assert_eq(tsr_check_gemm(&options, outs, &evidence, &err), TSR_OK, "%s", err.msg);
    *all = 0;
    for (size_t i = 0; i < evidence.count; i++) {
        if (evidence.items[i].kind != TSR_ERROR_KERNEL)
            continue;
        failed += evidence.items[i].fault != NULL;
        *all += 1;
    }
    tsr_evidence_free(&evidence);
    return failed;
}

/* ---- faults: each runs the CPU's model on something slightly else ---- */

typedef enum fault {
    SOUND,
    TRANSPOSED_SCALES,
    LOST_BLOCK,
    SHIFTED_SCALES,
    NOT_PROMOTED,
    SWAPPED_COLUMNS,
    LAST_ROW_UNWRITTEN,
    WRITES_PADDING,
    OFF_BY_AN_ULP,
    N_FAULTS,
} fault;

static tsr_status run_faulty(const tsr_device_gemm *kernel, size_t rank, const tsr_fp8_gemm_args *args, tsr_out out,
                             tsr_err *e)
{
    enum { GRID = N / 128 * (K / 128) };
    tsr_cpu_kernels kernels;
    tsr_fp8_gemm_args g = *args;
    float scales[GRID];
    (void)rank, (void)e;
    tsr_cpu_kernels_init(&kernels, tsr_cpu_flags());
    memcpy(scales, g.scale_w, sizeof scales);
    g.scale_w = scales;
    switch ((fault)kernel->variant) {
    case TRANSPOSED_SCALES:
        for (size_t i = 0; i < GRID; i++)
            scales[i] = args->scale_w[i % (N / 128) * (K / 128) + i / (N / 128)];
        break;
    case LOST_BLOCK:
        scales[5] = 0;
        break;
    case SHIFTED_SCALES:
        for (size_t i = 0; i < GRID; i++)
            scales[i] = args->scale_w[(i + 1) % GRID];
        break;
    case LAST_ROW_UNWRITTEN:
        g.m--;
        break;
    default:
        break;
    }
    if (kernel->variant == NOT_PROMOTED)
        kernels.fp8_gemm_unpromoted(&g);
    else
        kernels.fp8_gemm_tensor_core(&g);
    if (kernel->variant == SWAPPED_COLUMNS) {
        const float first = g.d[3];
        g.d[3] = g.d[4];
        g.d[4] = first;
    }
    if (kernel->variant == WRITES_PADDING)
        g.d[g.m * g.ldd] = 0;
    if (kernel->variant == OFF_BY_AN_ULP) {
        for (size_t i = 0; i < g.m * g.n; i++)
            g.d[i] *= 1 + 0x1p-7f;
    }
    for (size_t i = 0; i < g.m; i++)
        tsr_out_round(out, g.d + i * g.ldd, g.n);
    return TSR_OK;
}

static tsr_device faulty_device(fault planted)
{
    tsr_device device = {.name = "planted"};
    const tsr_device_gemm gemm = {.name = "planted",
                                  .accumulation = TSR_ACCUMULATE_PROMOTED,
                                  .run = run_faulty,
                                  .rounds_last = true,
                                  .variant = planted};
    cr_assert_eq(tsr_device_add_gemm(&device, &gemm, NULL), TSR_OK);
    return device;
}

TestSuite(kernels, .init = make_checkpoint, .fini = remove_checkpoint);

/* The table is full with eight of a kind. The error, which may be NULL, reports it, and the table does not change. */
Test(kernels, a_full_table_takes_no_more)
{
    tsr_device full = {.name = "full"};
    for (size_t i = 0; i < TSR_DEVICE_KERNELS; i++) {
        cr_assert_eq(tsr_device_add_gemm(&full, &(tsr_device_gemm){.name = "g"}, &err), TSR_OK);
        cr_assert_eq(tsr_device_add_epilogue(&full, &(tsr_device_epilogue){.name = "e"}, &err), TSR_OK);
        cr_assert_eq(tsr_device_add_dequant(&full, &(tsr_device_dequant){.name = "d"}, &err), TSR_OK);
        cr_assert_eq(tsr_device_add_weight_only(&full, &(tsr_device_weight_only){.name = "w"}, &err), TSR_OK);
        cr_assert_eq(tsr_device_add_mx_dequant(&full, &(tsr_device_mx_dequant){.name = "v"}, &err), TSR_OK);
        cr_assert_eq(tsr_device_add_mx_gemm(&full, &(tsr_device_mx_gemm){.name = "x"}, &err), TSR_OK);
        cr_assert_eq(tsr_device_add_mla(&full, &(tsr_device_mla){.name = "m"}, &err), TSR_OK);
        cr_assert_eq(tsr_device_add_prefill(&full, &(tsr_device_prefill){.name = "p"}, &err), TSR_OK);
    }
    const tsr_device before = full;
    cr_assert_eq(tsr_device_add_gemm(&full, &(tsr_device_gemm){.name = "one more"}, &err), TSR_E_UNSUPPORTED);
    cr_assert_str_eq(err.msg, "full: cannot add kernel 'one more': more than 8 of one kind");
    cr_assert_eq(tsr_device_add_epilogue(&full, &(tsr_device_epilogue){.name = "e"}, NULL), TSR_E_UNSUPPORTED);
    cr_assert_eq(tsr_device_add_dequant(&full, &(tsr_device_dequant){.name = "d"}, NULL), TSR_E_UNSUPPORTED);
    cr_assert_eq(tsr_device_add_weight_only(&full, &(tsr_device_weight_only){.name = "w"}, NULL), TSR_E_UNSUPPORTED);
    cr_assert_eq(tsr_device_add_mx_dequant(&full, &(tsr_device_mx_dequant){.name = "v"}, NULL), TSR_E_UNSUPPORTED);
    cr_assert_eq(tsr_device_add_mx_gemm(&full, &(tsr_device_mx_gemm){.name = "x"}, NULL), TSR_E_UNSUPPORTED);
    cr_assert_eq(tsr_device_add_mla(&full, &(tsr_device_mla){.name = "m"}, NULL), TSR_E_UNSUPPORTED);
    cr_assert_eq(tsr_device_add_prefill(&full, &(tsr_device_prefill){.name = "p"}, NULL), TSR_E_UNSUPPORTED);
    cr_assert_eq(memcmp(&before, &full, sizeof full), 0);
}

static int dense_runs, grouped_runs;

static tsr_status count_dense(const tsr_device_gemm *kernel, size_t rank, const tsr_fp8_gemm_args *args, tsr_out out,
                              tsr_err *e)
{
    (void)kernel, (void)rank, (void)args, (void)out, (void)e;
    dense_runs++;
    return TSR_OK;
}

static tsr_status count_grouped(const tsr_device_gemm *kernel, size_t rank, const tsr_grouped_gemm *grouped,
                                tsr_out out, tsr_err *e)
{
    (void)kernel, (void)rank, (void)grouped, (void)out, (void)e;
    grouped_runs++;
    return TSR_OK;
}

/* Without this the kernels of single weights would not be judged. */
Test(kernels, one_weight_is_no_group_of_one)
{
    const int32_t experts[] = {0, 0, 1};
    const tsr_device_gemm kernel = {.run = count_dense, .run_grouped = count_grouped};
    static const uint8_t codes[3];
    static const float scales[3];
    static float results[3];
    tsr_grouped_gemm g = {
        .gemm = fp8_product_of(fp8_product(2, 1, 1), codes, scales, codes, scales, results),
        .groups = 1,
        .expert_of_row = experts,
    };
    cr_assert_eq(tsr_device_run_grouped(&kernel, 0, &g, TSR_OUT_F32, &err), TSR_OK);
    cr_assert(dense_runs == 1 && grouped_runs == 0);
    g.groups = 2, g.gemm.m = 3;
    cr_assert_eq(tsr_device_run_grouped(&kernel, 0, &g, TSR_OUT_F32, &err), TSR_OK);
    cr_assert(dense_runs == 1 && grouped_runs == 1);
}

Test(kernels, sound_ones_pass)
{
    tsr_device device;
    size_t all;
    cr_assert_eq(tsr_device_open(&device, TSR_DEVICE_CPU, NULL, &err), TSR_OK);
    cr_assert_eq(failures(&device, "m.o_proj.weight", 7, &all), 0);
    cr_assert_eq(all, 9); /* three kernels, three result types */
    cr_assert_eq(failures(&device, "*experts*", 7, &all), 0);
    cr_assert_eq(all, 18); /* and two layouts */
    tsr_device_close(&device);
}

Test(kernels, planted_faults_are_found)
{
    for (fault planted = SOUND; planted < N_FAULTS; planted++) {
        tsr_device device = faulty_device(planted);
        const bool grouped = planted == WRITES_PADDING;
        size_t all;
        const size_t failed = failures(&device, grouped ? "*experts*" : "*o_proj*", 1u << TSR_OUT_F32, &all);
        if (planted == SOUND)
            cr_assert_eq(failed, 0);
        else
            cr_assert_gt(failed, 0, "fault %d passes", (int)planted);
    }
}

Test(kernels, bf16_shows_faults_too)
{
    static const fault kFaults[] = {TRANSPOSED_SCALES, LOST_BLOCK, SHIFTED_SCALES, SWAPPED_COLUMNS, OFF_BY_AN_ULP};
    for (size_t i = 0; i < sizeof kFaults / sizeof *kFaults; i++) {
        tsr_device device = faulty_device(kFaults[i]);
        size_t all;
        cr_assert_gt(failures(&device, "*o_proj*", 1u << TSR_OUT_BF16, &all), 0, "fault %d passes", (int)kFaults[i]);
    }
}

Test(kernels, results_do_not_depend_on_threads)
{
    expect_same_on_any_threads(10);
}
