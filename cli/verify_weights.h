/* Verifying weights against those that they were made from: a job for cli/verify_kinds.h. */
#ifndef TSR_CLI_VERIFY_WEIGHTS_H
#define TSR_CLI_VERIFY_WEIGHTS_H

#include "cli/compare_sides.h"
#include "cli/verify_kinds.h"
#include "verify/weights/limit_options.h"

typedef struct tsr_verify_weights {
    tsr_compare_job compared; /* path[0]: SRC, path[1]: DST */
    tsr_weight_limits limits;
    tsr_findings findings;
    bool mpi;
} tsr_verify_weights;

/* Whose jobs are tsr_verify_weights. */
extern const tsr_verify_kind tsr_kind_weights;

/* With the defaults of this machine. */
tsr_verify_weights tsr_verify_weights_defaults(void);

#endif
