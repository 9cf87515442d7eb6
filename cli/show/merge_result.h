/* Prints how much of the updates of an adapter survived rounding, and writes it as JSON. */
#pragma once

#include "convert/plan/plan.h"

/* Prints the whole and the tensors of largest relative error. Prints nothing for a plan without updates. */
void tsr_merge_result_print(const tsr_plan *plan, const tsr_quant_stats *rows);

/* Appends the members `updates` and `whole` of the open JSON object, if the plan has updates. */
void tsr_merge_result_json(const tsr_plan *plan, const tsr_quant_stats *rows, tsr_text *text);
