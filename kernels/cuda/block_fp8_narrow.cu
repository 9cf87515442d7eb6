/* Block-FP8 kernel for some hundred tokens: how the kernel of product_narrow.cuh multiplies a share. */
#include "kernels/cuda/block_fp8_parts.cuh"
#include "kernels/cuda/product_narrow.cuh"

namespace block_fp8
{

/* Role of the multiplying warps: sum += scale_a * scale_w * (A * W^T), tile by tile of the share. */
template <int TOKENS, int WIDTH>
__device__ __forceinline__ void multiply_share(tile_reader<narrow_shape<problem, TOKENS, WIDTH>> ring,
                                               const tile_share &mine, const problem &p, const narrow_place &at,
                                               float (&sum)[WIDTH / 2])
{
    constexpr int kTurns = narrow_shape<problem, TOKENS, WIDTH>::kTurns;
    held_scales<1> scales_w;
    const auto fetch_w = [&](int t) {
        scales_w.fetch(p.scale_w, mine.n0 / kBlock, (p.n - 1) / kBlock, t, mine.tiles, at.lane);
    };
    const uint32_t row = (uint32_t)(at.row0 + at.thread / 32 * 16 + at.lane / 4);
    fetch_w(mine.first);
    ring.begin(at.part);
    for (int t0 = mine.first; t0 < mine.last; t0 += 32) {
        scales_w.take();
        fetch_w(t0 + 32);
        const int count = min(32, mine.last - t0);
#pragma unroll 2
        for (int t = at.part; t < count; t += kTurns) {
            float tile[WIDTH / 2];
            ring.wait();
            const uint32_t scale_a = ring.scale(ring.stage) + row * 4;
            const float by_w = __shfl_sync(0xFFFFFFFFu, scales_w.now[0], t);
            const float low = hopper::load_shared(scale_a) * by_w, high = hopper::load_shared(scale_a + 32) * by_w;
            hopper::mma_128<WIDTH>(tile, ring.a(), ring.w());
            hopper::mma_wait<0>(tile);
            __syncwarp(); /* all lanes have read the scales */
            if (at.lane == 0) {
                hopper::barrier_arrive(ring.empty(ring.stage));
            }
#pragma unroll
            for (int g = 0; g < WIDTH / 8; ++g) {
                sum[4 * g] = fmaf(tile[4 * g], low, sum[4 * g]);
                sum[4 * g + 1] = fmaf(tile[4 * g + 1], low, sum[4 * g + 1]);
                sum[4 * g + 2] = fmaf(tile[4 * g + 2], high, sum[4 * g + 2]);
                sum[4 * g + 3] = fmaf(tile[4 * g + 3], high, sum[4 * g + 3]);
            }
            ring.step();
        }
    }
}

tsr_status run_narrow(const problem &p, tsr_gemm_out out, const tsr_gemm_config &config, tsr_stream stream,
                      tsr_err *err)
{
    return run_narrow_tile(p, out, config, stream, err);
}

} // namespace block_fp8
