/* The tables of the policy, for those who want to know what becomes of which tensor before they have a model. */
#ifndef TSR_CLI_FAMILIES_H
#define TSR_CLI_FAMILIES_H

#include "common/status.h"

/* Prints them; with `json` (not NULL) writes them there instead ("-": stdout). */
tsr_status tsr_list_families(const char *json, tsr_err *err) TSR_WARN_UNUSED;

#endif
