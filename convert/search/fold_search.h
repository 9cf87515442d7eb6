/* Finds powers of two for the channels of each set (convert/plans/fold/fold_sets.h), so that a scheme loses least.
 *
 * Channel j gets s_j = 2^e_j, e_j = round(alpha * (l_j - (min l + max l) / 2)), l_j = log2 of the root mean square of
 * the channel. alpha is one of 0, 1/20, .. 1 for a set: the one with the least error of its layers, the sum over rows i
 * and columns j of E[x_j^2] (w_ij - y_ij)^2, where y_ij is the quantized s_j w_ij, divided by s_j. Of equal ones the
 * smallest. */
#pragma once

#include "convert/plans/fold/fold_sets.h"
#include "convert/search/compare_schemes.h"

enum { TSR_FOLD_STEPS = 20 };

typedef struct tsr_fold_search {
    const tsr_fold_sets *sets;
    const tsr_checkpoint *checkpoint;
    const char *model_type;
    const tsr_importance *importance;
    tsr_scheme scheme;
    unsigned cpu_flags;
} tsr_fold_search;

typedef struct tsr_fold_gain {
    size_t sets, scaled;  /* all sets, and those with an alpha above 0 */
    size_t unmeasured;    /* sets without importance, or without a layer that the scheme quantizes: not scaled */
    double before, after; /* summed errors of the layers, without and with scaling */
    double mean_alpha;    /* over the measured sets; NaN: there are none */
} tsr_fold_gain;

/* Fills the exponents of all sets. Each weight is read 21 times. The result does not depend on threads or instruction
 * sets. TSR_E_MISMATCH: the importance is of another model, or has no data for any set. Errors of
 * tsr_compare_schemes. */
tsr_status tsr_fold_search_run(const tsr_fold_search *search, const tsr_run_options *run, tsr_fold_gain *gain,
                               tsr_err *err);
