/* Gathers rows of the cache one by one for the Hopper kernel of MLA decoding: rows that queries list, or rows in FP8.
 * For mla_decode_fast.cuh only. */
#pragma once

#include "kernels/cuda/mla_decode_load.cuh"

namespace
{

constexpr int kGatherers = 128; /* threads */

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

/* Return what is at `from` in global memory that no thread writes, or zeros if it does not exist. The load writes over
 * zeros, so nothing waits for it before its result is used. A choice after the load would wait. */
__device__ __forceinline__ uint4 load_or_zero4(const void *from, bool exists)
{
    uint4 v = make_uint4(0, 0, 0, 0);
    asm volatile("{\n.reg .pred p;\nsetp.ne.s32 p, %5, 0;\n@p ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
                 : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
                 : "l"(from), "r"((int)exists));
    return v;
}

__device__ __forceinline__ float2 load_or_zero2(const void *from, bool exists)
{
    float2 v = make_float2(0, 0);
    asm volatile("{\n.reg .pred p;\nsetp.ne.s32 p, %3, 0;\n@p ld.global.nc.v2.f32 {%0, %1}, [%2];\n}"
                 : "+f"(v.x), "+f"(v.y)
                 : "l"(from), "r"((int)exists));
    return v;
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

/* State of a gathering thread. All of them gather the half of a page's latent columns that its owner sums, then the
 * other half and the rope columns. A CTA of a pair gathers one half of the rows, and sends them to the other CTA. */
template <int CLUSTER, typename PROBLEM> struct gathering {
    static constexpr int kOwn = kPage / CLUSTER;                             /* rows of a page that this CTA gathers */
    static constexpr int kHalfBytes = kLatent / 2 * (PROBLEM::kFp8 ? 1 : 2); /* half of a row's latent columns */
    static constexpr int kRopeAt = 2 * kHalfBytes + (PROBLEM::kFp8 ? kLatent / 128 * 4 : 0);
    static constexpr int kRowBytes = kRopeAt + kRope * 2;
    static constexpr int kShared = PROBLEM::kFp8 ? 4 : 8; /* threads that share a row */
    static constexpr int kChunk = kGatherers / kShared;   /* rows at a time */
    static constexpr int kChunks = kOwn / kChunk;
    static_assert(kChunk % 8 == 0, "rows of a thread have one swizzle");
    const uint8_t *cache;
    uint32_t base,
        places; /* shared addresses: the CTA's memory, and this thread's 16 bytes of its first row in tile 0 */
    int thread, rank;

    __device__ __forceinline__ gathering(const fast_memory &m, const PROBLEM &p)
        : cache(reinterpret_cast<const uint8_t *>(p.cache)), base(hopper::shared_address(m.base)),
          thread(threadIdx.x % kGatherers), rank(CLUSTER > 1 ? (int)hopper::cluster_rank() : 0)
    {
        const int chunk = thread % kShared * (8 / kShared);
        places = base + (uint32_t)(fast_shape::kPages + swizzled(rank * kOwn + thread / kShared, chunk));
    }

    /* Returns this thread's row of a chunk. Called by all lanes of a warp. */
    __device__ __forceinline__ int row(const page_rows &rows, int chunk) const
    {
        const int from = chunk * kChunk;
        const bool high = CLUSTER > 1 ? rank != 0 : from >= 32;
        return __shfl_sync(0xFFFFFFFFu, high ? rows.row[1] : rows.row[0], from % 32 + thread / kShared);
    }

    __device__ __forceinline__ const uint8_t *at_row(int row) const
    {
        return cache + (int64_t)max(row, 0) * kRowBytes;
    }

    static __device__ __forceinline__ uint32_t tile(int stage, int number)
    {
        return (uint32_t)((stage * kTiles + number) * kTileBytes);
    }

    /* Returns the barrier for which a half waits until it is no longer used, in either CTA. */
    __device__ __forceinline__ uint32_t empty(int stage, int half) const
    {
        return base + (uint32_t)(fast_shape::kBarriers + (fast_shape::kEmpty + 2 * stage + half) * 8);
    }

    /* Returns the barrier for which the computing threads wait until a half is loaded. */
    __device__ __forceinline__ uint32_t full(int stage, int half) const
    {
        return base + (uint32_t)(fast_shape::kBarriers + (fast_shape::kFull + stage * kTiles + 4 * half) * 8);
    }

    /* Writes which rows of the page are listed. Called by all lanes of a warp. */
    __device__ __forceinline__ void write_listed(const page_rows &rows, int stage) const
    {
        const uint32_t low = __ballot_sync(0xFFFFFFFFu, rows.row[0] >= 0),
                       high = __ballot_sync(0xFFFFFFFFu, rows.row[1] >= 0);
        if (PROBLEM::kListed && thread == 0) {
            hopper::store_shared(base + (uint32_t)(fast_shape::kListed + stage * 8), low, high);
        }
    }

    /* The same for page x, whose numbers are in shared memory. */
    __device__ __forceinline__ void write_listed(int x) const
    {
        if (PROBLEM::kListed && thread < 32) {
            write_listed(
                {hopper::load_shared_int(number_at(x, thread)), hopper::load_shared_int(number_at(x, thread + 32))},
                x & 1);
        }
    }

    /* Returns where the number of row i of page x is. */
    __device__ __forceinline__ uint32_t number_at(int x, int i) const
    {
        return base + (uint32_t)(fast_shape::kRowNumbers + (x & 1) * kPage * 4 + i * 4);
    }

    /* Returns the number of this thread's row of a chunk of page x. */
    __device__ __forceinline__ int number(int x, int chunk) const
    {
        return hopper::load_shared_int(number_at(x, rank * kOwn + chunk * kChunk + thread / kShared));
    }

    /* Announces a half, and sends this CTA's rows of it to the other CTA. */
    __device__ __forceinline__ void publish(int stage, int half) const
    {
        hopper::fence_shared_for_copies();
        hopper::meet(kMeetGather, kGatherers);
        const int tiles = half == stage ? 4 : 5;
        if (CLUSTER == 1) {
            if (thread == 0) {
                hopper::barrier_arrive(full(stage, half));
            }
        } else if (thread < tiles) {
            if (thread == 0) {
                hopper::barrier_expect(full(stage, half), (uint32_t)(tiles * (kPage - kOwn) * 128));
            }
            hopper::send_bytes(base + fast_shape::kPages + tile(stage, thread == 4 ? kTiles - 1 : 4 * half + thread) +
                                   (uint32_t)(rank * kOwn * 128),
                               full(stage, half), (uint32_t)rank ^ 1, kOwn * 128);
        }
    }

    /* Begins to copy 64 * COUNT columns of BF16 of the rows `at` to tiles from `first` on. They begin at a row's byte
     * `from_byte`. */
    template <int COUNT>
    __device__ __forceinline__ void copy_columns(const int (&at)[kChunks], int stage, int first, int from_byte) const
    {
        const uint32_t to = places + tile(stage, first);
#pragma unroll
        for (int chunk = 0; chunk < kChunks; ++chunk) {
            const uint8_t *const from = at_row(at[chunk]) + from_byte + thread % kShared * (128 / kShared);
#pragma unroll
            for (int t = 0; t < COUNT; ++t) {
#pragma unroll
                for (int i = 0; i < 8 / kShared; ++i) {
                    hopper::copy_or_clear((to ^ (uint32_t)(16 * i)) + (uint32_t)(t * kTileBytes + chunk * kChunk * 128),
                                          from + t * 128 + i * 16, at[chunk] >= 0);
                }
            }
        }
    }

    /* Begins to copy the rope columns of page x. */
    __device__ __forceinline__ void copy_rope(int x) const
    {
        int at[kChunks];
#pragma unroll
        for (int chunk = 0; chunk < kChunks; ++chunk) {
            at[chunk] = number(x, chunk);
        }
        copy_columns<1>(at, x & 1, kTiles - 1, kRopeAt);
    }

    /* Reads this thread's codes of a half of a row, 16 of each tile, and their scales: zeros if there is no row. */
    __device__ __forceinline__ void read_row(uint4 (&codes)[4], float2 &scales, int row, int half) const
    {
        const uint8_t *const from = at_row(row);
        scales = load_or_zero2(from + kLatent + half * 8, row >= 0);
#pragma unroll
        for (int t = 0; t < 4; ++t) {
            codes[t] = load_or_zero4(from + half * kHalfBytes + thread % 4 * 16 + t * 64, row >= 0);
        }
    }

    /* Converts this thread's codes of a half of a row to BF16. Before, reads those of the next half or row: all loads
     * are under way during the conversion. */
    __device__ __forceinline__ void widen_row(uint4 (&codes)[4], float2 &scales, int next_row, int next_half, int stage,
                                              int half, int chunk) const
    {
        const uint32_t low = places + tile(stage, 4 * half) + (uint32_t)(chunk * kChunk * 128), high = low ^ 16;
        const __nv_bfloat162 scale[2] = {__float2bfloat162_rn(scales.x), __float2bfloat162_rn(scales.y)};
        const uint4 now[4] = {codes[0], codes[1], codes[2], codes[3]};
        read_row(codes, scales, next_row, next_half);
        __syncwarp(); /* keeps the compiler from moving loads behind the conversions */
#pragma unroll
        for (int t = 0; t < 4; ++t) {
            hopper::store_shared(low + (uint32_t)(t * kTileBytes), widen_eight(now[t].x, now[t].y, scale[t / 2]));
            hopper::store_shared(high + (uint32_t)(t * kTileBytes), widen_eight(now[t].z, now[t].w, scale[t / 2]));
        }
    }

    /* Brings row `thread` of a page, whose number is `row`, to L2. */
    __device__ __forceinline__ void prefetch(int row) const
    {
        if (row >= 0 && (CLUSTER == 1 || thread / kOwn == rank)) {
            const uint8_t *const from = at_row(row);
#pragma unroll
            for (int byte = 0; byte < kRowBytes; byte += 128) {
                hopper::prefetch_line(from + byte);
            }
        }
    }
};

/* Gathers the pages of a share in BF16. A half is announced after the next one was requested, if that one is free. */
template <int CLUSTER, typename PROBLEM, typename AFTER>
__device__ __forceinline__ void copy_share(const gathering<CLUSTER, PROBLEM> &g, const PROBLEM &p, const share &w,
                                           int &x, const AFTER &after_first)
{
    const int lane = g.thread % 32;
    page_rows rows = rows_of(p, w, w.first, lane);
    bool pending = false;
    for (int at = w.first; at < w.last; ++at, ++x) {
        const page_rows next = rows_of(p, w, at + 1, lane);
        const int stage = x & 1, phase = (x >> 1 & 1) ^ 1;
        const auto publish_before = [&](int part) { g.publish(part == 0 ? stage ^ 1 : stage, stage); };
        int own[g.kChunks];
#pragma unroll
        for (int chunk = 0; chunk < g.kChunks; ++chunk) {
            own[chunk] = g.row(rows, chunk);
        }
#pragma unroll
        for (int part = 0; part < 2; ++part) {
            const int half = stage ^ part;
            if (pending && !__all_sync(0xFFFFFFFFu, hopper::barrier_test(g.empty(stage, half), phase))) {
                hopper::wait_for_copies();
                publish_before(part);
                pending = false;
            }
            hopper::barrier_wait(g.empty(stage, half), phase);
            g.template copy_columns<4>(own, stage, 4 * half, half * g.kHalfBytes);
            if (part == 0) {
                g.write_listed(rows, stage);
            } else {
                g.template copy_columns<1>(own, stage, kTiles - 1, g.kRopeAt);
            }
            hopper::commit_copies();
            if (pending) {
                hopper::wait_for_copies_but<1>();
                publish_before(part);
            }
            pending = true;
        }
        rows = next;
        if (at == w.first || at + 1 == w.last) {
            hopper::wait_for_copies();
            g.publish(stage, stage ^ 1);
            pending = false;
        }
        if (at == w.first) {
            after_first();
        }
    }
}

/* Gathers the pages of a share in FP8. Codes are read a step before they are converted, and brought to L2 before that.
 * Numbers of rows are in shared memory, to save registers. */
template <int CLUSTER, typename PROBLEM, typename AFTER>
__device__ __forceinline__ void widen_share(const gathering<CLUSTER, PROBLEM> &g, const PROBLEM &p, const share &w,
                                            int &x, const AFTER &after_first)
{
    const auto row_at = [&](int page) {
        return g.thread < kPage && page < w.last ? row_of(p, w.b, w.length, page * kPage + g.thread) : -1;
    };
    const auto write_row = [&](int at, int row) {
        if (g.thread < kPage) {
            hopper::store_shared(g.number_at(at, g.thread), row);
        }
    };
    const int first = row_at(w.first);
    write_row(x, first);
    g.prefetch(first);
    int next = row_at(w.first + 1);
    hopper::meet(kMeetGather, kGatherers);
    uint4 codes[4];
    float2 scales;
    g.read_row(codes, scales, g.number(x, 0), x & 1);
#pragma unroll 1
    for (int at = w.first; at < w.last; ++at, ++x) {
        const int stage = x & 1, phase = (x >> 1 & 1) ^ 1, after = row_at(at + 2);
        hopper::barrier_wait(g.empty(stage, stage), phase);
        g.copy_rope(x);
        g.write_listed(x);
#pragma unroll
        for (int part = 0; part < 2; ++part) {
            const int half = stage ^ part;
            if (part == 1) {
                hopper::barrier_wait(g.empty(stage, half), phase);
                hopper::wait_for_copies(); /* now, since later it would also wait for the next codes */
            }
#pragma unroll
            for (int chunk = 0; chunk < g.kChunks; ++chunk) {
                const bool last = chunk + 1 == g.kChunks;
                const int then = last ? g.number(x + part, 0) : g.number(x, chunk + 1);
                /* The next page's owner has this one's other half. */
                g.widen_row(codes, scales, then, last ? stage ^ 1 : half, stage, half, chunk);
            }
            if (part == 0) {
                write_row(x + 1, next);
                g.prefetch(next);
                next = after;
            }
            g.publish(stage, half);
        }
        if (at == w.first) {
            after_first();
        }
    }
}

/* Role of the loading threads if rows are gathered: for each share of the part, the tile of q, then the pages. */
template <int CLUSTER, typename PROBLEM>
__device__ __forceinline__ void gather_shares(const fast_memory &m, const PROBLEM &p, walk &shares, int tile_of_q,
                                              const CUtensorMap *map_q)
{
    const gathering<CLUSTER, PROBLEM> g(m, p);
    share w;
    int x = 0; /* pages so far */
    for (int item = 0; shares.take(p, w); ++item) {
        const auto load_queries = [&](bool now) {
            if (now && g.thread == 0) {
                load_q(m, map_q, item, tile_of_q, w.b);
            }
            __syncwarp();
        };
        /* The previous queries are used until their last page, so the first page is gathered before the next
         * queries. */
        load_queries(item == 0 || w.first >= w.last);
        const auto after_first = [&] { load_queries(item > 0); };
        if constexpr (PROBLEM::kFp8) {
            widen_share(g, p, w, x, after_first);
        } else {
            copy_share(g, p, w, x, after_first);
        }
    }
}

} // namespace
