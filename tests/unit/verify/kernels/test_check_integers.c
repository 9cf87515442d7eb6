/* Tests the checks of int8 epilogues, conversions and weight-only products: correct kernels pass, and planted faults
 * are found. */
#include "tests/unit/verify/kernels/coded_checkpoint.h"

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/weight_only_gemm.h"
#include "verify/kernels/check_dequant.h"
#include "verify/kernels/check_epilogue.h"

#include <math.h>

/* Int8 with a scale a row and a bias. */
static void make_int8_checkpoint(void)
{
    static const fixture_tensor kTensors[] = {
        {"m.o_proj.weight", {N, K}, "I8"}, {"m.o_proj.weight_scale", {N, 1}, "F32"}, {"m.o_proj.bias", {N}, "F32"}};
    FILE *const file = begin_checkpoint(
        "{\"quantization_config\": {\"quant_method\": \"compressed-tensors\", \"format\": \"int-quantized\", "
        "\"config_groups\": {\"group_0\": {\"targets\": [\"Linear\"], \"weights\": {\"num_bits\": 8, "
        "\"type\": \"int\", \"symmetric\": true, \"strategy\": \"channel\"}, \"input_activations\": "
        "{\"num_bits\": 8, \"type\": \"int\", \"symmetric\": true, \"strategy\": \"token\", "
        "\"dynamic\": true}}}}}",
        kTensors, sizeof kTensors / sizeof *kTensors);
    write_tensor(file, 99, (size_t)N * K, 2 * N);
    open_checkpoint(file);
}

/* Int8 in groups of 128 with zero points. */
static void make_grouped_checkpoint(void)
{
    static const fixture_tensor kTensors[] = {{"m.o_proj.weight", {N, K}, "I8"},
                                              {"m.o_proj.weight_scale", {N, K / 128}, "F32"},
                                              {"m.o_proj.weight_zero_point", {N, K / 128}, "I8"}};
    const size_t groups = (size_t)N * K / 128;
    FILE *const file = begin_checkpoint(
        "{\"quantization_config\": {\"quant_method\": \"compressed-tensors\", \"format\": \"int-quantized\", "
        "\"config_groups\": {\"group_0\": {\"targets\": [\"Linear\"], \"weights\": {\"num_bits\": 8, "
        "\"type\": \"int\", \"symmetric\": false, \"strategy\": \"group\", \"group_size\": 128}}}}}",
        kTensors, sizeof kTensors / sizeof *kTensors);
    write_tensor(file, 98, (size_t)N * K, groups);
    write_tensor(file, 97, groups, 0);
    open_checkpoint(file);
}

/* ---- epilogues and converters ---- */

typedef enum epilogue_fault {
    NO_FAULT,
    SHIFTED_AZP_ADJ,
    SWAPPED_BIAS,
    LOST_AZP,
    WRONG_SCALE,
    N_EPILOGUE_FAULTS
} epilogue_fault;

static tsr_status run_faulty_epilogue(const tsr_device_epilogue *kernel, const tsr_int8_gemm_args *args, tsr_out out,
                                      tsr_err *e)
{
    tsr_cpu_kernels kernels;
    tsr_int8_gemm_args g = *args;
    int32_t adj[N];
    float bias[N];
    (void)e;
    tsr_cpu_kernels_init(&kernels, tsr_cpu_flags());
    for (size_t j = 0; kernel->variant == SHIFTED_AZP_ADJ && g.azp_adj != NULL && j < g.n; j++)
        adj[j] = args->azp_adj[(j + 1) % g.n];
    if (kernel->variant == SHIFTED_AZP_ADJ && g.azp_adj != NULL)
        g.azp_adj = adj;
    if (kernel->variant == SWAPPED_BIAS && g.bias != NULL) {
        memcpy(bias, g.bias, g.n * sizeof *bias);
        bias[10] = g.bias[11];
        bias[11] = g.bias[10];
        g.bias = bias;
    }
    if (kernel->variant == LOST_AZP)
        g.azp_with_adj = NULL;
    if (kernel->variant == WRONG_SCALE)
        g.one_scale_w = true;
    kernels.int8_gemm(&g);
    for (size_t i = 0; i < g.m; i++)
        tsr_out_round(out, g.d + i * g.ldd, g.n);
    return TSR_OK;
}

TestSuite(integers, .init = make_int8_checkpoint, .fini = remove_checkpoint);

