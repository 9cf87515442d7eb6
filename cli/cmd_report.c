/* tessera report: results of other commands, for people and for CI. */
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/places.h"
#include "report/writers.h"

#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { NARROWEST = 60, WIDEST = 120, USUAL = 80 };

typedef struct arguments {
    const char *results[TSR_MAX_RESULTS];
    size_t n;
    bool quiet, help;
} arguments;

static const char kHelp[] =
    "tessera report RESULT.json... [options]\n\n"
    "Shows what other commands found: the JSON of quantize, convert, verify, diff, compare-schemes, plan-schemes and\n"
    "inspect (--json FILE), and the quantization_report.json beside quantized weights. A verdict first, then what is "
    "wrong,\n"
    "quantiles of SQNR, errors by layer, kind of module and expert, and the worst tensors.\n"
    "Exit code 0: no result fell short; 1: one did; 3: a file is no result.\n\n"
    "Examples:\n"
    "  tessera report DeepSeek-V3-FP8/quantization_report.json\n"
    "  tessera report weights.json gemm.json forward.json\n\n"
    "Options:\n";

static tsr_status parse(int argc, char **argv, arguments *a, tsr_err *err)
{
    const tsr_option options[] = {
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
    return TSR_OK;
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
    struct winsize size;
    const bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
    const unsigned columns = known ? size.ws_col : USUAL;
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

int tsr_cmd_report(int argc, char **argv)
{
    arguments a = {.n = 0};
    tsr_report report = {.results = NULL};
    tsr_err err = {{0}};
    tsr_status status = parse(argc, argv, &a, &err);
    if (status == TSR_OK && !a.help)
        status = tsr_report_make(&report, a.results, a.n, &err);
    if (status == TSR_OK && !a.help && !a.quiet)
        status = print_summary(&report, &err);
    const bool fine = report.outcome != TSR_OUTCOME_FAILED;
    tsr_report_free(&report);
    return tsr_end("report", status, fine, &err);
}
