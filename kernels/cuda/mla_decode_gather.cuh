/* Gathers rows of the cache one by one for the Hopper kernel of MLA decoding: rows that queries list, or rows in FP8.
 * For mla_decode_fast.cuh only. */
#pragma once

#include "kernels/cuda/mla_decode_load.cuh"

namespace
{

constexpr int kTeam = 64; /* threads that gather one half of the latent columns of each page */
/* Returns the offset of 16 bytes in a tile of rows of 128 bytes with 128-byte swizzle. */
__host__ __device__ __forceinline__ int swizzled(int row, int chunk)
{
    return row * 128 + (chunk ^ row % 8) * 16;
}

/* Returns eight e4m3 codes times a power of two as BF16, which is exact. */
__host__ __device__ __forceinline__ uint4 widen_eight(uint32_t low, uint32_t high, __nv_bfloat162 scale)
{
    const __nv_bfloat162 v[4] = {
        __hmul2(widen_codes((uint16_t)low), scale), __hmul2(widen_codes((uint16_t)(low >> 16)), scale),
        __hmul2(widen_codes((uint16_t)high), scale), __hmul2(widen_codes((uint16_t)(high >> 16)), scale)};
    return *reinterpret_cast<const uint4 *>(v);
}

/* Rows of the cache of a page's tokens, negative if there is none. Each lane has tokens `lane` and `lane + 32`. */
struct page_rows {
    int row[2];
};

template <typename PROBLEM>
__device__ __forceinline__ page_rows rows_of(const PROBLEM &p, const share &w, int page, int lane)
{
    const int token = page * kPage + lane;
    return {row_of(p, w.b, w.length, token), row_of(p, w.b, w.length, token + 32)};
}

/* State of a gathering thread. Team 0 gathers the half of a page's columns that its owner sums, and the rope tile. Team
 * 1 gathers the other half. A CTA of a pair gathers one half of the rows, and sends them to the other CTA. */
template <int CLUSTER, typename PROBLEM> struct gathering {
    static constexpr int kOwn = kPage / CLUSTER;                             /* rows of a page that this CTA gathers */
    static constexpr int kHalfBytes = kLatent / 2 * (PROBLEM::kFp8 ? 1 : 2); /* half of a row's latent columns */
    static constexpr int kRowBytes = 2 * kHalfBytes + (PROBLEM::kFp8 ? kLatent / 128 * 4 : 0) + kRope * 2;
    const PROBLEM &p;
    uint32_t base; /* shared address of the CTA's memory */

    __device__ __forceinline__ gathering(const fast_memory &m, const PROBLEM &problem)
        : p(problem), base(hopper::shared_address(m.base))
    {
    }

    /* Returns the thread of the CTA, read again each time, since registers are few. */
    static __device__ __forceinline__ int thread_of_cta()
    {
        int thread;
        asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
        return thread;
    }

    static __device__ __forceinline__ int team()
    {
        return thread_of_cta() / kTeam % 2;
    }

    /* Returns the thread of the team. */
    static __device__ __forceinline__ int thread()
    {
        return thread_of_cta() % kTeam;
    }

    static __device__ __forceinline__ int rank()
    {
        return CLUSTER > 1 ? (int)hopper::cluster_rank() : 0;
    }

    /* Returns the row of the cache of the CTA's row `i`. Called by all lanes of a warp, with i / 32 the same in all. */
    __device__ __forceinline__ int row(const page_rows &rows, int i) const
    {
        const int half = CLUSTER > 1 ? rank() : i / 32;
        return __shfl_sync(0xFFFFFFFFu, half != 0 ? rows.row[1] : rows.row[0], i % 32);
    }

    /* Returns the number of the team's tile `t` in a page: four of a half, then the rope tile. */
    static __device__ __forceinline__ int tile_number(int half, int t)
    {
        return t < 4 ? 4 * half + t : kTiles - 1;
    }

    __device__ __forceinline__ uint32_t tile(int stage, int half, int t) const
    {
        return base + (uint32_t)(fast_shape::kPages + (stage * kTiles + tile_number(half, t)) * kTileBytes);
    }

    __device__ __forceinline__ uint32_t barrier(int number) const
    {
        return base + (uint32_t)(fast_shape::kBarriers + number * 8);
    }

    __device__ __forceinline__ const uint8_t *at_row(int row) const
    {
        return reinterpret_cast<const uint8_t *>(p.cache) + (int64_t)row * kRowBytes;
    }

    /* Waits until a stage's half is no longer used, in either CTA. The owner uses both halves. */
    __device__ __forceinline__ void wait_empty(int stage, int half, int x) const
    {
        hopper::barrier_wait(barrier(fast_shape::kEmpty + 2 * stage + stage), (x >> 1 & 1) ^ 1);
        if (half != stage) {
            hopper::barrier_wait(barrier(fast_shape::kEmpty + 2 * stage + half), (x >> 1 & 1) ^ 1);
        }
    }

    /* Writes which rows of the page are listed. Called by all lanes of a warp. */
    __device__ __forceinline__ void write_listed(const page_rows &rows, int stage) const
    {
        const uint32_t low = __ballot_sync(0xFFFFFFFFu, rows.row[0] >= 0),
                       high = __ballot_sync(0xFFFFFFFFu, rows.row[1] >= 0);
        if (PROBLEM::kListed && team() == 0 && thread() == 0) {
            hopper::store_shared(base + (uint32_t)(fast_shape::kListed + stage * 8), low, high);
        }
    }

    /* Announces the team's tiles, and sends this CTA's rows of them to the other CTA. */
    __device__ __forceinline__ void publish(int stage, int half) const
    {
        hopper::fence_shared_for_copies();
        hopper::meet(kMeetTeam + team(), kTeam);
        if (thread() == 0) {
            for (int t = 0; t < 5 - team(); ++t) {
                const uint32_t from = tile(stage, half, t) + (uint32_t)(rank() * kOwn * 128);
                const uint32_t bar = barrier(fast_shape::kFull + stage * kTiles + tile_number(half, t));
                if (CLUSTER > 1) {
                    hopper::barrier_expect(bar, kTileBytes - kOwn * 128);
                    hopper::send_bytes(from, bar, (uint32_t)rank() ^ 1, kOwn * 128);
                } else {
                    hopper::barrier_arrive(bar);
                }
            }
        }
    }

    /* Brings the team's columns of this CTA's rows of a page to L2. */
    __device__ __forceinline__ void prefetch(const page_rows &rows, int half) const
    {
#pragma unroll 1
        for (int from = 0; from < kOwn; from += kTeam / 4) {
            const int part = thread() % 4, at = row(rows, from + thread() / 4);
            if (at >= 0) {
                const uint8_t *const cached = at_row(at);
                hopper::prefetch_line(cached + kHalfBytes * half + part * (kHalfBytes / 4));
                hopper::prefetch_line(cached + kHalfBytes * 2 + part * ((kRowBytes - kHalfBytes * 2) / 4));
                if (!PROBLEM::kFp8) {
                    hopper::prefetch_line(cached + kHalfBytes * half + part * (kHalfBytes / 4) + 64);
                }
            }
        }
    }

    /* Copies this CTA's rows of a BF16 page. Eight threads copy 128 bytes of a row. */
    __device__ __forceinline__ void copy_rows(const page_rows &rows, int stage, int half) const
    {
        const int chunk = thread() % 8;
#pragma unroll 1
        for (int from = 0; from < kOwn; from += kTeam / 8) {
            const int i = from + thread() / 8, at = row(rows, i);
            const uint32_t to = (uint32_t)swizzled(rank() * kOwn + i, chunk);
            const uint8_t *const cached = at_row(max(at, 0)) + chunk * 16;
#pragma unroll
            for (int t = 0; t < 5; ++t) {
                if (t < 4 || team() == 0) {
                    hopper::copy_or_clear(tile(stage, half, t) + to, cached + tile_number(half, t) * 128, at >= 0);
                }
            }
        }
    }

    /* Converts this CTA's rows of an FP8 page. Four threads convert a row, each 16 columns of a tile. */
    __device__ __forceinline__ void widen_rows(const page_rows &rows, int stage, int half) const
    {
        const int part = thread() % 4;
#pragma unroll 1
        for (int from = 0; from < kOwn; from += kTeam / 4) {
            const int i = from + thread() / 4, at = row(rows, i);
            const uint32_t low = (uint32_t)swizzled(rank() * kOwn + i, 2 * part), high = low ^ 16;
            const uint8_t *const cached = at_row(max(at, 0));
            uint4 codes[4];
#pragma unroll
            for (int t = 0; t < 4; ++t) {
                const void *const from_tile = cached + kHalfBytes * half + t * 64 + part * 16;
                codes[t] = at >= 0 ? __ldg(static_cast<const uint4 *>(from_tile)) : make_uint4(0, 0, 0, 0);
            }
            const float2 scales =
                at >= 0 ? __ldg(reinterpret_cast<const float2 *>(cached + kLatent) + half) : make_float2(0, 0);
            if (team() == 0) {
                const uint8_t *const rope = cached + kRowBytes - kRope * 2 + part * 32;
                hopper::copy_or_clear(tile(stage, half, 4) + low, rope, at >= 0);
                hopper::copy_or_clear(tile(stage, half, 4) + high, rope + 16, at >= 0);
            }
#pragma unroll
            for (int t = 0; t < 4; ++t) {
                const __nv_bfloat162 scale = __float2bfloat162_rn(t < 2 ? scales.x : scales.y);
                hopper::store_shared(tile(stage, half, t) + low, widen_eight(codes[t].x, codes[t].y, scale));
                hopper::store_shared(tile(stage, half, t) + high, widen_eight(codes[t].z, codes[t].w, scale));
            }
        }
    }
};

/* Role of the loading threads if rows are gathered: for each share of the part, the tile of q, then the pages. */
template <int CLUSTER, typename PROBLEM>
__device__ __forceinline__ void gather_shares(const fast_memory &m, const PROBLEM &p, const schedule &s, int part,
                                              int tile_of_q, const CUtensorMap *map_q)
{
    const gathering<CLUSTER, PROBLEM> g(m, p);
    const int lane = threadIdx.x % 32;
    walk shares(s, part);
    share w;
    int x = 0; /* pages so far */
    for (int item = 0; shares.take(p, w); ++item) {
        page_rows rows = rows_of(p, w, w.first, lane);
        if (threadIdx.x == 256) {
            load_q(m, map_q, item, tile_of_q, w.b);
        }
        for (int at = w.first; at < w.last; ++at, ++x) {
            const int stage = x & 1, half = g.team() ^ stage;
            const page_rows next = rows_of(p, w, at + 1, lane);
            g.wait_empty(stage, half, x);
            g.write_listed(rows, stage);
            if constexpr (PROBLEM::kFp8) {
                g.widen_rows(rows, stage, half);
            } else {
                g.copy_rows(rows, stage, half);
            }
            if (at + 1 < w.last) {
                g.prefetch(next, half ^ 1); /* the next page is in the other stage */
            }
            hopper::wait_for_copies();
            g.publish(stage, half);
            rows = next;
        }
        shares.end = s.begin[part + 1]; /* read again, since registers are few */
    }
}

} // namespace
