/* Owns the block-FP8 product: the plain kernel, the two Hopper kernels and the choice among them. */
#include "kernels/cuda/block_fp8_gemm.h"

#include <algorithm>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>
#include <limits.h>
#include <math.h>
#include <type_traits>

#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/tensor_map.cuh"

static_assert(std::is_same<tsr_stream, cudaStream_t>::value, "tsr_stream is cudaStream_t");

#pragma nv_diag_suppress 177 /* what only the sm_90a kernels call is unused in the pass for sm_80 */

namespace
{

constexpr int kBlock = 128; /* the scales' granularity along k and n */
constexpr int kSharedMax = 227 * 1024;
constexpr int kMostSplits = 8;     /* of k, over a cluster */
constexpr int kMostBlocks = 65535; /* of tokens: the grid's limit along y */

struct problem {
    const uint8_t *a, *w;
    const float *scale_a, *scale_w;
    void *d;
    int64_t lda, ldw, ldd, ld_scale_a;
    int m, n, k;
    bool vector_store; /* rows of d start on 16 bytes */
};

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

/* Two values as 32 bits, the first one low. */
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

__device__ __forceinline__ float e4m3(uint8_t code)
{
    return __half2float(__half(__nv_cvt_fp8_to_halfraw(code, __NV_E4M3)));
}

template <typename T> __global__ void __launch_bounds__(256) plain_kernel(const problem p)
{
    const int64_t tiles = (p.k + kBlock - 1) / kBlock;
    const int64_t i = (int64_t)blockIdx.y * 8 + threadIdx.x / 32;
    const int64_t j = (int64_t)blockIdx.x * 32 + threadIdx.x % 32;
    if (i >= p.m || j >= p.n) {
        return;
    }
    float sum = 0.0f;
    for (int64_t t = 0; t < tiles; ++t) {
        const int64_t end = min((t + 1) * kBlock, (int64_t)p.k);
        float tile = 0.0f;
        for (int64_t x = t * kBlock; x < end; ++x) {
            tile = fmaf(e4m3(p.a[i * p.lda + x]), e4m3(p.w[j * p.ldw + x]), tile);
        }
        sum = fmaf(p.scale_a[t * p.ld_scale_a + i] * p.scale_w[j / kBlock * tiles + t], tile, sum);
    }
    static_cast<T *>(p.d)[i * p.ldd + j] = narrow<T>(sum);
}

/* ---- W * A^T: ROWS weight rows by TOKENS, k split over a cluster ----------------------------------------------- */

/* A warpgroup takes 64 of the rows; the warp after the last one loads. */
template <int ROWS, int TOKENS> struct tokens_shape {
    static constexpr int kWarps = ROWS / 16; /* that multiply */
    /* Large tiles take registers from the warp that loads, which then comes with three idle ones. */
    static constexpr bool kMoves = ROWS >= 128 && TOKENS == 128;
    static constexpr int kThreads = kWarps * 32 + (kMoves ? 128 : 32);
    static constexpr int kRegisters = ROWS == 128 ? 232 : 160, kSpared = ROWS == 128 ? 40 : 32;
    /* Products of two k tiles under way at a time, where registers allow it. */
    static constexpr bool kTwo = ROWS < 256 && ROWS * TOKENS <= 128 * 128;
    static constexpr int kWBytes = ROWS * kBlock, kABytes = TOKENS * kBlock;
    static constexpr int kScaleBytes = TOKENS * 4 < 128 ? 128 : TOKENS * 4;
    static constexpr int kStageBytes = kWBytes + kABytes + kScaleBytes + 16;
    static constexpr int kStages = kSharedMax / kStageBytes;
    static constexpr int kBytes = kStages * kStageBytes;
    /* The next launch's CTAs would crowd some processors, and two at work on one gave different bits from run to run.
     */
    static_assert(kBytes > kSharedMax / 2, "one CTA a multiprocessor");
    static constexpr int kPitch = ROWS + 4; /* floats between tokens of the partial result: conflict-free to write */
    static_assert(TOKENS * kPitch * 4 <= kStages * (kWBytes + kABytes), "the partial result fits the ring");
};

template <int ROWS, int TOKENS, typename T>
__global__ void __launch_bounds__(tokens_shape<ROWS, TOKENS>::kThreads, 1)
    tokens_kernel(const __grid_constant__ CUtensorMap map_w, const __grid_constant__ CUtensorMap map_a,
                  const __grid_constant__ CUtensorMap map_scale, const __grid_constant__ problem p, const int splits)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    using shape = tokens_shape<ROWS, TOKENS>;
    constexpr int kWarps = shape::kWarps, kStages = shape::kStages;
    extern __shared__ __align__(1024) uint8_t ring[];
    uint8_t *const ring_a = ring + kStages * shape::kWBytes;
    uint8_t *const ring_scale = ring_a + kStages * shape::kABytes;
    uint64_t *const full = reinterpret_cast<uint64_t *>(ring_scale + kStages * shape::kScaleBytes);
    uint64_t *const empty = full + kStages;

