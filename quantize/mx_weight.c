/* Computes scales and codes of the microscaling formats, row by row. */
#include "quantize/mx_weight.h"

#include "common/float_bits.h"
#include "quantize/scales/four_six.h"
#include "quantize/scales/mx_best.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- schemes ---- */

/* Returns the mantissa field of amax above which the exponent is rounded up. */
static uint32_t limit_of(const tsr_mx_scheme *scheme)
{
    switch (scheme->rule) {
    case TSR_MX_FLOOR:
        return 0x7FFFFF;
    case TSR_MX_EVEN:
        return 0x5FFFFF; /* from 1.75 on */
    case TSR_MX_RCEIL:
        return scheme->element == TSR_MX_E2M1 ? 0x400000 : 0x600000; /* 6 = 1.5 * 2^2, 448 = 1.75 * 2^8 */
    default:
        return 0;
    }
}

static int emax_of(const tsr_mx_scheme *scheme)
{
    return scheme->element == TSR_MX_E2M1 ? 2 : 8;
}

static tsr_e2m1_rounding rounding_of(const tsr_mx_scheme *scheme, tsr_dtype source)
{
    if (scheme->scale != TSR_MX_E8M0)
        return TSR_E2M1_EVEN;
    if (scheme->ties_down)
        return TSR_E2M1_DOWN;
    return source == TSR_BF16 ? TSR_E2M1_EVEN_BF16 : TSR_E2M1_EVEN;
}

/* ---- rows ---- */

/* Scratch for quantizing a row: the row in FP32, unless it is BF16; the decoded codes; for each group amax as FP32
 * bits, t, and the error of its codes. A search adds the least error of each group, and the t, scales and codes of a
 * trial. */
typedef struct room {
    double *best;
    float *f32, *decoded, *t, *q2, *e2, *qv, *trial_t;
    uint32_t *amax;
    tsr_block_band band;
    uint8_t *found, *trial_scales, *trial_codes;
} room;

static room divide(const tsr_mx_scheme *scheme, uint64_t cols, void *scratch)
{
    const uint64_t groups = cols / scheme->group;
    room r = {.best = scratch};
    r.f32 = (float *)(r.best + groups);
    r.decoded = r.f32 + cols;
    r.t = r.decoded + cols;
    r.q2 = r.t + groups;
    r.e2 = r.q2 + groups;
    r.qv = r.e2 + groups;
    r.trial_t = r.qv + groups;
    r.amax = (uint32_t *)(r.trial_t + groups);
    r.band = tsr_block_band_of(r.amax + groups, groups, sqrtf(1 / (float)scheme->group));
    r.found = (uint8_t *)(r.amax + groups) + TSR_BLOCK_BAND_BYTES(groups);
    r.trial_scales = r.found + groups;
    r.trial_codes = r.trial_scales + groups;
    return r;
}

size_t tsr_mx_scratch(const tsr_mx_scheme *scheme, uint64_t cols)
{
    const uint64_t groups = cols / scheme->group;
    return groups * (sizeof(double) + 6 * sizeof(float) + TSR_BLOCK_BAND_BYTES(1) + 2) + 2 * cols * sizeof(float) +
           tsr_mx_code_bytes(scheme->element, cols);
}

/* A row of the source: BF16 unchanged, other dtypes in FP32. */
typedef struct source {
    const uint16_t *bf16;
    const float *f32;
} source;

static float element(source x, uint64_t i)
{
    return x.bf16 == NULL ? x.f32[i] : tsr_f32_from_bf16(x.bf16[i]);
}

static uint64_t cols_of(const tsr_mx_rows *rows)
{
    return rows->tensor->shape[rows->tensor->rank - 1];
}

/* Returns row `row` of x. F16 and F32 are copied to `f32`, also F32, because a row in a file may be unaligned. */
static source take_row(const tsr_cpu_kernels *k, const tsr_mx_rows *rows, uint64_t row, float *f32)
{
    const uint64_t cols = cols_of(rows);
    const tsr_dtype dtype = (tsr_dtype)rows->tensor->dtype;
    const char *const from = (const char *)rows->x + row * cols * tsr_dtype_bytes(dtype);
    if (dtype == TSR_BF16)
        return (source){.bf16 = (const uint16_t *)(const void *)from};
    if (dtype == TSR_F16)
        k->widen_f16((const uint16_t *)(const void *)from, cols, f32);
    else
        memcpy(f32, from, cols * sizeof *f32);
    return (source){.f32 = f32};
}

