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
        return tsr_refuse_value(r, err, "a judgement without words");
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
static tsr_status read_judgement(tsr_reading *r, bool by_kind, tsr_err *err)
{
    static const tsr_field kFields[] = {
        {"subject", tsr_value_text, offsetof(judgement, row.name), true},
        {"kind", tsr_value_text, offsetof(judgement, kind), true},
        {"what", tsr_value_text, offsetof(judgement, row.what), true},
        {"passed", tsr_value_passed, offsetof(judgement, row.outcome), true},
        {"fault", tsr_value_text, offsetof(judgement, row.note), false},
        {"max_abs_error_at", tsr_value_place, offsetof(judgement, row.error_at), false},
        {0},
    };
    judgement j = {.kind = NULL};
    tsr_row_clear(&j.row);
    const tsr_rest rest = {.figures = j.row.figures};
    TSR_TRY(tsr_read_object(r, "a judgement", kFields, &j, &rest, err));
    TSR_TRY(add_judgement(r, &j, by_kind ? j.kind : j.row.what, err));
    r->result->series[r->result->rows[r->result->n_rows - 1].series].bounded =
        by_kind && strcmp(j.kind, "quantization") != 0;
    return TSR_OK;
}

static tsr_status read_of_kernel(tsr_reading *r, void *to, tsr_err *err)
{
    (void)to;
    return read_judgement(r, true, err);
}

static tsr_status read_of_pass(tsr_reading *r, void *to, tsr_err *err)
{
    (void)to;
    return read_judgement(r, false, err);
}

static tsr_status read_of_kernels(tsr_reading *r, void *to, tsr_err *err)
{
    return tsr_read_array(r, read_of_kernel, to, err);
}

static tsr_status read_of_passes(tsr_reading *r, void *to, tsr_err *err)
{
    return tsr_read_array(r, read_of_pass, to, err);
}

static tsr_status read_skipped(tsr_reading *r, void *to, tsr_err *err)
{
    static const tsr_field kFields[] = {
        {"subject", tsr_value_text, offsetof(judgement, row.name), true},
        {"why", tsr_value_text, offsetof(judgement, row.note), true},
        {0},
    };
    judgement j = {.kind = NULL};
    (void)to;
    tsr_row_clear(&j.row);
    TSR_TRY(tsr_read_object(r, "what was skipped", kFields, &j, NULL, err));
    j.row.outcome = TSR_OUTCOME_SKIPPED;
    return add_judgement(r, &j, "skipped", err);
}

static tsr_status read_all_skipped(tsr_reading *r, void *to, tsr_err *err)
{
    return tsr_read_array(r, read_skipped, to, err);
}

tsr_status tsr_read_judgements(tsr_reading *r, void *to, tsr_err *err)
{
    static const tsr_field kFields[] = {
        TSR_HEAD_FIELDS,
        {"judgements", read_of_kernels, 0, true},
        {"skipped", read_all_skipped, 0, false},
        {"phase_seconds", tsr_read_phases, 0, false},
        {0},
    };
    const tsr_rest rest = {.facts = &r->result->facts};
    return tsr_read_object(r, "the result", kFields, to, &rest, err);
}

tsr_status tsr_read_forward(tsr_reading *r, void *to, tsr_err *err)
{
    static const tsr_field kFields[] = {
        TSR_HEAD_FIELDS,
        {"judgements", read_of_passes, 0, true},
        {"skipped", read_all_skipped, 0, false},
        {"phase_seconds", tsr_read_phases, 0, false},
        {0},
    };
    const tsr_rest rest = {.facts = &r->result->facts};
    return tsr_read_object(r, "the result", kFields, to, &rest, err);
}
