/* tessera verify: its options, and its findings as text and JSON. */
#include "cli/commands.h"
#include "cli/compare_sides.h"
#include "cli/output.h"
#include "cli/places.h"
#include "cli/results.h"
#include "cli/terminal.h"
#include "formats/json/json_write.h"
#include "verify/weights/check_weights.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { LISTED = 20 };

typedef struct arguments {
    const char *junit, *min_sqnr, *max_block_error, *max_cast_error;
    tsr_weight_limits limits;
} arguments;

static const char kHelp[] =
    "tessera verify DST --against SRC [options]\n\n"
    "Compares a checkpoint with the one that it was made from. Every tensor must be there, with its shape; scales in\n"
    "range; no NaN; errors no larger than the format's; config.json in order. Names the fault where it leaves a "
    "trace:\n"
    "a transposed or shifted scale grid, 1/scale, swapped tensors, a stale shard, single flipped bits.\n"
    "Exit code 0: all checks pass; 1: one does not.\n"
    "Kernels on a checkpoint's own tensors: tessera verify gemm|epilogue|dequant|mla DST. The same tokens "
    "through\ntwo models: tessera verify forward DST --against SRC. Each has a --help of its own.\n\n"
    "Examples:\n"
    "  tessera verify DeepSeek-V3-FP8 --against DeepSeek-V3-BF16\n"
    "  tessera verify out --against model --junit result.xml --json result.json     for CI\n"
    "  tessera verify out --against model --tensors '*.layers.3.*' --min-sqnr 31\n\n"
    "Options:\n";

static tsr_status parse(int argc, char **argv, tsr_compare_job *job, arguments *a, tsr_err *err)
{
    tsr_option options[TSR_MAX_OPTIONS] = {
        {"--against", TSR_OPT_TEXT, &job->path[0], "SRC", "what DST was made from"},
        {"--min-sqnr", TSR_OPT_TEXT, &a->min_sqnr, "DB",
         "smallest SQNR of a tensor with scales (30; of int4 10, of FP4 14; less where outliers explain it)"},
        {"--max-block-error", TSR_OPT_TEXT, &a->max_block_error, "X",
         "largest relative error of a 128x128 block of such a tensor (0.0626)"},
        {"--max-misrounded", TSR_OPT_COUNT, &a->limits.max_misrounded, "N",
         "codes of a tensor that may be other than the nearest (0)"},
        {"--max-cast-error", TSR_OPT_TEXT, &a->max_cast_error, "X",
         "largest relative error of a block that was cast without scales (0.00390625)"},
        {"--junit", TSR_OPT_TEXT, &a->junit, "FILE", "the result as JUnit XML"},
    };
    size_t n;
    tsr_compare_job_options(job, options);
    TSR_TRY(tsr_options_parse(options, argc, argv, &job->path[1], 1, &n, NULL, err));
    if (job->help) {
        tsr_options_help(kHelp, options);
        return TSR_OK;
    }
    if (job->path[1] == NULL)
        return tsr_fail(err, TSR_E_USAGE, "which checkpoint? tessera verify DST --against SRC");
    if (job->path[0] == NULL)
        return tsr_fail(err, TSR_E_USAGE, "held to what? --against SRC");
    const tsr_places places = {
        .sources = {job->path[0], job->path[1]}, .json = job->json, .junit = a->junit, .progress = job->progress.file};
    TSR_TRY(tsr_places_check(&places, err));
    TSR_TRY(tsr_parse_number("--min-sqnr", a->min_sqnr, &a->limits.min_sqnr, err));
    if (a->min_sqnr != NULL) {
        a->limits.min_sqnr_int4 = a->limits.min_sqnr_fp4 = a->limits.min_sqnr;
        a->limits.max_int_cost = 0;
    }
    TSR_TRY(tsr_parse_number("--max-block-error", a->max_block_error, &a->limits.max_block_error, err));
    return tsr_parse_number("--max-cast-error", a->max_cast_error, &a->limits.max_cast_error, err);
}

/* ---- telling ---- */

