/* Judges a kernel element by element: each error against its bound, and their mean square against the expected one. */
#ifndef TSR_VERIFY_EVIDENCE_KERNEL_TALLY_H
#define TSR_VERIFY_EVIDENCE_KERNEL_TALLY_H

#include "verify/evidence/jobs.h"

typedef struct tsr_kernel_tally {
    tsr_judgement judgement; /* the caller fills in names and the other figures */
    double sum;              /* of squared errors, each over its expected square */
    size_t n;                /* elements whose expected square is known */
} tsr_kernel_tally;

tsr_kernel_tally tsr_kernel_tally_begin(const char *subject, const char *what, double seconds);

/* Adds one element. `variance`: the expected square of the error; 0: not known. A NaN error is beyond any bound. */
void tsr_kernel_tally_count(tsr_kernel_tally *tally, double error, double bound, double variance);

/* Adds the judgement to the evidence. If it is beyond the limits, it gets one of these faults, unless it has one. */
tsr_status tsr_kernel_tally_end(tsr_kernel_tally *tally, const tsr_kernel_limits *limits, const char *fault,
                                const char *rms_fault, tsr_evidence *evidence, tsr_err *err) TSR_WARN_UNUSED;

/* The same with faults that say by how much the kernel is beyond what `adder`, "FP32", can do. */
tsr_status tsr_kernel_tally_end_by(tsr_kernel_tally *tally, const tsr_kernel_limits *limits, const char *adder,
                                   tsr_evidence *evidence, tsr_err *err) TSR_WARN_UNUSED;

#endif
