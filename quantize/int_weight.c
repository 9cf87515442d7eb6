/* Computes scales, zero points and codes, group by group. */
#include "quantize/int_weight.h"

#include "common/checked.h"
#include "common/float_bits.h"
#include "quantize/fp8_decode.h"
#include "quantize/scales/stored_scale.h"

#include <math.h>
#include <string.h>

uint64_t tsr_int_groups(const tsr_int_scheme *scheme, uint64_t cols)
{
    return scheme->group == 0 ? 1 : tsr_ceil_div(cols, scheme->group);
}

/* Scratch for quantizing a row: the row in FP32, unless it is BF16; the decoded codes; range, scale and zero point of
 * each group; trial codes of a search. */
typedef struct room {
    float *f32, *decoded, *low, *high, *scale, *zero;
    uint32_t *amax;
    float *e2; /* mean squared errors in units of the scale */
    tsr_block_band band;
    float *best; /* for a search of all scales */
    int8_t *trial;
} room;

enum { GROUP_ARRAYS = 9 /* including the band's three arrays */ };

static room divide(const tsr_int_scheme *scheme, uint64_t cols, void *scratch)
{
    const uint64_t groups = tsr_int_groups(scheme, cols);
    room r = {.f32 = scratch};
    r.decoded = r.f32 + cols;
    r.low = r.decoded + cols;
    r.high = r.low + groups;
    r.scale = r.high + groups;
    r.zero = r.scale + groups;
    r.amax = (uint32_t *)(r.zero + groups);
    r.e2 = (float *)(r.amax + groups);
    r.band = tsr_block_band_of(r.e2 + groups, groups, 1);
    r.best = (float *)((char *)(r.e2 + groups) + TSR_BLOCK_BAND_BYTES(groups));
    r.trial = (int8_t *)r.best;
    return r;
}

size_t tsr_int_scratch(const tsr_int_scheme *scheme, uint64_t cols)
{
    const uint64_t width = scheme->group == 0 ? cols : scheme->group;
    const size_t searching = scheme->search == TSR_SCALES_MSE    ? cols
                             : scheme->search == TSR_SCALES_BEST ? TSR_BEST_INT4_SCRATCH(width) * sizeof(float)
                                                                 : 0;
    return (2 * cols + GROUP_ARRAYS * tsr_int_groups(scheme, cols)) * sizeof(float) + searching;
}

/* A row of the source: BF16 unchanged, other dtypes in FP32. */
typedef struct source {
    const uint16_t *bf16;
    const float *f32;
} source;

static source part_of(source x, uint64_t col)
{
    return (source){x.bf16 == NULL ? NULL : x.bf16 + col, x.f32 == NULL ? NULL : x.f32 + col};
}

static void encode(const tsr_cpu_kernels *k, source x, uint64_t cols, uint64_t group, const tsr_int_row *row,
                   int8_t *codes)
{
    if (x.bf16 != NULL)
        k->encode_int_bf16(x.bf16, cols, group, row, codes);
    else
        k->encode_int_f32(x.f32, cols, group, row, codes);
}

static void measure(const tsr_cpu_kernels *k, source x, uint64_t cols, uint64_t group, const tsr_int_row *row,
                    const int8_t *codes, tsr_int_error *errors)
{
    if (x.bf16 != NULL)
        k->error_int_bf16(x.bf16, cols, group, row, codes, errors);
    else
        k->error_int_f32(x.f32, cols, group, row, codes, errors);
}

/* Returns the encoding chosen for group g of a row. */
static tsr_int_code code_at(const tsr_int_scheme *scheme, const room *r, uint64_t g)
{
    const float lowest = scheme->bits == 8 ? -128 : -8;
    return (tsr_int_code){.scale = r->scale[g], .zero = r->zero[g], .low = lowest, .high = -lowest - 1};
}

/* Returns the encodings chosen for group g and later groups. */
static tsr_int_row row_at(const tsr_int_scheme *scheme, const room *r, uint64_t g)
{
    const tsr_int_code first = code_at(scheme, r, g);
    return (tsr_int_row){
        .scale = r->scale + g,
        .zero = scheme->asymmetric ? r->zero + g : NULL,
        .amax = r->amax + g,
        .low = first.low,
        .high = first.high,
        .away = scheme->away,
        .bf16 = scheme->in_bf16,
    };
}

