/* Tracks the largest ratio of error to bound, sums of squares, and sums by row and by column. */
#include "verify/evidence/kernel_tally.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* With fewer elements the mean is meaningless, and the RMS of few roundings may well be 1.5 times the expected one. */
enum { MIN_ELEMENTS = 64, MIN_NARROW = 256 };

/* Allowed common offset of all results, as a share of the expected error. */
static const double kOffset = 0.1;

tsr_status tsr_kernel_tally_begin(tsr_kernel_tally *t, const tsr_tally_of *of, tsr_err *err)
{
    *t = (tsr_kernel_tally){.of = *of,
                            .judgement = {.subject = of->subject,
                                          .what = of->what,
                                          .kind = TSR_ERROR_KERNEL,
                                          .of_expected = -1,
                                          .seconds = of->seconds}};
    if (of->rows == 0)
        return TSR_OK;
    t->mask = 1;
    while (t->mask < 2 * of->rows * of->cols)
        t->mask = 2 * t->mask + 1;
    t->sums = calloc(of->rows + of->cols, sizeof *t->sums);
    t->errors = calloc(t->mask + 1, sizeof *t->errors);
    if (t->sums != NULL && t->errors != NULL)
        return TSR_OK;
    free(t->sums);
    free(t->errors);
    return tsr_out_of_memory(err, "for judging a kernel");
}

static void add(tsr_bias_sums *s, double x, double e, double v)
{
    const double step = sqrt(v);
    s->ex += e * x / v;
    s->xx += x * x / v;
    s->size += fabs(x) / step;
    s->e += e / step;
    s->n++;
}

/* Adds the weights of equal errors. Sizes that differ only by rounding of doubles are equal: 30 bits of the mantissa
 * are compared. */
static void add_error(tsr_kernel_tally *t, double size, double weight)
{
    uint64_t key;
    memcpy(&key, &size, sizeof key);
    key >>= 22;
    if (key == 0) { /* exact results have no common error */
        t->exact.slope += weight * weight;
        t->exact.offset += 1;
        return;
    }
    size_t at = (size_t)(key * 0x9E3779B97F4A7C15u >> 20) & t->mask;
    while (t->errors[at].n > 0 && t->errors[at].key != key)
        at = (at + 1) & t->mask;
    t->errors[at].key = key;
    t->errors[at].weight += weight;
    t->errors[at].n++;
}

/* Returns the nearest number of the result's type. */
static double rounded(const tsr_kernel_tally *t, double exact)
{
    float nearest = (float)exact;
    if (t->of.out == TSR_OUT_F32)
        return exact;
    tsr_out_round(t->of.out, &nearest, 1);
    return (double)nearest;
}

void tsr_kernel_tally_count(tsr_kernel_tally *t, size_t row, size_t col, double exact, double got, double bound,
                            double variance)
{
    const double error = got - exact, size = fabs(error);
    if (isnan(error))
        t->judgement.of_bound = INFINITY;
    else if (size > 0)
        t->judgement.of_bound = fmax(t->judgement.of_bound, bound > 0 ? size / bound : INFINITY);
    t->sum += variance > 0 ? error * error / variance : 0;
    t->n += variance > 0;
    const double own = got - rounded(t, exact);
    if (!(variance > 0) || !isfinite(own) || t->of.rows == 0)
        return;
    add(&t->sums[row], exact, own, variance);
    add(&t->sums[t->of.rows + col], exact, own, variance);
    add_error(t, size, fabs(exact) / sqrt(variance));
}

static double rms_of_expected(const tsr_kernel_tally *t)
{
    return t->n > 0 ? sqrt(t->sum / (double)t->n) : -1;
}

/* ---- bias ---- */

static tsr_bias_sums sum_all(const tsr_bias_sums *s, size_t n)
{
    tsr_bias_sums all = {0};
    for (size_t i = 0; i < n; i++) {
        all.ex += s[i].ex;
        all.xx += s[i].xx;
        all.e += s[i].e;
        all.n += s[i].n;
    }
    return all;
}

static void widen(tsr_bias_spread *s, tsr_bias_spread by)
{
    s->slope = fmax(s->slope, by.slope);
    s->offset = fmax(s->offset, by.offset);
}

/* Returns the scatter of the sums of n rows or columns around their mean; with `as_one`, as if each had a single
 * error. */
