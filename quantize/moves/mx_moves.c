/* Converts codes of MXFP4 and block FP8 to other formats. */
#include "quantize/moves/mx_moves.h"

#include "common/checked.h"
#include "common/float_bits.h"

#include <math.h>
#include <string.h>

enum { GROUP_BYTES = TSR_MXFP4_GROUP / 2, NAN_SCALE = 255 };

static bool is_zero_group(const uint8_t *codes)
{
    unsigned any = 0;
    for (unsigned i = 0; i < GROUP_BYTES; i++)
        any |= codes[i];
    return (any & 0x77) == 0;
}

static tsr_status refuse_nan_scale(const tsr_mxfp4_rows *rows, uint64_t row, uint64_t group, tsr_err *err)
{
    return tsr_fail_tensor(
        err, TSR_ERROR_DAMAGED, TSR_E_VALUE, rows->tensor->name,
        "the scale of row %llu, columns %llu and on, is NaN (0xFF): not a valid scale; the checkpoint is damaged",
        U64(rows->row + row), U64(group * TSR_MXFP4_GROUP));
}

/* Some groups of some rows. */
typedef struct tile {
    const tsr_mxfp4_rows *rows;
    uint64_t first, groups; /* first group and number of groups in each row */
} tile;

static uint8_t scale_at(const tsr_mxfp4_rows *rows, uint64_t row, uint64_t group)
{
    return rows->scales[row * (rows->cols / TSR_MXFP4_GROUP) + group];
}

static const uint8_t *codes_at(const tsr_mxfp4_rows *rows, uint64_t row, uint64_t group)
{
    return rows->codes + row * (rows->cols / 2) + group * GROUP_BYTES;
}

/* Scales of groups that are not all zeros. */
typedef struct span {
    uint8_t least, largest; /* if `any` */
    bool any;
} span;

/* Finds the range of the tile's groups, and the largest scale including groups of zeros. */
static tsr_status find(const tile *t, span *range, uint8_t *all, tsr_err *err)
{
    for (uint64_t row = 0; row < t->rows->rows; row++) {
        for (uint64_t g = t->first; g < t->first + t->groups; g++) {
            const uint8_t scale = scale_at(t->rows, row, g);
            if (scale == NAN_SCALE)
                return refuse_nan_scale(t->rows, row, g, err);
            *all = scale > *all ? scale : *all;
            if (is_zero_group(codes_at(t->rows, row, g)))
                continue;
            range->largest = !range->any || scale > range->largest ? scale : range->largest;
            range->least = !range->any || scale < range->least ? scale : range->least;
            range->any = true;
        }
    }
    return TSR_OK;
}

/* ---- block FP8 ---- */

/* Computes the e4m3 codes of all 16 elements times 2^shift. Returns a bit for each element that has none. */
static unsigned products(int shift, uint8_t codes[16])
{
    unsigned missing = 0;
    for (unsigned code = 0; code < 16; code++) {
        const float x = ldexpf(tsr_e2m1_to_f32((uint8_t)code), shift);
        codes[code] = tsr_e4m3_from_f32(x);
        missing |= (unsigned)(tsr_e4m3_to_f32(codes[code]) != x) << code;
    }
    return missing;
}

/* Converts one group. Returns false if an element has no e4m3 code. */
static bool move_group(const uint8_t *from, const uint8_t codes[16], unsigned missing, uint8_t *to)
{
    unsigned used = 0;
    for (unsigned i = 0; i < GROUP_BYTES; i++) {
        const unsigned even = from[i] & 15, odd = from[i] >> 4;
        used |= 1u << even | 1u << odd;
        to[2 * i] = codes[even];
        to[2 * i + 1] = codes[odd];
    }
    return (used & missing) == 0;
}

/* Computes the tile's codes with the scale 2^(scale - 127). Returns false, with the position, if a product has no code
 * and rounding is not allowed. */
static bool move_tile(const tile *t, int scale, bool lossy, uint8_t *codes, uint64_t *row, uint64_t *group)
{
    int shift = INT32_MIN;
    uint8_t table[16];
    unsigned missing = 0;
    for (*row = 0; *row < t->rows->rows; ++*row) {
        for (*group = t->first; *group < t->first + t->groups; ++*group) {
            const int wanted = scale_at(t->rows, *row, *group) - scale;
            if (wanted != shift)
                missing = products(shift = wanted, table);
            if (!move_group(codes_at(t->rows, *row, *group), table, missing,
                            codes + *row * t->rows->cols + *group * TSR_MXFP4_GROUP) &&
                !lossy)
                return false;
        }
    }
    return true;
}

