/* Lists the loader rules: first those about the model_type, then the general ones. */
#include "cli/help/help.h"

#include "cli/io/io_paths.h"
#include "cli/io/output.h"
#include "common/options.h"
#include "common/text.h"
#include "formats/json/json_write.h"
#include "formats/loaders/class_rules.h"
#include "formats/loaders/loaders.h"
#include "quantize/policy/policy_rules.h"

#include <string.h>

/* Rejects a model_type that no rule and no table of the policy names. */
static tsr_status check_model_type(const char *model_type, tsr_err *err)
{
    tsr_text known = {0};
    char meant[80];
    size_t n;
    const tsr_class_rule *const rules = tsr_class_rules(&n);
    for (size_t i = 0; i < n; i++)
        tsr_text_printf(&known, "%s", rules[i].families == NULL ? "" : rules[i].families);
    const tsr_policy_family *const families = tsr_families(&n);
    for (size_t i = 0; i < n; i++)
        tsr_text_printf(&known, "%s", families[i].model_types);
    tsr_status status = tsr_text_status(&known, err);
    if (status == TSR_OK && !tsr_is_listed(known.data, model_type)) {
        for (char *p = known.data; (p = strchr(p, ' ')) != NULL;)
            *p = '|';
        status = tsr_fail(err, TSR_E_USAGE,
                          "--loaders: unknown model_type '%s'%s; docs/loader-rules.md has the rules about all models",
                          model_type, tsr_did_you_mean(model_type, known.data, meant));
    }
    tsr_text_free(&known);
    return status;
}

/* ---- text ---- */

static void print_class_rule(void *context, const tsr_rule_text *rule)
{
    size_t *const printed = context;
    if (!rule->of_class)
        return;
    tsr_print("  [%s] %s: %s\n      -> %s\n", rule->rule, rule->what, rule->why, rule->advice);
    *printed += 1;
}

static void print_general_rule(void *context, const tsr_rule_text *rule)
{
    (void)context;
    if (rule->rule == NULL)
        tsr_print("  checks %s\n", rule->what);
    else if (!rule->of_class)
        tsr_print("  [%s] %s%s%s: %s\n", rule->rule, rule->what, rule->gpu == NULL ? "" : ", on ",
                  rule->gpu == NULL ? "" : rule->gpu, rule->why);
}

static void print_rules(const char *model_type)
{
    for (unsigned i = 0; i < TSR_LOADER_COUNT; i++) {
        size_t printed = 0;
        if (i > 0)
            tsr_print("\n");
        tsr_print("%s\n rules about %s:\n", tsr_loader_checked((tsr_loader)i), model_type);
        tsr_loader_list_rules((tsr_loader)i, model_type, print_class_rule, &printed);
        if (printed == 0)
            tsr_print("  none\n");
        tsr_print(" rules about all models:\n");
        tsr_loader_list_rules((tsr_loader)i, model_type, print_general_rule, NULL);
    }
}

/* ---- JSON ---- */

static void json_rule(void *context, const tsr_rule_text *rule)
{
    tsr_text *const t = context;
    tsr_json_begin_object(t, true);
    tsr_json_member_string(t, "rule", rule->rule);
    tsr_json_member_bool(t, "of_class", rule->of_class);
    tsr_json_member_string(t, "gpu", rule->gpu);
    tsr_json_member_string(t, "what", rule->what);
    tsr_json_member_string(t, "why", rule->why);
    tsr_json_member_string(t, "advice", rule->advice);
    tsr_json_end_object(t);
}

static void json_rules(tsr_text *t, const char *model_type)
{
    tsr_json_begin_document(t, "tessera-loader-rules/1");
    tsr_json_member_string(t, "model_type", model_type);
    tsr_json_member_array(t, "loaders", false);
    for (unsigned i = 0; i < TSR_LOADER_COUNT; i++) {
        tsr_json_begin_object(t, false);
        tsr_json_member_string(t, "loader", tsr_loader_name((tsr_loader)i));
        tsr_json_member_string(t, "version", tsr_loader_version((tsr_loader)i));
        tsr_json_member_string(t, "checked", tsr_loader_checked((tsr_loader)i));
        tsr_json_member_array(t, "rules", false);
        tsr_loader_list_rules((tsr_loader)i, model_type, json_rule, t);
        tsr_json_end_array(t);
        tsr_json_end_object(t);
    }
    tsr_json_end_array(t);
    tsr_json_end_document(t);
}

tsr_status tsr_list_loader_rules(const char *model_type, const char *json, tsr_err *err)
{
    TSR_TRY(check_model_type(model_type, err));
    if (json == NULL) {
        print_rules(model_type);
        return TSR_OK;
    }
    tsr_text t = {0};
    json_rules(&t, model_type);
    const tsr_status status = tsr_write_report(json, &t, err);
    tsr_text_free(&t);
    return status;
}
