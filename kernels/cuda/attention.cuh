/* Common code of the attention kernels: the plain kernel's FP32 arithmetic, small steps of a softmax on wgmma's
 * accumulators, and the checks of their launchers. */
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>
#include <float.h>
#include <math.h>
#include <stdint.h>

#include "common/status.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/mla_decode.h"

namespace attention
{

constexpr float kLog2E = 1.44269504f;

__device__ __forceinline__ float reduce_warp(float x, bool maximum)
{
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
        const float other = __shfl_xor_sync(0xFFFFFFFFu, x, distance);
        x = maximum ? fmaxf(x, other) : x + other;
    }
    return x;
}

/* ---- the definition ---------------------------------------------------------------------------------------------- */

constexpr int kPlainThreads = 128;

__device__ __forceinline__ float reduce_plain(float x, bool maximum, float *scratch)
{
    x = reduce_warp(x, maximum);
    __syncthreads();
    if (threadIdx.x % 32 == 0) {
        scratch[threadIdx.x / 32] = x;
    }
    __syncthreads();
    float all = scratch[0];
    for (int w = 1; w < kPlainThreads / 32; ++w) {
        all = maximum ? fmaxf(all, scratch[w]) : all + scratch[w];
    }
    return all;
}

/* Returns two e4m3 codes as BF16, which is exact. */
__host__ __device__ __forceinline__ __nv_bfloat162 widen_codes(uint16_t codes)
{
    const float2 v = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(codes, __NV_E4M3)));
    return __floats2bfloat162_rn(v.x, v.y);
}

/* Columns in FP8, with a scale for each 128. */
struct coded_columns {
    const uint8_t *codes;
    const float *scales;
};

__device__ __forceinline__ float value_at(const __nv_bfloat16 *columns, int c)
{
    return __bfloat162float(columns[c]);
}

__device__ __forceinline__ float value_at(const coded_columns &columns, int c)
{
    return __low2float(widen_codes(columns.codes[c])) * columns.scales[c / 128];
}

/* The position of a token's key, which has two pieces, and of its value. */
template <typename COLUMNS = const __nv_bfloat16 *> struct plain_token {
    COLUMNS nope;
    const __nv_bfloat16 *rope;
    COLUMNS value;
    bool exists = true;
};

struct plain_shape {
    int nope, rope, value; /* columns */
    float scale;

    __host__ __device__ int shared_floats() const
    {
        return nope + rope + value + kPlainThreads;
    }
};

/* Computes attention of one query and head with a CTA of kPlainThreads threads, in chunks of that many tokens. For the
 * scores a thread has one token, for the values one column. token(t) returns a plain_token, which is left out if it
 * does not exist; write(c, x) stores column c of the result, and lse may be NULL. */
template <typename Token, typename Write>
__device__ void attend_plain(const plain_shape &s, const __nv_bfloat16 *query, int visible, const Token &token,
                             const Write &write, float *lse, float *shared)
{
    const int width = s.nope + s.rope;
    float *const q = shared, *const sum = q + width, *const weight = sum + s.value;
    __shared__ float scratch[kPlainThreads / 32];
    for (int c = threadIdx.x; c < width; c += kPlainThreads) {
        q[c] = __bfloat162float(query[c]);
    }
    for (int c = threadIdx.x; c < s.value; c += kPlainThreads) {
        sum[c] = 0.0f;
    }
    __syncthreads();
    float most = -FLT_MAX, total = 0.0f; /* not -INFINITY, from which -INFINITY cannot be subtracted */
    for (int from = 0; from < visible; from += kPlainThreads) {
        const int t = from + (int)threadIdx.x;
        float score = -INFINITY;
        if (t < visible) {
            const auto k = token(t);
            if (k.exists) {
                score = 0.0f;
                for (int c = 0; c < s.nope; ++c) {
                    score = fmaf(q[c], value_at(k.nope, c), score);
                }
                for (int c = 0; c < s.rope; ++c) {
                    score = fmaf(q[s.nope + c], value_at(k.rope, c), score);
                }
                score *= s.scale;
            }
        }
        const float now = fmaxf(most, reduce_plain(score, true, scratch));
        const float shrink = expf(most - now);
        most = now;
        const float w = expf(score - most);
        weight[threadIdx.x] = w;
        total = total * shrink + reduce_plain(w, false, scratch);
        for (int c = threadIdx.x; c < s.value; c += kPlainThreads) {
            float x = sum[c] * shrink;
            for (int u = from; u < min(visible, from + kPlainThreads); ++u) {
                const auto v = token(u);
                if (v.exists) {
                    x = fmaf(weight[u - from], value_at(v.value, c), x);
                }
            }
            sum[c] = x;
        }
        __syncthreads();
    }
    for (int c = threadIdx.x; c < s.value; c += kPlainThreads) {
        write(c, total > 0.0f ? sum[c] / total : 0.0f);
    }
    if (lse && threadIdx.x == 0) {
        *lse = total > 0.0f ? most + logf(total) : -INFINITY;
    }
}

