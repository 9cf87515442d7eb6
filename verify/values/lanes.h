/* Processes eight elements at a time in the compilers' vector types. The source is the same for every instruction set,
 * and so are the results, since each lane is computed separately and nothing is contracted (-ffp-contract=off). */
#pragma once

#include <stdint.h>
#include <string.h>

enum { LANES = 8 };

typedef uint8_t u8_lanes __attribute__((vector_size(LANES)));
typedef uint16_t u16_lanes __attribute__((vector_size(2 * LANES)));
typedef uint32_t u32_lanes __attribute__((vector_size(4 * LANES)));
typedef int64_t i64_lanes __attribute__((vector_size(8 * LANES)));
typedef float f32_lanes __attribute__((vector_size(4 * LANES)));
typedef double f64_lanes __attribute__((vector_size(8 * LANES)));

#define ALWAYS_INLINE inline __attribute__((always_inline))

/* Load or store all lanes at any alignment or, if fewer than LANES elements are left, only those; a load leaves the
 * other lanes unchanged. These are macros because vectors as arguments would depend on the instruction set. A partial
 * transfer goes through a copy, so that the lanes themselves may stay in a register. */
#define LOAD(lanes, from, left)                                  \
    do {                                                         \
        if ((left) >= LANES) {                                   \
            memcpy(&(lanes), from, sizeof(lanes));               \
        } else {                                                 \
            __typeof__(lanes) part = (lanes);                    \
            memcpy(&part, from, (left) * (sizeof part / LANES)); \
            (lanes) = part;                                      \
        }                                                        \
    } while (0)
#define STORE(to, lanes, left)                                 \
    do {                                                       \
        if ((left) >= LANES) {                                 \
            memcpy(to, &(lanes), sizeof(lanes));               \
        } else {                                               \
            const __typeof__(lanes) part = (lanes);            \
            memcpy(to, &part, (left) * (sizeof part / LANES)); \
        }                                                      \
    } while (0)

/* Products of LANES elements of two rows. */
#define MULTIPLY(product, a, w)                 \
    do {                                        \
        __typeof__(product) factor;             \
        memcpy(&(product), a, sizeof(product)); \
        memcpy(&factor, w, sizeof factor);      \
        (product) *= factor;                    \
    } while (0)

/* name_best(...) calls the always-inline function `name`, compiled also for AVX2 and AVX-512, in the widest version
 * that this machine supports. */
#ifdef __x86_64__
#define FOR_EVERY_ISA(name, parameters, arguments)                                                     \
    __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq"))) static void name##_avx512 parameters \
    {                                                                                                  \
        name arguments;                                                                                \
    }                                                                                                  \
    __attribute__((target("avx2"))) static void name##_avx2 parameters                                 \
    {                                                                                                  \
        name arguments;                                                                                \
    }                                                                                                  \
    static void name##_best parameters                                                                 \
    {                                                                                                  \
        if (__builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&                \
            __builtin_cpu_supports("avx512bw"))                                                        \
            name##_avx512 arguments;                                                                   \
        else if (__builtin_cpu_supports("avx2"))                                                       \
            name##_avx2 arguments;                                                                     \
        else                                                                                           \
            name arguments;                                                                            \
    }
#else
#define FOR_EVERY_ISA(name, parameters, arguments) \
    static void name##_best parameters             \
    {                                              \
        name arguments;                            \
    }
#endif
