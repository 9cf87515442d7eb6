/* Tests that each use of the GPU by kernel checks holds the lock. Replacements of the CUDA runtime and the kernels
 * count calls with and without the lock, so no GPU is needed. */
#include "kernels/cuda/block_fp8_grouped.h"
#include "kernels/cuda/cublas_lt.h"
#include "kernels/cuda/fast_dequant.h"
#include "kernels/cuda/index_scores.h"
#include "kernels/cuda/int8_gemm.h"
#include "kernels/cuda/mx_dequant.h"
#include "kernels/cuda/mx_gemm.h"
#include "kernels/cuda/nccl.h"
#include "kernels/cuda/prefill.h"
#include "kernels/cuda/project.h"
#include "kernels/cuda/weight_only_gemm.h"
#include "tests/unit/kernels/fp8_product.h"
#include "verify/evidence/device.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* The linker gives these names' callers the stand-ins. */
#define cudaMalloc            __wrap_cudaMalloc
#define cudaFree              __wrap_cudaFree
#define cudaMemcpy            __wrap_cudaMemcpy
#define cudaMemcpy2D          __wrap_cudaMemcpy2D
#define cudaMemset            __wrap_cudaMemset
#define cudaMemset2D          __wrap_cudaMemset2D
#define cudaMemGetInfo        __wrap_cudaMemGetInfo
#define cudaSetDevice         __wrap_cudaSetDevice
#define cudaDeviceSynchronize __wrap_cudaDeviceSynchronize
#define cudaGetErrorString    __wrap_cudaGetErrorString
#include <cuda_runtime_api.h>

static int held, calls, bare;

int __real_pthread_mutex_lock(pthread_mutex_t *lock);
int __real_pthread_mutex_unlock(pthread_mutex_t *lock);
int __wrap_pthread_mutex_lock(pthread_mutex_t *lock);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *lock);

int __wrap_pthread_mutex_lock(pthread_mutex_t *lock)
{
    held++;
    return __real_pthread_mutex_lock(lock);
}

int __wrap_pthread_mutex_unlock(pthread_mutex_t *lock)
{
    held--;
    return __real_pthread_mutex_unlock(lock);
}

static int touch(void)
{
    calls++;
    bare += held == 0;
    return 0;
}

/* ---- the runtime ---- */

cudaError_t cudaMalloc(void **p, size_t n)
{
    *p = calloc(1, n + 1);
    return (cudaError_t)touch();
}

cudaError_t cudaFree(void *p)
{
    free(p);
    return (cudaError_t)touch();
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t n, enum cudaMemcpyKind kind)
{
    (void)kind;
    memcpy(to, from, n);
    return (cudaError_t)touch();
}

cudaError_t cudaMemcpy2D(void *to, size_t pitch, const void *from, size_t from_pitch, size_t n, size_t rows,
                         enum cudaMemcpyKind kind)
{
    (void)kind;
    for (size_t i = 0; i < rows; i++)
        memcpy((char *)to + i * pitch, (const char *)from + i * from_pitch, n);
    return (cudaError_t)touch();
}

cudaError_t cudaMemset(void *p, int value, size_t n)
{
    memset(p, value, n);
    return (cudaError_t)touch();
}

cudaError_t cudaMemset2D(void *p, size_t pitch, int value, size_t n, size_t rows)
{
    for (size_t i = 0; i < rows; i++)
        memset((char *)p + i * pitch, value, n);
    return (cudaError_t)touch();
}

cudaError_t cudaMemGetInfo(size_t *left, size_t *all)
{
    *left = *all = 1;
    return (cudaError_t)touch();
}

cudaError_t cudaSetDevice(int device)
{
    (void)device;
    return (cudaError_t)touch();
}

cudaError_t cudaDeviceSynchronize(void)
{
    return (cudaError_t)touch();
}

const char *cudaGetErrorString(cudaError_t code)
{
    (void)code;
    return "an error";
}

/* ---- the kernels ---- */

static tsr_block_fp8_grouped seen; /* by the last call */

#define KERNEL(name, ...)           \
    tsr_status name(__VA_ARGS__)    \
    {                               \
        (void)stream, (void)err;    \
        return (tsr_status)touch(); \
    }

KERNEL(tsr_cuda_block_fp8_gemm, const tsr_block_fp8_gemm *a __attribute__((unused)), tsr_stream stream, tsr_err *err)

tsr_status tsr_cuda_block_fp8_grouped(const tsr_block_fp8_grouped *args, tsr_stream stream, tsr_err *err)
{
    (void)stream, (void)err;
    seen = *args;
    return (tsr_status)touch();
}

