/* Common declarations of the kernels of prefill: the problem, and the order of its tiles. For prefill.cu
 * only. */
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stdint.h>

#include "kernels/cuda/attention.cuh"

#pragma nv_diag_suppress 177 /* functions called only by the sm_90a kernels are unused in the pass for sm_80 */

namespace
{

using namespace attention;

constexpr int kNope = 128, kRope = 64, kValue = 128;                      /* sizes of the fast kernel; kRope or 0 */
constexpr int kGroupRows = 64, kRows = 2 * kGroupRows;                    /* queries of a group, and of a tile */
constexpr int kTokens = 128;                                              /* tokens of a block */
constexpr int kTileBytes = kTokens * 128, kQTileBytes = kGroupRows * 128; /* 64 columns */
constexpr int kNopeTiles = kNope / 64, kValueTiles = kValue / 64, kStages = 2;

struct problem {
    const __nv_bfloat16 *q, *kv, *k_rope;
    const int32_t *ends_q, *ends_k;
    __nv_bfloat16 *out;
    float *out_f32, *lse;
    int batch, heads, share, tokens_q, tokens_k; /* share: heads with the same keys and values */
    plain_shape shape;
};

struct range {
    int begin, length;
};

__device__ __forceinline__ range range_of(const int32_t *ends, int b, int tokens)
{
    const int begin = min(max(__ldg(ends + b), 0), tokens);
    return {begin, min(max(__ldg(ends + b + 1), begin), tokens) - begin};
}

/* A tile is kRows queries of one head. Sequences are taken longest first. Within a sequence, heads are taken in
 * sections whose keys and values stay in L2 together. Within a section, the queries that see most tokens come first,
 * one head after the other. */
struct order {
    int *taken, *ended; /* tiles taken and CTAs done in the current launch; both are 0 between launches */
    int2 *sequences;    /* [batch + 1]: .x is the number of blocks of kRows queries before this sequence, .y its
                         * index */
};

constexpr int kPlanThreads = 128;
constexpr int kSection = (32 << 20) / ((kNope + kValue) * 2); /* tokens times heads of a section */

__device__ __forceinline__ int query_blocks(int queries)
{
    return (queries + kRows - 1) / kRows;
}

/* One thread per sequence. */
__global__ void __launch_bounds__(kPlanThreads) plan_kernel(const problem p, const order s)
{
    const int b = (int)(blockIdx.x * kPlanThreads + threadIdx.x);
    if (b == 0) {
        *s.taken = 0;
        *s.ended = 0;
    }
    if (b >= p.batch) {
        return;
    }
    const int own = range_of(p.ends_k, b, p.tokens_k).length;
    int rank = 0, before = 0;
    for (int other = 0; other < p.batch; ++other) {
        const int length = range_of(p.ends_k, other, p.tokens_k).length;
        if (length > own || (length == own && other < b)) {
            rank += 1;
            before += query_blocks(range_of(p.ends_q, other, p.tokens_q).length);
        }
    }
    s.sequences[rank] = make_int2(before, b);
    if (rank == p.batch - 1) {
        s.sequences[p.batch] = make_int2(before + query_blocks(range_of(p.ends_q, b, p.tokens_q).length), 0);
    }
}

struct work {
    int first, rows; /* queries; rows past the last are computed and dropped */
    int head;        /* -1: no work is left */
    int visible;     /* tokens that the first query sees, possibly below 1; each further query sees one more */
    int blocks;      /* blocks of tokens that the last query sees */
    int first_token, length;
};

__device__ work find_work(const problem &p, const order &s, int tile)
{
    work w = {};
    const int block = tile / p.heads;
    if (block >= __ldg(&s.sequences[p.batch].x)) {
        w.head = -1;
        return w;
    }
    int low = 0, high = p.batch;
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (__ldg(&s.sequences[middle].x) <= block) {
            low = middle;
        } else {
            high = middle;
        }
    }
    const int2 sequence = __ldg(s.sequences + low);
    const range q = range_of(p.ends_q, sequence.y, p.tokens_q), k = range_of(p.ends_k, sequence.y, p.tokens_k);
    const int blocks = query_blocks(q.length), at = tile - sequence.x * p.heads;
    const int most = min(max(kSection / max(k.length, 1), 1), p.heads), sections = (p.heads + most - 1) / most;
    const int together =
        (p.heads + sections - 1) / sections; /* a small last section would keep few multiprocessors busy */
    const int first_head = at / (together * blocks) * together, heads = min(together, p.heads - first_head);
    const int place = at - first_head * blocks, from = (blocks - 1 - place / heads) * kRows;
    w.first = q.begin + from;
    w.rows = min(q.length - from, kRows);
    w.head = first_head + place % heads;
    w.visible = k.length - q.length + from + 1;
    w.blocks = max(w.visible + w.rows - 1 + kTokens - 1, 0) / kTokens;
    w.first_token = k.begin;
    w.length = k.length;
    return w;
}

} // namespace
