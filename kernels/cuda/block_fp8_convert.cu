/* Converts between BF16 and e4m3. Compiled with -fmad=false: products are fused only where the code says so. */
#include "kernels/cuda/block_fp8_convert.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include "kernels/cuda/launch.cuh"

namespace
{

constexpr int kGroup = 128;
constexpr int kThreads = 256;
constexpr int kLanes = 8;                  /* lanes that share a group */
constexpr int kPieces = 16 / kLanes;       /* pieces of 16 bytes that a lane has of a group, kLanes pieces apart */
constexpr int kGroups = 2;                 /* groups that a thread processes at the same time */
constexpr int kRows = kThreads / kLanes;   /* rows of a CTA */
constexpr int kColumns = kGroups * kGroup; /* columns of a CTA */

/* Returns the IEEE quotient x / s, where `inverse` is 1 / s rounded: one correction makes it exact (Markstein) if
 * nothing underflows, which the caller guarantees. The remainder is q * s - x, not its negative, because of the sign of
 * -0. */
__device__ __forceinline__ float divide(float x, float s, float inverse)
{
    const float q = x * inverse;
    return __fmaf_rn(-__fmaf_rn(q, s, -x), inverse, q);
}

__device__ __forceinline__ uint32_t encode2(float x, float y)
{
    return __nv_cvt_float2_to_fp8x2(make_float2(x, y), __NV_SATFINITE, __NV_E4M3);
}

__device__ __forceinline__ float low_bf16(uint32_t pair)
{
    return __uint_as_float(pair << 16);
}

__device__ __forceinline__ float high_bf16(uint32_t pair)
{
    return __uint_as_float(pair & 0xFFFF0000u);
}

__global__ void __launch_bounds__(kThreads)
    quantize_kernel(const uint16_t *__restrict__ x, int64_t m, int64_t k, int64_t ldx, uint8_t *__restrict__ codes,
                    int64_t ldc, float *__restrict__ scales, int64_t ld_scale)
{
    /* Successive CTAs advance along the rows, so that neighbours read the same pages of memory. */
    const int lane = threadIdx.x % kLanes;
    const int64_t row = (int64_t)blockIdx.y * kRows + threadIdx.x / kLanes;
    const int64_t group0 = (int64_t)blockIdx.x * kGroups;
    const int64_t column0 = group0 * kGroup + lane * 8;
    /* Number of columns of the row from this thread's first one on, at most kColumns. */
    const int left = row < m ? (int)min(k - column0, (int64_t)kColumns) : -kGroup;
    uint32_t v[kGroups][kPieces][4];
    const uint16_t *const from = x + row * ldx + column0;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
#pragma unroll
        for (int p = 0; p < kPieces; ++p) {
            const int at = g * kGroup + p * kLanes * 8;
            uint4 u = make_uint4(0, 0, 0, 0);
            if (at < left) { /* rows hold multiples of 16 */
                u = __ldg(reinterpret_cast<const uint4 *>(from + at));
            }
            v[g][p][0] = u.x, v[g][p][1] = u.y, v[g][p][2] = u.z, v[g][p][3] = u.w;
        }
    }
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
        /* Magnitudes of BF16 are ordered like their bits, so both halves of a word are compared at once. */
        uint32_t most = 0;
#pragma unroll
        for (int p = 0; p < kPieces; ++p) {
            const int at = g * kGroup + p * kLanes * 8;
#pragma unroll
            for (int c = 0; c < 4; ++c) {
                if (at + 8 > left) {
                    v[g][p][c] &= at + 2 * c + 1 < left ? 0xFFFFFFFFu : at + 2 * c < left ? 0xFFFFu : 0;
                }
                most = __vmaxu2(most, v[g][p][c] & 0x7FFF7FFFu);
            }
        }
#pragma unroll
        for (int distance = kLanes / 2; distance > 0; distance /= 2) {
            most = __vmaxu2(most, __shfl_xor_sync(0xFFFFFFFFu, most, distance, kLanes));
        }
        const float amax = fmaxf(low_bf16(most), high_bf16(most));
        if (g * kGroup - lane * 8 >= left) {
            continue;
        }
        const bool plain_range = amax > 0x1p-80f && amax < 0x1p+80f;
        const float scale = plain_range    ? divide(amax, 448.0f, 1.0f / 448.0f)
                            : amax == 0.0f ? 1.0f
                                           : __fdiv_rn(amax, 448.0f);
        /* Outside of that range both operands of the division are scaled by a power of two, which is exact where it
         * matters. */
        const float move = plain_range ? 1.0f : amax < 1.0f ? 0x1p+64f : 0x1p-64f;
        const float divisor = scale * move, inverse = __frcp_rn(divisor);
#pragma unroll
        for (int p = 0; p < kPieces; ++p) {
            const int at = g * kGroup + p * kLanes * 8;
            uint32_t out[2];
#pragma unroll
            for (int c = 0; c < 2; ++c) {
                float q[4] = {low_bf16(v[g][p][2 * c]), high_bf16(v[g][p][2 * c]), low_bf16(v[g][p][2 * c + 1]),
                              high_bf16(v[g][p][2 * c + 1])};
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    q[e] = divide(q[e] * move, divisor, inverse);
                }
                out[c] = encode2(q[0], q[1]) | encode2(q[2], q[3]) << 16;
            }
            uint8_t *const to = codes + row * ldc + column0 + at;
            if (at + 8 <= left) {
                *reinterpret_cast<uint2 *>(to) = make_uint2(out[0], out[1]);
            } else {
#pragma unroll 1
                for (int c = 0; at + c < left; ++c) {
                    to[c] = (uint8_t)((c < 4 ? out[0] : out[1]) >> 8 * (c % 4));
                }
            }
        }
        if (lane == 0) {
            scales[(group0 + g) * ld_scale + row] = scale;
        }
    }
}

