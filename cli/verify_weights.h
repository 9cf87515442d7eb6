/* Verifying weights against those that they were made from: a job for cli/verify_kinds.h. */
#ifndef TSR_CLI_VERIFY_WEIGHTS_H
#define TSR_CLI_VERIFY_WEIGHTS_H

#include "cli/compare_sides.h"
#include "cli/verify_kinds.h"
#include "verify/weights/check_weights.h"

typedef struct tsr_verify_weights {
    tsr_compare_job compared; /* path[0]: SRC, path[1]: DST */
    tsr_weight_limits limits;
    tsr_findings findings;
    bool mpi;
} tsr_verify_weights;

/* Whose jobs are tsr_verify_weights. */
extern const tsr_verify_kind tsr_kind_weights;

/* The options of limits, as texts. */
typedef struct tsr_weight_limit_texts {
    const char *min_sqnr, *max_block_error, *max_cast_error;
} tsr_weight_limit_texts;

/* With the defaults of this machine. */
tsr_verify_weights tsr_verify_weights_defaults(void);

/* The entries of a table of options that fill texts and limits. */
void tsr_weight_limit_options(tsr_option *options, tsr_weight_limit_texts *texts, tsr_weight_limits *limits);

/* An explicit --min-sqnr is for all tensors, whatever their codes are. */
tsr_status tsr_weight_limits_parse(tsr_weight_limits *limits, const tsr_weight_limit_texts *texts,
                                   tsr_err *err) TSR_WARN_UNUSED;

#endif
