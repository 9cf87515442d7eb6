/* Owns random numbers on the host and rounding to 16 bits, for the tests of integer kernels. Included once a
 * program. */
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "tests/gpu/gpu_common.cuh"

static uint64_t seed = 20261121;

static double random_unit(void)
{
    return (double)(mix(seed++) >> 11) * 0x1p-53;
}

static uint16_t to16(float x, bool bf16)
{
    return bf16 ? __bfloat16_as_ushort(__float2bfloat16_rn(x)) : __half_as_ushort(__float2half_rn(x));
}
