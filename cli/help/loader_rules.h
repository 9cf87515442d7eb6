/* Lists the loader rules for a model_type. */
#pragma once

#include "common/status.h"

/* Prints the rules of each loader, or writes them to `json` as JSON if that is not NULL ("-": stdout). */
tsr_status tsr_list_loader_rules(const char *model_type, const char *json, tsr_err *err) TSR_WARN_UNUSED;
