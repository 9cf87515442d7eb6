/* Implements `tessera report`: summarizes the results of other commands. */
#include "cli/commands/commands.h"
#include "cli/io/output.h"
#include "common/file.h"
#include "report/blocks.h"
#include "report/write/page_choice.h"
#include "report/write/terminal/terminal_parts.h"
#include "report/write/writers.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The file that `quantize` writes to the folder of a checkpoint. */
#define REPORT_NAME "quantization_report.json"

typedef struct reporting {
    const char *results[TSR_MAX_RESULTS];
    size_t n;
    const char *markdown, *html, *csv, *baseline, *max_regression;
    double limit;    /* dB */
    tsr_arena arena; /* memory of the paths */
    tsr_report report;
} reporting;

static const char kHelp[] =
    "tessera report RESULT.json... [options]\n\n"
    "Prints what other commands found. It reads the JSON of quantize, convert, verify, diff,\n"
    "compare-schemes, plan-schemes, inspect and batch (--json FILE), and the quantization_report.json\n"
    "beside quantized weights. It prints the verdict first, then what is wrong, quantiles of SQNR, errors\n"
    "by layer, kind of module and expert, and the worst tensors.\n\n"
    "Exit code 0: no result fell short. 1: a result fell short, or is worse than its baseline. 3: a file\n"
    "is no result.\n\n"
    "Examples:\n"
    "  tessera report DeepSeek-V3-FP8                     its quantization_report.json\n"
    "  tessera report weights.json gemm.json forward.json --junit report.xml --markdown comment.md        for CI\n"
    "  tessera report tonight.json --baseline lastnight.json --max-regression 0.05dB\n"
    "  tessera report weights.json gemm.json mla.json forward.json --html report.html                 for people\n"
    "  tessera report result.json --csv tensors.csv --quiet\n"
    "  tessera report result.json --json -\n\n"
    "Options:\n";

/* Replaces the folder of a checkpoint by the report in it. */
static tsr_status find_report(const char **path, tsr_arena *arena, tsr_err *err)
{
    struct stat st;
    if (*path == NULL || stat(*path, &st) != 0 || !S_ISDIR(st.st_mode))
        return TSR_OK;
    const char *const inside = tsr_arena_printf(arena, "%s/" REPORT_NAME, *path);
    if (inside == NULL)
        return tsr_out_of_memory(err, NULL);
    bool exists;
    TSR_TRY(tsr_exists(inside, &exists, err));
    if (!exists)
        return tsr_fail(err, TSR_E_USAGE, "%s: a directory without a " REPORT_NAME ": name a result", *path);
    *path = inside;
    return TSR_OK;
}

/* Parses "0.1dB", "0.1 dB" or "0.1". */
static tsr_status parse_decibels(const char *text, double *value, tsr_err *err)
{
    const char *end = text;
    if (text == NULL)
        return TSR_OK;
    const bool number = tsr_take_real(&end, value);
    end += strspn(end, " ");
    if (!number || *value < 0 || (*end != '\0' && strcasecmp(end, "dB") != 0))
        return tsr_fail(err, TSR_E_USAGE, "--max-regression: '%s' is not a number of dB, such as 0.1dB", text);
    return TSR_OK;
}

static void set_defaults(tsr_command_context *c)
{
    reporting *const a = c->job;
    a->limit = 0.1;
}

static void add_options(tsr_command_context *c, tsr_option *options)
{
    reporting *const a = c->job;
    const tsr_option own[] = {
        {"--baseline", TSR_OPT_TEXT, &a->baseline, "OLD.json",
         "compare with an earlier result of the same command and print regressions first"},
        {"--max-regression", TSR_OPT_TEXT, &a->max_regression, "DB",
         "with --baseline: the most SQNR that a tensor may lose (0.1dB)"},
        {"--html", TSR_OPT_TEXT, &a->html, "FILE",
         "write a page with charts and a table of tensors, the worst 100000; --csv has all"},
        {"--markdown", TSR_OPT_TEXT, &a->markdown, "FILE",
         "write Markdown for a comment on a pull request: the verdict first, details folded"},
        {"--csv", TSR_OPT_TEXT, &a->csv, "FILE", "write all tensors and judgements, one a row"},
        {0},
    };
    tsr_options_append(options, own);
}

static tsr_status check(tsr_command_context *c, tsr_err *err)
{
    reporting *const a = c->job;
    a->n = c->n_words;
    memcpy(a->results, c->words, a->n * sizeof *a->results);
    if (a->n == 0)
        return tsr_fail(err, TSR_E_USAGE, "no results given: tessera report RESULT.json...");
    if (a->baseline != NULL && a->n > 1)
        return tsr_fail(err, TSR_E_USAGE, "--baseline: '%s' can be compared with one result only", a->results[1]);
    if (a->max_regression != NULL && a->baseline == NULL)
        return tsr_fail(err, TSR_E_USAGE, "--max-regression needs a result to compare with: --baseline OLD.json");
    if (a->html != NULL && tsr_page_parts() == NULL)
        return tsr_fail(err, TSR_E_USAGE,
                        "--html: this tessera was built without the page; install libjs-chart.js and rebuild with "
                        "-Dhtml=enabled");
    TSR_TRY(parse_decibels(a->max_regression, &a->limit, err));
    for (size_t i = 0; i < a->n; i++)
        TSR_TRY(find_report(&a->results[i], &a->arena, err));
    return find_report(&a->baseline, &a->arena, err);
}

