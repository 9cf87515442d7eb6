/* Defines the table of figures, and compares and prints them. */
#include "report/model/figures.h"

#include <math.h>

static const tsr_figure_facts kFigures[TSR_N_FIGURES] = {
    [TSR_FIGURE_SQNR] = {"sqnr_db", "SQNR", false, TSR_CHANGE_DB},
    [TSR_FIGURE_WEIGHTED_SQNR] = {"weighted_sqnr_db", "weighted SQNR", false, TSR_CHANGE_DB},
    [TSR_FIGURE_RELATIVE] = {"relative_error", "relative error", false, TSR_CHANGE_NONE},
    [TSR_FIGURE_WORST_BLOCK] = {"worst_block_error", "worst block", false, TSR_CHANGE_AMPLITUDE},
    [TSR_FIGURE_MAX_ABS] = {"max_abs_error", "largest error", false, TSR_CHANGE_NONE},
    [TSR_FIGURE_COSINE] = {"cosine", "cosine", false, TSR_CHANGE_NONE},
    [TSR_FIGURE_CALC_DIFF] = {"calc_diff", "calc_diff", false, TSR_CHANGE_NONE},
    [TSR_FIGURE_OF_BOUND] = {"of_bound", "of the bound", false, TSR_CHANGE_NONE},
    [TSR_FIGURE_OF_EXPECTED] = {"of_expected_rms", "of the expected RMS", false, TSR_CHANGE_NONE},
    [TSR_FIGURE_AGREEMENT] = {"agreement", "agreement", false, TSR_CHANGE_NONE},
    [TSR_FIGURE_TOKEN_AGREEMENT] = {"token_agreement", "tokens chosen alike", false, TSR_CHANGE_NONE},
    [TSR_FIGURE_KL_MEAN] = {"kl_mean_nats", "mean KL divergence", false, TSR_CHANGE_ENERGY},
    [TSR_FIGURE_KL_MAX] = {"kl_max_nats", "largest KL divergence", false, TSR_CHANGE_NONE},
    [TSR_FIGURE_SATURATED] = {"saturated", "saturated", true, TSR_CHANGE_NONE},
    [TSR_FIGURE_FLUSHED] = {"flushed", "flushed to zero", true, TSR_CHANGE_NONE},
    [TSR_FIGURE_MISROUNDED] = {"misrounded", "misrounded codes", true, TSR_CHANGE_NONE},
    [TSR_FIGURE_MISSCALED] = {"misscaled", "misscaled groups", true, TSR_CHANGE_NONE},
    [TSR_FIGURE_NONFINITE_A] = {"nonfinite_a", "NaN or Inf in the source", true, TSR_CHANGE_NONE},
    [TSR_FIGURE_NONFINITE_B] = {"nonfinite_b", "NaN or Inf in the output", true, TSR_CHANGE_NONE},
    [TSR_FIGURE_DIFFER] = {"differ", "values that differ", true, TSR_CHANGE_NONE},
    [TSR_FIGURE_ELEMENTS] = {"elements", "elements", true, TSR_CHANGE_NONE},
    [TSR_FIGURE_NONZERO] = {"nonzero", "nonzero", true, TSR_CHANGE_NONE},
    [TSR_FIGURE_BLOCKS] = {"blocks", "blocks", true, TSR_CHANGE_NONE},
    [TSR_FIGURE_ZERO_BLOCKS] = {"zero_blocks", "blocks of zeros", true, TSR_CHANGE_NONE},
    [TSR_FIGURE_AMAX] = {"amax", "amax", false, TSR_CHANGE_NONE},
    [TSR_FIGURE_SCALE_MIN] = {"scale_min", "least scale", false, TSR_CHANGE_NONE},
    [TSR_FIGURE_SCALE_MEDIAN] = {"scale_median", "median scale", false, TSR_CHANGE_NONE},
    [TSR_FIGURE_SCALE_MAX] = {"scale_max", "largest scale", false, TSR_CHANGE_NONE},
    [TSR_FIGURE_BYTES] = {"bytes", "bytes", true, TSR_CHANGE_NONE},
    [TSR_FIGURE_TENSORS] = {"tensors", "tensors", true, TSR_CHANGE_NONE},
    [TSR_FIGURE_PARAMETERS] = {"parameters", "parameters", true, TSR_CHANGE_NONE},
    [TSR_FIGURE_QUANTIZED] = {"quantized", "quantized", true, TSR_CHANGE_NONE},
    [TSR_FIGURE_ERROR] = {"error", "error", false, TSR_CHANGE_ENERGY},
    [TSR_FIGURE_SURVIVED] = {"survived", "update that survived", false, TSR_CHANGE_NONE},
    [TSR_FIGURE_LOST] = {"lost", "updates lost", true, TSR_CHANGE_NONE},
    [TSR_FIGURE_SECONDS] = {"kernel_seconds", "seconds", false, TSR_CHANGE_NONE},
};

const tsr_diff_metric tsr_diff_metrics[TSR_DIFF_METRICS] = {
    {"relative", TSR_FIGURE_RELATIVE},
    {"max-abs", TSR_FIGURE_MAX_ABS},
    {"calc-diff", TSR_FIGURE_CALC_DIFF},
    {"sqnr", TSR_FIGURE_SQNR},
};

const tsr_figure_facts *tsr_figure_of(tsr_figure figure)
{
    return &kFigures[figure];
}

double tsr_figure_loss(tsr_figure figure, double before, double now)
{
    const tsr_change change = kFigures[figure].change;
    if (change == TSR_CHANGE_NONE || isnan(before) || isnan(now) || before == now)
        return 0;
    if (change == TSR_CHANGE_DB)
        return before - now;
    /* The loss is infinite if there was no error before; the gain is infinite if there is none now. */
    return (change == TSR_CHANGE_AMPLITUDE ? 20 : 10) * log10(now / before);
}

void tsr_figure_text(tsr_text *text, tsr_figure figure, double value)
{
    if (isnan(value))
        tsr_text_printf(text, "-");
    else if (isinf(value) && kFigures[figure].change == TSR_CHANGE_DB)
        tsr_text_printf(text, value > 0 ? "nothing lost" : "all lost");
    else if (kFigures[figure].change == TSR_CHANGE_DB)
        tsr_text_printf(text, "%.2f dB", value);
    else
        tsr_text_printf(text, kFigures[figure].count ? "%.0f" : "%.3g", value);
}