    const int tiles = (p.k + kBlock - 1) / kBlock;
    const int rank = splits > 1 ? (int)hopper::cluster_rank() : 0;
    const int n0 = blockIdx.x / splits * ROWS, m0 = blockIdx.y * TOKENS;
    const int first = (int)((int64_t)tiles * rank / splits), last = (int)((int64_t)tiles * (rank + 1) / splits);
    /* By shuffle, so that the compiler knows it to be the same in the whole warp. */
    const int warp = __shfl_sync(0xFFFFFFFFu, (int)threadIdx.x / 32, 0), lane = threadIdx.x % 32;

    hopper::let_next_launch_begin();
    if (warp == kWarps && hopper::elect()) {
        for (int s = 0; s < kStages; ++s) {
            hopper::barrier_init(&full[s], 1);
            hopper::barrier_init(&empty[s], kWarps);
        }
        hopper::fence_barrier_init();
        hopper::prefetch_map(&map_w);
        hopper::prefetch_map(&map_a);
        hopper::prefetch_map(&map_scale);
    }
    __syncthreads();
    hopper::wait_for_launch_before();

    int s = 0, phase = 0;
    const auto step = [&] {
        if (++s == kStages) {
            s = 0;
            phase ^= 1;
        }
    };
    if (warp >= kWarps) {
        if constexpr (shape::kMoves) {
            asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(shape::kSpared));
        }
        if (warp == kWarps && hopper::elect()) {
            for (int t = first; t < last; ++t) {
                hopper::barrier_wait(&empty[s], phase ^ 1);
                hopper::barrier_expect(&full[s], shape::kWBytes + shape::kABytes + TOKENS * 4);
                hopper::load_tile(ring + s * shape::kWBytes, &map_w, &full[s], t * kBlock, n0);
                hopper::load_tile(ring_a + s * shape::kABytes, &map_a, &full[s], t * kBlock, m0);
                hopper::load_tile(ring_scale + s * shape::kScaleBytes, &map_scale, &full[s], m0, t);
                step();
            }
            for (int i = 0; i < kStages; ++i) { /* stays until all of it has arrived and been used */
                hopper::barrier_wait(&empty[s], phase ^ 1);
                step();
            }
        }
    } else {
        if constexpr (shape::kMoves) {
            asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(shape::kRegisters));
        }
        const int row0 = warp / 4 * 64;
        const float *const scale_w = p.scale_w + (int64_t)min((n0 + row0) / kBlock, (p.n - 1) / kBlock) * tiles;
        float sum[TOKENS / 2] = {};
        const auto begin = [&](float(&tile)[TOKENS / 2]) {
            hopper::barrier_wait(&full[s], phase);
            hopper::mma_128<TOKENS>(tile, hopper::operand(ring + s * shape::kWBytes + row0 * kBlock),
                                    hopper::operand(ring_a + s * shape::kABytes));
        };
        const auto add = [&](const float(&tile)[TOKENS / 2], int stage, float by_w) {
            const float2 *const scale_a =
                reinterpret_cast<const float2 *>(ring_scale + stage * shape::kScaleBytes) + lane % 4;
#pragma unroll
            for (int g = 0; g < TOKENS / 8; ++g) {
                const float2 by_a = scale_a[4 * g];
                const float even = by_a.x * by_w, odd = by_a.y * by_w;
                sum[4 * g] = fmaf(tile[4 * g], even, sum[4 * g]);
                sum[4 * g + 1] = fmaf(tile[4 * g + 1], odd, sum[4 * g + 1]);
                sum[4 * g + 2] = fmaf(tile[4 * g + 2], even, sum[4 * g + 2]);
                sum[4 * g + 3] = fmaf(tile[4 * g + 3], odd, sum[4 * g + 3]);
            }
            __syncwarp(); /* all lanes have read the scales */
            if (lane == 0) {
                hopper::barrier_arrive(&empty[stage]);
            }
        };
        const auto scale_of = [&](int t) { return t < last ? __ldg(scale_w + t) : 0.0f; };
        int t = first;
        float next0 = scale_of(t), next1 = scale_of(t + 1);
        if constexpr (shape::kTwo) {
            for (; t + 1 < last; t += 2) {
                const float by_w0 = next0, by_w1 = next1;
                next0 = scale_of(t + 2);
                next1 = scale_of(t + 3);
                float tile0[TOKENS / 2], tile1[TOKENS / 2];
                const int s0 = s;
                begin(tile0);
                step();
                const int s1 = s;
                begin(tile1);
                step();
                hopper::mma_wait<1>(tile0);
                add(tile0, s0, by_w0);
                hopper::mma_wait<0>(tile1);
                add(tile1, s1, by_w1);
            }
        }
        for (; t < last; ++t) {
            const float by_w = next0;
            next0 = next1;
            next1 = scale_of(t + 2);
            float tile[TOKENS / 2];
            begin(tile);
            hopper::mma_wait<0>(tile);
            add(tile, s, by_w);
            step();
        }

        hopper::meet(1, kWarps * 32); /* all groups are through with the ring: the partial result takes its place */
        float *const partial = reinterpret_cast<float *>(ring);
        const int row = warp * 16 + lane / 4;
