/* Opens and compares two checkpoints, and writes the result as JSON. */
#include "cli/show/compare_sides.h"

#include "cli/io/globs.h"
#include "cli/show/compare_figures.h"
#include "formats/json/json_write.h"
#include "report/read/read.h"

#include <stdio.h>
#include <string.h>

void tsr_compare_job_options(tsr_compare_job *job, tsr_option *options)
{
    const tsr_option shared[] = {
        {"--tensors", TSR_OPT_LIST, &job->tensors, "GLOB",
         "only tensors with these names (*, ?, [0-3]: docs/policy.md); may be repeated"},
        {0},
    };
    tsr_options_append(options, shared);
}

/* Returns the name of a weight of either side. */
static const char *name_of(const void *context, size_t i)
{
    const tsr_weights *const sides = context;
    const tsr_weights *const side = i < sides[0].count ? &sides[0] : &sides[1];
    return side->items[side == sides ? i : i - sides[0].count].values->name;
}

tsr_status tsr_compare_job_open(tsr_compare_job *job, const tsr_command_context *c, tsr_err *err)
{
    for (size_t i = 0; i < 2; i++) {
        TSR_TRY(tsr_checkpoint_open(&job->checkpoint[i], job->path[i], NULL, 0, err));
        TSR_TRY(tsr_rank_file_read(&job->manifest[i], job->checkpoint[i], &job->arena, err));
        TSR_TRY(tsr_weights_pair_or(&job->weights[i], job->checkpoint[i], c->common.block, err));
        if (job->weights[i].warning != NULL)
            tsr_command_warn(c, job->weights[i].warning);
    }
    TSR_TRY(tsr_weights_refuse_block(job->weights, 2, c->common.block, err));
    return tsr_check_tensor_globs(job->tensors.items, job->tensors.count, name_of, job->weights,
                                  job->weights[0].count + job->weights[1].count, err);
}

tsr_status tsr_compare_job_run(tsr_compare_job *job, const tsr_command_context *c, tsr_terminal *terminal, tsr_err *err)
{
    const tsr_side side[] = {{job->checkpoint[0], &job->weights[0]}, {job->checkpoint[1], &job->weights[1]}};
    const tsr_compare_options options = {
        .globs = job->tensors.items,
        .n_globs = job->tensors.count,
        .run = tsr_terminal_run_options(terminal, c->common.threads, c->common.memory),
        .ranks = c->ranks,
    };
    return tsr_compare(&side[0], &side[1], &options, &job->comparison, err);
}

void tsr_compare_job_close(tsr_compare_job *job)
{
    tsr_comparison_free(&job->comparison);
    tsr_arena_free(&job->arena);
    for (size_t i = 0; i < 2; i++) {
        tsr_weights_free(&job->weights[i]);
        tsr_checkpoint_close(job->checkpoint[i]);
    }
}

const char *tsr_pair_state_name(tsr_pair_state state)
{
    static const char *const kNames[] = {
        [TSR_PAIR_IDENTICAL] = "identical", [TSR_PAIR_EQUAL] = "equal",     [TSR_PAIR_DIFFERS] = "differs",
        [TSR_PAIR_MISSHAPED] = "misshaped", [TSR_PAIR_MISSING] = "missing", [TSR_PAIR_EXTRA] = "extra",
    };
    return kNames[state];
}

/* Writes "rows 128..255, columns 0..127" (", matrix 3" in a stack) into `text`, at least 192 bytes. Returns text. */
static const char *tile_text(const tsr_tile_metrics *tile, const tsr_pair *pair, char *text, size_t size)
{
    const int n = snprintf(text, size, "rows %llu..%llu, columns %llu..%llu", U64(tile->row),
                           U64(tile->row + tile->rows - 1), U64(tile->col), U64(tile->col + tile->cols - 1));
    if (pair->a->values->rank > 2)
        snprintf(text + n, size - (size_t)n, " of matrix %llu", U64(tile->matrix));
    return text;
}

static void range_json(tsr_text *t, const char *key, uint64_t first, uint64_t count)
{
    tsr_json_member_u64s(t, key, (const uint64_t[]){first, first + count}, 2);
}

static void tile_json(tsr_text *t, const tsr_tile_metrics *tile)
{
    tsr_json_begin_object(t, true);
    tsr_json_member_u64(t, "matrix", tile->matrix);
    range_json(t, "rows", tile->row, tile->rows);
    range_json(t, "columns", tile->col, tile->cols);
    tsr_json_member_u64(t, "differ", tile->differ);
    tsr_json_member_number(t, "relative_error", tile->relative);
    tsr_json_member_number(t, "max_abs_error", tile->max_abs);
    tsr_json_end_object(t);
}

