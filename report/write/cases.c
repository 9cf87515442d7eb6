/* Makes test cases from findings and judgements. */
#include "report/write/cases.h"

#include "common/grow.h"
#include "common/text.h"
#include "report/read/result_kinds.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Appends a case. Its pointers must stay valid as long as `cases`. */
static tsr_status add_case(tsr_cases *cases, const tsr_case *more, tsr_err *err)
{
    if (!tsr_grow(&cases->items, cases->count, &cases->capacity, sizeof *cases->items))
        return tsr_out_of_memory(err, "for cases");
    cases->items[cases->count++] = *more;
    cases->failed += more->outcome == TSR_OUTCOME_FAILED && !more->error;
    cases->errors += more->error;
    cases->skipped += more->outcome == TSR_OUTCOME_SKIPPED;
    return TSR_OK;
}

/* Returns "limits: min_sqnr_db 30, ...", for the text of failures; "" without limits. In the arena; NULL: out of
 * memory. */
static const char *limits_text(const tsr_result *result, tsr_arena *arena)
{
    const char *text = "";
    char number[32];
    for (size_t i = 0; i < result->limits.count && text != NULL; i++)
        text = tsr_arena_printf(arena, "%s%s%s %s", text, i == 0 ? "limits: " : ", ", result->limits.items[i].name,
                                tsr_fact_shown(&result->limits.items[i], number));
    return text;
}

/* Name of a case without a layer. */
static const char kModel[] = "the model";

/* ---- findings ---- */

/* Appends a line to a text of several lines, and frees it. The line is escaped first, because a name with line ends
 * could forge lines. */
static void add_line(tsr_text *text, tsr_text *line, const char *end)
{
    tsr_text_visible(text, line->data, line->size);
    tsr_text_printf(text, "%s", end);
    text->failed = text->failed || line->failed;
    tsr_text_free(line);
}

/* Appends the limits, if any, as a line. */
static void add_limits(tsr_text *text, const char *limits, const char *end)
{
    tsr_text line = {0};
    if (limits == NULL || *limits == '\0')
        return;
    tsr_text_printf(&line, "%s", limits);
    add_line(text, &line, end);
}

/* Appends a finding as a line: where, what, and the figures of the row if the text lacks them. */
static void finding_line(tsr_text *text, const tsr_result *result, const tsr_result_finding *f)
{
    tsr_text line = {0};
    tsr_text_printf(&line, "%s: %s", f->where, f->text);
    if (f->row != TSR_NO_ROW && strstr(f->text, tsr_figure_of(TSR_FIGURE_WORST_BLOCK)->title) == NULL) {
        tsr_text figures = {0};
        tsr_row_text(&figures, &result->rows[f->row]);
        if (figures.size > 0)
            tsr_text_printf(&line, " (%s)", figures.data);
        line.failed = line.failed || figures.failed;
        tsr_text_free(&figures);
    }
    add_line(text, &line, "\n");
}

/* A finding with its group, for sorting. */
typedef struct placed {
    const tsr_result_finding *finding;
    const char *group;
} placed;

static int by_check_and_group(const void *a, const void *b)
{
    const placed *const x = a, *const y = b;
    int order = strcmp(x->finding->check, y->finding->check);
    if (order == 0)
        order = strcmp(x->group, y->group);
    return order != 0 ? order : (x->finding > y->finding) - (x->finding < y->finding);
}

/* Adds one failed case for n findings of one check and group. */
static tsr_status add_failed(tsr_cases *cases, const tsr_result *result, const placed *p, size_t n, tsr_err *err)
{
    tsr_text text = {0};
    for (size_t i = 0; i < n; i++)
        finding_line(&text, result, p[i].finding);
    add_limits(&text, limits_text(result, &cases->arena), "\n");
    const tsr_case made = {
        .class_name = tsr_arena_printf(&cases->arena, "%s.%s", result->title, p->finding->check),
        .name = p->group,
        .outcome = TSR_OUTCOME_FAILED,
        .message = tsr_arena_printf(&cases->arena, "%zu finding%s; the first: %s: %s", n, tsr_plural(n),
                                    p->finding->where, p->finding->text),
        .text = text.failed ? NULL : tsr_arena_dup(&cases->arena, text.data, text.size),
    };
    tsr_text_free(&text);
    TSR_TRY(tsr_arena_status(&cases->arena, TSR_OK, err));
    return made.text == NULL ? tsr_out_of_memory(err, NULL) : add_case(cases, &made, err);
}

