/* tessera report: results of other commands, for people and for CI. */
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/places.h"
#include "cli/results.h"
#include "common/file.h"
#include "report/blocks.h"
#include "report/page_choice.h"
#include "report/writers.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NARROWEST = 60, WIDEST = 120, USUAL = 80 };

/* What `quantize` leaves in the folder of a checkpoint. */
#define REPORT_NAME "quantization_report.json"

typedef struct arguments {
    const char *results[TSR_MAX_RESULTS];
    const char *markdown, *html, *csv, *junit, *json, *baseline, *max_regression;
    double limit; /* dB */
    uint64_t html_rows;
    size_t n;
    bool quiet, help;
    tsr_arena arena; /* of paths */
} arguments;

static const char kHelp[] =
    "tessera report RESULT.json... [options]\n\n"
    "Shows what other commands found: the JSON of quantize, convert, verify, diff, compare-schemes, plan-schemes,\n"
    "inspect and batch (--json FILE), and the quantization_report.json beside quantized weights. A verdict first, then "
    "what is "
    "wrong,\n"
    "quantiles of SQNR, errors by layer, kind of module and expert, and the worst tensors.\n"
    "Exit code 0: no result fell short; 1: one did, or got worse than its baseline; 3: a file is no result.\n\n"
    "Examples:\n"
    "  tessera report DeepSeek-V3-FP8                     its quantization_report.json\n"
    "  tessera report weights.json gemm.json forward.json --junit report.xml --markdown comment.md        for CI\n"
    "  tessera report tonight.json --baseline lastnight.json --max-regression 0.05dB\n"
    "  tessera report weights.json gemm.json mla.json forward.json --html report.html                 for people\n"
    "  tessera report result.json --csv tensors.csv --quiet\n"
    "  tessera report result.json --json -\n\n"
    "Options:\n";

/* The folder of a checkpoint stands for the report in it. */
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
        return tsr_fail(err, TSR_E_USAGE, "%s: a folder without a " REPORT_NAME ": name a result", *path);
    *path = inside;
    return TSR_OK;
}

/* "0.1dB", "0.1 dB" or "0.1". */
static tsr_status parse_decibels(const char *text, double *value, tsr_err *err)
{
    char *end;
    if (text == NULL)
        return TSR_OK;
    *value = strtod(text, &end);
    const bool number = end != text;
    end += strspn(end, " ");
    if (!number || !isfinite(*value) || *value < 0 || (*end != '\0' && strcasecmp(end, "dB") != 0))
        return tsr_fail(err, TSR_E_USAGE, "--max-regression: '%s' is not a number of dB, such as 0.1dB", text);
    return TSR_OK;
}

static tsr_status parse(int argc, char **argv, arguments *a, tsr_err *err)
{
    const tsr_option options[] = {
        {"--baseline", TSR_OPT_TEXT, &a->baseline, "OLD.json",
         "an earlier result of the same command: what got worse comes first"},
        {"--max-regression", TSR_OPT_TEXT, &a->max_regression, "DB",
         "what a tensor may lose against it, such as 0.1dB (0.1)"},
        {"--html", TSR_OPT_TEXT, &a->html, "FILE",
         "a page with charts and a table of all tensors, in one file for any browser"},
        {"--html-rows", TSR_OPT_COUNT, &a->html_rows, "N",
         "about how many rows its table has at most, the worst first (200000); --csv has all"},
        {"--markdown", TSR_OPT_TEXT, &a->markdown, "FILE",
         "for a comment on a pull request: the verdict first, details folded"},
        {"--csv", TSR_OPT_TEXT, &a->csv, "FILE", "all tensors and judgements, a row each"},
        {"--junit", TSR_OPT_TEXT, &a->junit, "FILE",
         "JUnit XML: a case for each check of a layer, and for each judgement"},
        {"--json", TSR_OPT_TEXT, &a->json, "FILE", "the report itself as JSON ('-': stdout)"},
        {"--quiet", TSR_OPT_FLAG, &a->quiet, NULL, "no summary: only files and the exit code"},
        {"--help", TSR_OPT_FLAG, &a->help, NULL, "this text"},
        {0},
    };
    TSR_TRY(tsr_options_parse(options, argc, argv, a->results, TSR_MAX_RESULTS, &a->n, NULL, err));
    if (a->help) {
        tsr_options_help(kHelp, options);
        return TSR_OK;
    }
    if (a->n == 0)
        return tsr_fail(err, TSR_E_USAGE, "which results? tessera report RESULT.json...");
    if (a->baseline != NULL && a->n > 1)
        return tsr_fail(err, TSR_E_USAGE, "--baseline: '%s': one result is compared with it, not several",
                        a->results[1]);
    if (a->max_regression != NULL && a->baseline == NULL)
        return tsr_fail(err, TSR_E_USAGE, "--max-regression: against what? --baseline OLD.json");
    if (a->html_rows == 0)
        return tsr_fail(err, TSR_E_USAGE, "--html-rows: at least 1");
    if (a->html != NULL && tsr_page_parts() == NULL)
        return tsr_fail(err, TSR_E_USAGE,
                        "--html: this tessera was built without its page; install libjs-chart.js, and build it again "
                        "with -Dhtml=enabled");
    TSR_TRY(parse_decibels(a->max_regression, &a->limit, err));
    for (size_t i = 0; i < a->n; i++)
        TSR_TRY(find_report(&a->results[i], &a->arena, err));
    TSR_TRY(find_report(&a->baseline, &a->arena, err));
    const tsr_output more[] = {{"--html", a->html}, {"--markdown", a->markdown}, {"--csv", a->csv}, {0}};
    tsr_places places = {.json = a->json, .junit = a->junit, .more = more, .beside = true};
    memcpy(places.sources, a->results, a->n * sizeof *a->results);
    places.sources[a->n] = a->baseline;
    return tsr_places_check(&places, err);
}

