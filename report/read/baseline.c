/* Pairs the rows of two results, both sorted by name, and compares their figures. */
#include "report/read/baseline.h"

#include "report/read/read.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- figures ---- */

/* Returns the largest loss of a figure between two rows, and the figure; NaN: nothing to compare. *gain is the
 * largest gain of a figure, at least 0. */
static double loss_of(const tsr_row *before, const tsr_row *now, tsr_figure *figure, double *gain)
{
    double worst = NAN;
    *gain = 0;
    for (tsr_figure f = 0; f < TSR_N_FIGURES; f++) {
        const double a = before->figures[f], b = now->figures[f];
        if (tsr_figure_of(f)->change == TSR_CHANGE_NONE || isnan(a) || isnan(b))
            continue;
        const double loss = tsr_figure_loss(f, a, b);
        *gain = fmax(*gain, -loss);
        if (isnan(worst) || loss > worst) {
            worst = loss;
            *figure = f;
        }
    }
    return worst;
}

/* Compares a pair of rows. `kept` (may be NULL) receives the loss. */
static void compare_pair(tsr_baseline *b, const tsr_row *before, const tsr_row *now, const tsr_series *series,
                         double *kept)
{
    tsr_regression r = {.now = now, .before = before, .figure = TSR_FIGURE_SQNR, .loss = NAN};
    const bool judged = before->outcome != TSR_OUTCOME_NONE && now->outcome != TSR_OUTCOME_NONE;
    double gain = 0;
    if (!series->bounded)
        r.loss = loss_of(before, now, &r.figure, &gain);
    r.failed = before->outcome == TSR_OUTCOME_PASSED && now->outcome == TSR_OUTCOME_FAILED;
    if (kept != NULL)
        *kept = r.loss;
    b->compared += judged || !isnan(r.loss);
    if (r.failed || r.loss > b->limit)
        b->items[b->count++] = r;
    else
        b->better += gain > b->limit;
}

static int worst_first(const void *a, const void *b)
{
    const tsr_regression *const x = a, *const y = b;
    if (x->failed != y->failed)
        return x->failed ? -1 : 1;
    const double p = isnan(x->loss) ? -INFINITY : x->loss, q = isnan(y->loss) ? -INFINITY : y->loss;
    return p != q ? (p > q ? -1 : 1) : strcmp(x->now->name, y->now->name);
}

/* ---- pairing ---- */

static void pair_rows(tsr_baseline *b, const uint32_t *old_order, const uint32_t *now_order)
{
    const tsr_result *const now = b->now, *const old = &b->old;
    size_t i = 0, k = 0;
    while (i < old->n_rows || k < now->n_rows) {
        const tsr_row *const before = i < old->n_rows ? &old->rows[old_order[i]] : NULL;
        const tsr_row *const after = k < now->n_rows ? &now->rows[now_order[k]] : NULL;
        const int order = before == NULL ? 1 : after == NULL ? -1 : tsr_compare_rows(old, before, now, after);
        if (order == 0)
            compare_pair(b, before, after, &now->series[after->series], &b->losses[after - now->rows]);
        else if (order < 0)
            b->disappeared[b->n_disappeared++] = before;
        else
            b->appeared[b->n_appeared++] = after;
        i += order <= 0;
        k += order >= 0;
    }
}

static void pair_wholes(tsr_baseline *b)
{
    for (size_t i = 0; i < b->now->n_series; i++) {
        for (size_t k = 0; k < b->old.n_series; k++) {
            const tsr_series *const now = &b->now->series[i], *const old = &b->old.series[k];
            if (now->has_whole && old->has_whole && strcmp(now->name, old->name) == 0)
                compare_pair(b, &old->whole, &now->whole, now, NULL);
        }
    }
}

/* ---- other differences ---- */

/* Returns true if values are equal as texts or as numbers: "8.0" is "8". */
static bool same_value(const char *a, const char *b)
{
    char *end_a, *end_b;
    if (strcmp(a, b) == 0)
        return true;
    const double x = strtod(a, &end_a), y = strtod(b, &end_b);
    return end_a != a && end_b != b && *end_a == '\0' && *end_b == '\0' && x == y;
}

static void add_difference(tsr_baseline *b, const char *name, const char *before, const char *now)
{
    if (before == NULL || now == NULL ? before != now : !same_value(before, now))
        b->differences[b->n_differences++] = (tsr_difference){name, before, now};
}

/* Returns false for facts that differ in each run, such as seconds. */
static bool is_of_interest(const char *name)
{
    return strstr(name, "seconds") == NULL;
}

static void find_differences(tsr_baseline *b)
{
    const tsr_facts *const pairs[][2] = {{&b->old.facts, &b->now->facts}, {&b->old.limits, &b->now->limits}};
    add_difference(b, "Tessera", b->old.version, b->now->version);
    add_difference(b, "command", b->old.command, b->now->command);
    add_difference(b, "verdict", tsr_outcome_name(b->old.outcome), tsr_outcome_name(b->now->outcome));
    for (size_t p = 0; p < sizeof pairs / sizeof *pairs; p++) {
        const tsr_facts *const old = pairs[p][0], *const now = pairs[p][1];
        for (size_t i = 0; i < old->count; i++) {
            if (is_of_interest(old->items[i].name))
                add_difference(b, old->items[i].name, old->items[i].value, tsr_fact_of(now, old->items[i].name));
        }
        for (size_t i = 0; i < now->count; i++) {
            if (is_of_interest(now->items[i].name) && tsr_fact_of(old, now->items[i].name) == NULL)
                add_difference(b, now->items[i].name, NULL, now->items[i].value);
        }
    }
}

