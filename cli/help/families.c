/* Prints the rules of the policy for each model family, and warns of unknown ones. */
#include "cli/help/help.h"

#include "cli/io/io_paths.h"
#include "cli/io/output.h"
#include "formats/json/json_write.h"
#include "quantize/policy/policy.h"
#include "quantize/policy/policy_rules.h"

#include <stdio.h>
#include <string.h>

static const char *treatment_of(const tsr_rule *rule)
{
    return rule->treatment == TSR_QUANTIZE ? "quantize" : "keep";
}

/* ---- text ---- */

static void print_rules(tsr_rules rules)
{
    for (size_t i = 0; i < rules.count; i++)
        tsr_print("  %-8s  %-46s  %s\n", treatment_of(&rules.items[i]), rules.items[i].pattern, rules.items[i].reason);
}

/* Copies the first model_type of `types` to word[80], and returns the rest; NULL: there is none. */
static const char *take_type(const char *types, char word[80])
{
    while (*types == ' ')
        types++;
    const size_t n = strcspn(types, " ");
    snprintf(word, 80, "%.*s", (int)n, types);
    return n == 0 ? NULL : types + n;
}

static void print_family(const tsr_policy_family *family)
{
    char type[80];
    const char *comma = "\n";
    for (const char *rest = family->model_types; (rest = take_type(rest, type)) != NULL; comma = ", ")
        tsr_print(comma[0] == ',' ? ", %s" : "\n%s", type);
    tsr_print("%s\n", family->unseen
                          ? "  (no official release of this family in 4 or 8 bits is known: the rules of its "
                            "parent)"
                          : "");
    print_rules(family->rules);
    if (family->four_bits.items == family->rules.items)
        return;
    tsr_print(" in 4 bits (int4, nvfp4, mxfp4):\n");
    print_rules(family->four_bits);
}

static void print_tables(const tsr_policy_family *all, size_t count)
{
    tsr_print("The first rule that matches decides; tensors that no rule matches are kept. --include and --exclude "
              "come first.\n");
    tsr_print("\nrules for every model, which come first:\n");
    print_rules(tsr_rules_of_all());
    for (size_t i = 0; i < count; i++)
        print_family(&all[i]);
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

static void json_family(tsr_text *t, const char *type, const tsr_policy_family *family)
{
    tsr_json_begin_object(t, false);
    tsr_json_member_string(t, "model_type", type);
    tsr_json_member_bool(t, "release_seen", !family->unseen);
    json_rules(t, "rules", family->rules);
    json_rules(t, "rules_in_4_bits", family->four_bits);
    tsr_json_end_object(t);
}

static void json_tables(tsr_text *t, const tsr_policy_family *all, size_t count)
{
    tsr_json_begin_document(t, "tessera-families/1");
    json_rules(t, "every_model", tsr_rules_of_all());
    tsr_json_member_array(t, "families", false);
    for (size_t i = 0; i < count; i++) {
        char type[80];
        for (const char *rest = all[i].model_types; (rest = take_type(rest, type)) != NULL;)
            json_family(t, type, &all[i]);
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

tsr_status tsr_find_model_type(const tsr_checkpoint *c, tsr_arena *arena, const char **model_type, tsr_err *err)
{
    *model_type = tsr_policy_model_type(c, arena);
    TSR_TRY(tsr_arena_status(arena, TSR_OK, err));
    if (!tsr_policy_knows(*model_type))
        tsr_print_stderr("tessera: unknown model_type '%s': general rules; check with tessera quantize --dry-run\n",
                         *model_type == NULL ? "" : *model_type);
    return TSR_OK;
}
