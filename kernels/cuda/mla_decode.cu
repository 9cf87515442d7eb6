/* Owns MLA decoding: the plain kernel, the schedule, the Hopper kernel and the combination of its parts. */
#include "kernels/cuda/mla_decode.h"

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <limits.h>
#include <math.h>
#include <type_traits>

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/tensor_map.cuh"

static_assert(std::is_same<tsr_stream, cudaStream_t>::value, "tsr_stream is cudaStream_t");

#pragma nv_diag_suppress 177 /* what only the sm_90a kernels call is unused in the pass for sm_80 */

namespace
{

using namespace attention;

constexpr int kLatent = 512, kRope = 64, kPage = 64; /* of the fast kernel */
constexpr int kWidth = kLatent + kRope;
constexpr int kRows = 64;            /* of q in one tile */
constexpr int kTileBytes = 64 * 128; /* 64 rows of 64 columns */
constexpr int kTiles = kWidth / 64;  /* such tiles in a page, and in the tile of q */
constexpr int kFixedCost = 2;        /* what a sequence costs a CTA besides its pages, in pages */

struct problem {
    const __nv_bfloat16 *q, *cache;
    const int32_t *block_table, *seqlens;
    __nv_bfloat16 *out;
    float *lse;
    int batch, s_q, heads, max_pages;
    int latent, width, page;
    float scale;
};

__device__ __forceinline__ int length_of(const problem &p, int b)
{
    const int most = p.max_pages * p.page;
    return min(max(__ldg(p.seqlens + b), 0), most);
}

/* ---- the definition ---------------------------------------------------------------------------------------------- */

__device__ __host__ plain_shape plain_shape_of(const problem &p)
{
    return {p.latent, p.width - p.latent, p.latent, p.scale};
}

__global__ void __launch_bounds__(kPlainThreads) plain_kernel(const problem p)
{
    extern __shared__ float shared[];
    const int64_t row = blockIdx.x;
    const int64_t rows = (int64_t)p.s_q * p.heads;
    const int b = (int)(row / rows), i = (int)(row % rows / p.heads);
    const int32_t *const table = p.block_table + (int64_t)b * p.max_pages;
    const auto token = [&](int t) {
        const __nv_bfloat16 *const k = p.cache + ((int64_t)table[t / p.page] * p.page + t % p.page) * p.width;
        return plain_token{k, k + p.latent, k};
    };
    const auto write = [&](int c, float x) { p.out[row * p.latent + c] = __float2bfloat16_rn(x); };
    attend_plain(plain_shape_of(p), p.q + row * p.width, length_of(p, b) - p.s_q + i + 1, token, write,
                 p.lse ? p.lse + row : NULL, shared);
}

/* ---- the schedule ------------------------------------------------------------------------------------------------ */

/* The sequences laid end to end, each kFixedCost and then its pages long, cut into `parts`: equal ones, but a cut that
 * falls near a sequence's end moves there, since a sequence in one part needs no combination. How far a part may reach
 * is measured from an even one, so that the last parts, with less left to share, may stay empty instead of cutting. */
struct schedule {
    int32_t *start;         /* [batch + 1]: where each sequence lies on the line */
    int2 *begin;            /* [parts + 1]: sequence and page where each part begins */
    int2 *span;             /* [batch]: the first and the last part of each sequence */
    float *lse;             /* [2 * parts][rows], log2, of a sequence that parts share: slot 2 * part, or 1 more ... */
    float *out;             /* [2 * parts][rows][kLatent] ... when the part began in an earlier sequence */
    int parts, tiles, rows; /* tiles of q a sequence, rows = tiles * kRows */
};

constexpr int kNear = 20; /* near: this fraction of a part */

__device__ void cut(const schedule &s, const int *start, int batch)
{
    const int total = start[batch], even = (total + s.parts - 1) / s.parts;
    int b = 0, page = 0, at = 0, head = 0; /* head: the part that page 0 of b went to */
    for (int part = 0; part < s.parts; ++part) {
        s.begin[part] = make_int2(b, page);
        const int length = (total - at + s.parts - part - 1) / (s.parts - part);
        const int near = part + 1 < s.parts ? length / kNear : 0, target = at + length;
        const int farthest = part + 1 < s.parts ? at + max(length, even) + even / kNear : target;
        while (b < batch && at < target - near && start[b + 1] <= farthest) {
            s.span[b] = make_int2(page == 0 ? part : head, part);
            at = start[b + 1];
            b += 1;
            page = 0;
        }
        const int until = b < batch && at < target - near ? target - start[b] - kFixedCost : 0;
        if (until > page) {
            head = page == 0 ? part : head;
            at = target;
            page = until;
        }
    }
    s.begin[s.parts] = make_int2(batch, 0);
}

constexpr int kPlanThreads = 1024, kPlanBatch = 4096;

__global__ void __launch_bounds__(kPlanThreads) plan_kernel(const problem p, const schedule s)
{
    __shared__ int warps[32], carry, starts[kPlanBatch + 1];
    int *const line = p.batch <= kPlanBatch ? starts : s.start; /* one thread reads it all */
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (threadIdx.x == 0) {
        carry = 0;
    }
    __syncthreads();
    for (int from = 0; from < p.batch; from += kPlanThreads) {
        const int b = from + (int)threadIdx.x;
        const int own = b < p.batch ? kFixedCost + (length_of(p, b) + kPage - 1) / kPage : 0;
        int before = own; /* inclusive within the warp */
        for (int distance = 1; distance < 32; distance *= 2) {
            const int other = __shfl_up_sync(0xFFFFFFFFu, before, distance);
            before += lane >= distance ? other : 0;
        }
        if (lane == 31) {
            warps[warp] = before;
        }
        const int base = carry;
        __syncthreads();
        int earlier = 0;
        for (int w = 0; w < warp; ++w) {
            earlier += warps[w];
        }
        if (b < p.batch) {
            line[b] = base + earlier + before - own;
        }
        if (threadIdx.x == kPlanThreads - 1) {
            carry = base + earlier + before;
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        line[p.batch] = carry;
        cut(s, line, p.batch);
    }
}

/* ---- the fast kernel --------------------------------------------------------------------------------------------- */

/* One sequence's share of a part: pages [first, last). */
struct share {
    int b, length, first, last;
    bool whole;
};

/* Walks the shares of one part in order. */
struct walk {
    int2 next, end;

    __device__ walk(const schedule &s, int part) : next(__ldg(s.begin + part)), end(__ldg(s.begin + part + 1))
    {
    }

    __device__ bool take(const problem &p, share &w)
    {
        if (next.x > end.x || (next.x == end.x && next.y >= end.y)) {
            return false;
        }
        w.b = next.x;
        w.length = length_of(p, w.b);
        const int pages = (w.length + kPage - 1) / kPage;
        w.first = next.y;
        w.last = w.b == end.x ? end.y : pages;
        w.whole = w.first == 0 && w.last == pages;
        next = make_int2(w.b + 1, 0);
        return true;
    }
};

/* Two pages in shared memory, page x of the CTA's running count in stage x % 2. Group x % 2 "owns" page x: it alone
 * computes the scores and probabilities, and hands them to the other; each group sums its own half of the columns. */
struct fast_shape {
    static constexpr int kQ = 0, kPages = kQ + kTiles * kTileBytes;
    static constexpr int kProbabilities = kPages + 2 * kTiles * kTileBytes; /* uint4 [4][128]: thread to thread */
    static constexpr int kMost = kProbabilities + 128 * 64;                 /* float [kRows] */
    static constexpr int kTotals = kMost + kRows * 4;                       /* float [2][2][kRows] */
    static constexpr int kBarriers = kTotals + 4 * kRows * 4;
    static constexpr int kFull = 0, kEmpty = 2 * kTiles, kQFull = kEmpty + 4, kQEmpty = kQFull + 1,
                         kCount = kQEmpty + 1;
    static constexpr int kBytes = 1024 + kBarriers + kCount * 8;
    static_assert(kBytes <= 227 * 1024, "shared memory of one CTA");
};

enum { kMeetProbabilities = 1, kMeetGroup = 5, kMeetBoth = 7 }; /* [owner][half], [group] */

constexpr int kRopePlace = 4;

/* The order of a stage's tiles, for the copies and the scores alike: what its owner frees first comes first. */
__device__ __forceinline__ int tile_at(int owner, int place)
{
    return place < kRopePlace ? 4 * owner + place : place == kRopePlace ? kTiles - 1 : 4 * (1 - owner) + place - 5;
}

/* What a consumer thread keeps of its two rows (`lane / 4` and 8 below) between pages. */
struct rows_state {
    float most[2];  /* what the scores are taken relative to; grows only when the maximum leaves it 2^8 behind */
    float total[2]; /* this thread's part of the sum over the pages that its group owns */
};

__device__ __forceinline__ void rescale(float (&o)[128], rows_state &r, const float (&now)[2], float scale2)
{
    if (__any_sync(0xFFFFFFFFu, now[0] != r.most[0] || now[1] != r.most[1])) {
        /* Seldom here. The products in flight do not use o, but ptxas would run them one by one to be sure. */
        hopper::mma_wait_but<0>();
        hopper::hold(o);
        float shrink[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            shrink[h] = now[h] == r.most[h] ? 1.0f : exp2_fast((r.most[h] - now[h]) * scale2);
            r.total[h] *= shrink[h];
            r.most[h] = now[h];
        }
#pragma unroll
        for (int i = 0; i < 128; ++i) {
            o[i] *= shrink[i / 2 % 2];
        }
    }
}

/* The shared memory of a CTA, by the places in fast_shape. */
struct fast_memory {
    uint8_t *base, *q, *pages;
    uint64_t *full;  /* [stage][tile] */
    uint64_t *empty; /* [stage][half]: the owner's half includes the rope tile */
    uint64_t *q_full, *q_empty;

    __device__ __forceinline__ explicit fast_memory(uint8_t *raw)
        : base(raw + (1024 - hopper::shared_address(raw) % 1024) % 1024), q(base + fast_shape::kQ),
          pages(base + fast_shape::kPages)
    {
        uint64_t *const barriers = reinterpret_cast<uint64_t *>(base + fast_shape::kBarriers);
        full = barriers + fast_shape::kFull, empty = barriers + fast_shape::kEmpty;
        q_full = barriers + fast_shape::kQFull, q_empty = barriers + fast_shape::kQEmpty;
    }

    template <int CLUSTER> __device__ __forceinline__ void init_barriers() const
    {
        for (int i = 0; i < 2 * kTiles; ++i) {
            hopper::barrier_init(full + i, 1);
        }
        for (int i = 0; i < 4; ++i) {
            hopper::barrier_init(empty + i, 4 * CLUSTER);
        }
        hopper::barrier_init(q_full, 1);
        hopper::barrier_init(q_empty, 8);
        hopper::fence_barrier_init();
    }
};

/* The role of the thread that loads: of every share of the part its tile of q, then its pages. */
template <int CLUSTER>
__device__ __forceinline__ void load_shares(const fast_memory &m, const problem &p, walk &shares, int tile_of_q,
                                            const CUtensorMap *map_q, const CUtensorMap *map_cache)
{
    const int rank = CLUSTER > 1 ? (int)hopper::cluster_rank() : 0;
    share w;
    int x = 0; /* pages so far */
    for (int item = 0; shares.take(p, w); ++item) {
        const int32_t *const table = p.block_table + (int64_t)w.b * p.max_pages;
        int page = w.first < w.last ? __ldg(table + w.first) : 0;
        hopper::barrier_wait(m.q_empty, (item & 1) ^ 1);
        hopper::barrier_expect(m.q_full, kTiles * kTileBytes);
        for (int tile = 0; tile < kTiles; ++tile) {
            hopper::load_tile(m.q + tile * kTileBytes, map_q, m.q_full, tile * 64, tile_of_q * kRows, w.b);
        }
        for (int at = w.first; at < w.last; ++at, ++x) {
            const int stage = x & 1, row = page * kPage;
            page = at + 1 < w.last ? __ldg(table + at + 1) : 0;
            /* Several tiles of q mean that arithmetic is the limit: a shorter wait for the next page pays. With one,
             * memory is, and prefetching only burdens it. */
            if (CLUSTER > 1 && at + 1 < w.last) {
                for (int tile = 0; tile < kTiles; ++tile) {
                    hopper::prefetch_tile(map_cache, tile * 64, page * kPage + rank * (kPage / CLUSTER));
                }
            }
            uint8_t *const to = m.pages + stage * kTiles * kTileBytes;
            for (int place = 0; place < kTiles; ++place) {
                if (place == 0 || place == 5) {
                    const int half = place == 0 ? stage : 1 - stage;
                    hopper::barrier_wait(m.empty + 2 * stage + half, (x >> 1 & 1) ^ 1);
                }
                const int tile = tile_at(stage, place);
                uint64_t *const bar = m.full + stage * kTiles + tile;
                hopper::barrier_expect(bar, kTileBytes);
                if (CLUSTER > 1) {
                    constexpr int kPart = kPage / CLUSTER;
                    hopper::load_tile_multicast(to + tile * kTileBytes + rank * kPart * 128, map_cache, bar, tile * 64,
                                                row + rank * kPart, (1 << CLUSTER) - 1);
                } else {
                    hopper::load_tile(to + tile * kTileBytes, map_cache, bar, tile * 64, row);
                }
            }
        }
    }
}

/* Where one share stands in the CTA's running count of pages, and what of it each row of a thread may see. */
struct share_view {
    int begin, end; /* pages */
    int length;     /* tokens from page `begin` on */
    int unmasked;   /* up to this token every row sees all */
    int visible[2]; /* tokens, by row */
};

/* A thread of the two groups that compute. Page x of the running count is the group's own when x % 2 == group. */
template <int CLUSTER> struct computing {
    const fast_memory &m;
    int group, lane, thread, row;
    uint4 *hand; /* probabilities, from thread to thread */
    float *hand_most;
    uint64_t q_operand;
    float scale2, slack;
    int x = 0; /* pages so far */

    __device__ __forceinline__ computing(const fast_memory &memory, int group, int lane, float scale)
        : m(memory), group(group), lane(lane), thread(threadIdx.x % 128), row(thread / 32 * 16 + lane / 4),
          hand(reinterpret_cast<uint4 *>(m.base + fast_shape::kProbabilities) + thread),
          hand_most(reinterpret_cast<float *>(m.base + fast_shape::kMost) + row), q_operand(hopper::operand(m.q)),
          scale2(scale * kLog2E), slack(8.0f / scale2)
    {
    }

    /* The rope tile of q as wgmma takes it from registers. */
    __device__ __forceinline__ void read_rope(uint32_t (&q_rope)[16]) const
    {
#pragma unroll
        for (int i = 0; i < 16; ++i) {
            const int r = row + i % 2 * 8, byte = i / 4 * 32 + i / 2 % 2 * 16 + lane % 4 * 4;
            q_rope[i] =
                *reinterpret_cast<const uint32_t *>(m.q + (kTiles - 1) * kTileBytes + r * 128 + (byte ^ r % 8 * 16));
        }
    }

    __device__ __forceinline__ void score_tiles(float (&score)[32], const uint32_t (&q_rope)[16], int from, int to)
    {
        hopper::mma_fence();
        const uint64_t k = hopper::operand(m.pages + group * kTiles * kTileBytes);
#pragma unroll
        for (int place = from; place < to; ++place) {
            const int tile = tile_at(group, place);
            hopper::barrier_wait(m.full + group * kTiles + tile, x >> 1 & 1);
#pragma unroll
            for (int step = 0; step < 4; ++step) {
                const int offset = tile * (kTileBytes >> 4) + 2 * step;
                if (place == kRopePlace) {
                    hopper::mma_scores(score, q_rope + 4 * step, k + offset, 1);
                } else {
                    hopper::mma_scores(score, q_operand + offset, k + offset, place + step != 0);
                }
            }
        }
        hopper::mma_commit();
    }

    /* Rows past the sequence's end may hold anything, NaN included: as values they are made zeros. */
    __device__ __forceinline__ void clear_tail(int stage, int valid)
    {
        if (valid < kPage) {
            uint4 *const half = reinterpret_cast<uint4 *>(m.pages + (stage * kTiles + group * 4) * kTileBytes);
            const int each = (kPage - valid) * 8;
            for (int i = thread; i < 4 * each; i += 128) {
                half[i / each * (kTileBytes / 16) + valid * 8 + i % each] = make_uint4(0, 0, 0, 0);
            }
            hopper::fence_shared_for_copies();
            hopper::meet(kMeetGroup + group, 128);
        }
    }

    __device__ __forceinline__ void add_values(float (&o)[128], const uint32_t (&probability)[16], int stage, int half)
    {
        const uint64_t v = hopper::operand_down(m.pages + (stage * kTiles + group * 4) * kTileBytes);
        hopper::mma_fence();
#pragma unroll
        for (int step = 2 * half; step < 2 * half + 2; ++step) {
            hopper::mma_values(o, probability + 4 * step, v + step * (16 * 128 >> 4));
        }
        hopper::mma_commit();
    }

    __device__ __forceinline__ void release(int stage)
    {
        uint64_t *const bar = m.empty + 2 * stage + group;
        if (CLUSTER == 1 && lane == 0) {
            hopper::barrier_arrive(bar);
        } else if (CLUSTER > 1 && lane < CLUSTER) {
            hopper::barrier_arrive(bar, (uint32_t)lane);
        }
    }

    /* Adds the values of the page whose probabilities the other group computes; the products are left in flight. */
    __device__ __forceinline__ void take_over(float (&o)[128], rows_state &state, uint32_t (&probability)[16],
                                              int valid)
    {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            hopper::meet(kMeetProbabilities + 2 * (group ^ 1) + half, 256);
#pragma unroll
            for (int i = 2 * half; i < 2 * half + 2; ++i) {
                const uint4 v = hand[i * 128];
                probability[4 * i] = v.x, probability[4 * i + 1] = v.y;
                probability[4 * i + 2] = v.z, probability[4 * i + 3] = v.w;
            }
            if (half == 0) {
                const float now[2] = {hand_most[0], hand_most[8]};
                rescale(o, state, now, scale2);
                clear_tail(group ^ 1, valid);
            }
            add_values(o, probability, group ^ 1, half);
        }
    }

    /* What the scores of the rows are to be taken relative to from now on. */
    __device__ __forceinline__ void find_most(const float (&score)[32], const rows_state &state, float (&now)[2],
                                              float (&shift)[2])
    {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float most = score[2 * h];
#pragma unroll
            for (int i = 0; i < 32; i += 4) {
                most = fmaxf(most, fmaxf(score[i + 2 * h], score[i + 2 * h + 1]));
            }
            most = quad_max(most);
            now[h] = most > state.most[h] + slack ? most : state.most[h];
            shift[h] = now[h] == -INFINITY ? 0.0f : now[h] * scale2;
        }
    }