/* Formats a position: "[3, 17]", or "[2, 3, 17]" in a stack of matrices. */
static const char *place_of(const tsr_mx_rows *rows, uint64_t row, uint64_t col, char *text, size_t size)
{
    const tsr_tensor *const t = rows->tensor;
    row += rows->row;
    if (t->rank == 3)
        snprintf(text, size, "[%llu, %llu, %llu]", U64(row / t->shape[1]), U64(row % t->shape[1]), U64(col));
    else
        snprintf(text, size, "[%llu, %llu]", U64(row), U64(col));
    return text;
}

static const char *offset_of(const tsr_mx_rows *rows, uint64_t row, uint64_t col, char *text, size_t size)
{
    return tsr_offset_text(rows->tensor, (rows->row + row) * cols_of(rows) + col, text, size);
}

static tsr_status report_not_finite(const tsr_mx_rows *rows, uint64_t row, source x, tsr_err *err)
{
    uint64_t col = 0;
    char place[96], offset[48];
    while (isfinite(element(x, col)))
        col++;
    return tsr_fail_tensor(
        err, TSR_ERROR_DAMAGED, TSR_E_VALUE, rows->tensor->name,
        "%s at %s%s: the source is damaged, or its training diverged (--exclude keeps the tensor unchanged)",
        isnan(element(x, col)) ? "NaN" : "Inf", place_of(rows, row, col, place, sizeof place),
        offset_of(rows, row, col, offset, sizeof offset));
}

/* Computes amax of each group of a row. Reports NaN and Inf. */
static tsr_status find_amax(const tsr_cpu_kernels *k, const tsr_mx_rows *rows, uint64_t row, source x, uint64_t group,
                            uint32_t *amax, tsr_err *err)
{
    const uint64_t cols = cols_of(rows);
    if (x.bf16 != NULL)
        k->amax_groups_bf16(x.bf16, cols, group, amax);
    else
        k->amax_f32(x.f32, 1, cols, cols, group, amax);
    uint32_t largest = 0;
    for (uint64_t g = 0; g < cols / group; g++)
        largest = amax[g] > largest ? amax[g] : largest;
    return largest >= TSR_FP32_INF_BITS ? report_not_finite(rows, row, x, err) : TSR_OK;
}

tsr_status tsr_mx_amax(const tsr_cpu_kernels *kernels, const tsr_mx_rows *rows, float *amax, tsr_err *err)
{
    const uint64_t cols = cols_of(rows);
    for (uint64_t row = 0; row < rows->rows && cols > 0; row++) {
        uint32_t largest;
        const source x = take_row(kernels, rows, row, rows->scratch);
        TSR_TRY(find_amax(kernels, rows, row, x, cols, &largest, err));
        *amax = fmaxf(*amax, tsr_f32_from_bits(largest));
    }
    return TSR_OK;
}

/* Computes the codes of n columns, whole groups, with their t. `scales` is only used for E4M3 elements. */
static void encode(const tsr_mx_scheme *scheme, const tsr_cpu_kernels *k, source x, uint64_t n, const float *t,
                   const uint8_t *scales, tsr_dtype dtype, uint8_t *codes)
{
    if (scheme->element == TSR_MX_E4M3) {
        if (x.bf16 != NULL)
            k->encode_mxfp8_bf16(x.bf16, n, scales, codes);
        else
            k->encode_e4m3_f32(x.f32, 1, n, n, scheme->group, t, codes, n);
    } else if (x.bf16 != NULL) {
        k->encode_e2m1_bf16(x.bf16, n, scheme->group, t, rounding_of(scheme, dtype), codes);
    } else {
        k->encode_e2m1_f32(x.f32, n, scheme->group, t, rounding_of(scheme, dtype), codes);
    }
}

