/* Reads results of `quantize` and `convert`: quantization_report.json, and the result of a run (--json). */
#include "report/read/result_kinds.h"

#include <math.h>
#include <stddef.h>

static const tsr_field kTensor[] = {
    {"name", tsr_value_text, offsetof(tsr_row, name), TSR_NEEDED},
    {"file", tsr_value_text, offsetof(tsr_row, file), 0},
    {"shape", tsr_value_place, offsetof(tsr_row, shape), 0},
    {"max_abs_error_at", tsr_value_place, offsetof(tsr_row, error_at), 0},
    {"worst_block_at", tsr_value_place, offsetof(tsr_row, block_at), 0},
    {0},
};

static const tsr_field kKept[] = {
    {"name", tsr_value_text, offsetof(tsr_row, name), TSR_NEEDED},
    {"reason", tsr_value_text, offsetof(tsr_row, note), TSR_NEEDED},
    {0},
};

static tsr_status read_in(tsr_reading *r, const char *series, const char *what, const tsr_field *fields, tsr_err *err)
{
    uint32_t at;
    tsr_row *row;
    TSR_TRY(tsr_result_series(r->result, series, &at, err));
    return tsr_read_row(r, what, fields, at, &row, err);
}

static tsr_status read_tensor(tsr_reading *r, void *to, tsr_err *err)
{
    (void)to;
    return read_in(r, "", "a tensor", kTensor, err);
}

static tsr_status read_original(tsr_reading *r, void *to, tsr_err *err)
{
    (void)to;
    return read_in(r, "against the original", "a tensor", kTensor, err);
}

static tsr_status read_kept(tsr_reading *r, void *to, tsr_err *err)
{
    (void)to;
    return read_in(r, "kept", "a tensor that was kept", kKept, err);
}

static tsr_status read_whole(tsr_reading *r, void *to, tsr_err *err)
{
    (void)to;
    return tsr_read_whole(r, "", NULL, err);
}

static tsr_status read_whole_against(tsr_reading *r, void *to, tsr_err *err)
{
    (void)to;
    return tsr_read_whole(r, "against the original", "against.", err);
}

static tsr_status read_blocks(tsr_reading *r, void *to, tsr_err *err)
{
    static const tsr_field kFields[] = {
        {"xxh3", tsr_value_text, offsetof(tsr_manifest_blocks, digest), TSR_NEEDED},
        {0},
    };
    tsr_manifest_blocks *const said = &r->result->said_blocks;
    (void)to;
    said->there = true;
    return tsr_read_object(r, "its figures of blocks", kFields, said, NULL, err);
}

tsr_status tsr_read_quantization_report(tsr_reading *r, void *to, tsr_err *err)
{
    static const tsr_field kFields[] = {
        TSR_HEAD_FIELDS,
        {"command", tsr_value_text, offsetof(tsr_result, command), TSR_NEEDED},
        {"tensors", read_tensor, 0, TSR_NEEDED | TSR_EACH},
        {"whole", read_whole, 0, TSR_NEEDED},
        {"kept", read_kept, 0, TSR_EACH},
        {"blocks", read_blocks, 0, 0},
        {"against", read_original, 0, TSR_EACH},
        {"whole_against", read_whole_against, 0, 0},
        {0},
    };
    uint32_t at;
    TSR_TRY(tsr_result_series(r->result, "", &at, err)); /* exists even if no tensor was quantized */
    return tsr_read_facts(r, "the report", kFields, to, NULL, err);
}

/* ---- a run ---- */

static tsr_status read_action(tsr_reading *r, void *to, tsr_err *err)
{
    typedef struct planned {
        const char *name, *action, *reason;
    } planned;
    static const tsr_field kFields[] = {
        {"name", tsr_value_text, offsetof(planned, name), TSR_NEEDED},
        {"action", tsr_value_text, offsetof(planned, action), TSR_NEEDED},
        {"reason", tsr_value_text, offsetof(planned, reason), TSR_NEEDED},
        {0},
    };
    planned p = {0};
    uint32_t at;
    (void)to;
    TSR_TRY(tsr_read_object(r, "a planned tensor", kFields, &p, NULL, err));
    if (p.name == NULL || p.action == NULL)
        return tsr_refuse_value(r, err, "a name is null");
    TSR_TRY(tsr_result_series(r->result, p.action, &at, err));
    tsr_row *row;
    TSR_TRY(tsr_result_add_row(r->result, at, &row, err));
    row->name = p.name;
    row->note = p.reason;
    row->place = tsr_place_of(p.name);
    return TSR_OK;
}

static tsr_status read_actions(tsr_reading *r, void *to, tsr_err *err)
{
    return tsr_read_facts(r, "the actions", NULL, to, "tensors: ", err);
}