/* ---- all ---- */

static tsr_status compare(tsr_baseline *b, tsr_err *err)
{
    const tsr_result *const now = b->now, *const old = &b->old;
    uint32_t *const old_order = tsr_rows_by_name(old), *const now_order = tsr_rows_by_name(now);
    b->items = malloc((now->n_rows + now->n_series * (size_t)(old->n_series + 1) + 1) * sizeof *b->items);
    b->appeared = malloc((now->n_rows + 1) * sizeof *b->appeared);
    b->disappeared = malloc((old->n_rows + 1) * sizeof *b->disappeared);
    b->differences =
        calloc(old->facts.count + now->facts.count + old->limits.count + now->limits.count + 4, sizeof *b->differences);
    b->losses = malloc((now->n_rows + 1) * sizeof *b->losses);
    tsr_status status = old_order == NULL || now_order == NULL || b->items == NULL || b->appeared == NULL ||
                                b->disappeared == NULL || b->differences == NULL || b->losses == NULL
                            ? tsr_out_of_memory(err, "to compare two results")
                            : TSR_OK;
    for (size_t i = 0; i < now->n_rows && status == TSR_OK; i++)
        b->losses[i] = NAN;
    if (status == TSR_OK) {
        pair_rows(b, old_order, now_order);
        pair_wholes(b);
        find_differences(b);
        if (b->count > 0)
            qsort(b->items, b->count, sizeof *b->items, worst_first);
        if (b->compared == 0)
            status =
                tsr_fail(err, TSR_E_MISMATCH, "%s and %s have no figure in common: give two results for the same model",
                         old->path, now->path);
    }
    free(old_order);
    free(now_order);
    return status;
}

/* Compares with `old`, which is complete. */
static tsr_status finish(tsr_baseline *b, tsr_err *err)
{
    const tsr_result *const now = b->now;
    tsr_status status = TSR_OK;
    if (strcmp(b->old.title, now->title) != 0)
        status = tsr_fail(err, TSR_E_MISMATCH,
                          "%s is a result of %s, and %s of %s: only results of the same command "
                          "can be compared",
                          b->old.path, b->old.title, now->path, now->title);
    if (status == TSR_OK)
        status = compare(b, err);
    if (status != TSR_OK)
        tsr_baseline_free(b);
    return status;
}

tsr_status tsr_baseline_make(tsr_baseline *b, const tsr_result *now, const char *path, double limit, tsr_err *err)
{
    *b = (tsr_baseline){.now = now, .limit = limit};
    TSR_TRY(tsr_result_read(&b->old, path, err));
    return finish(b, err);
}

tsr_status tsr_baseline_of_text(tsr_baseline *b, const tsr_result *now, const char *path, const char *text, size_t size,
                                double limit, tsr_err *err)
{
    *b = (tsr_baseline){.now = now, .limit = limit};
    TSR_TRY(tsr_result_read_text(&b->old, path, text, size, err));
    return finish(b, err);
}

void tsr_baseline_free(tsr_baseline *b)
{
    tsr_result_free(&b->old);
    free(b->items);
    free(b->appeared);
    free(b->disappeared);
    free(b->differences);
    free(b->losses);
    *b = (tsr_baseline){.now = NULL};
}

uint32_t tsr_regression_row(const tsr_baseline *b, const tsr_regression *r)
{
    /* Compare addresses as integers: there may be no rows, and the row of a whole series is in another array. */
    const uintptr_t first = (uintptr_t)b->now->rows, at = (uintptr_t)r->now;
    return at >= first && at - first < b->now->n_rows * sizeof *r->now ? (uint32_t)((at - first) / sizeof *r->now)
                                                                       : TSR_NO_ROW;
}

void tsr_regression_text(tsr_text *text, const tsr_regression *r)
{
    if (r->failed)
        tsr_text_printf(text, "passed before and fails now%s", isnan(r->loss) ? "" : "; ");
    if (isnan(r->loss))
        return;
    tsr_text_printf(text, "%s ", tsr_figure_of(r->figure)->title);
    tsr_figure_text(text, r->figure, r->now->figures[r->figure]);
    tsr_text_printf(text, ", ");
    tsr_figure_text(text, r->figure, r->before->figures[r->figure]);
    if (isfinite(r->loss))
        tsr_text_printf(text, " before: %.2f dB lost", r->loss);
    else
        tsr_text_printf(text, " before");
}

void tsr_baseline_reason(tsr_text *text, const tsr_baseline *b)
{
    if (b->count > 0)
        tsr_text_printf(text, "%zu of %zu got worse by more than %g dB against %s", b->count, b->compared, b->limit,
                        b->old.path);
    else
        tsr_text_printf(text, "none of %zu got worse by more than %g dB against %s", b->compared, b->limit,
                        b->old.path);
}
