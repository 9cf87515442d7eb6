/* Computes exact attention and its error bounds in two passes over the tokens. */
#include "verify/mla/attention_oracle.h"

#include "common/float_bits.h"
#include "verify/values/weight_product.h"

#include <math.h>
#include <string.h>

static const double kUnit = 0x1p-24, kTensorUnit = 0x1p-22;

/* Limits for steep scores: their standard deviation, and the largest error of one. */
static const double kSteep = 16, kMostOff = 0x1p-4;

static const float *key_of(const tsr_attended *a, size_t t)
{
    return a->keys + (a->rows != NULL ? a->rows[t] : t) * a->ld_keys;
}

static const float *value_of(const tsr_attended *a, size_t t)
{
    return a->values + (a->rows != NULL ? a->rows[t] : t) * a->ld_values;
}

/* Computes scores into p, and the expected squares of their rounding errors into `walk`. */
static void score(const tsr_attended *a, const double *q, double *p, double *walk, tsr_attention_exact *r)
{
    r->largest = 0;
    for (size_t t = 0; t < a->n; t++) {
        const float *const key = key_of(a, t);
        double sum = 0, size = 0, squares = 0;
        for (size_t i = 0; i < a->width; i++) {
            const double product = q[i] * (double)key[i];
            sum += product;
            size += fabs(product);
            squares += product * product;
        }
        p[t] = sum * a->scale;
        walk[t] = a->scale * a->scale * (double)a->width * (squares / 2 + sum * sum / 3);
        r->largest = fmax(r->largest, size);
    }
}

void tsr_attention_solve(const tsr_attended *a, const uint16_t *q, double *scratch, tsr_attention_exact *r)
{
    double *const p = scratch, *const walk = p + a->n, *const x = walk + a->n;
    tsr_decode(TSR_BF16, (const unsigned char *)q, a->width, x);
    score(a, x, p, walk, r);
    tsr_soften(p, a->n);
    memset(r->exact, 0, a->columns * sizeof *r->exact);
    memset(r->mass, 0, a->columns * sizeof *r->mass);
    memset(r->square, 0, a->columns * sizeof *r->square);
    memset(r->jitter, 0, a->columns * sizeof *r->jitter);
    for (size_t t = 0; t < a->n; t++) {
        const float *const value = value_of(a, t);
        for (size_t i = 0; i < a->columns; i++) {
            const double part = p[t] * (double)value[i];
            r->exact[i] += part;
            r->mass[i] += fabs(part);
            r->square[i] += part * part;
        }
    }
    /* A score that is off by x moves the result by x p (v - result). */
    for (size_t t = 0; t < a->n; t++) {
        const float *const value = value_of(a, t);
        for (size_t i = 0; i < a->columns; i++) {
            const double part = p[t] * ((double)value[i] - r->exact[i]);
            r->jitter[i] += part * part * walk[t];
        }
    }
}

/* Returns the largest error that a tensor core may add to a score. */
static double off_at_most(const tsr_attended *a, double largest)
{
    return a->scale * ceil((double)a->width / 16) * 17 * kTensorUnit * largest;
}

void tsr_attention_steepen(const tsr_attended *a, uint16_t *q, double *scratch)
{
    double *const p = scratch, *const x = scratch + 2 * a->n;
    tsr_attention_exact r = {0};
    double mean = 0, square = 0;
    tsr_decode(TSR_BF16, (const unsigned char *)q, a->width, x);
    score(a, x, p, p + a->n, &r);
    for (size_t t = 0; t < a->n; t++)
        mean += p[t] / (double)a->n;
    for (size_t t = 0; t < a->n; t++)
        square += (p[t] - mean) * (p[t] - mean) / (double)a->n;
    if (!(square > 0))
        return;
    const int wanted = (int)floor(log2(kSteep / sqrt(square))),
              allowed = (int)floor(log2(kMostOff / off_at_most(a, r.largest)));
    const int by = wanted < allowed ? wanted : allowed;
    for (size_t i = 0; by > 0 && i < a->width; i++)
        q[i] = tsr_bf16_from_f64(ldexp(x[i], by));
}

double tsr_attention_slope(const tsr_attention_rounding *kernel)
{
    return kernel->tensor_core ? 0x1p-12 : 0x1p-16;
}

double tsr_attention_bound(const tsr_attention_rounding *kernel, const tsr_attended *a, const tsr_attention_exact *r,
                           size_t i)
{
    const double tokens = (double)a->n, d = (double)a->width;
    double bound;
    if (kernel->tensor_core) {
        const double off = off_at_most(a, r->largest);
        const double steps = ceil(tokens / (double)kernel->block) * (double)kernel->block / 16 + 2;
        bound = (2 * off + 0x1p-8 + 0x1p-18 + 17 * steps * kTensorUnit) * r->mass[i];
    } else {
        bound = (2.1 * a->scale * (d + 2) * kUnit * r->largest + (2 * tokens + 16) * kUnit) * r->mass[i];
    }
    return kernel->to_bf16 ? bound + (fabs(r->exact[i]) + bound) * 0x1p-8 + 0x1p-133 : bound;
}

double tsr_attention_variance(const tsr_attention_rounding *kernel, const tsr_attended *a, const tsr_attention_exact *r,
                              size_t i)
{
    const double exact = r->exact[i], square = r->square[i], tokens = (double)a->n;
    const double half_step = exact == 0 || !kernel->to_bf16 ? 0 : ldexp(1, ilogb(exact) - 8);
    const double sums = square * (tokens / 2 + 3) + exact * exact * (tokens * 2 / 3 + 3);
    const double probabilities = kernel->tensor_core ? 0.541 * 0x1p-16 * square : 0;
    return (half_step * half_step + probabilities + kUnit * kUnit * (r->jitter[i] + sums)) / 3;
}
