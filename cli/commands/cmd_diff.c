/* Implements `tessera diff`: its options, its limit, and the likely cause of each difference. */
#include "cli/commands/commands.h"
#include "cli/help/next_command.h"
#include "cli/io/output.h"
#include "cli/show/compare_figures.h"
#include "cli/show/compare_sides.h"
#include "common/text.h"
#include "formats/json/json_write.h"
#include "report/write/terminal/terminal_parts.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LISTED = 10 };

static const char kMetrics[] = "relative|max-abs|calc-diff|sqnr"; /* the names in tsr_diff_metrics */

typedef struct limit {
    int metric;       /* index in tsr_diff_metrics */
    const char *text; /* as given; NULL: no difference is tolerated */
    double value;
} limit;

typedef struct diffing {
    tsr_compare_job compared;
    limit limit;
    size_t beyond;
    tsr_result result; /* a row for each pair, and the whole */
} diffing;

static const char kHelp[] =
    "tessera diff A B [options]\n\n"
    "Compares two checkpoints, tensor by tensor, by the values that a reader gets from floats or from\n"
    "codes of any kind with their scales. A is the reference. Prints which tensors differ, by how much,\n"
    "and in which blocks.\n\n"
    "Exit code 0: nothing differs beyond the tolerance. 1: a tensor differs, is missing, is extra or has\n"
    "another shape.\n\n"
    "Examples:\n"
    "  tessera diff model model-copy                                        any value that differs\n"
    "  tessera diff model-bf16 model-fp8 --metric sqnr --tolerance 31       every tensor at 31 dB or better\n"
    "  tessera diff model-fp8 model-ct                                      another dialect: the same values?\n"
    "  tessera diff a b --tensors '*.layers.3.*' --json -                   with the worst blocks, for a script\n"
    "  tessera diff a b --metric sqnr --tolerance 31 --junit diff.xml       for CI: a case for each layer\n\n"
    "Options:\n";

static void add_options(tsr_command_context *c, tsr_option *options)
{
    diffing *const d = c->job;
    const tsr_option own[] = {
        {"--metric", TSR_OPT_CHOICE, &d->limit.metric, kMetrics,
         "the measure that orders the tensors and that --tolerance bounds (relative)"},
        {"--tolerance", TSR_OPT_TEXT, &d->limit.text, "X",
         "the largest allowed difference; with sqnr the smallest allowed SQNR in dB (none: every value must be the "
         "same)"},
        {0},
    };
    tsr_options_append(options, own);
    tsr_compare_job_options(&d->compared, options);
}

static tsr_figure figure_of(const limit *l)
{
    return tsr_diff_metrics[l->metric].figure;
}

static tsr_status check(tsr_command_context *c, tsr_err *err)
{
    diffing *const d = c->job;
    limit *const l = &d->limit;
    if (c->n_words < 2)
        return tsr_fail(err, TSR_E_USAGE, "two checkpoints are needed: tessera diff A B");
    d->compared.path[0] = c->words[0];
    d->compared.path[1] = c->words[1];
    const char *end = l->text;
    if (l->text != NULL &&
        (!tsr_take_real(&end, &l->value) || *end != '\0' || (l->value < 0 && figure_of(l) != TSR_FIGURE_SQNR)))
        return tsr_fail(err, TSR_E_USAGE, "--tolerance: '%s' is not a valid limit for %s", l->text,
                        tsr_diff_metrics[l->metric].name);
    return TSR_OK;
}

static void list_paths(const tsr_command_context *c, tsr_io_paths *paths)
{
    paths->sources[0] = c->words[0];
    paths->sources[1] = c->words[1];
}

/* ---- judging ---- */

static bool is_beyond(const limit *l, const tsr_pair *p, const tsr_row *row)
{
    if (p->state != TSR_PAIR_DIFFERS)
        return p->state > TSR_PAIR_DIFFERS;
    if (l->text == NULL)
        return true;
    const double x = row->figures[figure_of(l)];
    return figure_of(l) == TSR_FIGURE_SQNR ? x < l->value : x > l->value;
}

/* ---- causes ---- */

/* Describes how a weight is coded: "int4 in groups of 128". */
static const char *coding_text(const tsr_weight *w, char text[64])
{
    if (w->kind != NULL && tsr_kind_has_small_groups(w->kind))
        return w->kind->title;
    if (w->coding == TSR_CODED_E4M3)
        return w->coarse ? "e4m3" : "block FP8";
    if (w->kind != NULL && w->kind->family == TSR_FAMILY_GPTQ)
        snprintf(text, 64, "%s's int%u in groups of %llu", w->kind->title, w->bits, U64(w->block.cols));
    else if (w->block.cols < w->cols)
        snprintf(text, 64, "int%u in groups of %llu", w->bits, U64(w->block.cols));
    else
        snprintf(text, 64, "int%u with one scale a %s", w->bits, w->block.rows < w->rows ? "row" : "tensor");
    return text;
}

