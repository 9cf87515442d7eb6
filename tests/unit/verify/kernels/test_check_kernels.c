/* The checks of kernels: sound ones pass, and every fault that is planted in a kernel is found. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/quantize_tokens.h"
#include "verify/evidence/activations.h"
#include "verify/kernels/check_dequant.h"
#include "verify/kernels/check_epilogue.h"
#include "verify/kernels/check_gemm.h"
#include "verify/kernels/gemm_oracle.h"

#include <criterion/criterion.h>
#include <ftw.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 256, K = 4096, EXPERTS = 3 };

static char folder[] = "/tmp/tessera-kernels-XXXXXX";
static tsr_checkpoint *checkpoint;
static tsr_weights weights;
static tsr_err err;

static FILE *open_file(const char *name, const char *text)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *const file = fopen(path, "w");
    cr_assert_not_null(file);
    if (text != NULL) {
        fputs(text, file);
        fclose(file);
    }
    return file;
}

static void open_checkpoint(void)
{
    cr_assert_eq(tsr_checkpoint_open(&checkpoint, folder, NULL, 0, &err), TSR_OK, "%s", err.msg);
    cr_assert_eq(tsr_weights_pair(&weights, checkpoint, 0, 0, &err), TSR_OK, "%s", err.msg);
}

static void write_tensor(FILE *file, uint64_t seed, size_t codes, size_t scales)
{
    for (size_t i = 0; i < codes; i++) {
        const uint8_t code = (uint8_t)tsr_mix(seed + i);
        fputc((code & 0x7F) == 0x7F ? 0x38 : code, file);
    }
    for (size_t i = 0; i < scales; i++) {
        const float scale = 1e-3f + (float)(tsr_mix(~seed + i) % 1000) * 4e-6f;
        fwrite(&scale, sizeof scale, 1, file);
    }
}

/* Block FP8: one plain linear layer, and three experts. */
static void make_checkpoint(void)
{
    const size_t codes = (size_t)N * K, scales = N / 128 * (K / 128);
    char header[2048] = "{";
    cr_assert_not_null(mkdtemp(folder));
    open_file("config.json",
              "{\"quantization_config\": {\"quant_method\": \"fp8\", \"weight_block_size\": [128, 128]}}");
    for (size_t i = 0, at = 0; i <= EXPERTS; i++) {
        char name[32] = "o_proj";
        if (i > 0)
            snprintf(name, sizeof name, "experts.%zu.up_proj", i - 1);
        sprintf(header + strlen(header),
                "%s\"m.%s.weight\": {\"dtype\": \"F8_E4M3\", \"shape\": [%d, %d], \"data_offsets\": [%zu, %zu]}, "
                "\"m.%s.weight_scale_inv\": {\"dtype\": \"F32\", \"shape\": [%d, %d], \"data_offsets\": [%zu, %zu]}",
                i > 0 ? ", " : "", name, N, K, at, at + codes, name, N / 128, K / 128, at + codes,
                at + codes + 4 * scales);
        at += codes + 4 * scales;
    }
    strcat(header, "}");
    FILE *const file = open_file("model.safetensors", NULL);
    const uint64_t length = strlen(header);
    fwrite(&length, sizeof length, 1, file);
    fputs(header, file);
    for (uint64_t i = 0; i <= EXPERTS; i++)
        write_tensor(file, i << 40, codes, scales);
    fclose(file);
    open_checkpoint();
}

/* Int8 with a scale a row and a bias. */
static void make_int8_checkpoint(void)
{
    const size_t codes = (size_t)N * K;
    char header[1024];
    cr_assert_not_null(mkdtemp(folder));
    open_file("config.json",
              "{\"quantization_config\": {\"quant_method\": \"compressed-tensors\", \"format\": \"int-quantized\", "
              "\"config_groups\": {\"group_0\": {\"targets\": [\"Linear\"], \"weights\": {\"num_bits\": 8, "
              "\"type\": \"int\", \"symmetric\": true, \"strategy\": \"channel\"}, \"input_activations\": "
              "{\"num_bits\": 8, \"type\": \"int\", \"symmetric\": true, \"strategy\": \"token\", "
              "\"dynamic\": true}}}}}");
    snprintf(header, sizeof header,
             "{\"m.o_proj.weight\": {\"dtype\": \"I8\", \"shape\": [%d, %d], \"data_offsets\": [0, %zu]}, "
             "\"m.o_proj.weight_scale\": {\"dtype\": \"F32\", \"shape\": [%d, 1], \"data_offsets\": [%zu, %zu]}, "
             "\"m.o_proj.bias\": {\"dtype\": \"F32\", \"shape\": [%d], \"data_offsets\": [%zu, %zu]}}",
             N, K, codes, N, codes, codes + 4 * N, N, codes + 4 * N, codes + 8 * N);
    FILE *const file = open_file("model.safetensors", NULL);
    const uint64_t length = strlen(header);
    fwrite(&length, sizeof length, 1, file);
    fputs(header, file);
    write_tensor(file, 99, codes, 2 * N);
    fclose(file);
    open_checkpoint();
}