#pragma unroll
        for (int g = 0; g < TOKENS / 8; ++g) {
            float *const column = partial + (8 * g + 2 * (lane % 4)) * shape::kPitch + row;
            column[0] = sum[4 * g];
            column[shape::kPitch] = sum[4 * g + 1];
            column[8] = sum[4 * g + 2];
            column[shape::kPitch + 8] = sum[4 * g + 3];
        }
        if (splits > 1) {
            hopper::cluster_sync();
        } else {
            hopper::meet(1, kWarps * 32);
        }
        /* Each CTA adds its share of the tokens over all ranks, always in the order of the ranks. */
        constexpr int kQuads = ROWS / 4;
        const int share_end = TOKENS * (rank + 1) / splits * kQuads;
        for (int at = TOKENS * rank / splits * kQuads + (int)threadIdx.x; at < share_end; at += kWarps * 32) {
            const int token = at / kQuads, quad = at % kQuads * 4;
            const float *const mine = partial + token * shape::kPitch + quad;
            float4 v;
            if (splits == 1) {
                v = *reinterpret_cast<const float4 *>(mine);
            } else {
                float4 parts[kMostSplits]; /* all under way before the first is used */
#pragma unroll
                for (int r = 0; r < kMostSplits; ++r) {
                    parts[r] =
                        r < splits ? hopper::load_remote(mine, (uint32_t)r) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                }
                v = parts[0];
#pragma unroll
                for (int r = 1; r < kMostSplits; ++r) {
                    v.x += parts[r].x;
                    v.y += parts[r].y;
                    v.z += parts[r].z;
                    v.w += parts[r].w;
                }
            }
            const int i = m0 + token, j = n0 + quad;
            if (i < p.m && j < p.n) {
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
        }
        if (splits > 1) {
            hopper::cluster_meet(); /* nobody leaves while a neighbour reads its memory */
        }
    }
#else
    __trap(); /* the launcher asks for sm_90 first */
#endif
}

/* ---- A * W^T: persistent, TOKENS by WIDTH weight rows, CTAs in pairs ------------------------------------------- */

constexpr int kStaged = 64; /* columns of a box of results on its way out */

template <int TOKENS, int WIDTH> struct wide_shape {
    static constexpr int kSubs = TOKENS / 128; /* a warpgroup's tiles of 64 tokens */
    static constexpr int kABytes = TOKENS * kBlock, kWBytes = WIDTH * kBlock, kScaleBytes = TOKENS * 4;
    static constexpr int kStages = TOKENS == 128 && WIDTH == 128 ? 5 : 4;
    static constexpr int kOut = kSubs == 1 ? WIDTH : kStaged; /* columns that a warp stages at once */
    static constexpr int kStagedBytes = 8 * 16 * kOut * 2;
    static constexpr int kRing = kStages * (kABytes + kWBytes + kScaleBytes);
    static constexpr int kBytes = kStagedBytes + kRing + kStages * 16;
    /* A tile begins `kStep` columns, or a multiple, into a block of scales. */
    static constexpr int kStep = WIDTH % 128 == 0 ? 128 : 64;
    static constexpr int kLatest = kBlock - kStep;
    static constexpr int kBlocks = (WIDTH + kLatest + kBlock - 1) / kBlock; /* of scales, that a tile touches at most */
    static_assert(WIDTH % kStaged == 0 && kBytes <= kSharedMax, "shared memory of one CTA");
};

/* Pairs of tiles, two along m (which share W) or along n (which share A), in bands along m: what runs at one time
 * shares both operands in L2. */
struct wide_schedule {
    static constexpr int kBand = 8;
    int rows, columns;    /* of pairs */
    int along_m, along_n; /* tiles of a pair: 2 and 1, or 1 and 2 */

    __device__ __forceinline__ void at(int index, int rank, int &m0, int &n0, int tokens, int width) const
    {
        const int begin = index / (kBand * columns) * kBand;
        const int height = min(kBand, rows - begin), inside = index - begin * columns;
        m0 = ((begin + inside % height) * along_m + (along_m > 1 ? rank : 0)) * tokens;
        n0 = (inside / height * along_n + (along_n > 1 ? rank : 0)) * width;
    }
};

/* The scales of one k tile for a thread's two rows, by blocks of 128 columns. */
template <typename SHAPE> struct wide_scales {
    float low[SHAPE::kBlocks], high[SHAPE::kBlocks];

    /* sum += tile * scale over groups FIRST .. FIRST + COUNT - 1 of eight columns; `offset` is where in a block of
     * 128 columns the whole tile begins. */
    template <int FIRST, int COUNT>
    __device__ __forceinline__ void add(float *sum, const float (&tile)[COUNT * 4], int offset) const
    {
#pragma unroll
        for (int g = 0; g < COUNT; ++g) {
            const int column = (FIRST + g) * 8, least = column / kBlock, most = (column + SHAPE::kLatest) / kBlock;
            float by_low = low[least], by_high = high[least];
            if (most > least) {
                const bool later = offset + column / SHAPE::kStep * SHAPE::kStep >= most * kBlock;
                by_low = later ? low[most] : by_low;
                by_high = later ? high[most] : by_high;
            }
            float *const at = sum + column / 2;
            at[0] = fmaf(tile[4 * g], by_low, at[0]);
            at[1] = fmaf(tile[4 * g + 1], by_low, at[1]);
            at[2] = fmaf(tile[4 * g + 2], by_high, at[2]);
            at[3] = fmaf(tile[4 * g + 3], by_high, at[3]);
        }
    }
};

