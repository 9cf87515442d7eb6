/* Common declarations of the block-FP8 product, for its files only: the problem, rounding to the output type, tensor
 * maps, and the entry points of its Hopper kernels and of the cost model that chooses between them. */
#ifndef TSR_KERNELS_CUDA_BLOCK_FP8_PARTS_CUH
#define TSR_KERNELS_CUDA_BLOCK_FP8_PARTS_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>
#include <stdint.h>
#include <type_traits>

#include "kernels/cuda/block_fp8_gemm.h"
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/tensor_map.cuh"

namespace block_fp8
{

constexpr char kWhat[] = "block-FP8 product";
constexpr int kBlock = 128; /* granularity of the scales along k and n */
constexpr int kSharedMax = 227 * 1024;
constexpr int kMostSplits = 8;     /* parts of k, over a cluster */
constexpr int kMostBlocks = 65535; /* blocks of tokens: the grid's limit along y */

struct problem {
    const uint8_t *a, *w;
    const float *scale_a, *scale_w;
    void *d;
    int64_t lda, ldw, ldd, ld_scale_a;
    int m, n, k;
    bool vector_store;   /* rows of d are 16-byte aligned */
    bool hand_over;      /* lets the next launch begin before this one ends, so that it initializes meanwhile */
    uint8_t group_shift; /* log2 of the tokens that share their scales; not 0 only for the plain and the mma kernel */
};

/* Returns the first token of a tile that would begin at m0. The last tile ends with the last token, if there are as many, and
 * computes some tokens again: copies of rows beyond A would slow all CTAs down. The copy engine takes scales only from a
 * multiple of 16 bytes on, so that up to three rows are beyond A. */
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

/* Stores four results of row i, from column j on. */
template <typename T> __device__ __forceinline__ void store_quad(const problem &p, int i, int j, const float4 &v)
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

__device__ __forceinline__ float e4m3(uint8_t code)
{
    return __half2float(__half(__nv_cvt_fp8_to_halfraw(code, __NV_E4M3)));
}

/* Returns element [i, j] of the product by its definition, for a whole weight matrix or one group's matrix. */
__device__ __forceinline__ float defined(const problem &p, int64_t i, const uint8_t *w, const float *scale_w, int64_t j)
{
    const int64_t tiles = (p.k + kBlock - 1) / kBlock;
    float sum = 0.0f;
    for (int64_t t = 0; t < tiles; ++t) {
        const int64_t end = min((t + 1) * kBlock, (int64_t)p.k);
        float tile = 0.0f;
        for (int64_t x = t * kBlock; x < end; ++x) {
            tile = fmaf(e4m3(p.a[i * p.lda + x]), e4m3(w[j * p.ldw + x]), tile);
        }
        sum = fmaf(p.scale_a[t * p.ld_scale_a + (i >> p.group_shift)] * scale_w[j / kBlock * tiles + t], tile, sum);
    }
    return sum;
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
 * number of stages, the bytes of A, W and the scales in each, the offsets of A and W, and kTurns: how many warpgroups
 * alternate between the k tiles (1: every warpgroup multiplies every tile). */
template <typename SHAPE> struct tile_ring {
    static_assert(hopper::ring_is_safe(SHAPE::kStages, SHAPE::kTurns), "each stage belongs to one of the turns");
    static constexpr int kScaleAt = SHAPE::kStages * (SHAPE::kABytes + SHAPE::kWBytes);
    static constexpr int kFullAt = kScaleAt + SHAPE::kStages * SHAPE::kScaleBytes;
    static constexpr int kEmptyAt = kFullAt + SHAPE::kStages * 8;
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
        a_low = __shfl_sync(0xFFFFFFFFu, hopper::operand_low(at + (uint32_t)(SHAPE::kAAt + row_a * kBlock)), 0);
        w_low = __shfl_sync(0xFFFFFFFFu, hopper::operand_low(at + (uint32_t)(SHAPE::kWAt + row_w * kBlock)), 0);
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

/* The weights' scales of a tile with BLOCKS blocks of rows: a lane holds those of one k tile out of 32, and has already
 * requested those of one out of the next 32. */
template <int BLOCKS> struct held_scales {
    float now[BLOCKS], ahead[BLOCKS];

    /* Requests the scales from k tile t on. `row` is the tile's first row in the grid of scales, `last` the last row of
     * its matrix. */
    __device__ __forceinline__ void fetch(const float *scale_w, int row, int last, int t, int tiles, int lane)
    {
#pragma unroll
        for (int b = 0; b < BLOCKS; ++b) {
            ahead[b] = __ldg(scale_w + (int64_t)min(row + b, last) * tiles + min(t + lane, tiles - 1));
        }
    }

    __device__ __forceinline__ void take()
    {
#pragma unroll
        for (int b = 0; b < BLOCKS; ++b) {
            now[b] = ahead[b];
        }
    }
};

/* Returns true if the Hopper kernels (fast_fits), or the mma.m16n8k32 kernel, take these arguments on this device. */
bool fast_fits(const tsr_block_fp8_gemm *args, const tsr_cuda_device *device);
bool mma_fits(const tsr_block_fp8_gemm *args, const tsr_cuda_device *device);

/* Fills in `p` for the kernels. TSR_E_SHAPE: invalid sizes. TSR_E_UNSUPPORTED: unknown result type. */
tsr_status problem_of(const tsr_block_fp8_gemm *args, problem *p, tsr_err *err);

/* Launch the kernel of this tile on `p`. TSR_E_UNSUPPORTED: there is no such kernel. */
tsr_status run_narrow(const problem &p, tsr_gemm_out out, const tsr_gemm_config &config, tsr_stream stream,
                      tsr_err *err);
tsr_status run_wide(const problem &p, tsr_gemm_out out, const tsr_gemm_config &config, int processors,
                    tsr_stream stream, tsr_err *err);
tsr_status run_mma(const problem &p, tsr_gemm_out out, const tsr_gemm_config &config, tsr_stream stream, tsr_err *err);

/* Returns the mma tile for m tokens. */
tsr_gemm_config mma_for(int64_t m);

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

/* Returns the fastest tile of all kernels, by a model of an H200. */
tsr_gemm_config fastest(int64_t m, int64_t n, int64_t k, int64_t processors);

/* Returns the error for a tile that was not compiled. */
static inline tsr_status no_such_tile(const tsr_gemm_config &config, tsr_err *err)
{
    return tsr_fail(err, TSR_E_UNSUPPORTED, "block-FP8 product: no kernel %d with tiles of %d x %d and cluster %d",
                    (int)config.kind, config.tokens, config.rows, config.cluster);
}

} // namespace block_fp8
#endif
