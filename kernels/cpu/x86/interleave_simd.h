/* The interleaving of the AVX2 and AVX-512 files, written once for vectors of LANES lanes of 16 bytes. Only those files
 * include it, and each first defines these words:
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
 * 16 stored bytes always hold `group` consecutive rows of one column. So there are two ways to move codes:
 * - From NK, where the codes of a column lie in a row, a byte shuffle inside lanes puts them in order, and for int4 a
 *   multiply-add joins two nibbles.
 * - From KN, `group` rows of codes are taken in stored order, for int4 joined pair by pair, and 16 x 16 bytes are
 *   transposed. They gather in a panel of 64 bytes for each column, so that memory is written in whole cache lines.
 * Layout R is layout CM with the roles of k and n exchanged. */
#ifndef TSR_KERNELS_CPU_X86_INTERLEAVE_SIMD_H
#define TSR_KERNELS_CPU_X86_INTERLEAVE_SIMD_H

#include "kernels/cpu/interleave.h"
#include "kernels/cpu/variants.h"

#include <string.h>

enum { WIDTH = 16 * LANES, PANEL = 64, LINE = 64 };

/* `format` as tables for byte shuffles, and the matrix as columns, whatever the layout. */
typedef struct plan {
    tsr_interleave_args args;
    bool int4;
    uint8_t order[32];            /* of the format */
    uint8_t gather[16];           /* int8: which code of a lane is stored i-th; int4: the two of pair i */
    uint8_t scatter[16];          /* the inverse */
    uint8_t merge[16], split[16]; /* int4: pairs 0-7 of the first and of the second 16 rows -> stored bytes; inverse */
    uint8_t bias;                 /* for a whole byte */
    size_t column_bytes;          /* of one stored column */
    size_t tile_bytes;            /* of the part of it that is contiguous */
    size_t turns;                 /* columns that are stored in turns, tile by tile */
} plan;

static bool make_plan(const tsr_interleave_args *args, plan *p)
{
    const tsr_ft_format *const f = args->format;
    *p = (plan){.args = *args, .int4 = f->bits == 4, .turns = (size_t)f->columns};
    p->bias = p->int4 ? (uint8_t)(f->bias * 0x11) : f->bias;
    memcpy(p->order, f->order, sizeof p->order);
    if (f->row_major) {
        p->args.k = args->n;
        p->args.n = args->k;
        p->args.order = args->order == TSR_CODES_NK ? TSR_CODES_KN : TSR_CODES_NK;
        const size_t words = p->int4 ? 8 : 4, row = args->packed ? args->n / 2 : args->n;
        if (p->args.order == TSR_CODES_NK && args->ld == row) {
            p->args.k *= p->args.n;
            p->args.n = 1;
            p->args.ld *= args->k;
        } else if (p->args.k % (p->args.order == TSR_CODES_NK ? words : (size_t)f->group) != 0) {
            return false; /* words that span rows: rare, and left to the reference */
        }
    }
    p->column_bytes = p->int4 ? p->args.k / 2 : p->args.k;
    p->tile_bytes = f->tile == 0 ? p->column_bytes : (size_t)f->tile * (size_t)f->bits / 8;
    if (!p->int4) {
        memcpy(p->gather, f->order, 16);
        memcpy(p->scatter, f->place, 16);
        return true;
    }
    unsigned pairs[2] = {0, 0};
    for (unsigned byte = 0; byte < 16; byte++) {
        const unsigned lo = f->order[2 * byte], hi = f->order[2 * byte + 1], side = lo / 16, pair = pairs[side]++;
        p->gather[2 * pair] = (uint8_t)(lo % 16);
        p->gather[2 * pair + 1] = (uint8_t)(hi % 16);
        p->merge[byte] = (uint8_t)(8 * side + pair);
    }
    for (unsigned i = 0; i < 16; i++) {
        p->scatter[p->gather[i]] = (uint8_t)i;
        p->split[p->merge[i]] = (uint8_t)i;
    }
    return true;
}

/* The plan's tables in registers. */
typedef struct tables {
    vec gather, scatter, merge, split, bias;
} tables;

