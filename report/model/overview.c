/* Groups the rows of a result and sums them up, in at most n log n steps. */
#include "report/model/overview.h"

#include "common/text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const tsr_quantile_names[TSR_N_QUANTILES] = {"min", "1 %", "10 %", "median", "90 %", "max"};
const char *const tsr_quantile_keys[TSR_N_QUANTILES] = {"min", "p1", "p10", "median", "p90", "max"};
static const double kQuantiles[TSR_N_QUANTILES] = {0, 0.01, 0.1, 0.5, 0.9, 1};

/* A group is an outlier if it is this much worse than the median group, and by more than this multiple of the median
 * distance. Correct layers of one scheme are within 0.2 dB of each other. */
static const double kOutlierDb = 1, kOutlierSpreads = 6, kBlockOutlierDb = 6;
enum { FEWEST_FOR_OUTLIERS = 3 };

const char *tsr_grouping_name(tsr_grouping grouping)
{
    static const char *const kNames[] = {
        [TSR_BY_LAYER] = "layer", [TSR_BY_MODULE] = "module", [TSR_BY_EXPERT] = "expert", [TSR_BY_WHAT] = "stage"};
    return kNames[grouping];
}

int tsr_worst_group_first(const void *a, const void *b)
{
    const tsr_tensor_group *const x = *(const tsr_tensor_group *const *)a, *const y =
                                                                               *(const tsr_tensor_group *const *)b;
    const double p = isnan(x->lowest) ? INFINITY : x->lowest, q = isnan(y->lowest) ? INFINITY : y->lowest;
    return p != q ? (p < q ? -1 : 1) : (x > y) - (x < y);
}

static double quantile(const double *sorted, size_t n, double p)
{
    return n == 0 ? NAN : sorted[(size_t)floor(p * (double)(n - 1) + 0.5)];
}

static double sqnr_of(const tsr_row *row)
{
    return row->figures[TSR_FIGURE_SQNR];
}

/* ---- groups ---- */

/* Sort key of a row: its group, then its SQNR. */
typedef struct member {
    const char *text; /* not NUL-terminated: `size` bytes */
    size_t size;
    uint32_t number, row;
    double sqnr; /* NaN becomes +infinity, because sorting needs an order */
} member;

static int same_group(const member *x, const member *y)
{
    if ((x->size == 0) != (y->size == 0))
        return x->size == 0 ? 1 : -1; /* rows without a stack are last */
    const size_t n = x->size < y->size ? x->size : y->size;
    const int order = memcmp(x->text, y->text, n);
    if (order != 0 || x->size != y->size)
        return order != 0 ? order : (x->size > y->size) - (x->size < y->size);
    return (x->number > y->number) - (x->number < y->number);
}

static int by_group(const void *a, const void *b)
{
    const member *const x = a, *const y = b;
    const int order = same_group(x, y);
    if (order != 0)
        return order;
    if (x->sqnr != y->sqnr)
        return x->sqnr < y->sqnr ? -1 : 1;
    return (x->row > y->row) - (x->row < y->row);
}

/* Sets m->text and m->number to the group of a row. Returns false if the row has no group of this kind. */
static bool place_member(tsr_grouping grouping, const tsr_row *row, member *m, tsr_arena *arena)
{
    char module[TSR_MAX_MODULE];
    m->text = "";
    switch (grouping) {
    case TSR_BY_LAYER:
        m->text = row->name;
        m->size = row->place.stack_size;
        m->number = row->place.layer;
        return true;
    case TSR_BY_MODULE:
        m->text = tsr_arena_printf(arena, "%s", tsr_module_of(row->name, module));
        m->size = m->text == NULL ? 0 : strlen(m->text);
        m->number = TSR_NO_NUMBER;
        return true;
    case TSR_BY_EXPERT:
        m->text = "e"; /* all have one stack */
        m->size = 1;
        m->number = row->place.expert;
        return row->place.expert != TSR_NO_NUMBER;
    default:
        m->text = row->what == NULL ? "" : row->what;
        m->size = strlen(m->text);
        m->number = TSR_NO_NUMBER;
        return row->what != NULL;
    }
}

static const char *label_of(tsr_grouping grouping, const member *m, bool one_stack, tsr_arena *arena)
{
    if (grouping == TSR_BY_EXPERT || (grouping == TSR_BY_LAYER && m->size > 0 && one_stack))
        return tsr_arena_printf(arena, "%u", m->number);
    if (grouping == TSR_BY_LAYER)
        return m->size == 0 ? "outside of layers"
                            : tsr_arena_printf(arena, "%.*s.%u", (int)m->size, m->text, m->number);
    return tsr_arena_dup(arena, m->text, m->size);
}

