/* Declares ALWAYS_INLINE, for small functions whose constant arguments must be propagated. */
#pragma once

#define ALWAYS_INLINE static inline __attribute__((always_inline))
