/* Keeps the largest ratio of error to bound, and sums squares of errors over their expected squares. */
#include "verify/evidence/kernel_tally.h"

#include <math.h>
#include <stdio.h>

tsr_kernel_tally tsr_kernel_tally_begin(const char *subject, const char *what, double seconds)
{
    return (tsr_kernel_tally){
        .judgement = {
            .subject = subject, .what = what, .kind = TSR_ERROR_KERNEL, .of_expected = -1, .seconds = seconds}};
}

void tsr_kernel_tally_count(tsr_kernel_tally *t, double error, double bound, double variance)
{
    if (isnan(error))
        t->judgement.of_bound = INFINITY;
    else if (error > 0)
        t->judgement.of_bound = fmax(t->judgement.of_bound, bound > 0 ? error / bound : INFINITY);
    t->sum += variance > 0 ? error * error / variance : 0;
    t->n += variance > 0;
}

static double rms_of_expected(const tsr_kernel_tally *t)
{
    return t->n > 0 ? sqrt(t->sum / (double)t->n) : -1;
}

tsr_status tsr_kernel_tally_end(tsr_kernel_tally *t, const tsr_kernel_limits *limits, const char *fault,
                                const char *rms_fault, tsr_evidence *evidence, tsr_err *err)
{
    tsr_judgement *const j = &t->judgement;
    j->of_expected = rms_of_expected(t);
    if (j->fault == NULL && !(j->of_bound <= limits->max_kernel_error))
        j->fault = fault;
    else if (j->fault == NULL && !(j->of_expected <= limits->max_kernel_rms))
        j->fault = rms_fault;
    return tsr_evidence_add(evidence, j, err);
}

tsr_status tsr_kernel_tally_end_by(tsr_kernel_tally *t, const tsr_kernel_limits *limits, const char *adder,
                                   tsr_evidence *evidence, tsr_err *err)
{
    char fault[TSR_MAX_FAULT], rms_fault[TSR_MAX_FAULT];
    snprintf(fault, sizeof fault, "the largest error is %.3g times what %s can do at most", t->judgement.of_bound,
             adder);
    snprintf(rms_fault, sizeof rms_fault, "the RMS error is %.3g times what %s does in the mean", rms_of_expected(t),
             adder);
    return tsr_kernel_tally_end(t, limits, fault, rms_fault, evidence, err);
}