Test(integers, faults_of_epilogues_are_found)
{
    const char *const glob = "*";
    for (epilogue_fault planted = NO_FAULT; planted < N_EPILOGUE_FAULTS; planted++) {
        tsr_device device;
        tsr_evidence evidence = {0};
        cr_assert_eq(tsr_device_open(&device, TSR_DEVICE_CPU, NULL, &err), TSR_OK);
        device.n_epilogues = 0;
        cr_assert_eq(tsr_device_add_epilogue(
                         &device, &(tsr_device_epilogue){"planted", run_faulty_epilogue, NULL, planted}, &err),
                     TSR_OK);
        tsr_kernel_options options = options_for(&device, &glob);
        options.columns = 128;
        cr_assert_eq(tsr_check_epilogue(&options, 7, &evidence, &err), TSR_OK, "%s", err.msg);
        cr_assert_eq(evidence.failed > 0, planted != NO_FAULT, "fault %d: %zu of %zu fail", (int)planted,
                     evidence.failed, evidence.count);
        tsr_evidence_free(&evidence);
        tsr_device_close(&device);
    }
}

static tsr_status flip_a_bit(const tsr_device_dequant *kernel, int bits, tsr_out out, const uint32_t *words,
                             size_t n_words, uint16_t *values, tsr_err *e)
{
    const tsr_device_dequant *const sound = (const tsr_device_dequant *)kernel->variant;
    const tsr_status status = sound->run(sound, bits, out, words, n_words, values, e);
    values[n_words] ^= 1;
    return status;
}

Test(integers, a_flipped_bit_in_a_layout_is_found)
{
    const char *const glob = "*";
    for (unsigned planted = 0; planted < 2; planted++) {
        tsr_device device;
        tsr_evidence evidence = {0};
        cr_assert_eq(tsr_device_open(&device, TSR_DEVICE_CPU, NULL, &err), TSR_OK);
        const tsr_device_dequant sound = device.dequants[0];
        if (planted == 1) {
            device.n_dequants = 0;
            cr_assert_eq(tsr_device_add_dequant(
                             &device, &(tsr_device_dequant){"planted", flip_a_bit, NULL, (uintptr_t)&sound}, &err),
                         TSR_OK);
        }
        tsr_kernel_options options = options_for(&device, &glob);
        options.columns = 128;
        cr_assert_eq(tsr_check_dequant(&options, 7, &evidence, &err), TSR_OK, "%s", err.msg);
        cr_assert_eq(evidence.failed > 0, planted == 1);
        cr_assert_gt(evidence.count, 9);
        tsr_evidence_free(&evidence);
        tsr_device_close(&device);
    }
}

static void interleave_wrong(const tsr_interleave_args *args, const uint8_t *codes, uint8_t *out)
{
    tsr_cpu_kernels kernels;
    tsr_cpu_kernels_init(&kernels, tsr_cpu_flags());
    kernels.interleave(args, codes, out);
    out[12345] ^= 0x04;
}

Test(integers, a_layout_with_one_wrong_code_is_found)
{
    const char *const glob = "*";
    tsr_device device;
    tsr_evidence evidence = {0};
    cr_assert_eq(tsr_device_open(&device, TSR_DEVICE_CPU, NULL, &err), TSR_OK);
    device.cpu.interleave = interleave_wrong;
    const tsr_kernel_options options = options_for(&device, &glob);
    cr_assert_eq(tsr_check_dequant(&options, 7, &evidence, &err), TSR_OK, "%s", err.msg);
    cr_assert_gt(evidence.count, 10);
    for (size_t i = 0; i < evidence.count; i++) {
        const tsr_judgement *const j =
            &evidence.items[i]; /* one code of 2048, four steps away, does not show in a product */
        cr_assert_eq(j->fault != NULL, strstr(j->what, "product") == NULL, "%s", j->what);
    }
    cr_assert_eq(evidence.items[0].metrics.differ, 1);
    tsr_evidence_free(&evidence);
    tsr_device_close(&device);
}

/* ---- weight-only products ---- */

typedef enum product_fault {
    SOUND_PRODUCT,
    SWAPPED_SCALES, /* two channels have each other's scales */
    NEXT_SCALES,    /* each group, or channel, has the scale of the next one */
    LOST_TILE,      /* the last rows of K */
    OTHER_TOKEN,
    UNWRITTEN_CHANNEL,
    LOST_ZEROS,  /* only where there are some */
    ROUNDED_LOW, /* half a step, which is no more than rounding weights does to one result */
    N_PRODUCT_FAULTS,
} product_fault;

