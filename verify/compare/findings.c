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
