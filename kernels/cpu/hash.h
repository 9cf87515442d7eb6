/* Declares XXH3-64 digests of bytes in pieces.
 *
 * Every variant gives the same digest. xxhash.h selects its instructions at compile time, so each instruction set
 * compiles it separately. */
#pragma once

#include <stddef.h>

/* Adds bytes to an XXH3_state_t that was started by XXH3_64bits_reset or XXH3_64bits_reset_withSeed. The type is
 * void, because each file that includes xxhash.h with XXH_INLINE_ALL has its own, identical type. */
typedef void tsr_hash_xxh3_fn(void *state, const void *data, size_t size);