static size_t count_of(const tsr_findings *f, tsr_check check)
{
    size_t n = 0;
    for (size_t i = 0; i < f->count; i++)
        n += f->items[i].check == check;
    return n;
}

/* The first tensor among the findings; keys of a configuration have no figures. */
static void print_next(const tsr_compare_job *job, const tsr_findings *f)
{
    const tsr_comparison *const c = &job->comparison;
    for (size_t i = 0; i < f->count; i++) {
        for (size_t k = 0; k < c->count; k++) {
            if (strcmp(tsr_pair_name(&c->pairs[k]), f->items[i].where) != 0)
                continue;
            tsr_print("next: tessera diff %s %s --tensors '%s' for figures and blocks\n", job->path[0], job->path[1],
                      f->items[i].where);
            return;
        }
    }
    tsr_print("next: look at %s in %s\n", f->items[0].where, job->path[1]);
}

static void print_result(const tsr_compare_job *job, const tsr_findings *f)
{
    const tsr_comparison *const c = &job->comparison;
    const tsr_metrics whole = tsr_sum_differing(c);
    char read[32], rate[32];
    for (tsr_check check = TSR_CHECK_NAMES; check < TSR_N_CHECKS; check++) {
        const size_t n = count_of(f, check);
        tsr_print_word(n > 0 ? TSR_BAD : TSR_GOOD, n > 0 ? "FAIL" : "PASS", 6);
        if (n > 0)
            tsr_print("%-7s %s: %zu %s\n", tsr_check_name(check), tsr_check_failure(check), n,
                      n == 1 ? "finding" : "findings");
        else
            tsr_print("%-7s %s%s\n", tsr_check_name(check), tsr_check_title(check),
                      f->judged[check] == 0 ? " (nothing here to judge)" : "");
        size_t listed = 0;
        for (size_t i = 0; i < f->count && listed < LISTED; i++) {
            if (f->items[i].check == check && ++listed > 0)
                tsr_print("      %s: %s\n", f->items[i].where, f->items[i].text);
        }
        if (n > listed)
            tsr_print("      ... and %zu more (--json FILE lists all)\n", n - listed);
    }
    if (whole.elements > 0)
        tsr_print("tensors that differ, together: SQNR %.2f dB, relative error %.5g, cosine %.6f, calc_diff %.3g\n",
                  tsr_metrics_sqnr(&whole), tsr_metrics_relative(&whole), tsr_metrics_cosine(&whole),
                  tsr_metrics_calc_diff(&whole));
    tsr_print("%zu tensors, %s read in %.1f s (%s/s), %u threads\n", c->count,
              tsr_bytes_text((double)c->bytes_read, read), c->seconds,
              tsr_bytes_text((double)c->bytes_read / fmax(c->seconds, 1e-9), rate), c->threads);
    if (f->count == 0)
        tsr_print("%s is what %s should have become\n", job->path[1], job->path[0]);
    else
        print_next(job, f);
}

