/* The largest ratio, and a mean square. */
#include "verify/evidence/kernel_tally.h"

#include <math.h>

tsr_kernel_tally tsr_kernel_tally_begin(const char *subject, const char *what, double seconds)
{
    return (tsr_kernel_tally){
        .judgement = {
            .subject = subject, .what = what, .kind = TSR_ERROR_KERNEL, .of_expected = -1, .seconds = seconds}};
}

void tsr_kernel_tally_count(tsr_kernel_tally *t, double error, double bound, double variance)
{
    tsr_judgement *const j = &t->judgement;
    if (!(error <= j->of_bound * bound))
        j->of_bound = bound > 0 ? error / bound : INFINITY;
    t->sum += variance > 0 ? error * error / variance : 0;
    t->n += variance > 0;
}

tsr_status tsr_kernel_tally_end(tsr_kernel_tally *t, const tsr_kernel_limits *limits, const char *fault,
                                const char *rms_fault, tsr_evidence *evidence, tsr_err *err)
{
    tsr_judgement *const j = &t->judgement;
    j->of_expected = t->n > 0 ? sqrt(t->sum / (double)t->n) : -1;
    j->fault = !(j->of_bound <= limits->max_kernel_error)    ? fault
               : !(j->of_expected <= limits->max_kernel_rms) ? rms_fault
                                                             : NULL;
    return tsr_evidence_add(evidence, j, err);
}
