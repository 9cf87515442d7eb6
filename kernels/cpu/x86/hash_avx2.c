/* Compiles digests with AVX2, which xxhash.h selects by the compiler flags of this file. */
#include "kernels/cpu/hash.h"

#include "kernels/cpu/variants.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

void tsr_hash_xxh3_avx2(void *state, const void *data, size_t size)
{
    (void)XXH3_64bits_update(state, data, size);
}
