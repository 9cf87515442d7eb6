/* Writes the report as JSON, tessera-report/1, for programs.
 *
 * docs/schemas/report.schema.json is the schema. */
#include "report/write/writers.h"

#include "formats/json/json_write.h"
#include "report/read/shared_json.h"

#include <math.h>
#include <string.h>

static const char *verdict_of(tsr_outcome outcome)
{
    return outcome == TSR_OUTCOME_NONE ? NULL : tsr_outcome_name(outcome);
}

static const tsr_json_style kStyle = {false, tsr_json_member_string, tsr_json_member_number};

static void write_facts(tsr_text *t, const char *key, const tsr_facts *facts)
{
    tsr_json_member_object(t, key, false);
    for (size_t i = 0; i < facts->count; i++)
        tsr_json_member_string(t, facts->items[i].name, facts->items[i].value);
    tsr_json_end_object(t);
}

static void write_findings(tsr_text *t, const tsr_result *result)
{
    tsr_json_member_array(t, "findings", false);
    for (size_t i = 0; i < result->n_findings; i++) {
        tsr_json_begin_object(t, true);
        tsr_share_finding(t, &kStyle, &result->findings[i]);
        tsr_json_end_object(t);
    }
    tsr_json_end_array(t);
}

static void write_series(tsr_text *t, const tsr_overview *o)
{
    const tsr_result *const result = o->result;
    tsr_json_member_array(t, "series", false);
    for (size_t i = 0; i < result->n_series; i++) {
        const tsr_spread *const s = &o->spreads[i];
        tsr_json_begin_object(t, true);
        tsr_json_member_string(t, "name", result->series[i].name);
        tsr_json_member_u64(t, "rows", s->rows);
        tsr_json_member_u64(t, "lossless", s->lossless);
        if (s->measured > s->lossless) {
            tsr_json_member_object(t, "sqnr_db", true);
            for (size_t q = 0; q < TSR_N_QUANTILES; q++)
                tsr_json_member_number(t, tsr_quantile_keys[q], s->quantiles[q]);
            tsr_json_end_object(t);
        }
        if (result->series[i].has_whole) {
            tsr_json_member_object(t, "whole", true);
            tsr_share_figures(t, &kStyle, result->series[i].whole.figures);
            tsr_json_end_object(t);
        }
        tsr_json_end_object(t);
    }
    tsr_json_end_array(t);
}

static void write_group(tsr_text *t, const tsr_tensor_group *g)
{
    const struct {
        const char *key;
        double value;
    } figures[] = {{"lowest_sqnr_db", g->lowest},
                   {"median_sqnr_db", g->median},
                   {"largest_relative_error", g->relative},
                   {"worst_block_error", g->worst_block}};
    tsr_json_begin_object(t, true);
    tsr_json_member_string(t, "name", g->label);
    tsr_json_member_u64(t, "rows", g->count);
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++) {
        if (!isnan(figures[i].value))
            tsr_json_member_number(t, figures[i].key, figures[i].value);
    }
    tsr_json_member_u64(t, "failed", g->failed);
    tsr_json_member_bool(t, "outlier", g->outlier);
    tsr_json_member_bool(t, "block_outlier", g->block_outlier);
    tsr_json_end_object(t);
}

static void write_groups(tsr_text *t, const tsr_overview *o)
{
    tsr_json_member_object(t, "groups", false);
    for (tsr_grouping g = 0; g < TSR_N_GROUPINGS; g++) {
        tsr_json_member_array(t, tsr_grouping_name(g), false);
        for (size_t i = 0; i < o->groups[g].count; i++)
            write_group(t, &o->groups[g].items[i]);
        tsr_json_end_array(t);
    }
    tsr_json_end_object(t);
}

static void write_worst(tsr_text *t, const char *key, const tsr_result *result, const uint32_t *rows, size_t n)
{
    tsr_json_member_array(t, key, false);
    for (size_t i = 0; i < n; i++) {
        const tsr_row *const row = &result->rows[rows[i]];
        tsr_json_begin_object(t, true);
        tsr_json_member_string(t, "name", row->name);
        if (row->what != NULL)
            tsr_json_member_string(t, "what", row->what);
        tsr_share_figures(t, &kStyle, row->figures);
        tsr_json_end_object(t);
    }
    tsr_json_end_array(t);
}