KERNEL(tsr_cuda_int8_gemm, const tsr_int8_gemm *a __attribute__((unused)), tsr_stream stream, tsr_err *err)
KERNEL(tsr_cuda_fast_dequant, const tsr_fast_dequant *a __attribute__((unused)), tsr_stream stream, tsr_err *err)
KERNEL(tsr_cuda_mx_dequant, const tsr_mx_dequant *a __attribute__((unused)), tsr_stream stream, tsr_err *err)
KERNEL(tsr_cuda_mx_gemm, const tsr_mx_gemm *a __attribute__((unused)), tsr_stream stream, tsr_err *err)
KERNEL(tsr_cuda_weight_only_gemm, const tsr_weight_only_gemm *a __attribute__((unused)), tsr_stream stream,
       tsr_err *err)
KERNEL(tsr_cuda_mla_plan, const tsr_mla_decode *a __attribute__((unused)), tsr_stream stream, tsr_err *err)
KERNEL(tsr_cuda_mla_decode, const tsr_mla_decode *a __attribute__((unused)), tsr_stream stream, tsr_err *err)
KERNEL(tsr_cuda_prefill_plan, const tsr_prefill *a __attribute__((unused)), tsr_stream stream, tsr_err *err)
KERNEL(tsr_cuda_prefill, const tsr_prefill *a __attribute__((unused)), tsr_stream stream, tsr_err *err)
KERNEL(tsr_cuda_index_scores, const tsr_index_scores *a __attribute__((unused)),
       tsr_index_kind kind __attribute__((unused)), tsr_stream stream, tsr_err *err)
KERNEL(tsr_cuda_project, const tsr_project_args *a __attribute__((unused)), tsr_stream stream, tsr_err *err)
KERNEL(tsr_cuda_add, void *sum __attribute__((unused)), const void *part __attribute__((unused)),
       size_t n __attribute__((unused)), tsr_gemm_out out __attribute__((unused)), tsr_stream stream, tsr_err *err)

size_t tsr_cuda_mla_workspace(const tsr_mla_decode *args, const tsr_cuda_device *device)
{
    (void)args, (void)device;
    return 64;
}

size_t tsr_cuda_prefill_workspace(const tsr_prefill *args, const tsr_cuda_device *device)
{
    (void)args, (void)device;
    return 64;
}

/* Returns a device. It is called once before the table is shared, and later with the lock. */
tsr_status tsr_cuda_current_device(tsr_cuda_device *device, tsr_err *err)
{
    (void)err;
    *device = (tsr_cuda_device){.arch = 90, .processors = 1, .name = "stand-in"};
    return TSR_OK;
}

tsr_status tsr_cublas_lt_open(tsr_cublas_lt **lt, tsr_err *err)
{
    (void)err;
    *lt = (tsr_cublas_lt *)(void *)&calls;
    return TSR_OK;
}

void tsr_cublas_lt_close(tsr_cublas_lt *lt)
{
    (void)lt;
}

tsr_status tsr_cublas_lt_prepare(tsr_cublas_lt *lt, const tsr_block_fp8_gemm *args, int *offers, tsr_err *err)
{
    (void)lt, (void)args, (void)err;
    *offers = 1;
    return (tsr_status)touch();
}

tsr_status tsr_cublas_lt_run(tsr_cublas_lt *lt, int offer, tsr_stream stream, tsr_err *err)
{
    (void)lt, (void)offer, (void)stream, (void)err;
    return (tsr_status)touch();
}

tsr_status tsr_nccl_open(tsr_nccl **nccl, size_t ranks, tsr_err *err)
{
    (void)ranks, (void)err;
    *nccl = (tsr_nccl *)(void *)&calls;
    return (tsr_status)touch();
}

void tsr_nccl_close(tsr_nccl *nccl)
{
    (void)nccl;
}

int tsr_nccl_version(const tsr_nccl *nccl)
{
    (void)nccl;
    return 22703 + touch();
}

tsr_status tsr_nccl_sum(tsr_nccl *nccl, const void *const *parts, void *const *sums, size_t n, tsr_gemm_out out,
                        tsr_err *err)
{
    (void)nccl, (void)err;
    memcpy(sums[0], parts[0], n * (out == TSR_GEMM_F32 ? 4 : 2));
    return (tsr_status)touch();
}

/* ---- each entry of the table ---- */

static tsr_device device;
static tsr_err err;

static void open_table(void)
{
    cr_assert_eq(tsr_device_open(&device, TSR_DEVICE_CUDA, NULL, &err), TSR_OK, "%s", err.msg);
    calls = bare = held = 0;
}

