/* Combines results into a report. */
#include "report/report.h"

#include "common/file.h"
#include "formats/json/json.h"
#include "report/read/parts.h"
#include "report/read/read.h"

#include <stdlib.h>

static void judge(tsr_report *report)
{
    for (size_t i = 0; i < report->count; i++) {
        report->judged +=
            report->results[i].outcome == TSR_OUTCOME_PASSED || report->results[i].outcome == TSR_OUTCOME_FAILED;
        report->failed += report->results[i].outcome == TSR_OUTCOME_FAILED;
    }
    report->outcome = report->failed > 0   ? TSR_OUTCOME_FAILED
                      : report->judged > 0 ? TSR_OUTCOME_PASSED
                                           : TSR_OUTCOME_NONE;
}

/* Begins a report with room for the results of n files. */
static tsr_status begin(tsr_report *report, size_t files, tsr_err *err)
{
    const size_t n = files * TSR_MAX_PARTS;
    *report = (tsr_report){.results = calloc(n, sizeof *report->results),
                           .overviews = calloc(n, sizeof *report->overviews),
                           .rules = calloc(files, sizeof *report->rules)};
    return report->results == NULL || report->overviews == NULL || report->rules == NULL ? tsr_out_of_memory(err, NULL)
                                                                                         : TSR_OK;
}

static bool are_rules(const char *text, size_t size)
{
    tsr_json_text value;
    return tsr_json_find(text, size, "schema", &value) && tsr_json_is(value, "\"tessera-rules/1\"");
}

/* Appends the result or results of a text, and sums them up. */
static tsr_status add_text(tsr_report *report, const char *path, const char *text, size_t size, tsr_err *err)
{
    tsr_result *const results = report->results + report->count;
    size_t n = 1;
    if (tsr_has_parts(text, size))
        TSR_TRY(tsr_parts_read(results, &n, path, text, size, err));
    else
        TSR_TRY(tsr_result_read_text(results, path, text, size, err));
    report->count += n; /* from now on the report frees them */
    for (size_t i = 0; i < n; i++)
        TSR_TRY(tsr_overview_make(&report->overviews[report->count - n + i], &results[i], err));
    return TSR_OK;
}

static tsr_status add_file(tsr_report *report, const char *path, tsr_err *err)
{
    tsr_arena file = {0};
    const char *text;
    size_t size;
    tsr_status status = tsr_read_file(path, TSR_MAX_RESULT_BYTES, &file, &text, &size, err);
    if (status == TSR_OK && are_rules(text, size))
        report->rules[report->n_rules++] = path;
    else if (status == TSR_OK)
        status = add_text(report, path, text, size, err);
    tsr_arena_free(&file);
    return status;
}

static tsr_status finish(tsr_report *report, tsr_status status)
{
    if (status == TSR_OK)
        judge(report);
    else
        tsr_report_free(report);
    return status;
}

tsr_status tsr_report_make(tsr_report *report, const char *const *paths, size_t n, tsr_err *err)
{
    tsr_status status = begin(report, n, err);
    for (size_t i = 0; i < n && status == TSR_OK; i++)
        status = add_file(report, paths[i], err);
    if (status == TSR_OK && report->count == 0)
        status = tsr_fail(err, TSR_E_UNSUPPORTED,
                          "%s: rules for 'tessera quantize --rules', not a result of a "
                          "command",
                          report->rules[0]);
    return finish(report, status);
}

tsr_status tsr_report_of_text(tsr_report *report, const char *path, const char *text, size_t size, tsr_err *err)
{
    tsr_status status = begin(report, 1, err);
    if (status == TSR_OK)
        status = add_text(report, path, text, size, err);
    return finish(report, status);
}

tsr_status tsr_report_compare(tsr_report *report, const char *path, double limit, tsr_err *err)
{
    if (report->count != 1)
        return tsr_fail(err, TSR_E_USAGE,
                        "--baseline: %s holds the results of several kinds; give the result of one "
                        "kind",
                        report->results[0].path);
    TSR_TRY(tsr_baseline_make(&report->baseline, &report->results[0], path, limit, err));
    report->judged = 1;
    if (report->baseline.count > 0)
        report->failed = 1;
    report->outcome = report->failed > 0 ? TSR_OUTCOME_FAILED : TSR_OUTCOME_PASSED;
    return TSR_OK;
}

void tsr_report_free(tsr_report *report)
{
    if (report->baseline.now != NULL)
        tsr_baseline_free(&report->baseline);
    for (size_t i = 0; i < report->count; i++) {
        tsr_overview_free(&report->overviews[i]);
        tsr_result_free(&report->results[i]);
    }
    free(report->results);
    free(report->overviews);
    free(report->rules);
    *report = (tsr_report){.results = NULL};
}

static size_t fatal_findings(const tsr_result *result)
{
    size_t n = 0;
    for (size_t i = 0; i < result->n_findings; i++)
        n += result->findings[i].fatal;
    return n;
}

void tsr_result_reason(tsr_text *text, const tsr_overview *overview)
{
    const tsr_result *const result = overview->result;
    const size_t findings = fatal_findings(result), judged = overview->passed + overview->failed;
    if (result->outcome == TSR_OUTCOME_SKIPPED)
        tsr_text_printf(text, "not applicable: %s", result->rows[0].note);
    else if (result->error != NULL)
        tsr_text_printf(text, "an error ended it, with exit code %llu", U64(result->error_code));
    else if (result->outcome == TSR_OUTCOME_NONE)
        tsr_text_printf(text, "no limits were given: nothing was judged");
    else if (findings > 0)
        tsr_text_printf(text, "%zu finding%s", findings, tsr_plural(findings));
    else if (result->outcome == TSR_OUTCOME_FAILED)
        tsr_text_printf(text, "%zu of %zu judgements failed", overview->failed, judged);
    else if (result->n_checks > 0)
        tsr_text_printf(text, "%zu check%s passed", result->n_checks, tsr_plural(result->n_checks));
    else if (judged > 0)
        tsr_text_printf(text, "all %zu judgements passed", judged);
    else
        tsr_text_printf(text, "no error was found");
}

void tsr_report_reason(tsr_text *text, const tsr_report *report)
{
    if (report->baseline.now != NULL && report->results[0].outcome == TSR_OUTCOME_FAILED) {
        tsr_result_reason(text, &report->overviews[0]);
        tsr_text_printf(text, "; ");
    }
    if (report->baseline.now != NULL)
        tsr_baseline_reason(text, &report->baseline);
    else if (report->count == 1)
        tsr_result_reason(text, &report->overviews[0]);
    else if (report->failed > 0)
        tsr_text_printf(text, "%zu of %zu results failed", report->failed, report->count);
    else if (report->judged == report->count)
        tsr_text_printf(text, "all %zu results passed", report->count);
    else if (report->judged > 0)
        tsr_text_printf(text, "%zu of %zu results %s a verdict, and passed", report->judged, report->count,
                        report->judged == 1 ? "has" : "have");
    else
        tsr_text_printf(text, "%zu results with figures, and without limits: nothing was judged", report->count);
}