/* Explains the error of a coded tensor. The error of block FP8 is 0.0265 for all weights (docs/diff.md). Integers have
 * an error that depends on the largest value of each group. Therefore only their codes can be judged. */
static const char *diagnose_codes(const tsr_pair *p, char text[160])
{
    const tsr_metrics *const m = &p->metrics;
    const tsr_weight *const w = p->b->scale != NULL ? p->b : p->a;
    const double relative = tsr_metrics_relative(m);
    char coding[64];
    const char *const how = coding_text(w, coding);
    if (w->coding == TSR_CODED_E4M3 && relative <= 0.032)
        snprintf(text, 160, relative > 0.01 ? "the error of %s" : "rounding", how);
    else if (p->b->scale == NULL)
        snprintf(text, 160, "about the error of %s; give the original as A to have the codes checked", how);
    else if (m->misscaled > 0)
        snprintf(text, 160, "%llu groups of %s would have a smaller error with the scale that a rule computes",
                 U64(m->misscaled), how);
    else if (m->misrounded == 0)
        snprintf(text, 160, "the error of %s with these scales: every code is the nearest", how);
    else
        snprintf(text, 160, "a larger error than %s needs: %llu codes are not the nearest under their scales", how,
                 U64(m->misrounded));
    return text;
}

/* Returns the usual cause of such a difference. */
static const char *diagnose(const tsr_pair *p, char text[160])
{
    const tsr_metrics *const m = &p->metrics;
    const double relative = tsr_metrics_relative(m);
    const bool scaled = p->a->scale != NULL || p->b->scale != NULL;
    const bool nearest = p->b->scale != NULL && p->b->coding != TSR_CODED_E4M3 && m->misrounded == 0;
    if (m->nonfinite[0] != m->nonfinite[1] || isinf(m->max_abs))
        return "NaN or Inf on one side: a NaN code, a NaN scale, or an overflow";
    if (nearest)
        return diagnose_codes(p, text);
    if (m->differ <= 4)
        return "differences in single values: damage such as a flipped bit, not quantization";
    if (m->misrounded > 0 && m->misrounded <= 4)
        return "single codes are not the nearest: damage such as a flipped bit";
    if (m->n_worst > 0 && m->worst[0].relative > 0.5)
        return scaled ? "whole blocks are wrong: a scale lost, inverted or in the wrong place, or another tensor's data"
                      : "whole blocks are wrong: another tensor's data, or another version of it";
    if (m->n_worst > 0 && m->worst[0].relative > 4 * relative)
        return "the error sits in few blocks: outliers there, or their scales";
    if (scaled)
        return diagnose_codes(p, text);
    return relative > 0.032 ? "a larger error than rounding gives: the values differ" : "rounding";
}

/* ---- the model ---- */

static tsr_status fill_row(diffing *d, const tsr_pair *pair, tsr_err *err)
{
    tsr_row *row;
    char cause[160];
    TSR_TRY(tsr_compare_fill_row(&d->result, pair, &row, err));
    row->outcome = is_beyond(&d->limit, pair, row) ? TSR_OUTCOME_FAILED : TSR_OUTCOME_PASSED;
    d->beyond += row->outcome == TSR_OUTCOME_FAILED;
    if (pair->state == TSR_PAIR_DIFFERS) {
        const char *const text = diagnose(pair, cause);
        row->cause = tsr_arena_dup(&d->result.arena, text, strlen(text));
    }
    return tsr_arena_status(&d->result.arena, TSR_OK, err);
}

static tsr_status fill_result(diffing *d, const char *schema, tsr_err *err)
{
    const tsr_comparison *const c = &d->compared.comparison;
    TSR_TRY(tsr_compare_begin_result(&d->result, schema, c, err));
    for (size_t i = 0; i < c->count; i++)
        TSR_TRY(fill_row(d, &c->pairs[i], err));
    return TSR_OK;
}

/* ---- text ---- */

static bool has_values(const tsr_comparison *c)
{
    for (size_t i = 0; i < c->count; i++) {
        if (c->pairs[i].state <= TSR_PAIR_DIFFERS && tsr_tensor_elements(c->pairs[i].b->values) > 0)
            return true;
    }
    return false;
}

/* Names the ranks that are compared. A rank's folder is not a complete checkpoint. */
static void print_ranks(const tsr_compare_job *job)
{
    for (size_t i = 0; i < 2; i++) {
        const tsr_rank_file *const m = &job->manifest[i];
        if (m->ranks > 0)
            tsr_print("%c is rank %llu of %llu of a tensor-parallel cut\n", i == 0 ? 'A' : 'B', U64(m->rank),
                      U64(m->ranks));
    }
}

