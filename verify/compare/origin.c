/* Compares one tile of each candidate: its values as stored, and block by block with the best scale. */
#include "verify/compare/origin.h"

#include "common/checked.h"

#include <math.h>
#include <string.h>

/* Limit on the share of a block's values that no scale explains. Matching tensors have 0.03 (e4m3) to 0.15 (int4),
 * others nearly 1. */
static const double kSameCodes = 0.5;

double tsr_same_values(const tsr_weight *weight)
{
    return weight->scale != NULL && weight->bits == 4 ? 0.4 : 0.1;
}

/* Distance between two tiles, as stored and after each block is given its best scale. */
typedef struct likeness {
    double values, codes;
} likeness;

static tsr_status load_sample(tsr_weight_reader *r, tsr_view *view, const tsr_side *side, const tsr_weight *w,
                              tsr_err *err)
{
    TSR_TRY(tsr_view_init(view, side->checkpoint, w, err));
    const tsr_piece piece = {.rows = tsr_min_u64(view->rows, TSR_TILE), .cols = tsr_min_u64(view->cols, TSR_TILE)};
    return tsr_weight_reader_load(r, view, &piece, err);
}

/* Adds one block of the tile: sum x^2, sum (x - y)^2, and the rest of x after subtracting the best multiple of y. */
static void add_block(const tsr_weight_reader *a, const tsr_weight_reader *b, const tsr_piece *block, double sums[3])
{
    double x[TSR_TILE], y[TSR_TILE], x2 = 0, y2 = 0, xy = 0, d2 = 0;
    for (uint64_t row = 0; row < block->rows; row++) {
        tsr_weight_reader_row(a, block->row + row, block->col, (size_t)block->cols, x);
        tsr_weight_reader_row(b, block->row + row, block->col, (size_t)block->cols, y);
        for (size_t i = 0; i < block->cols; i++) {
            if (!isfinite(x[i]) || !isfinite(y[i]))
                continue;
            x2 += x[i] * x[i];
            y2 += y[i] * y[i];
            xy += x[i] * y[i];
            d2 += (x[i] - y[i]) * (x[i] - y[i]);
        }
    }
    sums[0] += x2;
    sums[1] += d2;
    sums[2] += y2 > 0 && xy > 0 ? x2 - xy / y2 * xy : x2;
}

static likeness compare(const tsr_weight_reader *a, const tsr_weight_reader *b)
{
    const tsr_view *const v = b->view;
    const uint64_t rows = v->weight.scale == NULL ? TSR_TILE : tsr_min_u64(v->block.rows, TSR_TILE);
    const uint64_t cols = v->weight.scale == NULL ? TSR_TILE : tsr_min_u64(v->block.cols, TSR_TILE);
    double sums[3] = {0};
    tsr_piece block;
    for (block.row = 0; block.row < b->piece.rows; block.row += rows) {
        block.rows = tsr_min_u64(rows, b->piece.rows - block.row);
        for (block.col = 0; block.col < b->piece.cols; block.col += cols) {
            block.cols = tsr_min_u64(cols, b->piece.cols - block.col);
            add_block(a, b, &block, sums);
        }
    }
    return sums[0] > 0 ? (likeness){sqrt(sums[1] / sums[0]), sqrt(fmax(sums[2], 0) / sums[0])}
                       : (likeness){INFINITY, INFINITY};
}

tsr_status tsr_find_origin(const tsr_side *src, const tsr_side *dst, const tsr_weight *weight, tsr_origin *origin,
                           tsr_err *err)
{
    tsr_weight_reader mine = {0}, other = {0};
    tsr_view view, candidate;
    likeness closest = {tsr_same_values(weight), weight->scale == NULL ? 0 : kSameCodes};
    *origin = (tsr_origin){0};
    tsr_status status = load_sample(&mine, &view, dst, weight, err);
    for (size_t i = 0; status == TSR_OK && tsr_tensor_elements(weight->data) > 0 && i < src->weights->count; i++) {
        const tsr_weight *const x = &src->weights->items[i];
        if (!tsr_same_shape(x->values, weight->values))
            continue;
        status = load_sample(&other, &candidate, src, x, err);
        if (status != TSR_OK)
            break;
        const likeness found = compare(&other, &mine);
        if (found.values < closest.values) {
            closest.values = found.values;
            origin->values = x;
        }
        if (found.codes < closest.codes) {
            closest.codes = found.codes;
            origin->codes = x;
        }
    }
    tsr_weight_reader_free(&mine);
    tsr_weight_reader_free(&other);
    return status;
}