/* Returns the error sums of the codes of n columns, per group, in units of t. */
static tsr_mx_error measure(const tsr_mx_scheme *scheme, const tsr_cpu_kernels *k, source x, uint64_t n, const float *t,
                            const uint8_t *codes, const room *r)
{
    tsr_mx_error error = {.q2 = r->q2, .e2 = r->e2, .qv = r->qv};
    if (scheme->element == TSR_MX_E2M1 && x.bf16 != NULL)
        k->error_e2m1_bf16(x.bf16, n, scheme->group, t, codes, &error);
    else if (scheme->element == TSR_MX_E2M1)
        k->error_e2m1_f32(x.f32, n, scheme->group, t, codes, &error);
    else if (x.bf16 != NULL)
        k->error_mxfp8_bf16(x.bf16, n, t, codes, &error);
    else
        k->error_mxfp8_f32(x.f32, n, t, codes, &error);
    return error;
}

/* ---- the search ---- */

/* Returns the squared error of the codes of a group, in units of the weights. */
static double loss_of(const room *r, uint64_t g, float t)
{
    return (double)r->e2[g] * (double)TSR_MX_UNIT(t) * (double)TSR_MX_UNIT(t);
}

/* Chooses the trial scale of each group, `step` bytes from the first one; the first one again if there is no other. */
static void choose_trials(const tsr_mx_scheme *scheme, float global, const uint8_t *first, uint64_t groups, int step,
                          const room *r)
{
    for (uint64_t g = 0; g < groups; g++)
        r->trial_scales[g] = (uint8_t)(tsr_mx_is_scale(scheme->scale, first[g] + step) ? first[g] + step : first[g]);
    tsr_mx_scale_values(scheme->scale, global, r->trial_scales, groups, r->trial_t);
    for (uint64_t g = 0; g < groups; g++) {
        const float t = r->trial_t[g];
        if (r->amax[g] != 0 && r->t[g] != 0 && t != 0 && !tsr_mx_may_reach_infinity(scheme->element, t))
            continue;
        r->trial_scales[g] = first[g];
        r->trial_t[g] = r->t[g];
    }
}

/* Tries the neighbouring scales of all groups of a row, and keeps the best ones with their codes. E8M0: one binade up
 * and two down. E4M3: from half an octave below to the next above, since 4 may be the largest element instead of 6. */
static void search(const tsr_mx_scheme *scheme, const tsr_cpu_kernels *k, const tsr_mx_rows *rows, source x,
                   const room *r, uint8_t *scales, uint8_t *codes)
{
    const double kGain = 0.999; /* above the rounding error of the measure */
    const int below = scheme->scale == TSR_MX_E8M0 ? 2 : 4, above = scheme->scale == TSR_MX_E8M0 ? 1 : 5;
    const uint64_t cols = cols_of(rows), groups = cols / scheme->group;
    const tsr_dtype dtype = (tsr_dtype)rows->tensor->dtype;
    measure(scheme, k, x, cols, r->t, codes, r);
    for (uint64_t g = 0; g < groups; g++)
        r->best[g] = loss_of(r, g, r->t[g]);
    memcpy(r->found, scales, groups);
    for (int step = -below; step <= above; step++) {
        choose_trials(scheme, rows->global, scales, groups, step, r);
        encode(scheme, k, x, cols, r->trial_t, r->trial_scales, dtype, r->trial_codes);
        measure(scheme, k, x, cols, r->trial_t, r->trial_codes, r);
        for (uint64_t g = 0; g < groups; g++) {
            const double loss = loss_of(r, g, r->trial_t[g]);
            if (r->trial_scales[g] == scales[g] || !(loss < r->best[g] * kGain))
                continue;
            r->best[g] = loss;
            r->found[g] = r->trial_scales[g];
        }
    }
    memcpy(scales, r->found, groups);
    tsr_mx_scale_values(scheme->scale, rows->global, scales, groups, r->t);
    encode(scheme, k, x, cols, r->t, scales, dtype, codes);
}

/* Replaces the scales of a row by the best ones of all. */
static void find_best(const tsr_mx_scheme *scheme, const tsr_cpu_kernels *k, const tsr_mx_rows *rows, source x,
                      const room *r, uint8_t *scales)
{
    const uint64_t cols = cols_of(rows);
    if (x.bf16 != NULL)
        k->widen_bf16(x.bf16, cols, r->f32);
    tsr_mx_best_scales(scheme->element, scheme->scale, k, rows->global, x.bf16 != NULL ? r->f32 : x.f32,
                       rows->importance, cols, scales);
    tsr_mx_scale_values(scheme->scale, rows->global, scales, cols / scheme->group, r->t);
}

