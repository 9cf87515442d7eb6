/* Reads one tile in each of the wrong ways that its coding allows, to find a known mistake. */
#include "verify/compare/misreadings.h"

#include "common/checked.h"

/* A mistake is accepted if it leaves at most one in LEFT of the codes that are misrounded without it. */
enum { LEFT = 8, FEWEST = 16 };

const char *tsr_misreading_text(tsr_misreading misreading)
{
    static const char *const kTexts[TSR_MISREADINGS] = {
        [TSR_AS_STORED] = "",
        [TSR_NIBBLES_SWAPPED] = "the odd column of each pair is in the low four bits, where the even column belongs",
        [TSR_AWQ_IN_ORDER] = "codes and zero points are in plain order, without AWQ's interleaving",
        [TSR_CODES_IN_ORDER] = "codes are in plain order, without AWQ's interleaving",
        [TSR_GROUPS_IN_ORDER] = "codes were made with groups in column order, not in that of g_idx",
        [TSR_ZEROS_HIGHER] = "zero points are one too low",
        [TSR_ZEROS_LOWER] = "zero points are one too high",
        [TSR_GLOBAL_INVERTED] = "the global scale is inverted: stored as a factor instead of a divisor, or the reverse",
    };
    return kTexts[misreading];
}

static bool applies(tsr_misreading misreading, const tsr_weight *w)
{
    switch (misreading) {
    case TSR_NIBBLES_SWAPPED:
        return w->coding == TSR_CODED_E2M1 || w->coding == TSR_CODED_NIBBLES ||
               (w->coding == TSR_CODED_PACKED && w->bits == 4);
    case TSR_AWQ_IN_ORDER:
    case TSR_CODES_IN_ORDER:
        return w->coding == TSR_CODED_AWQ;
    case TSR_GROUPS_IN_ORDER:
        return w->reordered;
    case TSR_ZEROS_HIGHER:
    case TSR_ZEROS_LOWER:
        return w->zero_point != NULL;
    case TSR_GLOBAL_INVERTED:
        return w->global_scale != NULL;
    default:
        return false;
    }
}

/* Returns the tile with the first misrounded code. */
static tsr_piece sample_of(const tsr_view *v, uint64_t at)
{
    const uint64_t row = at / v->cols % v->rows / TSR_TILE * TSR_TILE, col = at % v->cols / TSR_TILE * TSR_TILE;
    return (tsr_piece){.matrix = at / v->cols / v->rows,
                       .row = row,
                       .col = col,
                       .rows = tsr_min_u64(TSR_TILE, v->rows - row),
                       .cols = tsr_min_u64(TSR_TILE, v->cols - col)};
}

/* Counts codes of the sample that are not the nearest, as read by `y`. */
static tsr_status count_misrounded(const tsr_weight_reader *x, tsr_weight_reader *r, const tsr_view *y,
                                   const tsr_piece *piece, uint64_t *count, tsr_err *err)
{
    double a[TSR_TILE], b[TSR_TILE];
    size_t first;
    *count = 0;
    TSR_TRY(tsr_weight_reader_load(r, y, piece, err));
    for (uint64_t row = 0; row < piece->rows; row++) {
        tsr_weight_reader_row(x, row, 0, (size_t)piece->cols, a);
        tsr_weight_reader_row(r, row, 0, (size_t)piece->cols, b);
        *count += tsr_weight_reader_misrounded(r, row, 0, (size_t)piece->cols, a, b, &first);
    }
    return TSR_OK;
}

tsr_status tsr_find_misreading(const tsr_side *a, const tsr_side *b, const tsr_pair *pair, tsr_misreading *found,
                               tsr_err *err)
{
    tsr_view x, y;
    tsr_weight_reader readers[2] = {{0}};
    uint64_t stored = 0, count = 0;
    tsr_status status;
    *found = TSR_AS_STORED;
    TSR_TRY(tsr_pair_view(&x, a, pair, 0, err));
    TSR_TRY(tsr_pair_view(&y, b, pair, 1, err));
    const tsr_piece piece = sample_of(&y, pair->metrics.misrounded_at);
    TSR_GOTO(tsr_weight_reader_load(&readers[0], &x, &piece, err));
    TSR_GOTO(count_misrounded(&readers[0], &readers[1], &y, &piece, &stored, err));
    for (tsr_misreading m = TSR_AS_STORED + 1; stored >= FEWEST && m < TSR_MISREADINGS; m++) {
        if (!applies(m, pair->b))
            continue;
        y.misreading = m;
        TSR_GOTO(count_misrounded(&readers[0], &readers[1], &y, &piece, &count, err));
        if (count <= stored / LEFT) {
            *found = m;
            break;
        }
    }
out:
    tsr_weight_reader_free(&readers[0]);
    tsr_weight_reader_free(&readers[1]);
    return status;
}