    /* Scores become probabilities, are handed over and multiplied; the second half while the first is multiplied. */
    __device__ __forceinline__ void hand_over(float (&o)[128], const float (&score)[32], const float (&shift)[2],
                                              float (&sum)[2])
    {
        uint32_t probability[16];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
            for (int i = 16 * half; i < 16 * half + 16; i += 2) {
                const int h = i / 2 % 2;
                const float even = exp2_fast(fmaf(score[i], scale2, -shift[h]));
                const float odd = exp2_fast(fmaf(score[i + 1], scale2, -shift[h]));
                sum[h] += even + odd;
                probability[i / 2] = pack(even, odd);
            }
#pragma unroll
            for (int i = 2 * half; i < 2 * half + 2; ++i) {
                hand[i * 128] = make_uint4(probability[4 * i], probability[4 * i + 1], probability[4 * i + 2],
                                           probability[4 * i + 3]);
            }
            hopper::meet_arrive(kMeetProbabilities + 2 * group + half, 256);
            add_values(o, probability, group, half);
        }
    }

    /* A page of the group's own, x; OTHER: there is a page before it, which is the other group's. */
    template <bool OTHER>
    __device__ __forceinline__ void own_page(float (&o)[128], rows_state &state, const uint32_t (&q_rope)[16],
                                             const share_view &view)
    {
        float score[32];
        if (OTHER) {
            uint32_t taken[16];
            score_tiles(score, q_rope, 0, kRopePlace + 1);
            take_over(o, state, taken, view.length - (x - 1 - view.begin) * kPage);
            score_tiles(score, q_rope, kRopePlace + 1, kRopePlace + 2);
            hopper::mma_wait_but<1>();
            release(group ^ 1);
            score_tiles(score, q_rope, kRopePlace + 2, kTiles);
        } else {
            score_tiles(score, q_rope, 0, kTiles);
        }
        hopper::mma_wait_but<0>();
        hopper::hold(o);
        hopper::hold(score);

        const int token = (x - view.begin) * kPage;
        if (token + kPage > view.unmasked) {
#pragma unroll
            for (int i = 0; i < 32; ++i) {
                if (token + i / 4 * 8 + lane % 4 * 2 + i % 2 >= view.visible[i / 2 % 2]) {
                    score[i] = -INFINITY;
                }
            }
        }
        float now[2], shift[2], sum[2] = {0.0f, 0.0f};
        find_most(score, state, now, shift);
        rescale(o, state, now, scale2);
        clear_tail(group, view.length - token);
        __syncwarp(); /* all lanes have read the other group's maxima */
        if (lane % 4 == 0) {
            hand_most[0] = now[0];
            hand_most[8] = now[1];
        }
        hand_over(o, score, shift, sum);
        state.total[0] += sum[0];
        state.total[1] += sum[1];
        hopper::mma_wait_but<0>();
        hopper::hold(o);
        release(group);
    }

    /* All pages of a share; o is this group's half of the columns. */
    __device__ __forceinline__ void add_pages(float (&o)[128], rows_state &state, const share_view &view)
    {
        uint32_t q_rope[16];
        read_rope(q_rope);
        x += (x ^ group) & 1;
        if (x == view.begin && x < view.end) {
            own_page<false>(o, state, q_rope, view);
            x += 2;
        }
        for (; x < view.end; x += 2) {
            own_page<true>(o, state, q_rope, view);
        }
        if (x == view.end && view.end > view.begin) { /* the last page is the other's */
            uint32_t taken[16];
            take_over(o, state, taken, view.length - (view.end - 1 - view.begin) * kPage);
            hopper::mma_wait_but<0>();
            hopper::hold(o);
            release(group ^ 1);
        }
        x = view.end;
    }

    /* The sums of both groups, by way of `exchange`: what the rows' results are to be multiplied by, and their lse in
     * powers of two. */
    __device__ __forceinline__ void add_totals(float *exchange, const rows_state &state, float (&inverse)[2],
                                               float (&lse)[2])
    {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const float own = quad_sum(state.total[h]);
            if (lane % 4 == 0) {
                exchange[group * kRows + 8 * h] = own;
            }
        }
        hopper::meet(kMeetBoth, 256);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const float total = exchange[8 * h] + exchange[kRows + 8 * h];
            inverse[h] = total > 0.0f ? 1.0f / total : 0.0f;
            lse[h] = total > 0.0f ? fmaf(state.most[h], scale2, log2f(total)) : -INFINITY;
        }
    }

    /* The result of a sequence that is whole in this part, BF16. */
    __device__ __forceinline__ void store_whole(const problem &p, int b, int first_row, const float (&o)[128],
                                                const float (&inverse)[2], const float (&lse)[2])
    {
        const int rows = p.s_q * p.heads;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int r = first_row + 8 * h;
            const int64_t to = (int64_t)b * rows + r;
            __nv_bfloat16 *const out = p.out + to * kLatent + group * 256;
#pragma unroll
            for (int g = 0; g < 32; g += 4) {
                const float *const d = o + 4 * g + 2 * h;
                const uint4 v = transpose_quad(
                    pack(d[0] * inverse[h], d[1] * inverse[h]), pack(d[4] * inverse[h], d[5] * inverse[h]),
                    pack(d[8] * inverse[h], d[9] * inverse[h]), pack(d[12] * inverse[h], d[13] * inverse[h]), lane % 4);
                if (r < rows) {
                    *reinterpret_cast<uint4 *>(out + 8 * (g + lane % 4)) = v;
                }
            }
            if (r < rows && p.lse && group == 0 && lane % 4 == 0) {
                p.lse[to] = lse[h] / kLog2E;
            }
        }
    }

    /* The result of a part of a sequence, FP32, for combine_kernel. */
    __device__ __forceinline__ void store_part(const schedule &s, int slot, int first_row, const float (&o)[128],
                                               const float (&inverse)[2], const float (&lse)[2])
    {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int64_t to = (int64_t)slot * s.rows + first_row + 8 * h;
            float *const out = s.out + to * kLatent + group * 256 + lane % 4 * 2;
#pragma unroll
            for (int g = 0; g < 32; ++g) {
                *reinterpret_cast<float2 *>(out + 8 * g) =
                    make_float2(o[4 * g + 2 * h] * inverse[h], o[4 * g + 2 * h + 1] * inverse[h]);
            }
            if (group == 0 && lane % 4 == 0) {
                s.lse[to] = lse[h];
            }
        }
    }
};

