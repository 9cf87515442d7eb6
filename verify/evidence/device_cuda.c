/* Adds a GPU as a device of the checks: products and conversions by the CUDA kernels. Compiled if CUDA was found. */
#include "common/checked.h"
#include "common/float_bits.h"
#include "kernels/cuda/block_fp8_grouped.h"
#include "kernels/cuda/fast_dequant.h"
#include "kernels/cuda/int8_gemm.h"
#include "kernels/cuda/weight_only_gemm.h"
#include "verify/evidence/gpu_run.h"
#include "verify/evidence/jobs.h"

#include <stdio.h>
#include <stdlib.h>

enum { CUBLAS_LT = -1 /* `variant` of a block-FP8 product, beside the values of tsr_gemm_kind */ };

/* Slots of tsr_gpu_run. */
enum { A, W, SCALE_A, SCALE_W, ZEROS, AZP_WITH_ADJ, AZP, AZP_ADJ, BIAS, GROUPS, D };

static tsr_status launch(const tsr_device_gemm *kernel, size_t rank, const tsr_block_fp8_gemm *gemm, tsr_err *err)
{
    tsr_gpu *const g = kernel->device->state;
    tsr_cublas_lt **const peer = &g->peers[g->nccl != NULL ? rank : 0];
    int offers;
    if ((int)kernel->variant != CUBLAS_LT)
        return tsr_cuda_block_fp8_gemm(gemm, NULL, err);
    if (*peer == NULL)
        TSR_TRY(tsr_cublas_lt_open(peer, err));
    TSR_TRY(tsr_cublas_lt_prepare(*peer, gemm, &offers, err));
    return tsr_cublas_lt_run(*peer, 0, NULL, err);
}

/* Copies the scales of the activations as [k tiles][pitch], with one entry per group of tokens that share scales if the
 * kernel accepts such a grid. */
static tsr_status upload_scales(tsr_gpu_run *r, const tsr_fp8_gemm_args *args, size_t group, size_t pitch, tsr_err *err)
{
    const size_t grid_k = tsr_ceil_div(args->k, 128), n = tsr_ceil_div(args->m, group);
    if (group == 1)
        return tsr_gpu_upload(r, SCALE_A, pitch * sizeof(float), args->scale_a, args->ld_scale_a * sizeof(float),
                              args->m * sizeof(float), grid_k, err);
    float *const grid = malloc(n * grid_k * sizeof *grid + 64);
    if (grid == NULL)
        return tsr_out_of_memory(err, "for scales of groups of tokens");
    for (size_t t = 0; t < grid_k; t++) {
        for (size_t i = 0; i < n; i++)
            grid[t * n + i] = args->scale_a[t * args->ld_scale_a + i * group];
    }
    const tsr_status status =
        tsr_gpu_upload(r, SCALE_A, pitch * sizeof *grid, grid, n * sizeof *grid, n * sizeof *grid, grid_k, err);
    free(grid);
    return status;
}

/* Copies the operands of `groups` products, whose weights are contiguous, and sets their device addresses. */
static tsr_status upload_gemm(tsr_gpu_run *r, const tsr_device_gemm *kernel, const tsr_fp8_gemm_args *args,
                              size_t groups, tsr_out out, tsr_block_fp8_gemm *gemm, tsr_err *err)
{
    const size_t grid_k = tsr_ceil_div(args->k, 128), grid_n = tsr_ceil_div(args->n, 128);
    const bool grid =
        groups == 1 && args->group_m > 1 && (kernel->variant == TSR_GEMM_PLAIN || kernel->variant == TSR_GEMM_MMA);
    const size_t group_m = grid ? args->group_m : 1;
    const size_t pitch = tsr_round_up(args->k, 16), scale_pitch = tsr_round_up(tsr_ceil_div(args->m, group_m), 4);
    TSR_TRY(tsr_gpu_upload(r, A, pitch, args->a, args->k, args->k, args->m, err));
    TSR_TRY(tsr_gpu_upload(r, W, pitch, args->w, args->k, args->k, groups * args->n, err));
    TSR_TRY(upload_scales(r, args, group_m, scale_pitch, err));
    TSR_TRY(tsr_gpu_upload(r, SCALE_W, grid_k * sizeof(float), args->scale_w, grid_k * sizeof(float),
                           grid_k * sizeof(float), groups * grid_n, err));
    TSR_TRY(tsr_gpu_allocate_result(r, D, args->m * args->n * tsr_gpu_out_bytes(out), err));
    *gemm = (tsr_block_fp8_gemm){
        .a = r->on_gpu[A],
        .w = r->on_gpu[W],
        .scale_a = r->on_gpu[SCALE_A],
        .scale_w = r->on_gpu[SCALE_W],
        .d = r->on_gpu[D],
        .m = (int64_t)args->m,
        .n = (int64_t)args->n,
        .k = (int64_t)args->k,
        .lda = (int64_t)pitch,
        .ldw = (int64_t)pitch,
        .ldd = (int64_t)args->n,
        .ld_scale_a = (int64_t)scale_pitch,
        .group_m = (int64_t)group_m,
        .out = tsr_gpu_out(out),
        .config.kind = (int)kernel->variant == CUBLAS_LT ? TSR_GEMM_AUTO : (tsr_gemm_kind)kernel->variant,
    };
    return TSR_OK;
}

