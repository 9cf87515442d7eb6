/* Int8 product: a plain kernel, and one with 128 x 128 tiles that uses mma.m16n8k32 behind three stages of cp.async. */
#include "kernels/cuda/int8_gemm.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/store_result.cuh"

namespace
{

constexpr char kWhat[] = "int8 product";
constexpr int kTile = 128, kStep = 64, kStages = 3, kThreads = 256;
constexpr int kPitch = kStep + 16; /* bytes; the eight rows of a fragment are in different banks */
constexpr int kStageBytes = 2 * kTile * kPitch;

/* Nothing here is fused, with or without -fmad=false. */
__device__ __forceinline__ float epilogue(const tsr_int8_gemm &g, int32_t product, int64_t i, int64_t j)
{
    if (g.azp_with_adj != nullptr) {
        product -= g.azp_with_adj[j];
    } else if (g.azp != nullptr) {
        product -= g.azp[i] * g.azp_adj[j];
    }
    const float value = __fmul_rn(g.scale_a[g.one_scale_a ? 0 : i],
                                  __fmul_rn(g.scale_w[g.one_scale_w ? 0 : j], __int2float_rn(product)));
    return g.bias == nullptr ? value : __fadd_rn(value, g.bias[j]);
}

__device__ __forceinline__ void store(const tsr_int8_gemm &g, int64_t i, int64_t j, float value)
{
    const int64_t at = i * g.ldd + j;
    tsr::store_result(g, at, value);
}

__global__ void plain_kernel(const tsr_int8_gemm g)
{
    const int64_t j = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, i = blockIdx.y;
    if (j >= g.n) {
        return;
    }
    int32_t sum = 0;
    for (int64_t x = 0; x < g.k; ++x) {
        sum += (int32_t)g.a[i * g.lda + x] * g.w[j * g.ldw + x];
    }
    store(g, i, j, epilogue(g, sum, i, j));
}

__device__ __forceinline__ void copy16(uint32_t to, const int8_t *from, bool there)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0));
}

/* Loads 128 rows of 64 bytes of both operands. Elements outside become zeros. */
__device__ __forceinline__ void load_stage(const tsr_int8_gemm &g, uint32_t shared, int64_t row_a, int64_t row_w,
                                           int64_t x)
{
#pragma unroll
    for (int i = 0; i < kTile * kStep / 16 / kThreads; ++i) {
        const int chunk = (int)threadIdx.x + i * kThreads, row = chunk / (kStep / 16);
        const int64_t column = x + chunk % (kStep / 16) * 16;
        const uint32_t to = shared + row * kPitch + chunk % (kStep / 16) * 16;
        const bool a = row_a + row < g.m && column < g.k, w = row_w + row < g.n && column < g.k;
        copy16(to, a ? g.a + (row_a + row) * g.lda + column : g.a, a);
        copy16(to + kTile * kPitch, w ? g.w + (row_w + row) * g.ldw + column : g.w, w);
    }
    asm volatile("cp.async.commit_group;");
}

