/* Reads results of `verify` and `diff`: pairs of tensors, and findings. */
#include "report/read/result_kinds.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A pair: a row, and temporary data. */
typedef struct pair {
    tsr_row row; /* first member: its fields are filled in place */
    const char *state;
    struct {
        const char *dtype, *shape;
    } a, b;
    bool beyond, has_block;
} pair;

static tsr_status read_side(tsr_reading *r, void *to, tsr_err *err)
{
    static const tsr_field kFields[] = {
        {"dtype", tsr_value_text, 0, TSR_NEEDED},
        {"shape", tsr_value_place, sizeof(const char *), TSR_NEEDED},
        {0},
    };
    return tsr_read_object(r, "a side", kFields, to, NULL, err);
}

/* [first, end): the rows or columns of a block. */
typedef struct range {
    uint64_t at[2];
    unsigned n;
} range;

static tsr_status read_bound(tsr_reading *r, void *to, tsr_err *err)
{
    range *const x = to;
    if (x->n == 2)
        return tsr_refuse_value(r, err, "a range of more than two numbers");
    return tsr_value_count(r, &x->at[x->n++], err);
}

static tsr_status read_range(tsr_reading *r, void *to, tsr_err *err)
{
    range *const x = to;
    TSR_TRY(tsr_read_array(r, read_bound, x, err));
    return x->n == 2 && x->at[0] < x->at[1] ? TSR_OK : tsr_refuse_value(r, err, "an empty range");
}

/* Reads the first block of a list, which is the worst. */
static tsr_status read_block(tsr_reading *r, void *to, tsr_err *err)
{
    typedef struct block {
        range rows, columns;
        double relative, max_abs;
        uint64_t matrix;
    } block;
    static const tsr_field kFields[] = {
        {"rows", read_range, offsetof(block, rows), TSR_NEEDED},
        {"columns", read_range, offsetof(block, columns), TSR_NEEDED},
        {"relative_error", tsr_value_number, offsetof(block, relative), TSR_NEEDED},
        {"max_abs_error", tsr_value_number, offsetof(block, max_abs), 0},
        {"matrix", tsr_value_count, offsetof(block, matrix), 0},
        {0},
    };
    pair *const p = to;
    block b = {.max_abs = NAN};
    char matrix[40] = "";
    TSR_TRY(tsr_read_object(r, "a block", kFields, &b, NULL, err));
    if (p->has_block)
        return TSR_OK;
    if (b.matrix > 0)
        snprintf(matrix, sizeof matrix, " of matrix %llu", U64(b.matrix));
    p->has_block = true;
    p->row.figures[TSR_FIGURE_WORST_BLOCK] =
        isnan(b.relative) ? INFINITY : b.relative; /* null: NaN or Inf in the block */
    p->row.block_max = b.max_abs;
    p->row.block_at = tsr_arena_printf(&r->result->arena, "rows %llu..%llu, columns %llu..%llu%s", U64(b.rows.at[0]),
                                       U64(b.rows.at[1] - 1), U64(b.columns.at[0]), U64(b.columns.at[1] - 1), matrix);
    return p->row.block_at == NULL ? tsr_out_of_memory(err, NULL) : TSR_OK;
}

static tsr_status read_pair(tsr_reading *r, pair *p, tsr_err *err)
{
    static const tsr_field kFields[] = {
        {"name", tsr_value_text, offsetof(pair, row.name), TSR_NEEDED},
        {"state", tsr_value_text, offsetof(pair, state), TSR_NEEDED},
        {"a", read_side, offsetof(pair, a), 0},
        {"b", read_side, offsetof(pair, b), 0},
        {"seconds", tsr_value_number, offsetof(pair, row.figures) + TSR_FIGURE_SECONDS * sizeof(double), 0},
        {"max_abs_error_at", tsr_value_place, offsetof(pair, row.error_at), 0},
        {"worst_blocks", read_block, 0, TSR_EACH},
        {"beyond", tsr_value_flag, offsetof(pair, beyond), 0},
        {0},
    };
    uint32_t series;
    *p = (pair){.state = NULL};
    tsr_row_clear(&p->row);
    const tsr_rest rest = {.figures = p->row.figures};
    TSR_TRY(tsr_result_series(r->result, "", &series, err));
    TSR_TRY(tsr_read_object(r, "a tensor", kFields, p, &rest, err));
    if (p->row.name == NULL || p->state == NULL)
        return tsr_refuse_value(r, err, "a name is null");
    tsr_row *row;
    TSR_TRY(tsr_result_add_row(r->result, series, &row, err));
    tsr_finish_figures(p->row.figures);
    p->row.series = series;
    p->row.note = p->state;
    p->row.dtype = tsr_dtypes_text(&r->result->arena, p->a.dtype, p->b.dtype);
    p->row.shape = p->a.shape != NULL ? p->a.shape : p->b.shape;
    if (strcmp(p->state, "misshaped") == 0)
        p->row.shape_b = p->b.shape;
    p->row.place = tsr_place_of(p->row.name);
    *row = p->row;
    return TSR_OK;
}

