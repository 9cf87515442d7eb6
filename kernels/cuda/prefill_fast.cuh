/* Hopper kernel of prefill: one thread loads, and two groups of warps alternate at the tensor cores. For
 * prefill.cu only. */
#pragma once

#include "kernels/cuda/prefill_order.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace
{

/* KEY_TILES: columns of keys, in tiles of 64; those after kNope are the rotary part.
 *
 * One thread of group 2 loads. Groups 0 and 1 compute, each 64 queries of every tile, from the last block that the
 * queries see down to the first. They alternate at the tensor cores: the products of one group are in progress while
 * the other computes exponentials. Block x of the CTA's running count is in stage x % kStages; its keys and its values
 * have separate barriers. */
template <int KEY_TILES> struct fast_shape {
    static_assert(hopper::ring_is_safe(kStages, 1), "both groups wait for every block");
    static constexpr int kQ = 0, kKeys = kQ + 2 * KEY_TILES * kQTileBytes; /* q of each group */
    static constexpr int kValues = kKeys + kStages * KEY_TILES * kTileBytes;
    static constexpr int kWork = kValues + kStages * kValueTiles * kTileBytes;
    static constexpr int kBarriers = kWork + (int)(2 * sizeof(work) + 7) / 8 * 8;
    static constexpr int kQFull = 0, kQEmpty = 2, kKeyFull = 4, kKeyEmpty = kKeyFull + kStages,
                         kValueFull = kKeyEmpty + kStages, kValueEmpty = kValueFull + kStages,
                         kCount = kValueEmpty + kStages;
    static constexpr int kBytes = 1024 + kBarriers + kCount * 8;
    static_assert(kBytes <= 227 * 1024, "shared memory of one CTA");
};

enum { kMeetTurn = 1, kMeetBoth = 3 }; /* [group] */

/* State of a consumer thread for its two rows (`lane / 4` and 8 below) between blocks. */
struct rows_state {
    float most[2];  /* subtracted from scores; raised to their maximum only when exponentials would exceed 2^8 */
    float total[2]; /* this thread's part of the sum */
};

/* Converts scores to exponentials. `shrink` is the factor by which earlier sums must be multiplied. */
__device__ __forceinline__ void exponentials(float (&score)[64], rows_state &r, float (&shrink)[2], float scale2)
{
    const float slack = 8.0f / scale2;
    float shift[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const float most = row_max(score, h);
        const float now = most > r.most[h] + slack ? most : r.most[h];
        shrink[h] = now == r.most[h] ? 1.0f : exp2_fast((r.most[h] - now) * scale2);
        shift[h] = now == -INFINITY ? 0.0f : now * scale2;
        r.most[h] = now;
        r.total[h] *= shrink[h];
    }
#pragma unroll
    for (int i = 0; i < 64; i += 2) {
        const int h = i / 2 % 2;
        score[i] = exp2_fast(fmaf(score[i], scale2, -shift[h]));
        score[i + 1] = exp2_fast(fmaf(score[i + 1], scale2, -shift[h]));
        r.total[h] += score[i] + score[i + 1];
    }
}

/* The shared memory of a CTA, in the layout of fast_shape. */
template <int KEY_TILES> struct fast_memory {
    using layout = fast_shape<KEY_TILES>;
    uint8_t *q, *keys, *values;
    work *next; /* [group]: the next tile of the group */
    uint64_t *q_full, *q_empty, *key_full, *key_empty, *value_full, *value_empty;

    __device__ __forceinline__ explicit fast_memory(uint8_t *raw)
    {
        uint8_t *const base = raw + (1024 - hopper::shared_address(raw) % 1024) % 1024;
        q = base + layout::kQ, keys = base + layout::kKeys, values = base + layout::kValues;
        next = reinterpret_cast<work *>(base + layout::kWork);
        uint64_t *const barriers = reinterpret_cast<uint64_t *>(base + layout::kBarriers);
        q_full = barriers + layout::kQFull, q_empty = barriers + layout::kQEmpty;
        key_full = barriers + layout::kKeyFull, key_empty = barriers + layout::kKeyEmpty;
        value_full = barriers + layout::kValueFull, value_empty = barriers + layout::kValueEmpty;
    }

    __device__ __forceinline__ void init_barriers() const
    {
        for (int g = 0; g < 2; ++g) {
            hopper::barrier_init(q_full + g, 1);
            hopper::barrier_init(q_empty + g, 4);
        }
        for (int i = 0; i < kStages; ++i) {
            hopper::barrier_init(key_full + i, 1);
            hopper::barrier_init(key_empty + i, 8);
            hopper::barrier_init(value_full + i, 1);
            hopper::barrier_init(value_empty + i, 8);
        }
        hopper::fence_barrier_init();
    }
};

/* The steps of the loading thread. `at` is the block's position in the CTA's running count. */
template <int KEY_TILES> struct loading {
    const fast_memory<KEY_TILES> &m;
    const CUtensorMap *map_q, *map_kv, *map_rope;
    int share; /* heads with the same keys and values */

    /* Loads the queries of group `to` in its `item`th tile or, if no work is left, only reports that to the group. */
    __device__ __forceinline__ void load_q(const work &w, int item, int to) const
    {
        hopper::barrier_wait(m.q_empty + to, (item & 1) ^ 1);
        m.next[to] = w;
        if (w.head < 0) {
            hopper::barrier_arrive(m.q_full + to);
            return;
        }
        hopper::barrier_expect(m.q_full + to, KEY_TILES * kQTileBytes);
        for (int i = 0; i < KEY_TILES; ++i) {
            hopper::load_tile(m.q + (to * KEY_TILES + i) * kQTileBytes, map_q, m.q_full + to, i * 64, w.head,
                              w.first + to * kGroupRows);
        }
    }

    __device__ __forceinline__ void load_keys(const work &w, int block, int at) const
    {
        const int stage = at % kStages, token = w.first_token + block * kTokens;
        uint8_t *const to = m.keys + stage * KEY_TILES * kTileBytes;
        hopper::barrier_wait(m.key_empty + stage, (at / kStages & 1) ^ 1);
        hopper::barrier_expect(m.key_full + stage, KEY_TILES * kTileBytes);
        for (int i = 0; i < kNopeTiles; ++i) {
            hopper::load_tile(to + i * kTileBytes, map_kv, m.key_full + stage, i * 64, w.head / share, token);
        }
        for (int i = kNopeTiles; i < KEY_TILES; ++i) {
            hopper::load_tile(to + i * kTileBytes, map_rope, m.key_full + stage, (i - kNopeTiles) * 64, 0, token);
        }
    }

    __device__ __forceinline__ void load_values(const work &w, int block, int at) const
    {
        const int stage = at % kStages;
        hopper::barrier_wait(m.value_empty + stage, (at / kStages & 1) ^ 1);
        hopper::barrier_expect(m.value_full + stage, kValueTiles * kTileBytes);
        for (int tile = 0; tile < kValueTiles; ++tile) {
            hopper::load_tile(m.values + (stage * kValueTiles + tile) * kTileBytes, map_kv, m.value_full + stage,
                              kNope + tile * 64, w.head / share, w.first_token + block * kTokens);
        }
    }
};

/* Role of the loading thread: tile by tile, until none is left. Group 0 enters a tile while group 1 is still in the
 * previous one, so the data of group 0 is loaded first. */
template <int KEY_TILES>
__device__ __forceinline__ void load_all(const loading<KEY_TILES> &l, const problem &p, const order &s)
{
    int x = 0; /* blocks so far */
    work w = find_work(p, s, (int)blockIdx.x);
    for (int item = 0;; ++item) {
        l.load_q(w, item, 0);
        if (w.blocks > 0) {
            l.load_keys(w, w.blocks - 1, x);
        }
        l.load_q(w, item, 1);
        if (w.head < 0) {
            break;
        }
        const work next = find_work(p, s, (int)gridDim.x + atomicAdd(s.taken, 1));
        for (int block = w.blocks - 1; block >= 0; --block, ++x) {
            if (block > 0) {
                l.load_keys(w, block - 1, x + 1);
            }
            l.load_values(w, block, x);
        }
        w = next;
    }
    if (atomicAdd(s.ended, 1) == (int)gridDim.x - 1) { /* no further tile will be taken */
        *s.taken = 0;
        *s.ended = 0;
    }
}

/* State of a thread of the two computing groups. It is at block x of the CTA's running count, whose first token is
 * `token`. */
template <int KEY_TILES> struct computing {
    const fast_memory<KEY_TILES> &m;
    int group, lane, row;
    uint64_t q_operand;
    float scale2;
    int x = 0; /* blocks so far */
    int token = 0;
    float score[64], shrink[2];
    uint32_t probability[32];

    __device__ __forceinline__ computing(const fast_memory<KEY_TILES> &memory, int group, int lane, float scale)
        : m(memory), group(group), lane(lane), row(threadIdx.x / 32 * 16 + lane / 4),
          q_operand(hopper::operand(m.q + group * KEY_TILES * kQTileBytes)), scale2(scale * kLog2E)
    {
    }

    __device__ __forceinline__ void release(uint64_t *bar)
    {
        if (lane == 0) {
            hopper::barrier_arrive(bar);
        }
    }

    __device__ __forceinline__ void release_keys()
    {
        release(m.key_empty + x % kStages);
        if (token == 0) {
            release(m.q_empty + group);
        }
    }

    __device__ __forceinline__ void score_keys()
    {
        const int stage = x % kStages;
        const uint64_t k = hopper::operand(m.keys + stage * KEY_TILES * kTileBytes);
        hopper::barrier_wait(m.key_full + stage, x / kStages & 1);
        hopper::mma_fence();
#pragma unroll
        for (int step = 0; step < KEY_TILES * 4; ++step) {
            const int tile = step / 4, column = step % 4 * 2;
            hopper::mma_scores(score, q_operand + tile * (kQTileBytes >> 4) + column,
                               k + tile * (kTileBytes >> 4) + column, step != 0);
        }
        hopper::mma_commit();
    }

    __device__ __forceinline__ void add_values(float (&o)[64], int at)
    {
        const int stage = at % kStages;
        const uint64_t v = hopper::operand_down<kTokens>(m.values + stage * kValueTiles * kTileBytes);
        hopper::barrier_wait(m.value_full + stage, at / kStages & 1);
        hopper::mma_fence();
#pragma unroll
        for (int step = 0; step < kTokens / 16; ++step) {
            hopper::mma_values(o, probability + 4 * step, v + step * (16 * 128 >> 4));
        }
        hopper::mma_commit();
    }

    __device__ __forceinline__ void mask(const work &w)
    {
#pragma unroll
        for (int i = 0; i < 64; ++i) {
            if (token + i / 4 * 8 + lane % 4 * 2 + i % 2 >= w.visible + row + i / 2 % 2 * 8) {
                score[i] = -INFINITY;
            }
        }
    }

    __device__ __forceinline__ void pack_all()
    {
#pragma unroll
        for (int i = 0; i < 32; ++i) {
            probability[i] = pack(score[2 * i], score[2 * i + 1]);
        }
    }

    /* Zeroes values of the next sequence, which may be NaN; each group zeroes 64 columns. */
    __device__ __forceinline__ void clear_tail(int valid)
    {
        const int stage = x % kStages;
        hopper::barrier_wait(m.value_full + stage, x / kStages & 1);
        uint4 *const tile =
            reinterpret_cast<uint4 *>(m.values + (stage * kValueTiles + group) * kTileBytes) + valid * 8;
        for (int i = threadIdx.x % 128; i < (kTokens - valid) * 8; i += 128) {
            tile[i] = make_uint4(0, 0, 0, 0);
        }
        hopper::fence_shared_for_copies();
        hopper::meet(kMeetBoth, 256);
    }

    /* Processes the last block, with which a tile begins. */
    __device__ __forceinline__ void first_block(const work &w, rows_state &state)
    {
        hopper::meet(kMeetTurn + group, 256);
        score_keys();
        hopper::meet_arrive(kMeetTurn + 1 - group, 256);
        hopper::mma_wait<0>(score);
        release_keys();
        mask(w);
        exponentials(score, state, shrink, scale2);
        pack_all();
        if (w.length - token < kTokens) {
            clear_tail(w.length - token);
        }
    }

    /* Processes the next block. The products of one group run while the other computes exponentials, and the products
     * with values run beside the group's own exponentials of the next block. */
    template <bool MASKED> __device__ __forceinline__ void next_block(const work &w, rows_state &state, float (&o)[64])
    {
        x += 1;
        token -= kTokens;
        hopper::meet(kMeetTurn + group, 256);
        score_keys();
        add_values(o, x - 1);
        hopper::meet_arrive(kMeetTurn + 1 - group, 256);
        hopper::mma_wait<1>(score);
        release_keys();
        if (MASKED) {
            mask(w);
        }
        exponentials(score, state, shrink, scale2);
        hopper::mma_wait<0>(o);
        release(m.value_empty + (x - 1) % kStages);
        if (__any_sync(0xFFFFFFFFu, shrink[0] != 1.0f || shrink[1] != 1.0f)) {
#pragma unroll
            for (int i = 0; i < 64; ++i) {
                o[i] *= shrink[i / 2 % 2];
            }
        }
        pack_all();
    }

    /* Adds all blocks of the tile, from the last to the first. */
    __device__ __forceinline__ void add_blocks(const work &w, rows_state &state, float (&o)[64])
    {
        token = (w.blocks - 1) * kTokens;
        first_block(w, state);
        const int unmasked = w.visible + group * kGroupRows - kTokens; /* blocks below this token need no mask */
        while (token > 0 && token - kTokens > unmasked) {
            next_block<true>(w, state, o);
        }
        while (token > 0) {
            next_block<false>(w, state, o);
        }
        add_values(o, x);
        hopper::mma_wait<0>(o);
        release(m.value_empty + x % kStages);
        x += 1;
    }

    __device__ __forceinline__ void store(const problem &p, const work &w, const rows_state &state,
                                          const float (&o)[64])
    {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const float total = quad_sum(state.total[h]);
            const float inverse = total > 0.0f ? 1.0f / total : 0.0f;
            const bool mine = row + 8 * h < w.rows;
            const int64_t to = (int64_t)(w.first + row + 8 * h) * p.heads + w.head;
#pragma unroll
            for (int g = 0; g < kValue / 8; g += 4) {
                uint32_t v[4];
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    const float *const d = o + 4 * (g + j) + 2 * h;
                    v[j] = pack(d[0] * inverse, d[1] * inverse);
                    if (p.out_f32 && mine) {
                        *reinterpret_cast<float2 *>(p.out_f32 + to * kValue + 8 * (g + j) + lane % 4 * 2) =
                            make_float2(d[0] * inverse, d[1] * inverse);
                    }
                }
                const uint4 row_part = transpose_quad(v[0], v[1], v[2], v[3], lane % 4);
                if (p.out && mine) {
                    *reinterpret_cast<uint4 *>(p.out + to * kValue + 8 * (g + lane % 4)) = row_part;
                }
            }
            if (p.lse && mine && lane % 4 == 0) {
                p.lse[to] = total > 0.0f ? fmaf(state.most[h], scale2, log2f(total)) / kLog2E : -INFINITY;
            }
        }
    }
};

