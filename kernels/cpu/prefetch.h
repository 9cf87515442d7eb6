/* Declares prefetching, which is harmless past the end of a matrix. */
#pragma once

#include "kernels/cpu/always_inline.h"

#include <stddef.h>
#include <stdint.h>

ALWAYS_INLINE void prefetch_read(const void *at, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 64)
        __builtin_prefetch((const char *)at + i, 0, 3);
}

ALWAYS_INLINE void prefetch_write(const uint8_t *at, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 64)
        __builtin_prefetch(at + i, 1, 3);
}
