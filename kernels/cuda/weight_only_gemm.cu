/* Owns the weight-only product: a plain kernel, and one for up to 16 tokens that streams the weights once. A CTA has 32
 * output features, its warps share K among them, and their sums meet in shared memory in a fixed order. */
#include "kernels/cuda/weight_only_gemm.h"

#include <cuda_runtime.h>

#include "kernels/cuda/fast_dequant.cuh"

namespace {

constexpr int kWarps = 8, kColumns = 32, kTiles = kColumns / 8; /* tiles of eight columns */

__device__ __forceinline__ float widen(uint16_t x, bool bf16)
{
    return bf16 ? __uint_as_float((uint32_t)x << 16) : __half2float(__ushort_as_half(x));
}

__device__ __forceinline__ uint16_t narrow(float x, bool bf16)
{
    return bf16 ? __bfloat16_as_ushort(__float2bfloat16_rn(x)) : __half_as_ushort(__float2half_rn(x));
}

/* The code at (k, n) of layout T, by its address. */
__device__ __forceinline__ int code_at(const uint8_t *w, int bits, int64_t rows, int64_t k, int64_t n)
{
    const int turns = 16 / bits, group = 128 / bits, per_word = 32 / bits;
    const int64_t line = n / turns * (rows / 64) + k / 64;
    const int64_t word = 32 * line + n % turns * (64 / per_word) + 4 * (k % 64 / group) + k % 8 / 2;
    const int slot = (int)(k % group / 8 + k % 2 * (per_word / 2));
    return bits == 8 ? (int)w[4 * word + slot] - 128 : (w[4 * word + slot / 2] >> 4 * (slot % 2) & 15) - 8;
}

__global__ void plain_kernel(const tsr_weight_only_gemm g)
{
    const int64_t n = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, i = blockIdx.y;
    if (n >= g.n) {
        return;
    }
    const uint16_t *const a = static_cast<const uint16_t *>(g.a) + i * g.lda, *const scales = static_cast<const uint16_t *>(g.scales);
    float sum = 0;
    for (int64_t k = 0; k < g.k; ++k) {
        const float scale = widen(scales[g.group == 0 ? n : k / g.group * g.n + n], g.bf16);
        sum += widen(a[k], g.bf16) * ((float)code_at(static_cast<const uint8_t *>(g.w), g.bits, g.k, k, n) * scale);
    }
    static_cast<uint16_t *>(g.d)[i * g.ldd + n] = narrow(sum, g.bf16);
}

template <bool kBf16> __device__ __forceinline__ void multiply(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    if constexpr (kBf16) {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    } else {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
}

/* One step of a warp: lane (column, c) has 16 bytes, rows [chunk_rows * c, ...) of its column from `k0` on: 64 rows in all of
 * int8, 128 of int4 (the last step may have 64). */
template <int kBits, bool kBf16, bool kGroups, int kRows>
__device__ __forceinline__ void step(const tsr_weight_only_gemm &g, int64_t n0, int64_t k0, const uint4 *w, float c[kTiles][4])
{
    constexpr int kChunk = 128 / kBits, kPairs = kBits == 8 ? 2 : 4;
    const int lane = threadIdx.x % 32, column = lane / 4, member = lane % 4;
    const int64_t k = k0 + member * kChunk;
    const bool inside = k < g.k;
    /* Activations of rows `column` and, of more than eight tokens, `column` + 8: kChunk values each. */
    uint32_t a[kRows / 8][kChunk / 2];
#pragma unroll
    for (int r = 0; r < kRows / 8; ++r) {
        const int64_t row = column + r * 8;
#pragma unroll
        for (int v = 0; v < kChunk / 8; ++v) {
            const uint4 x = inside && row < g.m ? __ldg(reinterpret_cast<const uint4 *>(static_cast<const uint16_t *>(g.a) + row * g.lda + k) + v)
                                                : make_uint4(0, 0, 0, 0);
            a[r][4 * v] = x.x, a[r][4 * v + 1] = x.y, a[r][4 * v + 2] = x.z, a[r][4 * v + 3] = x.w;
        }
    }
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
        const uint32_t word[4] = {w[t].x, w[t].y, w[t].z, w[t].w};
        uint32_t scale = 0;
        if constexpr (kGroups) {
            scale = inside ? __ldg(static_cast<const uint16_t *>(g.scales) + k / g.group * g.n + n0 + t * 8 + column) : 0;
            scale |= scale << 16;
        }
#pragma unroll
        for (int x = 0; x < 4; ++x) {
            uint32_t b[kPairs];
            tsr::convert_fast<kBits, kBf16>(word[x], b);
            if constexpr (kGroups) {
#pragma unroll
                for (int p = 0; p < kPairs; ++p) {
                    b[p] = tsr::scaled<kBf16>(b[p], scale);
                }
            }
            /* Word x has rows 2x, 2x + 1, 2x + 8, 2x + 9 of the chunk, of int4 those 16 further as well. */
#pragma unroll
            for (int p = 0; p < kPairs; p += 2) {
                const uint32_t fragment[4] = {a[0][4 * p + x], kRows > 8 ? a[kRows / 8 - 1][4 * p + x] : 0, a[0][4 * p + x + 4],
                                              kRows > 8 ? a[kRows / 8 - 1][4 * p + x + 4] : 0};
                multiply<kBf16>(c[t], fragment, b[p], b[p + 1]);
            }
        }
    }
}

/* The 16 bytes of each of the tiles' columns that a lane has at `k0`; codes of 0 beyond K. */
template <int kBits> __device__ __forceinline__ void load(const tsr_weight_only_gemm &g, int64_t n0, int64_t k0, uint4 *w)
{
    constexpr int kTurns = 16 / kBits, kChunk = 128 / kBits;
    const int lane = threadIdx.x % 32;
    const int64_t k = k0 + lane % 4 * kChunk;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
        const int64_t n = n0 + t * 8 + lane / 4;
        const int64_t chunk = (n / kTurns * (g.k / 64) + k / 64) * 8 + n % kTurns * (8 / kTurns) + k % 64 / kChunk;
        const uint32_t zero = kBits == 8 ? 0x80808080u : 0x88888888u;
        w[t] = k < g.k ? __ldcs(static_cast<const uint4 *>(g.w) + chunk) : make_uint4(zero, zero, zero, zero);
    }
}

