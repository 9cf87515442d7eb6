/* Loads scales, zero points and groups of a piece, in the order of the values. */
#include "verify/values/reader_parts.h"

#include <stdlib.h>
#include <string.h>

enum { WORD_BITS = 32 };

/* Return the rows and columns of scales in the orientation of the values: as stored, or the transpose. */
static uint64_t grid_rows(const tsr_view *v)
{
    return v->weight.transposed ? v->weight.grid_cols : v->weight.grid_rows;
}

static uint64_t grid_cols(const tsr_view *v)
{
    return v->weight.transposed ? v->weight.grid_rows : v->weight.grid_cols;
}

static bool is_reordered(const tsr_view *v)
{
    return v->weight.reordered && v->misreading != TSR_GROUPS_IN_ORDER;
}

/* Finds the blocks that a piece touches: all groups of a row if columns have a group order. */
static void find_window(tsr_weight_reader *r)
{
    const tsr_view *const v = r->view;
    const tsr_piece *const p = &r->piece;
    r->first_row = p->row / v->block.rows;
    r->first_col = is_reordered(v) ? 0 : p->col / v->block.cols;
    r->scale_rows = (p->row + p->rows - 1) / v->block.rows - r->first_row + 1;
    r->scale_cols = is_reordered(v) ? grid_cols(v) : (p->col + p->cols - 1) / v->block.cols - r->first_col + 1;
}

uint64_t tsr_reader_scales_memory(const tsr_view *v, const tsr_piece *piece)
{
    if (v->weight.scale == NULL)
        return 0;
    const uint64_t down = piece->rows / v->block.rows + 2; /* for any position of the piece */
    const uint64_t across = v->weight.reordered ? grid_cols(v) : piece->cols / v->block.cols + 2;
    const uint64_t groups = v->weight.reordered ? piece->cols * (sizeof(uint32_t) + 2 * sizeof(double)) : 0;
    return down * across * (2 * sizeof(double) + 2 * sizeof(uint64_t)) + groups;
}

static tsr_status make_room(tsr_weight_reader *r, uint64_t n, tsr_err *err)
{
    if (n <= r->scales_capacity)
        return TSR_OK;
    free(r->scales);
    free(r->zero_points);
    free(r->raw_scales);
    r->scales = malloc(n * sizeof *r->scales);
    r->zero_points = calloc(n, sizeof *r->zero_points);
    /* enough for as many words, and for words that a window covers partly */
    r->raw_scales = malloc(n * sizeof(uint64_t));
    r->scales_capacity = r->scales != NULL && r->zero_points != NULL && r->raw_scales != NULL ? n : 0;
    return r->scales_capacity > 0
               ? TSR_OK
               : tsr_fail(err, TSR_E_NOMEM, "out of memory for the scales of '%s'", r->view->weight.data->name);
}

/* ---- scales ---- */

/* Loads the window of scales as stored: a line of it is a row or, if the view is transposed, a column. */
static tsr_status load_stored(tsr_weight_reader *r, tsr_err *err)
{
    const tsr_view *const v = r->view;
    const tsr_weight *const w = &v->weight;
    const tsr_dtype dtype = (tsr_dtype)w->scale_dtype;
    const size_t width = tsr_dtype_bytes(dtype);
    const uint64_t matrix = w->one_scale ? 0 : r->piece.matrix, n = r->scale_rows * r->scale_cols;
    if (!tsr_view_lies_across(v)) {
        const uint64_t first = (matrix * grid_rows(v) + r->first_row) * grid_cols(v) + r->first_col;
        TSR_TRY(tsr_read_runs(v, w->scale, first * width, r->scale_rows, r->scale_cols * width, grid_cols(v) * width,
                              r->raw_scales, err));
        tsr_decode((unsigned char)dtype, r->raw_scales, n, r->scales);
        return TSR_OK;
    }
    const uint64_t first = (matrix * grid_cols(v) + r->first_col) * grid_rows(v) + r->first_row;
    TSR_TRY(tsr_read_runs(v, w->scale, first * width, r->scale_cols, r->scale_rows * width, grid_rows(v) * width,
                          r->raw_scales, err));
    double *const stored = r->zero_points; /* zero points are read after this */
    tsr_decode((unsigned char)dtype, r->raw_scales, n, stored);
    for (uint64_t i = 0; i < r->scale_rows; i++) {
        for (uint64_t k = 0; k < r->scale_cols; k++)
            r->scales[i * r->scale_cols + k] = stored[k * r->scale_rows + i];
    }
    return TSR_OK;
}

