/* Options that commands share, and help. */
#include "cli/options.h"
#include "cli/output.h"
#include "formats/json/json_write.h"

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

/* Where help goes instead of stdout while all commands are asked for theirs. */
static tsr_text *gathered;

void tsr_options_gather_help(tsr_text *text)
{
    gathered = text;
}

/* ---- text ---- */

/* Options whose value fits have their help on the same line. */
enum { HELP_COLUMN = 26 };

static void print_option(const tsr_option *o)
{
    const char *const space = o->argument == NULL ? "" : " ", *const argument = o->argument == NULL ? "" : o->argument;
    const size_t length = strlen(o->name) + strlen(space) + strlen(argument);
    tsr_print("  %s%s%s", o->name, space, argument);
    if (length < HELP_COLUMN)
        tsr_print("%*s", (int)(HELP_COLUMN - length), "");
    else
        tsr_print("\n  %*s", HELP_COLUMN, "");
    tsr_print("%s\n", o->help);
}

/* ---- JSON ---- */

static void json_choices(tsr_text *t, const char *words)
{
    tsr_json_key(t, "choices");
    tsr_json_begin_array(t, true);
    for (const char *p = words;; p++) {
        const char *const end = strchrnul(p, '|');
        char word[64];
        snprintf(word, sizeof word, "%.*s", (int)(end - p), p);
        tsr_json_string(t, word);
        if (*end == '\0')
            break;
        p = end;
    }
    tsr_json_end_array(t);
}

static void json_option(tsr_text *t, const tsr_option *o)
{
    static const char *const kKinds[] = {
        [TSR_OPT_FLAG] = "flag",     [TSR_OPT_TEXT] = "text",   [TSR_OPT_LIST] = "list",
        [TSR_OPT_CHOICE] = "choice", [TSR_OPT_COUNT] = "count", [TSR_OPT_SIZE] = "size"};
    tsr_json_begin_object(t, true);
    tsr_json_member_string(t, "name", o->name);
    tsr_json_member_string(t, "kind", kKinds[o->kind]);
    tsr_json_member_string(t, "argument", o->argument);
    if (o->kind == TSR_OPT_CHOICE)
        json_choices(t, o->argument);
    tsr_json_member_string(t, "help", o->help);
    tsr_json_end_object(t);
}

void tsr_options_help(const char *text, const tsr_option *options)
{
    if (gathered == NULL) {
        tsr_print_raw(text, strlen(text));
        for (const tsr_option *o = options; o->name != NULL; o++)
            print_option(o);
        return;
    }
    tsr_json_member_string(gathered, "text", text);
    tsr_json_key(gathered, "options");
    tsr_json_begin_array(gathered, false);
    for (const tsr_option *o = options; o->name != NULL; o++)
        json_option(gathered, o);
    tsr_json_end_array(gathered);
}