/* Prints how much was read, the verdict, and the next command. `worst` is the row that differs most; NULL: none. */
static void print_end(const diffing *d, const tsr_row *worst)
{
    const tsr_compare_job *const job = &d->compared;
    const tsr_comparison *const c = &job->comparison;
    char read[32], rate[32];
    tsr_print("%s read in %.1f s (%s/s), %u thread%s\n", tsr_bytes_text((double)c->bytes_read, read), c->seconds,
              tsr_bytes_text((double)c->bytes_read / fmax(c->seconds, 1e-9), rate), c->threads, tsr_plural(c->threads));
    if (d->beyond == 0) {
        tsr_print(!has_values(c)  ? "there was no value to compare\n"
                  : worst == NULL ? "same values everywhere\n"
                                  : "all within the tolerance\n");
    } else if (worst != NULL) {
        tsr_print_next_diff(job->path[0], job->path[1], worst->name);
        tsr_print(" --json - for its worst blocks\n");
    } else {
        tsr_print("next: find out why those tensors are missing, or add them\n");
    }
}

static tsr_status print(tsr_command_context *context, tsr_err *err)
{
    const diffing *const d = context->job;
    const tsr_style style = tsr_command_style();
    size_t n;
    tsr_text text = {0};
    uint32_t *const order = tsr_rank_differences(&d->result, figure_of(&d->limit), &n);
    if (order == NULL)
        return tsr_out_of_memory(err, NULL);
    print_ranks(&d->compared);
    tsr_draw_differences(&text, &style, &d->result, order, n, LISTED);
    const tsr_status status = tsr_print_drawn(&text, err);
    if (status == TSR_OK)
        print_end(d, n > 0 ? &d->result.rows[order[0]] : NULL);
    free(order);
    return status;
}

/* ---- JSON ---- */

static void write_json(const tsr_command_context *context, tsr_text *t)
{
    const diffing *const d = context->job;
    const tsr_compare_job *const job = &d->compared;
    const limit *const l = &d->limit;
    const tsr_comparison *const c = &job->comparison;
    tsr_json_member_string(t, "a", job->path[0]);
    tsr_json_member_string(t, "b", job->path[1]);
    tsr_json_member_string(t, "metric", tsr_diff_metrics[l->metric].name);
    tsr_rank_file_write(t, "rank_a", &job->manifest[0]);
    tsr_rank_file_write(t, "rank_b", &job->manifest[1]);
    tsr_json_member_number(t, "tolerance", l->text == NULL ? NAN : l->value);
    tsr_json_member_u64(t, "beyond", d->beyond);
    for (tsr_pair_state s = TSR_PAIR_IDENTICAL; s <= TSR_PAIR_EXTRA; s++)
        tsr_json_member_u64(t, tsr_pair_state_name(s), tsr_count_in_state(&d->result, tsr_pair_state_name(s)));
    tsr_json_member_object(t, "whole", true);
    tsr_compare_figures_json(t, d->result.series->whole.figures);
    tsr_json_end_object(t);
    tsr_json_member_array(t, "tensors", false);
    for (size_t i = 0; i < c->count; i++) {
        tsr_json_begin_object(t, c->pairs[i].state != TSR_PAIR_DIFFERS);
        tsr_pair_json(t, &c->pairs[i]);
        tsr_json_member_bool(t, "beyond", d->result.rows[i].outcome == TSR_OUTCOME_FAILED);
        tsr_json_end_object(t);
    }
    tsr_json_end_array(t);
}

/* ---- running ---- */

static tsr_status open_sides(tsr_command_context *c, tsr_err *err)
{
    diffing *const d = c->job;
    return tsr_compare_job_open(&d->compared, c, err);
}

static tsr_status run(tsr_command_context *c, tsr_terminal *terminal, tsr_err *err)
{
    diffing *const d = c->job;
    TSR_TRY(tsr_compare_job_run(&d->compared, c, terminal, err));
    return fill_result(d, c->schema, err);
}

static int exit_code(const tsr_command_context *c)
{
    const diffing *const d = c->job;
    return d->beyond > 0;
}

static void close_job(tsr_command_context *c)
{
    diffing *const d = c->job;
    tsr_result_free(&d->result);
    tsr_compare_job_close(&d->compared);
}

const tsr_command tsr_command_diff = {
    .name = "diff",
    .topic = "Compare and check",
    .summary = "compare two checkpoints, tensor by tensor, by value",
    .schema = "tessera-diff/1",
    TSR_COMMAND(2, TSR_COMPARE_TAKES, diffing),
    .open = open_sides,
    .print = print,
    .write_json = write_json,
    .exit_code = exit_code,
};
