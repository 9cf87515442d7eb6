/* Writes JUnit XML for Jenkins and GitLab: a testsuite per result, a testcase per case. */
#include "report/write/writers.h"

#include "report/write/cases.h"

#include <stdlib.h>
#include <string.h>

/* Appends text for XML. Control characters, which XML cannot represent, are escaped; line ends are kept if `lines`
 * is true. */
static void escape(tsr_text *text, const char *what, bool lines)
{
    static const struct {
        char c;
        const char *entity;
    } kEntities[] = {{'<', "&lt;"}, {'>', "&gt;"}, {'&', "&amp;"}, {'"', "&quot;"}, {'\'', "&#39;"}};
    tsr_text shown = {0};
    for (const char *at = what; *at != '\0';) {
        const size_t n = lines ? strcspn(at, "\n") : strlen(at);
        tsr_text_visible(&shown, at, n);
        at += n;
        if (*at == '\n') {
            tsr_text_append(&shown, "\n", 1);
            at++;
        }
    }
    for (size_t i = 0; i < shown.size; i++) {
        const char *entity = NULL;
        for (size_t k = 0; k < sizeof kEntities / sizeof *kEntities; k++)
            entity = shown.data[i] == kEntities[k].c ? kEntities[k].entity : entity;
        if (entity != NULL)
            tsr_text_printf(text, "%s", entity);
        else
            tsr_text_append(text, shown.data + i, 1);
    }
    text->failed = text->failed || shown.failed;
    tsr_text_free(&shown);
}

static void attribute(tsr_text *text, const char *name, const char *value)
{
    tsr_text_printf(text, " %s=\"", name);
    escape(text, value, false);
    tsr_text_append(text, "\"", 1);
}

static void write_case(tsr_text *text, const tsr_case *c)
{
    tsr_text_printf(text, "    <testcase");
    attribute(text, "classname", c->class_name);
    attribute(text, "name", c->name);
    tsr_text_printf(text, " time=\"%.6f\"", c->seconds);
    if (c->outcome == TSR_OUTCOME_PASSED) {
        tsr_text_printf(text, "/>\n");
        return;
    }
    const bool failed = c->outcome == TSR_OUTCOME_FAILED;
    const char *const element = c->error ? "error" : failed ? "failure" : "skipped";
    tsr_text_printf(text, ">\n      <%s", element);
    attribute(text, "message", c->message == NULL ? "" : c->message);
    if (failed) {
        attribute(text, "type", c->class_name);
        tsr_text_append(text, ">", 1);
        escape(text, c->text == NULL ? "" : c->text, true);
        tsr_text_printf(text, "</%s>\n", element);
    } else {
        tsr_text_printf(text, "/>\n");
    }
    tsr_text_printf(text, "    </testcase>\n");
}

static void write_property(tsr_text *text, const char *name, const char *value)
{
    if (value[0] == '\0')
        return;
    tsr_text_printf(text, "      <property");
    attribute(text, "name", name);
    attribute(text, "value", value);
    tsr_text_printf(text, "/>\n");
}

static void write_facts(tsr_text *text, const tsr_result *result)
{
    tsr_text_printf(text, "    <properties>\n");
    write_property(text, "result", result->path);
    write_property(text, "tessera", result->version);
    write_property(text, "command", result->command);
    for (size_t i = 0; i < result->facts.count; i++)
        write_property(text, result->facts.items[i].name, result->facts.items[i].value);
    for (size_t i = 0; i < result->limits.count; i++)
        write_property(text, result->limits.items[i].name, result->limits.items[i].value);
    tsr_text_printf(text, "    </properties>\n");
}

/* Returns the seconds of the whole result, if it has them. */
static double seconds_of(const tsr_result *result)
{
    const char *const said = tsr_fact_of(&result->facts, "seconds");
    return said == NULL ? 0 : strtod(said, NULL);
}

static void write_suite(tsr_text *text, const char *name, const tsr_result *result, const tsr_cases *cases)
{
    tsr_text_printf(text, "  <testsuite");
    attribute(text, "name", name);
    tsr_text_printf(text, " tests=\"%zu\" failures=\"%zu\" errors=\"%zu\" skipped=\"%zu\" time=\"%.6f\">\n",
                    cases->count, cases->failed, cases->errors, cases->skipped, seconds_of(result));
    write_facts(text, result);
    for (size_t i = 0; i < cases->count; i++)
        write_case(text, &cases->items[i]);
    tsr_text_printf(text, "  </testsuite>\n");
}

/* The suite of the comparison is first, like regressions in all forms. */
tsr_status tsr_write_junit(tsr_text *text, const tsr_report *report, tsr_err *err)
{
    const bool compared = report->baseline.now != NULL;
    const size_t n = report->count + compared;
    tsr_cases *const cases = calloc(n + 1, sizeof *cases);
    tsr_status status = cases == NULL ? tsr_out_of_memory(err, NULL) : TSR_OK;
    size_t tests = 0, failed = 0, errors = 0;
    for (size_t i = 0; i < n && status == TSR_OK; i++) {
        status = i < compared ? tsr_cases_of_baseline(&cases[i], &report->baseline, &report->overviews[0], err)
                              : tsr_cases_make(&cases[i], &report->overviews[i - compared], err);
        tests += cases[i].count;
        failed += cases[i].failed;
        errors += cases[i].errors;
    }
    tsr_text_printf(text,
                    "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
                    "<testsuites name=\"tessera\" tests=\"%zu\" failures=\"%zu\" errors=\"%zu\">\n",
                    tests, failed, errors);
    for (size_t i = 0; i < n && status == TSR_OK; i++) {
        const tsr_result *const result = &report->results[i < compared ? 0 : i - compared];
        write_suite(text, i < compared ? "baseline" : result->title, result, &cases[i]);
    }
    tsr_text_printf(text, "</testsuites>\n");
    for (size_t i = 0; i < n && cases != NULL; i++)
        tsr_cases_free(&cases[i]);
    free(cases);
    return status;
}
