/* Operations that AVX2 and AVX-512 have under the same names. Only simd_avx2.h and simd_avx512.h include it. They
 * define OP(name) and BITS(name), which make the names of intrinsics, FLOATS(x), the bits of x as FP32, and the types
 * vec and vf. */
#define v_zero()            BITS(setzero)()
#define v_words(w)          OP(set1_epi16)((short)(w))
#define v_bytes(b)          OP(set1_epi8)((char)(b))
#define v_add8(a, b)        OP(add_epi8)(a, b)
#define v_sub8(a, b)        OP(sub_epi8)(a, b)
#define v_adds8(a, b)       OP(adds_epu8)(a, b)
#define v_max8(a, b)        OP(max_epu8)(a, b)
#define v_max16(a, b)       OP(max_epu16)(a, b)
#define v_subs16(a, b)      OP(subs_epu16)(a, b)
#define v_left16(x, n)      OP(slli_epi16)(x, n)
#define v_right16(x, n)     OP(srli_epi16)(x, n)
#define v_shuffle(table, i) OP(shuffle_epi8)(table, i)
#define v_pack(a, b)        OP(packus_epi16)(a, b)
#define v_pack_signed(a, b) OP(packs_epi16)(a, b)
#define v_zip_lo(a, b)      OP(unpacklo_epi8)(a, b)
#define v_zip_hi(a, b)      OP(unpackhi_epi8)(a, b)

ALWAYS_INLINE vec v_load(const void *p)
{
    return BITS(loadu)(p);
}

ALWAYS_INLINE void v_store(void *p, vec x)
{
    BITS(storeu)(p, x);
}

/* ---- for e4m3_error_body.h ---- */

#define f_set1(x)         OP(set1_ps)(x)
#define f_mul(a, b)       OP(mul_ps)(a, b)
#define f_fmadd(a, b, c)  OP(fmadd_ps)(a, b, c)
#define f_fnmadd(a, b, c) OP(fnmadd_ps)(a, b, c)
#define f_lo_of_words(w)  FLOATS(OP(unpacklo_epi16)(v_zero(), w))
#define f_hi_of_words(w)  FLOATS(OP(unpackhi_epi16)(v_zero(), w))

ALWAYS_INLINE vf f_load(const float *p)
{
    return OP(loadu_ps)(p);
}

/* ---- for int_error_body.h ---- */

#define v_add16(a, b)          OP(add_epi16)(a, b)
#define v_max16s(a, b)         OP(max_epi16)(a, b)
#define f_of_zipped_lo(lo, hi) FLOATS(OP(unpacklo_epi16)(lo, hi))
#define f_of_zipped_hi(lo, hi) FLOATS(OP(unpackhi_epi16)(lo, hi))
#define f_sub(a, b)            OP(sub_ps)(a, b)
#define f_max(a, b)            OP(max_ps)(a, b)
#define f_min(a, b)            OP(min_ps)(a, b)
