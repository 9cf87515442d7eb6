/* The tables of the policy, which map name patterns to treatments, for all models and for each model_type. */
#ifndef TSR_QUANTIZE_POLICY_RULES_H
#define TSR_QUANTIZE_POLICY_RULES_H

#include "quantize/policy.h"

typedef struct tsr_rule {
    const char *pattern;
    tsr_treatment treatment;
    const char *reason;
    bool always; /* --include does not override it: the codes could not be read */
} tsr_rule;

/* The rule for what every model keeps: embeddings, norms, routers, towers. NULL: none of these rules matches the
 * name. */
const tsr_rule *tsr_rule_for_all(const char *name);

/* The rules of one model_type. NULL: no table has this model_type, and the general rules apply. */
typedef struct tsr_family tsr_family;
const tsr_family *tsr_family_find(const char *model_type);

/* The first rule of the family (NULL: of the general rules) that matches the name, or NULL. */
const tsr_rule *tsr_family_rule(const tsr_family *family, const char *name);

#endif
