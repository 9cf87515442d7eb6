/* Weight-only product for GPUs before Hopper: a plain kernel, and one whose CTAs have 32 output features and up to 16
 * tokens each. The warps of a CTA share K, and their sums are added in shared memory in a fixed order. Also the choice
 * of a kernel. */
#include "kernels/cuda/weight_only_gemm.h"

#include <cuda_runtime.h>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/weight_only.cuh"

namespace
{

constexpr int kWarps = 8, kColumns = 32, kTiles = kColumns / 8; /* tiles of eight columns */

/* Returns the code at (k, n) of layout T by the address formula. */
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
    const int64_t n = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (n >= g.n) {
        return;
    }
    const uint16_t *const scales = static_cast<const uint16_t *>(g.scales);
    const uint16_t *const zeros = static_cast<const uint16_t *>(g.zeros);
    for (int64_t i = blockIdx.y; i < g.m; i += gridDim.y) {
        const uint16_t *const a = static_cast<const uint16_t *>(g.a) + i * g.lda;
        float sum = 0;
        for (int64_t k = 0; k < g.k; ++k) {
            const int64_t from = g.group == 0 ? n : k / g.group * g.n + n;
            const float zero = zeros ? tsr::widen(zeros[from], g.bf16) : 0.0f;
            const float code = (float)code_at(static_cast<const uint8_t *>(g.w), g.bits, g.k, k, n);
            sum += tsr::widen(a[k], g.bf16) * (code * tsr::widen(scales[from], g.bf16) + zero);
        }
        static_cast<uint16_t *>(g.d)[i * g.ldd + n] = tsr::narrow(sum, g.bf16);
    }
}

/* Operands of lane (column, c) in one step of its warp, which has 64 rows of K for int8, 128 for int4: the c-th 16
 * bytes of its column in each tile, the matching activations of tokens m0 + `column` and 8 further, and the scales and
 * zeros of its rows' group. */
template <int kBits, bool kGroups, int kRows> struct operands {
    static constexpr int kChunk = 128 / kBits; /* rows of K in 16 bytes */
    uint4 w[kTiles];
    uint32_t a[kRows / 8][kChunk / 2];
    uint32_t scale[kGroups ? kTiles : 1], zero[kGroups ? kTiles : 1];

    /* Loads one step. Beyond K, codes and activations are 0. */
    __device__ __forceinline__ void load(const tsr_weight_only_gemm &g, int64_t m0, int n0, int k0, int group_shift)
    {
        constexpr int kTurns = 16 / kBits;
        const int column = (int)threadIdx.x % 32 / 4, k = k0 + (int)threadIdx.x % 4 * kChunk, rows = (int)g.k;
        const bool inside = k < rows;
        constexpr uint32_t kZero = kBits == 8 ? 0x80808080u : 0x88888888u;
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
            const int n = n0 + t * 8 + column;
            const int64_t chunk =
                ((int64_t)(n / kTurns) * (rows / 64) + k / 64) * 8 + n % kTurns * (8 / kTurns) + k % 64 / kChunk;
            w[t] = inside ? __ldcs(static_cast<const uint4 *>(g.w) + chunk) : make_uint4(kZero, kZero, kZero, kZero);
            if constexpr (kGroups) {
                const int64_t from = (int64_t)(k >> group_shift) * g.n + n;
                scale[t] = inside ? __ldg(static_cast<const uint16_t *>(g.scales) + from) : 0;
                zero[t] = inside && g.zeros ? __ldg(static_cast<const uint16_t *>(g.zeros) + from) : 0x8000;
            }
        }
#pragma unroll
        for (int r = 0; r < kRows / 8; ++r) {
            const int64_t row = m0 + column + r * 8;
            const uint4 *const from =
                reinterpret_cast<const uint4 *>(static_cast<const uint16_t *>(g.a) + row * g.lda + k);
#pragma unroll
            for (int v = 0; v < kChunk / 8; ++v) {
                const uint4 x = inside && row < g.m ? __ldg(from + v) : make_uint4(0, 0, 0, 0);
                a[r][4 * v] = x.x, a[r][4 * v + 1] = x.y, a[r][4 * v + 2] = x.z, a[r][4 * v + 3] = x.w;
            }
        }
    }

    template <bool kBf16> __device__ __forceinline__ void multiply_all(float c[kTiles][4]) const
    {
        constexpr int kPairs = kBits == 8 ? 2 : 4;
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
            const uint32_t word[4] = {w[t].x, w[t].y, w[t].z, w[t].w};
#pragma unroll
            for (int x = 0; x < 4; ++x) {
                uint32_t b[kPairs];
                tsr::convert_fast<kBits, kBf16>(word[x], b);
                if constexpr (kGroups) {
#pragma unroll
                    for (int p = 0; p < kPairs; ++p) {
                        b[p] = tsr::scaled_onto<kBf16>(b[p], scale[t] | scale[t] << 16, zero[t] | zero[t] << 16);
                    }
                }
                /* Word x has rows 2x, 2x + 1, 2x + 8, 2x + 9 of the 16 bytes, and for int4 also those 16 further. */
#pragma unroll
                for (int p = 0; p < kPairs; p += 2) {
                    const uint32_t fragment[4] = {a[0][4 * p + x], kRows > 8 ? a[kRows / 8 - 1][4 * p + x] : 0,
                                                  a[0][4 * p + x + 4], kRows > 8 ? a[kRows / 8 - 1][4 * p + x + 4] : 0};
                    tsr::multiply<kBf16>(c[t], fragment, b[p], b[p + 1]);
                }
            }
        }
    }
};

