/* Compares the statistics of a run that quantizes or merges with limits. */
#include "cli/show/quant_limits.h"

#include "cli/io/output.h"
#include "cli/io/results.h"
#include "convert/plans/merge/merge_report.h"
#include "formats/json/json_write.h"

#include <stdio.h>

enum { LISTED = 20 };

tsr_quant_limits tsr_quant_limits_defaults(void)
{
    return (tsr_quant_limits){.max_saturated = UINT64_MAX};
}

void tsr_quant_limits_options(tsr_quant_limits *l, tsr_option *options)
{
    const tsr_option own[] = {
        {"--min-sqnr", TSR_OPT_TEXT, &l->texts[TSR_LIMIT_SQNR], "DB",
         "smallest allowed SQNR of a quantized tensor; below it the exit code is 1, and the output is kept (none)"},
        {"--max-worst-block", TSR_OPT_TEXT, &l->texts[TSR_LIMIT_WORST_BLOCK], "X",
         "largest allowed error of a block, as worst_block_error in the report (none)"},
        {"--max-saturated", TSR_OPT_COUNT, &l->max_saturated, "N",
         "largest allowed number of clamped values of a tensor (none)"},
        {0},
    };
    tsr_options_append_topic(options, "Limits", own);
}

void tsr_update_limits_options(tsr_quant_limits *l, tsr_option *options)
{
    const tsr_option own[] = {
        {"--min-survived", TSR_OPT_TEXT, &l->texts[TSR_LIMIT_SURVIVED], "X",
         "smallest allowed share, from 0 to 1, of an update that was stored, as survived in the report; below it the "
         "exit code is 1, and the output is kept (none)"},
        {"--max-update-error", TSR_OPT_TEXT, &l->texts[TSR_LIMIT_UPDATE_ERROR], "X",
         "largest allowed relative_error of an update; from 1 on it is drowned by rounding (none)"},
        {0},
    };
    tsr_options_append_topic(options, "Limits", own);
}

/* ---- the limits by name ---- */

static double saturated_of(const tsr_quant_stats *row)
{
    return (double)row->saturated;
}

static const struct {
    const char *option, *check, *key;
    tsr_range range;
    double (*measure)(const tsr_quant_stats *row);
    bool is_least; /* smaller values are beyond the limit, not larger ones */
} kLimits[TSR_QUANT_LIMITS] = {
    {"--min-sqnr", "sqnr", "min_sqnr_db", TSR_ANY_NUMBER, tsr_quant_stats_sqnr, true},
    {"--max-worst-block", "worst_block", "max_worst_block_error", TSR_FROM_ZERO, tsr_quant_stats_worst_block, false},
    {"--max-saturated", "saturated", "max_saturated", TSR_FROM_ZERO, saturated_of, false},
    {"--min-survived", "survived", "min_survived", TSR_SHARE, tsr_merge_survived, true},
    {"--max-update-error", "update_error", "max_update_error", TSR_FROM_ZERO, tsr_quant_stats_relative_error, false},
};

static bool is_given(const tsr_quant_limits *l, size_t k)
{
    return k == TSR_LIMIT_SATURATED ? l->max_saturated != UINT64_MAX : l->texts[k] != NULL;
}

static double limit_of(const tsr_quant_limits *l, size_t k)
{
    return k == TSR_LIMIT_SATURATED ? (double)l->max_saturated : l->values[k];
}

/* Returns true if a value is beyond the limit. NaN is beyond all limits. */
static bool is_beyond(const tsr_quant_limits *l, size_t k, const tsr_quant_stats *row)
{
    const double value = kLimits[k].measure(row), limit = limit_of(l, k);
    return kLimits[k].is_least ? !(value >= limit) : !(value <= limit);
}

tsr_status tsr_quant_limits_parse(tsr_quant_limits *l, tsr_err *err)
{
    for (size_t k = 0; k < TSR_QUANT_LIMITS; k++)
        TSR_TRY(tsr_parse_number(kLimits[k].option, l->texts[k], kLimits[k].range, &l->values[k], err));
    return TSR_OK;
}

const char *tsr_quant_limits_given(const tsr_quant_limits *l)
{
    for (size_t k = 0; k < TSR_QUANT_LIMITS; k++) {
        if (is_given(l, k))
            return kLimits[k].option;
    }
    return NULL;
}

/* ---- findings ---- */

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