/* A thread's share of a tile, by elements: rows i and i + 8. */
template <int WIDTH, typename T>
__device__ __forceinline__ void store_elements(const problem &p, const float (&sum)[WIDTH / 2], int i, int n0, int lane)
{
#pragma unroll
    for (int e = 0; e < WIDTH / 2; ++e) {
        const int row = i + (e & 2) * 4, j = n0 + e / 4 * 8 + lane % 4 * 2 + e % 2;
        if (row < p.m && j < p.n) {
            static_cast<T *>(p.d)[row * p.ldd + j] = narrow<T>(sum[e]);
        }
    }
}

/* A warp's 16 rows by way of `staged`, its own: boxes of 64 columns, swizzled by 128 bytes. */
template <int WIDTH, int OUT, typename T>
__device__ __forceinline__ void store_boxes(const CUtensorMap *map, const float (&sum)[WIDTH / 2], uint8_t *staged,
                                            int i0, int n0, int lane)
{
    const int row = lane % 16;
#pragma unroll
    for (int from = 0; from < WIDTH; from += OUT) {
        hopper::bulk_wait_read(); /* the boxes before have left */
        __syncwarp();
#pragma unroll
        for (int j = 0; j < OUT; j += 16) {
            const float *const v = sum + (from + j) / 2;
            const int chunk = j % kStaged / 8 + lane / 16;
            hopper::store_matrices(staged + j / kStaged * 2048 + row * 128 + (chunk ^ row % 8) * 16,
                                   narrow2<T>(v[0], v[1]), narrow2<T>(v[2], v[3]), narrow2<T>(v[4], v[5]),
                                   narrow2<T>(v[6], v[7]));
        }
        hopper::fence_shared_for_copies();
        __syncwarp();
        if (hopper::elect()) {
#pragma unroll
            for (int j = 0; j < OUT; j += kStaged) {
                hopper::store_tile(map, staged + j / kStaged * 2048, n0 + from + j, i0);
            }
            hopper::bulk_commit();
        }
    }
}

template <int WIDTH, int OUT, typename T>
__device__ __forceinline__ void store_results(const CUtensorMap *map, const problem &p, const float (&sum)[WIDTH / 2],
                                              uint8_t *staged, int i0, int n0, int lane)
{
    if constexpr (sizeof(T) == 2) {
        if (p.vector_store) {
            store_boxes<WIDTH, OUT, T>(map, sum, staged, i0, n0, lane);
            return;
        }
    }
    store_elements<WIDTH, T>(p, sum, i0 + lane / 4, n0, lane);
}