static tsr_status run_gemm_on(tsr_gpu_run *r, const tsr_device_gemm *kernel, size_t rank, const tsr_fp8_gemm_args *args,
                              tsr_out out, tsr_err *err)
{
    tsr_block_fp8_gemm gemm;
    tsr_gpu_use_rank(r->gpu, rank);
    TSR_TRY(upload_gemm(r, kernel, args, 1, out, &gemm, err));
    TSR_TRY(launch(kernel, rank, &gemm, err));
    return tsr_gpu_download(r, D, out, args->m, args->n, args->d, args->ldd, err);
}

static tsr_status run_grouped_on(tsr_gpu_run *r, const tsr_device_gemm *kernel, size_t rank, const tsr_grouped_gemm *g,
                                 tsr_out out, tsr_err *err)
{
    const tsr_fp8_gemm_args *const args = &g->gemm;
    const bool masked = g->rows_of_expert != NULL;
    tsr_block_fp8_grouped grouped = {.groups = (int64_t)g->groups};
    tsr_gpu_use_rank(r->gpu, rank);
    TSR_TRY(upload_gemm(r, kernel, args, g->groups, out, &grouped.gemm, err));
    TSR_TRY(tsr_gpu_upload_words(r, GROUPS, masked ? g->rows_of_expert : g->expert_of_row, masked ? g->groups : args->m,
                                 err));
    if (masked)
        grouped.rows_of_group = r->on_gpu[GROUPS];
    else
        grouped.group_of_row = r->on_gpu[GROUPS];
    TSR_TRY(tsr_cuda_block_fp8_grouped(&grouped, NULL, err));
    return tsr_gpu_download(r, D, out, args->m, args->n, args->d, args->ldd, err);
}

static tsr_status begin_gemm(tsr_gpu_run *r, const tsr_device_gemm *kernel, const tsr_fp8_gemm_args *args, tsr_err *err)
{
    if (args->block_n != 128 || args->block_k != 128)
        return tsr_fail(err, TSR_E_UNSUPPORTED, "%s supports blocks of 128x128 only", kernel->name);
    return tsr_gpu_begin(r, kernel->device, kernel->name, args->m * args->n * sizeof(float), err);
}

static tsr_status run_gemm(const tsr_device_gemm *kernel, size_t rank, const tsr_fp8_gemm_args *args, tsr_out out,
                           tsr_err *err)
{
    tsr_gpu_run r;
    TSR_TRY(begin_gemm(&r, kernel, args, err));
    return tsr_gpu_end(&r, run_gemm_on(&r, kernel, rank, args, out, err));
}

static tsr_status run_grouped(const tsr_device_gemm *kernel, size_t rank, const tsr_grouped_gemm *grouped, tsr_out out,
                              tsr_err *err)
{
    tsr_gpu_run r;
    if (grouped->gemm.m == 0)
        return TSR_OK;
    TSR_TRY(begin_gemm(&r, kernel, &grouped->gemm, err));
    return tsr_gpu_end(&r, run_grouped_on(&r, kernel, rank, grouped, out, err));
}

/* ---- int8 products ---- */