__device__ __forceinline__ uint32_t decode2(uint16_t pair, float scale)
{
    const float2 v = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(pair, __NV_E4M3)));
    const __nv_bfloat162 out = __floats2bfloat162_rn(v.x * scale, v.y * scale);
    return *reinterpret_cast<const uint32_t *>(&out);
}

/* A thread has 8 codes of each of four rows; a CTA has 256 columns of 32 rows. */
__global__ void __launch_bounds__(256)
    dequantize_kernel(const uint8_t *__restrict__ codes, const float *__restrict__ scales, int64_t n, int64_t k,
                      int64_t ldc, uint16_t *__restrict__ w, int64_t ldw)
{
    constexpr int kDeep = 4;
    const int64_t column = ((int64_t)blockIdx.y * 32 + threadIdx.x % 32) * 8;
    const int64_t row0 = (int64_t)blockIdx.x * 8 * kDeep + threadIdx.x / 32;
    if (column >= k) {
        return;
    }
    const bool whole = column + 8 <= k;
    uint2 v[kDeep] = {};
#pragma unroll
    for (int r = 0; r < kDeep; ++r) {
        const int64_t row = row0 + r * 8;
        if (row < n && whole) {
            v[r] = __ldg(reinterpret_cast<const uint2 *>(codes + row * ldc + column));
        }
    }
#pragma unroll
    for (int r = 0; r < kDeep; ++r) {
        const int64_t row = row0 + r * 8;
        if (row >= n) {
            return;
        }
        const float scale = __ldg(scales + row / kGroup * ((k + kGroup - 1) / kGroup) + column / kGroup);
        uint16_t *const to = w + row * ldw + column;
        if (whole) {
            *reinterpret_cast<uint4 *>(to) =
                make_uint4(decode2((uint16_t)v[r].x, scale), decode2((uint16_t)(v[r].x >> 16), scale),
                           decode2((uint16_t)v[r].y, scale), decode2((uint16_t)(v[r].y >> 16), scale));
        } else {
            for (int c = 0; column + c < k; ++c) {
                to[c] = (uint16_t)decode2(codes[row * ldc + column + c], scale);
            }
        }
    }
}

/* Returns a grid of `x` by `y` CTAs. TSR_E_SHAPE: the device has no such grid. */
tsr_status grid_of(int64_t x, int64_t y, dim3 *grid, tsr_err *err)
{
    if (x > INT32_MAX || y > 65535) {
        return tsr_fail(err, TSR_E_SHAPE, "the matrix is too large for one launch");
    }
    *grid = dim3((unsigned)x, (unsigned)y);
    return TSR_OK;
}

} // namespace

tsr_status tsr_cuda_quantize_tokens(const uint16_t *x, int64_t m, int64_t k, int64_t ldx, uint8_t *codes, int64_t ldc,
                                    float *scales, int64_t ld_scale, tsr_stream stream, tsr_err *err)
{
    if (m < 0 || k < 0 || ldx < k || ldc < k || ld_scale < m || ldx % 16 || ldc % 16 || !host::aligned(x, 16) ||
        !host::aligned(codes, 16)) {
        return tsr_fail(err, TSR_E_SHAPE,
                        "quantizing tokens: row pitches must be multiples of 16 bytes, and no "
                        "smaller than the columns");
    }
    if (m == 0 || k == 0) {
        return TSR_OK;
    }
    dim3 grid;
    TSR_TRY(grid_of((k + kColumns - 1) / kColumns, (m + kRows - 1) / kRows, &grid, err));
    quantize_kernel<<<grid, kThreads, 0, stream>>>(x, m, k, ldx, codes, ldc, scales, ld_scale);
    return host::launched("quantizing tokens", cudaSuccess, err);
}

tsr_status tsr_cuda_dequantize_blocks(const uint8_t *codes, const float *scales, int64_t n, int64_t k, int64_t ldc,
                                      uint16_t *w, int64_t ldw, tsr_stream stream, tsr_err *err)
{
    if (n < 0 || k < 0 || ldc < k || ldw < k || ldc % 16 || ldw % 16 || !host::aligned(codes, 16) ||
        !host::aligned(w, 16)) {
        return tsr_fail(err, TSR_E_SHAPE,
                        "dequantizing blocks: row pitches must be multiples of 16 bytes, and no "
                        "smaller than the columns");
    }
    if (n == 0 || k == 0) {
        return TSR_OK;
    }
    dim3 grid;
    TSR_TRY(grid_of((n + 31) / 32, (k + 255) / 256, &grid, err));
    dequantize_kernel<<<grid, 256, 0, stream>>>(codes, scales, n, k, ldc, w, ldw);
    return host::launched("dequantizing blocks", cudaSuccess, err);
}
