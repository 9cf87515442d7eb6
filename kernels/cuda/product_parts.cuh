/* Common code of the products of 8-bit operands on Hopper, FP8 in blocks and int8, for their files only: the matrices,
 * rounding to the output type, tensor maps, and rings of k tiles in shared memory. */
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <limits.h>
#include <stdint.h>
#include <type_traits>

#include "kernels/cuda/block_fp8_gemm.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/tensor_map.cuh"
#include "kernels/cuda/wgmma.cuh"

#pragma nv_diag_suppress 177 /* functions called only by the sm_90a kernels are unused in the pass for sm_80 */

namespace product
{

constexpr int kDepth = 128; /* bytes along k of a k tile */
constexpr int kSharedMax = 227 * 1024;
constexpr int kMostSplits = 8;     /* parts of k, over a cluster */
constexpr int kMostBlocks = 65535; /* blocks of tokens: the grid's limit along y */

/* The matrices of a product, with which the problem of each kind of product begins. */
struct matrices {
    const uint8_t *a, *w; /* bytes: e4m3 or int8 */
    void *d;
    int64_t lda, ldw, ldd;
    int m, n, k;
    bool vector_store; /* rows of d are 16-byte aligned */
    bool hand_over;    /* lets the next launch begin before this one ends, so that it initializes meanwhile */
};

/* Weights of these sizes nearly fill L2 and stay there between launches. If the CTAs of the next launch start one by
 * one, the launch takes 6 to 20 % longer. A likely reason: they run on other multiprocessors than before, and L2 has
 * two halves. Other launches gain 2 to 10 % from an early start. */
static inline bool nearly_fill_l2(int64_t bytes)
{
    return bytes > (32 << 20) && bytes < (64 << 20);
}

/* Returns the matrices of a launcher's arguments. TSR_E_SHAPE: m, n or k is negative or too large, or a leading
 * dimension is smaller than its row. TSR_E_UNSUPPORTED: unknown result type. */
template <typename ARGS>
static inline tsr_status matrices_of(const char *what, const ARGS &args, matrices *found, tsr_err *err)
{
    if (args.m < 0 || args.n < 0 || args.k < 0 || args.m > INT_MAX / 2 || args.n > INT_MAX / 2 ||
        args.k > INT_MAX / 2) {
        return tsr_fail(err, TSR_E_SHAPE, "%s: unsupported shape: m %lld, n %lld, k %lld", what, (long long)args.m,
                        (long long)args.n, (long long)args.k);
    }
    if (args.lda < args.k || args.ldw < args.k || args.ldd < args.n) {
        return tsr_fail(err, TSR_E_SHAPE, "%s: a leading dimension is smaller than its row", what);
    }
    if (args.out != TSR_GEMM_BF16 && args.out != TSR_GEMM_F16 && args.out != TSR_GEMM_F32) {
        return tsr_fail(err, TSR_E_UNSUPPORTED, "%s: unknown output type %d", what, (int)args.out);
    }
    const int size = args.out == TSR_GEMM_F32 ? 4 : 2;
    *found = {reinterpret_cast<const uint8_t *>(args.a),
              reinterpret_cast<const uint8_t *>(args.w),
              args.d,
              args.lda,
              args.ldw,
              args.ldd,
              (int)args.m,
              (int)args.n,
              (int)args.k,
              host::aligned(args.d, 16) && args.ldd * size % 16 == 0,
              !nearly_fill_l2(args.n * args.k)};
    return TSR_OK;
}

/* Returns true if the copy engine can load A and W. */
static inline bool operands_fit(const void *a, const void *w, int64_t lda, int64_t ldw)
{
    return host::aligned(a, 16) && host::aligned(w, 16) && lda % 16 == 0 && ldw % 16 == 0;
}

/* Returns the first token of a tile that would begin at m0. The last tile ends with the last token, if there are as
 * many, and computes some tokens again: copies of rows beyond A would slow all CTAs down. The copy engine takes scales
 * only from a multiple of 16 bytes on, so that up to three rows are beyond A. */
static __device__ __forceinline__ int first_token(int m0, int tokens, int m)
{
    return min(m0, max((m - tokens + 3) / 4 * 4, 0));
}

/* Returns the tokens of a tile that are copied: those that exist, and up to three more. Of the others, the product has
 * results that are not stored. */
__host__ __device__ static inline int copied_tokens(int tokens, int m)
{
    return m < tokens ? (m + 3) / 4 * 4 : tokens;
}

template <typename T> __device__ __forceinline__ T narrow(float x)
{
    if constexpr (std::is_same<T, __nv_bfloat16>::value) {
        return __float2bfloat16_rn(x);
    } else if constexpr (std::is_same<T, __half>::value) {
        return __float2half_rn(x);
    } else {
        return x;
    }
}

/* Returns two values as 32 bits, the first one low. */
template <typename T> __device__ __forceinline__ uint32_t narrow2(float x, float y)
{
    if constexpr (std::is_same<T, __nv_bfloat16>::value) {
        const __nv_bfloat162 v = __floats2bfloat162_rn(x, y);
        return *reinterpret_cast<const uint32_t *>(&v);
    } else {
        const __half2 v = __floats2half2_rn(x, y);
        return *reinterpret_cast<const uint32_t *>(&v);
    }
}

/* Sums of type NUMBER, float or int32_t, are kept in shared memory and sent between CTAs as the bits of floats. */
template <typename NUMBER> __device__ __forceinline__ NUMBER of_bits(float x)
{
    if constexpr (std::is_same<NUMBER, int32_t>::value) {
        return __float_as_int(x);
    } else {
        return x;
    }
}

__device__ __forceinline__ float bits_of(float x)
{
    return x;
}

__device__ __forceinline__ float bits_of(int32_t x)
{
    return __int_as_float(x);
}

/* Returns a thread's sums of group g of eight columns: of its first row, and of the row eight further on. */
template <typename NUMBER> __device__ __forceinline__ float4 bits_of_group(const NUMBER *sum, int g)
{
    return make_float4(bits_of(sum[4 * g]), bits_of(sum[4 * g + 1]), bits_of(sum[4 * g + 2]), bits_of(sum[4 * g + 3]));
}

template <typename NUMBER> __device__ __forceinline__ float4 added(const float4 &v, const float4 &w)
{
    return make_float4(
        bits_of(of_bits<NUMBER>(v.x) + of_bits<NUMBER>(w.x)), bits_of(of_bits<NUMBER>(v.y) + of_bits<NUMBER>(w.y)),
        bits_of(of_bits<NUMBER>(v.z) + of_bits<NUMBER>(w.z)), bits_of(of_bits<NUMBER>(v.w) + of_bits<NUMBER>(w.w)));
}

/* Stores four results of row i, from column j on. */
template <typename T> __device__ __forceinline__ void store_quad(const matrices &p, int i, int j, const float4 &v)
{
    T *const out = static_cast<T *>(p.d) + i * p.ldd + j;
    if (p.vector_store && j + 4 <= p.n) {
        if constexpr (sizeof(T) == 4) {
            *reinterpret_cast<float4 *>(out) = v;
        } else {
            *reinterpret_cast<uint2 *>(out) = make_uint2(narrow2<T>(v.x, v.y), narrow2<T>(v.z, v.w));
        }
    } else {
        const float values[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int c = 0; c < 4; ++c) {
            if (j + c < p.n) {
                out[c] = narrow<T>(values[c]);
            }
        }
    }
}

/* Encodes a matrix of `rows` rows of `columns` elements, `pitch` bytes apart, that is read or written in boxes.
 * Elements beyond its edges are read as zeros and not written. Swizzled as the kernels need it: operands (bytes) by
 * 128, results (16 bits) too if a box has 64 columns, scales not. */
static inline tsr_status encode_matrix(encode_fn encode, CUtensorMap *map, CUtensorMapDataType type, const void *base,
                                       int64_t rows, int64_t columns, int64_t pitch, int box_rows, int box_columns,
                                       tsr_err *err)
{
    const cuuint64_t dims[2] = {(cuuint64_t)columns, (cuuint64_t)rows}, pitches[1] = {(cuuint64_t)pitch};
    const cuuint32_t box[2] = {(cuuint32_t)box_columns, (cuuint32_t)box_rows}, steps[2] = {1, 1};
    const CUtensorMapSwizzle swizzle =
        type == CU_TENSOR_MAP_DATA_TYPE_FLOAT32 || (type == CU_TENSOR_MAP_DATA_TYPE_UINT16 && box_columns != 64)
            ? CU_TENSOR_MAP_SWIZZLE_NONE
            : CU_TENSOR_MAP_SWIZZLE_128B;
    const CUresult code =
        encode(map, type, 2, const_cast<void *>(base), dims, pitches, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
               swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (code != CUDA_SUCCESS) {
        return tsr_fail(err, TSR_E_DEVICE, "the driver refused the tensor map of [%lld, %lld], pitch %lld: error %d",
                        (long long)rows, (long long)columns, (long long)pitch, (int)code);
    }
    return TSR_OK;
}

/* A CTA's ring of k tiles in shared memory, and the position of the thread that holds this object. SHAPE gives the
 * number of stages, the bytes of A, W and A's scales (0: none) in each, the offsets of A and W, and kTurns: how many
 * warpgroups alternate between the k tiles (1: every warpgroup multiplies every tile). */
template <typename SHAPE> struct tile_ring {
    static_assert(hopper::ring_is_safe(SHAPE::kStages, SHAPE::kTurns), "each stage belongs to one of the turns");
    static constexpr int kScaleAt = SHAPE::kStages * (SHAPE::kABytes + SHAPE::kWBytes);
    static constexpr int kFullAt = kScaleAt + SHAPE::kStages * SHAPE::kScaleBytes;
    static constexpr int kEmptyAt = kFullAt + SHAPE::kStages * 8;
    static constexpr int kTokenBytes = kDepth + (SHAPE::kScaleBytes > 0 ? 4 : 0); /* a row of A, and its scale */
    uint8_t *a, *w, *scale;
    uint64_t *full, *empty; /* [stages]: a tile has arrived; all warps that use it have finished with it */
    int stage = 0, phase = 0;

    __device__ __forceinline__ explicit tile_ring(uint8_t *memory)
        : a(memory + SHAPE::kAAt), w(memory + SHAPE::kWAt), scale(memory + kScaleAt),
          full(reinterpret_cast<uint64_t *>(memory + kFullAt)), empty(reinterpret_cast<uint64_t *>(memory + kEmptyAt))
    {
    }

    __device__ __forceinline__ void step()
    {
        if (++stage == SHAPE::kStages) {
            stage = 0;
            phase ^= 1;
        }
    }
};

/* Called by the loading thread: waits until everything has arrived and been used. */
template <typename SHAPE> __device__ __forceinline__ void drain(tile_ring<SHAPE> &ring)
{
    for (int i = 0; i < SHAPE::kStages; ++i) {
        hopper::barrier_wait(&ring.empty[ring.stage], ring.phase ^ 1);
        ring.step();
    }
}

/* The same ring for a multiplying warp. It uses shared addresses whose origin is hidden from the compiler, which would
 * otherwise compute them again, by S2UR, before every wait. Values for barriers and descriptors are the same in all
 * lanes; the shuffles tell the compiler so. */
template <typename SHAPE> struct tile_reader {
    using ring = tile_ring<SHAPE>;
    uint32_t base, a_low, w_low;
    int stage = 0, phase = 0;

    /* The warp's operands begin at rows row_a and row_w of each tile. */
    __device__ __forceinline__ tile_reader(const uint8_t *memory, int row_a, int row_w)
    {
        uint32_t at = hopper::shared_address(memory);
        asm volatile("" : "+r"(at));
        base = __shfl_sync(0xFFFFFFFFu, at, 0);
        a_low = __shfl_sync(0xFFFFFFFFu, hopper::operand_low(at + (uint32_t)(SHAPE::kAAt + row_a * kDepth)), 0);
        w_low = __shfl_sync(0xFFFFFFFFu, hopper::operand_low(at + (uint32_t)(SHAPE::kWAt + row_w * kDepth)), 0);
    }

    __device__ __forceinline__ uint32_t a() const
    {
        return a_low + (uint32_t)(stage * (SHAPE::kABytes / 16));
    }

    __device__ __forceinline__ uint32_t w() const
    {
        return w_low + (uint32_t)(stage * (SHAPE::kWBytes / 16));
    }

    __device__ __forceinline__ uint32_t scale(int of_stage) const
    {
        return base + (uint32_t)(ring::kScaleAt + of_stage * SHAPE::kScaleBytes);
    }

    __device__ __forceinline__ uint32_t empty(int of_stage) const
    {
        return base + (uint32_t)(ring::kEmptyAt + of_stage * 8);
    }

    __device__ __forceinline__ void wait() const
    {
        hopper::barrier_wait(base + (uint32_t)(ring::kFullAt + stage * 8), (uint32_t)phase);
    }

    /* Moves to the first tile of turn `turn`, 0 to kTurns - 1. */
    __device__ __forceinline__ void begin(int turn)
    {
        stage = turn;
    }

    /* Moves on by `tiles` tiles, for which other warps wait. */
    __device__ __forceinline__ void skip(int tiles)
    {
        const unsigned at = (unsigned)(stage + tiles);
        phase ^= (int)(at / SHAPE::kStages % 2);
        stage = (int)(at % SHAPE::kStages);
    }

    /* Moves to the next tile of the same turn. */
    __device__ __forceinline__ void step()
    {
        stage += SHAPE::kTurns;
        if (stage >= SHAPE::kStages) {
            stage -= SHAPE::kStages;
            phase ^= 1;
        }
    }
};

/* Calls run with a result_type<T>, where T is the type of the results. */
template <typename T> struct result_type {
    using type = T;
};
template <typename RUN> tsr_status for_results(tsr_gemm_out out, RUN run)
{
    return out == TSR_GEMM_BF16  ? run(result_type<__nv_bfloat16>())
           : out == TSR_GEMM_F16 ? run(result_type<__half>())
                                 : run(result_type<float>());
}

/* Returns true if pairs of wide tiles share rows of W, and not of A: the direction with fewer tiles left over, or the
 * larger operand. `tokens` and `rows` are numbers of tiles. */
static inline bool share_w(int64_t tokens, int64_t rows, const tsr_gemm_config &tile)
{
    const int64_t along_m = host::ceil_div(tokens, 2) * rows, along_n = tokens * host::ceil_div(rows, 2);
    return along_m < along_n || (along_m == along_n && tile.rows >= tile.tokens);
}

/* Returns the error of product `what` for a tile that was not compiled. */
static inline tsr_status no_such_tile(const char *what, const tsr_gemm_config &config, tsr_err *err)
{
    return tsr_fail(err, TSR_E_UNSUPPORTED, "%s: no kernel %d with tiles of %d x %d and cluster %d", what,
                    (int)config.kind, config.tokens, config.rows, config.cluster);
}

} // namespace product