/* Returns the values of a finding, and its limit. NULL: out of memory. */
static const char *finding_text(tsr_arena *arena, const tsr_quant_limits *l, size_t limit, const tsr_step *step,
                                const tsr_quant_stats *row)
{
    char place[192];
    tsr_text t = {0};
    if (step->op->stats_of == TSR_STATS_ORIGINAL)
        tsr_text_printf(&t, "against the original: ");
    switch (limit) {
    case TSR_LIMIT_SQNR:
        tsr_text_printf(&t, "SQNR %.4f dB is below the limit of %g dB; ", tsr_quant_stats_sqnr(row), l->values[limit]);
        break;
    case TSR_LIMIT_WORST_BLOCK:
        tsr_text_printf(&t, "the block at %s has an error of %.4g, above the limit of %g; ",
                        place_of(tsr_step_reported(step), row->worst_at, place), tsr_quant_stats_worst_block(row),
                        l->values[limit]);
        break;
    case TSR_LIMIT_SATURATED:
        tsr_text_printf(&t, "%llu values are clipped, above the limit of %llu; ", U64(row->saturated),
                        U64(l->max_saturated));
        break;
    case TSR_LIMIT_SURVIVED:
        tsr_text_printf(&t, "%.4f of the update survived, below the limit of %g; relative error %.5f",
                        tsr_merge_survived(row), l->values[limit], tsr_quant_stats_relative_error(row));
        break;
    default:
        tsr_text_printf(&t, "the update has a relative error of %.5f, above the limit of %g; %.4f of it survived",
                        tsr_quant_stats_relative_error(row), l->values[limit], tsr_merge_survived(row));
    }
    if (step->op->stats_of != TSR_STATS_UPDATE)
        tsr_text_printf(&t, "the largest error is %.3g, at %s, where amax is %.3g", row->max_error,
                        place_of(tsr_step_reported(step), row->max_error_at, place), row->amax);
    const char *const text = t.failed ? NULL : tsr_arena_dup(arena, t.data, t.size);
    tsr_text_free(&t);
    return text;
}

static tsr_status judge(tsr_result *result, const tsr_quant_limits *l, size_t limit, const tsr_plan *plan,
                        const tsr_quant_stats *rows, tsr_err *err)
{
    uint64_t judged = 0;
    for (size_t s = 0; s < plan->n_steps; s++) {
        const tsr_stats_of of = plan->steps[s].op->stats_of;
        if (of == TSR_STATS_NONE || (of == TSR_STATS_UPDATE && rows[s].sum_x2 == 0)) /* there is no update */
            continue;
        judged++;
        if (!is_beyond(l, limit, &rows[s]))
            continue;
        const tsr_result_finding finding = {
            .check = kLimits[limit].check,
            .where = tsr_step_reported(&plan->steps[s])->name,
            .text = finding_text(&result->arena, l, limit, &plan->steps[s], &rows[s]),
            .row = TSR_NO_ROW,
            .fatal = true,
        };
        if (finding.text == NULL)
            return tsr_out_of_memory(err, NULL);
        TSR_TRY(tsr_result_add_finding(result, &finding, err));
    }
    return tsr_result_add_check(result, kLimits[limit].check, judged, err);
}

tsr_status tsr_quant_limits_judge(tsr_result *result, const tsr_quant_limits *l, const tsr_plan *plan,
                                  const tsr_quant_stats *rows, tsr_err *err)
{
    for (size_t k = 0; k < TSR_QUANT_LIMITS; k++) {
        if (is_given(l, k))
            TSR_TRY(judge(result, l, k, plan, rows, err));
    }
    return TSR_OK;
}

/* ---- text and JSON ---- */

void tsr_quant_limits_print(const tsr_quant_limits *l, const tsr_result *result)
{
    const bool limited = tsr_quant_limits_given(l) != NULL;
    const size_t n = result->n_findings;
    if (result->n_checks == 0 || (!limited && n == 0))
        return;
    if (n > 0)
        tsr_print("beyond the limits:\n");
    for (size_t i = 0; i < n && i < LISTED; i++)
        tsr_print("      %s: %s\n", result->findings[i].where, result->findings[i].text);
    if (n > LISTED)
        tsr_print("      ... and %zu more (--json FILE lists all)\n", n - LISTED);
    tsr_print_word(n > 0 ? TSR_INK_BAD : TSR_INK_GOOD, n > 0 ? "FAIL" : "PASS", 6);
    tsr_print(limited ? "limits:" : "proof");
    for (size_t k = 0; k < TSR_QUANT_LIMITS; k++) {
        if (is_given(l, k))
            tsr_print(" %s %g", kLimits[k].option, limit_of(l, k));
    }
    if (n > 0)
        tsr_print("; %zu finding%s\n", n, tsr_plural(n));
    else if (result->checks->judged == 1)
        tsr_print("; the one tensor is within them\n");
    else
        tsr_print("; all %llu tensors are within them\n", U64(result->checks->judged));
}

void tsr_quant_limits_json(tsr_text *t, const tsr_quant_limits *l, const tsr_result *result)
{
    if (result->n_checks == 0)
        return;
    tsr_json_member_bool(t, "passed", result->n_findings == 0);
    tsr_json_member_object(t, "limits", true);
    for (size_t k = 0; k < TSR_QUANT_LIMITS; k++) {
        if (is_given(l, k))
            tsr_json_member_number(t, kLimits[k].key, limit_of(l, k));
    }
    tsr_json_end_object(t);
    tsr_checks_json(t, result);
}
