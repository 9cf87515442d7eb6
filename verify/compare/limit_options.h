/* Options for the limits of a verdict over weights, common to the command line and the library. */
#pragma once

#include "common/options.h"
#include "verify/compare/check_weights.h"

/* Options that tsr_weight_limits_parse converts. */
typedef struct tsr_weight_limit_texts {
    const char *min_sqnr, *max_block_error, *max_cast_error; /* NULL: not given */
    int method;                                              /* word of --method */
} tsr_weight_limit_texts;

/* Appends the option table entries that fill texts and limits. */
void tsr_weight_limit_options(tsr_option *options, tsr_weight_limit_texts *texts, tsr_weight_limits *limits);

/* Converts the texts after parsing. An explicit --min-sqnr applies to all tensors, whatever their codes. */
tsr_status tsr_weight_limits_parse(tsr_weight_limits *limits, const tsr_weight_limit_texts *texts, tsr_err *err);
