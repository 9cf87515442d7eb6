/* Writes the file with figures of single blocks (TSR_BLOCKS_NAME).
 *
 * When a file of weights is finished, the records of its steps are written to DST/.tessera/N.blocks, durably,
 * before the journal records the file. At the end they are joined in the plan's order, so that neither the order in
 * which steps end nor a kill changes a byte. The .blocks files stay: a later run makes the joined file again from
 * them if it is missing or damaged. */
#pragma once

#include "convert/plan/plan.h"

/* Writes the frames of file `index` durably. */
tsr_status tsr_blocks_keep(const tsr_plan *plan, const char *dst, size_t index, const tsr_text *frames, tsr_err *err);

/* Checks whether the frames of file `index`, if it has any, exist and are intact. If not, the file has to be made
 * again. */
tsr_status tsr_blocks_kept(const tsr_plan *plan, const char *dst, size_t index, bool *kept, tsr_err *err);

/* Joins the frames of all files as DST/TSR_BLOCKS_NAME, unless it already has these contents. */
tsr_status tsr_blocks_write(const tsr_plan *plan, const char *dst, tsr_plan_blocks *made, tsr_err *err);

/* Removes the stored frames of earlier runs and the joined file. */
tsr_status tsr_blocks_remove(const char *dst, tsr_err *err);
