/* Computes error budgets and locations for the check of a forward pass. */
#include "verify/forward/check_parts.h"

#include <math.h>
#include <stdio.h>

/* Measured in docs/verify-forward.md: the largest loss of a correct layer beyond one of its products, plus 3 dB; the
 * average loss of layers; the factor for latent attention, which has more products in sequence. */
static const double kGain = 20, kStreamGain = 14, kLatent = 1.5;

/* Mean square error of rounding x to BF16, relative to x^2: uniform over 2^-8 of the power of two below x; 0.54 is
 * the mean over mantissas. */
static const double kBf16 = 0.54 / 12 / 16384;

void tsr_forward_locate(const tsr_forward_check *c, uint64_t index, size_t width, const char *column, char *text,
                        size_t size)
{
    const size_t token = (size_t)index / width;
    size_t s = 0;
    while (c->tokens.first[s + 1] <= token)
        s++;
    snprintf(text, size, "sequence %zu, token %zu, %s %zu", s, token - c->tokens.first[s], column,
             (size_t)index % width);
}

tsr_judgement tsr_forward_blank(const char *subject, const char *what, tsr_error_kind kind)
{
    return (tsr_judgement){.subject = subject, .what = what, .kind = kind, .of_bound = -1, .of_expected = -1};
}

const char *tsr_forward_nonfinite(const tsr_metrics *m)
{
    return m->nonfinite[1] > 0 ? "NaN or Inf" : m->nonfinite[0] > 0 ? "NaN or Inf in the source" : NULL;
}

static double decibels(double share)
{
    return share > 0 ? -10 * log10(share) : INFINITY;
}

/* Returns the share of power that other experts and other tokens may cost. Another expert replaces a part of the MLP's
 * output. Another token replaces a part of attention's, which is the input of the MLP. */
static double cost_of_flips(const tsr_judgement *j)
{
    const double experts = j->choices > 0 ? 1 - (double)j->agreed / (double)j->choices : 0;
    const double tokens = j->tokens > 0 ? 1 - (double)j->tokens_agreed / (double)j->tokens : 0;
    return 2 * experts + 4 * tokens;
}

void tsr_forward_budget_add(tsr_forward_budget *b, const tsr_forward_layer_loss *loss)
{
    const double added = loss->alone->metrics.sum_x2, power = loss->stream->metrics.sum_x2;
    const double rounding = loss->served ? 4 * kBf16 * (b->power + power) : 0;
    const double noise = loss->noise * (loss->latent ? kLatent : 1), flips = cost_of_flips(loss->alone);
    const double through = b->error > 0 ? loss->carried / b->error : 1;
    b->allowed = b->allowed * through + (kStreamGain * noise + flips) * added + rounding;
    b->alone = added > 0 ? decibels(kGain * noise + flips + rounding / added) : NAN;
    b->stream = power > 0 ? decibels(b->allowed / power) : NAN;
    b->error = loss->stream->metrics.sum_d2;
    b->power = power;
}

void tsr_forward_limit_choices(tsr_judgement *alone)
{
    if (alone->fault == NULL && 4 * (alone->choices - alone->agreed) > alone->choices)
        alone->fault = "more than a quarter of the experts are chosen differently";
    if (alone->fault == NULL && 4 * (alone->tokens - alone->tokens_agreed) > alone->tokens)
        alone->fault = "more than a quarter of the tokens are chosen differently";
}