static tsr_status run_faulty_product(const tsr_device_weight_only *kernel, const tsr_weight_only_args *args, tsr_err *e)
{
    enum { GROUPS = K / 128 };
    static float scales[GROUPS * N]; /* one thread runs this: there is one tensor */
    static float a[64 * K];
    const size_t n_scales = args->n * (args->group == 0 ? 1 : args->k / args->group);
    const product_fault fault = (product_fault)kernel->variant;
    tsr_weight_only_args g = *args;
    (void)e;
    memcpy(scales, args->scales, n_scales * sizeof *scales);
    memcpy(a, args->a, args->m * args->k * sizeof *a);
    g.scales = scales;
    g.a = a;
    for (size_t i = 0; fault == SWAPPED_SCALES && i < n_scales; i += g.n) {
        scales[i + 10] = args->scales[i + 12];
        scales[i + 12] = args->scales[i + 10];
    }
    for (size_t i = 0; fault == NEXT_SCALES && i < n_scales; i++)
        scales[i] = args->scales[(i + (args->group == 0 ? 1 : args->n)) % n_scales];
    for (size_t i = 0; fault == LOST_TILE && i < g.m; i++)
        memset(a + (i + 1) * g.k - 64, 0, 64 * sizeof *a);
    if (fault == OTHER_TOKEN)
        memcpy(a, args->a + 5 * g.k, g.k * sizeof *a);
    if (fault == LOST_ZEROS)
        g.zeros = NULL;
    tsr_weight_only_reference(&g);
    for (size_t i = 0; i < g.m; i++) {
        float *const row = g.d + i * g.ldd;
        for (size_t j = 0; fault == ROUNDED_LOW && j < g.n; j++)
            row[j] *= 1 - (g.bf16 ? 0x1p-8f : 0x1p-11f);
        tsr_out_round(g.bf16 ? TSR_OUT_BF16 : TSR_OUT_F16, row, g.n);
        if (fault == UNWRITTEN_CHANNEL)
            row[g.n - 1] = NAN;
    }
    return TSR_OK;
}

static void find_faults_of_products(bool groups)
{
    const char *const glob = "*";
    for (product_fault planted = SOUND_PRODUCT; planted < N_PRODUCT_FAULTS; planted++) {
        tsr_device device;
        tsr_evidence evidence = {0};
        cr_assert_eq(tsr_device_open(&device, TSR_DEVICE_CPU, NULL, &err), TSR_OK);
        device.n_dequants = device.n_weight_onlys = 0;
        cr_assert_eq(tsr_device_add_weight_only(&device,
                                                &(tsr_device_weight_only){.name = "planted",
                                                                          .run = run_faulty_product,
                                                                          .one_by_one = true,
                                                                          .general = true,
                                                                          .variant = planted},
                                                &err),
                     TSR_OK);
        tsr_kernel_options options = options_for(&device, &glob);
        options.columns = 128;
        cr_assert_eq(tsr_check_dequant(&options, 3, &evidence, &err), TSR_OK, "%s", err.msg);
        size_t failed = 0, all = 0;
        for (size_t i = 0; i < evidence.count; i++) {
            const tsr_judgement *const j = &evidence.items[i];
            const bool is_product = strncmp(j->what, "planted: product", 16) == 0;
            cr_assert(is_product || j->fault == NULL, "%s: %s", j->what, j->fault);
            failed += j->fault != NULL;
            all += is_product;
        }
        cr_assert_eq(all, 2);
        cr_assert_eq(failed, planted == SOUND_PRODUCT || (planted == LOST_ZEROS && !groups) ? 0 : all,
                     "fault %d: %zu of %zu fail", (int)planted, failed, all);
        tsr_evidence_free(&evidence);
        tsr_device_close(&device);
    }
}

Test(integers, faults_of_products_are_found)
{
    find_faults_of_products(false);
}

TestSuite(groups, .init = make_grouped_checkpoint, .fini = remove_checkpoint);

Test(groups, faults_of_products_are_found)
{
    find_faults_of_products(true);
}

Test(groups, a_kernel_takes_zero_points)
{
    const char *const glob = "*";
    tsr_device device;
    tsr_evidence evidence = {0};
    cr_assert_eq(tsr_device_open(&device, TSR_DEVICE_CPU, NULL, &err), TSR_OK);
    device.weight_onlys[0].general = false;
    tsr_kernel_options options = options_for(&device, &glob);
    options.columns = 128;
    options.tokens = 17; /* more than a kernel for few tokens takes */
    cr_assert_eq(tsr_check_dequant(&options, 3, &evidence, &err), TSR_OK, "%s", err.msg);
    cr_assert_eq(evidence.failed, 0);
    size_t judged = 0;
    for (size_t i = 0; i < evidence.count; i++)
        judged += strstr(evidence.items[i].what, "groups of 128, zero points, 17 tokens") != NULL;
    cr_assert_eq(judged, 2, "%zu of two types", judged);
    for (size_t i = 0; i < evidence.n_skipped; i++)
        cr_assert_null(strstr(evidence.skipped[i].why, "weight-only products by"), "%s", evidence.skipped[i].why);
    tsr_evidence_free(&evidence);
    tsr_device_close(&device);
}
