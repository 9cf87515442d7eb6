/* Draws the judgements of kernels, of latent attention and of forward passes. */
#include "report/write/terminal/terminal_parts.h"

#include <math.h>
#include <string.h>

/* Values of `what` in a forward pass (docs/schemas/verify-forward.schema.json). */
static const char kStream[] = "stream of hidden states", kAlone[] = "layer alone", kLogits[] = "logits";

/* The width of a whole line about a layer. Narrower styles omit relative errors. */
enum { NAMES = 22, WIDE = 92 };

static bool is_judged(const tsr_row *row)
{
    return row->outcome != TSR_OUTCOME_SKIPPED;
}

static bool has_failed(const tsr_row *row)
{
    return row->outcome == TSR_OUTCOME_FAILED;
}

static void draw_word(tsr_text *text, const tsr_style *style, bool failed)
{
    tsr_draw_fitted(text, style, failed ? TSR_INK_BAD : TSR_INK_GOOD, failed ? "FAIL" : "ok", 5);
}

static void draw_judgement(tsr_text *text, const tsr_style *style, const tsr_row *row)
{
    const double *const f = row->figures;
    const char *const at = row->error_at == NULL ? "" : row->error_at;
    tsr_text line = {0};
    tsr_text_printf(text, "  ");
    draw_word(text, style, has_failed(row));
    tsr_text_printf(&line, "%-38s", row->what);
    if (f[TSR_FIGURE_ELEMENTS] > 0 && f[TSR_FIGURE_DIFFER] == 0)
        tsr_text_printf(&line, " %.0f values, all equal", f[TSR_FIGURE_ELEMENTS]);
    else if (f[TSR_FIGURE_ELEMENTS] > 0)
        tsr_text_printf(&line, " SQNR %6.2f dB  relative %.3g  calc_diff %.3g  cosine %.8f  max %.3g%s%s",
                        f[TSR_FIGURE_SQNR], tsr_row_error(row, TSR_FIGURE_RELATIVE),
                        tsr_row_error(row, TSR_FIGURE_CALC_DIFF), f[TSR_FIGURE_COSINE],
                        tsr_row_error(row, TSR_FIGURE_MAX_ABS), at[0] != '\0' ? " at " : "", at);
    if (f[TSR_FIGURE_OF_BOUND] >= 0)
        tsr_text_printf(&line, "  %.3g of the bound", f[TSR_FIGURE_OF_BOUND]);
    if (f[TSR_FIGURE_OF_EXPECTED] >= 0)
        tsr_text_printf(&line, ", %.2f of the expected RMS", f[TSR_FIGURE_OF_EXPECTED]);
    if (f[TSR_FIGURE_TOKEN_AGREEMENT] >= 0)
        tsr_text_printf(&line, ", %.2f %% of the chosen tokens", 100 * f[TSR_FIGURE_TOKEN_AGREEMENT]);
    if (f[TSR_FIGURE_SECONDS] > 0)
        tsr_text_printf(&line, ", %.1f us", f[TSR_FIGURE_SECONDS] * 1e6);
    tsr_draw_line(text, style, 7, 7, &line);
    if (row->note != NULL) {
        tsr_text_printf(text, "%7s", "");
        tsr_draw_wrapped(text, style, 7, 7, row->note);
    }
}

/* ---- tensors and sets ---- */

/* Sums up the judgements of one tensor or set of experts. */
typedef struct subject {
    size_t judged, failed, costs, bounded, exact;
    double sqnr, of_bound, of_expected; /* the worst */
} subject;

static subject sum_up(const tsr_row *rows, size_t n)
{
    subject s = {.judged = n, .sqnr = INFINITY};
    for (size_t i = 0; i < n; i++) {
        const double *const f = rows[i].figures;
        s.failed += has_failed(&rows[i]);
        if (strcmp(rows[i].kind, "quantization") == 0 && f[TSR_FIGURE_ELEMENTS] > 0) {
            s.costs++;
            s.sqnr = fmin(s.sqnr, f[TSR_FIGURE_SQNR]);
        }
        if (strcmp(rows[i].kind, "kernel") == 0) {
            s.bounded += f[TSR_FIGURE_OF_BOUND] >= 0;
            s.exact += isnan(f[TSR_FIGURE_OF_BOUND]) && f[TSR_FIGURE_DIFFER] == 0;
            s.of_bound = fmax(s.of_bound, f[TSR_FIGURE_OF_BOUND]);
            s.of_expected = fmax(s.of_expected, f[TSR_FIGURE_OF_EXPECTED]);
        }
    }
    return s;
}

/* Draws one line about a subject: the worst quantization error, and the largest ratio of kernel errors to bounds.
 * At most `most_failed` judgements that failed follow. */
