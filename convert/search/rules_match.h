/* Which rule each tensor goes by. A pattern fits a tensor by its name, or by its name without ".weight"; of several that fit, the
 * first wins. A pattern without a wildcard is looked up, and one with wildcards is tried on the names that begin, or end, as it
 * does, whichever are fewer. */
#ifndef TSR_CONVERT_SEARCH_RULES_MATCH_H
#define TSR_CONVERT_SEARCH_RULES_MATCH_H

#include "convert/search/rules.h"
#include "formats/checkpoint/checkpoint.h"

typedef struct tsr_rules_match {
    const tsr_rules_item **of; /* [tensors]: the first item that fits, or NULL */
    bool *fits;                /* [items]: whether it fits any tensor */
    uint64_t steps;            /* of comparing: a measure of the work that does not depend on the machine */
} tsr_rules_match;

/* All of it, in `arena`. TSR_E_UNSUPPORTED: patterns with wildcards that take more steps than such a checkpoint may. */
tsr_status tsr_rules_match_all(tsr_rules_match *match, const tsr_scheme_rules *rules, const tsr_checkpoint *checkpoint,
                               tsr_arena *arena, tsr_err *err) TSR_WARN_UNUSED;

#endif
