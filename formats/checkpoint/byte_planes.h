/* Byte planes: the bytes of little-endian elements, sorted by their position in the element.
 *
 * The high bytes of trained weights (sign and exponent) are nearly all alike, so they compress well when separated from
 * the mantissas, which are noise. SSE2 is part of x86-64 and already as fast as memory, so there is no variant for
 * newer instructions. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Sets to[p * n + i] = from[i * width + p] for the n = size / width whole elements, and copies the remaining size %
 * width bytes. `width` is 1, 2 or 4. The arrays must not overlap. Thread-safe. */
void tsr_byte_planes_split(const uint8_t *from, size_t size, unsigned width, uint8_t *to);

/* The inverse. */
void tsr_byte_planes_join(const uint8_t *from, size_t size, unsigned width, uint8_t *to);