static tsr_status run_int8_on(tsr_gpu_run *r, const tsr_device_epilogue *kernel, const tsr_int8_gemm_args *args,
                              tsr_out out, tsr_err *err)
{
    const size_t pitch = tsr_round_up(args->k, 16);
    void **const on_gpu = r->on_gpu;
    TSR_TRY(tsr_gpu_upload(r, A, pitch, args->a, args->k, args->k, args->m, err));
    TSR_TRY(tsr_gpu_upload(r, W, pitch, args->w, args->k, args->k, args->n, err));
    /* The fast kernel needs k in multiples of 16 bytes; the padding is zeros. */
    if (pitch != args->k) {
        TSR_TRY(tsr_gpu_check(cudaMemset2D((char *)on_gpu[A] + args->k, pitch, 0, pitch - args->k, args->m), "padding",
                              err));
        TSR_TRY(tsr_gpu_check(cudaMemset2D((char *)on_gpu[W] + args->k, pitch, 0, pitch - args->k, args->n), "padding",
                              err));
    }
    TSR_TRY(tsr_gpu_upload_words(r, SCALE_A, args->scale_a, args->one_scale_a ? 1 : args->m, err));
    TSR_TRY(tsr_gpu_upload_words(r, SCALE_W, args->scale_w, args->one_scale_w ? 1 : args->n, err));
    TSR_TRY(tsr_gpu_upload_words(r, AZP_WITH_ADJ, args->azp_with_adj, args->n, err));
    TSR_TRY(tsr_gpu_upload_words(r, AZP, args->azp, args->m, err));
    TSR_TRY(tsr_gpu_upload_words(r, AZP_ADJ, args->azp_adj, args->n, err));
    TSR_TRY(tsr_gpu_upload_words(r, BIAS, args->bias, args->n, err));
    TSR_TRY(tsr_gpu_allocate_result(r, D, args->m * args->n * tsr_gpu_out_bytes(out), err));
    const tsr_int8_gemm gemm = {
        .a = on_gpu[A],
        .w = on_gpu[W],
        .scale_a = on_gpu[SCALE_A],
        .scale_w = on_gpu[SCALE_W],
        .one_scale_a = args->one_scale_a,
        .one_scale_w = args->one_scale_w,
        .azp_with_adj = on_gpu[AZP_WITH_ADJ],
        .azp = on_gpu[AZP],
        .azp_adj = on_gpu[AZP_ADJ],
        .bias = on_gpu[BIAS],
        .d = on_gpu[D],
        .m = (int64_t)args->m,
        .n = (int64_t)args->n,
        .k = (int64_t)pitch,
        .lda = (int64_t)pitch,
        .ldw = (int64_t)pitch,
        .ldd = (int64_t)args->n,
        .out = tsr_gpu_out(out),
        .config.kind = (tsr_gemm_kind)kernel->variant,
    };
    TSR_TRY(tsr_cuda_int8_gemm(&gemm, NULL, err));
    return tsr_gpu_download(r, D, out, args->m, args->n, args->d, args->ldd, err);
}

static tsr_status run_epilogue(const tsr_device_epilogue *kernel, const tsr_int8_gemm_args *args, tsr_out out,
                               tsr_err *err)
{
    tsr_gpu_run r;
    TSR_TRY(tsr_gpu_begin(&r, kernel->device, kernel->name, args->m * args->n * sizeof(float), err));
    return tsr_gpu_end(&r, run_int8_on(&r, kernel, args, out, err));
}

/* ---- conversion of interleaved weights ---- */

static tsr_status run_dequant_on(tsr_gpu_run *r, const tsr_device_dequant *kernel, int bits, tsr_out out,
                                 const uint32_t *words, size_t n_words, uint16_t *values, tsr_err *err)
{
    const size_t padded = tsr_round_up(n_words, 4), each = 32 / (size_t)bits * sizeof *values;
    void **const on_gpu = r->on_gpu;
    TSR_TRY(tsr_gpu_allocate(r, W, padded * sizeof *words, err));
    TSR_TRY(tsr_gpu_allocate_result(r, D, padded * each, err));
    TSR_TRY(tsr_gpu_check(cudaMemset(on_gpu[W], 0, padded * sizeof *words), "padding", err));
    TSR_TRY(tsr_gpu_check(cudaMemcpy(on_gpu[W], words, n_words * sizeof *words, cudaMemcpyHostToDevice),
                          "copying to the GPU", err));
    const tsr_fast_dequant dequant = {.words = on_gpu[W],
                                      .out = on_gpu[D],
                                      .k = (int64_t)(padded * 32 / (size_t)bits),
                                      .n = 1,
                                      .bits = bits,
                                      .bf16 = out == TSR_OUT_BF16,
                                      .native = kernel->variant == TSR_GPU_PLAIN};
    TSR_TRY(tsr_cuda_fast_dequant(&dequant, NULL, err));
    return tsr_gpu_check(cudaMemcpy(values, on_gpu[D], n_words * each, cudaMemcpyDeviceToHost), kernel->name, err);
}