/* Chooses scale and zero point of group g after multiplying its range by `shrink`. */
static void choose_code(const tsr_int_scheme *scheme, const tsr_cpu_kernels *k, const room *r, uint64_t g, float shrink)
{
    const float lowest = scheme->bits == 8 ? -128 : -8, highest = -lowest - 1;
    const float low = r->low[g], high = r->high[g], amax = -low > high ? -low : high;
    r->scale[g] = scheme->in_bf16 ? 0x1p-7f : 1; /* BF16's epsilon, as in compressed-tensors */
    r->zero[g] = 0;
    if (amax == 0)
        return;
    float width = scheme->asymmetric ? (high - low) / (highest - lowest) : amax / scheme->divisor;
    if (isinf(width)) /* only the difference exceeds FP32 */
        width = high / (highest - lowest) - low / (highest - lowest);
    r->scale[g] = tsr_stored_scale(scheme->scale_dtype, fmaxf(width * shrink, 0x1p-149f), k);
    if (!scheme->asymmetric)
        return;
    const float zero = lowest - low * shrink / r->scale[g];
    r->zero[g] = (float)lrintf(zero < lowest ? lowest : zero > highest ? highest : zero);
}

/* Tries scales that clip increasingly on group g of n columns, and keeps the best one with its codes. */
static void search(const tsr_int_scheme *scheme, const tsr_cpu_kernels *k, source x, uint64_t n, const room *r,
                   uint64_t g, int8_t *codes)
{
    enum { STEPS = 12 };
    const tsr_int_row row = row_at(scheme, r, g);
    tsr_int_code kept = code_at(scheme, r, g);
    tsr_int_error cost;
    measure(k, x, n, n, &row, codes, &cost);
    double best = cost.sum_e2 * (double)kept.scale * (double)kept.scale;
    for (int i = 1; i <= STEPS && best > 0; i++) {
        choose_code(scheme, k, r, g, 1 - 0.04f * (float)i);
        const tsr_int_code other = code_at(scheme, r, g);
        encode(k, x, n, n, &row, r->trial);
        measure(k, x, n, n, &row, r->trial, &cost);
        const double loss = cost.sum_e2 * (double)other.scale * (double)other.scale;
        if (loss < best * 0.999) { /* a gain above the rounding error of the measure */
            best = loss;
            kept = other;
            memcpy(codes, r->trial, n);
        }
    }
    r->scale[g] = kept.scale;
    r->zero[g] = kept.zero;
}

static float element(source x, uint64_t i)
{
    return x.bf16 == NULL ? x.f32[i] : tsr_f32_from_bf16(x.bf16[i]);
}

static tsr_status report_not_finite(const tsr_int_rows *rows, uint64_t row, uint64_t col, source x, tsr_err *err)
{
    uint64_t i = 0;
    while (isfinite(element(x, i)))
        i++;
    const tsr_tensor *const t = rows->tensor;
    const uint64_t at = (rows->row + row) * t->shape[1] + col + i;
    char offset[48];
    return tsr_fail_tensor(err, TSR_ERROR_DAMAGED, TSR_E_VALUE, t->name,
                           "%s at [%llu, %llu]%s: the source is damaged, or its training diverged (--exclude keeps "
                           "the tensor unchanged)",
                           isnan(element(x, i)) ? "NaN" : "Inf", U64(rows->row + row), U64(col + i),
                           tsr_offset_text(t, at, offset, sizeof offset));
}

/* Computes amax of all groups and, if it is finite, the range: min <= 0 <= max; symmetric: -amax and amax. */
static void find_ranges(const tsr_int_scheme *scheme, const tsr_cpu_kernels *k, source x, uint64_t cols, uint64_t width,
                        const room *r)
{
    const uint64_t groups = tsr_int_groups(scheme, cols);
    if (x.bf16 != NULL && scheme->asymmetric) {
        k->range_groups_bf16(x.bf16, cols, width, r->low, r->high);
        for (uint64_t g = 0; g < groups; g++) {
            uint32_t low, high;
            memcpy(&low, &r->low[g], sizeof low);
            memcpy(&high, &r->high[g], sizeof high);
            low &= 0x7FFFFFFF;
            r->amax[g] = low > high ? low : high;
        }
        return;
    }
    if (x.bf16 != NULL)
        k->amax_groups_bf16(x.bf16, cols, width, r->amax);
    else
        k->amax_f32(x.f32, 1, cols, cols, width, r->amax);
    for (uint64_t g = 0; g < groups; g++) {
        memcpy(&r->high[g], &r->amax[g], sizeof *r->high);
        r->low[g] = -r->high[g];
        if (scheme->asymmetric)
            k->range_f32(x.f32 + g * width, tsr_min_u64(width, cols - g * width), &r->low[g], &r->high[g]);
    }
}

