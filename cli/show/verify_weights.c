/* Prints the findings of comparing weights with their source, and writes them as JSON. */
#include "cli/show/verify_weights.h"

#include "cli/help/next_command.h"
#include "cli/io/output.h"
#include "cli/io/results.h"
#include "cli/show/compare_figures.h"
#include "formats/json/json_write.h"
#include "report/write/terminal/terminal_parts.h"

#include <math.h>
#include <string.h>

enum { LISTED = 20 };

/* ---- the model ---- */

tsr_status tsr_verify_weights_fill(tsr_verify_weights *v, const char *schema, tsr_err *err)
{
    tsr_result *const result = &v->result;
    const tsr_findings *const f = &v->findings;
    TSR_TRY(tsr_compare_begin_result(result, schema, &v->compared.comparison, err));
    for (tsr_check check = TSR_CHECK_NAMES; check < TSR_N_CHECKS; check++)
        TSR_TRY(tsr_result_add_check(result, tsr_check_name(check), f->judged[check], err));
    for (size_t i = 0; i < f->count; i++) {
        const tsr_result_finding finding = {.check = tsr_check_name(f->items[i].check),
                                            .where = f->items[i].where,
                                            .text = f->items[i].text,
                                            .row = TSR_NO_ROW,
                                            .fatal = true};
        TSR_TRY(tsr_result_add_finding(result, &finding, err));
    }
    return TSR_OK;
}

/* ---- text ---- */

/* Suggests a command for the first tensor among the findings. Configuration keys have no values to show. */
static void print_next(const tsr_verify_weights *v)
{
    const tsr_compare_job *const job = &v->compared;
    const tsr_findings *const f = &v->findings;
    const tsr_comparison *const c = &job->comparison;
    for (size_t i = 0; i < f->count; i++) {
        for (size_t k = 0; k < c->count; k++) {
            if (strcmp(tsr_pair_name(&c->pairs[k]), f->items[i].where) != 0)
                continue;
            tsr_print_next_diff(job->path[0], job->path[1], f->items[i].where);
            tsr_print(" for figures and blocks\n");
            return;
        }
    }
    tsr_print("next: check %s in %s\n", f->items[0].where, job->path[1]);
}

tsr_status tsr_verify_weights_print(tsr_command_context *context, tsr_err *err)
{
    const tsr_verify_weights *const v = context->job;
    const tsr_compare_job *const job = &v->compared;
    const tsr_findings *const f = &v->findings;
    const tsr_comparison *const c = &job->comparison;
    const tsr_style style = tsr_command_style();
    char read[32], rate[32];
    tsr_text text = {0};
    tsr_draw_checks(&text, &style, &v->result, 0, LISTED);
    tsr_draw_together(&text, &style, &v->result);
    TSR_TRY(tsr_print_drawn(&text, err));
    tsr_print("%zu tensor%s, %s read in %.1f s (%s/s), %u thread%s\n", c->count, tsr_plural(c->count),
              tsr_bytes_text((double)c->bytes_read, read), c->seconds,
              tsr_bytes_text((double)c->bytes_read / fmax(c->seconds, 1e-9), rate), c->threads, tsr_plural(c->threads));
    if (f->count == 0)
        tsr_print("%s is a correct conversion of %s\n", job->path[1], job->path[0]);
    else
        print_next(v);
    if (f->count > 0 && job->weights[0].n_scaled > 0 && job->weights[1].n_scaled == 0)
        tsr_print("%s is quantized and %s is not: if the second is the original, the two arguments are swapped\n",
                  job->path[0], job->path[1]);
    return TSR_OK;
}

/* ---- JSON ---- */

void tsr_verify_weights_json(const tsr_command_context *context, tsr_text *t)
{
    const tsr_verify_weights *const v = context->job;
    const tsr_compare_job *const job = &v->compared;
    const tsr_result *const result = &v->result;
    tsr_json_member_string(t, "checkpoint", job->path[1]);
    tsr_json_member_string(t, "against", job->path[0]);
    tsr_json_member_bool(t, "passed", result->n_findings == 0);
    tsr_json_member_number(t, "seconds", job->comparison.seconds);
    tsr_json_member_object(t, "limits", true);
    tsr_json_member_number(t, "min_sqnr_db", v->limits.min_sqnr);
    tsr_json_member_number(t, "min_sqnr_int4_db", v->limits.min_sqnr_int4);
    tsr_json_member_number(t, "min_sqnr_fp4_db", v->limits.min_sqnr_fp4);
    tsr_json_member_number(t, "max_int_cost", v->limits.max_int_cost);
    tsr_json_member_number(t, "max_block_error", v->limits.max_block_error);
    tsr_json_member_number(t, "max_cast_error", v->limits.max_cast_error);
    tsr_json_member_number(t, "max_misrounded", (double)v->limits.max_misrounded);
    tsr_json_end_object(t);
    tsr_json_member_object(t, "whole", true);
    tsr_compare_figures_json(t, result->series->whole.figures);
    tsr_json_end_object(t);
    tsr_checks_json(t, result);
    tsr_json_member_array(t, "tensors", false);
    for (size_t i = 0; i < job->comparison.count; i++) {
        const tsr_pair *const p = &job->comparison.pairs[i];
        tsr_json_begin_object(t, p->state != TSR_PAIR_DIFFERS);
        tsr_pair_json(t, p);
        if (p->seconds > 0)
            tsr_json_member_number(t, "seconds", round(p->seconds * 1e6) / 1e6);
        tsr_json_end_object(t);
    }
    tsr_json_end_array(t);
}
