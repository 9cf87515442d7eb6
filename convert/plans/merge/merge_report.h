/* Says how much of each update survived rounding, and writes it as quantization_report.json.
 *
 * With x the update of an element and y the change that was stored:
 *   survived        sum xy / sum x^2: the share of the update that was stored; 1 if y = x
 *   relative_error  ||x - y|| / ||x||
 *   lost            the elements with x != 0 and y = 0
 * From a relative error of 1 on, the error is as large as the update. An update of zeros has no such figures: they are
 * null. */
#pragma once

#include "convert/plan/plan.h"

/* The relative error from which an update is called drowned. */
#define TSR_MERGE_DROWNED 1.0

/* Returns the share that survived; NaN for an update of zeros. */
double tsr_merge_survived(const tsr_quant_stats *row);

/* Returns true if the error of storing is at least as large as the update, which is not 0. */
bool tsr_merge_is_drowned(const tsr_quant_stats *row);

/* Adds the rows of all updates. *drowned receives the number of those that are drowned. */
tsr_quant_stats tsr_merge_whole(const tsr_plan *plan, const tsr_quant_stats *rows, size_t *drowned);

/* Appends the members `updates`, one object for each, and `whole`. */
void tsr_merge_updates_json(const tsr_plan *plan, const tsr_quant_stats *rows, tsr_text *text);

/* Writes the report. */
void tsr_merge_report(const tsr_plan *plan, const tsr_quant_stats *rows, const tsr_plan_blocks *blocks, tsr_text *out);
