/* Compares the statistics of a quantizing run with limits. */
#include "cli/show/quant_limits.h"

#include "cli/io/output.h"
#include "formats/json/json_write.h"

#include <math.h>
#include <stdio.h>

enum { LISTED = 20 };

tsr_quant_limits tsr_quant_limits_defaults(void)
{
    return (tsr_quant_limits){.max_saturated = UINT64_MAX};
}

void tsr_quant_limits_options(tsr_quant_limits *l, tsr_option *options)
{
    const tsr_option own[] = {
        {"--min-sqnr", TSR_OPT_TEXT, &l->min_sqnr_text, "DB",
         "smallest allowed SQNR of a quantized tensor; below it the exit code is 1, and the output is kept (none)"},
        {"--max-worst-block", TSR_OPT_TEXT, &l->max_worst_block_text, "X",
         "largest allowed error of a block, as worst_block_error in the report (none)"},
        {"--max-saturated", TSR_OPT_COUNT, &l->max_saturated, "N",
         "largest allowed number of clamped values of a tensor (none)"},
        {0},
    };
    tsr_options_append(options, own);
}

tsr_status tsr_quant_limits_parse(tsr_quant_limits *l, tsr_err *err)
{
    TSR_TRY(tsr_parse_number("--min-sqnr", l->min_sqnr_text, &l->min_sqnr, err));
    TSR_TRY(tsr_parse_number("--max-worst-block", l->max_worst_block_text, &l->max_worst_block, err));
    return l->max_worst_block >= 0 ? TSR_OK : tsr_fail(err, TSR_E_USAGE, "--max-worst-block: must be at least 0");
}

/* ---- the limits by name ---- */

static bool has_sqnr(const tsr_quant_limits *l)
{
    return l->min_sqnr_text != NULL;
}

static bool has_block(const tsr_quant_limits *l)
{
    return l->max_worst_block_text != NULL;
}

static bool has_saturated(const tsr_quant_limits *l)
{
    return l->max_saturated != UINT64_MAX;
}

/* Return true if a value is beyond the limit. NaN is beyond all limits. */
static bool is_low(const tsr_quant_limits *l, const tsr_quant_stats *row)
{
    return !(tsr_quant_stats_sqnr(row) >= l->min_sqnr);
}

static bool is_blocky(const tsr_quant_limits *l, const tsr_quant_stats *row)
{
    return !(tsr_quant_stats_worst_block(row) <= l->max_worst_block);
}

static bool is_clipped(const tsr_quant_limits *l, const tsr_quant_stats *row)
{
    return row->saturated > l->max_saturated;
}

static double sqnr_limit(const tsr_quant_limits *l)
{
    return l->min_sqnr;
}

static double block_limit(const tsr_quant_limits *l)
{
    return l->max_worst_block;
}

static double saturated_limit(const tsr_quant_limits *l)
{
    return (double)l->max_saturated;
}

enum { N_LIMITS = 3 };

static const struct {
    const char *option, *check, *key;
    bool (*given)(const tsr_quant_limits *l);
    bool (*is_beyond)(const tsr_quant_limits *l, const tsr_quant_stats *row);
    double (*limit)(const tsr_quant_limits *l);
} kLimits[N_LIMITS] = {
    {"--min-sqnr", "sqnr", "min_sqnr_db", has_sqnr, is_low, sqnr_limit},
    {"--max-worst-block", "worst_block", "max_worst_block_error", has_block, is_blocky, block_limit},
    {"--max-saturated", "saturated", "max_saturated", has_saturated, is_clipped, saturated_limit},
};

const char *tsr_quant_limits_given(const tsr_quant_limits *l)
{
    for (size_t k = 0; k < N_LIMITS; k++) {
        if (kLimits[k].given(l))
            return kLimits[k].option;
    }
    return NULL;
}

/* ---- findings ---- */

/* Findings are ordered by limit, then by step. */
typedef struct cursor {
    size_t limit, step;
} cursor;

static const tsr_tensor *tensor_of(const tsr_step *step)
{
    return step->reported != NULL ? step->reported : step->in[0];
}

static bool is_judged(const tsr_plan *plan, size_t step)
{
    return plan->steps[step].op->stats_of != TSR_STATS_NONE;
}

/* Moves to the next finding. Returns false if there is no other. Begin with {0, SIZE_MAX}. */
static bool next_finding(cursor *at, const tsr_quant_limits *l, const tsr_plan *plan, const tsr_quant_stats *rows)
{
    for (; at->limit < N_LIMITS; at->limit++, at->step = SIZE_MAX) {
        if (!kLimits[at->limit].given(l))
            continue;
        for (at->step++; at->step < plan->n_steps; at->step++) {
            if (is_judged(plan, at->step) && kLimits[at->limit].is_beyond(l, &rows[at->step]))
                return true;
        }
    }
    return false;
}

size_t tsr_quant_limits_count(const tsr_quant_limits *l, const tsr_plan *plan, const tsr_quant_stats *rows)
{
    size_t n = 0;
    for (cursor at = {0, SIZE_MAX}; next_finding(&at, l, plan, rows);)
        n++;
    return n;
}