template <int TOKENS, int WIDTH, typename T>
__global__ void __launch_bounds__(384, 1)
    wide_kernel(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_w,
                const __grid_constant__ CUtensorMap map_scale, const __grid_constant__ CUtensorMap map_d,
                const __grid_constant__ problem p, const __grid_constant__ wide_schedule schedule)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    using shape = wide_shape<TOKENS, WIDTH>;
    constexpr int kStages = shape::kStages, kSubs = shape::kSubs;
    extern __shared__ __align__(1024) uint8_t staged[];
    uint8_t *const ring_a = staged + shape::kStagedBytes;
    uint8_t *const ring_w = ring_a + kStages * shape::kABytes;
    uint8_t *const ring_scale = ring_w + kStages * shape::kWBytes;
    uint64_t *const full = reinterpret_cast<uint64_t *>(ring_scale + kStages * shape::kScaleBytes);
    uint64_t *const empty = full + kStages;

    const int tiles = (p.k + kBlock - 1) / kBlock;
    const int rank = (int)hopper::cluster_rank();
    const int units = schedule.rows * schedule.columns, stride = gridDim.x / 2;
    const int warp = __shfl_sync(0xFFFFFFFFu, (int)threadIdx.x / 32, 0), lane = threadIdx.x % 32;

    hopper::let_next_launch_begin();
    if (threadIdx.x == 0) {
        for (int s = 0; s < kStages; ++s) {
            hopper::barrier_init(&full[s], 1);
            hopper::barrier_init(&empty[s], 2 * 8);
        }
        hopper::fence_barrier_init();
        hopper::prefetch_map(&map_a);
        hopper::prefetch_map(&map_w);
        hopper::prefetch_map(&map_scale);
    }
    hopper::cluster_meet();
    hopper::wait_for_launch_before();

    int s = 0, phase = 0;
    if (warp >= 8) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (warp == 8 && hopper::elect()) {
            for (int unit = blockIdx.x / 2; unit < units; unit += stride) {
                int m0, n0;
                schedule.at(unit, rank, m0, n0, TOKENS, WIDTH);
                for (int t = 0; t < tiles; ++t) {
                    hopper::barrier_wait(&empty[s], phase ^ 1);
                    hopper::barrier_expect(&full[s], shape::kABytes + shape::kWBytes + shape::kScaleBytes);
                    hopper::load_halves<TOKENS / 2 * kBlock>(ring_a + s * shape::kABytes, &map_a, &full[s], t * kBlock,
                                                             m0, schedule.along_n > 1, rank);
                    hopper::load_halves<WIDTH / 2 * kBlock>(ring_w + s * shape::kWBytes, &map_w, &full[s], t * kBlock,
                                                            n0, schedule.along_m > 1, rank);
                    hopper::load_tile(ring_scale + s * shape::kScaleBytes, &map_scale, &full[s], m0, t);
                    if (++s == kStages) {
                        s = 0;
                        phase ^= 1;
                    }
                }
            }
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        const int group = warp / 4, row0 = group * (TOKENS / 2) + warp % 4 * 16, last_block = (p.n - 1) / kBlock;
        /* A lane holds the weights' scales of one k tile out of 32, and those of the next 32 on their way. */
        float held_w[shape::kBlocks], ahead_w[shape::kBlocks];
        const auto fetch_w = [&](int n0, int t) {
#pragma unroll
            for (int b = 0; b < shape::kBlocks; ++b) {
                ahead_w[b] =
                    __ldg(p.scale_w + (int64_t)min(n0 / kBlock + b, last_block) * tiles + min(t + lane, tiles - 1));
            }
        };
        int m0, n0, next_m0, next_n0;
        schedule.at(blockIdx.x / 2, rank, m0, n0, TOKENS, WIDTH);
        fetch_w(n0, 0);
        for (int unit = blockIdx.x / 2; unit < units; unit += stride) {
            schedule.at(unit, rank, m0, n0, TOKENS, WIDTH);
            const int offset = n0 % kBlock;
            schedule.at(min(unit + stride, units - 1), rank, next_m0, next_n0, TOKENS, WIDTH);
            float sum[kSubs][WIDTH / 2] = {};
            for (int t = 0; t < tiles; ++t) {
                if (t % 32 == 0) {
#pragma unroll
                    for (int b = 0; b < shape::kBlocks; ++b) {
                        held_w[b] = ahead_w[b];
                    }
                    fetch_w(t + 32 < tiles ? n0 : next_n0, t + 32 < tiles ? t + 32 : 0);
                }
                hopper::barrier_wait(&full[s], phase);
                float by_w[shape::kBlocks];
#pragma unroll
                for (int b = 0; b < shape::kBlocks; ++b) {
                    by_w[b] = __shfl_sync(0xFFFFFFFFu, held_w[b], t % 32);
                }
                const uint64_t a = hopper::operand(ring_a + s * shape::kABytes + group * (TOKENS / 2) * kBlock);
                const uint64_t w = hopper::operand(ring_w + s * shape::kWBytes);
#pragma unroll
                for (int sub = 0; sub < kSubs; ++sub) {
                    const float *const scale_a = reinterpret_cast<const float *>(ring_scale + s * shape::kScaleBytes) +
                                                 row0 + 64 * sub + lane / 4;
                    const float low = scale_a[0], high = scale_a[8];
                    wide_scales<shape> scales;
#pragma unroll
                    for (int b = 0; b < shape::kBlocks; ++b) {
                        scales.low[b] = low * by_w[b];
                        scales.high[b] = high * by_w[b];
                    }
                    /* Here, because among the products the compiler would let them wait for shared memory. */
                    hopper::hold(scales.low);
                    hopper::hold(scales.high);
                    const auto release = [&] {
                        __syncwarp(); /* all lanes have read the scales */
                        if (lane < 2) {
                            hopper::barrier_arrive(&empty[s], (uint32_t)lane);
                        }
                    };
                    if constexpr (kSubs == 1) {
                        /* Two halves, so that one is added up while the tensor cores are at the other. */
                        constexpr int kHalf = WIDTH / 2;
                        float left[kHalf / 2], right[kHalf / 2];
                        hopper::mma_128<kHalf>(left, a, w);
                        hopper::mma_128<kHalf>(right, a, w + kHalf * kBlock / 16);
                        hopper::mma_wait<1>(left);
                        scales.template add<0, kHalf / 8>(sum[0], left, offset);
                        hopper::mma_wait<0>(right);
                        release();
                        scales.template add<kHalf / 8, kHalf / 8>(sum[0], right, offset);
                    } else {
                        float tile[WIDTH / 2];
                        hopper::mma_128<WIDTH>(tile, a + sub * 64 * kBlock / 16, w);
                        hopper::mma_wait<0>(tile);
                        if (sub == kSubs - 1) {
                            release();
                        }
                        scales.template add<0, WIDTH / 8>(sum[sub], tile, offset);
                    }
                }
                if (++s == kStages) {
                    s = 0;
                    phase ^= 1;
                }
            }
#pragma unroll
            for (int sub = 0; sub < kSubs; ++sub) {
                store_results<WIDTH, shape::kOut, T>(&map_d, p, sum[sub], staged + warp * 16 * shape::kOut * 2,
                                                     m0 + row0 + 64 * sub, n0, lane);
            }
        }
        hopper::bulk_wait(); /* shared memory outlives the copies */
    }
    hopper::cluster_meet(); /* the neighbour may still arrive on these barriers */