static void write_result(tsr_text *t, const tsr_overview *o)
{
    const tsr_result *const result = o->result;
    tsr_json_begin_object(t, false);
    tsr_json_member_string(t, "path", result->path);
    tsr_json_member_string(t, "of", result->kind->schema);
    tsr_json_member_string(t, "title", result->title);
    tsr_json_member_string(t, "made_by", result->version);
    tsr_json_member_string(t, "command", result->command);
    tsr_json_member_string(t, "verdict", verdict_of(result->outcome));
    if (result->error != NULL) {
        tsr_json_member_object(t, "error", true);
        tsr_json_member_u64(t, "code", result->error_code);
        tsr_json_member_string(t, "message", result->error);
        if (result->error_tensor != NULL)
            tsr_json_member_string(t, "tensor", result->error_tensor);
        tsr_json_end_object(t);
    }
    write_facts(t, "facts", &result->facts);
    write_facts(t, "limits", &result->limits);
    if (result->phases.count > 0)
        write_facts(t, "phase_seconds", &result->phases);
    tsr_share_checks(t, &kStyle, result);
    write_findings(t, result);
    write_series(t, o);
    write_groups(t, o);
    write_worst(t, "lowest_sqnr", result, o->lowest, o->n_lowest);
    write_worst(t, "worst_blocks", result, o->blocks, o->n_blocks);
    tsr_json_end_object(t);
}

static void write_rows(tsr_text *t, const char *key, const tsr_result *result, const tsr_row *const *rows, size_t n)
{
    tsr_json_member_array(t, key, false);
    for (size_t i = 0; i < n; i++) {
        tsr_json_begin_object(t, true);
        tsr_json_member_string(t, "name", rows[i]->name);
        tsr_json_member_string(t, "what", rows[i]->what);
        tsr_json_member_string(t, "series", result->series[rows[i]->series].name);
        tsr_json_end_object(t);
    }
    tsr_json_end_array(t);
}

static void write_regression(tsr_text *t, const tsr_result *now, const tsr_regression *r)
{
    tsr_json_begin_object(t, true);
    tsr_json_member_string(t, "name", r->now->name);
    tsr_json_member_string(t, "what", r->now->what);
    tsr_json_member_string(t, "series", now->series[r->now->series].name);
    tsr_share_regression(t, &kStyle, r);
    tsr_json_end_object(t);
}

static void write_baseline(tsr_text *t, const tsr_baseline *b)
{
    tsr_json_member_object(t, "baseline", false);
    tsr_json_member_string(t, "path", b->old.path);
    tsr_json_member_number(t, "max_regression_db", b->limit);
    tsr_json_member_u64(t, "compared", b->compared);
    tsr_json_member_u64(t, "worse", b->count);
    tsr_json_member_u64(t, "better", b->better);
    tsr_json_member_array(t, "regressions", false);
    for (size_t i = 0; i < b->count; i++)
        write_regression(t, b->now, &b->items[i]);
    tsr_json_end_array(t);
    write_rows(t, "appeared", b->now, b->appeared, b->n_appeared);
    write_rows(t, "disappeared", &b->old, b->disappeared, b->n_disappeared);
    tsr_share_differences(t, &kStyle, b);
    tsr_json_end_object(t);
}

void tsr_write_json(tsr_text *t, const tsr_report *report)
{
    tsr_text reason = {0};
    tsr_report_reason(&reason, report);
    tsr_json_begin_document(t, "tessera-report/1");
    tsr_json_member_string(t, "verdict", verdict_of(report->outcome));
    tsr_json_member_string(t, "reason", reason.data);
    if (report->baseline.now != NULL)
        write_baseline(t, &report->baseline);
    tsr_json_member_array(t, "results", false);
    for (size_t i = 0; i < report->count; i++)
        write_result(t, &report->overviews[i]);
    tsr_json_end_array(t);
    tsr_json_end_document(t);
    t->failed = t->failed || reason.failed;
    tsr_text_free(&reason);
}
