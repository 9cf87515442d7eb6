/* Computes scales, codes and errors of block FP8, block by block. */
#include "quantize/fp8_block.h"

#include "common/checked.h"
#include "common/float_bits.h"
#include "quantize/scales/stored_scale.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Some columns of a band, as BF16, which has its own kernels, or as F32; F16 is widened to F32. */
typedef struct block {
    const uint16_t *bf16;
    const float *f32;
    size_t rows, cols, ld;
    uint8_t *codes;
    size_t ld_codes;
} block;

/* Computes the codes of b. scales[i] belongs to its i-th block of `block_cols` columns. */
static void encode(const tsr_cpu_kernels *k, const block *b, size_t block_cols, const float *scales)
{
    if (b->bf16 != NULL)
        k->encode_e4m3_bf16(b->bf16, b->rows, b->cols, b->ld, block_cols, scales, b->codes, b->ld_codes);
    else
        k->encode_e4m3_f32(b->f32, b->rows, b->cols, b->ld, block_cols, scales, b->codes, b->ld_codes);
}

/* Returns columns [col, col + cols) of b. */
static block part_of(const block *b, size_t col, size_t cols)
{
    block part = *b;
    part.bf16 = b->bf16 == NULL ? NULL : b->bf16 + col;
    part.f32 = b->f32 == NULL ? NULL : b->f32 + col;
    part.codes = b->codes + col;
    part.cols = cols;
    return part;
}

static void measure(const tsr_cpu_kernels *k, const block *b, float scale, tsr_block_error *error)
{
    if (b->bf16 != NULL)
        k->error_e4m3_bf16(b->bf16, b->rows, b->cols, b->ld, b->codes, b->ld_codes, scale, error);
    else
        k->error_e4m3_f32(b->f32, b->rows, b->cols, b->ld, b->codes, b->ld_codes, scale, error);
}

static double element(const block *b, size_t row, size_t col)
{
    const size_t i = row * b->ld + col;
    return b->bf16 != NULL ? (double)tsr_f32_from_bf16(b->bf16[i]) : (double)b->f32[i];
}

/* Rounds a computed scale to the form in which the scheme stores it. */
static float as_stored(const tsr_fp8_block *scheme, const tsr_cpu_kernels *k, float scale)
{
    return tsr_stored_scale(scheme->scale_fmt == TSR_SCALE_BF16 ? TSR_BF16 : TSR_F32, scale, k);
}

static double squared_error(const tsr_block_error *error, float scale)
{
    return error->sum_e2 * scale * scale;
}

/* Searches for a better scale near the one from amax. That one is kept unless another is better by more than the
 * rounding error of the measure (FP32 partial sums: below 1e-4 of the sum, 1e-12 of the signal), so no block ever gets
 * worse. */
static float search_scale(const tsr_fp8_block *scheme, const tsr_cpu_kernels *k, const block *b, float amax_scale)
{
    enum { STEPS = 16 };
    static const double kGain = 1e-3, kNoise = 1e-10;
    /* 2^(i/16): e4m3's grid repeats in every octave, so without clipping there is nothing to gain beyond one octave
     * upward. */
    static const float kFactors[STEPS] = {
        0.957603281f, 1.044273782f, 1.090507733f, 1.138788635f, 1.189207115f, 1.241857812f, 1.296839555f, 1.354255547f,
        1.414213562f, 1.476826146f, 1.542210825f, 1.610490332f, 1.681792831f, 1.756252160f, 1.834008086f, 1.915206561f,
    };
    tsr_block_error error;
    encode(k, b, b->cols, &amax_scale);
    measure(k, b, amax_scale, &error);
    float best_scale = amax_scale;
    double best = squared_error(&error, amax_scale);
    const double noise = kNoise * error.sum_q2 * amax_scale * amax_scale;
    const int candidates = scheme->scale_fmt == TSR_SCALE_UE8M0 ? 1 : STEPS;
    for (int i = 0; i < candidates; i++) {
        const float factor = scheme->scale_fmt == TSR_SCALE_UE8M0 ? 0.5f : kFactors[i];
        const float scale = as_stored(scheme, k, amax_scale * factor);
        if (!(scale >= tsr_f32_from_bits(1u << 23)) || !isfinite(scale * TSR_E4M3_MAX))
            continue;
        encode(k, b, b->cols, &scale);
        measure(k, b, scale, &error);
        const double cost = squared_error(&error, scale);
        if (cost < best * (1 - kGain) - noise) {
            best = cost;
            best_scale = scale;
        }
    }
    return best_scale;
}

