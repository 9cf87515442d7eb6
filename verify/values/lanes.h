/* Eight elements at a time, in the compilers' vector types: the same source for every instruction set, and the same
 * bits with any, since each lane is computed alone and nothing is contracted (-ffp-contract=off). */
#ifndef TSR_VERIFY_VALUES_LANES_H
#define TSR_VERIFY_VALUES_LANES_H

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

/* All lanes from or to memory of any alignment, or, where fewer than LANES elements are left, those; a load leaves the
 * other lanes as they were. Macros, since vectors passed to functions would depend on the instruction set; what is
 * copied in part is a copy, so that the lanes themselves may stay in a register. */
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

/* name_best(...): the always-inline `name`, compiled for AVX-512 and AVX2 too, and the widest that this machine has. */
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

#endif
