/* Chooses schemes for groups of weights that must share one scheme, with the least total error. A group is a fused
 * layer, the experts of a layer, or a single weight. Its error under a scheme is the sum over its weights of w * sum (x
 * - y)^2 / sum x^2, where w is the weighting from the sensitivity file, or 1. An unquantized weight has no error. */
#pragma once

#include "convert/search/compare_schemes.h"
#include "convert/search/rules.h"
#include "convert/search/scheme_choice.h"

typedef struct tsr_scheme_group {
    const tsr_tensor **tensors;
    size_t n;
    tsr_choice_option options[TSR_SCHEMES];
    tsr_scheme schemes[TSR_SCHEMES]; /* the scheme of each option */
    size_t n_options;
    uint64_t weights; /* elements */
} tsr_scheme_group;

typedef struct tsr_scheme_plan {
    tsr_scheme_group *groups;
    tsr_choice_group *choices; /* the same groups, as input of tsr_scheme_choice */
    size_t n, n_tensors;
    uint64_t fixed;   /* bytes of all other tensors, which stay unquantized */
    uint64_t weights; /* elements of all groups */
    tsr_arena arena;
} tsr_scheme_plan;

typedef struct tsr_scheme_plan_options {
    tsr_run_options run;
    bool schemes[TSR_SCHEMES];                  /* the schemes to choose from */
    const tsr_importance *importance;           /* weights of the columns in squared errors; or NULL */
    const tsr_rules_item *const *sensitivities; /* [tensors]: the sensitivity of each, or NULL */
    unsigned cpu_flags;
} tsr_scheme_plan_options;

/* Measures the options; each weight is read once. A group that no scheme can quantize is not in the plan.
 * TSR_E_NOTHING: there is no other group; also the errors of tsr_compare_schemes. On failure *plan is empty. */
tsr_status tsr_scheme_plan_make(tsr_scheme_plan *plan, const tsr_checkpoint *checkpoint, const char *model_type,
                                const tsr_scheme_plan_options *options, tsr_err *err);

/* Finds the best choice with at most `budget` bytes of tensors. picked[n] are options of groups. Bytes of *choice
 * include all tensors. */
tsr_status tsr_scheme_plan_choose(const tsr_scheme_plan *plan, uint64_t budget, size_t *picked, tsr_choice *choice,
                                  tsr_err *err);

/* Returns bytes and error if every group has this scheme or, if it cannot, stays unquantized. */
tsr_choice tsr_scheme_plan_alone(const tsr_scheme_plan *plan, tsr_scheme scheme);

/* Returns the bytes of all tensors if each group has its option of least error. A larger budget does not help. */
uint64_t tsr_scheme_plan_most(const tsr_scheme_plan *plan);

/* Converts between bytes of tensors and average bits per weight of all groups. */
double tsr_scheme_plan_bits(const tsr_scheme_plan *plan, uint64_t bytes);
uint64_t tsr_scheme_plan_bytes(const tsr_scheme_plan *plan, double bits);

/* Appends the rules file of a choice. */
void tsr_scheme_plan_rules(const tsr_scheme_plan *plan, const size_t *picked, const char *note, tsr_text *out);

/* Appends patterns that match the tensors of a group and no others, as elements of a JSON array. Experts share one. */
void tsr_scheme_patterns(const tsr_tensor *const *tensors, size_t n, tsr_text *out);

void tsr_scheme_plan_free(tsr_scheme_plan *plan);