__device__ __forceinline__ void multiply(int32_t c[4], const uint32_t a[4], const uint32_t b[2])
{
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* The eight warps form two rows of four, and each computes 64 x 32 results. */
__global__ void __launch_bounds__(kThreads, 2) tile_kernel(const tsr_int8_gemm g)
{
    extern __shared__ __align__(16) uint8_t shared[];
    const uint32_t base = (uint32_t)__cvta_generic_to_shared(shared);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4, member = lane % 4;
    const int64_t row_a = (int64_t)blockIdx.y * kTile, row_w = (int64_t)blockIdx.x * kTile;
    const int warp_a = warp / 4 * 64, warp_w = warp % 4 * 32;
    const int steps = (int)((g.k + kStep - 1) / kStep);
    int32_t c[4][4][4] = {};
    for (int s = 0; s < kStages - 1; ++s) {
        load_stage(g, base + s * kStageBytes, row_a, row_w, (int64_t)s * kStep);
    }
    for (int s = 0; s < steps; ++s) {
        asm volatile("cp.async.wait_group %0;" ::"n"(kStages - 2));
        __syncthreads();
        load_stage(g, base + (s + kStages - 1) % kStages * kStageBytes, row_a, row_w,
                   (int64_t)(s + kStages - 1) * kStep);
        const uint8_t *const a = shared + s % kStages * kStageBytes, *const w = a + kTile * kPitch;
#pragma unroll
        for (int x = 0; x < kStep; x += 32) {
            uint32_t fa[4][4], fw[4][2];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const uint8_t *const at = a + (warp_a + i * 16 + group) * kPitch + x + member * 4;
                fa[i][0] = *reinterpret_cast<const uint32_t *>(at);
                fa[i][1] = *reinterpret_cast<const uint32_t *>(at + 8 * kPitch);
                fa[i][2] = *reinterpret_cast<const uint32_t *>(at + 16);
                fa[i][3] = *reinterpret_cast<const uint32_t *>(at + 8 * kPitch + 16);
                const uint8_t *const from = w + (warp_w + i * 8 + group) * kPitch + x + member * 4;
                fw[i][0] = *reinterpret_cast<const uint32_t *>(from);
                fw[i][1] = *reinterpret_cast<const uint32_t *>(from + 16);
            }
#pragma unroll
            for (int i = 0; i < 4; ++i) {
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    multiply(c[i][j], fa[i], fw[j]);
                }
            }
        }
    }
    asm volatile("cp.async.wait_all;");
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const int64_t row = row_a + warp_a + i * 16 + group + e / 2 * 8,
                              column = row_w + warp_w + j * 8 + member * 2 + e % 2;
                if (row < g.m && column < g.n) {
                    store(g, row, column, epilogue(g, c[i][j][e], row, column));
                }
            }
        }
    }
}

bool is_fast(const tsr_int8_gemm &g)
{
    return !g.plain && g.k % 16 == 0 && g.lda % 16 == 0 && g.ldw % 16 == 0 &&
           reinterpret_cast<uintptr_t>(g.a) % 16 == 0 && reinterpret_cast<uintptr_t>(g.w) % 16 == 0;
}

} // namespace

tsr_status tsr_cuda_int8_gemm(const tsr_int8_gemm *args, tsr_stream stream, tsr_err *err)
{
    const tsr_int8_gemm &g = *args;
    const int64_t longest = g.azp_with_adj == nullptr && g.azp == nullptr ? (1 << 17) - 1 : INT32_MAX / (255 * 128);
    if (g.m < 0 || g.n < 0 || g.k < 0 || g.k > longest || g.lda < g.k || g.ldw < g.k || g.ldd < g.n ||
        (g.azp == nullptr) != (g.azp_adj == nullptr)) {
        return tsr_fail(err, TSR_E_SHAPE,
                        "int8 product: k must be at most 2^17 - 1 (65793 with azp), leading dimensions no smaller "
                        "than a row, and azp needs azp_adj");
    }
    if (g.m == 0 || g.n == 0) {
        return TSR_OK;
    }
    if (is_fast(g) && (g.m + kTile - 1) / kTile <= 65535) {
        TSR_TRY(host::launched(kWhat, host::allow_shared(tile_kernel, kStages * kStageBytes), err));
        const dim3 grid((unsigned)((g.n + kTile - 1) / kTile), (unsigned)((g.m + kTile - 1) / kTile));
        tile_kernel<<<grid, kThreads, kStages * kStageBytes, stream>>>(g);
    } else {
        if (g.m > 65535) {
            return tsr_fail(err, TSR_E_SHAPE, "int8 product: the plain kernel supports at most 65535 rows");
        }
        plain_kernel<<<dim3((unsigned)((g.n + 127) / 128), (unsigned)g.m), 128, 0, stream>>>(g);
    }
    return host::launched(kWhat, cudaSuccess, err);
}
