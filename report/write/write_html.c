/* Writes the HTML page: one file that makes no network requests.
 *
 * Its parts are in report/page/. This file adds the data of one report: the verdict as HTML and the rest as JSON,
 * which report/page/page.js displays. */
#include "report/write/writers.h"

#include "formats/json/json_write.h"
#include "report/read/shared_json.h"
#include "report/write/page_choice.h"
#include "report/write/page_rows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The content of the page: a report, and the chosen rows of each result. */
typedef struct page {
    const tsr_report *report;
    tsr_page_choice *choices;
} page;

static const tsr_json_style kStyle = {true, tsr_page_member, tsr_page_member_number};

enum { LISTED = 200 /* most names of rows that appeared or disappeared, by name */ };

/* Appends text between tags of HTML. */
static void html(tsr_text *text, const char *what)
{
    tsr_text shown = {0};
    tsr_text_visible(&shown, what, strlen(what));
    for (size_t i = 0; i < shown.size; i++) {
        if (strchr("<>&\"'", shown.data[i]) != NULL)
            tsr_text_printf(text, "&#%d;", shown.data[i]);
        else
            tsr_text_append(text, shown.data + i, 1);
    }
    text->failed = text->failed || shown.failed;
    tsr_text_free(&shown);
}

/* ---- one result ---- */

static void write_facts(tsr_text *t, const char *key, const tsr_facts *facts)
{
    char number[32];
    tsr_json_member_array(t, key, true);
    for (size_t i = 0; i < facts->count; i++) {
        tsr_json_begin_array(t, true);
        tsr_page_string(t, facts->items[i].name);
        tsr_page_string(t, facts->items[i].value);
        tsr_page_string(t, tsr_fact_shown(&facts->items[i], number));
        tsr_json_end_array(t);
    }
    tsr_json_end_array(t);
}

/* Writes the index of a row in the page, or null if it is absent or left out. */
static void member_row(tsr_text *t, const char *key, const tsr_page_choice *choice, uint32_t row)
{
    const uint32_t at = row == TSR_NO_ROW ? TSR_NO_ROW : choice->at[row];
    tsr_page_member_number(t, key, at == TSR_NO_ROW ? NAN : (double)at);
}

static void write_findings(tsr_text *t, const tsr_page_choice *choice, const tsr_result *result)
{
    tsr_json_member_u64(t, "findings_left_out", result->n_findings - choice->n_findings);
    tsr_json_member_array(t, "findings", true);
    for (size_t i = 0; i < choice->n_findings; i++) {
        tsr_json_begin_object(t, true);
        tsr_share_finding(t, &kStyle, choice->findings[i]);
        member_row(t, "row", choice, choice->findings[i]->row);
        tsr_json_end_object(t);
    }
    tsr_json_end_array(t);
}

static void write_series(tsr_text *t, const tsr_overview *o)
{
    const tsr_result *const result = o->result;
    tsr_json_member_array(t, "series", true);
    for (size_t i = 0; i < result->n_series; i++) {
        const tsr_series *const s = &result->series[i];
        tsr_json_begin_object(t, true);
        tsr_page_member(t, "name", s->name);
        tsr_json_member_bool(t, "bounded", s->bounded);
        tsr_json_member_u64(t, "rows", o->spreads[i].rows);
        tsr_json_member_u64(t, "measured", o->spreads[i].measured);
        tsr_json_member_u64(t, "lossless", o->spreads[i].lossless);
        tsr_json_member_array(t, "quantiles", true);
        for (size_t q = 0; q < TSR_N_QUANTILES; q++)
            tsr_page_number(t, o->spreads[i].quantiles[q]);
        tsr_json_end_array(t);
        tsr_json_member_object(t, "whole", true);
        if (s->has_whole)
            tsr_share_figures(t, &kStyle, s->whole.figures);
        tsr_json_end_object(t);
        tsr_json_end_object(t);
    }
    tsr_json_end_array(t);
}

