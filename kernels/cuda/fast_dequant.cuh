/* The converters of kernels/cpu/fast_dequant.h, in the instructions that it models, and plain ones. They convert a word
 * of 4 int8 or 8 int4 codes, biased and in the order of the layouts, to pairs of 16-bit numbers, earlier elements
 * first. */
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

namespace tsr
{

__device__ __forceinline__ uint32_t and_or(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t d;
    asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

__device__ __forceinline__ uint32_t sub_f16x2(uint32_t a, uint32_t b)
{
    uint32_t d;
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}

__device__ __forceinline__ uint32_t fma_f16x2(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t d;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

__device__ __forceinline__ uint32_t fma_bf16x2(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

/* out[kBits == 8 ? 2 : 4] */
template <int kBits, bool kBf16> __device__ __forceinline__ void convert_fast(uint32_t word, uint32_t *out)
{
    if constexpr (kBits == 8 && !kBf16) {
        out[0] = sub_f16x2(__byte_perm(word, 0x64646464u, 0x5250), 0x64806480u);
        out[1] = sub_f16x2(__byte_perm(word, 0x64646464u, 0x5351), 0x64806480u);
    } else if constexpr (kBits == 8) {
        const float middle = 8388736.0f; /* 2^23 + 128 */
        const float a = __uint_as_float(__byte_perm(word, 0x4B000000u, 0x7650)) - middle;
        const float b = __uint_as_float(__byte_perm(word, 0x4B000000u, 0x7652)) - middle;
        const float c = __uint_as_float(__byte_perm(word, 0x4B000000u, 0x7651)) - middle;
        const float d = __uint_as_float(__byte_perm(word, 0x4B000000u, 0x7653)) - middle;
        out[0] = __byte_perm(__float_as_uint(a), __float_as_uint(b), 0x7632);
        out[1] = __byte_perm(__float_as_uint(c), __float_as_uint(d), 0x7632);
    } else if constexpr (!kBf16) {
#pragma unroll
        for (int i = 0; i < 4; i += 2, word >>= 8) {
            out[i] = sub_f16x2(and_or(word, 0x000F000Fu, 0x64006400u), 0x64086408u);
            out[i + 1] = fma_f16x2(and_or(word, 0x00F000F0u, 0x64006400u), 0x2C002C00u, 0xD480D480u);
        }
    } else {
#pragma unroll
        for (int i = 0; i < 4; ++i, word >>= 4) {
            out[i] = fma_bf16x2(and_or(word, 0x000F000Fu, 0x43004300u), 0x3F803F80u, 0xC308C308u);
        }
    }
}

/* The same with the conversion instruction, one code at a time. */
template <int kBits, bool kBf16> __device__ __forceinline__ void convert_native(uint32_t word, uint32_t *out)
{
    constexpr int kPairs = kBits == 8 ? 2 : 4, kBias = kBits == 8 ? 128 : 8;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
        /* Element 2i is at position i, element 2i + 1 half a word above it. */
        const int low = (int)(word >> kBits * i & ((1u << kBits) - 1)) - kBias;
        const int high = (int)(word >> (kBits * i + 16) & ((1u << kBits) - 1)) - kBias;
        if constexpr (kBf16) {
            const __nv_bfloat162 pair = __halves2bfloat162(__int2bfloat16_rn(low), __int2bfloat16_rn(high));
            out[i] = *reinterpret_cast<const uint32_t *>(&pair);
        } else {
            const __half2 pair = __halves2half2(__int2half_rn(low), __int2half_rn(high));
            out[i] = *reinterpret_cast<const uint32_t *>(&pair);
        }
    }
}

/* Multiplies both halves by a scale and adds a zero (-0: only the product), rounded once to nearest even. */
template <bool kBf16> __device__ __forceinline__ uint32_t scaled_onto(uint32_t pair, uint32_t scale, uint32_t zero)
{
    return kBf16 ? fma_bf16x2(pair, scale, zero) : fma_f16x2(pair, scale, zero);
}

/* Multiplies both halves by a scale, rounded to nearest even. */
template <bool kBf16> __device__ __forceinline__ uint32_t scaled(uint32_t pair, uint32_t scale)
{
    uint32_t d;
    if constexpr (kBf16) {
        asm("fma.rn.bf16x2 %0, %1, %2, %3;"
            : "=r"(d)
            : "r"(pair), "r"(scale), "r"(0x80008000u)); /* + -0: the product */
    } else {
        asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(pair), "r"(scale));
    }
    return d;
}

} // namespace tsr
