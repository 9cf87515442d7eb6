/* Writes Markdown for a comment on a pull request.
 *
 * The verdict and the faults are visible; everything else is folded. The text is short for any model, because a
 * comment has at most 65,536 characters. */
#include "report/write/writers.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { FINDINGS = 10, GROUPS = 12, WORST = 5, MOST_TEXT = 400, MOST_BYTES = 60000 };

/* ---- escaping text from files ---- */

/* Appends a code span, in which only the fence has a meaning, and '|' in tables. */
static void code(tsr_text *text, const char *what)
{
    tsr_text shown = {0};
    size_t run = 0, longest = 0;
    tsr_text_visible(&shown, what, strnlen(what, MOST_TEXT));
    tsr_text_append(&shown, "...", strlen(what) > MOST_TEXT ? 3 : 0);
    for (size_t i = 0; i < shown.size; i++) {
        run = shown.data[i] == '`' ? run + 1 : 0;
        longest = run > longest ? run : longest;
    }
    for (size_t i = 0; i <= longest; i++)
        tsr_text_append(text, "`", 1);
    tsr_text_append(text, " ", longest > 0);
    for (size_t i = 0; i < shown.size; i++)
        tsr_text_printf(text, shown.data[i] == '|' ? "\\%c" : "%c", shown.data[i]);
    tsr_text_append(text, " ", longest > 0 || shown.size == 0);
    for (size_t i = 0; i <= longest; i++)
        tsr_text_append(text, "`", 1);
    text->failed = text->failed || shown.failed;
    tsr_text_free(&shown);
}

/* Appends plain text: markup, HTML, mentions and links are escaped. */
static void plain(tsr_text *text, const char *what)
{
    tsr_text shown = {0};
    tsr_text_visible(&shown, what, strlen(what));
    size_t size = shown.size < MOST_TEXT ? shown.size : MOST_TEXT;
    while (size > 0 && size < shown.size && ((unsigned char)shown.data[size] & 0xC0) == 0x80)
        size--; /* do not split a character */
    for (size_t i = 0; i < size; i++) {
        const char c = shown.data[i];
        if (c == '<' || c == '>' || c == '&')
            tsr_text_printf(text, "&#%d;", c);
        else if (c == '@' || c == '#' || (c == ':' && i + 1 < size && shown.data[i + 1] == '/') ||
                 (c == '.' && i >= 3 && strncasecmp(shown.data + i - 3, "www", 3) == 0))
            tsr_text_printf(text, "%c&#8203;", c); /* a zero-width space prevents mentions and links */
        else
            tsr_text_printf(text, strchr("\\`*_{}[]|~!", c) != NULL ? "\\%c" : "%c", c);
    }
    if (size < shown.size)
        tsr_text_printf(text, " ...");
    text->failed = text->failed || shown.failed;
    tsr_text_free(&shown);
}

/* Appends text in an HTML element, where backslashes are not escapes. */
static void html(tsr_text *text, const char *what)
{
    tsr_text shown = {0};
    tsr_text_visible(&shown, what, strlen(what));
    for (size_t i = 0; i < shown.size; i++) {
        if (strchr("<>&\"'`*_@#", shown.data[i]) != NULL)
            tsr_text_printf(text, "&#%d;", shown.data[i]);
        else
            tsr_text_append(text, shown.data + i, 1);
    }
    text->failed = text->failed || shown.failed;
    tsr_text_free(&shown);
}

/* Appends a temporary text as plain text, and frees it. */
static void plain_line(tsr_text *text, tsr_text *line)
{
    plain(text, line->data == NULL ? "" : line->data);
    text->failed = text->failed || line->failed;
    tsr_text_free(line);
}

static void figure(tsr_text *text, double value, const char *format)
{
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    if (isfinite(value))
        tsr_text_printf(text, format, value);
    else
        tsr_text_printf(text, isnan(value) ? " - |" : value > 0 ? " nothing lost |" : " all lost |");
#pragma GCC diagnostic pop
}

/* ---- parts ---- */

static const char *sign_of(tsr_outcome outcome)
{
    static const char *const kSigns[] = {[TSR_OUTCOME_NONE] = "ℹ️",
                                         [TSR_OUTCOME_PASSED] = "✅",
                                         [TSR_OUTCOME_FAILED] = "❌",
                                         [TSR_OUTCOME_SKIPPED] = "➖"};
    return kSigns[outcome];
}