/* Chooses between the scales for largest elements of 6 and 4. */
static void choose_four_six(const tsr_mx_scheme *scheme, const tsr_cpu_kernels *k, const tsr_mx_rows *rows, source x,
                            const room *r, uint8_t *scales, uint8_t *codes)
{
    const tsr_four_six row = {.bf16 = x.bf16,
                              .f32 = x.f32,
                              .n = cols_of(rows),
                              .group_amax = r->amax,
                              .multiplies = scheme->scale == TSR_MX_E4M3_TIMES,
                              .global = rows->global,
                              .amax = rows->amax,
                              .six = scales,
                              .four = r->trial_scales,
                              .six_t = r->t,
                              .four_t = r->trial_t,
                              .six_codes = codes,
                              .four_codes = r->trial_codes,
                              .norms = r->best,
                              .error = {.q2 = r->q2, .e2 = r->e2, .qv = r->qv}};
    tsr_four_six_choose(k, &row);
}

/* ---- quantizing ---- */

static void choose_scales(const tsr_mx_scheme *scheme, const tsr_cpu_kernels *k, const tsr_mx_rows *rows,
                          uint64_t groups, const room *r, uint8_t *scales)
{
    if (scheme->scale == TSR_MX_E8M0) {
        k->scale_e8m0(r->amax, groups, limit_of(scheme), emax_of(scheme), scales, r->t);
        return;
    }
    const tsr_nvfp4_recipe recipe = {.global = rows->global,
                                     .multiplies = scheme->scale == TSR_MX_E4M3_TIMES,
                                     .bf16_quotient = rows->tensor->dtype == TSR_BF16};
    k->scale_nvfp4(r->amax, groups, &recipe, scales, r->t);
}

static float value_of(const tsr_mx_scheme *scheme, const uint8_t *codes, uint64_t i)
{
    return scheme->element == TSR_MX_E4M3 ? tsr_e4m3_to_f32(codes[i]) : tsr_e2m1_to_f32(codes[i / 2] >> i % 2 * 4);
}

/* Rejects overflow: a weight near the end of FP32's range may round to a code that readers decode to infinity. */
static tsr_status refuse_overflow(const tsr_mx_scheme *scheme, const tsr_mx_rows *rows, uint64_t row, uint64_t g,
                                  float t, const uint8_t *codes, tsr_err *err)
{
    for (uint64_t i = 0; i < scheme->group; i++) {
        const float v = value_of(scheme, codes, i);
        char place[96], offset[48];
        if (fabsf(v * t) < 0x1.FFp127f)
            continue;
        const uint64_t col = g * scheme->group + i;
        return tsr_fail_tensor(err, TSR_ERROR_NONE, TSR_E_VALUE, rows->tensor->name,
                               "the weight at %s%s, is so large that it rounds to infinity: it cannot be quantized "
                               "(--exclude keeps the tensor unchanged)",
                               place_of(rows, row, col, place, sizeof place),
                               offset_of(rows, row, col, offset, sizeof offset));
    }
    return TSR_OK;
}

/* Returns the number of elements of a group that clamping moved. The largest element decides it in most cases. */
static uint64_t count_saturated(const tsr_mx_scheme *scheme, source x, uint64_t g, float t, uint32_t amax)
{
    if (amax == 0)
        return 0;
    const float beyond = (scheme->element == TSR_MX_E4M3 ? 464 : 7) * TSR_MX_UNIT(t);
    uint64_t found = 0;
    if (!(tsr_f32_from_bits(amax) > beyond))
        return 0;
    for (uint64_t i = g * scheme->group; i < (g + 1) * scheme->group; i++)
        found += fabsf(element(x, i)) > beyond;
    return found;
}

/* Returns the first column of a row with the largest error, computed as the kernels do. Most groups cannot contain
 * it. */
