/* Reads results of `batch`: a row for each job, and a finding for each job that failed. */
#include "report/read/result_kinds.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

typedef struct job {
    tsr_row row; /* first member, for the figures of the rest */
    const char *state, *message, *needs;
    double seconds;
} job;

static const struct {
    const char *state, *why;
    tsr_outcome outcome;
} kStates[] = {
    {"done", NULL, TSR_OUTCOME_PASSED},
    {"short", "a check failed", TSR_OUTCOME_FAILED},
    {"failed", "it failed", TSR_OUTCOME_FAILED},
    {"interrupted", "it was interrupted", TSR_OUTCOME_FAILED},
    {"not begun", "not begun", TSR_OUTCOME_SKIPPED},
    {"planned", NULL, TSR_OUTCOME_NONE},
};

static tsr_status take_state(tsr_reading *r, job *j, tsr_err *err)
{
    for (size_t i = 0; i < sizeof kStates / sizeof *kStates; i++) {
        if (j->state == NULL || strcmp(j->state, kStates[i].state) != 0)
            continue;
        j->row.outcome = kStates[i].outcome;
        j->row.note = j->message != NULL ? j->message : kStates[i].why;
        if (j->needs != NULL)
            j->row.note = tsr_arena_printf(&r->result->arena, "not begun: it needs the result of %s", j->needs);
        return TSR_OK;
    }
    return tsr_refuse_value(r, err, "an unknown state of a job");
}

static tsr_status read_job(tsr_reading *r, void *to, tsr_err *err)
{
    static const tsr_field kFields[] = {
        {"name", tsr_value_text, offsetof(job, row.name), TSR_NEEDED},
        {"command", tsr_value_text, offsetof(job, row.what), TSR_NEEDED},
        {"state", tsr_value_text, offsetof(job, state), TSR_NEEDED},
        {"message", tsr_value_text, offsetof(job, message), 0},
        {"needs", tsr_value_text, offsetof(job, needs), 0},
        {"seconds", tsr_value_number, offsetof(job, seconds), 0},
        {0},
    };
    tsr_row *row;
    uint32_t series;
    job j = {.seconds = NAN};
    (void)to;
    tsr_row_clear(&j.row);
    const tsr_rest rest = {.figures = j.row.figures};
    TSR_TRY(tsr_read_object(r, "a job", kFields, &j, &rest, err));
    if (j.row.name == NULL)
        return tsr_refuse_value(r, err, "a name is null");
    TSR_TRY(take_state(r, &j, err));
    TSR_TRY(tsr_result_series(r->result, "job", &series, err));
    j.row.series = series;
    j.row.figures[TSR_FIGURE_SECONDS] = j.seconds;
    TSR_TRY(tsr_result_add_row(r->result, series, &row, err));
    *row = j.row;
    if (j.row.outcome != TSR_OUTCOME_FAILED)
        return TSR_OK;
    const tsr_result_finding finding = {.check = "job",
                                        .where = j.row.name,
                                        .text = j.row.note,
                                        .row = (uint32_t)(row - r->result->rows),
                                        .fatal = true};
    return tsr_result_add_finding(r->result, &finding, err);
}

tsr_status tsr_read_batch(tsr_reading *r, void *to, tsr_err *err)
{
    static const tsr_field kFields[] = {TSR_HEAD_FIELDS, {"jobs", read_job, 0, TSR_NEEDED | TSR_EACH}, {0}};
    return tsr_read_facts(r, "the result", kFields, to, NULL, err);
}