static void write_results(tsr_text *text, const tsr_report *report)
{
    tsr_text_printf(text,
                    "| result | of | verdict | | whole | lowest SQNR | tensors |\n|---|---|---|---|---:|---:|---:|\n");
    for (size_t i = 0; i < report->count; i++) {
        const tsr_result *const result = &report->results[i];
        const tsr_overview *const o = &report->overviews[i];
        const bool whole = result->n_series > 0 && result->series[0].has_whole;
        tsr_text_printf(text, "| ");
        code(text, result->path);
        tsr_text_printf(text, " | ");
        plain(text, result->title);
        tsr_text_printf(text, " | %s %s | ", sign_of(result->outcome), tsr_verdict_word(result->outcome));
        tsr_text reason = {0};
        tsr_result_reason(&reason, o);
        plain_line(text, &reason);
        tsr_text_printf(text, " |");
        figure(text, whole ? result->series[0].whole.figures[TSR_FIGURE_SQNR] : NAN, " %.2f dB |");
        figure(text, o->charted ? o->spreads[o->series].quantiles[0] : NAN, " %.2f dB |");
        tsr_text_printf(text, o->charted ? " %zu |\n" : " - |\n", o->charted ? o->spreads[o->series].rows : 0);
    }
    tsr_text_append(text, "\n", 1);
}

static void write_row_name(tsr_text *text, const tsr_result *result, const tsr_row *row)
{
    const char *const series = result->series[row->series].name;
    code(text, row->name);
    if (row->what != NULL || series[0] != '\0') {
        tsr_text_printf(text, " (");
        plain(text, row->what != NULL ? row->what : series);
        tsr_text_append(text, ")", 1);
    }
}

static void write_regressions(tsr_text *text, const tsr_baseline *b)
{
    if (b->count > 0)
        tsr_text_printf(text, "**What got worse**\n\n");
    for (size_t i = 0; i < b->count && i < FINDINGS; i++) {
        tsr_text line = {0};
        tsr_text_printf(text, "- ");
        write_row_name(text, b->now, b->items[i].now);
        tsr_text_printf(text, ": ");
        tsr_regression_text(&line, &b->items[i]);
        plain_line(text, &line);
        tsr_text_append(text, "\n", 1);
    }
    if (b->count > FINDINGS)
        tsr_text_printf(text, "- and %zu more\n", b->count - FINDINGS);
    tsr_text_append(text, "\n", b->count > 0);
}

static void write_moved(tsr_text *text, const tsr_result *result, const tsr_row *const *rows, size_t n,
                        const char *what)
{
    if (n == 0)
        return;
    tsr_text_printf(text, "%zu %s ", n, what);
    for (size_t i = 0; i < n && i < WORST; i++) {
        tsr_text_printf(text, i == 0 ? "" : ", ");
        write_row_name(text, result, rows[i]);
    }
    tsr_text_printf(text, n > WORST ? ", ...\n\n" : "\n\n");
}

/* Writes the regressions, which come first. */
static void write_baseline(tsr_text *text, const tsr_baseline *b)
{
    write_regressions(text, b);
    write_moved(text, &b->old, b->disappeared, b->n_disappeared, "gone:");
    write_moved(text, b->now, b->appeared, b->n_appeared, "new:");
    if (b->n_differences > 0)
        tsr_text_printf(text, "| differs | now | before |\n|---|---|---|\n");
    for (size_t i = 0; i < b->n_differences; i++) {
        const tsr_difference *const d = &b->differences[i];
        tsr_text_printf(text, "| ");
        plain(text, d->name);
        tsr_text_printf(text, " | ");
        code(text, d->now == NULL ? "-" : d->now);
        tsr_text_printf(text, " | ");
        code(text, d->before == NULL ? "-" : d->before);
        tsr_text_printf(text, " |\n");
    }
    tsr_text_printf(text, "%s%zu compared: %zu worse, %zu better by more than %g dB.\n\n",
                    b->n_differences > 0 ? "\n" : "", b->compared, b->count, b->better, b->limit);
}

