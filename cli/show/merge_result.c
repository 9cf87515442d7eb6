/* Prints the result of a merge. */
#include "cli/show/merge_result.h"

#include "cli/io/output.h"
#include "convert/plans/merge/merge_report.h"
#include "convert/plans/quantize_report.h"

enum { WORST = 10 };

static double percent(uint64_t part, uint64_t whole)
{
    return whole == 0 ? 0 : 100 * (double)part / (double)whole;
}

void tsr_merge_result_print(const tsr_plan *plan, const tsr_quant_stats *rows)
{
    size_t drowned, worst[WORST];
    const tsr_quant_stats whole = tsr_merge_whole(plan, rows, &drowned);
    if (whole.elements == 0)
        return;
    if (whole.sum_x2 == 0) {
        tsr_print("no update: all updates are zero, as in an adapter that was not trained\n");
        return;
    }
    tsr_print("updates: %.2f %% survived rounding, relative error %.5f, %.2f %% of the elements lost\n",
              100 * tsr_merge_survived(&whole), tsr_quant_stats_relative_error(&whole),
              percent(whole.flushed, whole.nonzero));
    const size_t n = tsr_worst_steps(plan, rows, TSR_STATS_UPDATE, TSR_WORST_SQNR, worst, WORST);
    if (n > 0)
        tsr_print("largest errors of updates:\n");
    for (size_t i = 0; i < n; i++) {
        const tsr_quant_stats *const row = &rows[worst[i]];
        tsr_print("  %8.5f  %7.2f %% survived, %6.2f %% of the elements lost  %s", tsr_quant_stats_relative_error(row),
                  100 * tsr_merge_survived(row), percent(row->flushed, row->nonzero),
                  tsr_step_reported(&plan->steps[worst[i]])->name);
        if (tsr_merge_is_drowned(row))
            tsr_print_word(TSR_INK_NOTABLE, "  <- drowned", 0);
        tsr_print("\n");
    }
    if (drowned > 0)
        tsr_print("%zu update%s smaller than the rounding of the format: merge into a BF16 base, or keep the adapter "
                  "separate\n",
                  drowned, drowned == 1 ? " is" : "s are");
}

void tsr_merge_result_json(const tsr_plan *plan, const tsr_quant_stats *rows, tsr_text *t)
{
    size_t drowned;
    if (tsr_merge_whole(plan, rows, &drowned).elements > 0)
        tsr_merge_updates_json(plan, rows, t);
}
