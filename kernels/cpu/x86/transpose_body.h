/* Transposes 8 rows of nibbles, for AVX2 and AVX-512. The including file defines `vec`, its register type. */
enum { TILE = 8 };

/* Exchanges the upper half of each 2 * shift bits of *a with the lower half of those of *b; `low` has the lower ones
 * set. */
ALWAYS_INLINE void exchange(vec *a, vec *b, unsigned shift, uint32_t low);

/* Halves, quarters and eighths of words change places with those of the row 4, 2 and 1 further down. */
ALWAYS_INLINE void transpose_words(vec v[TILE])
{
    for (size_t r = 0; r < 4; r++)
        exchange(&v[r], &v[r + 4], 16, 0x0000FFFF);
    for (size_t r = 0; r < 2; r++) {
        exchange(&v[r], &v[r + 2], 8, 0x00FF00FF);
        exchange(&v[r + 4], &v[r + 6], 8, 0x00FF00FF);
    }
    for (size_t r = 0; r < TILE; r += 2)
        exchange(&v[r], &v[r + 1], 4, 0x0F0F0F0F);
}