/* Role of the computing threads: tile by tile, until none is left. */
template <int KEY_TILES> __device__ __forceinline__ void compute_all(computing<KEY_TILES> &c, const problem &p)
{
    if (c.group == 1) {
        hopper::meet_arrive(kMeetTurn, 256);
    }
    for (int item = 0;; ++item) {
        hopper::barrier_wait(c.m.q_full + c.group, item & 1);
        const work w = c.m.next[c.group];
        __syncwarp();
        if (w.head < 0) {
            break;
        }
        float o[64];
#pragma unroll
        for (int i = 0; i < 64; ++i) {
            o[i] = 0.0f;
        }
        rows_state state = {{-INFINITY, -INFINITY}, {0.0f, 0.0f}};
        if (w.blocks == 0) {
            c.release(c.m.q_empty + c.group);
        } else {
            c.add_blocks(w, state, o);
        }
        c.store(p, w, state, o);
    }
    if (c.group == 0) {
        hopper::meet(kMeetTurn, 256); /* takes the remaining turn */
    }
}

template <int KEY_TILES>
__global__ void __launch_bounds__(384, 1)
    fast_kernel(const __grid_constant__ CUtensorMap map_q, const __grid_constant__ CUtensorMap map_kv,
                const __grid_constant__ CUtensorMap map_rope, const __grid_constant__ problem p,
                const __grid_constant__ order s)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ uint8_t raw[];
    const fast_memory<KEY_TILES> m(raw);
    const int group = __shfl_sync(0xFFFFFFFFu, (int)threadIdx.x / 128, 0);

    if (threadIdx.x == 0) {
        m.init_barriers();
    }
    __syncthreads();

    if (group == 2) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == 256) {
            load_all<KEY_TILES>({m, &map_q, &map_kv, &map_rope, p.share}, p, s);
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        computing<KEY_TILES> c(m, group, threadIdx.x % 32, p.shape.scale);
        compute_all(c, p);
    }
#else
    __trap(); /* the launcher requires sm_90 */
#endif
}

} // namespace
