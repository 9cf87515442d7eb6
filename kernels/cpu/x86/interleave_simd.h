/* Interleaving for AVX2 and AVX-512, written once for vectors of LANES lanes of 16 bytes. Only their files include it,
 * and each first defines these operations:
 *
 *   OP, vec, v_load, v_and, ...       simd_ops.h and the header of the instruction set, simd_avx2.h or simd_avx512.h
 *   LANES, half                       the number of 16-byte lanes of vec, and a register of half its size
 *   h_load(p), h_store(p, h)          no alignment needed
 *   v_select(mask, a, b)              the bits of a where mask is set, those of b elsewhere
 *   v_pairs(x)                        words: even byte + 16 * odd byte, bytes below 16
 *   v_widen(h), v_upper(x), v_lower(x)           bytes to words; halves
 *   v_store_lanes(p, step, x), v_load_lanes(p, step)    lane i at p + i * step
 *
 * 16 stored bytes always hold `group` consecutive rows of one column. So there are two ways to convert codes:
 * - From NK, where the codes of a column are contiguous, a byte shuffle inside lanes puts them in order, and for int4 a
 *   multiply-add joins two nibbles.
 * - From KN, `group` rows of codes are read in stored order, for int4 joined in pairs, and 16 x 16 bytes are
 *   transposed. They are collected in a panel of 64 bytes per column, so that memory is written in whole cache lines.
 * Layout R is layout CM with the roles of k and n exchanged. */
#pragma once

#include "kernels/cpu/x86/interleave_kn.h"
#include "kernels/cpu/x86/interleave_nk.h"

/* Moves the codes of a band between their order and the layout, in either direction. */
typedef void move_fn(const plan *p, const uint8_t *from, uint8_t *to, bool int4, bool packed);

/* Chooses by order and size of the codes. Returns false if the definition has to move them. */
ALWAYS_INLINE bool move(const tsr_interleave_args *args, move_fn *columns, move_fn *rows, const uint8_t *from,
                        uint8_t *to)
{
    plan p;
    if (!make_plan(args, &p))
        return false;
    const bool nk = p.args.order == TSR_CODES_NK;
    if (nk && !p.int4)
        columns(&p, from, to, false, false);
    else if (nk && !args->packed)
        columns(&p, from, to, true, false);
    else if (nk)
        columns(&p, from, to, true, true);
    else if (!p.int4)
        rows(&p, from, to, false, false);
    else if (!args->packed)
        rows(&p, from, to, true, false);
    else
        rows(&p, from, to, true, true);
    return true;
}

ALWAYS_INLINE void interleave(const tsr_interleave_args *args, const uint8_t *codes, uint8_t *out)
{
    if (!move(args, columns_in, rows_in, codes, out))
        tsr_interleave_ref(args, codes, out);
}

ALWAYS_INLINE void deinterleave(const tsr_interleave_args *args, const uint8_t *in, uint8_t *codes)
{
    if (!move(args, columns_out, rows_out, in, codes))
        tsr_deinterleave_ref(args, in, codes);
}
