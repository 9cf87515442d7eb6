/* Scales, zero points and codes, group by group. */
#include "quantize/int_weight.h"

#include "formats/checked.h"
#include "quantize/fp8_decode.h"

#include <math.h>
#include <string.h>

#define U64(x) ((unsigned long long)(x))

uint64_t tsr_int_groups(const tsr_int_scheme *scheme, uint64_t cols)
{
    return scheme->group == 0 ? 1 : tsr_ceil_div(cols, scheme->group);
}

/* A row in FP32, and the codes that a search tries. */
size_t tsr_int_scratch(const tsr_int_scheme *scheme, uint64_t cols)
{
    return tsr_round_up(cols * sizeof(float), 64) + (scheme->search ? cols : 0);
}

/* The nearest value of the dtype in which scales are stored; never zero. */
static float stored_scale(tsr_dtype dtype, float scale, const tsr_cpu_kernels *k)
{
    float back;
    if (dtype == TSR_F32)
        return scale;
    if (dtype == TSR_BF16) {
        const uint32_t bits = (uint32_t)tsr_bf16_from_f32(scale) << 16;
        memcpy(&back, &bits, sizeof back);
        return back > 0 ? back : 0x1p-133f;
    }
    const uint16_t half = tsr_f16_from_f32(scale);
    k->widen_f16(&half, 1, &back);
    return back > 0 ? back : 0x1p-24f;
}

static void choose_code(const tsr_int_scheme *scheme, const tsr_cpu_kernels *k, float low, float high, float shrink,
                        tsr_int_code *code)
{
    const float lowest = scheme->bits == 8 ? -128 : -8, highest = -lowest - 1;
    const float amax = fmaxf(-low, high);
    *code = (tsr_int_code){.scale = 1, .low = lowest, .high = highest, .away = scheme->away};
    if (amax == 0)
        return;
    float width = scheme->asymmetric ? (high - low) / (highest - lowest) : amax / scheme->divisor;
    if (isinf(width)) /* the difference alone is beyond FP32 */
        width = high / (highest - lowest) - low / (highest - lowest);
    code->scale = stored_scale(scheme->scale_dtype, fmaxf(width * shrink, 0x1p-149f), k);
    if (scheme->asymmetric)
        code->zero = rintf(fminf(fmaxf(lowest - low * shrink / code->scale, lowest), highest));
}

/* One group: its scale, codes and error; *code and *error say what was chosen. */
static void quantize_group(const tsr_int_scheme *scheme, const tsr_cpu_kernels *k, const float *x, uint64_t n,
                           float low, float high, int8_t *codes, int8_t *trial, tsr_int_code *code,
                           tsr_int_error *error)
{
    enum { STEPS = 12 };
    choose_code(scheme, k, low, high, 1, code);
    k->quantize_int(x, n, code, codes, error);
    double best = error->sum_e2 * (double)code->scale * (double)code->scale;
    for (int i = 1; scheme->search && i <= STEPS && best > 0; i++) {
        tsr_int_code other;
        tsr_int_error cost;
        choose_code(scheme, k, low, high, 1 - 0.04f * (float)i, &other);
        k->quantize_int(x, n, &other, trial, &cost);
        const double loss = cost.sum_e2 * (double)other.scale * (double)other.scale;
        if (loss < best * 0.999) { /* a gain above the rounding of the measure */
            best = loss;
            *code = other;
            *error = cost;
            memcpy(codes, trial, n);
        }
    }
}

static tsr_status report_not_finite(const tsr_int_rows *rows, uint64_t row, uint64_t col, const float *x, tsr_err *err)
{
    uint64_t i = 0;
    while (isfinite(x[i]))
        i++;
    const tsr_tensor *const t = rows->tensor;
    const uint64_t at = (rows->row + row) * t->shape[1] + col + i;
    return tsr_fail(err, TSR_E_VALUE,
                    "'%s': %s at [%llu, %llu], file offset %llu: the source is damaged, or its training diverged "
                    "(--exclude keeps the tensor as it is)",
                    t->name, isnan(x[i]) ? "NaN" : "Inf", U64(rows->row + row), U64(col + i),
                    U64(t->offset + at * tsr_dtype_bytes((tsr_dtype)t->dtype)));
}

static void add_stats(tsr_quant_stats *stats, const tsr_int_error *e, const tsr_int_code *code, float amax, uint64_t n,
                      uint64_t first)
{
    const double s = (double)code->scale, s2 = s * s;
    const tsr_quant_stats cost = {
        .elements = n,
        .nonzero = e->nonzero,
        .saturated = e->saturated,
        .flushed = e->flushed,
        .blocks = 1,
        .zero_blocks = amax == 0,
        .sum_x2 = e->sum_q2 * s2,
        .sum_d2 = e->sum_e2 * s2,
        .sum_xy = e->sum_qv * s2,
        .sum_y2 = (2 * e->sum_qv - e->sum_q2 + e->sum_e2) * s2, /* y = x - d */
        .amax = (double)amax,
        .max_error = (double)e->max_e * s,
        .max_error_at = first + e->max_at,
    };
    tsr_quant_stats_add(stats, &cost);
}

tsr_status tsr_int_quantize(const tsr_int_scheme *scheme, const tsr_cpu_kernels *kernels, const tsr_int_rows *rows,
                            tsr_quant_stats *stats, tsr_err *err)
{
    const tsr_tensor *const t = rows->tensor;
    const uint64_t cols = t->shape[1], width = scheme->group == 0 ? cols : scheme->group;
    const uint64_t groups = tsr_int_groups(scheme, cols);
    float *const x = rows->scratch;
    int8_t *const trial = (int8_t *)rows->scratch + tsr_round_up(cols * sizeof(float), 64);
    for (uint64_t r = 0; r < rows->rows; r++) {
        const size_t bytes = tsr_dtype_bytes((tsr_dtype)t->dtype);
        tsr_widen_to_f32(kernels, (tsr_dtype)t->dtype, (const char *)rows->x + r * cols * bytes, cols, x);
        for (uint64_t g = 0; g < groups; g++) {
            const uint64_t col = g * width, n = tsr_min_u64(width, cols - col);
            uint32_t amax_bits;
            float amax, low = 0, high = 0;
            kernels->amax_f32(x + col, 1, n, n, n, &amax_bits);
            if (amax_bits >= TSR_FP32_INF_BITS)
                return report_not_finite(rows, r, col, x + col, err);
            memcpy(&amax, &amax_bits, sizeof amax);
            if (scheme->asymmetric)
                kernels->range_f32(x + col, n, &low, &high);
            else
                high = amax;
            tsr_int_code code;
            tsr_int_error error;
            quantize_group(scheme, kernels, x + col, n, low, high, rows->codes + r * cols + col, trial, &code, &error);
            if (isinf(code.scale))
                return tsr_fail(err, TSR_E_VALUE,
                                "'%s': the scale of row %llu from column %llu on is beyond %s: choose another "
                                "--scale-dtype",
                                t->name, U64(rows->row + r), U64(col), tsr_dtype_name(scheme->scale_dtype));
            rows->scales[r * groups + g] = code.scale;
            if (rows->zero_points != NULL)
                rows->zero_points[r * groups + g] = (int8_t)code.zero;
            add_stats(stats, &error, &code, amax, n, (rows->row + r) * cols + col);
        }
    }
    return TSR_OK;
}