static tsr_bias_spread scatter(const tsr_bias_sums *s, size_t n, const tsr_bias_sums *all, bool as_one)
{
    const double slope = all->ex / all->xx, offset = all->e / (double)all->n;
    tsr_bias_spread found = {0, 0};
    for (size_t i = 0; i < n; i++) {
        const double count = (double)s[i].n;
        const double of_slope = as_one ? s[i].size : s[i].ex - slope * s[i].xx;
        const double of_offset = as_one ? count : s[i].e - offset * count;
        found.slope += of_slope * of_slope;
        found.offset += of_offset * of_offset;
    }
    const double known = as_one || n < 2 ? 1 : (double)n / (double)(n - 1);
    return (tsr_bias_spread){found.slope * known, found.offset * known};
}

/* Returns the spread for independent errors, with equal ones counted once. */
static tsr_bias_spread of_errors(tsr_kernel_tally *t)
{
    tsr_bias_spread found = t->exact;
    for (size_t i = 0; i <= t->mask; i++) {
        const tsr_bias_error *const e = &t->errors[i];
        found.slope += e->weight * e->weight;
        found.offset += (double)e->n * (double)e->n;
        t->distinct += e->n > 0;
    }
    return found;
}

static void find_bias(tsr_kernel_tally *t)
{
    const size_t rows = t->of.rows, cols = t->of.cols;
    const tsr_bias_sums all = sum_all(t->sums, rows);
    if (all.n < MIN_ELEMENTS || !(all.xx > 0))
        return;
    tsr_bias_spread s = of_errors(t);
    widen(&s, scatter(t->sums, rows, &all, t->of.shared == TSR_SHARE_ROWS && rows < TSR_BIAS_CLUSTERS));
    widen(&s, scatter(t->sums + rows, cols, &all, t->of.shared == TSR_SHARE_COLS && cols < TSR_BIAS_CLUSTERS));
    const double slope = fabs(all.ex) - t->of.systematic * all.xx, offset = fabs(all.e) - kOffset * (double)all.n;
    t->judgement.bias.known = true;
    t->judgement.bias.slope = all.ex / all.xx;
    t->judgement.bias.offset = all.e / (double)all.n;
    t->judgement.bias.sigmas = fmax(0, fmax(slope / sqrt(s.slope), offset / sqrt(s.offset)));
}

static const char *tell_bias(const tsr_kernel_tally *t, char text[TSR_MAX_FAULT])
{
    snprintf(text, TSR_MAX_FAULT,
             "its errors are biased: mean %+.3g of the values, %+.2f expected errors; %.3g standard errors",
             t->judgement.bias.slope, t->judgement.bias.offset, t->judgement.bias.sigmas);
    return text;
}

/* ---- conclusions ---- */

tsr_status tsr_kernel_tally_end(tsr_kernel_tally *t, const tsr_kernel_limits *limits, const char *fault,
                                const char *rms_fault, tsr_evidence *evidence, tsr_err *err)
{
    tsr_judgement *const j = &t->judgement;
    char text[TSR_MAX_FAULT];
    j->of_expected = rms_of_expected(t);
    find_bias(t);
    const bool narrow = t->of.out != TSR_OUT_F32 && t->distinct >= MIN_NARROW;
    free(t->sums);
    free(t->errors);
    if (j->fault == NULL && !(j->of_bound <= limits->max_kernel_error))
        j->fault = fault;
    else if (j->fault == NULL && !(j->of_expected <= limits->max_kernel_rms * (narrow ? TSR_RMS_OF_NARROW : 1)))
        j->fault = rms_fault;
    else if (j->fault == NULL && j->bias.known && !(j->bias.sigmas <= limits->max_kernel_bias))
        j->fault = tell_bias(t, text);
    return tsr_evidence_add(evidence, j, err);
}

tsr_status tsr_kernel_tally_end_by(tsr_kernel_tally *t, const tsr_kernel_limits *limits, const char *adder,
                                   tsr_evidence *evidence, tsr_err *err)
{
    char fault[TSR_MAX_FAULT], rms_fault[TSR_MAX_FAULT];
    snprintf(fault, sizeof fault, "the largest error is %.3g times the bound of %s", t->judgement.of_bound, adder);
    snprintf(rms_fault, sizeof rms_fault, "the RMS error is %.3g times the expected RMS of %s", rms_of_expected(t),
             adder);
    return tsr_kernel_tally_end(t, limits, fault, rms_fault, evidence, err);
}