/* Replaces scale and zero point of each group by the best ones of all. */
static void find_best(const tsr_int_scheme *scheme, const tsr_cpu_kernels *k, source x, uint64_t cols, uint64_t width,
                      const float *importance, const room *r)
{
    const tsr_best_int4 candidates = {
        .f16 = scheme->scale_dtype == TSR_F16, .zero_points = scheme->asymmetric, .away = scheme->away};
    if (x.bf16 != NULL)
        k->widen_bf16(x.bf16, cols, r->f32);
    for (uint64_t col = 0, g = 0; col < cols; col += width, g++)
        k->best_int4((x.bf16 != NULL ? r->f32 : x.f32) + col, importance == NULL ? NULL : importance + col,
                     tsr_min_u64(width, cols - col), &candidates, r->best, &r->scale[g], &r->zero[g]);
}

/* Computes scales and codes of one row. Reports NaN and Inf before it computes codes. */
static tsr_status quantize_row(const tsr_int_scheme *scheme, const tsr_cpu_kernels *k, const tsr_int_rows *rows,
                               uint64_t row, source x, const room *r, int8_t *codes, tsr_err *err)
{
    const tsr_tensor *const t = rows->tensor;
    const uint64_t cols = t->shape[1], width = scheme->group == 0 ? cols : scheme->group;
    const uint64_t groups = tsr_int_groups(scheme, cols);
    find_ranges(scheme, k, x, cols, width, r);
    for (uint64_t g = 0; g < groups; g++) {
        const uint64_t col = g * width;
        if (r->amax[g] >= TSR_FP32_INF_BITS)
            return report_not_finite(rows, row, col, part_of(x, col), err);
        choose_code(scheme, k, r, g, 1);
        if (isinf(r->scale[g]))
            return tsr_fail_tensor(
                err, TSR_ERROR_NONE, TSR_E_VALUE, t->name,
                "the scale of row %llu, columns %llu and on, is beyond %s: choose another --scale-dtype",
                U64(rows->row + row), U64(col), tsr_dtype_name(scheme->scale_dtype));
    }
    if (scheme->search == TSR_SCALES_BEST)
        find_best(scheme, k, x, cols, width, rows->importance, r);
    const tsr_int_row all = row_at(scheme, r, 0);
    encode(k, x, cols, width, &all, codes);
    for (uint64_t g = 0; scheme->search == TSR_SCALES_MSE && g < groups; g++) {
        const uint64_t col = g * width;
        search(scheme, k, part_of(x, col), tsr_min_u64(width, cols - col), r, g, codes + col);
    }
    return TSR_OK;
}

/* Adds the errors of the codes of a group of n elements x. `first` is the flat index of its first element in the
 * tensor, `noted` that in the block statistics. */
static void add_cost(source x, uint64_t n, const tsr_int_code *code, const int8_t *codes, float amax, uint64_t first,
                     uint64_t noted, const tsr_int_error *error, tsr_block_notes *notes, tsr_quant_stats *stats)
{
    const double size = (double)error->max_e * (double)code->scale;
    const bool largest = tsr_quant_stats_add_group(stats, error, code->scale, amax, n, first);
    const bool peak = notes != NULL && tsr_block_is_peak(notes, size);
    if (!largest && !peak)
        return;
    const uint64_t at = tsr_int_error_at(x.bf16, x.f32, n, code, codes, error);
    stats->max_error_at = largest ? first + at : stats->max_error_at;
    if (peak)
        tsr_block_note_peak(notes, size, noted + at, element(x, at), ((float)codes[at] - code->zero) * code->scale);
}

/* Adds the weighted errors of a row's codes. */
static void weigh_row(const tsr_int_scheme *scheme, const tsr_cpu_kernels *k, const float *importance, source x,
                      uint64_t cols, const room *r, const int8_t *codes, tsr_quant_stats *stats)
{
    const uint64_t width = scheme->group == 0 ? cols : scheme->group;
    if (x.bf16 != NULL)
        k->widen_bf16(x.bf16, cols, r->f32);
    for (uint64_t col = 0, g = 0; col < cols; col += width, g++)
        k->decode_int_f32(codes + col, tsr_min_u64(width, cols - col), r->zero[g], r->scale[g], r->decoded + col);
    tsr_quant_stats_add_weighted(stats, x.bf16 != NULL ? r->f32 : x.f32, r->decoded, importance, cols);
}

