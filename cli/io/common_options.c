/* Declares common options, and prints the help of an option table. */
#include "cli/io/common_options.h"

#include "cli/help/help_text.h"
#include "cli/io/output.h"
#include "common/parallel/threads.h"
#include "formats/json/json_write.h"
#include "kernels/cpu/cpu.h"

#include <stdio.h>
#include <string.h>

tsr_common_options tsr_common_options_defaults(void)
{
    return (tsr_common_options){.threads = tsr_cpu_count(), .memory = TSR_DEFAULT_MEMORY, .cpumask = TSR_CPU_ALL};
}

void tsr_common_options_append(tsr_common_options *common, unsigned takes, tsr_option *options)
{
    const struct {
        unsigned takes; /* 0: every command has it */
        tsr_option option;
    } all[] = {
        {TSR_TAKES_IGNORE_FILE,
         {"--ignore-file", TSR_OPT_LIST, &common->ignore, "GLOB",
          "treat files of the source with these names as absent; may be repeated"}},
        {TSR_TAKES_SOURCE_BLOCK,
         {"--source-block", TSR_OPT_TEXT, &common->source_block, "RxC",
          "rows and columns of an FP8 block, where config.json does not state them"}},
        {TSR_TAKES_THREADS,
         {"--threads", TSR_OPT_POSITIVE, &common->threads, "N",
          "number of worker threads; the result does not depend on it (all CPUs)"}},
        {TSR_TAKES_MEMORY,
         {"--memory", TSR_OPT_SIZE, &common->memory, "SIZE", "the most memory that the command may use (2GiB)"}},
        /* For tests: 1 AVX2, 2 AVX-512, 4 VBMI; 0 is scalar. Results do not depend on it. */
        {TSR_TAKES_CPUMASK, {"--cpumask", TSR_OPT_COUNT, &common->cpumask, "MASK", NULL}},
        {TSR_TAKES_MPI,
         {"--mpi", TSR_OPT_FLAG, &common->mpi, NULL,
          "share the work with the other processes that mpirun has started: docs/cluster.md"}},
        {0, {"--json", TSR_OPT_TEXT, &common->json, "FILE", "write the result as JSON ('-': stdout)"}},
        {0, {"--junit", TSR_OPT_TEXT, &common->junit, "FILE", "write the result as JUnit XML ('-': stdout)"}},
        {TSR_TAKES_PROGRESS,
         {"--progress", TSR_OPT_CHOICE, &common->progress.jsonl, "text|jsonl",
          "form of progress on stderr: text, or one JSON object a line (text)"}},
        {TSR_TAKES_PROGRESS,
         {"--progress-file", TSR_OPT_TEXT, &common->progress.file, "FILE",
          "write progress as JSON lines into a file, pipe or /dev/fd/N"}},
        {0, {"--quiet", TSR_OPT_FLAG, &common->quiet, NULL, "print neither progress nor the result"}},
        {0, {"--help", TSR_OPT_FLAG, &common->help, NULL, "print this text"}},
        {0, {"-h", TSR_OPT_FLAG, &common->short_help, NULL, "print a summary of it"}},
    };
    const char *topic = "General";
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (all[i].takes != 0 && (takes & all[i].takes) == 0)
            continue;
        tsr_options_append_topic(options, topic, (const tsr_option[]){all[i].option, {0}});
        topic = NULL;
    }
}

tsr_status tsr_common_options_check(tsr_common_options *common, tsr_err *err)
{
    return tsr_parse_block("--source-block", common->source_block, &common->block, err);
}

/* ---- help ---- */

static void print_and_free(tsr_text *help)
{
    if (!help->failed)
        tsr_print_raw(help->data, help->size);
    tsr_text_free(help);
}

void tsr_options_print_help(const char *text, const tsr_option *options)
{
    const tsr_style style = {.width = tsr_line_width()};
    tsr_text help = {0};
    tsr_help_draw(&help, &style, text);
    for (const tsr_option *o = options; o->name != NULL; o++) {
        if (o->topic != NULL)
            tsr_text_printf(&help, "\n %s:\n", o->topic);
        if (o->help != NULL)
            tsr_help_draw_option(&help, &style, o);
    }
    print_and_free(&help);
}

/* Returns the end of the n-th paragraph. */
static const char *end_of_paragraph(const char *text, unsigned n)
{
    const char *end = strstr(text, "\n\n");
    while (--n > 0 && end != NULL)
        end = strstr(end + 2, "\n\n");
    return end == NULL ? text + strlen(text) : end;
}

/* Returns the end of the n-th example. */
static const char *end_of_example(const char *examples, unsigned n)
{
    const char *const all = end_of_paragraph(examples, 1), *at = strstr(examples, "\n  tessera ");
    while (n-- > 0 && at != NULL)
        at = strstr(at + 1, "\n  tessera ");
    return at == NULL || at > all ? all : at;
}

void tsr_options_print_short_help(const char *name, const char *text, const tsr_option *options)
{
    const tsr_style style = {.width = tsr_line_width()};
    const char *const examples = strstr(text, "\n\nExamples:\n");
    tsr_text shown = {0}, names = {0}, help = {0};
    tsr_text_append(&shown, text, (size_t)(end_of_paragraph(text, 2) - text));
    if (examples != NULL)
        tsr_text_append(&shown, examples, (size_t)(end_of_example(examples + 2, 3) - examples));
    tsr_text_append(&shown, "\n", 1);
    for (const tsr_option *o = options; o->name != NULL; o++) {
        if (o->help != NULL)
            tsr_text_printf(&names, "%s%s", names.size == 0 ? "\nOptions: " : ", ", o->name);
    }
    tsr_text_printf(&names, "\n\n'tessera help %s' describes them, with more examples.\n", name);
    if (!shown.failed)
        tsr_help_draw(&help, &style, shown.data);
    if (!names.failed)
        tsr_help_draw(&help, &style, names.data);
    help.failed = help.failed || shown.failed || names.failed;
    tsr_text_free(&shown);
    tsr_text_free(&names);
    print_and_free(&help);
}

static void json_choices(tsr_text *t, const char *words)
{
    tsr_json_member_array(t, "choices", true);
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
        [TSR_OPT_FLAG] = "flag",   [TSR_OPT_TEXT] = "text",      [TSR_OPT_LIST] = "list", [TSR_OPT_CHOICE] = "choice",
        [TSR_OPT_COUNT] = "count", [TSR_OPT_POSITIVE] = "count", [TSR_OPT_SIZE] = "size"};
    tsr_json_begin_object(t, true);
    tsr_json_member_string(t, "name", o->name);
    tsr_json_member_string(t, "kind", kKinds[o->kind]);
    tsr_json_member_string(t, "argument", o->argument);
    if (o->kind == TSR_OPT_CHOICE)
        json_choices(t, o->argument);
    tsr_json_member_string(t, "help", o->help);
    tsr_json_member_string(t, "topic", o->topic);
    tsr_json_end_object(t);
}

void tsr_options_json(tsr_text *to, const char *text, const tsr_option *options)
{
    tsr_json_member_string(to, "text", text);
    tsr_json_member_array(to, "options", false);
    for (const tsr_option *o = options; o->name != NULL; o++) {
        if (o->help != NULL)
            json_option(to, o);
    }
    tsr_json_end_array(to);
}