/* Returns the block's statistics in units of the weights; `first` is the flat index of its first element. */
static tsr_quant_stats block_stats(const tsr_fp8_band *band, const block *b, uint64_t first, float scale,
                                   uint32_t amax_bits, const tsr_block_error *error)
{
    const tsr_block_error e = *error;
    const double s2 = (double)scale * scale;
    const uint64_t columns = band->tensor->shape[band->tensor->rank - 1];
    const uint8_t code = b->codes[e.max_row * b->ld_codes + e.max_col];
    return (tsr_quant_stats){
        .elements = b->rows * b->cols,
        .nonzero = e.nonzero,
        .saturated = e.saturated,
        .flushed = e.flushed,
        .blocks = 1,
        .zero_blocks = amax_bits == 0,
        .worst_at = first,
        .worst_mse = e.sum_e2 * s2 / (double)(b->rows * b->cols),
        .sum_rms = sqrt(e.sum_q2 * s2 / (double)(b->rows * b->cols)),
        .sum_x2 = e.sum_q2 * s2,
        .sum_d2 = e.sum_e2 * s2,
        .sum_xy = e.sum_qv * s2,
        .sum_y2 = (2 * e.sum_qv - e.sum_q2 + e.sum_e2) * s2, /* y = x - d */
        .amax = tsr_f32_from_bits(amax_bits),
        .max_error = fabs(element(b, e.max_row, e.max_col) - (double)tsr_e4m3_to_f32(code) * scale),
        .max_error_at = first + e.max_row * columns + e.max_col,
    };
}

/* Reports the first NaN or Inf of a block; amax has shown that there is one. */
static tsr_status report_not_finite(const tsr_fp8_band *band, const block *b, uint64_t first, tsr_err *err)
{
    size_t row = 0, col = 0;
    while (isfinite(element(b, row, col))) {
        if (++col == b->cols) {
            col = 0;
            row++;
        }
    }
    const tsr_tensor *const t = band->tensor;
    const uint64_t columns = t->shape[t->rank - 1];
    uint64_t at = first + row * columns + col;
    char place[96], offset[48];
    tsr_offset_text(t, at, offset, sizeof offset);
    int used = 0;
    if (t->rank == 3) {
        used = snprintf(place, sizeof place, "%llu, ", (unsigned long long)(at / (columns * t->shape[1])));
        at %= columns * t->shape[1];
    }
    snprintf(place + used, sizeof place - (size_t)used, "%llu, %llu", (unsigned long long)(at / columns),
             (unsigned long long)(at % columns));
    return tsr_fail_tensor(err, TSR_ERROR_DAMAGED, TSR_E_VALUE, t->name,
                           "%s at [%s]%s: the source is damaged, or its training diverged; it cannot be quantized "
                           "(--exclude keeps the tensor unchanged)",
                           isnan(element(b, row, col)) ? "NaN" : "Inf", place, offset);
}

/* Blocks are processed in groups of about 2048 columns. A group gives long runs of memory, but is small enough that its
 * values are still in the cache from the amax pass when codes are computed. */
enum {
    GROUP_COLS = 2048,
    MAX_GROUP = GROUP_COLS, /* most blocks of a group */
    MAX_MEASURED = 64, /* most blocks that are measured while they are encoded; only very narrow blocks exceed it */
};

static size_t group_cols(const tsr_fp8_block *scheme)
{
    const size_t blocks = GROUP_COLS / scheme->block_cols;
    return (blocks == 0 ? 1 : blocks) * scheme->block_cols;
}

/* Returns the elements of a group that are widened to F32. */
static size_t widened(const tsr_fp8_block *scheme, tsr_dtype dtype)
{
    return dtype == TSR_F16 ? scheme->block_rows * group_cols(scheme) : 0;
}

/* Returns the elements of a block that are copied for the search of all scales. */
static size_t searched(const tsr_fp8_block *scheme)
{
    return scheme->search == TSR_SCALES_BEST ? (size_t)scheme->block_rows * scheme->block_cols : 0;
}

/* Scratch: a widened group, a searched block, and a row of a group with its decoded codes. */
size_t tsr_fp8_block_scratch(const tsr_fp8_block *scheme, tsr_dtype dtype)
{
    return (widened(scheme, dtype) + searched(scheme) + 2 * group_cols(scheme)) * sizeof(float);
}

/* Returns the band's columns [col, col + cols). F16 is widened into scratch. */
static block take_columns(const tsr_cpu_kernels *k, const tsr_fp8_band *band, uint64_t col, uint64_t cols)
{
    block b = {
        .rows = band->rows, .cols = cols, .ld = band->ld, .codes = band->codes + col, .ld_codes = band->ld_codes};
    switch (band->tensor->dtype) {
    case TSR_BF16:
        b.bf16 = (const uint16_t *)band->x + col;
        break;
    case TSR_F32:
        b.f32 = (const float *)band->x + col;
        break;
    default:
        for (uint64_t row = 0; row < band->rows; row++)
            k->widen_f16((const uint16_t *)band->x + row * band->ld + col, cols, band->scratch + row * cols);
        b.f32 = band->scratch;
        b.ld = cols;
    }
    return b;
}