static void write_findings(tsr_text *text, const tsr_report *report)
{
    size_t listed = 0, all = 0;
    for (size_t i = 0; i < report->count; i++) {
        const tsr_result *const result = &report->results[i];
        for (size_t k = 0; k < result->n_findings; k++) {
            const tsr_result_finding *const f = &result->findings[k];
            if (!f->fatal || ++all > FINDINGS)
                continue;
            tsr_text_printf(text, listed++ == 0 ? "**What is wrong**\n\n- " : "- ");
            code(text, f->where);
            tsr_text_printf(text, ": ");
            plain(text, f->check);
            tsr_text_printf(text, ": ");
            plain(text, f->text);
            tsr_text_append(text, "\n", 1);
        }
    }
    if (all > listed)
        tsr_text_printf(text, "- and %zu more\n", all - listed);
    if (all > 0)
        tsr_text_append(text, "\n", 1);
}

/* Writes the groups of all results that have far larger errors than others of their kind. */
static void write_outliers(tsr_text *text, const tsr_overview *o, size_t *listed)
{
    for (tsr_grouping g = 0; g < TSR_N_GROUPINGS; g++) {
        const tsr_groups *const groups = &o->groups[g];
        for (size_t i = 0; i < groups->count && *listed < FINDINGS; i++) {
            const tsr_tensor_group *const x = &groups->items[i];
            if (!x->outlier && !x->block_outlier)
                continue;
            tsr_text_printf(text, (*listed)++ == 0 ? "**What stands out**\n\n- " : "- ");
            plain(text, o->result->title);
            tsr_text_printf(text, ", %s ", tsr_grouping_name(g));
            code(text, x->label);
            tsr_text_printf(text, x->outlier ? ": %.2f dB, in " : ": a block with an error of %.3g, in ",
                            x->outlier ? x->lowest : x->worst_block);
            code(text, o->result->rows[x->outlier ? groups->order[x->first] : x->block_row].name);
            tsr_text_append(text, "\n", 1);
        }
    }
}

/* ---- details ---- */

static void write_spreads(tsr_text *text, const tsr_overview *o)
{
    const tsr_result *const result = o->result;
    bool begun = false;
    for (size_t i = 0; i < result->n_series; i++) {
        if (o->spreads[i].measured == 0)
            continue;
        if (!begun) {
            tsr_text_printf(text, "| SQNR, dB | count |");
            for (size_t q = 0; q < TSR_N_QUANTILES; q++)
                tsr_text_printf(text, " %s |", tsr_quantile_names[q]);
            tsr_text_printf(text, "\n|---|---:|---:|---:|---:|---:|---:|---:|\n");
        }
        begun = true;
        tsr_text_printf(text, "| ");
        plain(text, result->series[i].name[0] == '\0' ? "tensors" : result->series[i].name);
        tsr_text_printf(text, " | %zu |", o->spreads[i].measured - o->spreads[i].lossless);
        for (size_t q = 0; q < TSR_N_QUANTILES; q++)
            figure(text, o->spreads[i].quantiles[q], " %.2f |");
        tsr_text_append(text, "\n", 1);
    }
    tsr_text_append(text, "\n", begun);
}

static void write_group(tsr_text *text, const tsr_tensor_group *g)
{
    tsr_text_printf(text, "| ");
    code(text, g->label);
    tsr_text_printf(text, g->outlier || g->block_outlier ? " ⚠️ | %u |" : " | %u |", g->count);
    figure(text, g->lowest, " %.2f |");
    figure(text, g->median, " %.2f |");
    figure(text, g->relative, " %.4f |");
    figure(text, g->worst_block, " %.3f |");
    tsr_text_append(text, "\n", 1);
}

