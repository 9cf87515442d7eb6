/* Draws the checks of a result with their findings, and findings of other checks. */
#include "report/write/terminal/terminal_parts.h"

#include <string.h>

tsr_ink tsr_outcome_ink(tsr_outcome outcome)
{
    static const tsr_ink kInks[] = {[TSR_OUTCOME_NONE] = TSR_INK_BOLD,
                                    [TSR_OUTCOME_PASSED] = TSR_INK_GOOD,
                                    [TSR_OUTCOME_FAILED] = TSR_INK_BAD,
                                    [TSR_OUTCOME_SKIPPED] = TSR_INK_NOTABLE};
    return kInks[outcome];
}

static bool is_check(const tsr_result *result, const char *name)
{
    for (size_t i = 0; i < result->n_checks; i++) {
        if (strcmp(result->checks[i].name, name) == 0)
            return true;
    }
    return false;
}

/* Draws a line with the verdict of a check, after `indent` spaces. */
static void draw_check(tsr_text *text, const tsr_style *style, const tsr_result *result, const tsr_check_facts *check,
                       unsigned indent)
{
    const tsr_check_text *const about = tsr_check_text_of(result, check->name);
    const size_t n = tsr_count_findings(result, check->name);
    const tsr_outcome outcome = n > 0                                ? TSR_OUTCOME_FAILED
                                : check->judged > 0 || about != NULL ? TSR_OUTCOME_PASSED
                                                                     : TSR_OUTCOME_SKIPPED;
    tsr_text line = {0};
    tsr_text_printf(text, "%*s", (int)indent, "");
    tsr_draw_fitted(text, style, tsr_outcome_ink(outcome), tsr_verdict_word(outcome), 6);
    tsr_text_printf(&line, "%-7s ", check->name);
    if (n > 0 && about != NULL)
        tsr_text_printf(&line, "%s: ", about->failed);
    if (n > 0)
        tsr_text_printf(&line, "%zu finding%s", n, tsr_plural(n));
    else if (about != NULL)
        tsr_text_printf(&line, "%s%s", about->passed, check->judged == 0 ? " (no judgement applies)" : "");
    else if (check->judged > 0)
        tsr_text_printf(&line, "%llu judged", U64(check->judged));
    else
        tsr_text_printf(&line, "no judgement applies");
    tsr_draw_line(text, style, indent + 6, indent + 6, &line);
}

void tsr_draw_checks(tsr_text *text, const tsr_style *style, const tsr_result *result, unsigned indent, size_t most)
{
    for (size_t c = 0; c < result->n_checks; c++) {
        size_t n = 0;
        draw_check(text, style, result, &result->checks[c], indent);
        for (size_t i = 0; i < result->n_findings; i++) {
            const tsr_result_finding *const f = &result->findings[i];
            tsr_text line = {0};
            if (strcmp(f->check, result->checks[c].name) != 0 || ++n > most)
                continue;
            tsr_text_printf(text, "%*s", (int)indent + 6, "");
            tsr_text_printf(&line, "%s: %s", f->where, f->text);
            tsr_draw_line(text, style, indent + 6, indent + 8, &line);
        }
        if (n > most)
            tsr_draw_omitted(text, style, indent + 6, n - most, "");
    }
}

void tsr_draw_findings(tsr_text *text, const tsr_style *style, const tsr_result *result, size_t most)
{
    size_t found = 0;
    for (unsigned pass = 0; pass < 2; pass++) { /* errors, then warnings */
        for (size_t i = 0; i < result->n_findings; i++) {
            const tsr_result_finding *const f = &result->findings[i];
            if (f->fatal != (pass == 0) || is_check(result, f->check) || ++found > most)
                continue;
            tsr_text_printf(text, found == 1 ? "\n  " : "  ");
            tsr_draw_fitted(text, style, f->fatal ? TSR_INK_BAD : TSR_INK_NOTABLE, f->fatal ? "FAIL" : "warn", 6);
            tsr_draw(text, style, TSR_INK_BOLD, f->where);
            tsr_text_printf(text, "\n        ");
            tsr_text line = {0};
            tsr_text_printf(&line, "%s: %s", f->check, f->text);
            tsr_draw_line(text, style, 8, 8, &line);
        }
    }
    if (found > most)
        tsr_draw_omitted(text, style, 2, found - most, " findings");
}
