/* Writes members of JSON that two writers share. */
#include "report/read/shared_json.h"

#include "formats/json/json_write.h"

#include <math.h>

/* Infinite SQNR is null in JSON, and a word in pages. */
void tsr_share_figures(tsr_text *t, const tsr_json_style *style, const double figures[TSR_N_FIGURES])
{
    for (tsr_figure f = 0; f < TSR_N_FIGURES; f++) {
        if (!isnan(figures[f]))
            style->number(t, tsr_figure_of(f)->key, figures[f]);
    }
}

void tsr_share_checks(tsr_text *t, const tsr_json_style *style, const tsr_result *result)
{
    tsr_json_member_array(t, "checks", style->in_line);
    for (size_t i = 0; i < result->n_checks; i++) {
        tsr_json_begin_object(t, true);
        style->text(t, "check", result->checks[i].name);
        tsr_json_member_u64(t, "judged", result->checks[i].judged);
        tsr_json_member_u64(t, "findings", tsr_count_findings(result, result->checks[i].name));
        tsr_json_end_object(t);
    }
    tsr_json_end_array(t);
}

void tsr_share_finding(tsr_text *t, const tsr_json_style *style, const tsr_result_finding *f)
{
    tsr_json_member_string(t, "severity", f->fatal ? "error" : "warning");
    style->text(t, "check", f->check);
    style->text(t, "where", f->where);
    style->text(t, "what", f->text);
}

void tsr_share_regression(tsr_text *t, const tsr_json_style *style, const tsr_regression *r)
{
    tsr_json_member_bool(t, "fails_now", r->failed);
    style->text(t, "figure", isnan(r->loss) ? NULL : tsr_figure_of(r->figure)->key);
    style->number(t, "before", r->before->figures[r->figure]);
    style->number(t, "now", r->now->figures[r->figure]);
    style->number(t, "loss_db", r->loss);
}

void tsr_share_differences(tsr_text *t, const tsr_json_style *style, const tsr_baseline *b)
{
    tsr_json_member_array(t, "differences", style->in_line);
    for (size_t i = 0; i < b->n_differences; i++) {
        tsr_json_begin_object(t, true);
        style->text(t, "name", b->differences[i].name);
        style->text(t, "before", b->differences[i].before);
        style->text(t, "now", b->differences[i].now);
        tsr_json_end_object(t);
    }
    tsr_json_end_array(t);
}
