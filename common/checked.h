/* Arithmetic on sizes from files: every product and sum reports overflow. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

static inline bool tsr_mul_u64(uint64_t a, uint64_t b, uint64_t *product)
{
    return !__builtin_mul_overflow(a, b, product);
}

static inline bool tsr_add_u64(uint64_t a, uint64_t b, uint64_t *sum)
{
    return !__builtin_add_overflow(a, b, sum);
}

static inline uint64_t tsr_ceil_div(uint64_t a, uint64_t b)
{
    return a / b + (a % b != 0);
}

static inline uint64_t tsr_round_up(uint64_t a, uint64_t to)
{
    return tsr_ceil_div(a, to) * to;
}

static inline uint64_t tsr_min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static inline uint64_t tsr_max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}
