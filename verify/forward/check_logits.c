/* Compares the next-token distributions of both models. */
#include "common/text.h"
#include "verify/forward/check_parts.h"

#include "common/checked.h"
#include "common/parallel/parallel_for.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Loss in dB that the final norm and the head may cause. */
static const double kHead = 0.5;

double tsr_log_sum(const double *x, size_t n)
{
    double most = -INFINITY, sum = 0;
    for (size_t i = 0; i < n; i++)
        most = fmax(most, x[i]);
    for (size_t i = 0; i < n; i++)
        sum += exp(x[i] - most);
    return most + log(sum);
}

double tsr_divergence(const double *x, double zx, const double *y, double zy, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += exp(x[i] - zx) * (x[i] - zx - (y[i] - zy));
    return fmax(sum, 0);
}

static size_t likeliest(const double *x, size_t n)
{
    size_t at = 0;
    for (size_t i = 1; i < n; i++)
        at = x[i] > x[at] ? i : at;
    return at;
}

/* One position: the divergence, whether the likeliest tokens are equal, and each model's probability of the next
 * token. */
typedef struct position {
    double kl, of_next[2]; /* logarithms of probabilities; NaN after the last token of a sequence */
    bool alike;
} position;

typedef struct positions {
    const double *x, *y; /* [n][width] */
    size_t width, row;   /* index of the first row */
    const tsr_tokens *tokens;
    position *of; /* [n] */
} positions;

static tsr_status compare_position(void *context, size_t i, size_t worker, tsr_err *err)
{
    const positions *const p = context;
    const double *const x = p->x + i * p->width, *const y = p->y + i * p->width;
    const double zx = tsr_log_sum(x, p->width), zy = tsr_log_sum(y, p->width);
    const size_t token = p->row + i;
    (void)worker, (void)err;
    const bool last = token + 1 >= p->tokens->count || tsr_token_position(p->tokens, token + 1) == 0;
    const uint64_t next = last ? 0 : p->tokens->ids[token + 1];
    p->of[i] = (position){.kl = tsr_divergence(x, zx, y, zy, p->width),
                          .of_next = {last ? NAN : x[next] - zx, last ? NAN : y[next] - zy},
                          .alike = likeliest(x, p->width) == likeliest(y, p->width)};
    return TSR_OK;
}

/* All positions so far: their divergences, and sums of the logarithms of probabilities and of their squares. */
typedef struct heads {
    double *kl; /* [n] */
    double of_next[2], squares[2];
    size_t followed;
} heads;

/* Compares rows [row, row + n) of the logits x and y. */
static tsr_status compare_logits(tsr_forward_check *c, tsr_judgement *total, heads *sums, positions *p, size_t n,
                                 tsr_err *err)
{
    const tsr_run_options *const run = &c->request->run;
    tsr_metrics part = {0};
    TSR_TRY(tsr_measure(&part, p->x, p->y, NULL, n, p->width, run, err));
    part.max_abs_at += p->row * p->width;
    for (size_t i = 0; i < part.n_worst; i++)
        part.worst[i].row += p->row;
    tsr_metrics_add(&total->metrics, &part);
    TSR_TRY(tsr_parallel_for(n, run->threads, run->cancel, compare_position, p, err));
    for (size_t i = 0; i < n; i++) {
        total->kl.mean += p->of[i].kl / (double)c->n;
        total->kl.max = fmax(total->kl.max, p->of[i].kl);
        sums->kl[p->row + i] = p->of[i].kl;
        total->agreed += p->of[i].alike;
        if (isnan(p->of[i].of_next[0]))
            continue;
        sums->followed++;
        for (size_t k = 0; k < 2; k++) {
            sums->of_next[k] += p->of[i].of_next[k];
            sums->squares[k] += p->of[i].of_next[k] * p->of[i].of_next[k];
        }
    }
    return TSR_OK;
}

tsr_status tsr_forward_logits_of(tsr_forward *f, const double *x, size_t n, double *logits, tsr_err *err)
{
    tsr_activation *held;
    TSR_TRY(f->ops->make(f->ops, n * f->width, false, &held, err));
    tsr_status status = f->ops->put(f->ops, held, x, n * f->width, err);
    if (status == TSR_OK)
        status = tsr_forward_logits(f, held, n, logits, err);
    f->ops->drop(f->ops, held, n * f->width);
    return status;
}

/* The rows of a chunk, and their logits. */
typedef struct chunk {
    size_t row, n;
    double *logits[2];
} chunk;

static tsr_status run_head(const tsr_forward_both *both, tsr_forward *f, size_t i, tsr_err *err)
{
    const chunk *const c = both->context;
    const double *const states = i == 0 ? both->check->x : both->check->y;
    return tsr_forward_logits_of(f, states + c->row * f->width, c->n, c->logits[i], err);
}

