/* Declares ALWAYS_INLINE, for small functions whose constant arguments must be propagated. */
#ifndef TSR_KERNELS_CPU_ALWAYS_INLINE_H
#define TSR_KERNELS_CPU_ALWAYS_INLINE_H

#define ALWAYS_INLINE static inline __attribute__((always_inline))

#endif
