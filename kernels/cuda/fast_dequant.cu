/* Converts weights in a stream: a thread makes 16 bytes of results at a time, so that a warp writes whole lines. */
#include "kernels/cuda/fast_dequant.h"

#include <cuda_runtime.h>

#include "kernels/cuda/fast_dequant.cuh"
#include "kernels/cuda/launch.cuh"

namespace
{

constexpr int kThreads = 256, kDeep = 8;

/* Returns the scale, twice in a word, for the column and group of eight codes of layout T, from 8 * `piece` on. */
template <int kBits>
__device__ __forceinline__ uint32_t scale_of(const uint16_t *scales, int64_t piece, int64_t k, int64_t n, int64_t group)
{
    constexpr int kColumns = 16 / kBits;
    const int64_t position = piece * 8, band = position / (kColumns * k), in_band = position % (kColumns * k);
    const int64_t column = band * kColumns + in_band % (kColumns * 64) / 64;
    /* first of its 16 or 32 rows, which share a group */
    const int64_t row = in_band / (kColumns * 64) * 64 + in_band % 64;
    const uint32_t scale = scales[group == 0 ? column : row / group * n + column];
    return scale | scale << 16;
}

template <int kBits, bool kBf16, bool kNative, bool kScaled>
__global__ void __launch_bounds__(kThreads)
    dequant_kernel(const uint32_t *__restrict__ words, uint4 *__restrict__ out, int64_t pieces,
                   const uint16_t *__restrict__ scales, int64_t k, int64_t n, int64_t group)
{
    constexpr int kWords = kBits / 4; /* words that hold eight codes */
    const int64_t first = (int64_t)blockIdx.x * kThreads * kDeep + threadIdx.x;
    uint32_t in[kDeep][kWords] = {};
#pragma unroll
    for (int i = 0; i < kDeep; ++i) {
        const int64_t piece = first + i * kThreads;
        if (piece >= pieces) {
            break;
        }
        if constexpr (kWords == 2) {
            const uint2 both = __ldcs(reinterpret_cast<const uint2 *>(words) + piece);
            in[i][0] = both.x, in[i][1] = both.y;
        } else {
            in[i][0] = __ldcs(words + piece);
        }
    }
#pragma unroll
    for (int i = 0; i < kDeep; ++i) {
        const int64_t piece = first + i * kThreads;
        if (piece >= pieces) {
            return;
        }
        uint32_t value[4];
#pragma unroll
        for (int w = 0; w < kWords; ++w) {
            if constexpr (kNative) {
                tsr::convert_native<kBits, kBf16>(in[i][w], value + 2 * w);
            } else {
                tsr::convert_fast<kBits, kBf16>(in[i][w], value + 2 * w);
            }
        }
        if constexpr (kScaled) {
            const uint32_t scale = scale_of<kBits>(scales, piece, k, n, group);
#pragma unroll
            for (int v = 0; v < 4; ++v) {
                value[v] = tsr::scaled<kBf16>(value[v], scale);
            }
        }
        __stcs(out + piece, make_uint4(value[0], value[1], value[2], value[3]));
    }
}

using kernel_fn = void (*)(const uint32_t *, uint4 *, int64_t, const uint16_t *, int64_t, int64_t, int64_t);

template <int kBits, bool kBf16> kernel_fn pick(bool native, bool scaled)
{
    return native ? (scaled ? dequant_kernel<kBits, kBf16, true, true> : dequant_kernel<kBits, kBf16, true, false>)
                  : (scaled ? dequant_kernel<kBits, kBf16, false, true> : dequant_kernel<kBits, kBf16, false, false>);
}

} // namespace

tsr_status tsr_cuda_fast_dequant(const tsr_fast_dequant *a, tsr_stream stream, tsr_err *err)
{
    if ((a->bits != 8 && a->bits != 4) || a->k < 0 || a->n < 0 || !host::aligned(a->words, 16) ||
        !host::aligned(a->out, 16) || a->k * a->n * a->bits % 128 != 0) {
        return tsr_fail(err, TSR_E_SHAPE,
                        "converting weights: needs int8 or int4, a multiple of 16 bytes, aligned "
                        "to 16 bytes");
    }
    if (a->scales != nullptr && (a->k % 64 != 0 || a->n % 64 != 0 || a->group < 0 || a->group % 32 != 0 ||
                                 (a->group != 0 && a->k % a->group != 0))) {
        return tsr_fail(err, TSR_E_SHAPE,
                        "converting weights: scales need layout T, and groups that are a multiple of 32 rows and "
                        "divide K");
    }
    const int64_t pieces = a->k * a->n / 8, blocks = (pieces + kThreads * kDeep - 1) / (kThreads * kDeep);
    if (blocks > INT32_MAX) {
        return tsr_fail(err, TSR_E_SHAPE, "the matrix is too large for one launch");
    }
    if (pieces == 0) {
        return TSR_OK;
    }
    const bool scaled = a->scales != nullptr;
    const kernel_fn kernel = a->bits == 8
                                 ? (a->bf16 ? pick<8, true>(a->native, scaled) : pick<8, false>(a->native, scaled))
                                 : (a->bf16 ? pick<4, true>(a->native, scaled) : pick<4, false>(a->native, scaled));
    kernel<<<(unsigned)blocks, kThreads, 0, stream>>>(static_cast<const uint32_t *>(a->words),
                                                      static_cast<uint4 *>(a->out), pieces,
                                                      static_cast<const uint16_t *>(a->scales), a->k, a->n, a->group);
    return host::launched("converting weights", cudaSuccess, err);
}
