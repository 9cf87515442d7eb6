/* Which weights of block FP8 have powers of two for scales: by the scales themselves. */
#ifndef TSR_CONVERT_PLANS_VIEWS_DECODED_POWERS_H
#define TSR_CONVERT_PLANS_VIEWS_DECODED_POWERS_H

#include "convert/plans/views/decoded_view.h"

/* Reads the scales of all weights of block FP8, and sets `powers` of their parts. TSR_E_VALUE, if `refuse`: a scale is no
 * power of two although config.json says scale_fmt ue8m0. */
tsr_status tsr_decoded_view_find_powers(tsr_decoded_view *view, bool refuse, tsr_err *err) TSR_WARN_UNUSED;

#endif
