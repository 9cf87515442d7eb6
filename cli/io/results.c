/* Writes results and errors as JSON and JUnit XML, and errors on stderr. */
#include "cli/io/results.h"

#include "cli/help/error_pages.h"
#include "cli/io/output.h"
#include "formats/json/json_write.h"
#include "report/write/writers.h"

#include <unistd.h>

/* Parses the result like tessera report and writes it as JUnit XML. */
static tsr_status write_junit(const char *path, const char *json, const tsr_text *text, tsr_err *err)
{
    const char *const name = json == NULL || tsr_is_stdout(json) ? "" : json;
    tsr_report report;
    tsr_text junit = {0};
    TSR_TRY(tsr_report_of_text(&report, name, text->data, text->size, err));
    tsr_status status = tsr_write_junit(&junit, &report, err);
    tsr_report_free(&report);
    if (status == TSR_OK)
        status = tsr_write_report(path, &junit, err);
    tsr_text_free(&junit);
    return status;
}

/* Keeps a result for the batch that runs the command. */
static tsr_status keep(tsr_command_context *c, const tsr_text *text, tsr_err *err)
{
    if (c->batch == NULL || !c->batch->keep)
        return TSR_OK;
    tsr_text_free(&c->result);
    tsr_text_append(&c->result, text->data, text->size);
    return tsr_text_status(&c->result, err);
}

tsr_status tsr_results_write(tsr_command_context *c, const tsr_text *text, tsr_err *err)
{
    TSR_TRY(tsr_text_status(text, err));
    TSR_TRY(keep(c, text, err));
    if (c->common.json != NULL) {
        tsr_pending_mark_written(&c->pending, c->common.json);
        TSR_TRY(tsr_write_report(c->common.json, text, err));
    }
    if (c->common.junit == NULL)
        return TSR_OK;
    tsr_pending_mark_written(&c->pending, c->common.junit);
    return write_junit(c->common.junit, c->common.json, text, err);
}

/* ---- documents ---- */

static void begin(tsr_text *t, const char *schema, const tsr_command *command)
{
    tsr_json_begin_document(t, schema);
    if (command->kind != NULL)
        tsr_json_member_string(t, "check", command->kind);
}

void tsr_result_json(tsr_text *t, const tsr_command_context *c)
{
    begin(t, c->schema, c->command);
    c->command->write_json(c, t);
    tsr_json_end_document(t);
}

void tsr_checks_json(tsr_text *t, const tsr_result *result)
{
    tsr_json_member_object(t, "judged", true);
    for (size_t i = 0; i < result->n_checks; i++)
        tsr_json_member_u64(t, result->checks[i].name, result->checks[i].judged);
    tsr_json_end_object(t);
    tsr_json_member_array(t, "findings", false);
    for (size_t i = 0; i < result->n_findings; i++) {
        tsr_json_begin_object(t, true);
        tsr_json_member_string(t, "check", result->findings[i].check);
        tsr_json_member_string(t, "where", result->findings[i].where);
        tsr_json_member_string(t, "what", result->findings[i].text);
        tsr_json_end_object(t);
    }
    tsr_json_end_array(t);
}

tsr_status tsr_result_report(tsr_report *report, const tsr_command_context *c, tsr_err *err)
{
    tsr_text text = {0};
    tsr_result_json(&text, c);
    tsr_status status = tsr_text_status(&text, err);
    if (status == TSR_OK)
        status = tsr_report_of_text(report, "", text.data, text.size, err);
    tsr_text_free(&text);
    return status;
}

/* The error is the first member, so that a reader finds it early. */
void tsr_error_json(tsr_text *t, const tsr_command *command, tsr_status status, const tsr_err *why)
{
    begin(t, command->schema, command);
    tsr_json_member_object(t, "error", true);
    tsr_json_member_u64(t, "code", (uint64_t)tsr_exit_code(status));
    tsr_json_member_string(t, "message", why->msg);
    if (why->tensor[0] != '\0')
        tsr_json_member_string(t, "tensor", why->tensor);
    tsr_json_end_object(t);
    tsr_json_end_document(t);
}

/* ---- errors ---- */

/* Writes the error to the pending reports. A failure to do so is not reported, because the first error determines the
 * exit code. */
static void write_error(tsr_command_context *c, const tsr_command *command)
{
    tsr_text text = {0};
    tsr_error_json(&text, command, c->status, &c->err);
    if (c->result.size == 0)
        (void)!keep(c, &text, NULL);
    if (c->pending.json != NULL)
        (void)!tsr_write_report(c->pending.json, &text, NULL);
    if (c->pending.junit != NULL)
        (void)!write_junit(c->pending.junit, c->pending.json, &text, NULL);
    c->pending = (tsr_pending_reports){0};
    tsr_text_free(&text);
}

/* Prints the name of the help page about the error, only on a terminal. Programs read one line per error. */
static void print_page(const tsr_err *err)
{
    const char *const heading = isatty(STDERR_FILENO) ? tsr_error_heading(err->id) : NULL;
    if (heading != NULL)
        tsr_print_stderr("more: tessera help errors %s\n", heading);
}

void tsr_results_end(tsr_command_context *c)
{
    const tsr_command *const command = c->failed == NULL ? c->command : c->failed;
    const bool usage = c->status == TSR_E_USAGE;
    tsr_print_stderr(tsr_takes_colour(STDERR_FILENO) ? "\033[31mtessera:\033[0m " : "tessera: ");
    if (c->batch != NULL)
        tsr_print_stderr("%s: ", c->batch->job);
    tsr_print_stderr("%s", c->err.msg);
    if (usage)
        tsr_print_stderr(" ('tessera %s --help')", command->name);
    tsr_print_stderr("\n");
    print_page(&c->err);
    if (!usage && c->status != TSR_E_EXISTS)
        write_error(c, command);
}
