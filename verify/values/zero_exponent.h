/* The byte 0 of E8M0, which is 2^-127, and which some readers take for 0. */
#pragma once

#include "formats/weights/weights.h"

/* Finds a scale byte of 0 over codes that are not all zero among scales [at, at + n) of `w`, whose bytes are `scales`.
 * Writers store 0 for groups of zeros only. Sets *where to the scale's number and *found to w->scale, or leaves both.
 * Codes are read only for such a byte. Finds nothing for kinds other than MXFP4 and MXFP8. */
tsr_status tsr_zero_exponent_find(const tsr_checkpoint *checkpoint, const tsr_weight *w, const unsigned char *scales,
                                  uint64_t at, size_t n, uint64_t *where, const tsr_tensor **found, tsr_err *err);
