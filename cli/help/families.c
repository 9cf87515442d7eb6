/* Prints the rules of the policy for each model family. Families with the same rules are listed together. */
#include "cli/help/families.h"

#include "cli/io/io_paths.h"
#include "cli/io/output.h"
#include "formats/json/json_write.h"
#include "quantize/policy/policy_rules.h"

#include <string.h>

static const char *treatment_of(const tsr_rule *rule)
{
    return rule->treatment == TSR_QUANTIZE ? "quantize" : "keep";
}

static bool same_tables(const tsr_policy_family *a, const tsr_policy_family *b)
{
    return a->rules.items == b->rules.items && a->four_bits.items == b->four_bits.items;
}

/* Returns true if an earlier family has been listed with this one. */
static bool is_listed(const tsr_policy_family *all, size_t i)
{
    for (size_t k = 0; k < i; k++) {
        if (same_tables(&all[k], &all[i]))
            return true;
    }
    return false;
}

/* ---- text ---- */

static void print_rules(tsr_rules rules)
{
    for (size_t i = 0; i < rules.count; i++)
        tsr_print("  %-8s  %-46s  %s\n", treatment_of(&rules.items[i]), rules.items[i].pattern, rules.items[i].reason);
}

static void print_family(const tsr_policy_family *all, size_t count, size_t first)
{
    tsr_print("\n%s", all[first].model_type);
    for (size_t i = first + 1; i < count; i++) {
        if (same_tables(&all[first], &all[i]))
            tsr_print(", %s", all[i].model_type);
    }
    tsr_print("%s\n", all[first].unseen ? "  (no official release of this family in 4 or 8 bits is known: the rules "
                                          "of its parent)"
                                        : "");
    print_rules(all[first].rules);
    if (all[first].four_bits.items == all[first].rules.items)
        return;
    tsr_print(" in 4 bits (int4, nvfp4, mxfp4):\n");
    print_rules(all[first].four_bits);
}

static void print_tables(const tsr_policy_family *all, size_t count)
{
    tsr_print("The first rule that matches decides; tensors that no rule matches are kept. --include and --exclude "
              "come first.\n");
    tsr_print("\nrules for every model, which come first:\n");
    print_rules(tsr_rules_of_all());
    for (size_t i = 0; i < count; i++) {
        if (!is_listed(all, i))
            print_family(all, count, i);
    }
    tsr_print("\nrules for any other model_type (weights with fewer than 128 rows or columns and stacks of experts "
              "are kept):\n");
    print_rules(tsr_general_expert_rules());
    tsr_print(" by the last component of the module:\n");
    print_rules(tsr_general_rules());
}

/* ---- JSON ---- */

static void json_rules(tsr_text *t, const char *key, tsr_rules rules)
{
    tsr_json_member_array(t, key, false);
    for (size_t i = 0; i < rules.count; i++) {
        tsr_json_begin_object(t, true);
        tsr_json_member_string(t, "pattern", rules.items[i].pattern);
        tsr_json_member_string(t, "treatment", treatment_of(&rules.items[i]));
        tsr_json_member_string(t, "reason", rules.items[i].reason);
        tsr_json_end_object(t);
    }
    tsr_json_end_array(t);
}

static void json_tables(tsr_text *t, const tsr_policy_family *all, size_t count)
{
    tsr_json_begin_document(t, "tessera-families/1");
    json_rules(t, "every_model", tsr_rules_of_all());
    tsr_json_member_array(t, "families", false);
    for (size_t i = 0; i < count; i++) {
        tsr_json_begin_object(t, false);
        tsr_json_member_string(t, "model_type", all[i].model_type);
        tsr_json_member_bool(t, "release_seen", !all[i].unseen);
        json_rules(t, "rules", all[i].rules);
        json_rules(t, "rules_in_4_bits", all[i].four_bits);
        tsr_json_end_object(t);
    }
    tsr_json_end_array(t);
    json_rules(t, "general_experts", tsr_general_expert_rules());
    json_rules(t, "general", tsr_general_rules());
    tsr_json_end_document(t);
}

tsr_status tsr_list_families(const char *json, tsr_err *err)
{
    size_t count;
    const tsr_policy_family *const all = tsr_families(&count);
    if (json == NULL) {
        print_tables(all, count);
        return TSR_OK;
    }
    tsr_text t = {0};
    json_tables(&t, all, count);
    const tsr_status status = tsr_write_report(json, &t, err);
    tsr_text_free(&t);
    return status;
}
