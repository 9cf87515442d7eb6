/* The tables of the policy: name pattern -> treatment, for all models and for each model_type. */
#ifndef TSR_QUANTIZE_POLICY_RULES_H
#define TSR_QUANTIZE_POLICY_RULES_H

#include "quantize/policy.h"

typedef struct tsr_rule {
    const char *pattern;
    tsr_treatment treatment;
    const char *reason;
    bool always; /* --include does not override it: the codes could not be read */
} tsr_rule;

/* What is kept whatever the model: embeddings, norms, routers, towers. NULL: nothing speaks against the name. */
const tsr_rule *tsr_rule_for_all(const char *name);

/* The rules of one model_type. NULL: no table has it, and the general rules hold. */
typedef struct tsr_family tsr_family;
const tsr_family *tsr_family_find(const char *model_type);

/* The first rule of the family (NULL: the general rules) that names the tensor; NULL: none does. */
const tsr_rule *tsr_family_rule(const tsr_family *family, const char *name);

#endif