static void write_json(tsr_text *t, const tsr_compare_job *job, const arguments *a, const tsr_findings *f)
{
    const tsr_metrics whole = tsr_sum_differing(&job->comparison);
    const char *const texts[][2] = {{"schema", "tessera-verify/1"},
                                    {"version", TSR_VERSION},
                                    {"checkpoint", job->path[1]},
                                    {"against", job->path[0]}};
    const struct {
        const char *key;
        double value;
    } limits[] = {{"min_sqnr_db", a->limits.min_sqnr},
                  {"min_sqnr_int4_db", a->limits.min_sqnr_int4},
                  {"min_sqnr_fp4_db", a->limits.min_sqnr_fp4},
                  {"max_int_cost", a->limits.max_int_cost},
                  {"max_block_error", a->limits.max_block_error},
                  {"max_cast_error", a->limits.max_cast_error},
                  {"max_misrounded", (double)a->limits.max_misrounded}};
    tsr_json_begin_object(t, false);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        tsr_json_member_string(t, texts[i][0], texts[i][1]);
    }
    tsr_json_member_bool(t, "passed", f->count == 0);
    tsr_json_member_number(t, "seconds", job->comparison.seconds);
    tsr_json_key(t, "limits");
    tsr_json_begin_object(t, true);
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        tsr_json_member_number(t, limits[i].key, limits[i].value);
    }
    tsr_json_end_object(t);
    tsr_json_key(t, "whole");
    tsr_json_begin_object(t, true);
    tsr_metrics_json(t, &whole);
    tsr_json_end_object(t);
    tsr_json_key(t, "judged");
    tsr_json_begin_object(t, true);
    for (tsr_check check = TSR_CHECK_NAMES; check < TSR_N_CHECKS; check++) {
        tsr_json_member_u64(t, tsr_check_name(check), f->judged[check]);
    }
    tsr_json_end_object(t);
    tsr_json_key(t, "findings");
    tsr_json_begin_array(t, false);
    for (size_t i = 0; i < f->count; i++) {
        const char *const members[][2] = {
            {"check", tsr_check_name(f->items[i].check)}, {"where", f->items[i].where}, {"what", f->items[i].text}};
        tsr_json_begin_object(t, true);
        for (size_t k = 0; k < 3; k++) {
            tsr_json_member_string(t, members[k][0], members[k][1]);
        }
        tsr_json_end_object(t);
    }
    tsr_json_end_array(t);
    tsr_json_key(t, "tensors");
    tsr_json_begin_array(t, false);
    for (size_t i = 0; i < job->comparison.count; i++) {
        const tsr_pair *const p = &job->comparison.pairs[i];
        tsr_json_begin_object(t, p->state != TSR_PAIR_DIFFERS);
        tsr_pair_json(t, p);
        tsr_json_end_object(t);
    }
    tsr_json_end_array(t);
    tsr_json_end_object(t);
    tsr_text_append(t, "\n", 1);
}

static tsr_status write_files(const tsr_compare_job *job, const arguments *a, const tsr_findings *f, tsr_err *err)
{
    tsr_text json = {0};
    if (job->json == NULL && a->junit == NULL)
        return TSR_OK;
    write_json(&json, job, a, f);
    const tsr_status status = tsr_results_write(job->json, a->junit, &json, err);
    tsr_text_free(&json);
    return status;
}

static tsr_status verify(tsr_compare_job *job, const arguments *a, tsr_findings *f, tsr_err *err)
{
    TSR_TRY(tsr_compare_job_run(job, err));
    const tsr_side src = {job->checkpoint[0], &job->weights[0]}, dst = {job->checkpoint[1], &job->weights[1]};
    TSR_TRY(tsr_check_weights(&src, &dst, &job->comparison, &a->limits, f, err));
    if (tsr_compare_job_talks(job) && !tsr_is_stdout(a->junit))
        print_result(job, f);
    return write_files(job, a, f, err);
}

/* A first word that is not a checkpoint but close to the name of a check is taken for that check, misspelled. */
static tsr_status check_word(const char *word, tsr_err *err)
{
    char meant[80];
    if (access(word, F_OK) == 0 || *tsr_did_you_mean(word, "gemm|epilogue|dequant|mla|forward", meant) == '\0')
        return TSR_OK;
    return tsr_fail(err, TSR_E_USAGE, "there is no checkpoint '%s', and no check%s", word, meant);
}

int tsr_cmd_verify(int argc, char **argv)
{
    if (argc > 0 && strcmp(argv[0], "forward") == 0)
        return tsr_cmd_verify_forward(argc, argv);
    if (argc > 0 && tsr_is_kernel_check(argv[0]))
        return tsr_cmd_verify_kernels(argc, argv);
    tsr_compare_job job = tsr_compare_job_defaults("verify");
    arguments a = {.limits = tsr_weight_limits_defaults()};
    tsr_findings findings = {0};
    tsr_err err = {{0}};
    tsr_status status = argc > 0 ? check_word(argv[0], &err) : TSR_OK;
    if (status == TSR_OK)
        status = parse(argc, argv, &job, &a, &err);
    if (status == TSR_OK && !job.help)
        status = verify(&job, &a, &findings, &err);
    const bool fine = findings.count == 0;
    tsr_findings_free(&findings);
    tsr_compare_job_close(&job);
    return tsr_end("verify", status, fine, &err);
}