static void side_json(tsr_text *t, const char *key, const tsr_weight *w)
{
    if (w == NULL)
        return;
    char shape[192];
    tsr_json_member_object(t, key, true);
    tsr_json_member_string(t, "dtype", tsr_dtype_name((tsr_dtype)w->data->dtype));
    tsr_json_key(t, "shape");
    tsr_shape_text(w->data, shape, sizeof shape);
    tsr_json_raw(t, shape, strlen(shape));
    tsr_json_end_object(t);
}

static void place_json(tsr_text *t, const char *key, const tsr_pair *pair, uint64_t index)
{
    char at[192];
    tsr_pair_coordinates(pair, index, at, sizeof at);
    tsr_json_key(t, key);
    tsr_json_raw(t, at, strlen(at));
}

void tsr_pair_json(tsr_text *t, const tsr_pair *pair)
{
    const tsr_metrics *const m = &pair->metrics;
    double figures[TSR_N_FIGURES];
    tsr_json_member_string(t, "name", tsr_pair_name(pair));
    tsr_json_member_string(t, "state", tsr_pair_state_name(pair->state));
    side_json(t, "a", pair->a);
    side_json(t, "b", pair->b);
    if (pair->state != TSR_PAIR_DIFFERS)
        return;
    tsr_metrics_figures(figures, m);
    tsr_compare_figures_json(t, figures);
    place_json(t, "max_abs_error_at", pair, m->max_abs_at);
    for (unsigned side = 0; side < 2; side++) {
        if (m->nonfinite[side] > 0)
            place_json(t, side == 0 ? "nonfinite_a_at" : "nonfinite_b_at", pair, m->nonfinite_at[side]);
    }
    tsr_json_member_array(t, "worst_blocks", false);
    for (size_t i = 0; i < m->n_worst; i++)
        tile_json(t, &m->worst[i]);
    tsr_json_end_array(t);
}

/* Returns NULL if the side has no tensor. */
static const char *dtype_of(const tsr_weight *w)
{
    return w == NULL ? NULL : tsr_dtype_name((tsr_dtype)w->data->dtype);
}

/* Copies the dtypes of both sides, "BF16 to F8_E4M3", and their shapes. */
static void fill_sides(tsr_row *row, const tsr_pair *pair, tsr_arena *arena)
{
    const tsr_weight *const first = pair->a != NULL ? pair->a : pair->b;
    char shape[192];
    row->dtype = tsr_dtypes_text(arena, dtype_of(pair->a), dtype_of(pair->b));
    row->shape = tsr_arena_printf(arena, "%s", tsr_shape_text(first->data, shape, sizeof shape));
    if (pair->state == TSR_PAIR_MISSHAPED)
        row->shape_b = tsr_arena_printf(arena, "%s", tsr_shape_text(pair->b->data, shape, sizeof shape));
}

tsr_status tsr_compare_fill_row(tsr_result *result, const tsr_pair *pair, tsr_row **row, tsr_err *err)
{
    const tsr_metrics *const m = &pair->metrics;
    char place[192];
    TSR_TRY(tsr_result_add_row(result, 0, row, err));
    (*row)->name = tsr_pair_name(pair);
    (*row)->note = tsr_pair_state_name(pair->state);
    (*row)->place = tsr_place_of((*row)->name);
    fill_sides(*row, pair, &result->arena);
    if (pair->state == TSR_PAIR_DIFFERS) {
        tsr_metrics_figures((*row)->figures, m);
        (*row)->error_at =
            tsr_arena_printf(&result->arena, "%s", tsr_pair_coordinates(pair, m->max_abs_at, place, sizeof place));
        if (m->n_worst > 0) {
            (*row)->block_at =
                tsr_arena_printf(&result->arena, "%s", tile_text(&m->worst[0], pair, place, sizeof place));
            (*row)->figures[TSR_FIGURE_WORST_BLOCK] = m->worst[0].relative;
            (*row)->block_max = m->worst[0].max_abs;
        }
    }
    return tsr_arena_status(&result->arena, TSR_OK, err);
}

tsr_status tsr_compare_begin_result(tsr_result *result, const char *schema, const tsr_comparison *comparison,
                                    tsr_err *err)
{
    tsr_metrics whole = {0};
    uint32_t at;
    for (size_t i = 0; i < comparison->count; i++) {
        if (comparison->pairs[i].state == TSR_PAIR_DIFFERS)
            tsr_metrics_add(&whole, &comparison->pairs[i].metrics);
    }
    result->kind = tsr_result_kind_of(schema);
    TSR_TRY(tsr_result_series(result, "", &at, err));
    result->series[at].has_whole = true;
    tsr_metrics_figures(result->series[at].whole.figures, &whole);
    return TSR_OK;
}
