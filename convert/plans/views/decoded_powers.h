/* Finds the block FP8 weights whose scales are all powers of two, by reading the scales. */
#pragma once

#include "convert/plans/views/decoded_view.h"

/* Reads the scales of all block FP8 weights, and sets `powers` of their parts. TSR_E_VALUE, if `refuse`: a scale is not
 * a power of two although config.json says scale_fmt ue8m0. */
tsr_status tsr_decoded_view_find_powers(tsr_decoded_view *view, bool refuse, tsr_err *err);
