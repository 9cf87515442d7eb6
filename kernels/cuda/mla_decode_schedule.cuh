/* Common declarations of the kernels of MLA decoding: the problem, and the schedule that divides its sequences into
 * equal parts. For mla_decode.cu only. */
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stdint.h>

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/mla_decode_cut.h"

#pragma nv_diag_suppress 177 /* functions called only by the sm_90a kernels are unused in the pass for sm_80 */

namespace
{

using namespace attention;

constexpr int kLatent = 512, kRope = 64, kPage = 64; /* sizes of the fast kernel */
constexpr int kWidth = kLatent + kRope;
constexpr int kRows = 64;            /* rows of q in one tile */
constexpr int kTileBytes = 64 * 128; /* 64 rows of 64 columns */
constexpr int kTiles = kWidth / 64;  /* tiles of a page, and of the tile of q */

struct problem {
    const __nv_bfloat16 *q, *cache;
    const int32_t *block_table, *seqlens;
    __nv_bfloat16 *out;
    float *lse;
    int batch, s_q, heads, max_pages;
    int latent, width, page;
    float scale;
    static constexpr bool kGathered = false, kFp8 = false, kListed = false;
};

/* A problem whose rows are gathered one by one: a cache in FP8, or rows that each query lists. With LISTED a query is a
 * sequence of its own: batch counts queries, and s_q is 1. */
template <bool FP8, bool LISTED> struct gathered : problem {
    const int32_t *indices; /* [batch][top_k] */
    int top_k;
    static constexpr bool kGathered = true, kFp8 = FP8, kListed = LISTED;
};

__device__ __forceinline__ int length_of(const problem &p, int b)
{
    const int most = p.max_pages * p.page;
    return min(max(__ldg(p.seqlens + b), 0), most);
}

template <bool FP8> __device__ __forceinline__ int length_of(const gathered<FP8, true> &p, int)
{
    return p.top_k;
}

/* Returns the row of the cache of a sequence's token, or a negative number if there is none. */
template <typename PROBLEM> __device__ __forceinline__ int row_of(const PROBLEM &p, int b, int length, int token)
{
    if (token >= length) {
        return -1;
    }
    if constexpr (PROBLEM::kListed) {
        return __ldg(p.indices + (int64_t)b * p.top_k + token);
    } else {
        return __ldg(p.block_table + (int64_t)b * p.max_pages + token / p.page) * p.page + token % p.page;
    }
}

/* Where the parts of mla_decode_cut.h begin and end, and the partial results of sequences that several parts share. */
struct schedule {
    int32_t *start;      /* [batch + 1]: position of each sequence on the line */
    tsr_mla_pair *begin; /* [parts + 1]: sequence and page where each part begins */
    tsr_mla_pair *span;  /* [batch]: the first and the last part of each sequence */
    float *lse;          /* [2 * parts][rows], base 2, for sequences that parts share: slot 2 * part, or one more ... */
    float *out;          /* [2 * parts][rows][kLatent] ... if the part began in an earlier sequence */
    int parts, tiles, rows; /* tiles of q in a sequence; rows = tiles * kRows */
};

constexpr int kPlanThreads = 1024, kPlanBatch = 4096;

__global__ void __launch_bounds__(kPlanThreads) plan_kernel(const problem p, const schedule s)
{
    __shared__ int warps[32], carry, starts[kPlanBatch + 1];
    int *const line = p.batch <= kPlanBatch ? starts : s.start; /* one thread reads all of it */
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (threadIdx.x == 0) {
        carry = 0;
    }
    __syncthreads();
    for (int from = 0; from < p.batch; from += kPlanThreads) {
        const int b = from + (int)threadIdx.x;
        const int own = b < p.batch ? TSR_MLA_FIXED_COST + (length_of(p, b) + kPage - 1) / kPage : 0;
        int before = own; /* the sum up to this lane, inclusive */
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
    }
    __syncthreads();
    if (warp == 0) {
        const bool holds = tsr_mla_deal(line, p.batch, s.parts, tsr_mla_try(lane, carry, s.parts), NULL, NULL);
        const int best = __ffs((int)__ballot_sync(0xFFFFFFFFu, holds)) - 1;
        if (lane == best) {
            (void)tsr_mla_deal(line, p.batch, s.parts, tsr_mla_try(lane, carry, s.parts), s.begin, s.span);
        }
    }
}

/* Time in which all multiprocessors write and read the FP32 result of one tile's part, in units of a page's time. */
constexpr float kPartCost = 0.034f;

/* The plan of sequences of `pages` pages each, by one warp. Longer parts take more time,
 * and more parts make the combination longer. Both together take least with parts of sqrt(n * kPartCost) pages, where n
 * counts the pages of all tiles. No part is shorter. */
__global__ void __launch_bounds__(32) plan_alike_kernel(int batch, int pages, const schedule s)
{
    const int lane = threadIdx.x, each = TSR_MLA_FIXED_COST + pages, line = batch * each;
    const int least = min(pages, __float2int_rn(sqrtf((float)batch * (float)pages * (float)s.tiles * kPartCost)));
    const int parts_line = s.parts * (TSR_MLA_FIXED_COST + least);
    const tsr_mla_payload tried = tsr_mla_try(lane, max(line, parts_line), s.parts);
    const bool holds = tsr_mla_deal_alike(each, batch, s.parts, tried, NULL, NULL);
    if (lane == __ffs((int)__ballot_sync(0xFFFFFFFFu, holds)) - 1) {
        (void)tsr_mla_deal_alike(each, batch, s.parts, tried, s.begin, s.span);
    }
}

/* One sequence's share of a part: pages [first, last). */
struct share {
    int b, length, first, last;
    bool whole;
};

/* Iterates over the shares of one part in order. */
struct walk {
    tsr_mla_pair next, end;

    __device__ walk(const schedule &s, int part) : next(s.begin[part]), end(s.begin[part + 1])
    {
    }

    __device__ bool ended() const
    {
        return next.x > end.x || (next.x == end.x && next.y >= end.y);
    }

    template <typename PROBLEM> __device__ bool take(const PROBLEM &p, share &w)
    {
        if (ended()) {
            return false;
        }
        w.b = next.x;
        w.length = length_of(p, w.b);
        const int pages = (w.length + kPage - 1) / kPage;
        w.first = next.y;
        w.last = w.b == end.x ? end.y : pages;
        w.whole = w.first == 0 && w.last == pages;
        next.x = w.b + 1, next.y = 0;
        return true;
    }
};

} // namespace
