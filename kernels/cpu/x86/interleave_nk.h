/* Converts from and to NK, where codes of one column are adjacent. Part of interleave_simd.h, which explains the
 * method. */
#pragma once

#include "kernels/cpu/x86/interleave_plan.h"

/* Unpacks nibbles to WIDTH bytes of 0-15. */
ALWAYS_INLINE vec unpack(half h)
{
    const vec w = v_widen(h);
    return v_and(v_or(w, v_left16(w, 4)), v_bytes(0x0F));
}

ALWAYS_INLINE vec load_nibbles(const uint8_t *codes, bool packed)
{
    return packed ? unpack(h_load(codes)) : v_and(v_load(codes), v_bytes(0x0F));
}

ALWAYS_INLINE void store_nibbles(uint8_t *codes, vec nibbles, bool packed)
{
    if (packed) {
        const vec pairs = v_pairs(nibbles);
        h_store(codes, v_lower(v_in_order(v_pack(pairs, pairs))));
    } else {
        v_store(codes, v_sub8(v_xor(nibbles, v_bytes(8)), v_bytes(8)));
    }
}

/* Writes WIDTH stored bytes from the codes at a and, for int4, the second half of them at b. */
ALWAYS_INLINE void store_codes(const tables *t, uint8_t *out, const uint8_t *a, const uint8_t *b, bool int4,
                               bool packed)
{
    vec stored;
    if (int4) {
        const vec pairs_a = v_pairs(v_shuffle(load_nibbles(a, packed), t->gather));
        const vec pairs_b = v_pairs(v_shuffle(load_nibbles(b, packed), t->gather));
        stored = v_shuffle(v_in_order(v_pack(pairs_a, pairs_b)), t->merge);
    } else {
        stored = v_shuffle(v_load(a), t->gather);
    }
    v_store(out, v_xor(stored, t->bias));
}

ALWAYS_INLINE void load_codes(const tables *t, const uint8_t *in, uint8_t *a, uint8_t *b, bool int4, bool packed)
{
    const vec stored = v_xor(v_load(in), t->bias);
    if (int4) {
        const vec pairs = v_shuffle(stored, t->split);
        store_nibbles(a, v_shuffle(unpack(v_lower(pairs)), t->scatter), packed);
        store_nibbles(b, v_shuffle(unpack(v_upper(pairs)), t->scatter), packed);
    } else {
        v_store(a, v_shuffle(stored, t->scatter));
    }
}

/* Converts one column within a tile: `bytes` stored bytes, the last ones through a buffer. */
ALWAYS_INLINE void run_in(const tables *t, const uint8_t *codes, uint8_t *out, size_t bytes, bool int4, bool packed)
{
    const size_t per_byte = int4 && !packed ? 2 : 1, second = WIDTH * per_byte / 2;
    size_t i = 0;
    for (; i + WIDTH <= bytes; i += WIDTH) {
        const uint8_t *const a = codes + i * per_byte;
        store_codes(t, out + i, a, a + second, int4, packed);
    }
    if (i < bytes) {
        uint8_t from[2 * WIDTH] = {0}, to[WIDTH];
        memcpy(from, codes + i * per_byte, (bytes - i) * per_byte);
        store_codes(t, to, from, from + second, int4, packed);
        memcpy(out + i, to, bytes - i);
    }
}

ALWAYS_INLINE void run_out(const tables *t, const uint8_t *in, uint8_t *codes, size_t bytes, bool int4, bool packed)
{
    const size_t per_byte = int4 && !packed ? 2 : 1, second = WIDTH * per_byte / 2;
    size_t i = 0;
    for (; i + WIDTH <= bytes; i += WIDTH) {
        uint8_t *const a = codes + i * per_byte;
        load_codes(t, in + i, a, a + second, int4, packed);
    }
    if (i < bytes) {
        uint8_t from[WIDTH] = {0}, to[2 * WIDTH];
        memcpy(from, in + i, bytes - i);
        load_codes(t, from, to, to + second, int4, packed);
        memcpy(codes + i * per_byte, to, (bytes - i) * per_byte);
    }
}

/* Converts all columns in the order of the stored bytes. If a tile's part of a column is half a vector, two columns
 * share one. */
ALWAYS_INLINE void columns_in(const plan *p, const uint8_t *codes, uint8_t *out, bool int4, bool packed)
{
    const tables t = tables_of(p);
    const size_t per_byte = int4 && !packed ? 2 : 1, ld = p->args.ld, turn = p->tile_bytes;
    for (size_t n = 0; n < p->args.n; n += p->turns) {
        for (size_t at = 0; at < p->column_bytes; at += turn) {
            const uint8_t *from = codes + n * ld + at * per_byte;
            for (size_t c = p->turns; p->turns > 1 && c < 2 * p->turns; c++) {
                for (size_t i = 0; i < turn * per_byte; i += LINE)
                    __builtin_prefetch(from + c * ld + i, 0, 3);
            }
            if (int4 && p->turns > 1 && turn == WIDTH / 2) {
                for (size_t c = 0; c < p->turns; c += 2, from += 2 * ld, out += WIDTH)
                    store_codes(&t, out, from, from + ld, int4, packed);
            } else {
                for (size_t c = 0; c < p->turns; c++, from += ld, out += turn)
                    run_in(&t, from, out, turn, int4, packed);
            }
        }
    }
}

ALWAYS_INLINE void columns_out(const plan *p, const uint8_t *in, uint8_t *codes, bool int4, bool packed)
{
    const tables t = tables_of(p);
    const size_t per_byte = int4 && !packed ? 2 : 1, ld = p->args.ld, turn = p->tile_bytes;
    for (size_t n = 0; n < p->args.n; n += p->turns) {
        for (size_t at = 0; at < p->column_bytes; at += turn) {
            uint8_t *to = codes + n * ld + at * per_byte;
            if (int4 && p->turns > 1 && turn == WIDTH / 2) {
                for (size_t c = 0; c < p->turns; c += 2, to += 2 * ld, in += WIDTH)
                    load_codes(&t, in, to, to + ld, int4, packed);
            } else {
                for (size_t c = 0; c < p->turns; c++, to += ld, in += turn)
                    run_out(&t, in, to, turn, int4, packed);
            }
        }
    }
}
