/* The cost of each scheme for each group of weights that need one scheme, and the choice of the least error. A group
 * is a fused layer, the experts of a layer, or a single weight. Its error under a scheme is the sum over its weights
 * of w * sum (x - y)^2 / sum x^2, where w is the weight from the sensitivity file, or 1. A kept weight has no error. */
#ifndef TSR_CONVERT_SEARCH_SCHEME_PLAN_H
#define TSR_CONVERT_SEARCH_SCHEME_PLAN_H

#include "convert/search/compare_schemes.h"
#include "convert/search/rules.h"
#include "convert/search/scheme_choice.h"

typedef struct tsr_scheme_group {
    const tsr_tensor **tensors;
    size_t n;
    tsr_choice_option options[TSR_SCHEMES];
    tsr_scheme schemes[TSR_SCHEMES]; /* scheme of each option */
    size_t n_options;
    uint64_t weights; /* elements */
} tsr_scheme_group;

typedef struct tsr_scheme_plan {
    tsr_scheme_group *groups;
    tsr_choice_group *choices; /* the same, as the choice sees them */
    size_t n, n_tensors;
    uint64_t fixed;   /* bytes of all other tensors, which stay as they are */
    uint64_t weights; /* elements of all groups */
    tsr_arena arena;
} tsr_scheme_plan;

typedef struct tsr_scheme_plan_options {
    tsr_run_options run;
    bool schemes[TSR_SCHEMES];                  /* those to choose from */
    const tsr_rules_item *const *sensitivities; /* [tensors]: each one's, or NULL */
    unsigned cpu_flags;
} tsr_scheme_plan_options;

/* Measures: each weight is read once. A group that none of the schemes takes stays as it is, and is not in the plan.
 * TSR_E_NOTHING: there is no other; further as tsr_compare_schemes. On failure *plan is empty. */
tsr_status tsr_scheme_plan_make(tsr_scheme_plan *plan, const tsr_checkpoint *checkpoint, const char *model_type,
                                const tsr_scheme_plan_options *options, tsr_err *err) TSR_WARN_UNUSED;

/* The best choice of which a checkpoint has at most `budget` bytes of tensors. picked[n] are options of groups. Bytes of
 * *choice are of all tensors. */
tsr_status tsr_scheme_plan_choose(const tsr_scheme_plan *plan, uint64_t budget, size_t *picked, tsr_choice *choice,
                                  tsr_err *err) TSR_WARN_UNUSED;

/* Bytes and error where every group has this scheme, or, where it does not take it, stays as it is. */
tsr_choice tsr_scheme_plan_alone(const tsr_scheme_plan *plan, tsr_scheme scheme);

/* Bytes of all tensors where each group has its option of least error: more do not help. */
uint64_t tsr_scheme_plan_most(const tsr_scheme_plan *plan);

/* Bits that the weights of all groups take on average, of a checkpoint with so many bytes of tensors; and the reverse. */
double tsr_scheme_plan_bits(const tsr_scheme_plan *plan, uint64_t bytes);
uint64_t tsr_scheme_plan_bytes(const tsr_scheme_plan *plan, double bits);

/* Appends the rules file of a choice. */
void tsr_scheme_plan_rules(const tsr_scheme_plan *plan, const size_t *picked, const char *note, tsr_text *out);

void tsr_scheme_plan_free(tsr_scheme_plan *plan);

#endif
