/* Chooses the worst rows of a result for the page. */
#include "report/write/page_choice.h"

#include <math.h>
#include <stdlib.h>

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

size_t tsr_page_share(const tsr_report *report, size_t most)
{
    size_t share = 0;
    for (;;) {
        size_t small = 0, large = 0; /* rows of results within the share; results beyond it */
        for (size_t i = 0; i < report->count; i++) {
            const size_t n = report->results[i].n_rows;
            small += n <= share ? n : 0;
            large += n > share;
        }
        const size_t better = large == 0 || most < small ? share : (most - small) / large;
        if (better <= share)
            return share;
        share = better;
    }
}

/* ---- what has to be there ---- */

static void mark(bool *kept, uint32_t row)
{
    if (row != TSR_NO_ROW)
        kept[row] = true;
}

static void mark_groups(bool *kept, const tsr_overview *o)
{
    for (tsr_grouping grouping = 0; grouping < TSR_N_GROUPINGS; grouping++) {
        const tsr_groups *const groups = &o->groups[grouping];
        for (size_t i = 0; i < least(groups->count, TSR_PAGE_GROUPS); i++) {
            const tsr_tensor_group *const g = &groups->items[i];
            mark(kept, g->count > 0 ? groups->order[g->first] : TSR_NO_ROW);
            mark(kept, g->block_row);
        }
    }
}

static void mark_largest(bool *kept, const tsr_result *result)
{
    for (tsr_figure f = 0; f < TSR_N_FIGURES; f++) {
        uint32_t largest = TSR_NO_ROW;
        for (uint32_t row = 0; row < result->n_rows; row++) {
            const double value = result->rows[row].figures[f];
            if (!isnan(value) && (largest == TSR_NO_ROW || value > result->rows[largest].figures[f]))
                largest = row;
        }
        mark(kept, largest);
    }
}

static void mark_all(bool *kept, const tsr_page_choice *choice, const tsr_overview *o, const tsr_baseline *b)
{
    const tsr_result *const result = o->result;
    mark_groups(kept, o);
    mark_largest(kept, result);
    for (size_t i = 0; i < o->n_lowest; i++)
        mark(kept, o->lowest[i]);
    for (size_t i = 0; i < o->n_blocks; i++)
        mark(kept, o->blocks[i]);
    for (size_t i = 0; i < choice->n_findings; i++)
        mark(kept, choice->findings[i]->row);
    for (size_t i = 0; b->now == result && i < least(b->count, TSR_PAGE_REGRESSIONS); i++)
        mark(kept, tsr_regression_row(b, &b->items[i]));
}

/* ---- the worst ---- */

static int worst_first(const void *a, const void *b, void *of)
{
    const tsr_result *const result = of;
    const uint32_t i = *(const uint32_t *)a, k = *(const uint32_t *)b;
    const tsr_row *const x = &result->rows[i], *const y = &result->rows[k];
    const bool p = x->outcome == TSR_OUTCOME_FAILED, q = y->outcome == TSR_OUTCOME_FAILED;
    if (p != q)
        return p ? -1 : 1;
    const double u = x->figures[TSR_FIGURE_SQNR], v = y->figures[TSR_FIGURE_SQNR];
    if (isnan(u) || isnan(v) || u == v)
        return isnan(u) != isnan(v) ? isnan(u) - isnan(v) : (i > k) - (i < k);
    return u < v ? -1 : 1;
}

/* Keeps the worst rows until there are `most`. */
static void keep_worst(bool *kept, uint32_t *order, const tsr_result *result, size_t most)
{
    size_t count = 0;
    for (uint32_t row = 0; row < result->n_rows; row++) {
        order[row] = row;
        count += kept[row];
    }
    qsort_r(order, result->n_rows, sizeof *order, worst_first, (void *)result);
    for (size_t i = 0; i < result->n_rows && count < most; i++) {
        count += !kept[order[i]];
        kept[order[i]] = true;
    }
}

static void list_findings(tsr_page_choice *choice, const tsr_result *result)
{
    for (unsigned pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < result->n_findings && choice->n_findings < TSR_PAGE_FINDINGS; i++) {
            if (result->findings[i].fatal == (pass == 0))
                choice->findings[choice->n_findings++] = &result->findings[i];
        }
    }
}

bool tsr_page_choose(tsr_page_choice *choice, const tsr_overview *o, const tsr_baseline *baseline, size_t most)
{
    const tsr_result *const result = o->result;
    const size_t n = result->n_rows;
    *choice = (tsr_page_choice){
        .rows = malloc((n + 1) * sizeof *choice->rows),
        .at = malloc((n + 1) * sizeof *choice->at),
        .findings = malloc((least(result->n_findings, TSR_PAGE_FINDINGS) + 1) * sizeof *choice->findings)};
    bool *const kept = calloc(n + 1, sizeof *kept);
    const bool room = choice->rows != NULL && choice->at != NULL && choice->findings != NULL && kept != NULL;
    if (room)
        list_findings(choice, result);
    if (room && n > most) {
        mark_all(kept, choice, o, baseline);
        keep_worst(kept, choice->rows, result, most);
    }
    for (uint32_t row = 0; room && row < n; row++) {
        choice->at[row] = kept[row] || n <= most ? (uint32_t)choice->count : TSR_NO_ROW;
        if (choice->at[row] != TSR_NO_ROW)
            choice->rows[choice->count++] = row;
    }
    free(kept);
    if (!room)
        tsr_page_choice_free(choice);
    return room;
}

void tsr_page_choice_free(tsr_page_choice *choice)
{
    free(choice->rows);
    free(choice->at);
    free(choice->findings);
    *choice = (tsr_page_choice){.rows = NULL};
}