static void draw_subject(tsr_text *text, const tsr_style *style, const tsr_row *rows, size_t n, size_t most_failed)
{
    size_t listed = 0;
    const subject s = sum_up(rows, n);
    tsr_text line = {0};
    draw_word(text, style, s.failed > 0);
    tsr_text_printf(&line, "%s:", rows->name);
    if (s.costs > 0)
        tsr_text_printf(&line, " quantization %s%.2f dB;", s.costs > 1 ? "at worst " : "", s.sqnr);
    if (s.bounded > 0)
        tsr_text_printf(&line, " %zu runs of kernels at most %.3g of the bound, %.2f of the expected RMS;", s.bounded,
                        s.of_bound, s.of_expected);
    if (s.exact > 0)
        tsr_text_printf(&line, " %zu bit for bit;", s.exact);
    if (s.failed > 0)
        tsr_text_printf(&line, " %zu of %zu judgements beyond their limits", s.failed, s.judged);
    else
        tsr_text_printf(&line, " all %zu judgements within their limits", s.judged);
    tsr_draw_line(text, style, 5, 5, &line);
    for (size_t i = 0; i < n; i++) {
        if (has_failed(&rows[i]) && listed++ < most_failed)
            draw_judgement(text, style, &rows[i]);
    }
    if (listed > most_failed)
        tsr_draw_omitted(text, style, 2, listed - most_failed, " that failed");
}

/* Returns the number of rows from `first` on that judge the same subject, and sets whether one of them failed. */
static size_t rows_of_subject(const tsr_result *result, size_t first, bool *failed)
{
    const tsr_row *const rows = &result->rows[first];
    size_t n = 0;
    *failed = false;
    while (first + n < result->n_rows && is_judged(&rows[n]) && strcmp(rows[n].name, rows[0].name) == 0)
        *failed = has_failed(&rows[n++]) || *failed;
    return n == 0 ? 1 : n; /* a skipped row */
}

static size_t count_subjects(const tsr_result *result)
{
    size_t subjects = 0;
    bool failed;
    for (size_t i = 0; i < result->n_rows; i += rows_of_subject(result, i, &failed))
        subjects += is_judged(&result->rows[i]);
    return subjects;
}

/* Draws at most `most` subjects that failed, that passed, or both. Returns their number. */
static size_t draw_some(tsr_text *text, const tsr_style *style, const tsr_result *result, bool with_failed,
                        bool with_passed, size_t most, size_t most_failed)
{
    size_t drawn = 0;
    for (size_t i = 0, n; i < result->n_rows && drawn < most; i += n) {
        bool failed;
        n = rows_of_subject(result, i, &failed);
        if (is_judged(&result->rows[i]) && (failed ? with_failed : with_passed)) {
            draw_subject(text, style, &result->rows[i], n, most_failed);
            drawn++;
        }
    }
    return drawn;
}

void tsr_draw_subjects(tsr_text *text, const tsr_style *style, const tsr_result *result, size_t most,
                       size_t most_failed)
{
    const size_t all = count_subjects(result);
    if (all <= most) {
        draw_some(text, style, result, true, true, most, most_failed);
        return;
    }
    const size_t failed = draw_some(text, style, result, true, false, most, most_failed);
    draw_some(text, style, result, false, true, most - failed, most_failed);
    tsr_draw_omitted(text, style, 0, all - most, " tensors or sets");
}

void tsr_draw_details(tsr_text *text, const tsr_style *style, const tsr_result *result)
{
    const tsr_row *before = NULL;
    for (size_t i = 0; i < result->n_rows && is_judged(&result->rows[i]); i++) {
        const tsr_row *const row = &result->rows[i];
        const bool other = before == NULL || strcmp(before->name, row->name) != 0;
        if (other)
            tsr_draw_wrapped(text, style, 0, 0, row->name);
        if (other || strcmp(before->kind, row->kind) != 0)
            tsr_text_printf(text, " %s error\n", row->kind);
        draw_judgement(text, style, row);
        before = row;
    }
}

/* ---- forward passes ---- */

static bool is_of(const tsr_row *row, const char *what)
{
    return is_judged(row) && strcmp(row->what, what) == 0;
}

/* Draws the columns of the stream of hidden states, or of the layer alone. */
static void draw_columns(tsr_text *text, const tsr_style *style, const tsr_row *row)
{
    const double agreement = row->figures[TSR_FIGURE_AGREEMENT];
    tsr_text_printf(text, "%6.2f dB", row->figures[TSR_FIGURE_SQNR]);
    if (style->width >= WIDE)
        tsr_text_printf(text, "  %10.3g", tsr_row_error(row, TSR_FIGURE_RELATIVE));
    if (isnan(agreement))
        tsr_text_printf(text, "  %9s", "");
    else
        tsr_text_printf(text, "  %7.2f %%", 100 * agreement);
}

static void draw_layer_fault(tsr_text *text, const tsr_style *style, const tsr_row *row)
{
    tsr_text line = {0};
    if (row->note == NULL)
        return;
    tsr_text_printf(text, "  ");
    draw_word(text, style, true);
    tsr_text_printf(&line, "%s: %s, largest error at %s", row->what, row->note,
                    row->error_at == NULL ? "" : row->error_at);
    tsr_draw_line(text, style, 7, 7, &line);
}

