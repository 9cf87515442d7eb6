/* Writes what survived of each update. */
#include "convert/plans/merge/merge_report.h"

#include "convert/ops/merge/merge_op.h"
#include "formats/json/json_write.h"

#include <math.h>

/* Returns true for an update, and for a weight without one that was stored again with a larger scale. */
static bool is_row(const tsr_step *step, const tsr_quant_stats *row)
{
    return step->op->stats_of == TSR_STATS_UPDATE && (tsr_merge_step_source(step)->n_updates > 0 || row->elements > 0);
}

double tsr_merge_survived(const tsr_quant_stats *row)
{
    return row->sum_x2 > 0 ? row->sum_xy / row->sum_x2 : NAN;
}

bool tsr_merge_is_drowned(const tsr_quant_stats *row)
{
    return row->sum_x2 > 0 && row->sum_d2 >= TSR_MERGE_DROWNED * TSR_MERGE_DROWNED * row->sum_x2;
}

tsr_quant_stats tsr_merge_whole(const tsr_plan *plan, const tsr_quant_stats *rows, size_t *drowned)
{
    tsr_quant_stats whole = {0};
    *drowned = 0;
    for (size_t s = 0; s < plan->n_steps; s++) {
        if (plan->steps[s].op->stats_of != TSR_STATS_UPDATE)
            continue;
        tsr_quant_stats_add(&whole, &rows[s]);
        *drowned += tsr_merge_is_drowned(&rows[s]);
    }
    return whole;
}

static void figures(tsr_text *t, const tsr_quant_stats *row)
{
    const bool any = row->sum_x2 > 0;
    tsr_json_member_u64(t, "elements", row->elements);
    tsr_json_member_u64(t, "updated", row->nonzero);
    tsr_json_member_u64(t, "lost", row->flushed);
    tsr_json_member_number(t, "update_norm", sqrt(row->sum_x2));
    tsr_json_member_number(t, "stored_norm", sqrt(row->sum_y2));
    tsr_json_member_number(t, "largest_update", row->amax);
    tsr_json_member_number(t, "survived", tsr_merge_survived(row));
    tsr_json_member_number(t, "relative_error", any ? tsr_quant_stats_relative_error(row) : NAN);
    tsr_json_member_number(t, "cosine", any ? tsr_quant_stats_cosine(row) : NAN);
}

static void scales(tsr_text *t, const tsr_merge_source *s)
{
    tsr_json_member_array(t, "scales", true);
    for (uint32_t i = 0; i < s->n_updates; i++)
        tsr_json_number(t, (double)s->updates[i].scale);
    tsr_json_end_array(t);
}

static void update_row(tsr_text *t, const tsr_plan *plan, const tsr_step *step, const tsr_quant_stats *row)
{
    const tsr_tensor *const x = tsr_step_reported(step);
    const tsr_merge_source *const s = tsr_merge_step_source(step);
    uint64_t rank = 0;
    for (uint32_t i = 0; i < s->n_updates; i++)
        rank += s->updates[i].rank;
    tsr_json_begin_object(t, true);
    tsr_json_member_string(t, "name", x->name);
    tsr_json_member_string(t, "file", plan->files[step->file].name);
    tsr_json_member_string(t, "dtype", tsr_dtype_name((tsr_dtype)step->out[0]->dtype));
    tsr_json_member_u64s(t, "shape", x->shape, x->rank);
    tsr_json_member_u64(t, "rank", rank);
    if (s->n_updates < 2)
        tsr_json_member_number(t, "scale", s->n_updates == 0 ? 0 : (double)s->updates[0].scale);
    else
        scales(t, s);
    figures(t, row);
    tsr_json_end_object(t);
}

void tsr_merge_updates_json(const tsr_plan *plan, const tsr_quant_stats *rows, tsr_text *t)
{
    size_t drowned;
    uint64_t n = 0;
    const tsr_quant_stats whole = tsr_merge_whole(plan, rows, &drowned);
    tsr_json_member_array(t, "updates", false);
    for (size_t s = 0; s < plan->n_steps; s++) {
        if (!is_row(&plan->steps[s], &rows[s]))
            continue;
        n += tsr_merge_step_source(&plan->steps[s])->n_updates > 0;
        update_row(t, plan, &plan->steps[s], &rows[s]);
    }
    tsr_json_end_array(t);
    tsr_json_member_object(t, "whole", false);
    tsr_json_member_u64(t, "tensors_merged", n);
    tsr_json_member_u64(t, "tensors_drowned", drowned);
    figures(t, &whole);
    tsr_json_end_object(t);
}

void tsr_merge_report(const tsr_plan *plan, const tsr_quant_stats *rows, const tsr_plan_blocks *blocks, tsr_text *t)
{
    (void)blocks; /* there are none */
    tsr_json_begin_document(t, "tessera-merge-report/1");
    tsr_json_member_string(t, "command", plan->command);
    tsr_merge_updates_json(plan, rows, t);
    tsr_json_end_document(t);
}