static void sum_up(const tsr_result *result, const uint32_t *order, tsr_tensor_group *g)
{
    size_t finite = 0;
    g->lowest = g->median = g->relative = g->worst_block = NAN;
    g->block_row = TSR_NO_ROW;
    for (uint32_t i = 0; i < g->count; i++) {
        const tsr_row *const row = &result->rows[order[g->first + i]];
        const double block = row->figures[TSR_FIGURE_WORST_BLOCK];
        finite += !isnan(sqnr_of(row)) && sqnr_of(row) != INFINITY;
        g->relative = fmax(g->relative, row->figures[TSR_FIGURE_RELATIVE]);
        g->failed += row->outcome == TSR_OUTCOME_FAILED;
        if (!isnan(block) && !(block <= g->worst_block)) {
            g->worst_block = block;
            g->block_row = order[g->first + i];
        }
    }
    if (finite > 0) { /* in order of SQNR; lossless rows are at the end */
        g->lowest = sqnr_of(&result->rows[order[g->first]]);
        g->median = sqnr_of(&result->rows[order[g->first + (finite - 1) / 2]]);
    } else if (g->count > 0) {
        g->lowest = g->median = sqnr_of(&result->rows[order[g->first]]);
    }
}

/* Returns the median of `value` over the groups, and the median distance from it. */
static size_t usual(const tsr_groups *groups, double (*value)(const tsr_tensor_group *), double *scratch,
                    double *median, double *spread)
{
    size_t n = 0;
    for (size_t i = 0; i < groups->count; i++) {
        if (isfinite(value(&groups->items[i])))
            scratch[n++] = value(&groups->items[i]);
    }
    qsort(scratch, n, sizeof *scratch, tsr_by_number);
    *median = quantile(scratch, n, 0.5);
    for (size_t i = 0; i < n; i++)
        scratch[i] = fabs(scratch[i] - *median);
    qsort(scratch, n, sizeof *scratch, tsr_by_number);
    *spread = quantile(scratch, n, 0.5);
    return n;
}

static double lowest_of(const tsr_tensor_group *g)
{
    return g->lowest;
}

/* Returns the block error in dB, in which distances are comparable for all schemes. */
static double block_of(const tsr_tensor_group *g)
{
    return g->worst_block > 0 ? -20 * log10(g->worst_block) : NAN;
}

/* Returns true if each row was compared with a limit of its own and none failed. Then no group is marked: layers that
 * are all correct may differ by more than the limits for outliers. */
static bool each_passed(const tsr_result *result)
{
    return result->kind->case_a_row && result->outcome == TSR_OUTCOME_PASSED;
}

static tsr_status mark_outliers(tsr_groups *groups, tsr_err *err)
{
    double *const scratch = malloc((groups->count + 1) * sizeof *scratch), median, spread;
    if (scratch == NULL)
        return tsr_out_of_memory(err, NULL);
    if (usual(groups, lowest_of, scratch, &median, &spread) >= FEWEST_FOR_OUTLIERS) {
        const double limit = median - fmax(kOutlierDb, kOutlierSpreads * spread);
        for (size_t i = 0; i < groups->count; i++)
            groups->items[i].outlier = groups->items[i].lowest < limit;
    }
    if (usual(groups, block_of, scratch, &median, &spread) >= FEWEST_FOR_OUTLIERS) {
        const double limit = median - fmax(kBlockOutlierDb, kOutlierSpreads * spread);
        for (size_t i = 0; i < groups->count; i++)
            groups->items[i].block_outlier = block_of(&groups->items[i]) < limit;
    }
    for (size_t i = 0; i < groups->count; i++)
        groups->outliers += groups->items[i].outlier || groups->items[i].block_outlier;
    free(scratch);
    return TSR_OK;
}

static tsr_status cut_groups(const tsr_result *result, tsr_grouping grouping, const member *members, size_t n,
                             tsr_groups *groups, tsr_arena *arena, tsr_err *err)
{
    bool one_stack = true;
    size_t count = 0;
    for (size_t i = 0; i < n; i++) {
        count += i == 0 || same_group(&members[i - 1], &members[i]) != 0;
        one_stack =
            one_stack && (members[i].size == 0 || (members[i].size == members[0].size &&
                                                   memcmp(members[i].text, members[0].text, members[i].size) == 0));
    }
    groups->order = tsr_arena_alloc(arena, (n + 1) * sizeof *groups->order);
    groups->items = tsr_arena_alloc(arena, (count + 1) * sizeof *groups->items);
    if (groups->order == NULL || groups->items == NULL)
        return tsr_out_of_memory(err, "for groups of tensors");
    for (size_t i = 0; i < n; i++) {
        groups->order[i] = members[i].row;
        if (i == 0 || same_group(&members[i - 1], &members[i]) != 0) {
            groups->items[groups->count++] =
                (tsr_tensor_group){.label = label_of(grouping, &members[i], one_stack, arena),
                                   .number = members[i].number,
                                   .first = (uint32_t)i};
        }
        groups->items[groups->count - 1].count++;
    }
    for (size_t i = 0; i < groups->count; i++)
        sum_up(result, groups->order, &groups->items[i]);
    /* Stages compute different things and have no outliers. Layers, modules and experts are comparable. */
    return grouping == TSR_BY_WHAT || each_passed(result) ? TSR_OK : mark_outliers(groups, err);
}

