/* Hopper kernel of MLA decoding. One thread loads pages. Of two groups of warps, each computes the scores of every
 * other page and sums one half of the columns. For mla_decode.cu only. */
#pragma once

#include "kernels/cuda/mla_decode_gather.cuh"
#include "kernels/cuda/mla_decode_load.cuh"
#include "kernels/cuda/mla_decode_schedule.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace
{

/* Exchanges columns of two groups of eight between lanes 2i and 2i + 1. Before, each has two adjacent columns of both
 * groups; afterwards, the even lane has four adjacent columns of the first group, the odd one of the second. */
__device__ __forceinline__ float4 exchange_pair(float2 first, float2 second, int lane)
{
    const bool odd = lane & 1;
    const float2 give = odd ? first : second;
    const float x = __shfl_xor_sync(0xFFFFFFFFu, give.x, 1), y = __shfl_xor_sync(0xFFFFFFFFu, give.y, 1);
    return odd ? make_float4(x, y, second.x, second.y) : make_float4(first.x, first.y, x, y);
}

/* State of a consumer thread for its two rows (`lane / 4` and 8 below) between pages. */
struct rows_state {
    float most[2];  /* subtracted from scores; raised to their maximum only when exponentials would exceed 2^8 */
    float total[2]; /* this thread's part of the sum over the pages that its group owns */
};

__device__ __forceinline__ void rescale(float (&o)[128], rows_state &r, const float (&now)[2], float scale2)
{
    if (__any_sync(0xFFFFFFFFu, now[0] != r.most[0] || now[1] != r.most[1])) {
        /* Rarely executed. The products in progress do not use o, but ptxas cannot know that, and would serialize
         * them. */
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

/* The position of one share in the CTA's running count of pages, and the tokens of it that a thread's rows may see. */
struct share_view {
    int begin, end; /* pages */
    int length;     /* tokens from page `begin` on */
    int unmasked;   /* every row sees all tokens before this one */
    int visible[2]; /* number of tokens that each of the two rows sees */
};

/* State of a thread of the two computing groups. The group owns page x of the running count if x % 2 == group. */
template <int CLUSTER, typename PROBLEM> struct computing {
    const fast_memory &m;
    int group, lane, thread, row;
    uint4 *hand; /* probabilities, from thread to thread */
    float *hand_most;
    uint64_t q_operand;
    float scale2, slack;
    int x = 0; /* pages so far */

    /* Gathered pages arrive in two halves, of which the second has the rope tile. With an FP8 cache the gathering
     * threads need the registers in which the rope tile of q is held otherwise. */
    static constexpr bool kHalves = PROBLEM::kGathered, kRopeHeld = !PROBLEM::kFp8;
    static constexpr int kFirst = kHalves ? 4 : kRopePlace + 1; /* tiles that are multiplied before the other page */

    __device__ __forceinline__ computing(const fast_memory &memory, int group, int lane, float scale)
        : m(memory), group(group), lane(lane), thread(threadIdx.x % 128), row(thread / 32 * 16 + lane / 4),
          hand(reinterpret_cast<uint4 *>(m.base + fast_shape::kProbabilities) + thread),
          hand_most(reinterpret_cast<float *>(m.base + fast_shape::kMost) + row), q_operand(hopper::operand(m.q)),
          scale2(scale * kLog2E), slack(8.0f / scale2)
    {
    }

    /* Reads the rope tile of q into registers, from which wgmma takes it. */
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
            const int tile = kHalves ? (place < 8 ? place ^ 4 * group : kTiles - 1) : tile_at(group, place);
            if (!kHalves || place == 0 || place == 4) {
                hopper::barrier_wait(m.full + group * kTiles + tile, x >> 1 & 1);
            }
#pragma unroll
            for (int step = 0; step < 4; ++step) {
                const int offset = tile * (kTileBytes >> 4) + 2 * step;
                if (kRopeHeld && (kHalves ? place == kTiles - 1 : place == kRopePlace)) {
                    hopper::mma_scores(score, q_rope + 4 * step, k + offset, 1);
                } else {
                    hopper::mma_scores(score, q_operand + offset, k + offset, place + step != 0);
                }
            }
        }
        hopper::mma_commit();
    }

    /* Zeroes rows past the sequence's end, which may contain anything, including NaN, before they are used as
     * values. */
    __device__ __forceinline__ void clear_tail(int stage, int valid)
    {
        if (!PROBLEM::kGathered && valid < kPage) { /* gathered rows are zero if there is no token */
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

    /* Adds the values of the page whose probabilities the other group computes. The products are left in progress. */
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

    /* Computes the value that is subtracted from the scores of the rows from now on. */
    __device__ __forceinline__ void find_most(const float (&score)[32], const rows_state &state, float (&now)[2],
                                              float (&shift)[2])
    {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const float most = row_max(score, h);
            now[h] = most > state.most[h] + slack ? most : state.most[h];
            shift[h] = now[h] == -INFINITY ? 0.0f : now[h] * scale2;
        }
    }

    /* Converts scores to probabilities, passes them to the other group, and multiplies them by the values, in two
     * halves: the second is computed while the first is multiplied. */
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

    /* Sets the scores of rows that are not listed to -INFINITY. */
    __device__ __forceinline__ void drop_unlisted(float (&score)[32]) const
    {
        const uint2 listed = m.listed[group];
        if ((listed.x & listed.y) != 0xFFFFFFFFu) {
            const uint32_t low = listed.x >> lane % 4 * 2, high = listed.y >> lane % 4 * 2;
#pragma unroll
            for (int i = 0; i < 32; ++i) {
                if (((i < 16 ? low : high) >> (i / 4 % 4 * 8 + i % 2) & 1) == 0) {
                    score[i] = -INFINITY;
                }
            }
        }
    }

    /* Processes page x, which the group owns. OTHER: the other group owns a page before it. */
    template <bool OTHER>
    __device__ __forceinline__ void own_page(float (&o)[128], rows_state &state, const uint32_t (&q_rope)[16],
                                             const share_view &view)
    {
        float score[32];
        if (OTHER) {
            uint32_t taken[16];
            score_tiles(score, q_rope, 0, kFirst);
            take_over(o, state, taken, view.length - (x - 1 - view.begin) * kPage);
            score_tiles(score, q_rope, kFirst, kFirst + 1);
            hopper::mma_wait_but<1>();
            release(group ^ 1);
            score_tiles(score, q_rope, kFirst + 1, kTiles);
        } else {
            score_tiles(score, q_rope, 0, kTiles);
        }
        hopper::mma_wait_but<0>();
        hopper::hold(o);
        hopper::hold(score);

        const int token = (x - view.begin) * kPage;
        if constexpr (PROBLEM::kListed) {
            drop_unlisted(score);
        } else if (token + kPage > view.unmasked) {
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

    /* Adds all pages of a share to o, this group's half of the columns. */
    __device__ __forceinline__ void add_pages(float (&o)[128], rows_state &state, const share_view &view)
    {
        uint32_t q_rope[16];
        if (kRopeHeld) {
            read_rope(q_rope);
        }
        x += (x ^ group) & 1;
        if (x == view.begin && x < view.end) {
            own_page<false>(o, state, q_rope, view);
            x += 2;
        }
        for (; x < view.end; x += 2) {
            own_page<true>(o, state, q_rope, view);
        }
        if (x == view.end && view.end > view.begin) { /* the other group owns the last page */
            uint32_t taken[16];
            take_over(o, state, taken, view.length - (view.end - 1 - view.begin) * kPage);
            hopper::mma_wait_but<0>();
            hopper::hold(o);
            release(group ^ 1);
        }
        x = view.end;
    }

    /* Adds the totals of both groups through `exchange`. Returns the factors for the rows' results, and their lse to
     * base 2. */
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

    /* Stores the BF16 result of a sequence that is entirely in this part. */
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

    /* Stores the FP32 result of a part of a sequence, for combine_kernel. */
    __device__ __forceinline__ void store_part(const schedule &s, int rows, int slot, int first_row,
                                               const float (&o)[128], const float (&inverse)[2], const float (&lse)[2])
    {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int r = first_row + 8 * h;
            const int64_t to = (int64_t)slot * s.rows + r;
            float *const out = s.out + to * kLatent + group * 256 + lane % 2 * 8 + lane % 4 / 2 * 4;
#pragma unroll
            for (int g = 0; g < 32; g += 2) {
                const float *const d = o + 4 * g + 2 * h;
                const float4 v = exchange_pair(make_float2(d[0] * inverse[h], d[1] * inverse[h]),
                                               make_float2(d[4] * inverse[h], d[5] * inverse[h]), lane);
                if (r < rows) { /* no padding after the last row */
                    *reinterpret_cast<float4 *>(out + 8 * g) = v;
                }
            }
            if (r < rows && group == 0 && lane % 4 == 0) {
                s.lse[to] = lse[h];
            }
        }
    }
};

/* Role of the computing threads: the scores, probabilities and sums of every share of the part. */
template <int CLUSTER, typename PROBLEM>
__device__ __forceinline__ void compute_shares(const fast_memory &m, const PROBLEM &p, const schedule &s, walk &shares,
                                               int part, int tile_of_q, int group, int lane)
{
    computing<CLUSTER, PROBLEM> c(m, group, lane, p.scale);
    const int first_sequence = shares.next.x;
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
            c.store_part(s, p.s_q * p.heads, 2 * part + (w.b != first_sequence), first_row, o, inverse, lse);
        }
    }
}

/* map_cache is only used if the rows are not gathered. */
template <int CLUSTER, typename PROBLEM>
__global__ void __launch_bounds__(384, 1)
    fast_kernel(const __grid_constant__ CUtensorMap map_q, const __grid_constant__ CUtensorMap map_cache,
                const __grid_constant__ PROBLEM p, const __grid_constant__ schedule s)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ uint8_t raw[];
    const fast_memory m(raw);
    const int group = __shfl_sync(0xFFFFFFFFu, (int)threadIdx.x / 128, 0);
    const int lane = threadIdx.x % 32;
    const int part = blockIdx.y, tile_of_q = blockIdx.x;

    hopper::wait_for_launch_before();
    /* The combination kernel, which reads the schedule and then waits for this launch's end. */
    hopper::let_next_launch_begin();
    walk shares(s, part);
    if (threadIdx.x == 256) {
        hopper::prefetch_map(&map_q);
        if (!PROBLEM::kGathered) {
            hopper::prefetch_map(&map_cache);
        }
    }
    if (threadIdx.x == 0) {
        m.init_barriers<CLUSTER>();
    }
    if (CLUSTER > 1 && PROBLEM::kGathered) {
        hopper::cluster_meet();
    } else if (CLUSTER > 1) {
        hopper::cluster_sync();
    } else {
        __syncthreads();
    }

    if (group == 2) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(PROBLEM::kFp8 ? 88 : 56));
        if constexpr (PROBLEM::kGathered) {
            gather_shares<CLUSTER>(m, p, shares, tile_of_q, &map_q);
        } else if (threadIdx.x == 256) {
            load_shares<CLUSTER>(m, p, shares, tile_of_q, &map_q, &map_cache);
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(PROBLEM::kFp8 ? 208 : 224));
        compute_shares<CLUSTER>(m, p, s, shares, part, tile_of_q, group, lane);
    }
    if (CLUSTER > 1) {
        hopper::cluster_sync(); /* the neighbour may still arrive at these barriers, or copy into these pages */
    }
#else
    __trap(); /* the launcher requires sm_90 */
#endif
}

} // namespace
