/* Parses names of loaders, and compares a plan with their rules. */
#include "cli/io/loader_options.h"

#include <stdio.h>
#include <string.h>

void tsr_target_options_append(tsr_target_options *target, tsr_option *options)
{
    const tsr_option own[] = {
        {"--for", TSR_OPT_TEXT, &target->loaders, "LOADERS",
         "stop before any work if one of these loaders cannot load the output: all, or names with commas of vllm, "
         "sglang, transformers, deepseek, trtllm"},
        {"--tp", TSR_OPT_POSITIVE, &target->tp, "N", "with --for: at this tensor-parallel size (1)"},
        {"--gpu", TSR_OPT_CHOICE, &target->gpu, TSR_GPU_WORDS,
         "with --for: the loaders must also have a kernel for this GPU; h100: also H200; b200: also GB200 (any)"},
        {0},
    };
    target->tp = 1;
    tsr_options_append_topic(options, "Loaders", own);
}

tsr_status tsr_parse_loaders(const char *name, const char *text, tsr_load_table *table, tsr_err *err)
{
    const bool all = strcmp(text, "all") == 0;
    for (unsigned i = 0; all && i < TSR_LOADER_COUNT; i++)
        table->loaders[table->n_loaders++] = (tsr_loader)i;
    for (const char *p = text; !all;) {
        const size_t n = strcspn(p, ",");
        unsigned i = 0;
        while (i < TSR_LOADER_COUNT &&
               (strlen(tsr_loader_name((tsr_loader)i)) != n || strncmp(tsr_loader_name((tsr_loader)i), p, n) != 0))
            i++;
        if (i == TSR_LOADER_COUNT)
            return tsr_fail(err, TSR_E_USAGE, "%s: '%.*s' is none of vllm, sglang, transformers, deepseek, trtllm, all",
                            name, (int)n, p);
        for (size_t k = 0; k < table->n_loaders; k++) {
            if (table->loaders[k] == (tsr_loader)i)
                return tsr_fail(err, TSR_E_USAGE, "%s: '%.*s' is named twice", name, (int)n, p);
        }
        table->loaders[table->n_loaders++] = (tsr_loader)i;
        if (p[n] == '\0')
            break;
        p += n + 1;
    }
    return TSR_OK;
}

tsr_status tsr_target_options_check(const tsr_target_options *target, tsr_err *err)
{
    tsr_load_table table = {0};
    if (target->loaders == NULL && (target->gpu != TSR_GPU_ANY || target->tp > 1))
        return tsr_fail(err, TSR_E_USAGE, "%s needs --for LOADERS", target->tp > 1 ? "--tp" : "--gpu");
    if (target->loaders == NULL)
        return TSR_OK;
    if (target->tp > TSR_MOST_TP)
        return tsr_fail(err, TSR_E_USAGE, "--tp: %llu is not a size from 1 to %d", U64(target->tp), (int)TSR_MOST_TP);
    return tsr_parse_loaders("--for", target->loaders, &table, err);
}

/* Returns the error for the first loader that cannot load the output. */
static tsr_status refuse(const tsr_load_table *table, const tsr_issues *issues, const char *what, tsr_err *err)
{
    size_t i = 0;
    while (i < table->n_loaders && table->ok[i][0])
        i++;
    if (i == table->n_loaders)
        return TSR_OK;
    const char *const loader = tsr_loader_name(table->loaders[i]), *const version =
                                                                       tsr_loader_version(table->loaders[i]);
    const char *const verb = table->gpu == TSR_GPU_ANY ? "load it" : "run it on ";
    const char *const gpu = table->gpu == TSR_GPU_ANY ? "" : tsr_gpu_name(table->gpu);
    char at[24] = "";
    if (table->tp[0] > 1)
        snprintf(at, sizeof at, " at TP %u", table->tp[0]);
    const tsr_issue *const f = tsr_issues_first_fatal(issues, loader);
    if (f == NULL) /* it is one of those beyond the limit of the list */
        return tsr_fail(err, TSR_E_UNSUPPORTED, "%s: %s %s cannot %s%s%s: %zu issues were not listed", what, loader,
                        version, verb, gpu, at, issues->omitted);
    return tsr_fail(err, TSR_E_UNSUPPORTED, "%s: %s %s cannot %s%s%s: %s: %s%s%s", what, loader, version, verb, gpu, at,
                    f->tensor == NULL ? "config.json" : f->tensor, f->detail, f->advice == NULL ? "" : "; ",
                    f->advice == NULL ? "" : f->advice);
}

tsr_status tsr_target_check(const tsr_target_options *target, const tsr_plan_preview *output, const char *what,
                            tsr_err *err)
{
    tsr_load_table table = {.tp = {(unsigned)target->tp}, .n_tp = 1, .gpu = (tsr_gpu_model)target->gpu};
    tsr_issues issues = {0};
    const tsr_model model = tsr_model_read(&output->seen);
    const tsr_load_subject subject = {
        .checkpoint = &output->seen, .weights = &output->weights, .model = &model, .index_metadata = true};
    TSR_TRY(tsr_parse_loaders("--for", target->loaders, &table, err));
    tsr_status status = tsr_loaders_check(&table, &subject, &issues, err);
    if (status == TSR_OK)
        status = refuse(&table, &issues, what, err);
    tsr_issues_free(&issues);
    return status;
}