/* Int8 in groups of 128 with zero points. */
static void make_grouped_checkpoint(void)
{
    const size_t codes = (size_t)N * K, groups = (size_t)N * K / 128;
    char header[1024];
    cr_assert_not_null(mkdtemp(folder));
    open_file("config.json",
              "{\"quantization_config\": {\"quant_method\": \"compressed-tensors\", \"format\": \"int-quantized\", "
              "\"config_groups\": {\"group_0\": {\"targets\": [\"Linear\"], \"weights\": {\"num_bits\": 8, "
              "\"type\": \"int\", \"symmetric\": false, \"strategy\": \"group\", \"group_size\": 128}}}}}");
    snprintf(header, sizeof header,
             "{\"m.o_proj.weight\": {\"dtype\": \"I8\", \"shape\": [%d, %d], \"data_offsets\": [0, %zu]}, "
             "\"m.o_proj.weight_scale\": {\"dtype\": \"F32\", \"shape\": [%d, %d], \"data_offsets\": [%zu, %zu]}, "
             "\"m.o_proj.weight_zero_point\": {\"dtype\": \"I8\", \"shape\": [%d, %d], \"data_offsets\": [%zu, %zu]}}",
             N, K, codes, N, K / 128, codes, codes + 4 * groups, N, K / 128, codes + 4 * groups, codes + 5 * groups);
    FILE *const file = open_file("model.safetensors", NULL);
    const uint64_t length = strlen(header);
    fwrite(&length, sizeof length, 1, file);
    fputs(header, file);
    write_tensor(file, 98, codes, groups);
    write_tensor(file, 97, groups, 0);
    fclose(file);
    open_checkpoint();
}

static int remove_one(const char *path, const struct stat *info, int type, struct FTW *where)
{
    (void)info, (void)type, (void)where;
    return remove(path);
}