static void find_amax(const tsr_cpu_kernels *k, const block *group, size_t width, uint32_t *amax)
{
    if (group->bf16 != NULL)
        k->amax_bf16(group->bf16, group->rows, group->cols, group->ld, width, amax);
    else
        k->amax_f32(group->f32, group->rows, group->cols, group->ld, width, amax);
}

static float scale_of(const tsr_fp8_block *scheme, const tsr_cpu_kernels *k, uint32_t amax_bits)
{
    return as_stored(scheme, k, tsr_e4m3_scale(amax_bits, scheme->scale_fmt == TSR_SCALE_UE8M0));
}

float tsr_fp8_scale(const tsr_fp8_block *scheme, const tsr_cpu_kernels *kernels, float amax)
{
    return scale_of(scheme, kernels, tsr_f32_bits(amax));
}

/* Computes amax, scales by the formula, and codes of a group. `given`: NULL, or the amax that determines all scales.
 * Returns true if it also measured them. */
static bool make_codes(const tsr_fp8_block *scheme, const tsr_cpu_kernels *k, const block *group, const float *given,
                       uint32_t *amax, float *scales, tsr_block_error errors[MAX_MEASURED])
{
    const size_t width = scheme->block_cols;
    if (group->bf16 != NULL && scheme->scale_fmt != TSR_SCALE_BF16 && given == NULL) {
        const bool measures = scheme->search == TSR_SCALES_AMAX && group->cols <= MAX_MEASURED * width;
        k->quantize_e4m3_bf16(group->bf16, group->rows, group->cols, group->ld, width,
                              scheme->scale_fmt == TSR_SCALE_UE8M0, amax, scales, group->codes, group->ld_codes,
                              measures ? errors : NULL);
        return measures;
    }
    find_amax(k, group, width, amax);
    for (size_t col = 0, i = 0; col < group->cols; col += width, i++)
        scales[i] = scale_of(scheme, k, given == NULL ? amax[i] : tsr_f32_bits(*given));
    encode(k, group, width, scales);
    return false;
}

static void note_peak(tsr_block_notes *notes, const tsr_fp8_band *band, const block *b, uint64_t first, float scale,
                      const tsr_quant_stats *cost)
{
    const uint64_t columns = band->tensor->shape[band->tensor->rank - 1], at = cost->max_error_at - first;
    const uint64_t row = at / columns, col = at % columns;
    tsr_block_note_peak(notes, cost->max_error, cost->max_error_at, (float)element(b, row, col),
                        tsr_e4m3_to_f32(b->codes[row * b->ld_codes + col]) * scale);
}

/* Counts the codes of a group. */
static void count_codes(const tsr_fp8_band *band, const block *group)
{
    const uint64_t row = band->first / band->tensor->shape[band->tensor->rank - 1];
    for (size_t r = 0; r < group->rows; r++)
        tsr_block_count(band->notes, row + r, group->codes + r * group->ld_codes, group->cols, false);
}

/* Adds the errors of the group's codes and scales; `first` is the flat index of its first element. `measured` NULL:
 * measures the blocks first. */
static tsr_status measure_group(const tsr_fp8_block *scheme, const tsr_cpu_kernels *k, const tsr_fp8_band *band,
                                const block *group, uint64_t first, const float *scales, const uint32_t *amax,
                                const tsr_block_error *measured, tsr_quant_stats *stats, tsr_err *err)
{
    const size_t width = scheme->block_cols;
    const uint64_t columns = band->tensor->shape[band->tensor->rank - 1];
    const tsr_block_line line = tsr_block_line_of(band->notes, first / columns);
    for (size_t col = 0, i = 0; col < group->cols; col += width, i++) {
        const block b = part_of(group, col, tsr_min_u64(width, group->cols - col));
        if (amax[i] >= TSR_FP32_INF_BITS)
            return report_not_finite(band, &b, first + col, err);
        tsr_block_error error;
        if (measured == NULL)
            measure(k, &b, scales[i], &error);
        const tsr_quant_stats cost =
            block_stats(band, &b, first + col, scales[i], amax[i], measured == NULL ? &error : &measured[i]);
        tsr_quant_stats_add(stats, &cost);
        if (band->notes == NULL)
            continue;
        tsr_block_note(band->notes, line, (first % columns + col) / width, sqrt(cost.worst_mse), scales[i], amax[i]);
        if (tsr_block_is_peak(band->notes, cost.max_error))
            note_peak(band->notes, band, &b, first + col, scales[i], &cost);
    }
    if (band->notes != NULL)
        count_codes(band, group);
    return TSR_OK;
}