static tsr_status read_whole(tsr_reading *r, void *to, tsr_err *err)
{
    (void)to;
    return tsr_read_whole(r, "", NULL, err);
}

/* ---- verify ---- */

static tsr_status read_verified(tsr_reading *r, void *to, tsr_err *err)
{
    pair p;
    (void)to;
    TSR_TRY(read_pair(r, &p, err));
    r->result->rows[r->result->n_rows - 1].outcome = TSR_OUTCOME_PASSED; /* until a finding refers to it */
    return TSR_OK;
}

/* Connects findings with rows. Findings precede their tensors in the file. */
static tsr_status link_findings(tsr_result *result, tsr_err *err)
{
    if (result->n_findings == 0)
        return TSR_OK;
    uint32_t *const order = tsr_rows_by_name(result);
    if (order == NULL)
        return tsr_out_of_memory(err, NULL);
    for (size_t i = 0; i < result->n_findings; i++) {
        const tsr_row *const row = tsr_find_row(result, order, result->findings[i].where);
        if (row == NULL)
            continue;
        result->findings[i].row = (uint32_t)(row - result->rows);
        result->rows[row - result->rows].outcome = TSR_OUTCOME_FAILED;
    }
    free(order);
    return TSR_OK;
}

tsr_status tsr_read_verify(tsr_reading *r, void *to, tsr_err *err)
{
    static const tsr_field kFields[] = {
        TSR_HEAD_FIELDS,
        {"whole", read_whole, 0, TSR_NEEDED},
        {"judged", tsr_read_judged, 0, TSR_NEEDED},
        {"findings", tsr_read_finding, 0, TSR_NEEDED | TSR_EACH},
        {"tensors", read_verified, 0, TSR_NEEDED | TSR_EACH},
        {0},
    };
    TSR_TRY(tsr_read_facts(r, "the result", kFields, to, NULL, err));
    return link_findings(to, err);
}

tsr_status tsr_read_verify_manifest(tsr_reading *r, void *to, tsr_err *err)
{
    static const tsr_field kFields[] = {
        TSR_HEAD_FIELDS,
        {"judged", tsr_read_judged, 0, TSR_NEEDED},
        {"findings", tsr_read_finding, 0, TSR_NEEDED | TSR_EACH},
        {0},
    };
    return tsr_read_facts(r, "the result", kFields, to, NULL, err);
}

/* ---- diff ---- */

static tsr_status read_different(tsr_reading *r, void *to, tsr_err *err)
{
    pair p;
    tsr_result *const result = to;
    TSR_TRY(read_pair(r, &p, err));
    const uint32_t row = (uint32_t)(result->n_rows - 1);
    result->rows[row].outcome = p.beyond ? TSR_OUTCOME_FAILED : TSR_OUTCOME_PASSED;
    if (!p.beyond)
        return TSR_OK;
    result->outcome = TSR_OUTCOME_FAILED;
    return tsr_find_fault(r, "tolerance", row, err);
}

tsr_status tsr_read_diff(tsr_reading *r, void *to, tsr_err *err)
{
    static const tsr_field kFields[] = {
        TSR_HEAD_FIELDS,
        {"whole", read_whole, 0, TSR_NEEDED},
        {"tensors", read_different, 0, TSR_NEEDED | TSR_EACH},
        {0},
    };
    tsr_result *const result = to;
    result->outcome = TSR_OUTCOME_PASSED;
    TSR_TRY(tsr_read_facts(r, "the result", kFields, to, NULL, err));
    return tsr_result_add_check(result, "tolerance", result->n_rows, err);
}
