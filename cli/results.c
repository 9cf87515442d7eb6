/* Results and errors as JSON and JUnit XML. */
#include "cli/results.h"
#include "cli/anchors.h"
#include "cli/output.h"
#include "cli/places.h"
#include "cli/stage.h"
#include "formats/json/json_write.h"
#include "report/writers.h"

#include <assert.h>
#include <string.h>
#include <unistd.h>

enum { EXIT_SHORT = 1 };

/* Reads the result, which goes to `json`, as tessera report would, and writes what it says. */
static tsr_status write_junit(const char *path, const char *json, const tsr_text *text, tsr_err *err)
{
    const char *const name = json == NULL || tsr_stage_owns(json) || tsr_is_stdout(json) ? "" : json;
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

tsr_status tsr_results_write(const char *json, const char *junit, const tsr_text *text, tsr_err *err)
{
    TSR_TRY(tsr_text_status(text, err));
    if (json != NULL)
        TSR_TRY(tsr_write_report(json, text, err));
    return junit == NULL ? TSR_OK : write_junit(junit, json, text, err);
}

/* ---- errors ---- */

/* The schema of what a command writes, and which check it is where several share one. */
static const struct {
    const char *command, *schema, *check;
} kSchemas[] = {
    {"quantize", "tessera-quantize/1", NULL},
    {"convert", "tessera-convert/1", NULL},
    {"finish", "tessera-finish/1", NULL},
    {"compare-schemes", "tessera-compare-schemes/1", NULL},
    {"plan-schemes", "tessera-plan-schemes/1", NULL},
    {"diff", "tessera-diff/1", NULL},
    {"verify", "tessera-verify/1", NULL},
    {"verify gemm", "tessera-verify-kernels/1", "gemm"},
    {"verify epilogue", "tessera-verify-kernels/1", "epilogue"},
    {"verify dequant", "tessera-verify-kernels/1", "dequant"},
    {"verify mla", "tessera-verify-kernels/1", "mla"},
    {"verify forward", "tessera-verify-forward/1", NULL},
    {"verify manifest", "tessera-verify-manifest/1", NULL},
    {"verify all", "tessera-verify-all/1", NULL},
    {"inspect", "tessera-inspect/1", NULL},
    {"report", "tessera-report/1", NULL},
    {"batch", "tessera-batch/1", NULL},
};

/* The error comes before all else that a result may hold: a reader knows soon what it reads. */
void tsr_error_json(tsr_text *t, const char *command, tsr_status status, const tsr_err *why)
{
    size_t of = 0;
    while (of < sizeof kSchemas / sizeof *kSchemas && strcmp(kSchemas[of].command, command) != 0)
        of++;
    assert(of < sizeof kSchemas / sizeof *kSchemas);
    tsr_json_begin_object(t, false);
    tsr_json_member_string(t, "schema", kSchemas[of].schema);
    tsr_json_member_string(t, "version", TSR_VERSION);
    if (kSchemas[of].check != NULL)
        tsr_json_member_string(t, "check", kSchemas[of].check);
    tsr_json_key(t, "error");
    tsr_json_begin_object(t, true);
    tsr_json_member_u64(t, "code", (uint64_t)tsr_exit_code(status));
    tsr_json_member_string(t, "message", why->msg);
    tsr_json_end_object(t);
    tsr_json_end_object(t);
    tsr_text_append(t, "\n", 1);
}

/* That it cannot be written is not told: there is an error to tell already, and the exit code is that of it. */
static void write_error(const char *command, tsr_status status, const tsr_err *why)
{
    const tsr_owed owed = tsr_reports_owed();
    tsr_text text = {0};
    tsr_error_json(&text, command, status, why);
    if (owed.json != NULL)
        (void)!tsr_write_report(owed.json, &text, NULL);
    if (owed.junit != NULL)
        (void)!write_junit(owed.junit, owed.json, &text, NULL);
    tsr_text_free(&text);
}

/* For people only: programs read one line an error. */
static void tell_more(const char *message)
{
    const char *const anchor = isatty(STDERR_FILENO) ? tsr_error_anchor(message) : NULL;
    if (anchor != NULL)
        tsr_tell("more: docs/errors.md#%s\n", anchor);
}

int tsr_end(const char *command, tsr_status status, bool fine, const tsr_err *err)
{
    const bool usage = status == TSR_E_USAGE;
    tsr_stage *const stage = tsr_stage_now();
    if (stage != NULL) {
        stage->status = status;
        stage->err = *err;
    }
    if (status == TSR_OK)
        return fine ? 0 : EXIT_SHORT;
    if (stage != NULL && stage->rehearsal)
        return tsr_exit_code(status);
    tsr_tell(tsr_takes_colour(STDERR_FILENO) ? "\033[31mtessera:\033[0m " : "tessera: ");
    if (stage != NULL)
        tsr_tell("%s: ", stage->job);
    tsr_tell("%s", err->msg);
    if (usage)
        tsr_tell(" ('tessera %s --help')", command);
    tsr_tell("\n");
    tell_more(err->msg);
    if (!usage && status != TSR_E_EXISTS)
        write_error(command, status, err);
    return tsr_exit_code(status);
}
