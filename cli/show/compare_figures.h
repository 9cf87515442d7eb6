/* Converts the metrics of a comparison to figures of a result, and writes them as JSON. */
#pragma once

#include "report/model/figures.h"
#include "verify/compare/metrics.h"

/* Sets the figures of the metrics. Others keep their values. */
void tsr_metrics_figures(double figures[TSR_N_FIGURES], const tsr_metrics *metrics);

/* Appends the same figures to the open JSON object. Numbers that are not finite become null. */
void tsr_compare_figures_json(tsr_text *text, const double figures[TSR_N_FIGURES]);