/* Returns the findings that are errors, sorted by check and group. From malloc. */
static placed *sort_findings(tsr_cases *cases, const tsr_result *result, size_t *n)
{
    placed *const list = malloc((result->n_findings + 1) * sizeof *list);
    *n = 0;
    for (size_t i = 0; list != NULL && i < result->n_findings; i++) {
        const tsr_result_finding *const f = &result->findings[i];
        const char *const group = tsr_layer_label(f->where, &cases->arena);
        if (f->fatal && group != NULL)
            list[(*n)++] = (placed){f, group};
    }
    if (list != NULL && *n > 0)
        qsort(list, *n, sizeof *list, by_check_and_group);
    return list;
}

/* ---- a check of a group ---- */

/* Returns the distinct labels of the layers of all rows. The labels are in the arena, the list is from malloc. */
static const char **layer_labels(tsr_cases *cases, const tsr_overview *o, size_t *n)
{
    const tsr_groups *const groups = &o->groups[TSR_BY_LAYER];
    const char **const labels = malloc((groups->count + 1) * sizeof *labels);
    *n = 0;
    for (size_t i = 0; labels != NULL && i < groups->count; i++) {
        const char *const label =
            tsr_layer_label(o->result->rows[groups->order[groups->items[i].first]].name, &cases->arena);
        if (label != NULL)
            labels[(*n)++] = label;
    }
    return labels;
}

/* Adds cases that passed or had nothing to judge: the groups of a check without a finding. */
static tsr_status add_others(tsr_cases *cases, const tsr_result *result, const tsr_check_facts *check,
                             const char *const *labels, size_t n_labels, const char *const *failed, size_t n_failed,
                             tsr_err *err)
{
    tsr_case made = {.class_name = tsr_arena_printf(&cases->arena, "%s.%s", result->title, check->name),
                     .outcome = check->judged > 0 ? TSR_OUTCOME_PASSED : TSR_OUTCOME_SKIPPED,
                     .message = check->judged > 0 ? NULL : "there was nothing to judge"};
    if (made.class_name == NULL)
        return tsr_out_of_memory(err, NULL);
    /* A check of the configuration, or one without anything to judge, is one case. */
    const bool one = check->judged <= 1 || n_labels == 0;
    if (one && n_failed == 0) {
        made.name = kModel;
        return add_case(cases, &made, err);
    }
    for (size_t i = 0; i < n_labels && !one; i++) {
        made.name = labels[i];
        if (bsearch(&labels[i], failed, n_failed, sizeof *failed, tsr_by_text) == NULL)
            TSR_TRY(add_case(cases, &made, err));
    }
    return TSR_OK;
}

/* Returns the end of the findings with the check and group of the first. */
static size_t end_of_run(const placed *found, size_t first, size_t n)
{
    size_t end = first + 1;
    while (end < n && strcmp(found[end].finding->check, found[first].finding->check) == 0 &&
           strcmp(found[end].group, found[first].group) == 0)
        end++;
    return end;
}

/* Sets the time of cases. Reading and comparing serves all checks, so a layer's time is reported once, in its case
 * of `values`. `labels` are those of the groups, in their order. */
static void tell_seconds(tsr_cases *cases, const tsr_overview *o, const char *const *labels, size_t n_labels)
{
    const tsr_groups *const groups = &o->groups[TSR_BY_LAYER];
    for (size_t i = 0; i < cases->count; i++) {
        tsr_case *const c = &cases->items[i];
        const char *const check = strrchr(c->class_name, '.');
        if (check == NULL || strcmp(check, ".values") != 0)
            continue;
        for (size_t g = 0; g < n_labels; g++) {
            if (strcmp(labels[g], c->name) != 0 && strcmp(c->name, kModel) != 0)
                continue;
            for (uint32_t k = 0; k < groups->items[g].count; k++) {
                const tsr_row *const row = &o->result->rows[groups->order[groups->items[g].first + k]];
                const double seconds = row->figures[TSR_FIGURE_SECONDS];
                c->seconds += isnan(seconds) ? 0 : seconds;
            }
        }
    }
}