static tsr_status make_groups(tsr_overview *o, tsr_grouping grouping, member *members, tsr_err *err)
{
    const tsr_result *const result = o->result;
    size_t n = 0;
    for (uint32_t i = 0; i < result->n_rows; i++) {
        const tsr_row *const row = &result->rows[i];
        member m = {.row = i, .sqnr = isnan(sqnr_of(row)) ? INFINITY : sqnr_of(row)};
        if (row->series == o->series && place_member(grouping, row, &m, &o->arena))
            members[n++] = m;
    }
    TSR_TRY(tsr_arena_status(&o->arena, TSR_OK, err));
    qsort(members, n, sizeof *members, by_group);
    TSR_TRY(cut_groups(result, grouping, members, n, &o->groups[grouping], &o->arena, err));
    return tsr_arena_status(&o->arena, TSR_OK, err);
}

/* ---- the whole result ---- */

static void make_spread(const tsr_result *result, uint32_t series, double *scratch, tsr_spread *s)
{
    size_t n = 0;
    for (size_t i = 0; i < result->n_rows; i++) {
        const double sqnr = sqnr_of(&result->rows[i]);
        if (result->rows[i].series != series)
            continue;
        s->rows++;
        s->measured += !isnan(sqnr);
        s->lossless += sqnr == INFINITY;
        if (!isnan(sqnr) && sqnr != INFINITY)
            scratch[n++] = sqnr;
    }
    qsort(scratch, n, sizeof *scratch, tsr_by_number);
    for (size_t i = 0; i < TSR_N_QUANTILES; i++)
        s->quantiles[i] = quantile(scratch, n, kQuantiles[i]);
}

/* Finds the rows of the charted series with the largest `badness`, without those that have none. */
static size_t find_worst(const tsr_overview *o, double (*badness)(const tsr_row *), uint32_t *worst)
{
    const tsr_result *const result = o->result;
    size_t n = 0;
    for (uint32_t i = 0; i < result->n_rows; i++) {
        const double bad = badness(&result->rows[i]);
        if (result->rows[i].series != o->series || isnan(bad) || bad == -INFINITY)
            continue;
        size_t at = n;
        while (at > 0 && badness(&result->rows[worst[at - 1]]) < bad)
            at--;
        if (at == TSR_MOST_WORST)
            continue;
        n += n < TSR_MOST_WORST;
        memmove(&worst[at + 1], &worst[at], (n - at - 1) * sizeof *worst);
        worst[at] = i;
    }
    return n;
}

static double by_sqnr(const tsr_row *row)
{
    return -sqnr_of(row);
}

static double by_block(const tsr_row *row)
{
    const double block = row->figures[TSR_FIGURE_WORST_BLOCK];
    return block > 0 ? block : NAN;
}

static void find_series(tsr_overview *o)
{
    const tsr_result *const result = o->result;
    for (uint32_t i = 0; i < result->n_series && result->kind->charted != NULL && !o->charted; i++) {
        o->charted = strcmp(result->series[i].name, result->kind->charted) == 0;
        o->series = i;
    }
}

tsr_status tsr_overview_make(tsr_overview *o, const tsr_result *result, tsr_err *err)
{
    *o = (tsr_overview){.result = result};
    size_t *const by_outcome[] = {
        [TSR_OUTCOME_PASSED] = &o->passed, [TSR_OUTCOME_FAILED] = &o->failed, [TSR_OUTCOME_SKIPPED] = &o->skipped};
    member *const members = malloc((result->n_rows + 1) * sizeof *members);
    o->spreads = tsr_arena_alloc(&o->arena, (result->n_series + 1) * sizeof *o->spreads);
    tsr_status status = members == NULL || o->spreads == NULL ? tsr_out_of_memory(err, NULL) : TSR_OK;
    find_series(o);
    for (size_t i = 0; i < result->n_rows; i++) {
        if (result->rows[i].outcome != TSR_OUTCOME_NONE)
            ++*by_outcome[result->rows[i].outcome];
    }
    for (uint32_t i = 0; i < result->n_series && status == TSR_OK; i++)
        make_spread(result, i, (double *)members, &o->spreads[i]); /* a member is larger than a double */
    for (tsr_grouping g = 0; g < TSR_N_GROUPINGS && status == TSR_OK && o->charted; g++)
        status = make_groups(o, g, members, err);
    if (status == TSR_OK && o->charted) {
        o->n_lowest = find_worst(o, by_sqnr, o->lowest);
        o->n_blocks = find_worst(o, by_block, o->blocks);
    }
    free(members);
    if (status != TSR_OK)
        tsr_overview_free(o);
    return status;
}

size_t tsr_count_findings(const tsr_result *result, const char *check)
{
    size_t n = 0;
    for (size_t i = 0; i < result->n_findings; i++)
        n += strcmp(result->findings[i].check, check) == 0;
    return n;
}

void tsr_overview_free(tsr_overview *o)
{
    tsr_arena_free(&o->arena);
    *o = (tsr_overview){.result = NULL};
}

const char *tsr_layer_label(const char *name, tsr_arena *arena)
{
    const tsr_place place = tsr_place_of(name);
    if (place.layer == TSR_NO_NUMBER)
        return "outside of layers";
    return tsr_arena_printf(arena, "%.*s.%u", (int)place.stack_size, name, place.layer);
}