/* The role of the threads that compute: the scores, probabilities and sums of every share of the part. */
template <int CLUSTER>
__device__ __forceinline__ void compute_shares(const fast_memory &m, const problem &p, const schedule &s, walk &shares,
                                               int part, int tile_of_q, int group, int lane)
{
    computing<CLUSTER> c(m, group, lane, p.scale);
    float *const totals = reinterpret_cast<float *>(m.base + fast_shape::kTotals) + c.row;
    share w;
    for (int item = 0; shares.take(p, w); ++item) {
        const int first_row = tile_of_q * kRows + c.row, before = w.first * kPage;
        share_view view;
        view.begin = c.x, view.end = c.x + w.last - w.first;
        view.length = w.length - before;
        view.unmasked = w.length - p.s_q + 1 - before;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            view.visible[h] = w.length - p.s_q + (first_row + 8 * h) / p.heads + 1 - before;
        }
        hopper::barrier_wait(m.q_full, item & 1);
        float o[128];
#pragma unroll
        for (int i = 0; i < 128; ++i) {
            o[i] = 0.0f;
        }
        rows_state state = {{-INFINITY, -INFINITY}, {0.0f, 0.0f}};
        c.add_pages(o, state, view);
        if (lane == 0) {
            hopper::barrier_arrive(m.q_empty);
        }
        float inverse[2], lse[2];
        c.add_totals(totals + (item & 1) * 2 * kRows, state, inverse, lse);
        if (w.whole) {
            c.store_whole(p, w.b, first_row, o, inverse, lse);
        } else {
            c.store_part(s, 2 * part + (w.b != __ldg(&s.begin[part].x)), first_row, o, inverse, lse);
        }
    }
}