/* ---- steps of the fast kernels ----------------------------------------------------------------------------------- */

__device__ __forceinline__ float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ uint32_t pack(float x, float y)
{
    const __nv_bfloat162 v = __floats2bfloat162_rn(x, y);
    return *reinterpret_cast<const uint32_t *>(&v);
}

__device__ __forceinline__ float quad_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, 2));
}

/* Returns the largest score of row h of the two that a quad holds. */
template <int N> __device__ __forceinline__ float row_max(const float (&score)[N], int h)
{
    float most = score[2 * h];
#pragma unroll
    for (int i = 0; i < N; i += 4) {
        most = fmaxf(most, fmaxf(score[i + 2 * h], score[i + 2 * h + 1]));
    }
    return quad_max(most);
}

__device__ __forceinline__ float quad_sum(float x)
{
    x += __shfl_xor_sync(0xFFFFFFFFu, x, 1);
    return x + __shfl_xor_sync(0xFFFFFFFFu, x, 2);
}

/* Transposes four groups of eight columns of a row over four lanes. Before, lane q has columns 2q and 2q + 1 of each
 * group; afterwards, lane q has all eight columns of group q. */
__device__ __forceinline__ uint4 transpose_quad(uint32_t v0, uint32_t v1, uint32_t v2, uint32_t v3, int q)
{
    const bool odd = q & 1, high = q & 2;
    uint32_t give = odd ? v0 : v1, other = __shfl_xor_sync(0xFFFFFFFFu, give, 1);
    if (odd) {
        v0 = other;
    } else {
        v1 = other;
    }
    give = odd ? v2 : v3;
    other = __shfl_xor_sync(0xFFFFFFFFu, give, 1);
    if (odd) {
        v2 = other;
    } else {
        v3 = other;
    }
    give = high ? v0 : v2;
    other = __shfl_xor_sync(0xFFFFFFFFu, give, 2);
    if (high) {
        v0 = other;
    } else {
        v2 = other;
    }
    give = high ? v1 : v3;
    other = __shfl_xor_sync(0xFFFFFFFFu, give, 2);
    if (high) {
        v1 = other;
    } else {
        v3 = other;
    }
    return make_uint4(v0, v1, v2, v3);
}

/* ---- launchers --------------------------------------------------------------------------------------------------- */

/* Shape of a problem, as a launcher states it. */
struct request {
    const char *what;      /* "MLA decoding" */
    const char *fast_asks; /* the shapes that the fast kernel needs, for the message */
    bool empty;
};

/* Chooses the kernel for arguments whose shape has been checked, and checks the common requirements of all attention
 * kernels. Sets *device to the current device and *kind to the kernel for `prefer`. For an empty problem *kind becomes
 * TSR_MLA_AUTO, and no device is needed. */
template <typename Args>
static tsr_status choose(const request &r, const Args *args,
                         bool (*fast_fits)(const Args *args, const tsr_cuda_device *device),
                         tsr_mla_kind (*prefer)(const Args *args, const tsr_cuda_device *device),
                         tsr_cuda_device *device, tsr_mla_kind *kind, tsr_err *err)
{
    *kind = TSR_MLA_AUTO;
    if (!r.empty) {
        TSR_TRY(tsr_cuda_current_device(device, err));
        *kind = prefer(args, device);
    }
    if (!(args->scale > 0.0f) || isinf(args->scale)) {
        return tsr_fail(err, TSR_E_SHAPE, "%s: the scale %g is not positive and finite", r.what, (double)args->scale);
    }
    if (*kind == TSR_MLA_FAST && !fast_fits(args, device)) {
        return tsr_fail(err, TSR_E_UNSUPPORTED,
                        "%s: the fast kernel needs sm_90, %s and 16-byte alignment; the device is %s, sm_%d", r.what,
                        r.fast_asks, device->name, device->arch);
    }
    if (*kind == TSR_MLA_FAST && !host::aligned(args->workspace, 256)) {
        return tsr_fail(err, TSR_E_SHAPE, "%s: the workspace is not 256-byte aligned", r.what);
    }
    return TSR_OK;
}

} // namespace attention
