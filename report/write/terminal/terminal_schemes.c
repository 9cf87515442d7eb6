/* Draws the table of schemes with the tensors on which each of them loses most, and the table of plans. */
#include "report/write/terminal/terminal_parts.h"

#include <math.h>
#include <stdio.h>

/* Narrower styles show SQNR and bytes only. The widths of a line without the name of the scheme. */
enum { WIDE = 104, OTHERS = 66, FEW_OTHERS = 32, NAMES = 38, ONE = 9 };

/* Returns true if there are errors weighted by importance, which get a column of their own. */
static bool is_weighted(const tsr_result *result)
{
    for (size_t i = 0; i < result->n_series; i++) {
        if (!isnan(result->series[i].whole.figures[TSR_FIGURE_WEIGHTED_SQNR]))
            return true;
    }
    return false;
}

static unsigned others_of(const tsr_style *style, bool weighted)
{
    return (style->width >= WIDE ? OTHERS : FEW_OTHERS) + (weighted ? ONE : 0);
}

/* Returns the width of the column of names. */
static int names_of(const tsr_style *style, bool weighted)
{
    const unsigned rest = style->width - others_of(style, weighted);
    return (int)(rest < NAMES ? rest : NAMES);
}

static void draw_number(tsr_text *text, const char *format, int width, double value)
{
    char number[40] = "-";
    if (!isnan(value))
        snprintf(number, sizeof number, format, value);
    tsr_text_printf(text, " %*s", width, number);
}

static void draw_row(tsr_text *text, const tsr_style *style, const tsr_series *s, bool weighted)
{
    const double *const figures = s->whole.figures;
    char bytes[32], note[64] = "";
    tsr_text_printf(text, "  ");
    tsr_draw_fitted(text, style, TSR_INK_NONE, s->name, names_of(style, weighted));
    draw_number(text, "%.2f", 8, figures[TSR_FIGURE_SQNR]);
    if (weighted)
        draw_number(text, "%.2f", 8, figures[TSR_FIGURE_WEIGHTED_SQNR]);
    if (style->width >= WIDE) {
        draw_number(text, "%.5f", 10, figures[TSR_FIGURE_RELATIVE]);
        draw_number(text, "%.3g", 10, figures[TSR_FIGURE_MAX_ABS]);
        draw_number(text, "%.4f", 11, figures[TSR_FIGURE_WORST_BLOCK]);
    }
    tsr_text_printf(text, " %10s %8.1f%%", tsr_bytes_text(figures[TSR_FIGURE_BYTES], bytes), 100 * s->of_bf16);
    if (s->not_taken > 0)
        snprintf(note, sizeof note, "%llu tensors it does not take stay as they are", U64(s->not_taken));
    tsr_text_printf(text, "  ");
    tsr_draw_wrapped(text, style, (unsigned)names_of(style, weighted) + others_of(style, weighted) + 2, 6, note);
}

static void draw_worst(tsr_text *text, const tsr_style *style, const tsr_series *s, bool weighted)
{
    for (size_t i = 0; i < s->n_worst; i++) {
        tsr_text_printf(text, "  ");
        tsr_draw_fitted(text, style, TSR_INK_NONE, i == 0 ? s->name : "", names_of(style, weighted));
        draw_number(text, "%.5f", 10, s->worst[i].relative);
        tsr_text_printf(text, "  ");
        tsr_draw_fitted(text, style, TSR_INK_NONE, s->worst[i].name,
                        (int)style->width - names_of(style, weighted) - 15);
        tsr_end_line(text);
    }
}

void tsr_draw_schemes(tsr_text *text, const tsr_style *style, const tsr_result *result)
{
    if (result->n_series == 0 || result->series[0].of_bf16 == 0)
        return;
    const bool weighted = is_weighted(result);
    tsr_text_printf(text, "\n  %-*s %8s", names_of(style, weighted), "scheme", "SQNR dB");
    if (weighted)
        tsr_text_printf(text, " %8s", "weighted");
    if (style->width >= WIDE)
        tsr_text_printf(text, " %10s %10s %11s", "relative", "max error", "worst block");
    tsr_text_printf(text, " %10s %9s\n", "bytes", "of BF16");
    for (size_t i = 0; i < result->n_series; i++)
        draw_row(text, style, &result->series[i], weighted);
    tsr_text_printf(text, "\ntensors with the largest relative error of each scheme:\n");
    for (size_t i = 0; i < result->n_series; i++)
        draw_worst(text, style, &result->series[i], weighted);
}

void tsr_draw_plan(tsr_text *text, const tsr_style *style, const tsr_result *result)
{
    static const char *const kTitles[] = {
        [TSR_PLAN_ALONE] = "one scheme for all weights that it can quantize", [TSR_PLAN_CHOSEN] = "chosen"};
    for (size_t i = 0; i < result->n_plan; i++) {
        const tsr_plan_row *const row = &result->plan[i];
        char bytes[32];
        if (i == 0)
            tsr_text_printf(text, "\n  %8s %10s %12s\n", "bits", "bytes", "error");
        else if (row->kind != row[-1].kind)
            tsr_text_printf(text, "\n%s:\n", kTitles[row->kind]);
        tsr_text_printf(text, "  %8.3f %10s %12.6g   ", row->bits, tsr_bytes_text((double)row->bytes, bytes),
                        row->error);
        tsr_draw_wrapped(text, style, 37, 37, row->schemes == NULL ? "" : row->schemes);
    }
}