ALWAYS_INLINE tables tables_of(const plan *p)
{
    return (tables){v_lanes(p->gather), v_lanes(p->scatter), v_lanes(p->merge), v_lanes(p->split),
                    v_set1((char)p->bias)};
}

/* ---- From and to NK: codes of one column side by side. ---- */

/* WIDTH bytes of 0-15 from packed nibbles. */
ALWAYS_INLINE vec unpack(half h)
{
    const vec w = v_widen(h);
    return v_and(v_or(w, v_left4(w)), v_set1(0x0F));
}

ALWAYS_INLINE vec load_nibbles(const uint8_t *codes, bool packed)
{
    return packed ? unpack(h_load(codes)) : v_and(v_load(codes), v_set1(0x0F));
}

ALWAYS_INLINE void store_nibbles(uint8_t *codes, vec nibbles, bool packed)
{
    if (packed) {
        const vec pairs = v_pairs(nibbles);
        h_store(codes, v_lower(v_pack(pairs, pairs)));
    } else {
        v_store(codes, v_sub(v_xor(nibbles, v_set1(8)), v_set1(8)));
    }
}

/* WIDTH stored bytes from the codes at a and, for int4, the second half of them at b. */
ALWAYS_INLINE void store_codes(const tables *t, uint8_t *out, const uint8_t *a, const uint8_t *b, bool int4,
                               bool packed)
{
    vec stored;
    if (int4) {
        const vec pairs_a = v_pairs(v_shuffle(load_nibbles(a, packed), t->gather));
        const vec pairs_b = v_pairs(v_shuffle(load_nibbles(b, packed), t->gather));
        stored = v_shuffle(v_pack(pairs_a, pairs_b), t->merge);
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

/* One column's turn: `bytes` stored bytes, the last ones by way of a buffer. */
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

/* Every turn in the order of the stored bytes. When a turn is half a vector, two columns share one. */
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

/* ---- From and to KN: codes of one row side by side. ---- */

typedef struct lines {
    vec line[16];
} lines;

/* One step of the perfect shuffle: it rotates the eight bits of (line, byte) by one. */
ALWAYS_INLINE lines zip(const lines *x)
{
    lines y;
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        y.line[2 * i] = v_zip_lo(x->line[i], x->line[i + 8]);
        y.line[2 * i + 1] = v_zip_hi(x->line[i], x->line[i + 8]);
    }
    return y;
}

/* Four of them exchange line and byte. */
ALWAYS_INLINE lines transpose(const lines *x)
{
    const lines a = zip(x), b = zip(&a), c = zip(&b);
    return zip(&c);
}

/* Stored byte i of WIDTH columns, as line i, from a group of rows: of the even columns or the odd ones when packed. */
ALWAYS_INLINE lines lines_in(const plan *p, const uint8_t *rows, size_t ld, bool int4, bool odd)
{
    const vec bias = v_set1((char)p->bias), low = v_set1(0x0F);
    lines x;
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) {
        if (int4) {
            const vec lo = v_load(rows + p->order[2 * i] * ld), hi = v_load(rows + p->order[2 * i + 1] * ld);
            x.line[i] = v_xor(odd ? v_select(low, v_right4(lo), hi) : v_select(low, lo, v_left4(hi)), bias);
        } else {
            x.line[i] = v_xor(v_load(rows + p->order[i] * ld), bias);
        }
    }
    return x;
}

/* The inverse; `odd` has the odd columns' lines of packed codes. */
ALWAYS_INLINE void lines_out(const plan *p, const lines *x, const lines *odd, uint8_t *rows, size_t ld, bool int4)
{
    const vec bias = v_set1((char)p->bias), low = v_set1(0x0F), eight = v_set1(8);
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) {
        const vec stored = v_xor(x->line[i], bias);
        if (!int4) {
            v_store(rows + p->order[i] * ld, stored);
            continue;
        }
        uint8_t *const lo = rows + p->order[2 * i] * ld, *const hi = rows + p->order[2 * i + 1] * ld;
        if (odd != NULL) {
            const vec other = v_xor(odd->line[i], bias);
            v_store(lo, v_select(low, stored, v_left4(other)));
            v_store(hi, v_select(low, v_right4(stored), other));
        } else {
            v_store(lo, v_sub(v_xor(v_and(stored, low), eight), eight));
            v_store(hi, v_sub(v_xor(v_and(v_right4(stored), low), eight), eight));
        }
    }
}