static uint64_t find_largest(const tsr_mx_scheme *scheme, source x, const uint8_t *codes, uint64_t groups,
                             const room *r, float largest)
{
    const double least = (double)largest * (double)largest * 0.999, underflow = 0x1p-100;
    for (uint64_t g = 0; g < groups; g++) {
        const float unit = TSR_MX_UNIT(r->t[g]), boost = TSR_MX_BOOST(unit), inverse = 1 / (unit * boost);
        if (loss_of(r, g, unit) < least && (double)r->e2[g] > underflow)
            continue;
        for (uint64_t i = g * scheme->group; i < (g + 1) * scheme->group; i++) {
            if (fabsf(element(x, i) * boost * inverse - value_of(scheme, codes, i)) * unit == largest)
                return i;
        }
    }
    return 0;
}

/* Adds the errors of a row's codes. `first` is the flat index of its first element, and `largest_at` the column of the
 * largest error, which is used if it is the largest so far. */
static void add_stats(const tsr_mx_scheme *scheme, source x, uint64_t groups, const room *r, const tsr_mx_error *error,
                      uint64_t first, uint64_t largest_at, tsr_quant_stats *stats)
{
    const double each = 1 / (double)scheme->group;
    tsr_quant_stats cost = {.elements = groups * scheme->group,
                            .nonzero = error->nonzero,
                            .flushed = error->flushed,
                            .blocks = groups,
                            .max_error = (double)error->largest};
    uint32_t amax = 0;
    uint64_t worst = 0;
    for (uint64_t g = 0; g < groups; g++) {
        const double s = (double)TSR_MX_UNIT(r->t[g]), s2 = s * s, x2 = (double)r->q2[g] * s2;
        const double d2 = (double)r->e2[g] * s2;
        cost.sum_x2 += x2;
        cost.sum_d2 += d2;
        cost.sum_xy += (double)r->qv[g] * s2;
        cost.sum_rms += sqrt(x2 * each);
        cost.zero_blocks += r->amax[g] == 0;
        cost.saturated += count_saturated(scheme, x, g, r->t[g], r->amax[g]);
        worst = d2 > cost.worst_mse ? g : worst;
        cost.worst_mse = d2 > cost.worst_mse ? d2 : cost.worst_mse;
        amax = r->amax[g] > amax ? r->amax[g] : amax;
    }
    cost.sum_y2 = 2 * cost.sum_xy - cost.sum_x2 + cost.sum_d2; /* y = x - d */
    cost.worst_mse *= each;
    cost.worst_at = first + worst * scheme->group;
    cost.amax = (double)tsr_f32_from_bits(amax);
    cost.max_error_at = first + largest_at;
    tsr_quant_stats_add(stats, &cost);
}

/* Adds the weighted errors of a row's codes. */
static void weigh_row(const tsr_mx_scheme *scheme, const tsr_cpu_kernels *k, const float *importance, source x,
                      uint64_t cols, const uint8_t *codes, const room *r, tsr_quant_stats *stats)
{
    if (x.bf16 != NULL)
        k->widen_bf16(x.bf16, cols, r->f32);
    if (scheme->element == TSR_MX_E4M3)
        (void)k->decode_e4m3_f32(codes, 1, cols, cols, scheme->group, r->t, r->decoded, cols);
    else
        k->decode_e2m1_f32(codes, cols, scheme->group, r->t, r->decoded);
    tsr_quant_stats_add_weighted(stats, x.bf16 != NULL ? r->f32 : x.f32, r->decoded, importance, cols);
}

/* Measures row `row` of all rows and matrices. */
static void measure_row(const tsr_mx_scheme *scheme, const tsr_cpu_kernels *k, const tsr_mx_rows *rows, uint64_t row,
                        source x, const uint8_t *codes, room *r, tsr_quant_stats *stats)
{
    const uint64_t cols = cols_of(rows), groups = cols / scheme->group, first = row * cols;
    tsr_block_notes *const notes = rows->notes;
    const tsr_mx_error error = measure(scheme, k, x, cols, r->t, codes, r);
    const double largest = (double)error.largest;
    const bool is_peak = notes != NULL && tsr_block_is_peak(notes, largest);
    const bool wanted = is_peak || largest > stats->max_error;
    const uint64_t at = wanted ? find_largest(scheme, x, codes, groups, r, error.largest) : 0;
    add_stats(scheme, x, groups, r, &error, first, at, stats);
    if (rows->importance != NULL)
        weigh_row(scheme, k, rows->importance, x, cols, codes, r, stats);
    if (notes == NULL)
        return;
    tsr_block_band_add(notes, &r->band, k, row, r->e2, r->t, r->amax);
    if (is_peak)
        tsr_block_note_peak(notes, largest, first + at, element(x, at),
                            value_of(scheme, codes, at) * r->t[at / scheme->group]);
    tsr_block_count(notes, row, codes, tsr_mx_code_bytes(scheme->element, cols), scheme->element == TSR_MX_E2M1);
}

