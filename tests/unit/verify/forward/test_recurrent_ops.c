/* Tests the operations of recurrent layers on the CPU against a second implementation of their formulas. */
#include "tests/unit/verify/forward/as_activations.h"

#include "tests/unit/random_bits.h"

#include <criterion/criterion.h>
#include <math.h>

enum { COUNT = 21, HEADS = 4, K_HEADS = 2, DIM = 5, V_DIM = 7, CHANNELS = 6, TAPS = 4 };

static size_t first[] = {0, 1, 9, COUNT};
static const tsr_tokens kTokens = {.sequences = 3, .count = COUNT, .longest = 12, .first = first};

static void fill(double *x, size_t n, double size) /* in [-size, size) */
{
    for (size_t i = 0; i < n; i++)
        x[i] = size * ((double)(random_bits() >> 11) * 0x1p-52 - 1);
}

/* Tests sequences that are shorter and longer than the filters, with and without a bias. */
Test(recurrent_ops, convolution_is_its_formula)
{
    static double x[COUNT * CHANNELS], y[COUNT * CHANNELS], weight[CHANNELS * TAPS], bias[CHANNELS];
    tsr_ops ops = tsr_ops_of_cpu(2, NULL);
    tsr_err err;
    fill(x, COUNT * CHANNELS, 2);
    fill(weight, CHANNELS * TAPS, 1);
    fill(bias, CHANNELS, 1);
    for (int biased = 0; biased < 2; biased++) {
        const tsr_op_convolve args = {
            &kTokens, as_activations(x), as_activations(y), weight, biased ? bias : NULL, CHANNELS, TAPS};
        cr_assert_eq(ops.convolve(&ops, &args, &err), TSR_OK);
        for (size_t s = 0; s < 3; s++) {
            for (size_t t = first[s]; t < first[s + 1]; t++) {
                for (size_t c = 0; c < CHANNELS; c++) {
                    double sum = biased ? bias[c] : 0;
                    for (size_t back = 0; back < TAPS && back <= t - first[s]; back++)
                        sum += weight[c * TAPS + TAPS - 1 - back] * x[(t - back) * CHANNELS + c];
                    cr_assert_float_eq(y[t * CHANNELS + c], sum / (1 + exp(-sum)), 1e-14, "token %zu, channel %zu", t,
                                       c);
                }
            }
        }
    }
}

static double length(const double *x)
{
    double sum = 1e-6;
    for (size_t i = 0; i < DIM; i++)
        sum += x[i] * x[i];
    return sqrt(sum);
}

/* Tests decays per head, or per row of its state. Steps of the scan have a minimum, which exceeds some of them. */
static void check(tsr_recurrence kind, size_t decays)
{
    static double q[COUNT * K_HEADS * DIM], k[COUNT * K_HEADS * DIM], v[COUNT * HEADS * V_DIM],
        decay[COUNT * HEADS * DIM], beta[COUNT * HEADS], rate[HEADS], shift[HEADS * DIM], skip[HEADS],
        out[COUNT * HEADS * V_DIM];
    tsr_ops ops = tsr_ops_of_cpu(3, NULL);
    tsr_err err;
    fill(q, COUNT * K_HEADS * DIM, 2);
    fill(k, COUNT * K_HEADS * DIM, 2);
    fill(v, COUNT * HEADS * V_DIM, 2);
    fill(decay, COUNT * HEADS * decays, 3);
    fill(beta, COUNT * HEADS, 3);
    fill(shift, HEADS * decays, 1);
    fill(skip, HEADS, 2);
    for (size_t h = 0; h < HEADS; h++)
        rate[h] = 0.1 + 0.3 * (double)h;
    const bool scan = kind == TSR_RECUR_SCAN;
    const double least = scan ? 0.2 : 0;
    const tsr_op_recur args = {.kind = kind,
                               .least = least,
                               .skip = skip,
                               .tokens = &kTokens,
                               .q = as_activations(q),
                               .k = as_activations(k),
                               .v = as_activations(v),
                               .decay = as_activations(decay),
                               .beta = as_activations(beta),
                               .rate = rate,
                               .shift = shift,
                               .out = as_activations(out),
                               .heads = HEADS,
                               .k_heads = K_HEADS,
                               .dim = DIM,
                               .v_dim = V_DIM,
                               .decays = decays};
    cr_assert_eq(ops.recur(&ops, &args, &err), TSR_OK);
    for (size_t i = 0; i < 3 * HEADS * V_DIM; i++) { /* a sequence, a head and a column of its state */
        const size_t s = i / (HEADS * V_DIM), h = i / V_DIM % HEADS, column = i % V_DIM;
        double state[DIM] = {0};
        for (size_t t = first[s]; t < first[s + 1]; t++) {
            const double *const key = k + (t * K_HEADS + h / 2) * DIM, *const query = q + (t * K_HEADS + h / 2) * DIM;
            const double value = v[(t * HEADS + h) * V_DIM + column], by_key = scan ? 1 : length(key),
                         by_query = scan ? 1 : length(query) * sqrt((double)DIM);
            double known = 0, want = scan ? skip[h] * value : 0, open = 0;
            for (size_t row = 0; row < DIM; row++) {
                const size_t at = decays == 1 ? 0 : row;
                open = fmax(log(1 + exp(decay[(t * HEADS + h) * decays + at] + shift[h * decays + at])), least);
                state[row] *= exp(-rate[h] * open);
                known += scan ? 0 : state[row] * key[row] / by_key;
            }
            const double learned = scan ? open : 1 / (1 + exp(-beta[t * HEADS + h]));
            for (size_t row = 0; row < DIM; row++) {
                state[row] += key[row] / by_key * learned * (value - known);
                want += state[row] * query[row] / by_query;
            }
            cr_assert_float_eq(out[(t * HEADS + h) * V_DIM + column], want, 1e-13, "token %zu, head %zu", t, h);
        }
    }
}

Test(recurrent_ops, recurrences_are_their_formulas)
{
    check(TSR_RECUR_DELTA, 1);
    check(TSR_RECUR_DELTA, DIM);
    check(TSR_RECUR_SCAN, 1);
}