template <int kBits, bool kBf16, bool kGroups, int kRows> __global__ void __launch_bounds__(kWarps * 32) tokens_kernel(const tsr_weight_only_gemm g)
{
    constexpr int kStep = 4 * 128 / kBits;
    __shared__ float sums[kWarps][kRows][kColumns];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int64_t n0 = (int64_t)blockIdx.x * kColumns;
    float c[kTiles][4] = {};
    uint4 now[kTiles], next[kTiles];
    int64_t k = (int64_t)warp * kStep;
    load<kBits>(g, n0, k, now);
    for (; k < g.k; k += kWarps * kStep) {
        load<kBits>(g, n0, k + kWarps * kStep, next);
        step<kBits, kBf16, kGroups, kRows>(g, n0, k, now, c);
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
            now[t] = next[t];
        }
    }
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
        for (int e = 0; e < kRows / 8 * 2; ++e) {
            sums[warp][lane / 4 + e / 2 * 8][t * 8 + lane % 4 * 2 + e % 2] = c[t][e];
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < kRows * kColumns; i += kWarps * 32) {
        const int64_t row = i / kColumns, column = i % kColumns;
        if (row >= g.m) {
            continue;
        }
        float sum = 0;
#pragma unroll
        for (int s = 0; s < kWarps; ++s) {
            sum += sums[s][row][column];
        }
        if constexpr (!kGroups) {
            sum *= widen(static_cast<const uint16_t *>(g.scales)[n0 + column], kBf16);
        }
        static_cast<uint16_t *>(g.d)[row * g.ldd + n0 + column] = narrow(sum, kBf16);
    }
}

using kernel_fn = void (*)(const tsr_weight_only_gemm);

template <int kBits, bool kBf16> kernel_fn pick(bool groups, bool few)
{
    return groups ? (few ? tokens_kernel<kBits, kBf16, true, 8> : tokens_kernel<kBits, kBf16, true, 16>)
                  : (few ? tokens_kernel<kBits, kBf16, false, 8> : tokens_kernel<kBits, kBf16, false, 16>);
}

bool aligned(const void *p)
{
    return reinterpret_cast<uintptr_t>(p) % 16 == 0;
}

} // namespace

tsr_status tsr_cuda_weight_only_gemm(const tsr_weight_only_gemm *args, tsr_stream stream, tsr_err *err)
{
    const tsr_weight_only_gemm &g = *args;
    if ((g.bits != 8 && g.bits != 4) || g.m < 0 || g.n < 0 || g.k <= 0 || g.k % 64 != 0 || g.n % 64 != 0 || g.lda < g.k ||
        g.ldd < g.n || g.lda % 8 != 0 || g.ldd % 8 != 0 || g.group < 0 || g.group % 32 != 0 || (g.group != 0 && g.k % g.group != 0) ||
        !aligned(g.a) || !aligned(g.w) || !aligned(g.d)) {
        return tsr_fail(err, TSR_E_SHAPE, "weight-only product: K and N multiples of 64, rows on 16 bytes, groups of whole 32 rows");
    }
    if (g.m > (g.plain ? 65535 : 16) || g.n / kColumns > INT32_MAX) {
        return tsr_fail(err, TSR_E_SHAPE, "weight-only product: at most 16 tokens, %lld were given", (long long)g.m);
    }
    if (g.m == 0 || g.n == 0) {
        return TSR_OK;
    }
    if (g.plain) {
        plain_kernel<<<dim3((unsigned)((g.n + 127) / 128), (unsigned)g.m), 128, 0, stream>>>(g);
    } else {
        const bool few = g.m <= 8, groups = g.group != 0;
        const kernel_fn kernel = g.bits == 8 ? (g.bf16 ? pick<8, true>(groups, few) : pick<8, false>(groups, few))
                                             : (g.bf16 ? pick<4, true>(groups, few) : pick<4, false>(groups, few));
        kernel<<<(unsigned)(g.n / kColumns), kWarps * 32, 0, stream>>>(g);
    }
    const cudaError_t code = cudaGetLastError();
    return code == cudaSuccess ? TSR_OK : tsr_fail(err, TSR_E_DEVICE, "weight-only product: %s", cudaGetErrorString(code));
}
