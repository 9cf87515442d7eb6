/* Names of the weight checks, their default limits, and the list of findings. */
#include "verify/compare/check_weights_values.h"

#include "common/grow.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

tsr_weight_limits tsr_weight_limits_defaults(void)
{
    return (tsr_weight_limits){
        .min_sqnr = 30,
        .min_sqnr_int4 = 10,
        .min_sqnr_fp4 = 14,
        .max_int_cost = 3.1,
        .max_block_error = 0.0626,
        .max_cast_error = 0x1p-8,
    };
}

const char *tsr_check_name(tsr_check check)
{
    static const char *const kNames[] = {"names", "shapes", "scales", "codes", "values", "blocks", "config"};
    return kNames[check];
}

const char *tsr_check_title(tsr_check check)
{
    static const char *const kTitles[] = {
        "every tensor of the source exists under its name",
        "every tensor has its shape",
        "scales are positive normal numbers, of the kind that config.json states",
        "no value of codes is NaN or Inf, and no other value that is finite in the source",
        "errors of values are within the limits",
        "no block would have a much smaller error with another scale",
        "config.json agrees with the source and with the tensors",
    };
    return kTitles[check];
}

const char *tsr_check_failure(tsr_check check)
{
    static const char *const kFailures[] = {
        "tensors are missing, extra or misnamed",
        "tensors have another shape than in the source",
        "scales are out of range, or not of the kind that config.json states",
        "values of codes are NaN or Inf, or other values that are finite in the source",
        "errors of values are beyond the limits",
        "blocks would have a much smaller error with another scale",
        "config.json disagrees with the source or with the tensors",
    };
    return kFailures[check];
}

tsr_status tsr_add_finding(const tsr_weights_checking *k, tsr_check check, const char *where, const char *fmt, ...)
{
    tsr_findings *const f = k->out;
    char text[TSR_FINDING_TEXT];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (!tsr_grow(&f->items, f->count, &f->capacity, sizeof *f->items))
        return tsr_out_of_memory(k->err, "for findings");
    const tsr_finding finding = {check, tsr_arena_dup(&f->arena, where, strlen(where)),
                                 tsr_arena_dup(&f->arena, text, strlen(text))};
    if (finding.where == NULL || finding.text == NULL)
        return tsr_out_of_memory(k->err, "for findings");
    f->items[f->count++] = finding;
    return TSR_OK;
}

void tsr_findings_free(tsr_findings *findings)
{
    free(findings->items);
    tsr_arena_free(&findings->arena);
    *findings = (tsr_findings){0};
}