template <int CLUSTER>
__global__ void __launch_bounds__(384, 1)
    fast_kernel(const __grid_constant__ CUtensorMap map_q, const __grid_constant__ CUtensorMap map_cache,
                const __grid_constant__ problem p, const __grid_constant__ schedule s)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ uint8_t raw[];
    const fast_memory m(raw);
    const int group = __shfl_sync(0xFFFFFFFFu, (int)threadIdx.x / 128, 0);
    const int lane = threadIdx.x % 32;
    const int part = blockIdx.y, tile_of_q = blockIdx.x;

    if (threadIdx.x == 0) {
        m.init_barriers<CLUSTER>();
    }
    if (CLUSTER > 1) {
        hopper::cluster_sync();
    } else {
        __syncthreads();
    }

    walk shares(s, part);
    if (group == 2) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
        if (threadIdx.x == 256) {
            load_shares<CLUSTER>(m, p, shares, tile_of_q, &map_q, &map_cache);
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 224;");
        compute_shares<CLUSTER>(m, p, s, shares, part, tile_of_q, group, lane);
    }
    hopper::let_next_launch_begin();
    if (CLUSTER > 1) {
        hopper::cluster_sync(); /* the neighbour may still arrive on these barriers, or copy into these pages */
    }
#else
    __trap(); /* the launcher asks for sm_90 first */