/* PANEL stored bytes of some columns; each column is contiguous. */
typedef struct panel {
    uint8_t column[2 * WIDTH][PANEL];
} panel;

/* Lines of columns first, first + step, first + 2 * step ... <-> 16 bytes of each of those columns. */
ALWAYS_INLINE void lines_to_panel(const lines *x, panel *to, size_t first, size_t step, size_t at)
{
    const lines columns = transpose(x);
#pragma GCC unroll 16
    for (size_t i = 0; i < 16; i++)
        v_store_lanes(to->column[first + i * step] + at, 16 * step * PANEL, columns.line[i]);
}

ALWAYS_INLINE lines panel_to_lines(const panel *from, size_t first, size_t step, size_t at)
{
    lines columns;
#pragma GCC unroll 16
    for (size_t i = 0; i < 16; i++)
        columns.line[i] = v_load_lanes(from->column[first + i * step] + at, 16 * step * PANEL);
    return transpose(&columns);
}

ALWAYS_INLINE void copy_run(uint8_t *to, const uint8_t *from, size_t bytes)
{
    if (bytes == PANEL) {
        memcpy(to, from, PANEL);
        return;
    }
    for (size_t i = 0; i < bytes; i += 16)
        memcpy(to + i, from + i, 16);
}

/* Where the stored bytes of column 0 from `at` on lie in the layout, and how many of `most` lie there together.
 * Those of column n + c are n * column_bytes + c * tile_bytes further, when turns divides n and c < turns. */
typedef struct run {
    size_t offset, bytes;
} run;

ALWAYS_INLINE run run_of(const plan *p, size_t at, size_t most)
{
    const size_t tile = at / p->tile_bytes, in_tile = at % p->tile_bytes, left = p->tile_bytes - in_tile;
    return (run){tile * p->turns * p->tile_bytes + in_tile, most < left ? most : left};
}

/* Writes stored bytes at .. at + bytes of columns n .. n + count to the layout. All columns that take turns are
 * there. */
ALWAYS_INLINE void panel_out(const plan *p, const panel *from, uint8_t *out, size_t n, size_t count, size_t at,
                             size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        const run r = run_of(p, at + done, bytes - done);
        uint8_t *to = out + n * p->column_bytes + r.offset;
        for (size_t i = 0; i < count; i += p->turns, to += p->turns * p->column_bytes) {
            for (size_t c = 0; c < p->turns; c++)
                copy_run(to + c * p->tile_bytes, from->column[i + c] + done, r.bytes);
        }
        done += r.bytes;
    }
}

ALWAYS_INLINE void panel_in(const plan *p, panel *to, const uint8_t *in, size_t n, size_t count, size_t at,
                            size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        const run r = run_of(p, at + done, bytes - done);
        const uint8_t *from = in + n * p->column_bytes + r.offset;
        for (size_t i = 0; i < count; i += p->turns, from += p->turns * p->column_bytes) {
            for (size_t c = 0; c < p->turns; c++)
                copy_run(to->column[i + c] + done, from + c * p->tile_bytes, r.bytes);
        }
        done += r.bytes;
    }
}

/* Rows and columns lie too far apart for the hardware's prefetchers, so what comes next is prefetched by hand, for
 * writing as for reading. It goes into L2, because strides of usual weights share a few sets of L1, which would not
 * keep it. Prefetching past the end of the matrix is harmless. */
ALWAYS_INLINE void expect_panel(const plan *p, const uint8_t *layout, size_t n, size_t count, size_t at, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        const run r = run_of(p, at + done, bytes - done);
        const uint8_t *line = layout + n * p->column_bytes + r.offset;
        for (size_t i = 0; i < count; i += p->turns, line += p->turns * p->column_bytes) {
            for (size_t c = 0; c < p->turns; c++) {
                __builtin_prefetch(line + c * p->tile_bytes, 0, 2);
            }
        }
        done += r.bytes;
    }
}

/* Where the panel begins that comes `steps` panels after the one at (n, at): further along, or in the next rows, as is
 * often the case in a narrow band. */
typedef struct spot {
    size_t n, at;
} spot;

