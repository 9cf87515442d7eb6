/* Finds known mistakes of writers by making them when reading. */
#pragma once

#include "verify/compare/compare.h"

/* Finds the misreading with which b has the values of a around its first misrounded code; TSR_AS_STORED: none. b of the
 * pair has scales. */
tsr_status tsr_find_misreading(const tsr_side *a, const tsr_side *b, const tsr_pair *pair, tsr_misreading *found,
                               tsr_err *err);

/* Returns a clause that describes the mistake: "the odd column of each pair is in the low four bits". Static
 * storage. */
const char *tsr_misreading_text(tsr_misreading misreading);
