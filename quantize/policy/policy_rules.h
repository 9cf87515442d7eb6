/* The tables of the policy, which map name patterns to treatments, for all models and for each model_type. */
#pragma once

#include "quantize/policy/policy.h"

typedef struct tsr_rule {
    const char *pattern;
    tsr_treatment treatment;
    const char *reason;
    bool always; /* --include does not override it, because no loader could read the codes */
} tsr_rule;

/* Returns the rule for layers that every model keeps: embeddings, norms, routers, towers. NULL: none matches the
 * name. */
const tsr_rule *tsr_rule_for_all(const char *name);

/* A table of rules; the first matching rule is used. */
typedef struct tsr_rules {
    const tsr_rule *items;
    size_t count;
} tsr_rules;

/* The rules of a family, for 8-bit and for 4-bit codes. Most families have one table for both. */
typedef struct tsr_policy_family {
    const char *model_types; /* each between two spaces; no two rows have the same */
    tsr_rules rules, four_bits;
    bool unseen; /* no official low-bit release is known; the rules are those of its parent */
} tsr_policy_family;

/* Returns the family. NULL: no table has this model_type, and the general rules apply. */
const tsr_policy_family *tsr_family_find(const char *model_type);

/* Returns the first rule of the family (NULL: of the general rules) that matches the name, or NULL. */
const tsr_rule *tsr_family_rule(const tsr_policy_family *family, bool four_bits, const char *name);

/* Return all tables for display: the families (family_rules.c); the rules for every model; the general rules, those for
 * experts by the whole name, the others by its last component. */
const tsr_policy_family *tsr_families(size_t *count);
tsr_rules tsr_rules_of_all(void);
tsr_rules tsr_general_expert_rules(void);
tsr_rules tsr_general_rules(void);