/* Draws the shares of tokens that both models choose. */
static void draw_tokens(tsr_text *text, const tsr_style *style, const tsr_row *stream, const tsr_row *alone)
{
    const double in_stream = stream->figures[TSR_FIGURE_TOKEN_AGREEMENT],
                 in_layer = alone->figures[TSR_FIGURE_TOKEN_AGREEMENT];
    tsr_text line = {0};
    if (isnan(in_stream) || isnan(in_layer))
        return;
    tsr_text_printf(text, "%7s", "");
    tsr_text_printf(&line, "tokens chosen by both: %.2f %%, and %.2f %% in the layer alone", 100 * in_stream,
                    100 * in_layer);
    tsr_draw_line(text, style, 7, 7, &line);
}

/* Draws a layer: its stream, and the layer alone. A layer fails only because of the error that it adds itself. */
static void draw_layer(tsr_text *text, const tsr_style *style, const tsr_row *stream, const tsr_row *alone)
{
    const size_t size = strlen(stream->name);
    const double kl = stream->figures[TSR_FIGURE_KL_MEAN];
    if (style->width < WIDE) {
        tsr_draw_fitted(text, style, TSR_INK_NONE, stream->name, NAMES);
    } else {
        tsr_draw(text, style, TSR_INK_NONE, stream->name);
        tsr_text_printf(text, "%*s", size < NAMES ? (int)(NAMES - size) : 0, "");
    }
    tsr_text_printf(text, "  ");
    draw_columns(text, style, stream);
    tsr_text_printf(text, "   ");
    draw_columns(text, style, alone);
    if (!isnan(kl))
        tsr_text_printf(text, "   %8.3g", kl);
    tsr_end_line(text);
    draw_tokens(text, style, stream, alone);
    draw_layer_fault(text, style, stream);
    draw_layer_fault(text, style, alone);
}

static void draw_heading(tsr_text *text, const tsr_style *style, bool has_kl)
{
    const char *const kl = has_kl ? "   KL, nats" : "";
    if (style->width < WIDE)
        tsr_text_printf(text, "%-22s  %-20s   %s\n%-22s  %9s  %9s   %9s  %9s%s\n", "", "stream", "layer alone", "",
                        "SQNR", "experts", "SQNR", "experts", kl);
    else
        tsr_text_printf(text, "%-22s  %-33s  %s\n%-22s  %9s  %10s  %9s   %9s  %10s  %9s%s\n", "",
                        "stream of hidden states", "layer alone, on the source's input", "", "SQNR", "relative",
                        "experts", "SQNR", "relative", "experts", kl);
}

static void draw_logits(tsr_text *text, const tsr_style *style, const tsr_row *row)
{
    const double agreement = row->figures[TSR_FIGURE_AGREEMENT];
    tsr_text line = {0};
    draw_judgement(text, style, row);
    tsr_text_printf(text, "%7s", "");
    tsr_text_printf(&line, "KL divergence: mean %.3g nats, max %.3g; the most likely token is the same in ",
                    row->figures[TSR_FIGURE_KL_MEAN], row->figures[TSR_FIGURE_KL_MAX]);
    if (row->choices > 0)
        tsr_text_printf(&line, "%.0f of %llu positions", agreement * (double)row->choices, U64(row->choices));
    else
        tsr_text_printf(&line, "%.4g %% of the positions", 100 * agreement);
    tsr_draw_line(text, style, 7, 7, &line);
}

void tsr_draw_layers(tsr_text *text, const tsr_style *style, const tsr_result *result)
{
    const tsr_row *const rows = result->rows;
    for (size_t i = 0; i < result->n_rows && is_judged(&rows[i]); i++) {
        if (is_of(&rows[i], kStream) && i + 1 < result->n_rows && is_of(&rows[i + 1], kAlone)) {
            if (i == 0)
                draw_heading(text, style, !isnan(rows[i].figures[TSR_FIGURE_KL_MEAN]));
            draw_layer(text, style, &rows[i], &rows[i + 1]);
            i++;
        } else if (is_of(&rows[i], kLogits) && !isnan(rows[i].figures[TSR_FIGURE_KL_MEAN])) {
            draw_logits(text, style, &rows[i]);
        } else { /* the comparison with another implementation */
            tsr_draw_wrapped(text, style, 0, 0, rows[i].name);
            draw_judgement(text, style, &rows[i]);
        }
    }
}

/* ---- the end ---- */

void tsr_draw_judged(tsr_text *text, const tsr_style *style, const tsr_result *result, size_t most)
{
    size_t judged = 0, failed = 0, skipped = 0;
    for (size_t i = 0; i < result->n_rows; i++) {
        const tsr_row *const row = &result->rows[i];
        tsr_text line = {0};
        judged += is_judged(row);
        failed += has_failed(row);
        if (is_judged(row) || ++skipped > most)
            continue;
        tsr_text_printf(&line, "skipped %s: %s", row->name, row->note == NULL ? "" : row->note);
        tsr_draw_line(text, style, 0, 0, &line);
    }
    if (skipped > most)
        tsr_draw_omitted(text, style, 0, skipped - most, " that were skipped");
    if (failed > 0)
        tsr_text_printf(text, "%zu of %zu judgements are beyond their limits\n", failed, judged);
    else
        tsr_text_printf(text, "all %zu judgements are within their limits\n", judged);
}
