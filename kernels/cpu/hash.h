/* Digests on the CPU: XXH3-64 of bytes that come in pieces. Every form gives the same digest; xxhash.h chooses its instructions
 * when it is compiled, so that each set of instructions compiles it once more. */
#ifndef TSR_KERNELS_CPU_HASH_H
#define TSR_KERNELS_CPU_HASH_H

#include <stddef.h>

/* Adds bytes to an XXH3_state_t that was begun by XXH3_64bits_reset or XXH3_64bits_reset_withSeed. It is void here because each
 * file that includes xxhash.h with XXH_INLINE_ALL has a type of its own for it, all of them alike. */
typedef void tsr_hash_xxh3_fn(void *state, const void *data, size_t size);

#endif
