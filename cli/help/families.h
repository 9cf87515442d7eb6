/* Lists the tensors of each model family that are quantized. */
#pragma once

#include "common/status.h"

/* Prints the list, or writes it to `json` as JSON if that is not NULL ("-": stdout). */
tsr_status tsr_list_families(const char *json, tsr_err *err) TSR_WARN_UNUSED;
