/* Shuffle tables and column geometry for interleave_simd.h, which explains the terms. */
#pragma once

#include "kernels/cpu/interleave.h"
#include "kernels/cpu/variants.h"

#include <string.h>

enum { WIDTH = 16 * LANES, PANEL = 64, LINE = 64 };

/* `format` as tables for byte shuffles, and the matrix as columns in any layout. */
typedef struct plan {
    tsr_interleave_args args;
    bool int4;
    uint8_t order[32];            /* `order` of the format */
    uint8_t gather[16];           /* int8: the code of a lane that is stored i-th; int4: the two codes of pair i */
    uint8_t scatter[16];          /* the inverse */
    uint8_t merge[16], split[16]; /* int4: pairs 0-7 of the first and of the second 16 rows -> stored bytes; and the
                                   * inverse */
    uint8_t bias;                 /* for a whole byte */
    size_t column_bytes;          /* bytes of a stored column */
    size_t tile_bytes;            /* contiguous bytes of a column */
    size_t turns;                 /* columns that alternate, tile by tile */
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
            return false; /* words that span rows are rare, and left to the reference */
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
    return (tables){v_lanes(p->gather), v_lanes(p->scatter), v_lanes(p->merge), v_lanes(p->split), v_bytes(p->bias)};
}
