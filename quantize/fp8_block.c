/* Scales, codes and error of block FP8, block by block. */
#include "quantize/fp8_block.h"

#include "formats/checked.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static float from_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static uint32_t to_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* The next power of two at or above x, by the bits: exponent plus one if there is a mantissa; clamped to 2^-126..2^127.
 */
static float ceil_power_of_two(float x)
{
    const uint32_t bits = to_bits(x);
    uint32_t exponent = (bits >> 23) + ((bits & 0x7FFFFF) != 0);
    exponent = exponent < 1 ? 1 : exponent > 254 ? 254 : exponent;
    return from_bits(exponent << 23);
}

float tsr_fp8_block_scale(uint32_t amax_bits, tsr_scale_fmt fmt)
{
    if (amax_bits == 0)
        return 1.0f;
    float scale = from_bits(amax_bits) / TSR_E4M3_MAX;
    if (scale == 0) /* only F32 sources reach below 448 times the smallest subnormal */
        scale = from_bits(1);
    return fmt == TSR_SCALE_UE8M0 ? ceil_power_of_two(scale) : scale;
}

/* One block, whatever its dtype: BF16 has kernels of its own, F16 comes here widened to F32. */
typedef struct block {
    const uint16_t *bf16;
    const float *f32;
    size_t rows, cols, ld;
    uint8_t *codes;
    size_t ld_codes;
} block;

static uint32_t block_amax(const tsr_cpu_kernels *k, const block *b)
{
    return b->bf16 != NULL ? k->amax_bf16(b->bf16, b->rows, b->cols, b->ld)
                           : k->amax_f32(b->f32, b->rows, b->cols, b->ld);
}

static void encode(const tsr_cpu_kernels *k, const block *b, float scale)
{
    if (b->bf16 != NULL)
        k->encode_e4m3_bf16(b->bf16, b->rows, b->cols, b->ld, scale, b->codes, b->ld_codes);
    else
        k->encode_e4m3_f32(b->f32, b->rows, b->cols, b->ld, scale, b->codes, b->ld_codes);
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
    return b->bf16 != NULL ? (double)from_bits((uint32_t)b->bf16[i] << 16) : (double)b->f32[i];
}

static double squared_error(const tsr_block_error *error, float scale)
{
    return error->sum_e2 * scale * scale;
}

/* Candidates around the amax scale; the first, amax itself, stays unless another is better by more than the measure's
 * own rounding (FP32 lanes: below 1e-4 of the sum, 1e-12 of the signal), so that no block ever does worse. */
static float search_scale(const tsr_fp8_block *scheme, const tsr_cpu_kernels *k, const block *b, float amax_scale)
{
    enum { STEPS = 16 };
    static const double kGain = 1e-3, kNoise = 1e-10;
    /* 2^(i/16): e4m3 repeats itself every octave, so one octave upward is all there is to gain without clipping. */
    static const float kFactors[STEPS] = {
        0.957603281f, 1.044273782f, 1.090507733f, 1.138788635f, 1.189207115f, 1.241857812f, 1.296839555f, 1.354255547f,
        1.414213562f, 1.476826146f, 1.542210825f, 1.610490332f, 1.681792831f, 1.756252160f, 1.834008086f, 1.915206561f,
    };
    tsr_block_error error;
    encode(k, b, amax_scale);
    measure(k, b, amax_scale, &error);
    float best_scale = amax_scale;
    double best = squared_error(&error, amax_scale);
    const double noise = kNoise * error.sum_q2 * amax_scale * amax_scale;
    const int candidates = scheme->scale_fmt == TSR_SCALE_UE8M0 ? 1 : STEPS;
    for (int i = 0; i < candidates; i++) {
        const float scale = amax_scale * (scheme->scale_fmt == TSR_SCALE_UE8M0 ? 0.5f : kFactors[i]);
        if (!(scale >= from_bits(1u << 23)) || !isfinite(scale * TSR_E4M3_MAX))
            continue;
        encode(k, b, scale);
        measure(k, b, scale, &error);
        const double cost = squared_error(&error, scale);
        if (cost < best * (1 - kGain) - noise) {
            best = cost;
            best_scale = scale;
        }
    }
    return best_scale;
}

/* The block's statistics in units of the weights; `first` is the flat index of its first element. */
static tsr_quant_stats block_stats(const tsr_cpu_kernels *k, const tsr_fp8_band *band, const block *b, uint64_t first,
                                   float scale, uint32_t amax_bits)
{
    tsr_block_error e;
    measure(k, b, scale, &e);
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
        .sum_x2 = e.sum_q2 * s2,
        .sum_d2 = e.sum_e2 * s2,
        .sum_xy = e.sum_qv * s2,
        .sum_y2 = (2 * e.sum_qv - e.sum_q2 + e.sum_e2) * s2, /* y = x - d */
        .amax = from_bits(amax_bits),
        .max_error = fabs(element(b, e.max_row, e.max_col) - (double)tsr_e4m3_to_f32(code) * scale),
        .max_error_at = first + e.max_row * columns + e.max_col,
    };
}

/* Names the first NaN or Inf of a block that amax says has one. */
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
    const uint64_t offset = t->offset + at * tsr_dtype_bytes(t->dtype);
    char place[96];
    int used = 0;
    if (t->rank == 3) {
        used = snprintf(place, sizeof place, "%llu, ", (unsigned long long)(at / (columns * t->shape[1])));
        at %= columns * t->shape[1];
    }
    snprintf(place + used, sizeof place - (size_t)used, "%llu, %llu", (unsigned long long)(at / columns),
             (unsigned long long)(at % columns));
    return tsr_fail(err, TSR_E_VALUE,
                    "'%s': %s at [%s], file offset %llu: the source is damaged, or its training "
                    "diverged; nothing sound can be made of it (--exclude keeps the tensor as it is)",
                    t->name, isnan(element(b, row, col)) ? "NaN" : "Inf", place, (unsigned long long)offset);
}

/* The band's columns [col, col + cols) as a block. F16 is widened into the scratch. */
static block take_block(const tsr_cpu_kernels *k, const tsr_fp8_band *band, uint64_t col, uint64_t cols)
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

tsr_status tsr_fp8_block_quantize(const tsr_fp8_block *scheme, const tsr_cpu_kernels *kernels, const tsr_fp8_band *band,
                                  tsr_quant_stats *stats, tsr_err *err)
{
    for (uint64_t col = 0, i = 0; col < band->cols; col += scheme->block_cols, i++) {
        const block b = take_block(kernels, band, col, tsr_min_u64(scheme->block_cols, band->cols - col));
        const uint32_t amax_bits = block_amax(kernels, &b);
        if (amax_bits >= TSR_FP32_INF_BITS)
            return report_not_finite(band, &b, band->first + col, err);
        float scale = tsr_fp8_block_scale(amax_bits, scheme->scale_fmt);
        if (scheme->search && amax_bits != 0)
            scale = search_scale(scheme, kernels, &b, scale);
        band->scales[i] = scale;
        encode(kernels, &b, scale);
        const tsr_quant_stats cost = block_stats(kernels, band, &b, band->first + col, scale, amax_bits);
        tsr_quant_stats_add(stats, &cost);
    }
    return TSR_OK;
}
