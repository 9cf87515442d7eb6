/* Random numbers for unit tests, equal in every run. */
#pragma once

#include <stdint.h>

/* xorshift64* */
static inline uint64_t random_bits(void)
{
    static uint64_t state = 0x9E3779B97F4A7C15u;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state * 0x2545F4914F6CDD1Du;
}