/* A module whose inputs were measured. */
typedef struct measured {
    const char *name;
    double tokens, least, largest;
} measured;

static tsr_status read_measured(tsr_reading *r, void *to, tsr_err *err)
{
    static const tsr_field kFields[] = {
        {"name", tsr_value_text, offsetof(measured, name), TSR_NEEDED},
        {"tokens", tsr_value_number, offsetof(measured, tokens), TSR_NEEDED},
        {"min", tsr_value_number, offsetof(measured, least), TSR_NEEDED},
        {"max", tsr_value_number, offsetof(measured, largest), TSR_NEEDED},
        {0},
    };
    measured m = {0};
    tsr_row *row;
    uint32_t at;
    (void)to;
    TSR_TRY(tsr_read_object(r, "a module", kFields, &m, NULL, err));
    TSR_TRY(tsr_result_series(r->result, "inputs", &at, err));
    TSR_TRY(tsr_result_add_row(r->result, at, &row, err));
    row->name = m.name;
    row->figures[TSR_FIGURE_AMAX] = fmax(fabs(m.least), fabs(m.largest));
    return TSR_OK;
}

tsr_status tsr_read_calibrate(tsr_reading *r, void *to, tsr_err *err)
{
    static const tsr_field kFields[] = {
        TSR_HEAD_FIELDS,
        {"modules", read_measured, 0, TSR_NEEDED | TSR_EACH},
        {0},
    };
    return tsr_read_facts(r, "the result", kFields, to, NULL, err);
}

static tsr_status read_baseline(tsr_reading *r, void *to, tsr_err *err)
{
    (void)to;
    return tsr_read_forward_baseline(r, "proof: baseline: ", err);
}

static tsr_status read_proof(tsr_reading *r, void *to, tsr_err *err)
{
    static const tsr_field kFields[] = {
        {"baseline", read_baseline, 0, 0},
        {0},
    };
    return tsr_read_facts(r, "the proof", kFields, to, "proof: ", err);
}

tsr_status tsr_read_run(tsr_reading *r, void *to, tsr_err *err)
{
    static const tsr_field kFields[] = {
        TSR_HEAD_FIELDS,
        {"actions", read_actions, 0, TSR_NEEDED},
        {"judged", tsr_read_judged, 0, 0},
        {"findings", tsr_read_finding, 0, TSR_EACH},
        {"plan", read_action, 0, TSR_EACH},
        {"against", read_whole_against, 0, 0},
        {"proof", read_proof, 0, 0},
        {0},
    };
    tsr_row whole;
    uint32_t at;
    tsr_row_clear(&whole);
    const tsr_rest rest = {.figures = whole.figures, .facts = &r->result->facts};
    TSR_TRY(tsr_result_series(r->result, "", &at, err));
    TSR_TRY(tsr_read_object(r, "the result", kFields, to, &rest, err));
    tsr_finish_figures(whole.figures);
    whole.name = r->result->series[at].whole.name;
    whole.series = at;
    r->result->series[at].whole = whole;
    r->result->series[at].has_whole = true;
    return TSR_OK;
}

/* ---- a merge ---- */

static tsr_status read_update(tsr_reading *r, void *to, tsr_err *err)
{
    static const tsr_field kUpdate[] = {
        {"name", tsr_value_text, offsetof(tsr_row, name), TSR_NEEDED},
        {"file", tsr_value_text, offsetof(tsr_row, file), 0},
        {"dtype", tsr_value_text, offsetof(tsr_row, dtype), 0},
        {"shape", tsr_value_place, offsetof(tsr_row, shape), 0},
        {0},
    };
    (void)to;
    return read_in(r, "", "an update", kUpdate, err);
}

tsr_status tsr_read_merge(tsr_reading *r, void *to, tsr_err *err)
{
    static const tsr_field kFields[] = {
        TSR_HEAD_FIELDS,
        {"actions", read_actions, 0, TSR_NEEDED},
        {"plan", read_action, 0, TSR_EACH},
        {"updates", read_update, 0, TSR_EACH},
        {"whole", read_whole, 0, 0},
        {0},
    };
    return tsr_read_facts(r, "the result", kFields, to, NULL, err);
}

tsr_status tsr_read_merge_report(tsr_reading *r, void *to, tsr_err *err)
{
    static const tsr_field kFields[] = {
        TSR_HEAD_FIELDS,
        {"command", tsr_value_text, offsetof(tsr_result, command), TSR_NEEDED},
        {"updates", read_update, 0, TSR_NEEDED | TSR_EACH},
        {"whole", read_whole, 0, TSR_NEEDED},
        {0},
    };
    return tsr_read_facts(r, "the report", kFields, to, NULL, err);
}