static void search_group(const tsr_fp8_block *scheme, const tsr_cpu_kernels *k, const block *group, float *scales,
                         const uint32_t *amax)
{
    const size_t width = scheme->block_cols;
    for (size_t col = 0, i = 0; col < group->cols; col += width, i++) {
        if (amax[i] == 0 || amax[i] >= TSR_FP32_INF_BITS)
            continue;
        const block b = part_of(group, col, tsr_min_u64(width, group->cols - col));
        scales[i] = search_scale(scheme, k, &b, scales[i]);
        encode(k, &b, width, &scales[i]);
    }
}

/* Replaces the scales of a group by the best ones of all, and computes the codes. `dense` has a block of FP32. */
static void find_best(const tsr_fp8_block *scheme, const tsr_cpu_kernels *k, const block *group,
                      const float *importance, float *dense, float *scales, const uint32_t *amax)
{
    const size_t width = scheme->block_cols;
    for (size_t col = 0, i = 0; col < group->cols; col += width, i++) {
        if (amax[i] == 0 || amax[i] >= TSR_FP32_INF_BITS)
            continue;
        const block b = part_of(group, col, tsr_min_u64(width, group->cols - col));
        for (size_t row = 0; row < b.rows; row++) {
            if (b.bf16 != NULL)
                k->widen_bf16(b.bf16 + row * b.ld, b.cols, dense + row * b.cols);
            else
                memcpy(dense + row * b.cols, b.f32 + row * b.ld, b.cols * sizeof *dense);
        }
        k->best_fp8(dense, importance == NULL ? NULL : importance + col, b.rows, b.cols,
                    scheme->scale_fmt == TSR_SCALE_BF16, &scales[i]);
        encode(k, &b, width, &scales[i]);
    }
}

/* Adds the weighted errors of a group. `row` has two rows of the group in FP32. */
static void weigh_group(const tsr_fp8_block *scheme, const tsr_cpu_kernels *k, const block *group,
                        const float *importance, float *row, const float *scales, tsr_quant_stats *stats)
{
    float *const decoded = row + group->cols;
    for (size_t r = 0; r < group->rows; r++) {
        (void)k->decode_e4m3_f32(group->codes + r * group->ld_codes, 1, group->cols, group->ld_codes,
                                 scheme->block_cols, scales, decoded, group->cols);
        if (group->bf16 != NULL)
            k->widen_bf16(group->bf16 + r * group->ld, group->cols, row);
        tsr_quant_stats_add_weighted(stats, group->bf16 != NULL ? row : group->f32 + r * group->ld, decoded, importance,
                                     group->cols);
    }
}

/* Measures the codes of a band group by group, after it has made them if `encodes`. */
static tsr_status go_through(const tsr_fp8_block *scheme, const tsr_cpu_kernels *kernels, const tsr_fp8_band *band,
                             bool encodes, tsr_quant_stats *stats, tsr_err *err)
{
    const size_t step = group_cols(scheme);
    uint32_t amax[MAX_GROUP];
    const size_t copied = widened(scheme, (tsr_dtype)band->tensor->dtype); /* before a searched block in scratch */
    for (uint64_t col = 0; col < band->cols; col += step) {
        const float *const importance = band->importance == NULL ? NULL : band->importance + col;
        const block group = take_columns(kernels, band, col, tsr_min_u64(step, band->cols - col));
        float *const scales = band->scales + col / scheme->block_cols;
        tsr_block_error errors[MAX_MEASURED];
        bool measured = false;
        if (encodes)
            measured = make_codes(scheme, kernels, &group, band->amax, amax, scales, errors);
        else
            find_amax(kernels, &group, scheme->block_cols, amax);
        if (encodes && scheme->search == TSR_SCALES_MSE)
            search_group(scheme, kernels, &group, scales, amax);
        if (encodes && scheme->search == TSR_SCALES_BEST)
            find_best(scheme, kernels, &group, importance, band->scratch + copied, scales, amax);
        TSR_TRY(measure_group(scheme, kernels, band, &group, band->first + col, scales, amax, measured ? errors : NULL,
                              stats, err));
        if (importance != NULL)
            weigh_group(scheme, kernels, &group, importance, band->scratch + copied + searched(scheme), scales, stats);
    }
    return TSR_OK;
}

tsr_status tsr_fp8_block_quantize(const tsr_fp8_block *scheme, const tsr_cpu_kernels *kernels, const tsr_fp8_band *band,
                                  tsr_quant_stats *stats, tsr_err *err)
{
    return go_through(scheme, kernels, band, true, stats, err);
}

tsr_status tsr_fp8_block_measure(const tsr_fp8_block *scheme, const tsr_cpu_kernels *kernels, const tsr_fp8_band *band,
                                 tsr_quant_stats *stats, tsr_err *err)
{
    return go_through(scheme, kernels, band, false, stats, err);
}
