/* Known mistakes in writing codes, found by making them in reading. */
#ifndef TSR_VERIFY_WEIGHTS_MISREADINGS_H
#define TSR_VERIFY_WEIGHTS_MISREADINGS_H

#include "verify/weights/compare.h"

/* The mistake under which the values of b, around its first misrounded code, are those of a; TSR_AS_STORED: none.
 * Of a pair whose b has scales. */
tsr_status tsr_find_misreading(const tsr_side *a, const tsr_side *b, const tsr_pair *pair, tsr_misreading *found,
                               tsr_err *err) TSR_WARN_UNUSED;

/* What was done, as a clause: "the odd column of each pair is in the low four bits". Static storage. */
const char *tsr_misreading_text(tsr_misreading misreading);

#endif
