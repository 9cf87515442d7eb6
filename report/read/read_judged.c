/* Reads results of `verify gemm`, `mla`, `forward` and others: judgements with a subject, a kind of error and
 * figures. */
#include "report/read/result_kinds.h"

#include <stddef.h>

/* Reads a judgement. Judgements of kernels have one series per kind of error. Those of a forward pass have one kind,
 * and one series per subject: the stream of hidden states, the layer alone, the logits. */
static tsr_status read_judgement(tsr_reading *r, void *to, tsr_err *err)
{
    static const tsr_field kFields[] = {
        {"subject", tsr_value_text, offsetof(tsr_row, name), TSR_NEEDED},
        {"kind", tsr_value_text, offsetof(tsr_row, kind), TSR_NEEDED},
        {"what", tsr_value_text, offsetof(tsr_row, what), TSR_NEEDED},
        {"passed", tsr_value_passed, offsetof(tsr_row, outcome), TSR_NEEDED},
        {"fault", tsr_value_text, offsetof(tsr_row, note), 0},
        {"max_abs_error_at", tsr_value_place, offsetof(tsr_row, error_at), 0},
        {0},
    };
    tsr_result *const result = r->result;
    tsr_row row;
    (void)to;
    tsr_row_clear(&row);
    const tsr_rest rest = {.figures = row.figures};
    TSR_TRY(tsr_read_object(r, "a judgement", kFields, &row, &rest, err));
    if (row.name == NULL || row.kind == NULL || row.what == NULL)
        return tsr_refuse_value(r, err, "a judgement without text");
    tsr_finish_figures(row.figures);
    TSR_TRY(tsr_result_add_judgement(result, &row, err));
    const uint32_t at = (uint32_t)(result->n_rows - 1);
    return row.outcome == TSR_OUTCOME_FAILED ? tsr_find_fault(r, result->series[result->rows[at].series].name, at, err)
                                             : TSR_OK;
}

static tsr_status read_skipped(tsr_reading *r, void *to, tsr_err *err)
{
    static const tsr_field kFields[] = {
        {"subject", tsr_value_text, offsetof(tsr_row, name), TSR_NEEDED},
        {"why", tsr_value_text, offsetof(tsr_row, note), TSR_NEEDED},
        {0},
    };
    tsr_row row = {.name = NULL};
    (void)to;
    TSR_TRY(tsr_read_object(r, "what was skipped", kFields, &row, NULL, err));
    return row.name == NULL ? tsr_refuse_value(r, err, "a judgement without text")
                            : tsr_result_add_skipped(r->result, row.name, row.note, err);
}

static tsr_status read_baseline(tsr_reading *r, void *to, tsr_err *err)
{
    (void)to;
    return tsr_read_forward_baseline(r, "baseline: ", err);
}

tsr_status tsr_read_judgements(tsr_reading *r, void *to, tsr_err *err)
{
    static const tsr_field kFields[] = {
        TSR_HEAD_FIELDS,
        {"judgements", read_judgement, 0, TSR_NEEDED | TSR_EACH},
        {"skipped", read_skipped, 0, TSR_EACH},
        {"phase_seconds", tsr_read_phases, 0, 0},
        {"baseline", read_baseline, 0, 0},
        {0},
    };
    return tsr_read_facts(r, "the result", kFields, to, NULL, err);
}
