/* Converts the metrics of a comparison to figures of a result, and writes them as JSON. */
#include "cli/show/compare_figures.h"

#include "formats/json/json_write.h"

void tsr_metrics_figures(double figures[TSR_N_FIGURES], const tsr_metrics *m)
{
    figures[TSR_FIGURE_ELEMENTS] = (double)m->elements;
    figures[TSR_FIGURE_DIFFER] = (double)m->differ;
    figures[TSR_FIGURE_NONFINITE_A] = (double)m->nonfinite[0];
    figures[TSR_FIGURE_NONFINITE_B] = (double)m->nonfinite[1];
    figures[TSR_FIGURE_MISROUNDED] = (double)m->misrounded;
    figures[TSR_FIGURE_MISSCALED] = (double)m->misscaled;
    figures[TSR_FIGURE_RELATIVE] = tsr_metrics_relative(m);
    figures[TSR_FIGURE_SQNR] = tsr_metrics_sqnr(m);
    figures[TSR_FIGURE_COSINE] = tsr_metrics_cosine(m);
    figures[TSR_FIGURE_CALC_DIFF] = tsr_metrics_calc_diff(m);
    figures[TSR_FIGURE_MAX_ABS] = m->max_abs;
}

void tsr_compare_figures_json(tsr_text *text, const double figures[TSR_N_FIGURES])
{
    static const tsr_figure kWritten[] = {TSR_FIGURE_ELEMENTS,    TSR_FIGURE_DIFFER,     TSR_FIGURE_NONFINITE_A,
                                          TSR_FIGURE_NONFINITE_B, TSR_FIGURE_MISROUNDED, TSR_FIGURE_MISSCALED,
                                          TSR_FIGURE_RELATIVE,    TSR_FIGURE_SQNR,       TSR_FIGURE_COSINE,
                                          TSR_FIGURE_CALC_DIFF,   TSR_FIGURE_MAX_ABS};
    for (size_t i = 0; i < sizeof kWritten / sizeof *kWritten; i++) {
        const tsr_figure_facts *const figure = tsr_figure_of(kWritten[i]);
        const double value = figures[kWritten[i]];
        if (figure->count)
            tsr_json_member_u64(text, figure->key, (uint64_t)value);
        else
            tsr_json_member_number(text, figure->key, value);
    }
}
