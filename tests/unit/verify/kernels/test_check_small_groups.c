/* Tests the checks of MXFP4, MXFP8 and NVFP4: correct kernels pass, and planted faults and invalid scales are found. */
#include "tests/unit/verify/kernels/coded_checkpoint.h"

#include "verify/kernels/check_dequant.h"
#include "verify/kernels/check_gemm.h"

enum { ROWS = 160, COLUMNS = 512 };

static uint8_t damage; /* written over the first scale of NVFP4 */

static const char *const kGlobs[] = {"m.four.*", "m.eight.*", "m.nv.*"};

/* Codes and scales of each kind, then the global scales. */
static const fixture_tensor kTensors[] = {
    {"m.four.weight_packed", {ROWS, COLUMNS / 2}, "U8"},
    {"m.four.weight_scale", {ROWS, COLUMNS / 32}, "U8"},
    {"m.eight.weight", {ROWS, COLUMNS}, "F8_E4M3"},
    {"m.eight.weight_scale", {ROWS, COLUMNS / 32}, "U8"},
    {"m.nv.weight_packed", {ROWS, COLUMNS / 2}, "U8"},
    {"m.nv.weight_scale", {ROWS, COLUMNS / 16}, "F8_E4M3"},
    {"m.nv.weight_global_scale", {1}, "F32"},
    {"m.nv.input_global_scale", {1}, "F32"},
};

static void make_small_checkpoint(void)
{
    static const float kGlobals[] = {173.5f, 21.25f};
    FILE *const file = begin_checkpoint("{}", kTensors, sizeof kTensors / sizeof *kTensors);
    for (size_t i = 0; i < sizeof kGlobs / sizeof *kGlobs; i++) {
        const uint64_t *const codes = kTensors[2 * i].shape, *const scales = kTensors[2 * i + 1].shape;
        write_tensor(file, (uint64_t)i << 40, codes[0] * codes[1], 0);
        for (size_t s = 0; s < scales[0] * scales[1]; s++) {
            const uint64_t r = tsr_mix_bits(~(uint64_t)s * (i + 1));
            fputc(i == 2 && s == 0 && damage != 0 ? damage : (int)(i == 2 ? 0x20 + r % 0x50 : 118 + r % 8), file);
        }
    }
    fwrite(kGlobals, sizeof kGlobals, 1, file);
    open_checkpoint(file);
}

/* Runs the check; *all is how many judgements of kernels there are. Returns how many fail. */
static size_t failures(tsr_kernel_check_fn *check, tsr_device *device, const char *glob, unsigned outs, size_t *all)
{
    const tsr_kernel_options options = options_for(device, &glob);
    tsr_evidence evidence = {0};
    cr_assert_eq(check(&options, outs, &evidence, &err), TSR_OK, "%s", err.msg);
    *all = 0;
    for (size_t i = 0; i < evidence.count; i++)
        *all += evidence.items[i].kind == TSR_ERROR_KERNEL;
    const size_t failed = evidence.failed;
    tsr_evidence_free(&evidence);
    return failed;
}

static void open_cpu(tsr_device *device)
{
    cr_assert_eq(tsr_device_open(device, TSR_DEVICE_CPU, NULL, &err), TSR_OK);
}

TestSuite(small_groups, .init = make_small_checkpoint, .fini = remove_checkpoint);

Test(small_groups, sound_kernels_pass)
{
    tsr_device device;
    size_t all;
    open_cpu(&device);
    for (size_t i = 0; i < 3; i++) {
        const char *const glob = kGlobs[i];
        cr_assert_eq(failures(tsr_check_gemm, &device, glob, 7, &all), 0, "%s", glob);
        cr_assert_eq(all, 6, "%s: %zu", glob, all); /* two forms of activations, three types */
        cr_assert_eq(failures(tsr_check_dequant, &device, glob, 7, &all), 0, "%s", glob);
        cr_assert_eq(all, 1);
    }
    tsr_device_close(&device);
}

/* ---- faults: each runs the reference on something slightly else ---- */

typedef enum fault {
    SOUND,
    SWAPPED_NIBBLES,
    NEXT_SCALES,      /* each group has the scale of the next one */
    SCALES_DOWN_ROWS, /* every row has the first one's */
    LOST_GROUP,
    INVERTED_GLOBAL,
    SWAPPED_COLUMNS,
    LAST_ROW_UNWRITTEN,
    OFF_BY_A_MILLIONTH,
    N_FAULTS,
} fault;

static uint8_t other_codes[ROWS * COLUMNS], other_scales[ROWS * COLUMNS / 16];

/* Modifies a copy of W by the fault. */
static void spoil(fault planted, tsr_mx_matrix *w, size_t n, size_t k)
{
    const size_t bytes = tsr_mx_form_bytes(w->form, n * k), group = tsr_mx_form_group(w->form), scales = n * k / group;
    memcpy(other_codes, w->codes, bytes);
    memcpy(other_scales, w->scales, scales);
    for (size_t i = 0; planted == SWAPPED_NIBBLES && i < bytes; i++)
        other_codes[i] = (uint8_t)(other_codes[i] << 4 | other_codes[i] >> 4);
    for (size_t i = 0; planted == NEXT_SCALES && i < scales; i++)
        other_scales[i] = w->scales[(i + 1) % scales];
    for (size_t i = 0; planted == SCALES_DOWN_ROWS && i < scales; i++)
        other_scales[i] = w->scales[i % (k / group)];
    if (planted == LOST_GROUP)
        memset(other_codes + tsr_mx_form_bytes(w->form, k), 0, tsr_mx_form_bytes(w->form, group));
    if (planted == INVERTED_GLOBAL)
        w->form = w->form == TSR_MX_FORM_NVFP4_DIVIDED ? TSR_MX_FORM_NVFP4_TIMES : TSR_MX_FORM_NVFP4_DIVIDED;
    w->codes = other_codes;
    w->scales = other_scales;
}

