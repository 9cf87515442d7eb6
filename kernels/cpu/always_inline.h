/* For small functions of a kernel whose arguments are constants in each caller: inlining is what makes them disappear. */
#ifndef TSR_KERNELS_CPU_ALWAYS_INLINE_H
#define TSR_KERNELS_CPU_ALWAYS_INLINE_H

#define ALWAYS_INLINE static inline __attribute__((always_inline))

#endif
