/* Tests digests: every form, fed with pieces of any size, against XXH3-64 of the whole. */
#include "tests/unit/kernels/cpu/instruction_sets.h"
#include "tests/unit/random_bits.h"

#include <criterion/criterion.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

enum { MOST = 5000 };

Test(hash, every_form_digests_alike_in_pieces)
{
    static uint8_t x[MOST + 1];
    tsr_cpu_kernels k;
    for (size_t i = 0; i < sizeof x; i++)
        x[i] = (uint8_t)random_bits();
    tsr_cpu_kernels_init(&k, 0);
    for (int s = -1; s < 0 || (s < SETS && take_set(s, &k)); s++) {
        for (size_t size = 0; size <= MOST; size += 1 + size / 7) {
            for (size_t piece = 1; piece <= MOST; piece = piece * 3 + 14) {
                XXH3_state_t state = {.seed = 0};
                (void)XXH3_64bits_reset_withSeed(&state, size);
                for (size_t at = 0; at < size; at += piece)
                    k.hash_xxh3(&state, x + 1 + at, size - at < piece ? size - at : piece);
                cr_assert_eq(XXH3_64bits_digest(&state), XXH3_64bits_withSeed(x + 1, size, size), "set %d, %zu by %zu",
                             s, size, piece);
            }
        }
    }
}
