/* Groups for tests of the search for the best scales: random, heavy-tailed, constant, tied, sparse, tiny and huge. */
#pragma once

#include "common/float_bits.h"
#include "kernels/cpu/cpu.h"
#include "tests/unit/random_bits.h"

#include <math.h>
#include <stdlib.h>

/* Returns the number in an environment variable, or `usual`. */
static inline uint64_t number_in(const char *variable, uint64_t usual)
{
    const char *const given = getenv(variable);
    return given == NULL ? usual : strtoull(given, NULL, 10);
}

static inline uint64_t groups_to_test(uint64_t usual)
{
    return number_in("TESSERA_BEST_GROUPS", usual);
}

static inline float uniform(void)
{
    return ((float)(random_bits() >> 40) + 0.5f) * 0x1p-24f;
}

static inline float gauss(void)
{
    return sqrtf(-2 * logf(uniform())) * cosf(6.2831853f * uniform());
}

static inline float rounded_to_bf16(float x)
{
    return tsr_f32_from_bf16(tsr_bf16_from_f32(x));
}

/* Returns a number of the given family. */
static inline float number_of(unsigned family, float size)
{
    const float integer = (float)((int)(random_bits() % 33) - 16);
    switch (family) {
    case 0:
        return size * gauss();
    case 1:
        return rounded_to_bf16(size * gauss());
    case 2:
        return rounded_to_bf16(size * gauss() / uniform()); /* heavy tails */
    case 3:
        return size; /* constant but for its sign */
    case 4:
        return ldexpf(integer, -2) * size; /* ties */
    case 5:
        return random_bits() % 8 == 0 ? rounded_to_bf16(size * gauss()) : 0; /* mostly zeros */
    case 6:
        return random_bits() % 4 == 0 ? 0 : rounded_to_bf16(size) * (1 + integer * 0x1p-23f); /* next to ties */
    default:
        return size * (2 * uniform() - 1);
    }
}

static inline float size_of(uint64_t round, bool extreme)
{
    const float size = round % 3 == 0 ? ldexpf(1, -(int)(random_bits() % 8)) : uniform();
    return extreme ? ldexpf(size, (int)(random_bits() % 250) - 145) : size;
}

/* Fills x with numbers of one family for each 16 columns. For each `same` columns they have one size, from subnormal to
 * huge. */
static inline void fill(float *x, size_t n, uint64_t round, size_t same)
{
    unsigned family = 0;
    float size = 1;
    for (size_t i = 0; i < n; i++) {
        if (i % 16 == 0) {
            const bool extreme = random_bits() % 16 == 0;
            family = (unsigned)(random_bits() % 8);
            if (i % same == 0)
                size = size_of(round, extreme);
        }
        const float number = number_of(family, size), sign = random_bits() % 2 == 0 ? 1 : -1;
        x[i] = isfinite(number) ? sign * number : 0;
    }
}

/* Fills weight with numbers that are not negative, some of them 0 or extreme. */
static inline void fill_weights(float *weight, size_t n, uint64_t round)
{
    const unsigned family = (unsigned)(round % 5);
    for (size_t i = 0; i < n; i++) {
        const float spread = expf(2 * gauss());
        weight[i] = family == 0                 ? spread
                    : family == 1               ? (random_bits() % 4 == 0 ? 0 : spread)
                    : family == 2 && i / 32 % 2 ? 0
                    : family == 3               ? ldexpf(spread, (int)(random_bits() % 200) - 100)
                                                : 1 + (float)(random_bits() % 3);
    }
}

/* The smallest candidate that clips nothing, or the largest one. */
static inline unsigned scale_of_amax(const float *x, const tsr_best_groups *c)
{
    float amax = 0;
    for (size_t i = 0; i < c->group; i++)
        amax = fmaxf(amax, fabsf(x[i]));
    int scale = c->least;
    while (scale < c->most && (c->e4m3 ? 448 : 6) * c->t[scale] < amax)
        scale++;
    return (unsigned)scale;
}
