/* A kernel's judgement in the making: by the bound of each element, and by what is to be expected of all of them. */
#ifndef TSR_VERIFY_EVIDENCE_KERNEL_TALLY_H
#define TSR_VERIFY_EVIDENCE_KERNEL_TALLY_H

#include "verify/evidence/jobs.h"

typedef struct tsr_kernel_tally {
    tsr_judgement judgement; /* figures and texts are to be filled in by who has them */
    double sum;              /* of squares over what is expected */
    size_t n;                /* elements of which something is expected */
} tsr_kernel_tally;

tsr_kernel_tally tsr_kernel_tally_begin(const char *subject, const char *what, double seconds);

/* One element. `variance`: what is to be expected of the error's square; 0: not known. A NaN error is beyond any bound.
 */
void tsr_kernel_tally_count(tsr_kernel_tally *tally, double error, double bound, double variance);

/* Adds the judgement. Beyond the limits it has one of these faults, unless it has one already. */
tsr_status tsr_kernel_tally_end(tsr_kernel_tally *tally, const tsr_kernel_limits *limits, const char *fault,
                                const char *rms_fault, tsr_evidence *evidence, tsr_err *err) TSR_WARN_UNUSED;

/* The same with faults that say by how much the kernel is beyond what `adder`, "FP32", can do. */
tsr_status tsr_kernel_tally_end_by(tsr_kernel_tally *tally, const tsr_kernel_limits *limits, const char *adder,
                                   tsr_evidence *evidence, tsr_err *err) TSR_WARN_UNUSED;

#endif
