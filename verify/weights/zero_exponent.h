/* The byte 0 of E8M0, which is 2^-127, and which some readers take for 0. */
#ifndef TSR_VERIFY_WEIGHTS_ZERO_EXPONENT_H
#define TSR_VERIFY_WEIGHTS_ZERO_EXPONENT_H

#include "formats/model/weights.h"

/* Looks among scales [at, at + n) of `w`, whose bytes are `scales`, for a byte of 0 over codes that are not all zero (for
 * such groups every writer stores it). *where is then which of the scales it is, and *found w->scale; otherwise they stay
 * as they are. Codes are read only where there is such a byte. Of a kind other than MXFP4 and MXFP8 nothing is found. */
tsr_status tsr_zero_exponent_find(const tsr_checkpoint *checkpoint, const tsr_weight *w, const unsigned char *scales,
                                  uint64_t at, size_t n, uint64_t *where, const tsr_tensor **found,
                                  tsr_err *err) TSR_WARN_UNUSED;

#endif
