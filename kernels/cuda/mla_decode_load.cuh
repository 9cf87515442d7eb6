/* Shared memory of the Hopper kernel of MLA decoding, and its loading thread. For mla_decode_fast.cuh only. */
#pragma once

#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/mla_decode_schedule.cuh"

namespace
{

/* Shared memory holds two pages: page x of the CTA's running count is in stage x % 2. Group x % 2 owns page x: it
 * computes the scores and probabilities of that page, and passes the probabilities to the other group. Each group sums
 * its own half of the columns. */
struct fast_shape {
    static constexpr int kStages = 2, kGroups = 2;
    static_assert(hopper::ring_is_safe(kStages, kGroups), "a group waits only for the pages of its own stage");
    static constexpr int kQ = 0, kPages = kQ + kTiles * kTileBytes;
    static constexpr int kProbabilities = kPages + 2 * kTiles * kTileBytes; /* uint4 [4][128], from thread to thread */
    static constexpr int kMost = kProbabilities + 128 * 64;                 /* float [kRows] */
    static constexpr int kTotals = kMost + kRows * 4;                       /* float [2][2][kRows] */
    static constexpr int kBarriers = kTotals + 4 * kRows * 4;
    static constexpr int kFull = 0, kEmpty = 2 * kTiles, kQFull = kEmpty + 4, kQEmpty = kQFull + 1,
                         kCount = kQEmpty + 1;
    static constexpr int kListed = kBarriers + kCount * 8;    /* uint2 [kStages]: bit t: row t of the page is listed */
    static constexpr int kRowNumbers = kListed + kStages * 8; /* int [kStages][kPage]: rows of the cache */
    static constexpr int kBytes = 1024 + kRowNumbers + kStages * kPage * 4;
    static_assert(kBytes <= 227 * 1024, "shared memory of one CTA");
};

enum { kMeetProbabilities = 1, kMeetGroup = 5, kMeetBoth = 7, kMeetGather = 8 }; /* [owner][half], [group] */

constexpr int kRopePlace = 4;

/* Returns the order of the tiles of a stage for copies and for scores: the tiles that its owner frees first come
 * first. */
__device__ __forceinline__ int tile_at(int owner, int place)
{
    return place < kRopePlace ? 4 * owner + place : place == kRopePlace ? kTiles - 1 : 4 * (1 - owner) + place - 5;
}

/* The shared memory of a CTA, in the layout of fast_shape. */
struct fast_memory {
    uint8_t *base, *q, *pages;
    uint64_t *full;  /* [stage][tile] */
    uint64_t *empty; /* [stage][half]: the owner's half includes the rope tile */
    uint64_t *q_full, *q_empty;
    uint2 *listed; /* [stage]: a bit for each row of the page */

    __device__ __forceinline__ explicit fast_memory(uint8_t *raw)
        : base(raw + (1024 - hopper::shared_address(raw) % 1024) % 1024), q(base + fast_shape::kQ),
          pages(base + fast_shape::kPages), listed(reinterpret_cast<uint2 *>(base + fast_shape::kListed))
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

/* Loads the tile of q of sequence b, the CTA's share number `item`, as soon as the previous one is no longer used. */
__device__ __forceinline__ void load_q(const fast_memory &m, const CUtensorMap *map_q, int item, int tile_of_q, int b)
{
    hopper::barrier_wait(m.q_empty, (item & 1) ^ 1);
    hopper::barrier_expect(m.q_full, kTiles * kTileBytes);
    for (int tile = 0; tile < kTiles; ++tile) {
        hopper::load_tile(m.q + tile * kTileBytes, map_q, m.q_full, tile * 64, tile_of_q * kRows, b);
    }
}

/* Role of the loading thread: for each share of the part, the tile of q and the pages. The previous queries are used
 * until their last page, so the first page is requested before the next queries. The first queries wait for nothing. */
template <int CLUSTER>
__device__ __forceinline__ void load_shares(const fast_memory &m, const problem &p, walk &shares, int tile_of_q,
                                            const CUtensorMap *map_q, const CUtensorMap *map_cache)
{
    const int rank = CLUSTER > 1 ? (int)hopper::cluster_rank() : 0;
    /* With one tile of q each page is read once, so other data in L2, such as the parts' results, should stay there. */
    const uint64_t policy = hopper::cache_policy(gridDim.x == 1);
    share w;
    int x = 0; /* pages so far */
    if (!shares.ended()) {
        load_q(m, map_q, 0, tile_of_q, shares.next.x); /* without waiting for the sequence's length */
    }
    for (int item = 0; !shares.ended(); ++item) {
        const int32_t *const table = p.block_table + (int64_t)shares.next.x * p.max_pages;
        int page = shares.next.y < p.max_pages ? __ldg(table + shares.next.y) : 0;
        shares.take(p, w);
        if (item > 0 && w.first >= w.last) {
            load_q(m, map_q, item, tile_of_q, w.b);
        }
        for (int at = w.first; at < w.last; ++at, ++x) {
            const int stage = x & 1, row = page * kPage;
            page = at + 1 < w.last ? __ldg(table + at + 1) : 0;
            /* With several tiles of q, arithmetic is the limit, and a shorter wait for the next page pays. With one
             * tile, memory is the limit, and prefetching only burdens it. */
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
                    hopper::load_tile_kept(to + tile * kTileBytes, map_cache, bar, tile * 64, row, policy);
                }
            }
            if (item > 0 && at == w.first) {
                load_q(m, map_q, item, tile_of_q, w.b);
            }
        }
    }
}

} // namespace
