/* Appends the options that set the limits of `verify weights`. */
#include "verify/compare/limit_options.h"

void tsr_weight_limit_options(tsr_option *options, tsr_weight_limit_texts *texts, tsr_weight_limits *limits)
{
    const tsr_option all[] = {
        {"--min-sqnr", TSR_OPT_TEXT, &texts->min_sqnr, "DB",
         "smallest SQNR of a tensor with scales; less where outliers explain it (30; int4 10; FP4 14)"},
        {"--max-block-error", TSR_OPT_TEXT, &texts->max_block_error, "X",
         "largest relative error of a 128x128 block of a tensor with scales (0.0626)"},
        {"--max-misrounded", TSR_OPT_COUNT, &limits->max_misrounded, "N",
         "largest number of codes of a tensor that are not the nearest (0)"},
        {"--method", TSR_OPT_CHOICE, &texts->method, "rtn|importance|gptq",
         "how DST was made: rtn: the nearest codes; importance: also scales by weighted errors, which are not judged; "
         "gptq: also other codes, so that --max-misrounded does not apply (rtn)"},
        {"--max-cast-error", TSR_OPT_TEXT, &texts->max_cast_error, "X",
         "largest relative error of a block that was cast without scales (0.00390625)"},
        {0},
    };
    tsr_options_append_topic(options, "Limits", all);
}

enum { IMPORTANCE = 1, GPTQ /* the words of --method */ };

tsr_status tsr_weight_limits_parse(tsr_weight_limits *limits, const tsr_weight_limit_texts *texts, tsr_err *err)
{
    TSR_TRY(tsr_parse_number("--min-sqnr", texts->min_sqnr, TSR_ANY_NUMBER, &limits->min_sqnr, err));
    if (texts->method == GPTQ && limits->max_misrounded != 0)
        return tsr_fail(err, TSR_E_USAGE, "--method gptq and --max-misrounded: give one of them");
    if (texts->method == GPTQ)
        limits->max_misrounded = UINT64_MAX;
    limits->any_scales = texts->method >= IMPORTANCE;
    if (texts->min_sqnr != NULL) {
        limits->min_sqnr_int4 = limits->min_sqnr_fp4 = limits->min_sqnr;
        limits->max_int_cost = 0;
    }
    limits->asks_block_error = texts->max_block_error != NULL;
    TSR_TRY(
        tsr_parse_number("--max-block-error", texts->max_block_error, TSR_FROM_ZERO, &limits->max_block_error, err));
    return tsr_parse_number("--max-cast-error", texts->max_cast_error, TSR_FROM_ZERO, &limits->max_cast_error, err);
}
