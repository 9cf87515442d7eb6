/* Converts from and to KN, where codes of one row are adjacent. Part of interleave_simd.h, which explains the
 * method. */
#pragma once

#include "kernels/cpu/x86/interleave_plan.h"

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

/* Four of these steps exchange line and byte. */
ALWAYS_INLINE lines transpose(const lines *x)
{
    const lines a = zip(x), b = zip(&a), c = zip(&b);
    return zip(&c);
}

/* Reads stored byte i of WIDTH columns as line i, from a group of rows; for packed codes of the even or the odd
 * columns. */
ALWAYS_INLINE lines lines_in(const plan *p, const uint8_t *rows, size_t ld, bool int4, bool odd)
{
    const vec bias = v_bytes(p->bias), low = v_bytes(0x0F);
    lines x;
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) {
        if (int4) {
            const vec lo = v_load(rows + p->order[2 * i] * ld), hi = v_load(rows + p->order[2 * i + 1] * ld);
            x.line[i] = v_xor(odd ? v_select(low, v_right16(lo, 4), hi) : v_select(low, lo, v_left16(hi, 4)), bias);
        } else {
            x.line[i] = v_xor(v_load(rows + p->order[i] * ld), bias);
        }
    }
    return x;
}

/* The inverse; `odd` has the lines of the odd columns of packed codes. */
ALWAYS_INLINE void lines_out(const plan *p, const lines *x, const lines *odd, uint8_t *rows, size_t ld, bool int4)
{
    const vec bias = v_bytes(p->bias), low = v_bytes(0x0F), eight = v_bytes(8);
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
            v_store(lo, v_select(low, stored, v_left16(other, 4)));
            v_store(hi, v_select(low, v_right16(stored, 4), other));
        } else {
            v_store(lo, v_sub8(v_xor(v_and(stored, low), eight), eight));
            v_store(hi, v_sub8(v_xor(v_and(v_right16(stored, 4), low), eight), eight));
        }
    }
}

/* PANEL stored bytes of some columns; each column is contiguous. */
typedef struct panel {
    uint8_t column[2 * WIDTH][PANEL];
} panel;

/* Copies lines of columns first, first + step, first + 2 * step ... to 16 bytes of each of those columns; the next
 * function is the inverse. */
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

/* The position in the layout of the stored bytes of column 0 from `at` on, and how many of `most` are contiguous. Those
 * of column n + c are n * column_bytes + c * tile_bytes further, if turns divides n and c < turns. */
typedef struct run {
    size_t offset, bytes;
} run;

ALWAYS_INLINE run run_of(const plan *p, size_t at, size_t most)
{
    const size_t tile = at / p->tile_bytes, in_tile = at % p->tile_bytes, left = p->tile_bytes - in_tile;
    return (run){tile * p->turns * p->tile_bytes + in_tile, most < left ? most : left};
}

/* Writes stored bytes at .. at + bytes of columns n .. n + count to the layout. All columns that alternate are
 * included. */
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

/* Rows and columns are too far apart for the hardware's prefetchers, so the next ones are prefetched explicitly, for
 * writing as for reading. The destination is L2, because strides of usual weights map to few sets of L1, which would
 * evict them. Prefetching past the end of the matrix is harmless. */
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

/* The panel that comes `steps` panels after the one at (n, at): further along, or, often in a narrow band, in the next
 * rows. */
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