static tsr_status run_dequant(const tsr_device_dequant *kernel, int bits, tsr_out out, const uint32_t *words,
                              size_t n_words, uint16_t *values, tsr_err *err)
{
    tsr_gpu_run r;
    TSR_TRY(tsr_gpu_begin(&r, kernel->device, kernel->name, 0, err));
    return tsr_gpu_end(&r, run_dequant_on(&r, kernel, bits, out, words, n_words, values, err));
}

/* ---- weight-only products ---- */

static size_t groups_of(const tsr_weight_only_args *args)
{
    return args->group == 0 ? 1 : args->k / args->group;
}

/* Copies n floats as BF16 or F16, which can represent them. */
static tsr_status upload_narrow(tsr_gpu_run *r, int slot, const float *from, size_t n, bool bf16, tsr_err *err)
{
    uint16_t *const narrow = r->narrow;
    for (size_t i = 0; i < n; i++)
        narrow[i] = bf16 ? tsr_bf16_from_f32(from[i]) : tsr_f16_from_f32(from[i]);
    return tsr_gpu_upload(r, slot, n * sizeof *narrow, narrow, n * sizeof *narrow, n * sizeof *narrow, 1, err);
}

static tsr_status run_weight_only_on(tsr_gpu_run *r, const tsr_device_weight_only *kernel,
                                     const tsr_weight_only_args *args, tsr_err *err)
{
    const size_t cells = args->m * args->n, bytes = args->k * args->n * (size_t)args->format->bits / 8;
    TSR_TRY(tsr_gpu_upload(r, W, bytes, args->words, bytes, bytes, 1, err));
    TSR_TRY(upload_narrow(r, A, args->a, args->m * args->k, args->bf16, err));
    TSR_TRY(upload_narrow(r, SCALE_W, args->scales, groups_of(args) * args->n, args->bf16, err));
    if (args->zeros != NULL)
        TSR_TRY(upload_narrow(r, ZEROS, args->zeros, groups_of(args) * args->n, args->bf16, err));
    TSR_TRY(tsr_gpu_allocate_result(r, D, cells * sizeof(uint16_t), err));
    const tsr_weight_only_gemm gemm = {
        .a = r->on_gpu[A],
        .w = r->on_gpu[W],
        .scales = r->on_gpu[SCALE_W],
        .zeros = args->zeros == NULL ? NULL : r->on_gpu[ZEROS],
        .d = r->on_gpu[D],
        .m = (int64_t)args->m,
        .n = (int64_t)args->n,
        .k = (int64_t)args->k,
        .lda = (int64_t)args->k,
        .ldd = (int64_t)args->n,
        .group = (int64_t)args->group,
        .bits = args->format->bits,
        .bf16 = args->bf16,
        .kind = kernel->variant == TSR_GPU_PLAIN ? TSR_WEIGHT_ONLY_PLAIN : TSR_WEIGHT_ONLY_AUTO,
    };
    TSR_TRY(tsr_cuda_weight_only_gemm(&gemm, NULL, err));
    return tsr_gpu_download(r, D, args->bf16 ? TSR_OUT_BF16 : TSR_OUT_F16, args->m, args->n, args->d, args->ldd, err);
}

static tsr_status run_weight_only(const tsr_device_weight_only *kernel, const tsr_weight_only_args *args, tsr_err *err)
{
    /* Room for the largest of activations, results and scales. */
    const size_t most = args->m * (args->k + args->n) + groups_of(args) * args->n;
    tsr_gpu_run r;
    TSR_TRY(tsr_gpu_begin(&r, kernel->device, kernel->name, most * sizeof(uint16_t), err));
    return tsr_gpu_end(&r, run_weight_only_on(&r, kernel, args, err));
}

/* ---- the table ---- */

static void close_gpu(tsr_device *device)
{
    tsr_gpu *const g = device->state;
    for (size_t r = 0; r < TSR_NCCL_RANKS; r++)
        tsr_cublas_lt_close(g->peers[r]);
    tsr_nccl_close(g->nccl);
    pthread_mutex_destroy(&g->lock);
    free(g);
}

static bool has_mma(const tsr_cuda_device *properties)
{
    return properties->arch >= 89;
}

static bool is_hopper(const tsr_cuda_device *properties)
{
    return properties->arch == 90;
}