static tsr_status run_faulty(const tsr_device_mx_gemm *kernel, const tsr_mx_gemm_args *args, tsr_out out, tsr_err *e)
{
    tsr_mx_gemm_args g = *args;
    (void)e;
    spoil((fault)kernel->variant, &g.w, g.n, g.k);
    g.m -= kernel->variant == LAST_ROW_UNWRITTEN;
    tsr_mx_gemm_reference(&g);
    if (kernel->variant == SWAPPED_COLUMNS) {
        const float first = g.d[3];
        g.d[3] = g.d[4];
        g.d[4] = first;
    }
    for (size_t i = 0; kernel->variant == OFF_BY_A_MILLIONTH && i < g.m * g.n; i++)
        g.d[i] *= 1 + 1e-6f;
    for (size_t i = 0; i < g.m; i++)
        tsr_out_round(out, g.d + i * g.ldd, g.n);
    return TSR_OK;
}

Test(small_groups, planted_faults_of_products_are_found)
{
    for (fault planted = SOUND; planted < N_FAULTS; planted++) {
        for (size_t i = 0; i < 3; i++) {
            tsr_device device;
            size_t all;
            if ((planted == SWAPPED_NIBBLES && i == 1) || (planted == INVERTED_GLOBAL && i != 2))
                continue;
            open_cpu(&device);
            device.n_mx_gemms = 0;
            const tsr_device_mx_gemm gemm = {.name = "planted", .run = run_faulty, .variant = planted};
            cr_assert_eq(tsr_device_add_mx_gemm(&device, &gemm, &err), TSR_OK);
            const char *const glob = kGlobs[i];
            const size_t failed = failures(tsr_check_gemm, &device, glob, 1u << TSR_OUT_F32, &all);
            cr_assert_eq(failed > 0, planted != SOUND, "fault %d of %s: %zu of %zu fail", (int)planted, glob, failed,
                         all);
            tsr_device_close(&device);
        }
    }
}

/* Decodes correctly and flips a bit of one value: the sign of a zero counts, too. */
static tsr_status flip_a_sign(const tsr_device_mx_dequant *kernel, const tsr_mx_matrix *matrix, size_t rows, size_t k,
                              uint16_t *values, tsr_err *e)
{
    const tsr_device_mx_dequant *const sound = (const tsr_device_mx_dequant *)kernel->variant;
    const tsr_status status = sound->run(sound, matrix, rows, k, values, e);
    size_t i = 0;
    while (i + 1 < rows * k && (values[i] & 0x7FFF) != 0)
        i++;
    values[i] ^= 0x8000;
    return status;
}

Test(small_groups, one_wrong_value_is_found)
{
    for (size_t i = 0; i < 3; i++) {
        tsr_device device;
        size_t all;
        open_cpu(&device);
        const tsr_device_mx_dequant sound = device.mx_dequants[0];
        device.n_mx_dequants = 0;
        const tsr_device_mx_dequant planted = {"planted", flip_a_sign, NULL, (uintptr_t)&sound};
        cr_assert_eq(tsr_device_add_mx_dequant(&device, &planted, &err), TSR_OK);
        const char *const glob = kGlobs[i];
        cr_assert_eq(failures(tsr_check_dequant, &device, glob, 1u << TSR_OUT_BF16, &all), 1, "%s", glob);
        tsr_device_close(&device);
    }
}

Test(small_groups, results_do_not_depend_on_threads)
{
    expect_same_on_any_threads(18);
}

/* ---- faults of the checkpoint ---- */

static void make_damaged_checkpoint(void)
{
    damage = 0x83; /* a negative scale */
    make_small_checkpoint();
}

Test(small_groups_damaged, a_negative_scale_is_named, .init = make_damaged_checkpoint, .fini = remove_checkpoint)
{
    static tsr_kernel_check_fn *const kCheckFns[] = {tsr_check_gemm, tsr_check_dequant};
    const char *const glob = "m.nv.*";
    tsr_device device;
    open_cpu(&device);
    for (size_t i = 0; i < 2; i++) {
        tsr_evidence evidence = {0};
        tsr_kernel_options options = options_for(&device, &glob);
        options.columns = 0;
        cr_assert_eq(kCheckFns[i](&options, 7, &evidence, &err), TSR_OK, "%s", err.msg);
        cr_assert_eq(evidence.count, 1);
        cr_assert_eq(evidence.items[0].kind, TSR_ERROR_CHECKPOINT);
        cr_assert_not_null(strstr(evidence.items[0].fault, "row 0, group 0"), "%s", evidence.items[0].fault);
        tsr_evidence_free(&evidence);
    }
    tsr_device_close(&device);
}