/* Adds the errors of a row's codes; `row` counts from the first of `rows`. */
static void measure_row(const tsr_int_scheme *scheme, const tsr_cpu_kernels *k, const tsr_int_rows *rows, uint64_t row,
                        source x, const room *r, const int8_t *codes, tsr_quant_stats *stats)
{
    enum { TOGETHER = 64 }; /* groups */
    const uint64_t cols = rows->tensor->shape[1], width = scheme->group == 0 ? cols : scheme->group;
    const uint64_t first = (rows->row + row) * cols, noted = (rows->rows_before + rows->row + row) * cols;
    tsr_int_error errors[TOGETHER];
    for (uint64_t col = 0, g = 0; col < cols; col += width, g++) {
        const uint64_t n = tsr_min_u64(width, cols - col);
        const tsr_int_row from = row_at(scheme, r, g);
        const tsr_int_code code = code_at(scheme, r, g);
        float amax;
        if (g % TOGETHER == 0)
            measure(k, part_of(x, col), tsr_min_u64(TOGETHER * width, cols - col), width, &from, codes + col, errors);
        memcpy(&amax, &r->amax[g], sizeof amax);
        add_cost(part_of(x, col), n, &code, codes + col, amax, first + col, noted + col, &errors[g % TOGETHER],
                 rows->notes, stats);
        r->e2[g] = (float)(errors[g % TOGETHER].sum_e2 / (double)n);
    }
    if (rows->importance != NULL)
        weigh_row(scheme, k, rows->importance, x, cols, r, codes, stats);
}

/* Returns row `row` of x. F16 and F32 are widened or copied to `f32`. */
static source take_row(const tsr_cpu_kernels *k, const tsr_int_rows *rows, uint64_t row, float *f32)
{
    const tsr_dtype dtype = (tsr_dtype)rows->tensor->dtype;
    const uint64_t cols = rows->tensor->shape[1];
    const void *const from = (const char *)rows->x + row * cols * tsr_dtype_bytes(dtype);
    if (dtype == TSR_BF16)
        return (source){.bf16 = from};
    tsr_widen_to_f32(k, dtype, from, cols, f32);
    return (source){.f32 = f32};
}

/* Adds a row's errors to the statistics of the tensor and to those of its blocks. */
static void add_row(const tsr_int_scheme *scheme, const tsr_cpu_kernels *k, const tsr_int_rows *rows, uint64_t row,
                    source x, room *r, tsr_quant_stats *stats)
{
    const uint64_t cols = rows->tensor->shape[1], noted = rows->rows_before + rows->row + row;
    measure_row(scheme, k, rows, row, x, r, rows->codes + row * cols, stats);
    if (rows->notes == NULL)
        return;
    tsr_block_band_add(rows->notes, &r->band, k, noted, r->e2, r->scale, r->amax);
    tsr_block_count(rows->notes, noted, rows->codes + row * cols, cols, false);
}

tsr_status tsr_int_quantize(const tsr_int_scheme *scheme, const tsr_cpu_kernels *kernels, const tsr_int_rows *rows,
                            tsr_quant_stats *stats, tsr_err *err)
{
    const uint64_t cols = rows->tensor->shape[1], groups = tsr_int_groups(scheme, cols);
    room r = divide(scheme, cols, rows->scratch);
    for (uint64_t row = 0; row < rows->rows; row++) {
        const source x = take_row(kernels, rows, row, r.f32);
        TSR_TRY(quantize_row(scheme, kernels, rows, row, x, &r, rows->codes + row * cols, err));
        for (uint64_t g = 0; g < groups; g++) {
            rows->scales[row * groups + g] = r.amax[g] == 0 && scheme->zero_scale ? 0 : r.scale[g];
            if (rows->zero_points != NULL)
                rows->zero_points[row * groups + g] = (int8_t)r.zero[g];
        }
        if (stats != NULL)
            add_row(scheme, kernels, rows, row, x, &r, stats);
    }
    if (stats != NULL)
        tsr_block_band_end(rows->notes, &r.band);
    return TSR_OK;
}

void tsr_int_measure(const tsr_int_scheme *scheme, const tsr_cpu_kernels *kernels, const tsr_int_rows *rows,
                     tsr_quant_stats *stats)
{
    const uint64_t cols = rows->tensor->shape[1], groups = tsr_int_groups(scheme, cols);
    room r = divide(scheme, cols, rows->scratch);
    for (uint64_t row = 0; row < rows->rows; row++) {
        const source x = take_row(kernels, rows, row, r.f32);
        find_ranges(scheme, kernels, x, cols, scheme->group == 0 ? cols : scheme->group, &r);
        for (uint64_t g = 0; g < groups; g++) {
            r.scale[g] = rows->scales[row * groups + g];
            r.zero[g] = rows->zero_points == NULL ? 0 : rows->zero_points[row * groups + g];
        }
        add_row(scheme, kernels, rows, row, x, &r, stats);
    }
    tsr_block_band_end(rows->notes, &r.band);
}