#else
    __trap(); /* the launcher asks for sm_90 first */
#endif
}

/* ---- launchers ------------------------------------------------------------------------------------------------- */

/* A matrix of `rows` rows of `columns` elements, `pitch` bytes apart, read or written in boxes. Beyond its edges are
 * zeros, and nothing is written. Swizzled as the kernels want it: operands (bytes) by 128, results (16 bits) too,
 * scales not. */
tsr_status encode_matrix(encode_fn encode, CUtensorMap *map, CUtensorMapDataType type, const void *base, int64_t rows,
                         int64_t columns, int64_t pitch, int box_rows, int box_columns, tsr_err *err)
{
    const cuuint64_t dims[2] = {(cuuint64_t)columns, (cuuint64_t)rows}, pitches[1] = {(cuuint64_t)pitch};
    const cuuint32_t box[2] = {(cuuint32_t)box_columns, (cuuint32_t)box_rows}, steps[2] = {1, 1};
    const CUtensorMapSwizzle swizzle =
        type == CU_TENSOR_MAP_DATA_TYPE_FLOAT32 ? CU_TENSOR_MAP_SWIZZLE_NONE : CU_TENSOR_MAP_SWIZZLE_128B;
    const CUresult code =
        encode(map, type, 2, const_cast<void *>(base), dims, pitches, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
               swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (code != CUDA_SUCCESS) {
        return tsr_fail(err, TSR_E_DEVICE, "the driver refused the tensor map of [%lld, %lld], pitch %lld: error %d",
                        (long long)rows, (long long)columns, (long long)pitch, (int)code);
    }
    return TSR_OK;
}

tsr_status launched(cudaError_t code, tsr_err *err)
{
    const cudaError_t last = cudaGetLastError();
    if (code == cudaSuccess) {
        code = last;
    }
    if (code != cudaSuccess) {
        return tsr_fail(err, TSR_E_DEVICE, "block-FP8 product: %s", cudaGetErrorString(code));
    }
    return TSR_OK;
}

template <typename... Args>
tsr_status launch(void (*kernel)(Args...), dim3 grid, int threads, int shared, int cluster, tsr_stream stream,
                  tsr_err *err, const Args &...args)
{
    cudaError_t code = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    if (code == cudaSuccess) {
        cudaLaunchAttribute attributes[2] = {};
        attributes[0].id = cudaLaunchAttributeClusterDimension;
        attributes[0].val.clusterDim.x = (unsigned)cluster;
        attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
        attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attributes[1].val.programmaticStreamSerializationAllowed = 1;
        cudaLaunchConfig_t config = {};
        config.gridDim = grid;
        config.blockDim = dim3((unsigned)threads);
        config.dynamicSmemBytes = (size_t)shared;
        config.stream = stream;
        config.attrs = attributes;
        config.numAttrs = 2;
        code = cudaLaunchKernelEx(&config, kernel, args...);
    }
    return launched(code, err);
}

int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* CTAs that are at work at once, one a processor: clusters do not fill every group of processors. An H200 takes, of its
 * 132, by size of the cluster from 3: 117, 120, 110, 102, 105, 120. */
int64_t room_for_clusters(int cluster, int64_t processors)
{
    return cluster <= 2 ? processors : cluster <= 4 ? processors * 7 / 8 : processors * 3 / 4;
}

/* Microseconds, by a model fitted to an H200: a launch; in every wave of CTAs what does not depend on k, then for every
 * k tile the traffic from L2 and the products, an instruction of which costs as much as 60 tokens more would; at the
 * end the exchange of split sums. Splits are for a single wave. */
double tokens_us(const tsr_block_fp8_gemm *args, int tokens, int rows, int splits, int64_t processors)
{
    const int64_t room = room_for_clusters(splits, processors), blocks = ceil_div(args->m, tokens);
    const int64_t ctas = ceil_div(args->n, rows) * blocks * splits;
    if (blocks > kMostBlocks || (splits > 1 && ctas > room)) {
        return INFINITY;
    }
    const double bytes = (double)((rows + tokens) * kBlock * std::min(ctas, room));
    const double alone = rows * tokens > 128 * 128 ? 1.1 : 1.0; /* one k tile under way at a time */
    const double step = bytes / 32e6 + rows * (tokens + 60) * 2.2e-5 * alone;
    const double wave = 1.7 + (double)ceil_div(ceil_div(args->k, kBlock), splits) * step;
    return 0.9 + (double)ceil_div(ctas, room) * wave + (splits > 1 ? 0.31 + rows * tokens * 6.2e-5 : 0.0);
}

/* The persistent kernel's tiles and what one costs, in microseconds: its results, and a k tile. */
constexpr struct {
    int tokens, rows;
    double results, step;
} kWide[] = {{128, 128, 0.7, 0.57}, {128, 192, 1.2, 0.72}, {256, 128, 1.9, 0.97}};

template <typename T> tsr_status launch_plain(const problem &p, tsr_stream stream, tsr_err *err)
{
    const dim3 grid((unsigned)ceil_div(p.n, 32), (unsigned)ceil_div(p.m, 8));
    if (grid.y > kMostBlocks) {
        return tsr_fail(err, TSR_E_SHAPE, "block-FP8 product: %d tokens are more than the plain kernel's grid", p.m);
    }
    plain_kernel<T><<<grid, 256, 0, stream>>>(p);
    return launched(cudaSuccess, err);
}

template <int ROWS, int TOKENS, typename T>
tsr_status launch_tokens(const problem &p, int splits, tsr_stream stream, tsr_err *err)
{
    using shape = tokens_shape<ROWS, TOKENS>;
    CUtensorMap map_w, map_a, map_scale;
    encode_fn encode = NULL;
    TSR_TRY(find_encode(&encode, err));
    TSR_TRY(encode_matrix(encode, &map_w, CU_TENSOR_MAP_DATA_TYPE_UINT8, p.w, p.n, p.k, p.ldw, ROWS, kBlock, err));
    TSR_TRY(encode_matrix(encode, &map_a, CU_TENSOR_MAP_DATA_TYPE_UINT8, p.a, p.m, p.k, p.lda, TOKENS, kBlock, err));
    TSR_TRY(encode_matrix(encode, &map_scale, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, p.scale_a, ceil_div(p.k, kBlock), p.m,
                          p.ld_scale_a * 4, 1, TOKENS, err));
    const dim3 grid((unsigned)(ceil_div(p.n, ROWS) * splits), (unsigned)ceil_div(p.m, TOKENS));
    return launch(tokens_kernel<ROWS, TOKENS, T>, grid, shape::kThreads, shape::kBytes, splits, stream, err, map_w,
                  map_a, map_scale, p, splits);
}

template <int TOKENS, int WIDTH, typename T>
tsr_status launch_wide(const problem &p, int processors, tsr_stream stream, tsr_err *err)
{
    CUtensorMap map_a, map_w, map_scale, map_d = {};
    encode_fn encode = NULL;
    TSR_TRY(find_encode(&encode, err));
    if (sizeof(T) == 2 && p.vector_store) {
        TSR_TRY(
            encode_matrix(encode, &map_d, CU_TENSOR_MAP_DATA_TYPE_UINT16, p.d, p.m, p.n, p.ldd * 2, 16, kStaged, err));
    }
    TSR_TRY(
        encode_matrix(encode, &map_a, CU_TENSOR_MAP_DATA_TYPE_UINT8, p.a, p.m, p.k, p.lda, TOKENS / 2, kBlock, err));
    TSR_TRY(encode_matrix(encode, &map_w, CU_TENSOR_MAP_DATA_TYPE_UINT8, p.w, p.n, p.k, p.ldw, WIDTH / 2, kBlock, err));
    TSR_TRY(encode_matrix(encode, &map_scale, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, p.scale_a, ceil_div(p.k, kBlock), p.m,
                          p.ld_scale_a * 4, 1, TOKENS, err));
    const int64_t rows = ceil_div(p.m, TOKENS), columns = ceil_div(p.n, WIDTH);
    wide_schedule schedule;
    const int64_t by_m = ceil_div(rows, 2) * 2 * columns, by_n = rows * ceil_div(columns, 2) * 2;
    schedule.along_m = by_m < by_n || (by_m == by_n && WIDTH >= TOKENS) ? 2 : 1; /* shares the larger operand */
    schedule.along_n = 3 - schedule.along_m;
    schedule.rows = (int)ceil_div(rows, schedule.along_m);
    schedule.columns = (int)ceil_div(columns, schedule.along_n);
    const int64_t all = (int64_t)schedule.rows * schedule.columns, most = processors / 2;
    return launch(wide_kernel<TOKENS, WIDTH, T>, dim3((unsigned)(2 * (all < most ? all : most))), 384,
                  wide_shape<TOKENS, WIDTH>::kBytes, 2, stream, err, map_a, map_w, map_scale, map_d, p, schedule);
}

template <typename T>
tsr_status run(const problem &p, const tsr_gemm_config *config, int processors, tsr_stream stream, tsr_err *err)
{
    const auto is = [&](int tokens, int rows) { return config->tokens == tokens && config->rows == rows; };
    const int splits = config->cluster;
    switch (config->kind) {
    case TSR_GEMM_PLAIN:
        return launch_plain<T>(p, stream, err);
    case TSR_GEMM_TOKENS:
        if (splits < 1 || splits > kMostSplits) {
            break;
        }
#define TSR_TILE(tokens, rows)                                         \
    if (is(tokens, rows)) {                                            \
        return launch_tokens<rows, tokens, T>(p, splits, stream, err); \
    }
        TSR_TILE(16, 64)
        TSR_TILE(16, 128)
        TSR_TILE(16, 192)
        TSR_TILE(16, 256)
        TSR_TILE(32, 64)
        TSR_TILE(32, 128)
        TSR_TILE(32, 192)
        TSR_TILE(32, 256)
        TSR_TILE(64, 64)
        TSR_TILE(64, 128)
        TSR_TILE(64, 192)
        TSR_TILE(64, 256)
        TSR_TILE(128, 64)
        TSR_TILE(128, 128)
        TSR_TILE(128, 192)
#undef TSR_TILE
        break;
    case TSR_GEMM_WIDE:
        if (config->cluster == 2 && is(128, 128)) {
            return launch_wide<128, 128, T>(p, processors, stream, err);
        } else if (config->cluster == 2 && is(128, 192)) {
            return launch_wide<128, 192, T>(p, processors, stream, err);
        } else if (config->cluster == 2 && is(256, 128)) {
            return launch_wide<256, 128, T>(p, processors, stream, err);
        }
        break;
    case TSR_GEMM_AUTO:
        break;
    }
    return tsr_fail(err, TSR_E_UNSUPPORTED, "block-FP8 product: no kernel %d with tiles of %d x %d and cluster %d",
                    (int)config->kind, config->tokens, config->rows, config->cluster);
}

bool aligned(const void *p, uintptr_t to)
{
    return reinterpret_cast<uintptr_t>(p) % to == 0;
}

bool fast_fits(const tsr_block_fp8_gemm *args, const tsr_cuda_device *device)
{
    return device->arch == 90 && args->k > 0 && aligned(args->a, 16) && aligned(args->w, 16) &&
           aligned(args->scale_a, 16) && args->lda % 16 == 0 && args->ldw % 16 == 0 && args->ld_scale_a % 4 == 0;
}

} // namespace

