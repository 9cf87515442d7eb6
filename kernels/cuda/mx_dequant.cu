/* Converts small groups: a plain kernel, and one in which a thread makes 16 bytes of results at a time and has eight
 * loads in progress, so that a warp reads and writes whole lines. */
#include "kernels/cuda/mx_dequant.h"

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/mx_values.cuh"

namespace
{

constexpr int kThreads = 256, kDeep = 8, kPiece = 8 /* values */;

template <tsr_mx_form kForm> struct form {
    static constexpr bool kBytes = kForm == TSR_MX_FORM_MXFP8; /* e4m3, else e2m1 */
    static constexpr int kGroup = kForm == TSR_MX_FORM_MXFP4 || kForm == TSR_MX_FORM_MXFP8 ? 32 : 16;
};

/* Returns the BF16 of a code that is e4m3's NaN. */
__device__ __forceinline__ uint32_t nan_of(uint32_t code)
{
    return (code & 0x80) << 8 | 0x7FC0;
}

template <tsr_mx_form kForm>
__global__ void __launch_bounds__(kThreads)
    plain_kernel(const uint8_t *codes, const uint8_t *scales, float global, uint16_t *out, int64_t n)
{
    const int64_t i = (int64_t)blockIdx.x * kThreads + threadIdx.x;
    if (i >= n) {
        return;
    }
    const uint32_t code = form<kForm>::kBytes ? codes[i] : codes[i / 2] >> i % 2 * 4;
    if (form<kForm>::kBytes && tsr::is_e4m3_nan(code)) {
        out[i] = (uint16_t)nan_of(code);
        return;
    }
    const float value = form<kForm>::kBytes ? tsr::e4m3_value(code) : tsr::e2m1_value(code);
    const float t = tsr::mx_scale(kForm, scales, global, i / form<kForm>::kGroup);
    out[i] = __bfloat16_as_ushort(__float2bfloat16_rn(__fmul_rn(value, t)));
}

__device__ __forceinline__ uint32_t pair_of(float low, float high, float t)
{
    const __nv_bfloat162 pair = __floats2bfloat162_rn(__fmul_rn(low, t), __fmul_rn(high, t));
    return *reinterpret_cast<const uint32_t *>(&pair);
}

/* Converts eight e2m1 codes of a word. */
__device__ __forceinline__ uint4 e2m1_piece(uint32_t word, float t)
{
    uint32_t pairs[4];
#pragma unroll
    for (int i = 0; i < 4; ++i, word >>= 8) {
        pairs[i] = pair_of(tsr::e2m1_value(word), tsr::e2m1_value(word >> 4), t);
    }
    return make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
}

/* Converts four e4m3 codes of a word to two words. */
__device__ __forceinline__ void e4m3_pairs(uint32_t word, float t, uint32_t *pairs)
{
    pairs[0] = pair_of(tsr::e4m3_value(word), tsr::e4m3_value(word >> 8), t);
    pairs[1] = pair_of(tsr::e4m3_value(word >> 16), tsr::e4m3_value(word >> 24), t);
    if (__vcmpeq4(word & 0x7F7F7F7Fu, 0x7F7F7F7Fu) == 0) {
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i, word >>= 8) {
        if (tsr::is_e4m3_nan(word)) {
            pairs[i / 2] = __byte_perm(pairs[i / 2], nan_of(word), i % 2 == 0 ? 0x3254 : 0x5410);
        }
    }
}

template <tsr_mx_form kForm>
__global__ void __launch_bounds__(kThreads)
    fast_kernel(const uint8_t *__restrict__ codes, const uint8_t *__restrict__ scales, float global,
                uint4 *__restrict__ out, int64_t pieces)
{
    constexpr int kPieces = form<kForm>::kGroup / kPiece; /* pieces that share a scale */
    const int64_t first = (int64_t)blockIdx.x * kThreads * kDeep + threadIdx.x;
    uint2 in[kDeep] = {};
    float t[kDeep] = {};
#pragma unroll
    for (int i = 0; i < kDeep; ++i) {
        const int64_t piece = first + i * kThreads;
        if (piece >= pieces) {
            break;
        }
        if constexpr (form<kForm>::kBytes) {
            in[i] = __ldcs(reinterpret_cast<const uint2 *>(codes) + piece);
        } else {
            in[i].x = __ldcs(reinterpret_cast<const uint32_t *>(codes) + piece);
        }
        t[i] = tsr::mx_scale(kForm, scales, global, piece / kPieces);
    }
#pragma unroll
    for (int i = 0; i < kDeep; ++i) {
        const int64_t piece = first + i * kThreads;
        if (piece >= pieces) {
            return;
        }
        if constexpr (form<kForm>::kBytes) {
            uint32_t pairs[4];
            e4m3_pairs(in[i].x, t[i], pairs);
            e4m3_pairs(in[i].y, t[i], pairs + 2);
            __stcs(out + piece, make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]));
        } else {
            __stcs(out + piece, e2m1_piece(in[i].x, t[i]));
        }
    }
}

template <tsr_mx_form kForm> void start(const tsr_mx_dequant &a, unsigned blocks, tsr_stream stream)
{
    const uint8_t *const codes = static_cast<const uint8_t *>(a.matrix.codes), *const scales = a.matrix.scales;
    const int64_t n = a.rows * a.k;
    if (a.plain) {
        plain_kernel<kForm><<<blocks, kThreads, 0, stream>>>(codes, scales, a.matrix.global, a.out, n);
    } else {
        fast_kernel<kForm><<<blocks, kThreads, 0, stream>>>(codes, scales, a.matrix.global,
                                                            reinterpret_cast<uint4 *>(a.out), n / kPiece);
    }
}

} // namespace

tsr_status tsr_cuda_mx_dequant(const tsr_mx_dequant *a, tsr_stream stream, tsr_err *err)
{
    if (!tsr::is_mx_coded(a->matrix.form) || a->rows < 0 || a->k < 0 ||
        a->k % (int64_t)tsr_mx_form_group(a->matrix.form) != 0 || !host::aligned(a->matrix.codes, 16) ||
        !host::aligned(a->out, 16)) {
        return tsr_fail(err, TSR_E_SHAPE,
                        "values of small groups: needs codes with scales, whole groups, aligned to "
                        "16 bytes");
    }
    const int64_t n = a->rows * a->k, each = kThreads * (a->plain ? 1 : kDeep * kPiece);
    const int64_t blocks = host::ceil_div(n, each);
    if (blocks > INT32_MAX) {
        return tsr_fail(err, TSR_E_SHAPE, "values of small groups: the matrix is too large for one launch");
    }
    if (n == 0) {
        return TSR_OK;
    }
    switch (a->matrix.form) {
    case TSR_MX_FORM_MXFP4:
        start<TSR_MX_FORM_MXFP4>(*a, (unsigned)blocks, stream);
        break;
    case TSR_MX_FORM_MXFP8:
        start<TSR_MX_FORM_MXFP8>(*a, (unsigned)blocks, stream);
        break;
    case TSR_MX_FORM_NVFP4_TIMES:
        start<TSR_MX_FORM_NVFP4_TIMES>(*a, (unsigned)blocks, stream);
        break;
    default:
        start<TSR_MX_FORM_NVFP4_DIVIDED>(*a, (unsigned)blocks, stream);
        break;
    }
    return host::launched("values of small groups", cudaSuccess, err);
}
