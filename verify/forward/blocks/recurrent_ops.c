/* Implements the operations of recurrent layers on the CPU: causal convolution, delta rule and scan. */
#include "verify/forward/forward_ops.h"

#include "common/parallel/parallel_for.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- convolution ---- */

static void convolve_token(const tsr_op_convolve *a, size_t token)
{
    const size_t before = tsr_token_position(a->tokens, token), n = a->channels;
    const size_t skipped = a->taps > before + 1 ? a->taps - before - 1 : 0; /* taps before the sequence */
    for (size_t c = 0; c < n; c++) {
        double sum = a->bias != NULL ? a->bias[c] : 0;
        for (size_t j = skipped; j < a->taps; j++)
            sum += a->weight[c * a->taps + j] * tsr_doubles(a->x)[(token + 1 + j - a->taps) * n + c];
        tsr_doubles(a->y)[token * n + c] = sum / (1 + exp(-sum));
    }
}

static tsr_status convolve_turn(void *context, size_t i, size_t worker, tsr_err *err)
{
    (void)worker, (void)err;
    convolve_token((const tsr_op_convolve *)context, i);
    return TSR_OK;
}

tsr_status tsr_cpu_convolve(tsr_ops *ops, const tsr_op_convolve *a, tsr_err *err)
{
    tsr_op_convolve args = *a;
    return tsr_parallel_for(a->tokens->count, ops->threads, ops->cancel, convolve_turn, &args, err);
}

/* ---- recurrences ---- */

typedef struct recurrence {
    const tsr_op_recur *a;
    double *scratch; /* for each worker: S [dim][v_dim], q [dim], k [dim], added [v_dim] */
    size_t each;
} recurrence;

/* Returns log(1 + exp(x)). */
static double softplus(double x)
{
    return fmax(x, 0) + log1p(exp(-fabs(x)));
}

/* Copies x to y, divided by its length, times `by`. */
static void shorten(const double *x, size_t n, double by, double *y)
{
    static const double kEps = 1e-6;
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    for (size_t i = 0; i < n; i++)
        y[i] = x[i] / sqrt(sum + kEps) * by;
}

/* Returns the step t[i] of a token of a head. */
static double step_of(const tsr_op_recur *a, size_t at, size_t head, size_t i)
{
    return fmax(softplus(tsr_doubles(a->decay)[at * a->decays + i] + a->shift[head * a->decays + i]), a->least);
}

/* Runs one token of one head. */
static void run_token(const tsr_op_recur *a, size_t token, size_t head, double *state)
{
    const bool is_delta = a->kind == TSR_RECUR_DELTA;
    const size_t d = a->dim, vd = a->v_dim, at = token * a->heads + head;
    const size_t shared = token * a->k_heads + head / (a->heads / a->k_heads);
    double *const q = state + d * vd, *const k = q + d, *const added = k + d,
                  *const out = tsr_doubles(a->out) + at * vd;
    const double *const v = tsr_doubles(a->v) + at * vd;
    double keep = 0;
    memcpy(q, tsr_doubles(a->q) + shared * d, d * sizeof *q);
    memcpy(k, tsr_doubles(a->k) + shared * d, d * sizeof *k);
    memcpy(added, v, vd * sizeof *added);
    if (is_delta) {
        shorten(q, d, 1 / sqrt((double)d), q);
        shorten(k, d, 1, k);
    }
    for (size_t i = 0; i < d; i++) {
        if (i < a->decays)
            keep = exp(-a->rate[head] * step_of(a, at, head, i));
        for (size_t j = 0; j < vd; j++) {
            state[i * vd + j] *= keep;
            added[j] -= is_delta ? state[i * vd + j] * k[i] : 0;
        }
    }
    const double learned = is_delta ? 1 / (1 + exp(-tsr_doubles(a->beta)[at])) : step_of(a, at, head, 0);
    for (size_t j = 0; j < vd; j++)
        out[j] = is_delta ? 0 : a->skip[head] * v[j];
    for (size_t i = 0; i < d; i++) {
        for (size_t j = 0; j < vd; j++) {
            state[i * vd + j] += k[i] * learned * added[j];
            out[j] += state[i * vd + j] * q[i];
        }
    }
}

/* Runs one sequence and head. */
static tsr_status recur_turn(void *context, size_t i, size_t worker, tsr_err *err)
{
    const recurrence *const r = context;
    const tsr_op_recur *const a = r->a;
    const tsr_tokens *const tokens = a->tokens;
    const size_t s = i / a->heads;
    double *const state = r->scratch + worker * r->each;
    (void)err;
    memset(state, 0, a->dim * a->v_dim * sizeof *state);
    for (size_t token = tokens->first[s]; token < tokens->first[s + 1]; token++)
        run_token(a, token, i % a->heads, state);
    return TSR_OK;
}

tsr_status tsr_cpu_recur(tsr_ops *ops, const tsr_op_recur *a, tsr_err *err)
{
    const size_t turns = a->tokens->sequences * a->heads, workers = tsr_parallel_workers(turns, ops->threads);
    const size_t each = a->dim * a->v_dim + 2 * a->dim + a->v_dim;
    recurrence r = {a, malloc(workers * each * sizeof(double) + 1), each};
    const tsr_status status = r.scratch == NULL
                                  ? tsr_out_of_memory(err, "for a recurrence")
                                  : tsr_parallel_for(turns, ops->threads, ops->cancel, recur_turn, &r, err);
    free(r.scratch);
    return status;
}