static tsr_status move_or_refuse(const tile *t, uint8_t *codes, uint8_t *scale, tsr_err *err)
{
    span range = {0};
    uint8_t all = 0;
    uint64_t row = 0, group = 0;
    TSR_TRY(find(t, &range, &all, err));
    const int with_zeros = all < 6 && !range.any ? 0 : all - 6, without = range.any ? range.largest - 6 : with_zeros;
    const int tries[2] = {with_zeros, without};
    for (unsigned i = 0; i < 2; i++) {
        *scale = (uint8_t)tries[i];
        if (tries[i] >= 0 && move_tile(t, tries[i], false, codes, &row, &group))
            return TSR_OK;
    }
    if (t->rows->lossy) {
        *scale = (uint8_t)(without < 0 ? 0 : without);
        (void)move_tile(t, *scale, true, codes, &row, &group);
        return TSR_OK;
    }
    const uint64_t col = t->first * TSR_MXFP4_GROUP;
    if (without < 0)
        return tsr_fail_tensor(err, TSR_ERROR_NONE, TSR_E_VALUE, t->rows->tensor->name,
                               "the tile from row %llu, column %llu has no scale above 2^-122: its FP8 scale would be "
                               "below 2^-127",
                               U64(t->rows->row), U64(col));
    return tsr_fail_tensor(
        err, TSR_ERROR_NONE, TSR_E_VALUE, t->rows->tensor->name,
        "the tile from row %llu, column %llu has scales from 2^%d to 2^%d, %d binades apart, and the codes of "
        "row %llu from column %llu on need digits below 2^-9: e4m3 cannot store them, so this is not lossless",
        U64(t->rows->row), U64(col), range.least - 127, range.largest - 127, range.largest - range.least,
        U64(t->rows->row + row), U64(group * TSR_MXFP4_GROUP));
}

tsr_status tsr_mxfp4_to_fp8(const tsr_mxfp4_rows *band, uint64_t block, uint8_t *codes, uint8_t *tiles, tsr_err *err)
{
    const uint64_t groups = band->cols / TSR_MXFP4_GROUP, wide = block / TSR_MXFP4_GROUP;
    for (uint64_t first = 0; first < groups; first += wide, tiles++) {
        const tile t = {band, first, tsr_min_u64(wide, groups - first)};
        TSR_TRY(move_or_refuse(&t, codes, tiles, err));
    }
    return TSR_OK;
}

/* ---- NVFP4 ---- */

enum { TOP = 8, BINADES = 17 }; /* e4m3's powers of two: 2^8 ... 2^-9 */

float tsr_mxfp4_global(uint8_t largest)
{
    return tsr_f32_from_e8m0((uint8_t)(largest - TOP));
}

tsr_status tsr_mxfp4_to_nvfp4(const tsr_mxfp4_rows *rows, uint8_t largest, uint8_t *scales, tsr_err *err)
{
    const uint64_t groups = rows->cols / TSR_MXFP4_GROUP;
    for (uint64_t row = 0; row < rows->rows; row++) {
        for (uint64_t g = 0; g < groups; g++, scales += 2) {
            const uint8_t scale = scale_at(rows, row, g);
            const int exponent = scale - largest + TOP;
            if (scale == NAN_SCALE)
                return refuse_nan_scale(rows, row, g, err);
            const bool zeros = is_zero_group(codes_at(rows, row, g));
            const bool outside = !zeros && (exponent > TOP || exponent < TOP - BINADES);
            if (outside && !rows->lossy)
                return tsr_fail_tensor(
                    err, TSR_ERROR_NONE, TSR_E_VALUE, rows->tensor->name,
                    "the scale of row %llu, columns %llu and on, is 2^%d, %d binades below the "
                    "largest beside the same global scale, 2^%d: NVFP4 holds %d, so this is not lossless",
                    U64(rows->row + row), U64(g * TSR_MXFP4_GROUP), scale - 127, largest - scale, largest - 127,
                    BINADES);
            scales[0] = scales[1] = zeros || outside ? 0x01 : tsr_e4m3_from_f32(ldexpf(1, exponent));
        }
    }
    return TSR_OK;
}