template <int kBits, bool kBf16, bool kGroups, int kRows>
__global__ void __launch_bounds__(kWarps * 32, kBits == 8 && kRows == 8 ? 1 : 2)
    tokens_kernel(const tsr_weight_only_gemm g, int token_tiles, int group_shift)
{
    constexpr int kStep = 4 * 128 / kBits, kAhead = kBits == 8 && kRows == 8 ? 2 : 1; /* steps in flight */
    __shared__ float sums[kWarps][kRows][kColumns];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int n0 = (int)blockIdx.x / token_tiles * kColumns, rows = (int)g.k;
    const int64_t m0 = (int64_t)((int)blockIdx.x % token_tiles) * kRows;
    float c[kTiles][4] = {};
    operands<kBits, kGroups, kRows> ahead[kAhead];
    int k = warp * kStep;
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
        ahead[i].load(g, m0, n0, k + i * kWarps * kStep, group_shift);
    }
    for (; k < rows; k += kAhead * kWarps * kStep) {
#pragma unroll
        for (int i = 0; i < kAhead; ++i) { /* a step beyond K multiplies zeros */
            const operands<kBits, kGroups, kRows> now = ahead[i];
            ahead[i].load(g, m0, n0, k + (kAhead + i) * kWarps * kStep, group_shift);
            now.template multiply_all<kBf16>(c);
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
        const int row = i / kColumns, column = i % kColumns;
        if (m0 + row >= g.m) {
            continue;
        }
        float sum = 0;
#pragma unroll
        for (int s = 0; s < kWarps; ++s) {
            sum += sums[s][row][column];
        }
        if constexpr (!kGroups) {
            sum *= tsr::widen(static_cast<const uint16_t *>(g.scales)[n0 + column], kBf16);
        }
        static_cast<uint16_t *>(g.d)[(m0 + row) * g.ldd + n0 + column] = tsr::narrow(sum, kBf16);
    }
}

using kernel_fn = void (*)(const tsr_weight_only_gemm, int, int);

template <int kBits, bool kBf16> kernel_fn pick(bool groups, bool few)
{
    return groups ? (few ? tokens_kernel<kBits, kBf16, true, 8> : tokens_kernel<kBits, kBf16, true, 16>)
                  : (few ? tokens_kernel<kBits, kBf16, false, 8> : tokens_kernel<kBits, kBf16, false, 16>);
}