#endif
}

/* ---- the sequences that several parts share ---------------------------------------------------------------------- */

constexpr int kCombineWarps = 16, kCombineRows = 16; /* rows a CTA takes of a sequence in two parts */

/* The CTAs of one x belong to one cut between parts; a sequence's rows are shared among the CTAs of all its cuts, and a
 * CTA's warps among its rows, so that few rows of many parts take no longer than many of two. */
__global__ void __launch_bounds__(32 * kCombineWarps, 2)
    combine_kernel(const __grid_constant__ problem p, const __grid_constant__ schedule s)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ float weights[]; /* [kCombineWarps][parts] */
    __shared__ float4 sums[kCombineWarps][kLatent / 4];
    hopper::wait_for_launch_before(); /* whoever returns early must not end the stream's wait, either */
    const int part = blockIdx.x + 1;
    const int2 cut_at = __ldg(s.begin + part);
    if (cut_at.y == 0) {
        return; /* between two sequences */
    }
    const int b = cut_at.x, rows = p.s_q * p.heads;
    const int2 span = __ldg(s.span + b);
    const int first = span.x, count = span.y - first + 1;
    const int64_t shares = (int64_t)(count - 1) * gridDim.y, mine = (part - first - 1) * gridDim.y + blockIdx.y;
    const int begin = (int)(rows * mine / shares), end = (int)(rows * (mine + 1) / shares);
    const int first_slot = 2 * first + (__ldg(&s.begin[first].x) != b);
    int team = kCombineWarps; /* warps a row */
    while (team > 1 && (end - begin) * team > kCombineWarps) {
        team /= 2;
    }
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, member = warp % team;
    float *const weight = weights + warp * s.parts;
    for (int from = begin; from < end; from += kCombineWarps / team) {
        const int r = from + warp / team;
        const bool real = r < end;
        float most = -INFINITY, total = 0.0f;
        float4 sum[4] = {};
        if (real) {
            for (int i = lane; i < count; i += 32) {
                const float lse = s.lse[(int64_t)(i == 0 ? first_slot : 2 * (first + i)) * s.rows + r];
                weight[i] = lse;
                most = fmaxf(most, lse);
            }
            most = reduce_warp(most, true);
            for (int i = lane; i < count; i += 32) {
                weight[i] = most == -INFINITY ? 0.0f : exp2_fast(weight[i] - most);
                total += weight[i];
            }
            total = reduce_warp(total, false);
            __syncwarp();
            const float inverse = total > 0.0f ? 1.0f / total : 0.0f;
#pragma unroll 2
            for (int i = member; i < count; i += team) {
                const int64_t slot = i == 0 ? first_slot : 2 * (first + i);
                const float4 *const v = reinterpret_cast<const float4 *>(s.out + (slot * s.rows + r) * kLatent) + lane;
                const float by = weight[i] * inverse;
#pragma unroll
                for (int k = 0; k < 4; ++k) {
                    const float4 x = v[k * 32];
                    sum[k].x = fmaf(x.x, by, sum[k].x), sum[k].y = fmaf(x.y, by, sum[k].y);
                    sum[k].z = fmaf(x.z, by, sum[k].z), sum[k].w = fmaf(x.w, by, sum[k].w);
                }
            }
            __syncwarp(); /* before the next row's weights */
        }
        if (team > 1) { /* as for all of the CTA */
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                sums[warp][k * 32 + lane] = sum[k];
            }
            __syncthreads();
            for (int other = 1; member == 0 && other < team; ++other) {
#pragma unroll
                for (int k = 0; k < 4; ++k) {
                    const float4 x = sums[warp + other][k * 32 + lane];
                    sum[k].x += x.x, sum[k].y += x.y, sum[k].z += x.z, sum[k].w += x.w;
                }
            }
            __syncthreads();
        }
        if (real && member == 0) {
            const int64_t to = (int64_t)b * rows + r;
            uint2 *const out = reinterpret_cast<uint2 *>(p.out + to * kLatent) + lane;
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                out[k * 32] = make_uint2(pack(sum[k].x, sum[k].y), pack(sum[k].z, sum[k].w));
            }
            if (p.lse && lane == 0) {
                p.lse[to] = total > 0.0f ? (most + log2f(total)) / kLog2E : -INFINITY;
            }
        }
    }
