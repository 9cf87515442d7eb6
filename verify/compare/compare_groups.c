/* Checks groups along rows, and gathers groups that run down columns. */
#include "verify/compare/compare_groups.h"

#include "common/checked.h"

uint64_t tsr_flat_index(const tsr_view *view, uint64_t matrix, uint64_t row, uint64_t col)
{
    return (matrix * view->rows + row) * view->cols + col;
}

/* Checks a group whose first value is at [row, col]. */
static void check_group(const tsr_weight_reader *r, const tsr_group_rule *rule, tsr_group *group, uint64_t matrix,
                        uint64_t row, uint64_t col, tsr_metrics *m)
{
    group->scale = tsr_weight_reader_scale(r, row - r->piece.row, col - r->piece.col);
    if (tsr_group_is_misscaled(rule, group, NULL) && m->misscaled++ == 0)
        m->misscaled_at = tsr_flat_index(r->view, matrix, row, col);
}

void tsr_check_groups_along(const tsr_weight_reader *r, const tsr_piece *chunk, uint64_t row, const double *x,
                            const double *y, const tsr_group_rule *rule, tsr_metrics *m)
{
    const uint64_t width = r->view->block.cols;
    for (uint64_t col = 0; col < chunk->cols; col += width) {
        tsr_group group = {.x = x + col, .y = y + col, .n = (size_t)tsr_min_u64(width, chunk->cols - col), .stride = 1};
        check_group(r, rule, &group, chunk->matrix, chunk->row + row, chunk->col + col, m);
    }
}

/* Checks the groups within a tile's width that begin `row` rows and `col` columns into the chunk. */
static void check_strip(const tsr_weight_reader readers[2], const tsr_piece *chunk, uint64_t row, uint64_t col,
                        const tsr_group_rule *rule, tsr_group_values *values, tsr_metrics *m)
{
    const tsr_weight_reader *const r = &readers[1];
    const size_t rows = (size_t)tsr_min_u64(r->view->block.rows, chunk->rows - row),
                 cols = (size_t)tsr_min_u64(TSR_TILE, chunk->cols - col);
    const uint64_t at_row = chunk->row + row, at_col = chunk->col + col;
    for (size_t i = 0; i < rows; i++) {
        const uint64_t line = at_row + i - r->piece.row, first = at_col - r->piece.col;
        tsr_weight_reader_row(&readers[0], line, first, cols, values->x + i * TSR_TILE);
        tsr_weight_reader_row(r, line, first, cols, values->y + i * TSR_TILE);
    }
    for (size_t i = 0; i < cols; i++) {
        tsr_group group = {.x = values->x + i, .y = values->y + i, .n = rows, .stride = TSR_TILE};
        check_group(r, rule, &group, chunk->matrix, at_row, at_col + i, m);
    }
}

void tsr_check_groups_down(const tsr_weight_reader readers[2], const tsr_piece *chunk, const tsr_group_rule *rule,
                           tsr_group_values *values, tsr_metrics *m)
{
    for (uint64_t row = 0; row < chunk->rows; row += readers[1].view->block.rows) {
        for (uint64_t col = 0; col < chunk->cols; col += TSR_TILE)
            check_strip(readers, chunk, row, col, rule, values, m);
    }
}
