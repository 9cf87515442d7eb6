/* Interleaving for AVX2 and AVX-512, written once for vectors of LANES lanes of 16 bytes. Only their files include it,
 * and each first defines these operations:
 *
 *   vec, LANES, half                  the register, its number of 16-byte lanes, and a register of half its size
 *   v_load(p), v_store(p, x), h_load, h_store    no alignment needed
 *   v_lanes(p)                        the 16 bytes at p in every lane
 *   v_set1(byte), v_and, v_or, v_xor, v_sub      on bytes
 *   v_select(mask, a, b)              the bits of a where mask is set, those of b elsewhere
 *   v_left4(x), v_right4(x)           16-bit words shifted
 *   v_shuffle(x, table)               inside each lane: byte i becomes x[table[i]]
 *   v_pairs(x)                        words: even byte + 16 * odd byte, bytes below 16
 *   v_pack(a, b)                      the words of a, then of b, all below 256, as bytes
 *   v_widen(h), v_upper(x), v_lower(x)           bytes to words; halves
 *   v_zip_lo(a, b), v_zip_hi(a, b)    bytes of a and b in turn, from the lower or upper half of each lane
 *   v_store_lanes(p, step, x), v_load_lanes(p, step)    lane i at p + i * step
 *
 * 16 stored bytes always hold `group` consecutive rows of one column. So there are two ways to convert codes:
 * - From NK, where the codes of a column are contiguous, a byte shuffle inside lanes puts them in order, and for int4 a
 *   multiply-add joins two nibbles.
 * - From KN, `group` rows of codes are read in stored order, for int4 joined in pairs, and 16 x 16 bytes are
 *   transposed. They are collected in a panel of 64 bytes per column, so that memory is written in whole cache lines.
 * Layout R is layout CM with the roles of k and n exchanged. */
#ifndef TSR_KERNELS_CPU_X86_INTERLEAVE_SIMD_H
#define TSR_KERNELS_CPU_X86_INTERLEAVE_SIMD_H

#include "kernels/cpu/x86/interleave_kn.h"
#include "kernels/cpu/x86/interleave_nk.h"

/* The two conversions, by order and size of the codes. */

ALWAYS_INLINE void interleave(const tsr_interleave_args *args, const uint8_t *codes, uint8_t *out)
{
    plan p;
    if (!make_plan(args, &p)) {
        tsr_interleave_ref(args, codes, out);
    } else if (p.args.order == TSR_CODES_NK) {
        if (!p.int4)
            columns_in(&p, codes, out, false, false);
        else if (!args->packed)
            columns_in(&p, codes, out, true, false);
        else
            columns_in(&p, codes, out, true, true);
    } else {
        if (!p.int4)
            rows_in(&p, codes, out, false, false);
        else if (!args->packed)
            rows_in(&p, codes, out, true, false);
        else
            rows_in(&p, codes, out, true, true);
    }
}

ALWAYS_INLINE void deinterleave(const tsr_interleave_args *args, const uint8_t *in, uint8_t *codes)
{
    plan p;
    if (!make_plan(args, &p)) {
        tsr_deinterleave_ref(args, in, codes);
    } else if (p.args.order == TSR_CODES_NK) {
        if (!p.int4)
            columns_out(&p, in, codes, false, false);
        else if (!args->packed)
            columns_out(&p, in, codes, true, false);
        else
            columns_out(&p, in, codes, true, true);
    } else {
        if (!p.int4)
            rows_out(&p, in, codes, false, false);
        else if (!args->packed)
            rows_out(&p, in, codes, true, false);
        else
            rows_out(&p, in, codes, true, true);
    }
}

#endif