/* Computes scale * global or scale / global in FP32, as the format defines it. */
static tsr_status apply_global(tsr_weight_reader *r, tsr_err *err)
{
    const tsr_weight *const w = &r->view->weight;
    const bool divides = w->global_divides != (r->view->misreading == TSR_GLOBAL_INVERTED);
    const uint64_t at = tsr_tensor_elements(w->global_scale) > 1 ? r->piece.matrix : 0;
    float global;
    TSR_TRY(tsr_checkpoint_read(r->view->checkpoint, w->global_scale, at * sizeof global, &global, sizeof global, err));
    for (uint64_t i = 0; i < r->scale_rows * r->scale_cols; i++) {
        const float scale = (float)r->scales[i];
        r->scales[i] = (double)(divides ? scale / global : scale * global);
    }
    r->global = divides ? 1 / (double)global : (double)global;
    return TSR_OK;
}

/* ---- zero points ---- */

static double middle_of(const tsr_weight *w)
{
    return (double)(1u << (w->bits - 1));
}

/* Loads zero points as packed by compressed-tensors along the rows: a row of words has those of 32 / bits rows. */
static tsr_status load_packed_zeros(tsr_weight_reader *r, tsr_err *err)
{
    const tsr_weight *const w = &r->view->weight;
    const uint64_t per_word = WORD_BITS / w->bits;
    for (uint64_t i = 0; i < r->scale_rows; i++) {
        const uint64_t row = r->first_row + i, shift = row % per_word * w->bits;
        if (i == 0 || row % per_word == 0)
            TSR_TRY(tsr_checkpoint_read(r->view->checkpoint, w->zero_point,
                                        (row / per_word * w->grid_cols + r->first_col) * sizeof(uint32_t),
                                        r->raw_scales, r->scale_cols * sizeof(uint32_t), err));
        for (uint64_t k = 0; k < r->scale_cols; k++) {
            uint32_t word;
            memcpy(&word, r->raw_scales + k * sizeof word, sizeof word);
            const uint32_t code = word >> shift & ((1u << w->bits) - 1);
            r->zero_points[i * r->scale_cols + k] = (double)code - middle_of(w);
        }
    }
    return TSR_OK;
}

/* Loads zero points of AWQ and GPTQ: one line per group. */
static tsr_status load_zeros_across(tsr_weight_reader *r, tsr_err *err)
{
    const tsr_view *const v = r->view;
    const tsr_weight *const w = &v->weight;
    const tsr_span line = tsr_span_of(0, grid_rows(v), w->bits, WORD_BITS),
                   span = tsr_span_of(r->first_row, r->scale_rows, w->bits, WORD_BITS);
    unsigned char *const words = malloc(r->scale_cols * (span.bytes + r->scale_rows));
    if (words == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "out of memory for the zero points of '%s'", w->data->name);
    unsigned char *const codes = words + r->scale_cols * span.bytes;
    const tsr_status status = tsr_read_runs(v, w->zero_point, r->first_col * line.bytes + span.first, r->scale_cols,
                                            span.bytes, line.bytes, words, err);
    if (status == TSR_OK) {
        const tsr_lines lines = {.order = tsr_view_zero_order(v),
                                 .bits = w->bits,
                                 .bytes = words,
                                 .pitch = (size_t)span.bytes,
                                 .row = (size_t)(r->first_row % (WORD_BITS / w->bits))};
        tsr_unpack(&lines, (size_t)r->scale_rows, (size_t)r->scale_cols, codes);
        for (uint64_t i = 0; i < r->scale_rows * r->scale_cols; i++)
            r->zero_points[i] = (double)codes[i] + w->zeros_less_one - middle_of(w);
    }
    free(words);
    return status;
}

