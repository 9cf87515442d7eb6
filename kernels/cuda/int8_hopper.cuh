/* Declares the problem of an int8 product, its epilogue on Hopper, and the functions that start the Hopper kernels.
 *
 * Only the files of the int8 product include it. */
#pragma once

#include "kernels/cuda/int8_gemm.h"
#include "kernels/cuda/product_parts.cuh"

namespace int8
{

using namespace product;

constexpr char kWhat[] = "int8 product";

/* Returns the 32 bits at `p` if `there`. A predicated load, because branches would wait for one load after the other;
 * volatile, because the compiler moves others before wait_for_launch_before. */
__device__ __forceinline__ int32_t load_if(bool there, const void *p, int32_t otherwise)
{
    asm volatile("{\n.reg .pred there;\nsetp.ne.b32 there, %2, 0;\n@there ld.global.b32 %0, [%1];\n}"
                 : "+r"(otherwise)
                 : "l"(p), "r"((int)there)
                 : "memory");
    return otherwise;
}

struct problem : matrices {
    using number = int32_t;
    static constexpr const char *kName = kWhat;
    static constexpr bool kScaled = false; /* no scales are copied with k tiles */

    const float *scale_a, *scale_w, *bias;
    const int32_t *azp, *adjust; /* adjust: azp_with_adj, or azp_adj if there is azp */
    bool one_scale_a, one_scale_w;

    template <int WIDTH, int SUBS = 1> struct finisher;
};

/* Computes results of the exact sums of WIDTH columns of a thread's rows i and i + 8, and those 64 further on, SUBS
 * times. Every step rounds as the plain kernel does. What it needs is loaded ahead of the products. A lane holds what
 * belongs to one column of 32, and the others receive it by shuffles, in which all lanes of a warp take part. What it
 * computes for columns beyond the last one is not stored. */
template <int WIDTH, int SUBS> struct problem::finisher {
    static constexpr int kParts = WIDTH / 32;
    int lane;
    bool adjusted;
    float scale[SUBS][2], scales[kParts], biases[kParts];
    int32_t azp[SUBS][2], adjusts[kParts];

    /* j is the first column, the same in all lanes. */
    __device__ __forceinline__ finisher(const problem &p, int i, int j, int of_lane)
        : lane(of_lane), adjusted(p.adjust != nullptr || p.bias != nullptr)
    {
#pragma unroll
        for (int r = 0; r < 2 * SUBS; ++r) {
            const int row = min(i + r / 2 * 64 + r % 2 * 8, p.m - 1);
            scale[r / 2][r % 2] = __int_as_float(load_if(true, p.scale_a + (p.one_scale_a ? 0 : row), 0));
            azp[r / 2][r % 2] = load_if(p.azp != nullptr, p.azp + row, 1);
        }
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
            const int column = j + 32 * part + lane;
            const bool there = column < p.n;
            scales[part] = __int_as_float(load_if(there, p.scale_w + (p.one_scale_w ? 0 : column), 0));
            adjusts[part] = load_if(there && p.adjust != nullptr, p.adjust + column, 0);
            biases[part] = __int_as_float(load_if(there && p.bias != nullptr, p.bias + column,
                                                  __float_as_int(-0.0f))); /* adding -0 changes no value */
        }
    }

    /* Returns what column `from` of part `part` has. */
    template <typename T> __device__ __forceinline__ static T of_column(const T (&values)[kParts], int part, int from)
    {
        T value = values[0];
#pragma unroll
        for (int other = 1; other < kParts; ++other) {
            value = part == other ? values[other] : value;
        }
        return __shfl_sync(0xFFFFFFFFu, value, from);
    }

    /* Computes the results of a thread's four sums of group g of eight columns. */
    template <bool ADJUSTED>
    __device__ __forceinline__ void finish_as(int sub, const int32_t *sums, int g, float *results) const
    {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
            const int part = g / 4, from = g % 4 * 8 + lane % 4 * 2 + c;
            const float scale_w = of_column(scales, part, from);
            const int32_t adjust = ADJUSTED ? of_column(adjusts, part, from) : 0;
            const float bias = ADJUSTED ? of_column(biases, part, from) : 0.0f;
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                const int32_t exact = ADJUSTED ? sums[2 * r + c] - azp[sub][r] * adjust : sums[2 * r + c];
                const float value = __fmul_rn(scale[sub][r], __fmul_rn(scale_w, __int2float_rn(exact)));
                results[2 * r + c] = ADJUSTED ? __fadd_rn(value, bias) : value;
            }
        }
    }

    /* Computes the results of COUNT groups from g on. */
    template <int COUNT>
    __device__ __forceinline__ void finish(int sub, const int32_t *sums, int g, float *results) const
    {
        if (adjusted) {
#pragma unroll
            for (int next = 0; next < COUNT; ++next) {
                finish_as<true>(sub, sums + 4 * next, g + next, results + 4 * next);
            }
        } else {
#pragma unroll
            for (int next = 0; next < COUNT; ++next) {
                finish_as<false>(sub, sums + 4 * next, g + next, results + 4 * next);
            }
        }
    }
};

/* Returns true if the Hopper kernels take these arguments on this device. */
bool hopper_fits(const tsr_int8_gemm *args, const tsr_cuda_device *device);

/* Fills in `p` for the kernels. TSR_E_SHAPE: invalid sizes. TSR_E_UNSUPPORTED: unknown result type. */
tsr_status problem_of(const tsr_int8_gemm *args, problem *p, tsr_err *err);

/* Launches the kernel of a narrow or wide tile on `p`. TSR_E_UNSUPPORTED: there is no such kernel. */
tsr_status run_hopper(const problem &p, tsr_gemm_out out, const tsr_gemm_config &config, int processors,
                      tsr_stream stream, tsr_err *err);

/* Returns the fastest tile of the Hopper kernels, by a model of an H200. */
tsr_gemm_config fastest(int64_t m, int64_t n, int64_t k, int64_t processors);

} // namespace int8
