/* Chooses a device, and fills the table of the CPU. */
#include "verify/evidence/device.h"

#include "common/checked.h"
#include "common/float_bits.h"
#include "common/parallel/threads.h"
#include "kernels/cpu/fast_dequant.h"
#include "verify/values/weight_reader.h"

#include <stdio.h>
#include <string.h>

const char *tsr_out_name(tsr_out out)
{
    static const char *const kNames[TSR_N_OUTS] = {"bf16", "f16", "f32"};
    return kNames[out];
}

static float rounded(tsr_out out, float x)
{
    const uint16_t bits = out == TSR_OUT_BF16 ? tsr_bf16_from_f32(x) : tsr_f16_from_f32(x);
    double value;
    tsr_decode(out == TSR_OUT_BF16 ? TSR_BF16 : TSR_F16, (const unsigned char *)&bits, 1, &value);
    return (float)value;
}

void tsr_out_round(tsr_out out, float *x, size_t n)
{
    for (size_t i = 0; out != TSR_OUT_F32 && i < n; i++)
        x[i] = rounded(out, x[i]);
}

/* Checks that the table has room for one more kernel of a kind that has `n`. */
static tsr_status check_room(const tsr_device *device, size_t n, const char *name, tsr_err *err)
{
    if (n < TSR_DEVICE_KERNELS)
        return TSR_OK;
    return tsr_fail(err, TSR_E_UNSUPPORTED, "%s: cannot add kernel '%s': more than %d of one kind", device->name, name,
                    TSR_DEVICE_KERNELS);
}