#else
    __trap(); /* the launcher asks for sm_90 first */
#endif
}

/* ---- launchers --------------------------------------------------------------------------------------------------- */

constexpr char kWhat[] = "MLA decoding";

bool fast_fits(const tsr_mla_decode *args, const tsr_cuda_device *device)
{
    return device->arch == 90 && args->latent == kLatent && args->rope == kRope && args->page == kPage &&
           host::aligned(args->q, 16) && host::aligned(args->cache, 16) && host::aligned(args->out, 16);
}

problem problem_of(const tsr_mla_decode *args)
{
    return {reinterpret_cast<const __nv_bfloat16 *>(args->q),
            reinterpret_cast<const __nv_bfloat16 *>(args->cache),
            args->block_table,
            args->seqlens,
            reinterpret_cast<__nv_bfloat16 *>(args->out),
            args->lse,
            (int)args->batch,
            (int)args->s_q,
            (int)args->heads,
            (int)args->max_pages,
            args->latent,
            args->latent + args->rope,
            args->page,
            args->scale};
}

/* Places the schedule and the parts' results in the workspace; returns the bytes. */
size_t lay_out(const tsr_mla_decode *args, int processors, schedule *s)
{
    const auto up = [](size_t bytes) { return (bytes + 255) / 256 * 256; };
    s->tiles = (int)host::ceil_div(args->s_q * args->heads, kRows);
    s->rows = s->tiles * kRows;
    s->parts = processors / s->tiles > 1 ? processors / s->tiles : 1;
    const size_t starts = up((size_t)(args->batch + 1) * sizeof *s->start);
    const size_t begins = up((size_t)(s->parts + 1) * sizeof *s->begin);
    const size_t spans = up((size_t)args->batch * sizeof *s->span);
    const size_t lse = up((size_t)2 * s->parts * s->rows * sizeof *s->lse);
    uint8_t *const base = static_cast<uint8_t *>(args->workspace);
    s->start = reinterpret_cast<int32_t *>(base);
    s->begin = reinterpret_cast<int2 *>(base + starts);
    s->span = reinterpret_cast<int2 *>(base + starts + begins);
    s->lse = reinterpret_cast<float *>(base + starts + begins + spans);
    s->out = reinterpret_cast<float *>(base + starts + begins + spans + lse);
    return starts + begins + spans + lse + (size_t)2 * s->parts * s->rows * kLatent * sizeof *s->out;
}

