/* The file with figures of single blocks (TSR_BLOCKS_NAME), and what it is made from.
 *
 * When a file of weights is finished, the records of its steps are written to DST/.tessera/N.blocks, durably, before the
 * journal says so. Last of all they are put one behind the other in the plan's order, so that neither the order in which
 * steps end nor an interruption changes a byte. They stay there: a later run makes the file again from them, should it
 * be missing or damaged. */
#ifndef TSR_CONVERT_ENGINE_BLOCKS_FILE_H
#define TSR_CONVERT_ENGINE_BLOCKS_FILE_H

#include "convert/engine/plan.h"

/* Writes the frames of file `index`. */
tsr_status tsr_blocks_keep(const tsr_plan *plan, const char *dst, size_t index, const tsr_text *frames,
                           tsr_err *err) TSR_WARN_UNUSED;

/* Whether the frames of file `index` are there and whole, if it has any. Without them it has to be made again. */
tsr_status tsr_blocks_kept(const tsr_plan *plan, const char *dst, size_t index, bool *kept,
                           tsr_err *err) TSR_WARN_UNUSED;

/* Puts the frames of all files together as DST/TSR_BLOCKS_NAME, unless that holds them already. */
tsr_status tsr_blocks_write(const tsr_plan *plan, const char *dst, tsr_plan_blocks *made, tsr_err *err) TSR_WARN_UNUSED;

/* Removes what earlier runs kept, and the file made from it. */
tsr_status tsr_blocks_remove(const char *dst, tsr_err *err) TSR_WARN_UNUSED;

#endif