/* Defines a function that adds a copy of a kernel to one of the arrays. */
#define ADD(kind, array)                                                                                \
    tsr_status tsr_device_add_##kind(tsr_device *device, const tsr_device_##kind *kernel, tsr_err *err) \
    {                                                                                                   \
        TSR_TRY(check_room(device, device->n_##array, kernel->name, err));                              \
        tsr_device_##kind *const to = &device->array[device->n_##array++];                              \
        *to = *kernel;                                                                                  \
        to->device = device;                                                                            \
        return TSR_OK;                                                                                  \
    }

ADD(gemm, gemms)
ADD(epilogue, epilogues)
ADD(dequant, dequants)
ADD(weight_only, weight_onlys)
ADD(mx_dequant, mx_dequants)
ADD(mx_gemm, mx_gemms)
ADD(prefill, prefills)
ADD(mla, mlas)
ADD(index, indexes)

void tsr_device_leave_out(tsr_device *device, const char *check, const char *name, const char *why)
{
    if (device->n_left_out == TSR_MAX_LEFT_OUT)
        return;
    tsr_left_out *const to = &device->left_out[device->n_left_out++];
    *to = (tsr_left_out){.check = check, .name = name};
    snprintf(to->why, sizeof to->why, "%s", why);
}

static tsr_status run_rows(const tsr_device_gemm *kernel, size_t rank, const tsr_grouped_gemm *g, size_t row,
                           size_t rows, size_t expert, tsr_out out, tsr_err *err)
{
    tsr_fp8_gemm_args part = g->gemm;
    const size_t grid = tsr_ceil_div(part.n, part.block_n) * tsr_ceil_div(part.k, part.block_k);
    part.m = rows;
    part.a += row * part.k;
    part.scale_a += row;
    part.d += row * part.ldd;
    part.w += expert * part.n * part.k;
    part.scale_w += expert * grid;
    return rows == 0 ? TSR_OK : kernel->run(kernel, rank, &part, out, err);
}

tsr_status tsr_device_run_grouped(const tsr_device_gemm *kernel, size_t rank, const tsr_grouped_gemm *g, tsr_out out,
                                  tsr_err *err)
{
    const size_t m = g->gemm.m;
    if (kernel->run_grouped != NULL && g->groups > 1) /* a single weight runs as a separate product, as in serving */
        return kernel->run_grouped(kernel, rank, g, out, err);
    for (size_t expert = 0; g->rows_of_expert != NULL && expert < g->groups; expert++)
        TSR_TRY(run_rows(kernel, rank, g, m / g->groups * expert, (size_t)g->rows_of_expert[expert], expert, out, err));
    for (size_t row = 0, end; g->rows_of_expert == NULL && row < m; row = end) {
        const int32_t expert = g->expert_of_row[row];
        for (end = row + 1; end < m && g->expert_of_row[end] == expert; end++)
            ;
        if (expert >= 0)
            TSR_TRY(run_rows(kernel, rank, g, row, end - row, (size_t)expert, out, err));
    }
    return TSR_OK;
}

static tsr_status run_cpu_gemm(const tsr_device_gemm *kernel, size_t rank, const tsr_fp8_gemm_args *args, tsr_out out,
                               tsr_err *err)
{
    const tsr_cpu_kernels *const cpu = &kernel->device->cpu;
    (void)rank, (void)err;
    if (kernel->accumulation == TSR_ACCUMULATE_FP32)
        cpu->fp8_gemm(args);
    else if (kernel->accumulation == TSR_ACCUMULATE_PROMOTED)
        cpu->fp8_gemm_tensor_core(args);
    else
        cpu->fp8_gemm_unpromoted(args);
    for (size_t i = 0; i < args->m; i++)
        tsr_out_round(out, args->d + i * args->ldd, args->n);
    return TSR_OK;
}

static tsr_status run_cpu_epilogue(const tsr_device_epilogue *kernel, const tsr_int8_gemm_args *args, tsr_out out,
                                   tsr_err *err)
{
    const tsr_cpu_kernels *const cpu = &kernel->device->cpu;
    (void)err;
    cpu->int8_gemm(args);
    for (size_t i = 0; i < args->m; i++)
        tsr_out_round(out, args->d + i * args->ldd, args->n);
    return TSR_OK;
}

static tsr_status run_cpu_dequant(const tsr_device_dequant *kernel, int bits, tsr_out out, const uint32_t *words,
                                  size_t n_words, uint16_t *values, tsr_err *err)
{
    void (*const convert)(uint32_t, uint32_t *) = bits == 8
                                                      ? out == TSR_OUT_F16 ? tsr_fast_int8_f16 : tsr_fast_int8_bf16
                                                  : out == TSR_OUT_F16 ? tsr_fast_int4_f16
                                                                       : tsr_fast_int4_bf16;
    const size_t pairs = (size_t)(16 / bits);
    (void)kernel, (void)err;
    for (size_t i = 0; i < n_words; i++) {
        uint32_t converted[4];
        convert(words[i], converted);
        memcpy(values + i * 2 * pairs, converted, pairs * sizeof *converted);
    }
    return TSR_OK;
}

static tsr_status run_cpu_weight_only(const tsr_device_weight_only *kernel, const tsr_weight_only_args *args,
                                      tsr_err *err)
{
    (void)kernel, (void)err;
    tsr_weight_only_reference(args);
    for (size_t i = 0; i < args->m; i++)
        tsr_out_round(args->bf16 ? TSR_OUT_BF16 : TSR_OUT_F16, args->d + i * args->ldd, args->n);
    return TSR_OK;
}

static tsr_status run_cpu_mx_dequant(const tsr_device_mx_dequant *kernel, const tsr_mx_matrix *x, size_t rows, size_t k,
                                     uint16_t *values, tsr_err *err)
{
    enum { GROUPS = 256 };
    const tsr_cpu_kernels *const cpu = &kernel->device->cpu;
    const size_t group = tsr_mx_form_group(x->form), groups = rows * k / group;
    const uint8_t *const codes = x->codes;
    float t[GROUPS];
    (void)err;
    for (size_t g = 0; g < groups; g += GROUPS) {
        const size_t n = tsr_min_u64(GROUPS, groups - g), at = g * group;
        if (x->form == TSR_MX_FORM_MXFP8) {
            (void)cpu->decode_mxfp8_bf16(codes + at, n * group, x->scales + g, values + at);
            continue;
        }
        tsr_mx_scales(x, g, n, t);
        cpu->decode_e2m1_bf16(codes + at / 2, n * group, group, t, values + at);
    }
    return TSR_OK;
}

static tsr_status run_cpu_mx_gemm(const tsr_device_mx_gemm *kernel, const tsr_mx_gemm_args *args, tsr_out out,
                                  tsr_err *err)
{
    (void)kernel, (void)err;
    tsr_mx_gemm_reference(args);
    for (size_t i = 0; i < args->m; i++)
        tsr_out_round(out, args->d + i * args->ldd, args->n);
    return TSR_OK;
}

static tsr_status run_cpu_mla(const tsr_device_mla *kernel, size_t rank, const tsr_mla_attention *args, double *seconds,
                              tsr_err *err)
{
    const double began = tsr_now();
    (void)kernel, (void)rank, (void)err;
    tsr_mla_attention_run(args);
    *seconds = tsr_now() - began;
    return TSR_OK;
}

static tsr_status run_cpu_prefill(const tsr_device_prefill *kernel, const tsr_causal_attention *args, double *seconds,
                                  tsr_err *err)
{
    const double began = tsr_now();
    (void)kernel, (void)err;
    tsr_causal_attention_run(args);
    *seconds = tsr_now() - began;
    return TSR_OK;
}

static tsr_status run_cpu_index(const tsr_device_index *kernel, const tsr_index_scores *args, double *seconds,
                                tsr_err *err)
{
    const double began = tsr_now();
    (void)kernel, (void)err;
    tsr_index_scores_run(args);
    *seconds = tsr_now() - began;
    return TSR_OK;
}

static tsr_status run_cpu_project(const tsr_device_mla *kernel, size_t rank, const tsr_project_args *args, tsr_err *err)
{
    (void)kernel, (void)rank, (void)err;
    tsr_project_run(args);
    return TSR_OK;
}

static tsr_status run_cpu_sum(tsr_device *device, size_t ranks, tsr_out out, float *parts, size_t n, double *seconds,
                              tsr_err *err)
{
    const double began = tsr_now();
    (void)device, (void)err;
    for (size_t r = 1; r < ranks; r++) {
        for (size_t i = 0; i < n; i++)
            parts[i] += parts[r * n + i];
        tsr_out_round(out, parts, n);
    }
    for (size_t r = 1; r < ranks; r++)
        memcpy(parts + r * n, parts, n * sizeof *parts);
    *seconds = tsr_now() - began;
    return TSR_OK;
}

#ifndef TSR_HAVE_CUDA
tsr_status tsr_device_add_cuda(tsr_device *device, tsr_err *err)
{
    (void)device;
    return tsr_fail_as(err, TSR_ERROR_NO_GPU, TSR_E_DEVICE, "no GPU can be used: this tessera was built without CUDA");
}
#endif

static tsr_status add_cpu(tsr_device *device, tsr_err *err)
{
    static const tsr_device_gemm kGemms[] = {
        {.name = "reference",
         .accumulation = TSR_ACCUMULATE_FP32,
         .run = run_cpu_gemm,
         .rounds_last = true,
         .row_by_row = true,
         .ranks = {.sum = run_cpu_sum}},
        {.name = "model promoted",
         .accumulation = TSR_ACCUMULATE_PROMOTED,
         .run = run_cpu_gemm,
         .rounds_last = true,
         .row_by_row = true,
         .ranks = {.sum = run_cpu_sum}},
        {.name = "model unpromoted",
         .accumulation = TSR_ACCUMULATE_UNPROMOTED,
         .run = run_cpu_gemm,
         .rounds_last = true,
         .row_by_row = true,
         .ranks = {.sum = run_cpu_sum}},
    };
    for (size_t i = 0; i < sizeof kGemms / sizeof *kGemms; i++)
        TSR_TRY(tsr_device_add_gemm(device, &kGemms[i], err));
    TSR_TRY(tsr_device_add_epilogue(device, &(tsr_device_epilogue){.name = "reference", .run = run_cpu_epilogue}, err));
    TSR_TRY(tsr_device_add_dequant(device, &(tsr_device_dequant){.name = "fast dequantization", .run = run_cpu_dequant},
                                   err));
    TSR_TRY(tsr_device_add_weight_only(
        device,
        &(tsr_device_weight_only){.name = "reference", .run = run_cpu_weight_only, .one_by_one = true, .general = true},
        err));
    TSR_TRY(tsr_device_add_mx_dequant(
        device, &(tsr_device_mx_dequant){.name = "CPU's decoder", .run = run_cpu_mx_dequant}, err));
    TSR_TRY(tsr_device_add_mx_gemm(
        device, &(tsr_device_mx_gemm){.name = "reference", .run = run_cpu_mx_gemm, .rounds_last = true}, err));
    TSR_TRY(tsr_device_add_mla(
        device,
        &(tsr_device_mla){
            .name = "cpu, paged decode", .run = run_cpu_mla, .project = run_cpu_project, .ranks = {.sum = run_cpu_sum}},
        err));
    TSR_TRY(tsr_device_add_index(device, &(tsr_device_index){.name = "cpu, index scores", .run = run_cpu_index}, err));
    TSR_TRY(tsr_device_add_prefill(device, &(tsr_device_prefill){.name = "cpu, prefill", .run = run_cpu_prefill}, err));
    return TSR_OK;
}

tsr_status tsr_device_open(tsr_device *device, tsr_device_kind kind, tsr_err *note, tsr_err *err)
{
    const unsigned flags = tsr_cpu_flags();
    *device = (tsr_device){0};
    tsr_cpu_kernels_init(&device->cpu, flags);
    snprintf(device->name, sizeof device->name, "CPU (%s)", tsr_cpu_name(flags));
    TSR_TRY(add_cpu(device, err));
    if (kind == TSR_DEVICE_CPU)
        return TSR_OK;
    tsr_err why = {0};
    const tsr_status status = tsr_device_add_cuda(device, &why);
    if (status == TSR_OK)
        return TSR_OK;
    if (kind == TSR_DEVICE_CUDA)
        return tsr_fail_with(err, status, &why);
    if (note != NULL)
        *note = why;
    return TSR_OK;
}

void tsr_device_close(tsr_device *device)
{
    if (device->close != NULL)
        device->close(device);
    *device = (tsr_device){0};
}