/* Writes the groups with the largest loss, in a table. */
static void write_groups(tsr_text *text, const tsr_overview *o, tsr_grouping grouping)
{
    const tsr_groups *const groups = &o->groups[grouping];
    const tsr_tensor_group **const list = malloc((groups->count + 1) * sizeof *list);
    size_t n = 0;
    if (list == NULL) {
        text->failed = true;
        return;
    }
    for (size_t i = 0; i < groups->count; i++) {
        if (!isnan(groups->items[i].lowest))
            list[n++] = &groups->items[i];
    }
    if (n > GROUPS)
        qsort(list, n, sizeof *list, tsr_worst_group_first);
    if (n > 1)
        tsr_text_printf(
            text,
            "| %s | count | lowest dB | median dB | relative error | worst block |\n|---|---:|---:|---:|---:|---:|\n",
            tsr_grouping_name(grouping));
    for (size_t i = 0; i < n && i < GROUPS && n > 1; i++)
        write_group(text, list[i]);
    if (n > GROUPS)
        tsr_text_printf(text, "\nThe %d with the largest loss, of %zu.\n", GROUPS, n);
    tsr_text_append(text, "\n", n > 1);
    free(list);
}

static void write_worst(tsr_text *text, const tsr_overview *o, const char *title, const uint32_t *rows, size_t n)
{
    if (n > 0)
        tsr_text_printf(text, "| %s | SQNR dB | worst block |\n|---|---:|---:|\n", title);
    for (size_t i = 0; i < n && i < WORST; i++) {
        const tsr_row *const row = &o->result->rows[rows[i]];
        tsr_text_printf(text, "| ");
        code(text, row->name);
        tsr_text_printf(text, " |");
        figure(text, row->figures[TSR_FIGURE_SQNR], " %.2f |");
        if (isinf(row->figures[TSR_FIGURE_WORST_BLOCK]))
            tsr_text_printf(text, " all lost |");
        else
            figure(text, row->figures[TSR_FIGURE_WORST_BLOCK], " %.3f |");
        tsr_text_append(text, "\n", 1);
    }
    tsr_text_append(text, "\n", n > 0);
}

static void write_facts(tsr_text *text, const tsr_result *result)
{
    const tsr_facts *const all[] = {&result->facts, &result->limits};
    char number[32];
    tsr_text_printf(text, "Tessera ");
    plain(text, result->version);
    if (result->command[0] != '\0') {
        tsr_text_printf(text, ", ");
        code(text, result->command);
    }
    for (size_t k = 0; k < sizeof all / sizeof *all; k++) {
        for (size_t i = 0; i < all[k]->count; i++) {
            tsr_text_printf(text, "; ");
            plain(text, all[k]->items[i].name);
            tsr_text_append(text, " ", 1);
            plain(text, tsr_fact_shown(&all[k]->items[i], number));
        }
    }
    tsr_text_printf(text, "\n\n");
}

static void write_details(tsr_text *text, const tsr_overview *o)
{
    tsr_text_printf(text, "<details><summary>");
    html(text, o->result->title);
    tsr_text_printf(text, ": ");
    html(text, o->result->path);
    tsr_text_printf(text, "</summary>\n\n");
    write_facts(text, o->result);
    write_spreads(text, o);
    for (tsr_grouping g = 0; g < TSR_N_GROUPINGS; g++)
        write_groups(text, o, g);
    write_worst(text, o, "lowest SQNR", o->lowest, o->n_lowest);
    write_worst(text, o, "worst blocks", o->blocks, o->n_blocks);
    tsr_text_printf(text, "</details>\n\n");
}

void tsr_write_markdown(tsr_text *text, const tsr_report *report)
{
    tsr_text reason = {0};
    tsr_text_printf(text, "### %s %s: ", sign_of(report->outcome), tsr_verdict_word(report->outcome));
    tsr_report_reason(&reason, report);
    plain_line(text, &reason);
    tsr_text_printf(text, "\n\n");
    if (report->baseline.now != NULL)
        write_baseline(text, &report->baseline);
    write_results(text, report);
    write_findings(text, report);
    size_t listed = 0;
    for (size_t i = 0; i < report->count; i++)
        write_outliers(text, &report->overviews[i], &listed);
    tsr_text_append(text, "\n", listed > 0);
    for (size_t i = 0; i < report->count; i++) {
        tsr_text details = {0};
        write_details(&details, &report->overviews[i]);
        text->failed = text->failed || details.failed;
        const bool fits = text->size + details.size < MOST_BYTES;
        if (fits)
            tsr_text_append(text, details.data, details.size);
        tsr_text_free(&details);
        if (!fits) {
            tsr_text_printf(text, "The details of %zu results are omitted, since a comment has a limited size.\n",
                            report->count - i);
            break;
        }
    }
}