tsr_gemm_config tsr_cuda_block_fp8_gemm_choose(const tsr_block_fp8_gemm *args, const tsr_cuda_device *device)
{
    tsr_gemm_config best = {TSR_GEMM_PLAIN, 0, 0, 0};
    if (!fast_fits(args, device)) {
        return best;
    }
    double least = INFINITY;
    const auto consider = [&](const tsr_gemm_config &config, double us) {
        if (us < least) {
            best = config;
            least = us;
        }
    };
    for (const auto &w : kWide) {
        const int64_t tiles = ceil_div(args->m, w.tokens) * ceil_div(args->n, w.rows);
        const int64_t queue = ceil_div(tiles, device->processors); /* the longest */
        const double us = 1.7 + (double)queue * (w.results + (double)ceil_div(args->k, kBlock) * w.step);
        consider({TSR_GEMM_WIDE, w.tokens, w.rows, 2}, us);
    }
    for (int tokens = 16; tokens <= 128 && tokens < 2 * std::max<int64_t>(args->m, 16); tokens *= 2) {
        for (int rows = 64; rows <= (tokens == 128 ? 192 : 256); rows += 64) {
            for (int splits = 1; splits <= kMostSplits; ++splits) {
                consider({TSR_GEMM_TOKENS, tokens, rows, splits},
                         tokens_us(args, tokens, rows, splits, device->processors));
            }
        }
    }
    return best;
}

