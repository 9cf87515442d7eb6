/* Owns the combination of the parts of a sequence that the schedule has cut. For mla_decode.cu only. */
#ifndef TSR_KERNELS_CUDA_MLA_DECODE_COMBINE_CUH
#define TSR_KERNELS_CUDA_MLA_DECODE_COMBINE_CUH

#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/mla_decode_schedule.cuh"

namespace
{

constexpr int kCombineWarps = 16, kCombineRows = 16; /* rows that a CTA takes of a sequence in two parts */

/* blockIdx.x is a cut between two parts. The rows of a sequence are shared by the CTAs of all its cuts, and the rows of
 * a CTA by its warps, so that few rows of many parts take no longer than many rows of two. */
__global__ void __launch_bounds__(32 * kCombineWarps, 2)
    combine_kernel(const __grid_constant__ problem p, const __grid_constant__ schedule s)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ float weights[]; /* [kCombineWarps][parts] */
    __shared__ float4 sums[kCombineWarps][kLatent / 4];
    hopper::wait_for_launch_before(); /* before the early return, too: it must not end the stream's wait */
    const int part = blockIdx.x + 1;
    const int2 cut_at = __ldg(s.begin + part);
    if (cut_at.y == 0) {
        return; /* the cut lies between two sequences */
    }
    const int b = cut_at.x, rows = p.s_q * p.heads;
    const int2 span = __ldg(s.span + b);
    const int first = span.x, count = span.y - first + 1;
    const int64_t shares = (int64_t)(count - 1) * gridDim.y, mine = (part - first - 1) * gridDim.y + blockIdx.y;
    const int begin = (int)(rows * mine / shares), end = (int)(rows * (mine + 1) / shares);
    const int first_slot = 2 * first + (__ldg(&s.begin[first].x) != b);
    int team = kCombineWarps; /* warps that share a row */
    while (team > 1 && (end - begin) * team > kCombineWarps) {
        team /= 2;
    }
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, member = warp % team;
    float *const weight = weights + warp * s.parts;
    for (int from = begin; from < end; from += kCombineWarps / team) {
        const int r = from + warp / team;
        const bool real = r < end;
        float most = -INFINITY, total = 0.0f;
        float4 sum[4] = {};
        if (real) {
            for (int i = lane; i < count; i += 32) {
                const float lse = s.lse[(int64_t)(i == 0 ? first_slot : 2 * (first + i)) * s.rows + r];
                weight[i] = lse;
                most = fmaxf(most, lse);
            }
            most = reduce_warp(most, true);
            for (int i = lane; i < count; i += 32) {
                weight[i] = most == -INFINITY ? 0.0f : exp2_fast(weight[i] - most);
                total += weight[i];
            }
            total = reduce_warp(total, false);
            __syncwarp();
            const float inverse = total > 0.0f ? 1.0f / total : 0.0f;
#pragma unroll 2
            for (int i = member; i < count; i += team) {
                const int64_t slot = i == 0 ? first_slot : 2 * (first + i);
                const float4 *const v = reinterpret_cast<const float4 *>(s.out + (slot * s.rows + r) * kLatent) + lane;
                const float by = weight[i] * inverse;
#pragma unroll
                for (int k = 0; k < 4; ++k) {
                    const float4 x = v[k * 32];
                    sum[k].x = fmaf(x.x, by, sum[k].x), sum[k].y = fmaf(x.y, by, sum[k].y);
                    sum[k].z = fmaf(x.z, by, sum[k].z), sum[k].w = fmaf(x.w, by, sum[k].w);
                }
            }
            __syncwarp(); /* before the next row's weights */
        }
        if (team > 1) { /* the same for all warps of the CTA, as __syncthreads needs */
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                sums[warp][k * 32 + lane] = sum[k];
            }
            __syncthreads();
            for (int other = 1; member == 0 && other < team; ++other) {
#pragma unroll
                for (int k = 0; k < 4; ++k) {
                    const float4 x = sums[warp + other][k * 32 + lane];
                    sum[k].x += x.x, sum[k].y += x.y, sum[k].z += x.z, sum[k].w += x.w;
                }
            }
            __syncthreads();
        }
        if (real && member == 0) {
            const int64_t to = (int64_t)b * rows + r;
            uint2 *const out = reinterpret_cast<uint2 *>(p.out + to * kLatent) + lane;
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                out[k * 32] = make_uint2(pack(sum[k].x, sum[k].y), pack(sum[k].z, sum[k].w));
            }
            if (p.lse && lane == 0) {
                p.lse[to] = total > 0.0f ? (most + log2f(total)) / kLog2E : -INFINITY;
            }
        }
    }
#else
    __trap(); /* the launcher asks for sm_90 first */
#endif
}

} // namespace
#endif
