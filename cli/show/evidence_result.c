/* Fills the model of a result with evidence, and writes it as JSON. */
#include "cli/show/evidence_result.h"

#include "cli/show/compare_figures.h"
#include "formats/json/json_write.h"
#include "report/read/read.h"

#include <math.h>

/* ---- the model ---- */

/* Returns a known figure. One that is not a number becomes infinite, because NaN means unknown. */
static double known(double figure)
{
    return isnan(figure) ? INFINITY : figure;
}

static tsr_status add_judgement(tsr_result *result, const tsr_judgement *j, tsr_err *err)
{
    tsr_row row;
    tsr_row_clear(&row);
    row.name = j->subject;
    row.kind = tsr_error_kind_name(j->kind);
    row.what = j->what;
    row.note = j->fault;
    row.error_at = j->worst_at;
    row.outcome = j->fault == NULL ? TSR_OUTCOME_PASSED : TSR_OUTCOME_FAILED;
    row.limit = j->limit;
    row.choices = j->choices;
    tsr_metrics_figures(row.figures, &j->metrics);
    if (j->of_bound >= 0)
        row.figures[TSR_FIGURE_OF_BOUND] = j->of_bound;
    if (j->of_expected >= 0)
        row.figures[TSR_FIGURE_OF_EXPECTED] = j->of_expected;
    if (j->bias.known)
        row.bias = known(j->bias.sigmas);
    if (j->seconds > 0)
        row.figures[TSR_FIGURE_SECONDS] = j->seconds;
    if (j->choices > 0)
        row.figures[TSR_FIGURE_AGREEMENT] = (double)j->agreed / (double)j->choices;
    if (j->tokens > 0)
        row.figures[TSR_FIGURE_TOKEN_AGREEMENT] = (double)j->tokens_agreed / (double)j->tokens;
    if (j->kl.known) {
        row.figures[TSR_FIGURE_KL_MEAN] = known(j->kl.mean);
        row.figures[TSR_FIGURE_KL_MAX] = known(j->kl.max);
    }
    return tsr_result_add_judgement(result, &row, err);
}

tsr_status tsr_evidence_fill(tsr_result *result, const char *schema, const tsr_evidence *e, tsr_err *err)
{
    result->kind = tsr_result_kind_of(schema);
    for (size_t i = 0; i < e->count; i++)
        TSR_TRY(add_judgement(result, &e->items[i], err));
    for (size_t i = 0; i < e->n_skipped; i++)
        TSR_TRY(tsr_result_add_skipped(result, e->skipped[i].subject, e->skipped[i].why, err));
    return TSR_OK;
}

/* ---- JSON ---- */

/* Writes a figure if it is known. */
static void write_known(tsr_text *t, tsr_figure figure, const tsr_row *row)
{
    if (!isnan(row->figures[figure]))
        tsr_json_member_number(t, tsr_figure_of(figure)->key, row->figures[figure]);
}

static void write_judgement(tsr_text *t, const tsr_row *row)
{
    tsr_json_begin_object(t, true);
    tsr_json_member_string(t, "subject", row->name);
    tsr_json_member_string(t, "kind", row->kind);
    tsr_json_member_string(t, "what", row->what);
    tsr_json_member_bool(t, "passed", row->outcome == TSR_OUTCOME_PASSED);
    tsr_json_member_string(t, "fault", row->note);
    tsr_compare_figures_json(t, row->figures);
    tsr_json_member_string(t, "max_abs_error_at", row->error_at);
    tsr_json_member_number(t, "of_bound", row->figures[TSR_FIGURE_OF_BOUND]);
    tsr_json_member_number(t, "of_expected_rms", row->figures[TSR_FIGURE_OF_EXPECTED]);
    if (!isnan(row->bias))
        tsr_json_member_number(t, "bias_sigmas", row->bias);
    if (row->limit != 0)
        tsr_json_member_number(t, "limit_db", row->limit);
    write_known(t, TSR_FIGURE_SECONDS, row);
    write_known(t, TSR_FIGURE_AGREEMENT, row);
    write_known(t, TSR_FIGURE_TOKEN_AGREEMENT, row);
    write_known(t, TSR_FIGURE_KL_MEAN, row);
    write_known(t, TSR_FIGURE_KL_MAX, row);
    tsr_json_end_object(t);
}

static void write_skipped(tsr_text *t, const tsr_row *row)
{
    tsr_json_begin_object(t, true);
    tsr_json_member_string(t, "subject", row->name);
    tsr_json_member_string(t, "why", row->note);
    tsr_json_end_object(t);
}

/* Writes the rows that were skipped, or the others. */
static void write_rows(tsr_text *t, const char *key, const tsr_result *result, bool skipped)
{
    tsr_json_member_array(t, key, false);
    for (size_t i = 0; i < result->n_rows; i++) {
        const tsr_row *const row = &result->rows[i];
        if ((row->outcome == TSR_OUTCOME_SKIPPED) == skipped)
            (skipped ? write_skipped : write_judgement)(t, row);
    }
    tsr_json_end_array(t);
}

void tsr_evidence_json(tsr_text *t, const tsr_evidence *e, const tsr_result *result)
{
    tsr_json_member_number(t, "seconds", e->seconds);
    if (e->bytes_read > 0)
        tsr_json_member_u64(t, "bytes_read", e->bytes_read);
    tsr_json_member_object(t, "phase_seconds", true);
    for (tsr_phase phase = 0; phase < TSR_N_PHASES; phase++)
        tsr_json_member_number(t, tsr_phase_name(phase), e->phases[phase]);
    tsr_json_end_object(t);
    write_rows(t, "judgements", result, false);
    write_rows(t, "skipped", result, true);
}