/* Writes the coordinates of a flat index: "[128, 0]". */
static const char *place_of(const tsr_tensor *x, uint64_t at, char text[192])
{
    uint64_t size = tsr_tensor_elements(x);
    size_t n = 0;
    text[0] = '\0';
    for (unsigned i = 0; i < x->rank && n < 160; i++) {
        size /= x->shape[i];
        n += (size_t)snprintf(text + n, 192 - n, "%s%llu%s", i == 0 ? "[" : ", ", U64(at / size),
                              i + 1 == x->rank ? "]" : "");
        at %= size;
    }
    return text;
}

/* Writes the values of a finding, and its limit. */
static void finding_text(tsr_text *t, const tsr_quant_limits *l, const tsr_plan *plan, const tsr_quant_stats *rows,
                         const cursor *at)
{
    const tsr_quant_stats *const row = &rows[at->step];
    char place[192];
    if (plan->steps[at->step].op->stats_of == TSR_STATS_ORIGINAL)
        tsr_text_printf(t, "against the original: ");
    switch (at->limit) {
    case 0:
        tsr_text_printf(t, "SQNR %.4f dB is below the limit of %g dB; ", tsr_quant_stats_sqnr(row), l->min_sqnr);
        break;
    case 1:
        tsr_text_printf(t, "the block at %s has an error of %.4g, above the limit of %g; ",
                        place_of(tensor_of(&plan->steps[at->step]), row->worst_at, place),
                        tsr_quant_stats_worst_block(row), l->max_worst_block);
        break;
    default:
        tsr_text_printf(t, "%llu values are clipped, above the limit of %llu; ", U64(row->saturated),
                        U64(l->max_saturated));
    }
    tsr_text_printf(t, "the largest error is %.3g, at %s, where amax is %.3g", row->max_error,
                    place_of(tensor_of(&plan->steps[at->step]), row->max_error_at, place), row->amax);
}

static uint64_t count_judged(const tsr_plan *plan)
{
    uint64_t n = 0;
    for (size_t s = 0; s < plan->n_steps; s++)
        n += is_judged(plan, s);
    return n;
}

void tsr_quant_limits_print(const tsr_quant_limits *l, const tsr_plan *plan, const tsr_quant_stats *rows)
{
    const size_t n = tsr_quant_limits_count(l, plan, rows);
    size_t listed = 0;
    if (tsr_quant_limits_given(l) == NULL)
        return;
    if (n > 0)
        tsr_print("beyond the limits:\n");
    for (cursor at = {0, SIZE_MAX}; listed < LISTED && next_finding(&at, l, plan, rows); listed++) {
        tsr_text text = {0};
        finding_text(&text, l, plan, rows, &at);
        tsr_print("      %s: %s\n", tensor_of(&plan->steps[at.step])->name, text.data);
        tsr_text_free(&text);
    }
    if (n > listed)
        tsr_print("      ... and %zu more (--json FILE lists all)\n", n - listed);
    tsr_print_word(n > 0 ? TSR_INK_BAD : TSR_INK_GOOD, n > 0 ? "FAIL" : "PASS", 6);
    tsr_print("limits:");
    for (size_t k = 0; k < N_LIMITS; k++) {
        if (kLimits[k].given(l))
            tsr_print(" %s %g", kLimits[k].option, kLimits[k].limit(l));
    }
    if (n > 0)
        tsr_print("; %zu finding%s\n", n, tsr_plural(n));
    else if (count_judged(plan) == 1)
        tsr_print("; the one quantized tensor is within them");
    else
        tsr_print("; all %llu tensors are within them", U64(count_judged(plan)));
}

static void findings_json(tsr_text *t, const tsr_quant_limits *l, const tsr_plan *plan, const tsr_quant_stats *rows)
{
    tsr_json_member_array(t, "findings", false);
    for (cursor at = {0, SIZE_MAX}; next_finding(&at, l, plan, rows);) {
        tsr_text text = {0};
        finding_text(&text, l, plan, rows, &at);
        tsr_json_begin_object(t, true);
        tsr_json_member_string(t, "check", kLimits[at.limit].check);
        tsr_json_member_string(t, "where", tensor_of(&plan->steps[at.step])->name);
        tsr_json_member_string(t, "what", text.data);
        tsr_json_end_object(t);
        t->failed = t->failed || text.failed;
        tsr_text_free(&text);
    }
    tsr_json_end_array(t);
}

void tsr_quant_limits_json(tsr_text *t, const tsr_quant_limits *l, const tsr_plan *plan, const tsr_quant_stats *rows)
{
    if (tsr_quant_limits_given(l) == NULL)
        return;
    tsr_json_member_bool(t, "passed", tsr_quant_limits_count(l, plan, rows) == 0);
    tsr_json_member_object(t, "limits", true);
    for (size_t k = 0; k < N_LIMITS; k++) {
        if (kLimits[k].given(l))
            tsr_json_member_number(t, kLimits[k].key, kLimits[k].limit(l));
    }
    tsr_json_end_object(t);
    tsr_json_member_object(t, "judged", true);
    for (size_t k = 0; k < N_LIMITS; k++) {
        if (kLimits[k].given(l))
            tsr_json_member_u64(t, kLimits[k].check, count_judged(plan));
    }
    tsr_json_end_object(t);
    findings_json(t, l, plan, rows);
}
