/* Sums errors, and computes the reported statistics from the sums. */
#include "quantize/quant_stats.h"

#include "formats/json/json_write.h"

#include <math.h>
#include <stdlib.h>

void tsr_quant_stats_add(tsr_quant_stats *total, const tsr_quant_stats *more)
{
    if (more->max_error > total->max_error) {
        total->max_error = more->max_error;
        total->max_error_at = more->max_error_at;
    }
    if (more->worst_mse > total->worst_mse) {
        total->worst_mse = more->worst_mse;
        total->worst_at = more->worst_at;
    }
    total->elements += more->elements;
    total->nonzero += more->nonzero;
    total->saturated += more->saturated;
    total->flushed += more->flushed;
    total->blocks += more->blocks;
    total->zero_blocks += more->zero_blocks;
    total->sum_rms += more->sum_rms;
    total->sum_x2 += more->sum_x2;
    total->sum_d2 += more->sum_d2;
    total->sum_xy += more->sum_xy;
    total->sum_y2 += more->sum_y2;
    total->sum_wx2 += more->sum_wx2;
    total->sum_wd2 += more->sum_wd2;
    total->output_d2 += more->output_d2;
    total->nearest_d2 += more->nearest_d2;
    total->amax = fmax(total->amax, more->amax);
}

bool tsr_quant_stats_add_group(tsr_quant_stats *total, const tsr_int_error *error, float scale, float amax, uint64_t n,
                               uint64_t first)
{
    const double s = (double)scale, s2 = s * s;
    const tsr_quant_stats cost = {
        .elements = n,
        .nonzero = error->nonzero,
        .saturated = error->saturated,
        .flushed = error->flushed,
        .blocks = 1,
        .zero_blocks = amax == 0,
        .worst_at = first,
        .worst_mse = error->sum_e2 * s2 / (double)n,
        .sum_rms = sqrt(error->sum_q2 * s2 / (double)n),
        .sum_x2 = error->sum_q2 * s2,
        .sum_d2 = error->sum_e2 * s2,
        .sum_xy = error->sum_qv * s2,
        .sum_y2 = (2 * error->sum_qv - error->sum_q2 + error->sum_e2) * s2, /* y = x - d */
        .amax = (double)amax,
        .max_error = (double)error->max_e * s,
    };
    const bool largest = cost.max_error > total->max_error;
    tsr_quant_stats_add(total, &cost);
    return largest;
}

void tsr_quant_stats_add_weighted(tsr_quant_stats *stats, const float *x, const float *y, const float *w, uint64_t n)
{
    enum { PARTS = 8 };
    double x2[PARTS] = {0}, d2[PARTS] = {0};
    for (uint64_t i = 0; i < n; i++) {
        const double v = (double)x[i], d = v - (double)y[i], weight = (double)w[i];
        x2[i % PARTS] += weight * (v * v);
        d2[i % PARTS] += weight * (d * d);
    }
    for (unsigned i = 0; i < PARTS; i++) {
        stats->sum_wx2 += x2[i];
        stats->sum_wd2 += d2[i];
    }
}

static int by_value(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

void tsr_quant_stats_scales(tsr_quant_stats *stats, float *scales, uint64_t n)
{
    uint64_t kept = 0, ones = stats->zero_blocks;
    for (uint64_t i = 0; i < n; i++) {
        if (ones > 0 && scales[i] == 1.0f)
            ones--;
        else
            scales[kept++] = scales[i];
    }
    if (kept == 0)
        return;
    qsort(scales, (size_t)kept, sizeof *scales, by_value);
    stats->scale_min = scales[0];
    stats->scale_median = scales[(kept - 1) / 2];
    stats->scale_max = scales[kept - 1];
}

double tsr_quant_stats_relative_error(const tsr_quant_stats *s)
{
    return s->sum_x2 > 0 ? sqrt(s->sum_d2 / s->sum_x2) : 0;
}

double tsr_quant_stats_sqnr(const tsr_quant_stats *s)
{
    return s->sum_d2 > 0 ? 10 * log10(s->sum_x2 / s->sum_d2) : HUGE_VAL;
}

double tsr_quant_stats_weighted_sqnr(const tsr_quant_stats *s)
{
    return s->sum_wd2 > 0 ? 10 * log10(s->sum_wx2 / s->sum_wd2) : HUGE_VAL;
}

double tsr_quant_stats_gptq_gain(const tsr_quant_stats *s)
{
    return 10 * log10(s->nearest_d2 / s->output_d2);
}

double tsr_quant_stats_cosine(const tsr_quant_stats *s)
{
    const double norms = sqrt(s->sum_x2) * sqrt(s->sum_y2);
    if (norms > 0)
        return s->sum_xy / norms;
    return s->sum_x2 > 0 ? 0 : 1;
}

double tsr_quant_stats_worst_block(const tsr_quant_stats *s)
{
    return s->sum_rms > 0 ? sqrt(s->worst_mse) * (double)(s->blocks - s->zero_blocks) / s->sum_rms : 0;
}

void tsr_quant_stats_json(tsr_text *t, const tsr_quant_stats *s)
{
    const struct {
        const char *key;
        uint64_t value;
    } counts[] = {
        {"elements", s->elements}, {"nonzero", s->nonzero}, {"saturated", s->saturated},
        {"flushed", s->flushed},   {"blocks", s->blocks},   {"zero_blocks", s->zero_blocks},
    };
    const struct {
        const char *key;
        double value;
    } numbers[] = {
        {"relative_error", tsr_quant_stats_relative_error(s)},
        {"sqnr_db", tsr_quant_stats_sqnr(s)},
        {"cosine", tsr_quant_stats_cosine(s)},
        {"max_abs_error", s->max_error},
        {"worst_block_error", tsr_quant_stats_worst_block(s)},
        {"amax", s->amax},
        {"scale_min", s->scale_min},
        {"scale_median", s->scale_median},
        {"scale_max", s->scale_max},
    };
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        tsr_json_member_u64(t, counts[i].key, counts[i].value);
    }
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        tsr_json_member_number(t, numbers[i].key, numbers[i].value);
    }
    if (s->sum_wx2 > 0)
        tsr_json_member_number(t, "weighted_sqnr_db", tsr_quant_stats_weighted_sqnr(s));
    if (s->output_d2 > 0)
        tsr_json_member_number(t, "gptq_gain_db", tsr_quant_stats_gptq_gain(s));
}