/* Adds all cases of a result with checks, and of findings without a check, such as loaders' rules. */
static tsr_status add_checks(tsr_cases *cases, const tsr_overview *o, tsr_err *err)
{
    const tsr_result *const result = o->result;
    size_t n, n_labels;
    placed *const found = sort_findings(cases, result, &n);
    const char **const labels = layer_labels(cases, o, &n_labels);
    const char **const failed = malloc((n + 1) * sizeof *failed);
    tsr_status status = found == NULL || labels == NULL || failed == NULL
                            ? tsr_out_of_memory(err, NULL)
                            : tsr_arena_status(&cases->arena, TSR_OK, err);
    for (size_t i = 0, end; i < n && status == TSR_OK; i = end) {
        end = end_of_run(found, i, n);
        status = add_failed(cases, result, &found[i], end - i, err);
    }
    for (size_t c = 0; c < result->n_checks && status == TSR_OK; c++) {
        size_t n_failed = 0;
        for (size_t i = 0; i < n; i++) {
            if (strcmp(found[i].finding->check, result->checks[c].name) == 0)
                failed[n_failed++] = found[i].group; /* sorted, as bsearch requires */
        }
        status = add_others(cases, result, &result->checks[c], labels, n_labels, failed, n_failed, err);
    }
    if (status == TSR_OK)
        tell_seconds(cases, o, labels, n_labels);
    free(found);
    free(labels);
    free(failed);
    return status;
}

/* ---- judgements ---- */

static tsr_status add_row(tsr_cases *cases, const tsr_result *result, const tsr_row *row, tsr_err *err)
{
    const double seconds = row->figures[TSR_FIGURE_SECONDS];
    tsr_case made = {
        .class_name = tsr_arena_printf(&cases->arena, "%s.%s", result->title, result->series[row->series].name),
        .name = row->what == NULL ? row->name : tsr_arena_printf(&cases->arena, "%s: %s", row->name, row->what),
        .outcome = row->outcome,
        .message = row->outcome == TSR_OUTCOME_PASSED ? NULL
                   : row->note == NULL                ? "it fell short"
                                                      : row->note,
        .seconds = isnan(seconds) ? 0 : seconds};
    if (row->outcome == TSR_OUTCOME_FAILED) {
        tsr_text text = {0}, line = {0};
        tsr_text_printf(&line, "%s: ", row->name);
        tsr_row_text(&line, row);
        add_line(&text, &line, "\n");
        add_limits(&text, limits_text(result, &cases->arena), "");
        made.text = text.failed ? NULL : tsr_arena_dup(&cases->arena, text.data, text.size);
        tsr_text_free(&text);
        if (made.text == NULL)
            return tsr_out_of_memory(err, NULL);
    }
    TSR_TRY(tsr_arena_status(&cases->arena, TSR_OK, err));
    return add_case(cases, &made, err);
}

static tsr_status fill(tsr_cases *cases, const tsr_overview *o, tsr_err *err)
{
    const tsr_result *const result = o->result;
    if (result->error != NULL) {
        tsr_text line = {0}, text = {0};
        tsr_text_printf(&line, "exit code %llu: %s", U64(result->error_code), result->error);
        add_line(&text, &line, "");
        const tsr_case ended = {.class_name = result->title,
                                .name = result->error_tensor == NULL ? "the run" : result->error_tensor,
                                .outcome = TSR_OUTCOME_FAILED,
                                .message = result->error,
                                .text = text.failed ? NULL : tsr_arena_dup(&cases->arena, text.data, text.size),
                                .error = true};
        tsr_text_free(&text);
        if (ended.text == NULL)
            return tsr_out_of_memory(err, NULL);
        TSR_TRY(tsr_arena_status(&cases->arena, TSR_OK, err));
        return add_case(cases, &ended, err);
    }
    if (result->kind->case_a_row) {
        for (size_t i = 0; i < result->n_rows; i++) {
            if (result->rows[i].outcome != TSR_OUTCOME_NONE)
                TSR_TRY(add_row(cases, result, &result->rows[i], err));
        }
    }
    /* Judgements are cases by their rows; their findings repeat the rows. Findings of inspect are separate cases. */
    if (!result->kind->case_a_row || result->kind->charted == NULL)
        TSR_TRY(add_checks(cases, o, err));
    if (cases->count > 0)
        return TSR_OK;
    const bool judged = result->outcome != TSR_OUTCOME_NONE;
    const tsr_case none = {.class_name = result->title,
                           .name = kModel,
                           .outcome = judged ? result->outcome : TSR_OUTCOME_SKIPPED,
                           .message = judged ? result->outcome == TSR_OUTCOME_FAILED ? "it fell short" : NULL
                                             : "no limits were given: nothing was judged"};
    return add_case(cases, &none, err);
}