static void list_paths(const tsr_command_context *c, tsr_io_paths *paths)
{
    const reporting *const a = c->job;
    const tsr_output more[] = {{"--html", a->html}, {"--markdown", a->markdown}, {"--csv", a->csv}};
    memcpy(paths->sources, a->results, a->n * sizeof *a->results);
    paths->sources[a->n] = a->baseline;
    memcpy(paths->more, more, sizeof more);
    paths->beside = true;
}

static tsr_style find_style(void)
{
    return (tsr_style){.width = tsr_line_width(),
                       .utf8 = tsr_is_utf8_locale(),
                       .colour = tsr_takes_colour(STDOUT_FILENO),
                       .full = "--csv"};
}

static tsr_status print(tsr_command_context *c, tsr_err *err)
{
    const reporting *const a = c->job;
    const tsr_style style = find_style();
    tsr_text text = {0};
    tsr_write_terminal(&text, &a->report, &style);
    return tsr_print_drawn(&text, err);
}

/* ---- files ---- */

static tsr_status make_html(tsr_text *text, const reporting *a, const tsr_report *report, tsr_err *err)
{
    (void)err;
    const size_t left_out = tsr_write_html(text, report, tsr_page_parts(), TSR_PAGE_ROWS);
    if (left_out > 0)
        tsr_print_stderr("tessera: %s: the table omits %zu rows, none of them among the worst; --csv FILE has all "
                         "rows\n",
                         a->html, left_out);
    return TSR_OK;
}

static tsr_status make_markdown(tsr_text *text, const reporting *a, const tsr_report *report, tsr_err *err)
{
    (void)a;
    (void)err;
    tsr_write_markdown(text, report);
    return TSR_OK;
}

static tsr_status make_csv(tsr_text *text, const reporting *a, const tsr_report *report, tsr_err *err)
{
    (void)a;
    (void)err;
    tsr_write_csv(text, report);
    return TSR_OK;
}

static tsr_status make_json(tsr_text *text, const reporting *a, const tsr_report *report, tsr_err *err)
{
    (void)a;
    (void)err;
    tsr_write_json(text, report);
    return TSR_OK;
}

static tsr_status make_junit(tsr_text *text, const reporting *a, const tsr_report *report, tsr_err *err)
{
    (void)a;
    return tsr_write_junit(text, report, err);
}

static tsr_status write_files(tsr_command_context *c, tsr_err *err)
{
    const reporting *const a = c->job;
    const struct {
        const char *path;
        tsr_status (*make)(tsr_text *text, const reporting *a, const tsr_report *report, tsr_err *err);
    } files[] = {{a->html, make_html},
                 {a->markdown, make_markdown},
                 {a->csv, make_csv},
                 {c->common.junit, make_junit},
                 {c->common.json, make_json}};
    tsr_status status = TSR_OK;
    for (size_t i = 0; i < sizeof files / sizeof *files && status == TSR_OK; i++) {
        tsr_text text = {0};
        if (files[i].path != NULL)
            status = files[i].make(&text, a, &a->report, err);
        if (status == TSR_OK && files[i].path != NULL) {
            tsr_pending_mark_written(&c->pending, files[i].path);
            status = tsr_write_report(files[i].path, &text, err);
        }
        tsr_text_free(&text);
    }
    if (status != TSR_OK || c->batch == NULL || !c->batch->keep)
        return status;
    tsr_write_json(&c->result, &a->report);
    return tsr_text_status(&c->result, err);
}

/* ---- the command ---- */

static tsr_status run(tsr_command_context *c, tsr_terminal *terminal, tsr_err *err)
{
    reporting *const a = c->job;
    (void)terminal;
    const tsr_status made = tsr_report_make(&a->report, a->results, a->n, err);
    for (size_t i = 0; i < a->report.n_rules; i++)
        tsr_print_stderr("tessera: %s: skipped: rules for 'tessera quantize --rules', not a result of a command\n",
                         a->report.rules[i]);
    TSR_TRY(made);
    if (a->html != NULL || c->prints)
        TSR_TRY(tsr_report_read_blocks(&a->report, err));
    if (a->baseline != NULL)
        TSR_TRY(tsr_report_compare(&a->report, a->baseline, a->limit, err));
    return write_files(c, err);
}

static int exit_code(const tsr_command_context *c)
{
    const reporting *const a = c->job;
    return a->report.outcome == TSR_OUTCOME_FAILED;
}

static void close_job(tsr_command_context *c)
{
    reporting *const a = c->job;
    tsr_report_free(&a->report);
    tsr_arena_free(&a->arena);
}

const tsr_command tsr_command_report = {
    .name = "report",
    .topic = "Report and automate",
    .summary = "results of these commands: a summary, tables, charts",
    .schema = "tessera-report/1",
    TSR_COMMAND(TSR_MAX_RESULTS, 0, reporting),
    .set_defaults = set_defaults,
    .print = print,
    .exit_code = exit_code,
};