static void expect_locked(const char *name, const char *what)
{
    cr_expect_gt(calls, 0, "%s, %s", name, what);
    cr_expect_eq(bare, 0, "%s, %s: %d of %d uses of the GPU without its lock", name, what, bare, calls);
    cr_expect_eq(held, 0, "%s, %s: the lock is still held", name, what);
    calls = bare = held = 0;
}

TestSuite(lock, .init = open_table);

Test(lock, products)
{
    static uint8_t codes[128 * 128];
    static float scales[16], d[128];
    static uint32_t words[4];
    static uint16_t values[64];
    const tsr_fp8_gemm_args gemm = fp8_product_of(fp8_product(1, 16, 128), codes, scales, codes, scales, d);
    const tsr_int8_gemm_args int8 = {.a = (int8_t *)codes,
                                     .w = (int8_t *)codes,
                                     .scale_a = scales,
                                     .scale_w = scales,
                                     .d = d,
                                     .m = 1,
                                     .n = 16,
                                     .k = 16,
                                     .ldd = 16};
    const tsr_ft_format format = {.bits = 8};
    const tsr_weight_only_args weight_only = {
        .format = &format, .words = words, .a = d, .scales = scales, .d = d, .m = 1, .n = 1, .k = 16, .ldd = 1};
    for (size_t i = 1; i < device.n_gemms; i++) {
        if (device.gemms[i].row_by_row)
            continue;
        cr_assert_eq(device.gemms[i].run(&device.gemms[i], 0, &gemm, TSR_OUT_F32, &err), TSR_OK, "%s", err.msg);
        expect_locked(device.gemms[i].name, "gemm");
    }
    for (size_t i = 1; i < device.n_epilogues; i++) {
        cr_assert_eq(device.epilogues[i].run(&device.epilogues[i], &int8, TSR_OUT_F32, &err), TSR_OK, "%s", err.msg);
        expect_locked(device.epilogues[i].name, "epilogue");
    }
    for (size_t i = 1; i < device.n_dequants; i++) {
        cr_assert_eq(device.dequants[i].run(&device.dequants[i], 8, TSR_OUT_BF16, words, 4, values, &err), TSR_OK);
        expect_locked(device.dequants[i].name, "dequant");
    }
    for (size_t i = 1; i < device.n_weight_onlys; i++) {
        cr_assert_eq(device.weight_onlys[i].run(&device.weight_onlys[i], &weight_only, &err), TSR_OK, "%s", err.msg);
        expect_locked(device.weight_onlys[i].name, "weight-only");
    }
}

/* Experts in one launch, and the array that belongs to the layout. */
Test(lock, groups_of_rows)
{
    static uint8_t codes[256 * 128];
    static float scales[512], d[256 * 16];
    static int32_t of_row[256], rows[2] = {1, 2};
    tsr_grouped_gemm grouped = {
        .gemm = fp8_product_of(fp8_product(256, 16, 128), codes, scales, codes, scales, d),
        .groups = 2,
        .expert_of_row = of_row,
    };
    size_t with_a_launch_of_their_own = 0;
    for (size_t i = 0; i < device.n_gemms; i++) {
        const tsr_device_gemm *const kernel = &device.gemms[i];
        if (kernel->run_grouped == NULL)
            continue;
        with_a_launch_of_their_own++;
        for (size_t masked = 0; masked < 2; masked++) {
            grouped.rows_of_expert = masked ? rows : NULL;
            cr_assert_eq(tsr_device_run_grouped(kernel, 0, &grouped, TSR_OUT_F32, &err), TSR_OK, "%s", err.msg);
            expect_locked(kernel->name, masked ? "masked" : "contiguous");
            cr_expect_eq(seen.groups, 2);
            cr_expect_eq(seen.gemm.m, 256);
            cr_expect_eq(seen.rows_of_group != NULL, masked);
            cr_expect_eq(seen.group_of_row != NULL, !masked);
        }
    }
    cr_expect_eq(with_a_launch_of_their_own, 2);
}