void tsr_mxfp4_shrink(const tsr_mxfp4_rows *rows, uint8_t largest, uint8_t *codes)
{
    const uint64_t groups = rows->cols / TSR_MXFP4_GROUP;
    for (uint64_t row = 0; row < rows->rows; row++) {
        for (uint64_t g = 0; g < groups; g++) {
            const int below = TOP - BINADES - (scale_at(rows, row, g) - largest + TOP);
            uint8_t *const to = codes + row * (rows->cols / 2) + g * GROUP_BYTES;
            if (below <= 0 || is_zero_group(to))
                continue;
            for (unsigned i = 0; i < GROUP_BYTES; i++) {
                const unsigned even = tsr_e2m1_from_f32(ldexpf(tsr_e2m1_to_f32(to[i] & 15), -below));
                const unsigned odd = tsr_e2m1_from_f32(ldexpf(tsr_e2m1_to_f32(to[i] >> 4), -below));
                to[i] = (uint8_t)(even | odd << 4);
            }
        }
    }
}

tsr_status tsr_nvfp4_other_global(const tsr_tensor *tensor, float global, float *other, bool *exact, tsr_err *err)
{
    *other = 1 / global;
    if (!(isfinite(global) && global > 0 && isfinite(*other) && *other > 0))
        return tsr_fail_tensor(err, TSR_ERROR_NONE, TSR_E_VALUE, tensor->name,
                               "neither the scale %g nor its reciprocal may be zero, negative or infinite",
                               (double)global);
    *exact = 1 / *other == global;
    return TSR_OK;
}

/* ---- MXFP8 ---- */

/* Returns the E8M0 byte of a scale in *byte. Returns false if it is not a power of two within 2^-127 ... 2^127. */
static bool power_of(float scale, uint8_t *byte)
{
    const uint32_t bits = tsr_f32_bits(scale);
    *byte = (uint8_t)(bits >> 23);
    return (bits & 0x807FFFFF) == 0 ? *byte != 0 && *byte != NAN_SCALE : bits == 1u << 22; /* 2^-127 is subnormal */
}

bool tsr_is_e8m0(float scale)
{
    uint8_t byte;
    return power_of(scale, &byte);
}

/* Computes the bytes of one row's groups, from the row of the stored grid that contains it. */
static tsr_status take_powers(const tsr_cpu_kernels *kernels, const tsr_fp8_rect *rect, uint64_t grid_row,
                              uint8_t *scales, tsr_err *err)
{
    const tsr_weight *const w = rect->weight;
    const uint64_t above = grid_row - rect->row / w->block.rows, groups = w->cols / 32;
    const uint64_t per_block = tsr_min_u64(w->block.cols, w->cols) / 32;
    const char *const from = (const char *)rect->scales;
    for (uint64_t j = 0; j * per_block < groups; j++) {
        float scale;
        uint8_t byte;
        tsr_widen_to_f32(kernels, (tsr_dtype)w->scale_dtype,
                         from + (above * w->grid_cols + j) * tsr_dtype_bytes((tsr_dtype)w->scale_dtype), 1, &scale);
        TSR_TRY(tsr_check_scales(w, rect->matrix, grid_row, j, &scale, 1, err));
        if (!power_of(scale, &byte))
            return tsr_fail_tensor(err, TSR_ERROR_NONE, TSR_E_VALUE, w->scale->name,
                                   "the scale at [%llu, %llu] of matrix %llu is %g, not a power of two: MXFP8 cannot "
                                   "store it, so this is not lossless",
                                   U64(grid_row), U64(j), U64(rect->matrix), (double)scale);
        memset(scales + j * per_block, byte, tsr_min_u64(per_block, groups - j * per_block));
    }
    return TSR_OK;
}

tsr_status tsr_fp8_to_mxfp8(const tsr_cpu_kernels *kernels, const tsr_fp8_rect *rect, uint8_t *scales, tsr_err *err)
{
    const tsr_weight *const w = rect->weight;
    const uint64_t groups = w->cols / 32;
    if (w->cols % 32 != 0 || (w->block.cols < w->cols && w->block.cols % 32 != 0))
        return tsr_fail_tensor(err, TSR_ERROR_NONE, TSR_E_SHAPE, w->scale->name,
                               "%llu columns in blocks of %llu cannot be split into groups of 32", U64(w->cols),
                               U64(w->block.cols));
    for (uint64_t r = 0; r < rect->rows; r++) {
        uint8_t *const to = scales + r * groups;
        const uint64_t row = rect->row + r;
        if (r == 0 || row % w->block.rows == 0)
            TSR_TRY(take_powers(kernels, rect, row / w->block.rows, to, err));
        else
            memcpy(to, to - groups, groups);
    }
    return TSR_OK;
}