/* Records for other GPUs which kernels could not be judged there. */
static void leave_out_fast(tsr_device *device, const tsr_cuda_device *properties)
{
    static const char kMma[] = "sm_89 or later (mma of e4m3)", kHopper[] = "sm_90 (Hopper's wgmma and TMA)";
    static const struct {
        const char *check, *name, *needs;
        bool (*runs)(const tsr_cuda_device *);
    } kOthers[] = {
        {"gemm", "CUDA mma", kMma, has_mma},      {"gemm", "CUDA fast", kHopper, is_hopper},
        {"gemm", "cuBLASLt", kHopper, is_hopper}, {"dequant", "CUDA fast, the form for Hopper", kHopper, is_hopper},
        {"mla", "CUDA fast", kHopper, is_hopper}, {"mla", "CUDA fast, prefill", kHopper, is_hopper}};
    char why[160];
    for (size_t i = 0; i < sizeof kOthers / sizeof *kOthers; i++) {
        if (kOthers[i].runs(properties))
            continue;
        snprintf(why, sizeof why, "it needs %s; the GPU %.60s is sm_%d", kOthers[i].needs, properties->name,
                 properties->arch);
        tsr_device_leave_out(device, kOthers[i].check, kOthers[i].name, why);
    }
}

tsr_status tsr_device_add_cuda(tsr_device *device, tsr_err *err)
{
    static const tsr_device_gemm kPlain = {.name = "CUDA plain",
                                           .accumulation = TSR_ACCUMULATE_FP32,
                                           .run = run_gemm,
                                           .run_grouped = run_grouped,
                                           .ranks = TSR_CUDA_RANKS,
                                           .variant = TSR_GEMM_PLAIN},
                                 kFast = {.name = "CUDA fast",
                                          .accumulation = TSR_ACCUMULATE_PROMOTED,
                                          .run = run_gemm,
                                          .run_grouped = run_grouped,
                                          .ranks = TSR_CUDA_RANKS,
                                          .variant = TSR_GEMM_AUTO},
                                 kMma = {.name = "CUDA mma",
                                         .accumulation = TSR_ACCUMULATE_PROMOTED,
                                         .run = run_gemm,
                                         .ranks = TSR_CUDA_RANKS,
                                         .variant = TSR_GEMM_MMA},
                                 kPeer = {.name = "cuBLASLt",
                                          .accumulation = TSR_ACCUMULATE_PROMOTED,
                                          .run = run_gemm,
                                          .ranks = TSR_CUDA_RANKS,
                                          .variant = (uintptr_t)CUBLAS_LT};
    static const tsr_device_epilogue kEpilogues[] = {
        {.name = "CUDA plain", .run = run_epilogue, .variant = TSR_GEMM_PLAIN},
        {.name = "CUDA fast", .run = run_epilogue, .variant = TSR_GEMM_AUTO},
    };
    static const tsr_device_dequant kDequants[] = {
        {.name = "CUDA cvt", .run = run_dequant, .variant = TSR_GPU_PLAIN},
        {.name = "CUDA PRMT, LOP3", .run = run_dequant, .variant = TSR_GPU_FAST},
    };
    static const tsr_device_weight_only kWeightOnlys[] = {
        {.name = "CUDA plain", .run = run_weight_only, .one_by_one = true, .variant = TSR_GPU_PLAIN},
        {.name = "CUDA fast", .run = run_weight_only, .variant = TSR_GPU_FAST},
    };
    tsr_cuda_device properties;
    TSR_TRY(tsr_cuda_current_device(&properties, err));
    tsr_gpu *const g = calloc(1, sizeof *g);
    if (g == NULL)
        return tsr_out_of_memory(err, "for the GPU's table");
    g->properties = properties;
    pthread_mutex_init(&g->lock, NULL);
    device->state = g;
    device->close = close_gpu;
    TSR_TRY(tsr_device_add_gemm(device, &kPlain, err));
    for (size_t i = 0; i < 2; i++) {
        TSR_TRY(tsr_device_add_epilogue(device, &kEpilogues[i], err));
        TSR_TRY(tsr_device_add_dequant(device, &kDequants[i], err));
        TSR_TRY(tsr_device_add_weight_only(device, &kWeightOnlys[i], err));
    }
    device->weight_onlys[device->n_weight_onlys - 1].lifts = is_hopper(&properties);
    TSR_TRY(tsr_device_add_cuda_mla(device, err));
    TSR_TRY(tsr_device_add_cuda_mx(device, err));
    if (has_mma(&properties))
        TSR_TRY(tsr_device_add_gemm(device, &kMma, err));
    if (is_hopper(&properties)) {
        TSR_TRY(tsr_device_add_gemm(device, &kFast, err));
        if (tsr_cublas_lt_open(&g->peers[0], NULL) == TSR_OK)
            TSR_TRY(tsr_device_add_gemm(device, &kPeer, err));
    }
    leave_out_fast(device, &properties);
    snprintf(device->name, sizeof device->name, "%.200s (sm_%d)", properties.name, properties.arch);
    return TSR_OK;
}
