/* Reads results of `verify gemm`, `mla`, `forward` and others: judgements with a subject, a kind of error and
 * figures. */
#include "report/read/result_kinds.h"

#include <stddef.h>
#include <string.h>

typedef struct judgement {
    tsr_row row; /* first member: its fields are filled in place */
    const char *kind;
} judgement;

static tsr_status add_judgement(tsr_reading *r, judgement *j, const char *series, tsr_err *err)
{
    uint32_t at;
    if (series == NULL || j->row.name == NULL)
        return tsr_refuse_value(r, err, "a judgement without text");
    TSR_TRY(tsr_result_series(r->result, series, &at, err));
    tsr_row *row;
    TSR_TRY(tsr_result_add_row(r->result, at, &row, err));
    tsr_finish_figures(j->row.figures);
    j->row.series = at;
    j->row.place = tsr_place_of(j->row.name);
    *row = j->row;
    const uint32_t index = (uint32_t)(r->result->n_rows - 1);
    return row->outcome == TSR_OUTCOME_FAILED ? tsr_find_fault(r, series, index, err) : TSR_OK;
}

/* Reads a judgement. Judgements of kernels have one series per kind of error. Those of a forward pass have one kind,
 * and one series per subject: the stream of hidden states, the layer alone, the logits. */
static tsr_status read_judgement(tsr_reading *r, void *to, tsr_err *err)
{
    static const tsr_field kFields[] = {
        {"subject", tsr_value_text, offsetof(judgement, row.name), TSR_NEEDED},
        {"kind", tsr_value_text, offsetof(judgement, kind), TSR_NEEDED},
        {"what", tsr_value_text, offsetof(judgement, row.what), TSR_NEEDED},
        {"passed", tsr_value_passed, offsetof(judgement, row.outcome), TSR_NEEDED},
        {"fault", tsr_value_text, offsetof(judgement, row.note), 0},
        {"max_abs_error_at", tsr_value_place, offsetof(judgement, row.error_at), 0},
        {0},
    };
    const bool by_kind = !r->result->kind->by_subject;
    judgement j = {.kind = NULL};
    (void)to;
    tsr_row_clear(&j.row);
    const tsr_rest rest = {.figures = j.row.figures};
    TSR_TRY(tsr_read_object(r, "a judgement", kFields, &j, &rest, err));
    TSR_TRY(add_judgement(r, &j, by_kind ? j.kind : j.row.what, err));
    r->result->series[r->result->rows[r->result->n_rows - 1].series].bounded =
        by_kind && strcmp(j.kind, "quantization") != 0;
    return TSR_OK;
}

static tsr_status read_skipped(tsr_reading *r, void *to, tsr_err *err)
{
    static const tsr_field kFields[] = {
        {"subject", tsr_value_text, offsetof(judgement, row.name), TSR_NEEDED},
        {"why", tsr_value_text, offsetof(judgement, row.note), TSR_NEEDED},
        {0},
    };
    judgement j = {.kind = NULL};
    (void)to;
    tsr_row_clear(&j.row);
    TSR_TRY(tsr_read_object(r, "what was skipped", kFields, &j, NULL, err));
    j.row.outcome = TSR_OUTCOME_SKIPPED;
    return add_judgement(r, &j, "skipped", err);
}

tsr_status tsr_read_judgements(tsr_reading *r, void *to, tsr_err *err)
{
    static const tsr_field kFields[] = {
        TSR_HEAD_FIELDS,
        {"judgements", read_judgement, 0, TSR_NEEDED | TSR_EACH},
        {"skipped", read_skipped, 0, TSR_EACH},
        {"phase_seconds", tsr_read_phases, 0, 0},
        {0},
    };
    return tsr_read_facts(r, "the result", kFields, to, NULL, err);
}
