/* Transposes pairs of values inside the 16-byte lanes of registers. The including file defines `vec`, OP(name), which
 * makes the names of intrinsics, and PAIRS, the number of registers. */

/* Transposes the 4 x 4 pairs in each lane of a[i], ..., a[i + 3]: row j of lane h becomes lane h of a[i + j]. */
ALWAYS_INLINE void transpose_pairs(vec a[PAIRS])
{
    vec b[PAIRS];
    for (size_t i = 0; i < PAIRS; i += 2) {
        b[i] = OP(unpacklo_epi32)(a[i], a[i + 1]);
        b[i + 1] = OP(unpackhi_epi32)(a[i], a[i + 1]);
    }
    for (size_t i = 0; i < PAIRS; i += 4) {
        a[i] = OP(unpacklo_epi64)(b[i], b[i + 2]);
        a[i + 1] = OP(unpackhi_epi64)(b[i], b[i + 2]);
        a[i + 2] = OP(unpacklo_epi64)(b[i + 1], b[i + 3]);
        a[i + 3] = OP(unpackhi_epi64)(b[i + 1], b[i + 3]);
    }
}