tsr_status check(const tsr_mla_decode *args, tsr_err *err)
{
    const int64_t most = INT_MAX / 4;
    if (args->batch < 0 || args->s_q < 0 || args->heads < 0 || args->max_pages < 0 || args->latent < 1 ||
        args->rope < 0 || args->page < 1 || args->batch > most || args->s_q > most || args->heads > most ||
        args->max_pages > most / args->page || (args->s_q > 0 && args->heads > most / args->s_q) ||
        args->pages > most / args->page || (args->max_pages + kFixedCost) * args->batch > most ||
        args->latent + (int64_t)args->rope >= 6000) {
        return tsr_fail(err, TSR_E_SHAPE,
                        "MLA decoding: no shape batch %lld, queries %lld, heads %lld, pages %lld of %d, "
                        "columns %d + %d",
                        (long long)args->batch, (long long)args->s_q, (long long)args->heads,
                        (long long)args->max_pages, args->page, args->latent, args->rope);
    }
    return TSR_OK;
}

/* Checks the arguments; TSR_MLA_AUTO for a problem with nothing in it, for which no device is looked for. */
tsr_status choose(const tsr_mla_decode *args, tsr_cuda_device *device, tsr_mla_kind *kind, tsr_err *err)
{
    TSR_TRY(check(args, err));
    request r = {kWhat,
                 "512 + 64 columns, pages of 64",
                 args->batch == 0 || args->s_q == 0 || args->heads == 0,
                 false,
                 args->scale,
                 args->workspace};
    *kind = TSR_MLA_AUTO;
    if (!r.empty) {
        TSR_TRY(tsr_cuda_current_device(device, err));
        r.fast_fits = fast_fits(args, device);
        *kind = tsr_cuda_mla_choose(args, device);
    }
    return settle(r, *device, kind, err);
}

