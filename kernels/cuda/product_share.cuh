/* Common code of the kernels for up to some hundred tokens: how a CTA finds and loads its part of the product, and how
 * the kernels are launched. */
#pragma once

#include "kernels/cuda/product_parts.cuh"

namespace product
{

/* One CTA's share of the product: its first weight row and token, and its k tiles. */
struct tile_share {
    int tiles, first, last; /* all k tiles; this rank has first .. last - 1 */
    int rank, splits, n0, m0;
};

/* Computes a CTA's share; k is split over a cluster along x. CTAs with the same weights are launched one after another,
 * so that they share them in L2. Divides in 32 bits, and only if necessary: a 64-bit division takes longer than
 * everything else before the first copy. */
static __device__ __forceinline__ tile_share share_of(const matrices &p, int splits, int tokens, int rows)
{
    const int tiles = (p.k + kDepth - 1) / kDepth, n0 = (int)blockIdx.y * rows;
    if (splits == 1) {
        return {tiles, 0, tiles, 0, 1, n0, first_token((int)blockIdx.x * tokens, tokens, p.m)};
    }
    const unsigned rank = hopper::cluster_rank(), all = (unsigned)tiles, by = (unsigned)splits;
    const int m0 = first_token((int)(blockIdx.x / by) * tokens, tokens, p.m);
    return {tiles, (int)(all * rank / by), (int)(all * (rank + 1) / by), (int)rank, splits, n0, m0};
}

/* Initializes the ring's barriers, at which `users` warps release a tile. Called by one thread: a lane per stage was
 * measured to be slower. */
template <typename SHAPE> __device__ __forceinline__ void make_barriers(const tile_ring<SHAPE> &ring, int users)
{
    for (int s = 0; s < SHAPE::kStages; ++s) {
        hopper::barrier_init(&ring.full[s], 1);
        hopper::barrier_init(&ring.empty[s], (uint32_t)users);
    }
    hopper::fence_barrier_init();
}

/* Tensor maps of the operands and of A's scales, if it has any. */
struct operand_maps {
    CUtensorMap w, a, scale;
};

/* Called by the loading thread: requests k tile t into the ring's next stage, once that is free. The maps of A have
 * boxes of `tokens` rows. */
template <typename SHAPE>
__device__ __forceinline__ void load_k_tile(tile_ring<SHAPE> &ring, int t, int row_w, int row_a, int tokens,
                                            const CUtensorMap *map_w, const CUtensorMap *map_a,
                                            const CUtensorMap *map_scale)
{
    uint64_t *const full = &ring.full[ring.stage];
    hopper::barrier_wait(&ring.empty[ring.stage], ring.phase ^ 1);
    hopper::barrier_expect(full, (uint32_t)(SHAPE::kWBytes + tokens * ring.kTokenBytes));
    hopper::load_tile(ring.w + ring.stage * SHAPE::kWBytes, map_w, full, t * kDepth, row_w);
    hopper::load_tile(ring.a + ring.stage * SHAPE::kABytes, map_a, full, t * kDepth, row_a);
    if constexpr (SHAPE::kScaleBytes > 0) {
        hopper::load_tile(ring.scale + ring.stage * SHAPE::kScaleBytes, map_scale, full, row_a, t);
    }
    ring.step();
}

/* Role of the loading warp: one thread requests every tile of the share. */
template <typename SHAPE>
__device__ __forceinline__ void load_share(tile_ring<SHAPE> ring, const tile_share &mine, int m,
                                           const CUtensorMap *map_w, const CUtensorMap *map_a,
                                           const CUtensorMap *map_scale)
{
    const int tokens = copied_tokens(SHAPE::kABytes / kDepth, m);
    for (int t = mine.first; t < mine.last; ++t) {
        load_k_tile(ring, t, mine.n0, mine.m0, tokens, map_w, map_a, map_scale);
    }
    drain(ring);
}

/* Encodes maps for tiles of this many tokens and weight rows; W has `all_rows` rows. */
template <typename PROBLEM>
tsr_status encode_operands(const PROBLEM &p, int64_t all_rows, int tokens, int rows, operand_maps *maps, tsr_err *err)
{
    encode_fn encode = NULL;
    *maps = {};
    TSR_TRY(find_encode(&encode, err));
    TSR_TRY(
        encode_matrix(encode, &maps->w, CU_TENSOR_MAP_DATA_TYPE_UINT8, p.w, all_rows, p.k, p.ldw, rows, kDepth, err));
    TSR_TRY(encode_matrix(encode, &maps->a, CU_TENSOR_MAP_DATA_TYPE_UINT8, p.a, p.m, p.k, p.lda, tokens, kDepth, err));
    if constexpr (PROBLEM::kScaled) {
        return encode_matrix(encode, &maps->scale, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, p.scale_a,
                             host::ceil_div(p.k, kDepth), p.m, p.ld_scale_a * 4, 1, tokens, err);
    }
    return TSR_OK;
}

/* Launches a kernel whose CTAs each compute a tile of this many tokens and weight rows; `splits` CTAs share k. `more`
 * are further kernel arguments. */
template <typename SHAPE, typename KERNEL, typename PROBLEM, typename... MORE>
tsr_status launch_shares(KERNEL kernel, const PROBLEM &p, int tokens, int rows, int splits, tsr_stream stream,
                         tsr_err *err, const MORE &...more)
{
    operand_maps maps;
    TSR_TRY(encode_operands(p, p.n, copied_tokens(tokens, p.m), rows, &maps, err));
    const dim3 grid((unsigned)(host::ceil_div(p.m, tokens) * splits), (unsigned)host::ceil_div(p.n, rows));
    TSR_TRY(host::launched(PROBLEM::kName, host::allow_shared(kernel, SHAPE::kBytes), err));
    return host::launched(PROBLEM::kName,
                          host::launch(kernel, {grid, SHAPE::kThreads, SHAPE::kBytes, stream},
                                       {host::in_clusters((unsigned)splits), host::beside_the_one_before()}, maps.w,
                                       maps.a, maps.scale, p, splits, more...),
                          err);
}

} // namespace product