static tsr_status quantize_row(const tsr_mx_scheme *scheme, const tsr_cpu_kernels *k, const tsr_mx_rows *rows,
                               uint64_t row, room *r, tsr_quant_stats *stats, tsr_err *err)
{
    const uint64_t cols = cols_of(rows), groups = cols / scheme->group;
    const uint64_t group_bytes = tsr_mx_code_bytes(scheme->element, scheme->group);
    uint8_t *const codes = rows->codes + row * groups * group_bytes, *const scales = rows->scales + row * groups;
    const source x = take_row(k, rows, row, r->f32);
    TSR_TRY(find_amax(k, rows, row, x, scheme->group, r->amax, err));
    choose_scales(scheme, k, rows, groups, r, scales);
    if (scheme->search == TSR_SCALES_BEST)
        find_best(scheme, k, rows, x, r, scales);
    if (scheme->search == TSR_SCALES_FOUR_SIX)
        choose_four_six(scheme, k, rows, x, r, scales, codes);
    else
        encode(scheme, k, x, cols, r->t, scales, (tsr_dtype)rows->tensor->dtype, codes);
    if (scheme->search == TSR_SCALES_MSE)
        search(scheme, k, rows, x, r, scales, codes);
    for (uint64_t g = 0; g < groups; g++) {
        if (tsr_mx_may_reach_infinity(scheme->element, r->t[g]))
            TSR_TRY(refuse_overflow(scheme, rows, row, g, r->t[g], codes + g * group_bytes, err));
        if (rows->scale_values != NULL)
            rows->scale_values[row * groups + g] = r->amax[g] == 0 ? 1 : r->t[g];
    }
    if (stats != NULL)
        measure_row(scheme, k, rows, rows->row + row, x, codes, r, stats);
    return TSR_OK;
}

tsr_status tsr_mx_quantize(const tsr_mx_scheme *scheme, const tsr_cpu_kernels *kernels, const tsr_mx_rows *rows,
                           tsr_quant_stats *stats, tsr_err *err)
{
    const uint64_t cols = cols_of(rows);
    if (cols % scheme->group != 0)
        return tsr_fail_tensor(err, TSR_ERROR_NONE, TSR_E_SHAPE, rows->tensor->name,
                               "%llu columns are not a multiple of the group size %u", U64(cols), scheme->group);
    room r = divide(scheme, cols, rows->scratch);
    for (uint64_t row = 0; row < rows->rows; row++)
        TSR_TRY(quantize_row(scheme, kernels, rows, row, &r, stats, err));
    tsr_block_band_end(rows->notes, &r.band);
    return TSR_OK;
}

tsr_status tsr_mx_measure(const tsr_mx_scheme *scheme, const tsr_cpu_kernels *kernels, const tsr_mx_rows *rows,
                          tsr_quant_stats *stats, tsr_err *err)
{
    const uint64_t cols = cols_of(rows), groups = cols / scheme->group;
    room r = divide(scheme, cols, rows->scratch);
    for (uint64_t row = 0; row < rows->rows; row++) {
        const source x = take_row(kernels, rows, row, r.f32);
        const uint8_t *const codes = rows->codes + row * tsr_mx_code_bytes(scheme->element, cols);
        TSR_TRY(find_amax(kernels, rows, row, x, scheme->group, r.amax, err));
        tsr_mx_scale_values(scheme->scale, rows->global, rows->scales + row * groups, groups, r.t);
        measure_row(scheme, kernels, rows, rows->row + row, x, codes, &r, stats);
    }
    tsr_block_band_end(rows->notes, &r.band);
    return TSR_OK;
}