tsr_status tsr_cuda_block_fp8_gemm(const tsr_block_fp8_gemm *args, tsr_stream stream, tsr_err *err)
{
    if (args->m < 0 || args->n < 0 || args->k < 0 || args->m > INT_MAX / 2 || args->n > INT_MAX / 2 ||
        args->k > INT_MAX / 2) {
        return tsr_fail(err, TSR_E_SHAPE, "block-FP8 product: no shape m %lld, n %lld, k %lld", (long long)args->m,
                        (long long)args->n, (long long)args->k);
    }
    if (args->lda < args->k || args->ldw < args->k || args->ldd < args->n || args->ld_scale_a < args->m) {
        return tsr_fail(err, TSR_E_SHAPE, "block-FP8 product: a leading dimension is smaller than its row");
    }
    if (args->m == 0 || args->n == 0) {
        return TSR_OK;
    }
    tsr_cuda_device device;
    TSR_TRY(tsr_cuda_current_device(&device, err));
    tsr_gemm_config config = args->config;
    if (config.kind == TSR_GEMM_AUTO) {
        config = tsr_cuda_block_fp8_gemm_choose(args, &device);
    } else if (config.kind != TSR_GEMM_PLAIN && !fast_fits(args, &device)) {
        return tsr_fail(err, TSR_E_UNSUPPORTED,
                        "block-FP8 product: the fast kernels need sm_90 and rows on 16 bytes; the device is %s, sm_%d",
                        device.name, device.arch);
    }
    const int size = args->out == TSR_GEMM_F32 ? 4 : 2;
    const problem p = {args->a,
                       args->w,
                       args->scale_a,
                       args->scale_w,
                       args->d,
                       args->lda,
                       args->ldw,
                       args->ldd,
                       args->ld_scale_a,
                       (int)args->m,
                       (int)args->n,
                       (int)args->k,
                       aligned(args->d, 16) && args->ldd * size % 16 == 0};
    switch (args->out) {
    case TSR_GEMM_BF16:
        return run<__nv_bfloat16>(p, &config, device.processors, stream, err);
    case TSR_GEMM_F16:
        return run<__half>(p, &config, device.processors, stream, err);
    case TSR_GEMM_F32:
        return run<float>(p, &config, device.processors, stream, err);
    }
    return tsr_fail(err, TSR_E_UNSUPPORTED, "block-FP8 product: no output type %d", (int)args->out);
}
