/* Draws block maps in shades from light to dark, by powers of two. */
#include "report/write/terminal/terminal_parts.h"

#include "report/blocks.h"

#include <math.h>
#include <stdlib.h>

enum { INDENT = 8, MOST_LINES = 16, SHADES = 5, PEAKS = 3 };

/* Returns the largest code of the cells that a character covers. */
static uint8_t largest_in(const tsr_shown_map *m, uint64_t line, uint64_t lines, uint64_t column, uint64_t columns)
{
    uint8_t largest = 0;
    for (uint64_t r = line * m->rows / lines; r < (line + 1) * m->rows / lines; r++) {
        for (uint64_t c = column * m->cols / columns; c < (column + 1) * m->cols / columns; c++) {
            const uint8_t code = m->planes[TSR_BLOCK_ERROR][r * m->cols + c];
            largest = code > largest ? code : largest;
        }
    }
    return largest;
}

static void draw_map(tsr_text *text, const tsr_style *style, const tsr_shown_map *m, uint8_t low, uint8_t high)
{
    static const char *const kShades[2][SHADES] = {{".", ":", "+", "*", "#"},
                                                   {"\u00b7", "\u2591", "\u2592", "\u2593", "\u2588"}};
    const uint64_t lines = m->rows < MOST_LINES ? m->rows : MOST_LINES, room = style->width - INDENT;
    const uint64_t columns = m->cols < room ? m->cols : room;
    for (uint64_t line = 0; line < lines; line++) {
        tsr_text_printf(text, "%*s", INDENT, "");
        for (uint64_t column = 0; column < columns; column++) {
            const uint8_t code = largest_in(m, line, lines, column, columns);
            const unsigned span = high > low ? high - low : 1, above = code > low ? code - low : 0;
            const unsigned shade = above * (SHADES - 1) / span;
            tsr_text_printf(text, "%s", code == 0 ? " " : kShades[style->utf8][shade < SHADES ? shade : SHADES - 1]);
        }
        tsr_end_line(text);
    }
}

/* Finds the codes of the smallest error above zero, and of the largest, with the position of its first cell. */
static void find_range(const tsr_shown_map *m, uint8_t *low, uint8_t *high, uint64_t *at)
{
    *low = 255;
    *high = 0;
    *at = 0;
    for (uint64_t i = 0; i < m->rows * m->cols; i++) {
        const uint8_t code = m->planes[TSR_BLOCK_ERROR][i];
        *low = code > 0 && code < *low ? code : *low;
        *at = code > *high ? i : *at;
        *high = code > *high ? code : *high;
    }
}

static void draw_peaks(tsr_text *text, const tsr_style *style, const tsr_block_record *r)
{
    char place[96];
    tsr_text line = {0};
    for (unsigned i = 0; i < r->n_peaks && i < PEAKS; i++)
        tsr_text_printf(&line, "%s%.4g became %.4g at %s", i == 0 ? "largest errors: " : "; ", (double)r->peaks[i].x,
                        (double)r->peaks[i].y, tsr_element_place(&r->map, r->peaks[i].at, place));
    if (line.size > 0) {
        tsr_text_printf(text, "%*s", INDENT, "");
        tsr_draw_wrapped(text, style, INDENT, INDENT, line.data);
    }
    text->failed = text->failed || line.failed;
    tsr_text_free(&line);
}

static void draw_tensor(tsr_text *text, const tsr_style *style, const tsr_result *result, const tsr_shown_blocks *b)
{
    uint8_t low, high;
    uint64_t at;
    char place[96];
    tsr_text line = {0};
    find_range(&b->map, &low, &high, &at);
    if (high == 0)
        return;
    tsr_text_printf(text, "\n    errors of the blocks of ");
    tsr_draw_fitted(text, style, TSR_INK_NONE, result->rows[b->row].name, (int)style->width - 29);
    tsr_end_line(text);
    draw_map(text, style, &b->map, low, high);
    tsr_text_printf(&line, "from %.3g to %.3g; ", (double)tsr_block_decode(b->record.base[TSR_BLOCK_ERROR], low),
                    (double)tsr_block_decode(b->record.base[TSR_BLOCK_ERROR], high));
    const double step = exp2((high - low) / 16.0 / (SHADES - 1));
    if (step >= 1.01) /* smaller steps would be shown as 1 */
        tsr_text_printf(&line, "each step of shade is %.3g times the one before; ", step);
    tsr_text_printf(&line, "a cell is %llu x %llu elements; the worst begins at %s", U64(b->map.cell_rows),
                    U64(b->map.cell_cols), tsr_cell_place(b, at / b->map.cols, at % b->map.cols, place));
    tsr_text_printf(text, "%*s", INDENT, "");
    tsr_draw_line(text, style, INDENT, INDENT, &line);
    draw_peaks(text, style, &b->record);
}

void tsr_draw_blocks(tsr_text *text, const tsr_style *style, const tsr_overview *o)
{
    const tsr_result *const result = o->result;
    if (result->blocks == NULL)
        return;
    if (result->blocks->why_not != NULL) {
        tsr_text_printf(text, "\n    ");
        tsr_draw(text, style, TSR_INK_NOTABLE, "no maps of blocks: ");
        tsr_draw_wrapped(text, style, 23, 6, result->blocks->why_not);
        return;
    }
    const tsr_shown_blocks *const worst = o->n_blocks == 0 ? NULL : tsr_blocks_of(result, o->blocks[0]);
    if (worst != NULL)
        draw_tensor(text, style, result, worst);
}
