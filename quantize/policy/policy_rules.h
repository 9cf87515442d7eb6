/* The tables of the policy, which map name patterns to treatments, for all models and for each model_type. */
#ifndef TSR_QUANTIZE_POLICY_POLICY_RULES_H
#define TSR_QUANTIZE_POLICY_POLICY_RULES_H

#include "quantize/policy/policy.h"

typedef struct tsr_rule {
    const char *pattern;
    tsr_treatment treatment;
    const char *reason;
    bool always; /* --include does not override it: the codes could not be read */
} tsr_rule;

/* The rule for what every model keeps: embeddings, norms, routers, towers. NULL: none of these rules matches the
 * name. */
const tsr_rule *tsr_rule_for_all(const char *name);

/* A table of rules, of which the first that matches counts. */
typedef struct tsr_rules {
    const tsr_rule *items;
    size_t count;
} tsr_rules;

/* The rules of one model_type: for codes of 8 bits, and for those of 4. Most families have one table for both. */
typedef struct tsr_policy_family {
    const char *model_type;
    tsr_rules rules, four_bits;
    bool unseen; /* no official release in few bits has been seen: the rules are those of its parent */
} tsr_policy_family;

/* NULL: no table has this model_type, and the general rules apply. */
const tsr_policy_family *tsr_family_find(const char *model_type);

/* The first rule of the family (NULL: of the general rules) that matches the name, or NULL. */
const tsr_rule *tsr_family_rule(const tsr_policy_family *family, bool four_bits, const char *name);

/* All of it, for those who want to read it: the families; what every model keeps; the general rules, those for experts
 * by the whole name, the others by its last components. */
const tsr_policy_family *tsr_families(size_t *count);
tsr_rules tsr_rules_of_all(void);
tsr_rules tsr_general_expert_rules(void);
tsr_rules tsr_general_rules(void);

#endif