tsr_forward_predictions tsr_forward_predictions_unknown(void)
{
    return (tsr_forward_predictions){{NAN, NAN}, {NAN, NAN}, {NAN, NAN, NAN, NAN}};
}

/* Computes perplexities and percentiles from the sums over n positions. Sorts sums->kl. */
static void predict(tsr_forward_predictions *to, const heads *sums, size_t n, bool of_file)
{
    static const double kShares[TSR_KL_PERCENTILES] = {0.5, 0.9, 0.99, 0.999};
    const double count = (double)sums->followed;
    qsort(sums->kl, n, sizeof *sums->kl, tsr_by_number);
    for (size_t i = 0; i < TSR_KL_PERCENTILES && n > 0; i++)
        to->kl_percentile[i] = sums->kl[(size_t)ceil(kShares[i] * (double)n) - 1];
    for (size_t k = 0; k < 2 && of_file && sums->followed > 0; k++) {
        const double mean = sums->of_next[k] / count, variance = sums->squares[k] / count - mean * mean;
        to->perplexity[k] = exp(-mean);
        to->perplexity_error[k] = sums->followed < 2 ? NAN : to->perplexity[k] * sqrt(fmax(variance, 0) / (count - 1));
    }
}

tsr_status tsr_forward_compare_heads(tsr_forward_check *c, tsr_judgement *total, tsr_err *err)
{
    const size_t width = c->source.vocabulary, most = tsr_forward_chunk(&c->source, c->n);
    double *const logits = malloc(2 * most * width * sizeof *logits);
    chunk at = {.logits = {logits, logits + most * width}};
    positions p = {.x = logits,
                   .y = logits + most * width,
                   .width = width,
                   .tokens = &c->tokens,
                   .of = malloc(most * sizeof *p.of)};
    heads sums = {.kl = malloc((c->n + 1) * sizeof *sums.kl)};
    tsr_status status =
        logits == NULL || p.of == NULL || sums.kl == NULL ? tsr_out_of_memory(err, "for logits") : TSR_OK;
    total->kl.known = true;
    for (; status == TSR_OK && p.row < c->n; p.row += most) {
        at.row = p.row;
        at.n = (size_t)tsr_min_u64(most, c->n - p.row);
        status = tsr_forward_run_both(&(tsr_forward_both){c, run_head, &at}, err);
        if (status == TSR_OK)
            status = compare_logits(c, total, &sums, &p, at.n, err);
    }
    if (status == TSR_OK)
        predict(&c->predictions, &sums, c->n, c->request->tokens != NULL);
    free(sums.kl);
    free(logits);
    free(p.of);
    return status;
}

/* ---- the judgement ---- */

tsr_forward_limits tsr_forward_limits_defaults(void)
{
    return (tsr_forward_limits){NAN, NAN, NAN, NAN};
}

static tsr_status limit_logits(tsr_forward_check *c, tsr_judgement *j, tsr_err *err)
{
    const tsr_forward_limits *const limits = &c->request->limits;
    char fault[96];
    if (j->metrics.differ > 0)
        tsr_forward_locate(c, j->metrics.max_abs_at, c->source.vocabulary, "logit", j->worst_at, sizeof j->worst_at);
    j->fault = tsr_forward_nonfinite(&j->metrics);
    j->limit = isnan(limits->min_stream) ? c->budget.stream - kHead : limits->min_stream;
    if (j->fault != NULL)
        return tsr_evidence_add(c->evidence, j, err);
    if (!isnan(j->limit) && !(tsr_metrics_sqnr(&j->metrics) >= j->limit)) {
        snprintf(fault, sizeof fault, "SQNR below %.1f dB", j->limit);
        j->fault = fault;
    } else if (j->kl.mean > limits->max_kl) {
        snprintf(fault, sizeof fault, "mean KL divergence above %g nats", limits->max_kl);
        j->fault = fault;
    } else if ((double)j->agreed < limits->min_top1 * (double)j->choices) {
        snprintf(fault, sizeof fault, "the most likely token is the same in less than %g of all positions",
                 limits->min_top1);
        j->fault = fault;
    }
    return tsr_evidence_add(c->evidence, j, err);
}

tsr_status tsr_forward_judge_logits(tsr_forward_check *c, tsr_err *err)
{
    tsr_judgement j = tsr_forward_blank("model", TSR_FORWARD_LOGITS, TSR_ERROR_QUANTIZATION);
    const double began = tsr_now();
    j.choices = c->n;
    TSR_TRY(tsr_forward_compare_heads(c, &j, err));
    c->evidence->phases[TSR_PHASE_JUDGE] += tsr_now() - began;
    return limit_logits(c, &j, err);
}
