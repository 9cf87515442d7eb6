/* Options that commands share, and help. */
#include "cli/options.h"
#include "cli/output.h"

#include <stdio.h>
#include <string.h>

void tsr_options_append_check(tsr_option *options, tsr_check_options *check)
{
    const tsr_option last[] = {
        {"--threads", TSR_OPT_COUNT, &check->threads, "N", "workers (all CPUs); the result does not depend on it"},
        {"--json", TSR_OPT_TEXT, &check->json, "FILE", "the result as JSON ('-': stdout)"},
        {"--junit", TSR_OPT_TEXT, &check->junit, "FILE", "the result as JUnit XML"},
        TSR_PROGRESS_OPTIONS(&check->progress),
        {"--quiet", TSR_OPT_FLAG, &check->quiet, NULL, "no text: only the exit code"},
        {"--help", TSR_OPT_FLAG, &check->help, NULL, "this text"},
        {0},
    };
    tsr_options_append(options, last);
}

void tsr_options_help(const char *text, const tsr_option *options)
{
    tsr_print_raw(text, strlen(text));
    for (const tsr_option *o = options; o->name != NULL; o++) {
        char head[160];
        snprintf(head, sizeof head, "%s%s%s", o->name, o->argument == NULL ? "" : " ",
                 o->argument == NULL ? "" : o->argument);
        if (strlen(head) < 26)
            tsr_print("  %-26s%s\n", head, o->help);
        else
            tsr_print("  %s\n  %-26s%s\n", head, "", o->help);
    }
}