static tsr_status load_zero_points(tsr_weight_reader *r, tsr_err *err)
{
    const tsr_weight *const w = &r->view->weight;
    const bool is_unsigned = w->coding == TSR_CODED_AWQ || w->coding == TSR_CODED_GPTQ;
    const uint64_t n = r->scale_rows * r->scale_cols;
    tsr_status status = TSR_OK;
    if (w->zero_point == NULL) {
        for (uint64_t i = 0; i < n; i++)
            r->zero_points[i] = is_unsigned ? -middle_of(w) : 0;
    } else if (is_unsigned) {
        status = load_zeros_across(r, err);
    } else if (w->coding == TSR_CODED_PACKED) {
        status = load_packed_zeros(r, err);
    } else {
        const size_t width = tsr_dtype_bytes((tsr_dtype)w->zero_point->dtype);
        status = tsr_read_runs(r->view, w->zero_point, (r->first_row * w->grid_cols + r->first_col) * width,
                               r->scale_rows, r->scale_cols * width, w->grid_cols * width, r->raw_scales, err);
        if (status == TSR_OK)
            tsr_decode(w->zero_point->dtype, r->raw_scales, n, r->zero_points);
    }
    const double mistake = r->view->misreading == TSR_ZEROS_HIGHER  ? 1
                           : r->view->misreading == TSR_ZEROS_LOWER ? -1
                                                                    : 0;
    for (uint64_t i = 0; status == TSR_OK && mistake != 0 && i < n; i++)
        r->zero_points[i] += mistake;
    return status;
}

/* ---- groups ---- */

static tsr_status load_groups(tsr_weight_reader *r, tsr_err *err)
{
    const tsr_weight *const w = &r->view->weight;
    const tsr_tensor *const t = w->group_index;
    const size_t width = tsr_dtype_bytes((tsr_dtype)t->dtype);
    const uint64_t n = r->piece.cols;
    TSR_TRY(tsr_reader_room((void **)&r->groups, &r->groups_capacity, n, sizeof *r->groups, r->view, err));
    double *const values = malloc(n * (sizeof *values + width));
    if (values == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "out of memory for '%s'", t->name);
    unsigned char *const bytes = (unsigned char *)(values + n);
    tsr_status status = tsr_checkpoint_read(r->view->checkpoint, t, r->piece.col * width, bytes, n * width, err);
    if (status == TSR_OK)
        tsr_decode(t->dtype, bytes, (size_t)n, values);
    for (uint64_t i = 0; status == TSR_OK && i < n; i++) {
        if (!(values[i] >= 0 && values[i] < (double)w->grid_cols))
            status = tsr_fail_as(err, TSR_ERROR_DAMAGED, TSR_E_FORMAT,
                                 "%s: '%s': column %llu has the group index %g, but the number of groups is %llu: the "
                                 "checkpoint is damaged",
                                 r->view->checkpoint->files[t->file].path, t->name, U64(r->piece.col + i), values[i],
                                 U64(w->grid_cols));
        else
            r->groups[i] = (uint32_t)values[i];
    }
    free(values);
    return status;
}

tsr_status tsr_reader_load_scales(tsr_weight_reader *r, tsr_err *err)
{
    const tsr_weight *const w = &r->view->weight;
    find_window(r);
    TSR_TRY(make_room(r, r->scale_rows * r->scale_cols, err));
    TSR_TRY(load_stored(r, err));
    r->global = 0;
    if (w->global_scale != NULL)
        TSR_TRY(apply_global(r, err));
    TSR_TRY(load_zero_points(r, err));
    return is_reordered(r->view) ? load_groups(r, err) : TSR_OK;
}
