/* Limits of the error of a quantized tensor: --min-sqnr, --max-worst-block, --max-saturated; and of a merged update:
 * --min-survived, --max-update-error.
 *
 * An output beyond a limit is still complete. The exit code is 1, and the result names each tensor with its value and
 * limit. Limits are not part of the output or its journal, so a run on a finished output checks them again. */
#pragma once

#include "cli/io/common_options.h"
#include "common/text.h"
#include "convert/plan/plan.h"
#include "report/model/result.h"

enum tsr_quant_limit {
    TSR_LIMIT_SQNR,
    TSR_LIMIT_WORST_BLOCK,
    TSR_LIMIT_SATURATED,
    TSR_LIMIT_SURVIVED,
    TSR_LIMIT_UPDATE_ERROR,
    TSR_QUANT_LIMITS
};

typedef struct tsr_quant_limits {
    const char *texts[TSR_QUANT_LIMITS]; /* as given; NULL: not given, or TSR_LIMIT_SATURATED */
    double values[TSR_QUANT_LIMITS];
    uint64_t max_saturated; /* UINT64_MAX: not given */
} tsr_quant_limits;

/* Returns no limits. */
tsr_quant_limits tsr_quant_limits_defaults(void);

/* Append the options for quantized tensors, and those for updates that are merged. */
void tsr_quant_limits_options(tsr_quant_limits *limits, tsr_option *options);
void tsr_update_limits_options(tsr_quant_limits *limits, tsr_option *options);

/* Parses the values. */
tsr_status tsr_quant_limits_parse(tsr_quant_limits *limits, tsr_err *err);

/* Returns the first of these options that was given; NULL: none was. */
const char *tsr_quant_limits_given(const tsr_quant_limits *limits);

/* Adds a check for each limit that was given, and a finding for each tensor beyond it. `rows` has one element per step
 * of the plan. The plan must outlive the result. */
tsr_status tsr_quant_limits_judge(tsr_result *result, const tsr_quant_limits *limits, const tsr_plan *plan,
                                  const tsr_quant_stats *rows, tsr_err *err);

/* Prints the tensors beyond the limits and the verdict, if the result has checks. */
void tsr_quant_limits_print(const tsr_quant_limits *limits, const tsr_result *result);

/* Writes the members passed, limits, judged and findings of the open JSON object, if the result has checks. */
void tsr_quant_limits_json(tsr_text *text, const tsr_quant_limits *limits, const tsr_result *result);
