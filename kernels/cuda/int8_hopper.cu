/* The int8 kernels for Hopper: how those of product_narrow.cuh and product_wide.cuh multiply, and their launches. */
#include "kernels/cuda/int8_hopper.cuh"
#include "kernels/cuda/product_narrow.cuh"
#include "kernels/cuda/product_wide.cuh"

namespace int8
{

/* Multiplies `tiles` k tiles by a warpgroup that has SUBS times 64 tokens. The sums stay in the accumulators. While the
 * tensor cores have one k tile, the next one is waited for and issued. release(stage) is called when a tile's memory is
 * no longer used, issued(t) when tile t has been issued. */
template <int SUBS, int WIDTH, typename READER, typename RELEASE, typename ISSUED>
__device__ __forceinline__ void multiply_tiles(READER &ring, int tiles, int32_t (*sum)[WIDTH / 2],
                                               const RELEASE &release, const ISSUED &issued)
{
    int before = 0;
    for (int t = 0; t < tiles; ++t) {
        ring.wait();
        hopper::mma_fence();
#pragma unroll
        for (int sub = 0; sub < SUBS; ++sub) {
            hopper::mma_steps<WIDTH>(sum[sub], ring.a() + sub * 64 * kDepth / 16, ring.w(), t != 0);
        }
        hopper::mma_commit();
        issued(t);
        if (t > 0) {
            hopper::mma_wait_but<1>();
            release(before);
        }
        before = ring.stage;
        ring.step();
    }
#pragma unroll
    for (int sub = 0; sub < SUBS; ++sub) {
        hopper::mma_wait<0>(sum[sub]);
    }
    release(before);
}

/* Role of the multiplying warps of product_narrow.cuh: the sums of the share, over every kTurns-th of its k tiles. */
template <int TOKENS, int WIDTH>
__device__ __forceinline__ void multiply_share(tile_reader<narrow_shape<problem, TOKENS, WIDTH>> ring,
                                               const tile_share &mine, const problem &, const narrow_place &at,
                                               int32_t (&sum)[WIDTH / 2])
{
    constexpr int kTurns = narrow_shape<problem, TOKENS, WIDTH>::kTurns;
    const int tiles = (mine.last - mine.first - at.part + kTurns - 1) / kTurns;
    if (tiles <= 0) {
        return; /* the sums are zeros */
    }
    ring.begin(at.part);
    const auto release = [&](int stage) {
        if (at.lane == 0) {
            hopper::barrier_arrive(ring.empty(stage));
        }
    };
    multiply_tiles<1, WIDTH>(ring, tiles, &sum, release, [](int) {});
}

/* A tile of product_wide.cuh. The two warpgroups have half of its tokens each, or alternate between whole tiles, so
 * that one stores results while the tensor cores have the tile of the other. */
template <int TOKENS, int WIDTH, bool ALTERNATE> struct wide_shape {
    using problem = int8::problem;
    static constexpr int kTokens = TOKENS, kWidth = WIDTH;
    static constexpr int kGroupTokens = ALTERNATE ? TOKENS : TOKENS / 2; /* a warpgroup's part */
    static constexpr int kABytes = TOKENS * kDepth, kWBytes = WIDTH * kDepth, kScaleBytes = 0;
    static constexpr int kTurns = 1, kUsers = ALTERNATE ? 4 : 8;
    static constexpr int kOut = 128, kGroupBytes = 64 * kOut * 2, kStagedBytes = 2 * kGroupBytes;
    static constexpr int kStages = (kSharedMax - kStagedBytes) / (kABytes + kWBytes + 16);
    static constexpr int kAAt = 0, kWAt = kStages * kABytes;
    static constexpr int kBytes = kStagedBytes + kStages * (kABytes + kWBytes + 16);
    static_assert(kStages >= 3 && kGroupTokens % 64 == 0 && WIDTH % kOut == 0, "a ring, and whole boxes of results");
};

/* Role of the multiplying warps of product_wide.cuh: tile by tile, the sums, then the results. */
template <int TOKENS, int WIDTH, bool ALTERNATE, typename T>
__device__ __forceinline__ void multiply_units(wide_shape<TOKENS, WIDTH, ALTERNATE>, result_type<T>,
                                               const wide_schedule &schedule, const wide_share &mine, const problem &p,
                                               const CUtensorMap *map_d, uint8_t *staged, int warp, int lane)
{
    using shape = wide_shape<TOKENS, WIDTH, ALTERNATE>;
    constexpr int kSubs = shape::kGroupTokens / 64,
                  kTurn = 3; /* the first of the barriers at which the warpgroups take turns */
    const int group = warp / 4, row0 = ALTERNATE ? 0 : group * shape::kGroupTokens;
    tile_reader<shape> ring(staged + shape::kStagedBytes, row0, 0);
    if (ALTERNATE && group == 1) {
        ring.skip(mine.tiles);
    }
    for (int unit = mine.first + (ALTERNATE ? group * mine.stride : 0); unit < mine.units;
         unit += (ALTERNATE ? 2 : 1) * mine.stride) {
        int m0, n0;
        find_tile<shape>(schedule, mine, unit, m0, n0);
        const problem::finisher<WIDTH, kSubs> finisher(p, m0 + row0 + warp % 4 * 16 + lane / 4, n0, lane);
        /* The other warpgroup waits for the tiles between. Until it has done so for the last of them, a wait for a tile
         * after it could take an earlier phase of the same parity for it. */
        if (ALTERNATE && unit != mine.first) {
            hopper::meet(kTurn + group, 256);
        }
        int32_t sum[kSubs][WIDTH / 2];
        const auto release = [&](int stage) {
            if (lane < mine.ctas) {
                hopper::barrier_arrive(ring.empty(stage), (uint32_t)lane);
            }
        };
        const auto issued = [&](int t) {
            if (ALTERNATE && t == mine.tiles - 1 && unit + mine.stride < mine.units) {
                hopper::meet_arrive(kTurn + 1 - group, 256);
            }
        };
        multiply_tiles<kSubs, WIDTH>(ring, mine.tiles, sum, release, issued);
        if (ALTERNATE) {
            ring.skip(mine.tiles);
        }
        const auto store = [&](auto adjusted) {
#pragma unroll
            for (int sub = 0; sub < kSubs; ++sub) {
                const auto results_of = [&](int g, float *results) {
                    finisher.template finish_as<decltype(adjusted)::value>(sub, sum[sub] + 4 * g, g, results);
                };
                store_results<WIDTH, shape::kOut, T>(map_d, p, results_of, staged + group * shape::kGroupBytes,
                                                     {m0 + row0 + 64 * sub, n0, 64, group, warp % 4, lane});
            }
        };
        if (finisher.adjusted) {
            store(std::true_type());
        } else {
            store(std::false_type());
        }
    }
    hopper::bulk_wait(); /* shared memory must outlive the copies */
}

static tsr_status run_wide(const problem &p, tsr_gemm_out out, const tsr_gemm_config &config, int processors,
                           tsr_stream stream, tsr_err *err)
{
    const bool pairs = config.cluster == 1 || config.cluster == 2;
    return for_results(out, [&](auto of) {
        using T = typename decltype(of)::type;
        if (pairs && config.tokens == 64 && config.rows == 128) {
            return launch_wide<wide_shape<64, 128, true>, T>(p, config.cluster, processors, stream, err);
        }
        if (pairs && config.tokens == 128 && config.rows == 128) {
            return launch_wide<wide_shape<128, 128, true>, T>(p, config.cluster, processors, stream, err);
        }
        if (pairs && config.tokens == 128 && config.rows == 256) {
            return launch_wide<wide_shape<128, 256, false>, T>(p, config.cluster, processors, stream, err);
        }
        return no_such_tile(kWhat, config, err);
    });
}

bool hopper_fits(const tsr_int8_gemm *args, const tsr_cuda_device *device)
{
    return device->arch == 90 && args->k > 0 && operands_fit(args->a, args->w, args->lda, args->ldw);
}

tsr_status problem_of(const tsr_int8_gemm *args, problem *p, tsr_err *err)
{
    matrices found;
    TSR_TRY(matrices_of(kWhat, *args, &found, err));
    const bool per_tensor = args->azp_with_adj != nullptr;
    *p = {found,
          args->scale_a,
          args->scale_w,
          args->bias,
          per_tensor ? nullptr : args->azp,
          per_tensor ? args->azp_with_adj : args->azp_adj,
          args->one_scale_a,
          args->one_scale_w};
    return TSR_OK;
}

tsr_status run_hopper(const problem &p, tsr_gemm_out out, const tsr_gemm_config &config, int processors,
                      tsr_stream stream, tsr_err *err)
{
    return config.kind == TSR_GEMM_NARROW ? run_narrow_tile(p, out, config, stream, err)
                                          : run_wide(p, out, config, processors, stream, err);
}

} // namespace int8