static void remove_checkpoint(void)
{
    tsr_weights_free(&weights);
    tsr_checkpoint_close(checkpoint);
    nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

static tsr_kernel_options options_for(tsr_device *device, const char *const *glob)
{
    return (tsr_kernel_options){.side = {checkpoint, &weights},
                                .device = device,
                                .globs = glob,
                                .n_globs = 1,
                                .seed = 7,
                                .tokens = 24,
                                .experts = 8,
                                .group_rows = 1,
                                .threads = 2,
                                .limits = tsr_kernel_limits_defaults()};
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

static tsr_status run_faulty(const tsr_device_gemm *kernel, const tsr_fp8_gemm_args *args, tsr_out out, tsr_err *e)
{
    enum { GRID = N / 128 * (K / 128) };
    tsr_cpu_kernels kernels;
    tsr_fp8_gemm_args g = *args;
    float scales[GRID];
    (void)e;
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

/* The table is full at eight of a kind, says so, and stays as it was; nobody need want to hear it. */
Test(kernels, a_full_table_takes_no_more)
{
    tsr_device full = {.name = "full"};
    for (size_t i = 0; i < TSR_DEVICE_KERNELS; i++) {
        cr_assert_eq(tsr_device_add_gemm(&full, &(tsr_device_gemm){.name = "g"}, &err), TSR_OK);
        cr_assert_eq(tsr_device_add_epilogue(&full, &(tsr_device_epilogue){.name = "e"}, &err), TSR_OK);
        cr_assert_eq(tsr_device_add_dequant(&full, &(tsr_device_dequant){.name = "d"}, &err), TSR_OK);
        cr_assert_eq(tsr_device_add_weight_only(&full, &(tsr_device_weight_only){.name = "w"}, &err), TSR_OK);
        cr_assert_eq(tsr_device_add_mla(&full, &(tsr_device_mla){.name = "m"}, &err), TSR_OK);
        cr_assert_eq(tsr_device_add_prefill(&full, &(tsr_device_prefill){.name = "p"}, &err), TSR_OK);
    }
    const tsr_device before = full;
    cr_assert_eq(tsr_device_add_gemm(&full, &(tsr_device_gemm){.name = "one more"}, &err), TSR_E_UNSUPPORTED);
    cr_assert_str_eq(err.msg, "full: no room for the kernel 'one more' beside 8 of its kind");
    cr_assert_eq(tsr_device_add_epilogue(&full, &(tsr_device_epilogue){.name = "e"}, NULL), TSR_E_UNSUPPORTED);
    cr_assert_eq(tsr_device_add_dequant(&full, &(tsr_device_dequant){.name = "d"}, NULL), TSR_E_UNSUPPORTED);
    cr_assert_eq(tsr_device_add_weight_only(&full, &(tsr_device_weight_only){.name = "w"}, NULL), TSR_E_UNSUPPORTED);
    cr_assert_eq(tsr_device_add_mla(&full, &(tsr_device_mla){.name = "m"}, NULL), TSR_E_UNSUPPORTED);
    cr_assert_eq(tsr_device_add_prefill(&full, &(tsr_device_prefill){.name = "p"}, NULL), TSR_E_UNSUPPORTED);
    cr_assert_eq(memcmp(&before, &full, sizeof full), 0);
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
    tsr_device device;
    const char *const glob = "*";
    tsr_evidence evidence[2] = {{0}};
    cr_assert_eq(tsr_device_open(&device, TSR_DEVICE_CPU, NULL, &err), TSR_OK);
    for (unsigned i = 0; i < 2; i++) {
        tsr_kernel_options options = options_for(&device, &glob);
        options.threads = 1 + 3 * i;
        cr_assert_eq(tsr_check_gemm(&options, 7, &evidence[i], &err), TSR_OK);
    }
    cr_assert_eq(evidence[0].count, evidence[1].count);
    for (size_t i = 0; i < evidence[0].count; i++) {
        cr_assert_str_eq(evidence[0].items[i].what, evidence[1].items[i].what);
        cr_assert_eq(evidence[0].items[i].metrics.sum_d2, evidence[1].items[i].metrics.sum_d2);
    }
    tsr_evidence_free(&evidence[0]);
    tsr_evidence_free(&evidence[1]);
    tsr_device_close(&device);
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
        const tsr_kernel_options options = options_for(&device, &glob);
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
        const tsr_kernel_options options = options_for(&device, &glob);
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
    out[12345] ^= 0x10;
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
    for (size_t i = 0; i < evidence.count; i++) {
        const tsr_judgement *const j = &evidence.items[i]; /* one code of 4096 does not show in a product */
        cr_assert_eq(j->fault != NULL, strstr(j->what, "product") == NULL, "%s", j->what);
    }
    cr_assert_eq(evidence.items[0].metrics.differ, 1);
    tsr_evidence_free(&evidence);
    tsr_device_close(&device);
}

/* ---- weight-only products ---- */

typedef enum product_fault {
    SOUND_PRODUCT,
    SWAPPED_SCALES, /* of two channels */
    NEXT_SCALES,    /* of every group the next one's, or of every channel */
    LOST_TILE,      /* the last rows of K */
    OTHER_TOKEN,
    UNWRITTEN_CHANNEL,
    LOST_ZEROS,  /* only where there are some */
    ROUNDED_LOW, /* half a step; rounding weights before the product may do as much */
    N_PRODUCT_FAULTS,
} product_fault;

static tsr_status run_faulty_product(const tsr_device_weight_only *kernel, const tsr_weight_only_args *args, tsr_err *e)
{
    enum { GROUPS = K / 128 };
    static float scales[GROUPS * N]; /* one thread runs this: there is one tensor */
    static float a[16 * K];
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
    const product_fault unseen = groups ? ROUNDED_LOW : LOST_ZEROS;
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
        cr_assert_eq(failed, planted == SOUND_PRODUCT || planted == unseen ? 0 : all, "fault %d: %zu of %zu fail",
                     (int)planted, failed, all);
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

Test(groups, a_kernel_takes_what_it_can)
{
    const char *const glob = "*";
    tsr_device device;
    tsr_evidence evidence = {0};
    cr_assert_eq(tsr_device_open(&device, TSR_DEVICE_CPU, NULL, &err), TSR_OK);
    device.weight_onlys[0].general = false;
    const tsr_kernel_options options = options_for(&device, &glob);
    cr_assert_eq(tsr_check_dequant(&options, 3, &evidence, &err), TSR_OK, "%s", err.msg);
    cr_assert_eq(evidence.failed, 0);
    bool said = false;
    for (size_t i = 0; i < evidence.n_skipped; i++)
        said = said || strstr(evidence.skipped[i].why, "takes no zero points") != NULL;
    cr_assert(said);
    tsr_evidence_free(&evidence);
    tsr_device_close(&device);
}