tsr_status tsr_cases_make(tsr_cases *cases, const tsr_overview *overview, tsr_err *err)
{
    *cases = (tsr_cases){.items = NULL};
    const tsr_status status = fill(cases, overview, err);
    if (status != TSR_OK)
        tsr_cases_free(cases);
    return status;
}

/* ---- a comparison ---- */

/* A regression with its layer, for sorting. */
typedef struct worse {
    const char *label;
    const tsr_regression *regression;
} worse;

static int by_label(const void *a, const void *b)
{
    const worse *const x = a, *const y = b;
    const int order = strcmp(x->label, y->label);
    return order != 0 ? order : (x->regression > y->regression) - (x->regression < y->regression);
}

static const char kWhole[] = "the whole";

static worse *sort_regressions(tsr_cases *cases, const tsr_baseline *b)
{
    worse *const list = malloc((b->count + 1) * sizeof *list);
    for (size_t i = 0; list != NULL && i < b->count; i++) {
        const char *const label = tsr_regression_row(b, &b->items[i]) == TSR_NO_ROW
                                      ? kWhole
                                      : tsr_layer_label(b->items[i].now->name, &cases->arena);
        list[i] = (worse){label == NULL ? "" : label, &b->items[i]};
    }
    if (list != NULL && b->count > 0)
        qsort(list, b->count, sizeof *list, by_label);
    return list;
}

/* Adds the case of a layer: the sorted regressions with its label. */
static tsr_status add_compared(tsr_cases *cases, const tsr_baseline *b, const worse *list, const char *label,
                               tsr_err *err)
{
    tsr_text text = {0};
    size_t low = 0, high = b->count, n = 0;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (strcmp(list[middle].label, label) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    for (; low < b->count && strcmp(list[low].label, label) == 0; low++, n++) {
        const tsr_row *const now = list[low].regression->now;
        tsr_text line = {0};
        tsr_text_printf(&line, "%s%s%s: ", now->name, now->what == NULL ? "" : ": ",
                        now->what == NULL ? "" : now->what);
        tsr_regression_text(&line, list[low].regression);
        add_line(&text, &line, "\n");
    }
    tsr_text limit = {0};
    tsr_text_printf(&limit, "limit: %g dB, against %s", b->limit, b->old.path);
    add_line(&text, &limit, "\n");
    const tsr_case made = {
        .class_name = "baseline",
        .name = label,
        .outcome = n > 0 ? TSR_OUTCOME_FAILED : TSR_OUTCOME_PASSED,
        .message = n == 0 ? NULL : tsr_arena_printf(&cases->arena, "%zu got worse by more than %g dB", n, b->limit),
        .text = n == 0 || text.failed ? NULL : tsr_arena_dup(&cases->arena, text.data, text.size)};
    tsr_text_free(&text);
    TSR_TRY(tsr_arena_status(&cases->arena, TSR_OK, err));
    return add_case(cases, &made, err);
}

tsr_status tsr_cases_of_baseline(tsr_cases *cases, const tsr_baseline *b, const tsr_overview *o, tsr_err *err)
{
    size_t n;
    *cases = (tsr_cases){.items = NULL};
    const char **const labels = layer_labels(cases, o, &n);
    worse *const list = sort_regressions(cases, b);
    tsr_status status =
        labels == NULL || list == NULL ? tsr_out_of_memory(err, NULL) : add_compared(cases, b, list, kWhole, err);
    for (size_t i = 0; i < n && status == TSR_OK; i++)
        status = add_compared(cases, b, list, labels[i], err);
    free(labels);
    free(list);
    if (status != TSR_OK)
        tsr_cases_free(cases);
    return status;
}

void tsr_cases_free(tsr_cases *cases)
{
    free(cases->items);
    tsr_arena_free(&cases->arena);
    *cases = (tsr_cases){.items = NULL};
}