tsr_status check(const tsr_weight_only_gemm &g, tsr_err *err)
{
    if ((g.bits != 8 && g.bits != 4) || g.m < 0 || g.n < 0 || g.k <= 0 || g.k % 64 != 0 || g.n % 64 != 0 ||
        g.lda < g.k || g.ldd < g.n || g.lda % 8 != 0 || g.ldd % 8 != 0 ||
        (g.group != 0 && ((g.group != 32 && g.group != 64 && g.group != 128) || g.k % g.group != 0)) ||
        g.k > INT32_MAX / 2 || g.n > INT32_MAX || !host::aligned(g.a, 16) || !host::aligned(g.w, 16) ||
        !host::aligned(g.d, 16) || !host::aligned(g.scales, 16) || !host::aligned(g.zeros, 16)) {
        return tsr_fail(err, TSR_E_SHAPE,
                        "weight-only product: K and N must be multiples of 64, rows aligned to 16 bytes, groups of "
                        "32, 64 or 128");
    }
    if (g.m > INT32_MAX || g.n / kColumns * (g.m / 8 + 1) > INT32_MAX) {
        return tsr_fail(err, TSR_E_SHAPE, "weight-only product: %lld x %lld results exceed one launch", (long long)g.m,
                        (long long)g.n);
    }
    return TSR_OK;
}

void launch_plain(const tsr_weight_only_gemm &g, tsr_stream stream)
{
    const dim3 grid((unsigned)((g.n + 127) / 128), (unsigned)(g.m < 65535 ? g.m : 65535));
    plain_kernel<<<grid, 128, 0, stream>>>(g);
}

void launch_tokens(const tsr_weight_only_gemm &g, tsr_stream stream)
{
    const bool few = g.m <= 8, groups = g.group != 0 || g.zeros != nullptr;
    const kernel_fn kernel = g.bits == 8 ? (g.bf16 ? pick<8, true>(groups, few) : pick<8, false>(groups, few))
                                         : (g.bf16 ? pick<4, true>(groups, few) : pick<4, false>(groups, few));
    const int shift = g.group == 128 ? 7 : g.group == 64 ? 6 : g.group == 32 ? 5 : 31; /* 31: all of K is one group */
    const int token_tiles = few ? 1 : (int)((g.m + 15) / 16);
    kernel<<<(unsigned)(g.n / kColumns * token_tiles), kWarps * 32, 0, stream>>>(g, token_tiles, shift);
}

} // namespace

tsr_status tsr_cuda_weight_only_gemm(const tsr_weight_only_gemm *args, tsr_stream stream, tsr_err *err)
{
    const tsr_weight_only_gemm &g = *args;
    TSR_TRY(check(g, err));
    if (g.m == 0 || g.n == 0) {
        return TSR_OK;
    }
    if (g.kind == TSR_WEIGHT_ONLY_AUTO || g.kind == TSR_WEIGHT_ONLY_TILES) {
        tsr_cuda_device device;
        TSR_TRY(tsr_cuda_current_device(&device, err));
        if (device.arch == 90) {
            const int64_t most = g.bits == 4 && g.group == 128 ? 32 : 16; /* tokens */
            const bool few = g.kind == TSR_WEIGHT_ONLY_AUTO && g.m <= most && g.zeros == nullptr;
            return few ? tsr::weight_only_stream(g, device.processors, stream, err)
                       : tsr::weight_only_tiles(g, device.processors, stream, err);
        }
        if (g.kind == TSR_WEIGHT_ONLY_TILES) {
            return tsr_fail(err, TSR_E_DEVICE,
                            "weight-only product: the kernel with tiles needs sm_90; this GPU is "
                            "sm_%d",
                            device.arch);
        }
    }
    if (g.kind == TSR_WEIGHT_ONLY_PLAIN) {
        launch_plain(g, stream);
    } else {
        launch_tokens(g, stream);
    }
    return host::launched("weight-only product", cudaSuccess, err);
}