static void write_groups(tsr_text *t, const tsr_page_choice *choice, const tsr_overview *o)
{
    size_t left_out = 0;
    for (tsr_grouping grouping = 0; grouping < TSR_N_GROUPINGS; grouping++) {
        const size_t n = o->groups[grouping].count;
        left_out += n > TSR_PAGE_GROUPS ? n - TSR_PAGE_GROUPS : 0;
    }
    tsr_json_member_u64(t, "groups_left_out", left_out);
    tsr_json_member_object(t, "groups", true);
    for (tsr_grouping grouping = 0; grouping < TSR_N_GROUPINGS; grouping++) {
        const tsr_groups *const groups = &o->groups[grouping];
        tsr_json_member_array(t, tsr_grouping_name(grouping), true);
        for (size_t i = 0; i < groups->count && i < TSR_PAGE_GROUPS; i++) {
            const tsr_tensor_group *const g = &groups->items[i];
            tsr_json_begin_object(t, true);
            tsr_page_member(t, "label", g->label);
            tsr_page_member_number(t, "number", g->number == TSR_NO_NUMBER ? NAN : (double)g->number);
            tsr_json_member_u64(t, "count", g->count);
            tsr_json_member_u64(t, "failed", g->failed);
            tsr_page_member_number(t, "lowest", g->lowest);
            tsr_page_member_number(t, "median", g->median);
            tsr_page_member_number(t, "relative", g->relative);
            tsr_page_member_number(t, "block", g->worst_block);
            member_row(t, "row", choice, g->count > 0 ? groups->order[g->first] : TSR_NO_ROW);
            member_row(t, "block_row", choice, g->block_row);
            tsr_json_member_bool(t, "outlier", g->outlier);
            tsr_json_member_bool(t, "block_outlier", g->block_outlier);
            tsr_json_end_object(t);
        }
        tsr_json_end_array(t);
    }
    tsr_json_end_object(t);
}

static void write_worst(tsr_text *t, const char *key, const tsr_page_choice *choice, const uint32_t *rows, size_t n)
{
    tsr_json_member_array(t, key, true);
    for (size_t i = 0; i < n; i++)
        tsr_json_u64(t, choice->at[rows[i]]);
    tsr_json_end_array(t);
}

/* Writes the plans: kind, bytes, error, schemes. */
static void write_plan(tsr_text *t, const tsr_result *result)
{
    tsr_json_member_array(t, "plan", true);
    for (size_t i = 0; i < result->n_plan; i++) {
        const tsr_plan_row *const row = &result->plan[i];
        tsr_json_begin_object(t, true);
        tsr_json_member_bool(t, "alone", row->kind == TSR_PLAN_ALONE);
        tsr_json_member_u64(t, "bytes", row->bytes);
        tsr_page_member_number(t, "error", row->error);
        tsr_page_member(t, "schemes", row->schemes);
        tsr_json_end_object(t);
    }
    tsr_json_end_array(t);
}

static void write_result(tsr_text *t, const tsr_overview *o, const tsr_page_choice *choice, const double *losses)
{
    const tsr_result *const result = o->result;
    tsr_text reason = {0};
    tsr_result_reason(&reason, o);
    tsr_json_begin_object(t, true);
    tsr_page_member(t, "path", result->path);
    tsr_page_member(t, "title", result->title);
    tsr_page_member(t, "version", result->version);
    tsr_page_member(t, "command", result->command);
    tsr_page_member(t, "verdict", tsr_verdict_word(result->outcome));
    tsr_page_member(t, "reason", reason.data);
    tsr_json_key(t, "charted");
    if (o->charted)
        tsr_json_u64(t, o->series);
    else
        tsr_json_null(t);
    write_facts(t, "facts", &result->facts);
    write_facts(t, "limits", &result->limits);
    write_facts(t, "phases", &result->phases);
    tsr_share_checks(t, &kStyle, result);
    write_findings(t, choice, result);
    write_series(t, o);
    write_groups(t, choice, o);
    write_worst(t, "lowest", choice, o->lowest, o->n_lowest);
    write_worst(t, "blocks", choice, o->blocks, o->n_blocks);
    write_plan(t, result);
    tsr_page_blocks(t, result, choice);
    tsr_json_key(t, "rows");
    tsr_page_rows(t, o, choice, losses);
    tsr_json_end_object(t);
    t->failed = t->failed || reason.failed;
    tsr_text_free(&reason);
}