/* An even number of tiles of q goes in pairs that share each page's copy. */
int cluster_of(const schedule &s)
{
    return s.tiles % 2 == 0 ? 2 : 1;
}

void (*kernel_of(const schedule &s))(CUtensorMap, CUtensorMap, problem, schedule)
{
    return cluster_of(s) == 2 ? fast_kernel<2> : fast_kernel<1>;
}

tsr_status launch_fast(const problem &p, const schedule &s, int64_t pages, tsr_stream stream, tsr_err *err)
{
    const unsigned cluster = (unsigned)cluster_of(s);
    encode_fn encode = NULL;
    TSR_TRY(find_encode(&encode, err));
    CUtensorMap map_q, map_cache;
    const int rows = p.s_q * p.heads;
    const cuuint64_t q_dims[3] = {kWidth, (cuuint64_t)rows, (cuuint64_t)p.batch};
    const cuuint64_t q_pitches[2] = {kWidth * 2, (cuuint64_t)rows * kWidth * 2};
    const cuuint32_t q_box[3] = {64, kRows, 1}, steps[3] = {1, 1, 1};
    CUresult code = encode(&map_q, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<__nv_bfloat16 *>(p.q), q_dims,
                           q_pitches, q_box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                           CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (code == CUDA_SUCCESS) {
        const cuuint64_t dims[2] = {kWidth, (cuuint64_t)(pages > 0 ? pages : 1) * kPage}, pitches[1] = {kWidth * 2};
        const cuuint32_t box[2] = {64, kPage / cluster};
        code = encode(&map_cache, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<__nv_bfloat16 *>(p.cache), dims,
                      pitches, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                      CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    }
    if (code != CUDA_SUCCESS) {
        return tsr_fail(err, TSR_E_DEVICE, "MLA decoding: the driver refused a tensor map: error %d", (int)code);
    }
    const host::launch_shape shape = {dim3((unsigned)s.tiles, (unsigned)s.parts), 384, fast_shape::kBytes, stream};
    TSR_TRY(host::launched(
        kWhat, host::launch(kernel_of(s), shape, {host::in_clusters(cluster)}, map_q, map_cache, p, s), err));

    if (s.parts == 1) {
        return TSR_OK;
    }
    const dim3 grid((unsigned)s.parts - 1, (unsigned)(s.rows / kCombineRows));
    const host::launch_shape combine = {grid, 32 * kCombineWarps, kCombineWarps * s.parts * (int)sizeof(float), stream};
    return host::launched(kWhat, host::launch(combine_kernel, combine, {host::beside_the_one_before()}, p, s), err);
}

} // namespace

tsr_mla_kind tsr_cuda_mla_choose(const tsr_mla_decode *args, const tsr_cuda_device *device)
{
    return args->kind != TSR_MLA_AUTO ? args->kind : fast_fits(args, device) ? TSR_MLA_FAST : TSR_MLA_PLAIN;
}

size_t tsr_cuda_mla_workspace(const tsr_mla_decode *args, const tsr_cuda_device *device)
{
    schedule s;
    const bool fast =
        args->batch > 0 && args->s_q > 0 && args->heads > 0 && tsr_cuda_mla_choose(args, device) == TSR_MLA_FAST;
    return fast ? lay_out(args, device->processors, &s) : 0;
}

tsr_status tsr_cuda_mla_plan(const tsr_mla_decode *args, tsr_stream stream, tsr_err *err)
{
    tsr_cuda_device device;
    tsr_mla_kind kind;
    TSR_TRY(choose(args, &device, &kind, err));
    if (kind != TSR_MLA_FAST) {
        return TSR_OK;
    }
    schedule s;
    (void)lay_out(args, device.processors, &s);
    TSR_TRY(host::launched(kWhat, host::allow_shared(kernel_of(s), fast_shape::kBytes), err));
    plan_kernel<<<1, kPlanThreads, 0, stream>>>(problem_of(args), s);
    return host::launched(kWhat, cudaSuccess, err);
}

tsr_status tsr_cuda_mla_decode(const tsr_mla_decode *args, tsr_stream stream, tsr_err *err)
{
    tsr_cuda_device device;
    tsr_mla_kind kind;
    TSR_TRY(choose(args, &device, &kind, err));
    if (kind == TSR_MLA_AUTO) {
        return TSR_OK;
    }
    const problem p = problem_of(args);
    if (kind == TSR_MLA_PLAIN) {
        const int64_t rows = args->batch * args->s_q * args->heads;
        if (rows > INT_MAX) {
            return tsr_fail(err, TSR_E_SHAPE, "MLA decoding: %lld rows are more than the plain kernel's grid",
                            (long long)rows);
        }
        plain_kernel<<<(unsigned)rows, kPlainThreads, (size_t)plain_shape_of(p).shared_floats() * sizeof(float),
                       stream>>>(p);
        return host::launched(kWhat, cudaSuccess, err);
    }
    schedule s;
    (void)lay_out(args, device.processors, &s);
    return launch_fast(p, s, args->pages, stream, err);
}
