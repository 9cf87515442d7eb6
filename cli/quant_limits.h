/* What quantizing may cost a tensor, as the command line says: --min-sqnr, --max-worst-block, --max-saturated. An output
 * that falls short stays, whole; the exit code says so, and the result names each tensor with its figure and limit.
 *
 * Limits are no part of the output, and not in its journal: a run on a finished output judges it again. */
#ifndef TSR_CLI_QUANT_LIMITS_H
#define TSR_CLI_QUANT_LIMITS_H

#include "cli/options.h"
#include "common/text.h"
#include "convert/engine/plan.h"

typedef struct tsr_quant_limits {
    const char *min_sqnr_text, *max_worst_block_text; /* as given; NULL: not given */
    double min_sqnr, max_worst_block;
    uint64_t max_saturated; /* UINT64_MAX: not given */
} tsr_quant_limits;

/* None. */
tsr_quant_limits tsr_quant_limits_defaults(void);

void tsr_quant_limits_options(tsr_quant_limits *limits, tsr_option *options);

/* After parsing. */
tsr_status tsr_quant_limits_parse(tsr_quant_limits *limits, tsr_err *err) TSR_WARN_UNUSED;

/* The first option of these that was given; NULL: none was, and nothing is judged. */
const char *tsr_quant_limits_given(const tsr_quant_limits *limits);

/* How many times a tensor is beyond a limit. `rows`: one for each step of the plan. */
size_t tsr_quant_limits_count(const tsr_quant_limits *limits, const tsr_plan *plan, const tsr_quant_stats *rows);

/* Prints the verdict and what is beyond the limits, if any were given. */
void tsr_quant_limits_print(const tsr_quant_limits *limits, const tsr_plan *plan, const tsr_quant_stats *rows);

/* Members passed, limits, judged and findings of the JSON object that is open, if any limits were given. */
void tsr_quant_limits_json(tsr_text *text, const tsr_quant_limits *limits, const tsr_plan *plan,
                           const tsr_quant_stats *rows);

#endif