/* ---- the comparison ---- */

static void write_regressions(tsr_text *t, const tsr_baseline *b, const tsr_page_choice *choice)
{
    tsr_json_member_u64(t, "worse", b->count);
    tsr_json_member_array(t, "regressions", true);
    for (size_t i = 0; i < b->count && i < TSR_PAGE_REGRESSIONS; i++) {
        const tsr_regression *const r = &b->items[i];
        const uint32_t row = tsr_regression_row(b, r);
        tsr_json_begin_object(t, true);
        if (row != TSR_NO_ROW) {
            tsr_json_member_u64(t, "row", choice->at[row]);
        } else { /* the total of a series */
            tsr_page_member(t, "name", r->now->name);
            tsr_page_member(t, "what", r->now->what);
        }
        tsr_share_regression(t, &kStyle, r);
        tsr_json_end_object(t);
    }
    tsr_json_end_array(t);
}

static void write_moved(tsr_text *t, const char *key, const tsr_row *const *rows, size_t n)
{
    tsr_json_member_object(t, key, true);
    tsr_json_member_u64(t, "count", n);
    tsr_json_member_array(t, "first", true);
    for (size_t i = 0; i < n && i < LISTED; i++) {
        tsr_json_begin_array(t, true);
        tsr_page_string(t, rows[i]->name);
        tsr_page_string(t, rows[i]->what);
        tsr_json_end_array(t);
    }
    tsr_json_end_array(t);
    tsr_json_end_object(t);
}

static void write_baseline(tsr_text *t, const tsr_baseline *b, const tsr_page_choice *choice)
{
    tsr_json_key(t, "baseline");
    if (b->now == NULL) {
        tsr_json_null(t);
        return;
    }
    tsr_json_begin_object(t, true);
    tsr_page_member(t, "path", b->old.path);
    tsr_page_member_number(t, "limit", b->limit);
    tsr_json_member_u64(t, "compared", b->compared);
    tsr_json_member_u64(t, "better", b->better);
    write_regressions(t, b, choice);
    write_moved(t, "appeared", b->appeared, b->n_appeared);
    write_moved(t, "disappeared", b->disappeared, b->n_disappeared);
    tsr_share_differences(t, &kStyle, b);
    tsr_json_end_object(t);
}

/* ---- the page ---- */

static void write_figures(tsr_text *t)
{
    tsr_json_member_array(t, "figures", true);
    for (tsr_figure f = 0; f < TSR_N_FIGURES; f++) {
        tsr_json_begin_object(t, true);
        tsr_page_member(t, "key", tsr_figure_of(f)->key);
        tsr_page_member(t, "title", tsr_figure_of(f)->title);
        tsr_json_member_bool(t, "count", tsr_figure_of(f)->count);
        tsr_json_end_object(t);
    }
    tsr_json_end_array(t);
}

