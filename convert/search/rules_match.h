/* Finds the rule that applies to each tensor. A pattern matches a tensor's name with or without ".weight"; the first
 * matching pattern wins. A pattern without wildcards is looked up. A pattern with wildcards is tested on the names that
 * share its prefix or its suffix, whichever are fewer. */
#pragma once

#include "convert/search/rules.h"
#include "formats/checkpoint/checkpoint.h"

typedef struct tsr_rules_match {
    const tsr_rules_item **of; /* [tensors]: the first matching item, or NULL */
    bool *fits;                /* [items]: true if it matches any tensor */
    uint64_t steps;            /* comparison steps: a machine-independent measure of the work */
} tsr_rules_match;

/* Matches all items; results are in `arena`. TSR_E_UNSUPPORTED: the patterns with wildcards need more steps than a
 * checkpoint of this size may take. */
tsr_status tsr_rules_match_all(tsr_rules_match *match, const tsr_scheme_rules *rules, const tsr_checkpoint *checkpoint,
                               tsr_arena *arena, tsr_err *err);
