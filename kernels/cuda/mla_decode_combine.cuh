/* Combines the parts of a sequence that the schedule has cut. For mla_decode.cu only. */
#pragma once

#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/mla_decode_schedule.cuh"

namespace
{

constexpr int kCombineWarps = 16, kCombineRows = 32; /* rows per CTA of a sequence in two parts */
constexpr int kCombineAhead = 2;                     /* parts of a row that a warp has requested before it needs them */

/* A lane's part of a row: every 32nd of its float4. */
struct row_piece {
    float4 x[4];

    __device__ __forceinline__ void read(const float *row, int lane)
    {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            x[k] = reinterpret_cast<const float4 *>(row)[k * 32 + lane];
        }
    }

    __device__ __forceinline__ void add(const row_piece &other, float by)
    {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            x[k].x = fmaf(other.x[k].x, by, x[k].x), x[k].y = fmaf(other.x[k].y, by, x[k].y);
            x[k].z = fmaf(other.x[k].z, by, x[k].z), x[k].w = fmaf(other.x[k].w, by, x[k].w);
        }
    }
};

/* blockIdx.x is a cut between two parts. The rows of a sequence are divided among the CTAs of all its cuts, and the
 * rows of a CTA among its warps, so that few rows of many parts take no longer than many rows of two. The schedule is
 * read while the previous launch, which has read it too, still decodes. */
__global__ void __launch_bounds__(32 * kCombineWarps, 2)
    combine_kernel(const __grid_constant__ problem p, const __grid_constant__ schedule s)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ float weights[]; /* [kCombineWarps][parts] */
    __shared__ float4 sums[kCombineWarps][kLatent / 4];
    const int part = blockIdx.x + 1;
    hopper::let_next_launch_begin();
    const tsr_mla_pair cut_at = s.begin[part];
    const int b = cut_at.x, rows = p.s_q * p.heads;
    const tsr_mla_pair span = s.span[cut_at.y > 0 ? b : 0];
    const int first = span.x, count = span.y - first + 1;
    const int first_slot = 2 * first + (s.begin[first].x != b);
    const int64_t shares = (int64_t)max(count - 1, 1) * gridDim.y, mine = (part - first - 1) * gridDim.y + blockIdx.y;
    const int begin = (int)(rows * mine / shares), end = (int)(rows * (mine + 1) / shares);
    int team = kCombineWarps; /* warps that share a row */
    while (team > 1 && (end - begin) * team > kCombineWarps) {
        team /= 2;
    }
    hopper::wait_for_launch_before(); /* also before the early return, which must not end the stream's wait */
    if (cut_at.y == 0) {
        return; /* the cut is between two sequences */
    }
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, member = warp % team;
    float *const weight = weights + warp * s.parts;
#pragma unroll 1
    for (int from = begin; from < end; from += kCombineWarps / team) {
        const int r = from + warp / team;
        const bool real = r < end;
        float most = -INFINITY, total = 0.0f;
        row_piece sum = {}, ahead[kCombineAhead];
        const auto row_of = [&](int i) { return (i == 0 ? first_slot : 2 * (first + i)) * s.rows + r; };
        if (real) {
#pragma unroll
            for (int k = 0; k < kCombineAhead; ++k) {
                if (member + k * team < count) {
                    ahead[k].read(s.out + (int64_t)row_of(member + k * team) * kLatent, lane);
                }
            }
#pragma unroll 2
            for (int i = lane; i < count; i += 32) {
                weight[i] = s.lse[row_of(i)];
                most = fmaxf(most, weight[i]);
            }
            most = reduce_warp(most, true);
#pragma unroll 1
            for (int i = lane; i < count; i += 32) {
                weight[i] = most == -INFINITY ? 0.0f : exp2_fast(weight[i] - most);
                total += weight[i];
            }
            total = reduce_warp(total, false);
            __syncwarp();
            const float inverse = total > 0.0f ? 1.0f / total : 0.0f;
#pragma unroll 1
            for (int from_part = member; from_part < count; from_part += kCombineAhead * team) {
#pragma unroll
                for (int k = 0; k < kCombineAhead; ++k) {
                    const int i = from_part + k * team, next = i + kCombineAhead * team;
                    if (i < count) {
                        sum.add(ahead[k], weight[i] * inverse);
                    }
                    if (next < count) {
                        ahead[k].read(s.out + (int64_t)row_of(next) * kLatent, lane);
                    }
                }
            }
            __syncwarp(); /* before the next row's weights */
        }
        if (team > 1) { /* the same for all warps of the CTA, as __syncthreads needs */
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                sums[warp][k * 32 + lane] = sum.x[k];
            }
            __syncthreads();
#pragma unroll 1
            for (int other = 1; member == 0 && other < team; ++other) {
                row_piece theirs;
                theirs.read(reinterpret_cast<const float *>(sums[warp + other]), lane);
                sum.add(theirs, 1.0f);
            }
            __syncthreads();
        }
        if (real && member == 0) {
            const int64_t to = (int64_t)b * rows + r;
            uint2 *const out = reinterpret_cast<uint2 *>(p.out + to * kLatent) + lane;
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                out[k * 32] = make_uint2(pack(sum.x[k].x, sum.x[k].y), pack(sum.x[k].z, sum.x[k].w));
            }
            if (p.lse && lane == 0) {
                p.lse[to] = total > 0.0f ? (most + log2f(total)) / kLog2E : -INFINITY;
            }
        }
    }
#else
    __trap(); /* the launcher requires sm_90 */
#endif
}

} // namespace