ALWAYS_INLINE spot spot_ahead(const plan *p, size_t n, size_t at, size_t width, size_t steps)
{
    const size_t across = (p->args.n + width - 1) / width, index = n / width + steps;
    return (spot){index % across * width, at + index / across * PANEL};
}

ALWAYS_INLINE void copy_rows(uint8_t *to, size_t ld_to, const uint8_t *from, size_t ld_from, size_t rows, size_t bytes)
{
    for (size_t row = 0; row < rows; row++)
        memcpy(to + row * ld_to, from + row * ld_from, bytes);
}

ALWAYS_INLINE void rows_in(const plan *p, const uint8_t *codes, uint8_t *out, bool int4, bool packed)
{
    const size_t group = int4 ? 32 : 16, per_byte = packed ? 2 : 1, ld = p->args.ld;
    panel block;
    uint8_t edge[32 * WIDTH];
    for (size_t at = 0; at < p->column_bytes; at += PANEL) {
        const size_t bytes = p->column_bytes - at < PANEL ? p->column_bytes - at : PANEL;
        for (size_t n = 0; n < p->args.n; n += WIDTH * per_byte) {
            const size_t left = p->args.n - n, count = left < WIDTH * per_byte ? left : WIDTH * per_byte;
            const spot next = spot_ahead(p, n, at, WIDTH * per_byte, 1);
            const spot then = spot_ahead(p, n, at, WIDTH * per_byte, 2);
            const uint8_t *const expected = codes + then.at / 16 * group * ld + then.n / per_byte;
            expect_panel(p, out, next.n, count, next.at, bytes);
            for (size_t i = 0; i < bytes; i += 16) {
                const uint8_t *rows = codes + (at + i) / 16 * group * ld + n / per_byte;
                size_t rows_ld = ld;
                for (size_t row = 0; row < group; row++)
                    __builtin_prefetch(expected + (i / 16 * group + row) * ld, 0, 2);
                if (count < WIDTH * per_byte) {
                    copy_rows(edge, WIDTH, rows, ld, group, count / per_byte);
                    rows = edge;
                    rows_ld = WIDTH;
                }
                const lines even = lines_in(p, rows, rows_ld, int4, false);
                lines_to_panel(&even, &block, 0, per_byte, i);
                if (packed) {
                    const lines odd = lines_in(p, rows, rows_ld, int4, true);
                    lines_to_panel(&odd, &block, 1, per_byte, i);
                }
            }
            panel_out(p, &block, out, n, count, at, bytes);
        }
    }
}

ALWAYS_INLINE void rows_out(const plan *p, const uint8_t *in, uint8_t *codes, bool int4, bool packed)
{
    const size_t group = int4 ? 32 : 16, per_byte = packed ? 2 : 1, ld = p->args.ld;
    panel block;
    uint8_t edge[32 * WIDTH];
    for (size_t at = 0; at < p->column_bytes; at += PANEL) {
        const size_t bytes = p->column_bytes - at < PANEL ? p->column_bytes - at : PANEL;
        for (size_t n = 0; n < p->args.n; n += WIDTH * per_byte) {
            const size_t left = p->args.n - n, count = left < WIDTH * per_byte ? left : WIDTH * per_byte;
            const bool whole = count == WIDTH * per_byte;
            panel_in(p, &block, in, n, count, at, bytes);
            const spot next = spot_ahead(p, n, at, WIDTH * per_byte, 1);
            expect_panel(p, in, next.n, count, next.at, bytes);
            for (size_t i = 0; i < bytes; i += 16) {
                uint8_t *const rows = codes + (at + i) / 16 * group * ld + n / per_byte;
                for (size_t row = 0; row < group; row++)
                    __builtin_prefetch(rows + row * ld + LINE, 0, 2);
                const lines even = panel_to_lines(&block, 0, per_byte, i);
                lines odd;
                if (packed)
                    odd = panel_to_lines(&block, 1, per_byte, i);
                lines_out(p, &even, packed ? &odd : NULL, whole ? rows : edge, whole ? ld : WIDTH, int4);
                if (!whole)
                    copy_rows(rows, ld, edge, WIDTH, group, count / per_byte);
            }
        }
    }
}

/* ---- The two calls, by order and size of the codes. ---- */

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