static void write_data(tsr_text *text, const page *p)
{
    const tsr_report *const report = p->report;
    tsr_text data = {0}; /* a separate text, because nesting and commas are the text's */
    tsr_text reason = {0};
    tsr_report_reason(&reason, report);
    tsr_json_begin_object(&data, true);
    tsr_page_member(&data, "version", TSR_VERSION);
    tsr_page_member(&data, "verdict", tsr_verdict_word(report->outcome));
    tsr_page_member(&data, "reason", reason.data);
    write_figures(&data);
    write_baseline(&data, &report->baseline, p->choices);
    tsr_json_member_array(&data, "results", true);
    for (size_t i = 0; i < report->count; i++)
        write_result(&data, &report->overviews[i], &p->choices[i],
                     report->baseline.now == NULL ? NULL : report->baseline.losses);
    tsr_json_end_array(&data);
    tsr_json_end_object(&data);
    tsr_text_append(text, data.data, data.size);
    text->failed = text->failed || data.failed || reason.failed;
    tsr_text_free(&reason);
    tsr_text_free(&data);
}

/* Returns the checkpoint that all results agree on, ignoring those without one; NULL: none, or they differ. */
static const char *checkpoint_of(const tsr_report *report)
{
    const char *found = NULL;
    for (size_t i = 0; i < report->count; i++) {
        const char *const own = tsr_fact_of(&report->results[i].facts, "checkpoint");
        if (own != NULL && found != NULL && strcmp(own, found) != 0)
            return NULL;
        found = own != NULL ? own : found;
    }
    return found;
}

static void write_title(tsr_text *text, const page *p)
{
    const char *const checkpoint = checkpoint_of(p->report);
    html(text, tsr_verdict_word(p->report->outcome));
    html(text, ": ");
    if (p->report->count == 1)
        html(text, p->report->results[0].path);
    else
        html(text, checkpoint != NULL ? checkpoint : "results of Tessera");
}

/* Writes the checkpoint above the verdict, if it is the same for all results. */
static void write_subject(tsr_text *text, const page *p)
{
    const char *const checkpoint = checkpoint_of(p->report);
    html(text, checkpoint == NULL ? "" : ": ");
    html(text, checkpoint == NULL ? "" : checkpoint);
}

static void write_verdict(tsr_text *text, const page *p)
{
    html(text, tsr_verdict_word(p->report->outcome));
}

static void write_reason(tsr_text *text, const page *p)
{
    tsr_text reason = {0};
    tsr_report_reason(&reason, p->report);
    html(text, reason.data == NULL ? "" : reason.data);
    text->failed = text->failed || reason.failed;
    tsr_text_free(&reason);
}

static void write_version(tsr_text *text, const page *p)
{
    (void)p;
    html(text, TSR_VERSION);
}

static void write_parts(tsr_text *text, const page *p, const tsr_page_part *part)
{
    static const struct {
        const char *name;
        void (*write)(tsr_text *text, const page *p);
    } kPlaces[] = {{"title", write_title},     {"verdict", write_verdict}, {"reason", write_reason},
                   {"version", write_version}, {"subject", write_subject}, {"data", write_data}};
    for (;; part++) {
        tsr_text_append(text, part->html, part->size);
        if (part->then == NULL)
            return;
        for (size_t i = 0; i < sizeof kPlaces / sizeof *kPlaces; i++) {
            if (strcmp(kPlaces[i].name, part->then) == 0)
                kPlaces[i].write(text, p);
        }
    }
}

size_t tsr_write_html(tsr_text *text, const tsr_report *report, const tsr_page_part *parts, size_t most_rows)
{
    const size_t share = tsr_page_share(report, most_rows);
    const page p = {.report = report, .choices = calloc(report->count + 1, sizeof *p.choices)};
    size_t left_out = 0;
    bool room = p.choices != NULL;
    for (size_t i = 0; i < report->count && room; i++) {
        room = tsr_page_choose(&p.choices[i], &report->overviews[i], &report->baseline, share);
        left_out += report->results[i].n_rows - p.choices[i].count;
    }
    if (room)
        write_parts(text, &p, parts);
    text->failed = text->failed || !room;
    for (size_t i = 0; i < report->count && p.choices != NULL; i++)
        tsr_page_choice_free(&p.choices[i]);
    free(p.choices);
    return left_out;
}