/* ---- telling ---- */

static bool is_utf8_locale(void)
{
    static const char *const kVariables[] = {"LC_ALL", "LC_CTYPE", "LANG"};
    for (size_t i = 0; i < sizeof kVariables / sizeof *kVariables; i++) {
        const char *const value = getenv(kVariables[i]);
        if (value != NULL && *value != '\0')
            return strcasestr(value, "UTF-8") != NULL || strcasestr(value, "UTF8") != NULL;
    }
    return false;
}

/* How wide the terminal is; what is written into a file or pipe fits 80 characters. */
static tsr_style find_style(void)
{
    const unsigned known = tsr_terminal_columns(STDOUT_FILENO), columns = known > 0 ? known : USUAL;
    return (tsr_style){.width = columns < NARROWEST ? NARROWEST
                                : columns > WIDEST  ? WIDEST
                                                    : columns,
                       .utf8 = is_utf8_locale(),
                       .colour = tsr_takes_colour(STDOUT_FILENO)};
}

static tsr_status print_summary(const tsr_report *report, tsr_err *err)
{
    const tsr_style style = find_style();
    tsr_text text = {0};
    tsr_write_terminal(&text, report, &style);
    const tsr_status status = tsr_text_status(&text, err);
    if (status == TSR_OK)
        tsr_print_raw(text.data, text.size);
    tsr_text_free(&text);
    return status;
}

/* ---- files ---- */

static tsr_status make_html(tsr_text *text, const arguments *a, const tsr_report *report, tsr_err *err)
{
    (void)err;
    const size_t left_out = tsr_write_html(text, report, tsr_page_parts(), a->html_rows);
    if (left_out > 0)
        tsr_tell(
            "tessera: %s: the table leaves %zu rows out, which are not the worst: --csv FILE has all, and so has a "
            "larger --html-rows\n",
            a->html, left_out);
    return TSR_OK;
}

static tsr_status make_markdown(tsr_text *text, const arguments *a, const tsr_report *report, tsr_err *err)
{
    (void)a;
    (void)err;
    tsr_write_markdown(text, report);
    return TSR_OK;
}

static tsr_status make_csv(tsr_text *text, const arguments *a, const tsr_report *report, tsr_err *err)
{
    (void)a;
    (void)err;
    tsr_write_csv(text, report);
    return TSR_OK;
}

static tsr_status make_json(tsr_text *text, const arguments *a, const tsr_report *report, tsr_err *err)
{
    (void)a;
    (void)err;
    tsr_write_json(text, report);
    return TSR_OK;
}

static tsr_status make_junit(tsr_text *text, const arguments *a, const tsr_report *report, tsr_err *err)
{
    (void)a;
    return tsr_write_junit(text, report, err);
}

static tsr_status write_files(const arguments *a, const tsr_report *report, tsr_err *err)
{
    const struct {
        const char *path;
        tsr_status (*make)(tsr_text *text, const arguments *a, const tsr_report *report, tsr_err *err);
    } files[] = {{a->html, make_html},
                 {a->markdown, make_markdown},
                 {a->csv, make_csv},
                 {a->junit, make_junit},
                 {a->json, make_json}};
    tsr_status status = TSR_OK;
    for (size_t i = 0; i < sizeof files / sizeof *files && status == TSR_OK; i++) {
        tsr_text text = {0};
        if (files[i].path != NULL)
            status = files[i].make(&text, a, report, err);
        if (status == TSR_OK && files[i].path != NULL)
            status = tsr_write_report(files[i].path, &text, err);
        tsr_text_free(&text);
    }
    return status;
}

/* A summary would stand in the middle of a report that goes to stdout. */
static bool talks(const arguments *a)
{
    return !a->quiet && !tsr_is_stdout(a->html) && !tsr_is_stdout(a->markdown) && !tsr_is_stdout(a->csv) &&
           !tsr_is_stdout(a->junit) && !tsr_is_stdout(a->json);
}

int tsr_cmd_report(int argc, char **argv)
{
    arguments a = {.limit = 0.1, .html_rows = TSR_PAGE_ROWS};
    tsr_report report = {.results = NULL};
    tsr_err err = {{0}};
    tsr_status status = parse(argc, argv, &a, &err);
    if (status == TSR_OK && !a.help)
        status = tsr_report_make(&report, a.results, a.n, &err);
    if (status == TSR_OK && !a.help && (a.html != NULL || talks(&a)))
        status = tsr_report_read_blocks(&report, &err);
    if (status == TSR_OK && a.baseline != NULL && !a.help)
        status = tsr_report_compare(&report, a.baseline, a.limit, &err);
    if (status == TSR_OK && !a.help)
        status = write_files(&a, &report, &err);
    if (status == TSR_OK && !a.help && talks(&a))
        status = print_summary(&report, &err);
    const bool fine = report.outcome != TSR_OUTCOME_FAILED;
    tsr_report_free(&report);
    tsr_arena_free(&a.arena);
    return tsr_end("report", status, fine, &err);
}