Test(lock, small_groups)
{
    static uint8_t codes[64], scales[4];
    static uint16_t values[64];
    static float d[1];
    const tsr_mx_matrix matrix = {.form = TSR_MX_FORM_MXFP8, .codes = codes, .scales = scales};
    const tsr_mx_gemm_args gemm = {.a = matrix, .w = matrix, .d = d, .m = 1, .n = 1, .k = 32, .ldd = 1};
    cr_assert_geq(device.n_mx_dequants, 3);
    for (size_t i = 1; i < device.n_mx_dequants; i++) {
        const tsr_device_mx_dequant *const kernel = &device.mx_dequants[i];
        cr_assert_eq(kernel->run(kernel, &matrix, 1, 64, values, &err), TSR_OK, "%s", err.msg);
        expect_locked(kernel->name, "values of small groups");
    }
    cr_assert_geq(device.n_mx_gemms, 2);
    for (size_t i = 1; i < device.n_mx_gemms; i++) {
        cr_assert_eq(device.mx_gemms[i].run(&device.mx_gemms[i], &gemm, TSR_OUT_F32, &err), TSR_OK, "%s", err.msg);
        expect_locked(device.mx_gemms[i].name, "product of small groups");
    }
}

Test(lock, attention)
{
    static uint16_t q[64], kv[64], rope[64];
    static uint8_t cache[4096];
    static int32_t table[4], lengths[4] = {1};
    static float out[64], row[64], parts[16];
    static const int32_t first[2] = {0, 1};
    double seconds;
    char how[64];
    tsr_mla_attention decode = {
        .q = q, .cache = cache, .block_table = table, .seqlens = lengths, .out = out, .row = row};
    decode.batch = decode.s_q = decode.heads = decode.page = decode.max_pages = decode.pages = 1;
    decode.latent = decode.rope = 16;
    tsr_causal_attention causal = {.q = q, .kv = kv, .k_rope = rope, .out = out};
    causal.cu_seqlens_q = causal.cu_seqlens_k = first;
    causal.batch = causal.heads = causal.tokens_q = causal.tokens_k = 1;
    causal.nope = causal.rope = causal.value = 8;
    const tsr_project_args project = {
        .x = parts, .w = parts, .y = out, .batch = 1, .m = 1, .n = 1, .k = 4, .ld_x = 4, .ld_w = 4, .ld_y = 1};
    const tsr_device_ranks *const ranks = &device.mlas[1].ranks;
    for (size_t spread = 0; spread < 2; spread++) {
        for (size_t i = 1; i < device.n_mlas; i++) {
            const tsr_device_mla *const kernel = &device.mlas[i];
            cr_assert_eq(kernel->run(kernel, 0, &decode, &seconds, &err), TSR_OK, "%s", err.msg);
            expect_locked(kernel->name, "decode");
            cr_assert_eq(kernel->project(kernel, 0, &project, &err), TSR_OK, "%s", err.msg);
            expect_locked(kernel->name, "project");
        }
        for (tsr_out out = 0; out < TSR_N_OUTS; out++) {
            cr_assert_eq(ranks->sum(&device, 2, out, parts, 8, &seconds, &err), TSR_OK, "%s", err.msg);
            expect_locked("ranks", "sum");
        }
        cr_assert_eq(ranks->spread(&device, 2, how, sizeof how, &err), TSR_OK, "%s", err.msg);
        expect_locked("ranks", "spread");
    }
    for (size_t i = 1; i < device.n_prefills; i++) {
        cr_assert_eq(device.prefills[i].run(&device.prefills[i], &causal, &seconds, &err), TSR_OK, "%s", err.msg);
        expect_locked(device.prefills[i].name, "prefill");
    }
}

Test(lock, sparse_attention)
{
    static const uint8_t codes[4096];
    static const float weights[4];
    static const int32_t list[4] = {0, -1, 0, 0}, seen[1] = {4};
    static uint16_t q[64];
    static float out[64], row[64];
    double seconds;
    tsr_mla_attention decode = {.q = q, .cache = codes, .indices = list, .top_k = 4, .out = out, .row = row};
    decode.batch = decode.s_q = decode.heads = decode.page = decode.pages = 1;
    decode.latent = decode.rope = 16;
    const tsr_index_scores index = {.q = codes,
                                    .k = codes,
                                    .k_scale = weights,
                                    .weights = weights,
                                    .seen = seen,
                                    .logits = out,
                                    .queries = 1,
                                    .keys = 4,
                                    .heads = 1,
                                    .width = 16};
    for (size_t i = 1; i < device.n_mlas; i++) {
        cr_assert_eq(device.mlas[i].run(&device.mlas[i], 0, &decode, &seconds, &err), TSR_OK, "%s", err.msg);
        expect_locked(device.mlas[i].name, "sparse decode");
    }
    cr_assert_gt(device.n_indexes, 1);
    for (size_t i = 1; i < device.n_indexes; i++) {
        cr_assert_eq(device.indexes[i].run(&device.indexes[i], &index, &seconds, &err), TSR_OK, "%s", err.msg);
        expect_locked(device.indexes[i].name, "index scores");
    }
}
