/* Divides rows and columns into whole tiles, which a variant decodes, and the rest, which the definition decodes. The
 * including file first defines decode_tile(), which decodes TILE_ROWS x TILE_COLS, and TSR_INT4(name), the name of the
 * function to define. */
enum { LINE = 16 }; /* words */

/* Returns the part of `x` from [row, col] on; columns begin at a whole word. */
static tsr_int4_columns part_of(const tsr_int4_columns *x, size_t row, size_t rows, size_t col, size_t cols)
{
    tsr_int4_columns part = *x;
    part.words += col / 8 * x->ld_words + row;
    part.rows = rows;
    part.cols = cols;
    part.group += col;
    part.scale += row;
    part.offset += row;
    return part;
}

/* Prefetches as many lines as a tile has, in memory order, because the rows of a tile are too far apart for the
 * hardware prefetcher. Rows should be whole tiles wide; otherwise some adjacent lines are prefetched too. */
ALWAYS_INLINE void ask_for_tile(tsr_words_ahead *ahead)
{
    enum { WORDS = TILE_ROWS * TILE_COLS / 8 };
    if (ahead->rows == 0)
        return;
    for (size_t i = 0; i < WORDS; i += LINE)
        __builtin_prefetch(ahead->at + ahead->asked + i, 0, 2);
    ahead->asked += WORDS;
    if (ahead->asked >= ahead->cols) {
        ahead->asked = 0;
        ahead->at += ahead->ld;
        ahead->rows--;
    }
}

void TSR_INT4(decode_int4_columns_bf16)(const tsr_int4_columns *x, uint16_t *y, size_t ld)
{
    const size_t tiled_rows = x->rows / TILE_ROWS * TILE_ROWS, tiled_cols = x->cols / TILE_COLS * TILE_COLS;
    tsr_words_ahead ahead = x->ahead == NULL ? (tsr_words_ahead){0} : *x->ahead;
    for (size_t r = 0; r < tiled_rows; r += TILE_ROWS) {
        for (size_t c = 0; c < tiled_cols; c += TILE_COLS) {
            const tsr_int4_columns tile = part_of(x, r, TILE_ROWS, c, TILE_COLS);
            ask_for_tile(&ahead);
            decode_tile(&tile, y + r * ld + c, ld);
        }
    }
    if (x->ahead != NULL)
        *x->ahead = ahead;
    const tsr_int4_columns right = part_of(x, 0, tiled_rows, tiled_cols, x->cols - tiled_cols);
    const tsr_int4_columns below = part_of(x, tiled_rows, x->rows - tiled_rows, 0, x->cols);
    tsr_decode_int4_columns_bf16_ref(&right, y + tiled_cols, ld);
    tsr_decode_int4_columns_bf16_ref(&below, y + tiled_rows * ld, ld);
}
