/* Limits of the error of a quantized tensor: --min-sqnr, --max-worst-block, --max-saturated.
 *
 * An output beyond a limit is still complete. The exit code is 1, and the result names each tensor with its value and
 * limit. Limits are not part of the output or its journal, so a run on a finished output checks them again. */
#ifndef TSR_CLI_SHOW_QUANT_LIMITS_H
#define TSR_CLI_SHOW_QUANT_LIMITS_H

#include "cli/io/common_options.h"
#include "common/text.h"
#include "convert/plan/plan.h"

typedef struct tsr_quant_limits {
    const char *min_sqnr_text, *max_worst_block_text; /* as given; NULL: not given */
    double min_sqnr, max_worst_block;
    uint64_t max_saturated; /* UINT64_MAX: not given */
} tsr_quant_limits;

/* Returns no limits. */
tsr_quant_limits tsr_quant_limits_defaults(void);

void tsr_quant_limits_options(tsr_quant_limits *limits, tsr_option *options);

/* Parses the values. */
tsr_status tsr_quant_limits_parse(tsr_quant_limits *limits, tsr_err *err) TSR_WARN_UNUSED;

/* Returns the first of these options that was given; NULL: none was. */
const char *tsr_quant_limits_given(const tsr_quant_limits *limits);

/* Counts the tensors beyond a limit, once per limit. `rows` has one element per step of the plan. */
size_t tsr_quant_limits_count(const tsr_quant_limits *limits, const tsr_plan *plan, const tsr_quant_stats *rows);

/* Prints the verdict and the tensors beyond the limits, if any limits were given. */
void tsr_quant_limits_print(const tsr_quant_limits *limits, const tsr_plan *plan, const tsr_quant_stats *rows);

/* Writes the members passed, limits, judged and findings of the open JSON object, if a limit was given. */
void tsr_quant_limits_json(tsr_text *text, const tsr_quant_limits *limits, const tsr_plan *plan,
                           const tsr_quant_stats *rows);

#endif
