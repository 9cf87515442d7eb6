/* Lists the figures of results in one table: names for JSON and text, and the direction of a change for the worse.
 *
 * Readers fill figures by key. Every writer takes the names from here. */
#pragma once

#include "common/text.h"

typedef enum tsr_figure {
    TSR_FIGURE_SQNR,
    TSR_FIGURE_WEIGHTED_SQNR, /* with --importance */
    TSR_FIGURE_RELATIVE,
    TSR_FIGURE_WORST_BLOCK,
    TSR_FIGURE_MAX_ABS,
    TSR_FIGURE_COSINE,
    TSR_FIGURE_CALC_DIFF,
    TSR_FIGURE_OF_BOUND,
    TSR_FIGURE_OF_EXPECTED,
    TSR_FIGURE_AGREEMENT,
    TSR_FIGURE_TOKEN_AGREEMENT,
    TSR_FIGURE_KL_MEAN,
    TSR_FIGURE_KL_MAX,
    TSR_FIGURE_SATURATED,
    TSR_FIGURE_FLUSHED,
    TSR_FIGURE_MISROUNDED,
    TSR_FIGURE_MISSCALED,
    TSR_FIGURE_NONFINITE_A,
    TSR_FIGURE_NONFINITE_B,
    TSR_FIGURE_DIFFER,
    TSR_FIGURE_ELEMENTS,
    TSR_FIGURE_NONZERO,
    TSR_FIGURE_BLOCKS,
    TSR_FIGURE_ZERO_BLOCKS,
    TSR_FIGURE_AMAX,
    TSR_FIGURE_SCALE_MIN,
    TSR_FIGURE_SCALE_MEDIAN,
    TSR_FIGURE_SCALE_MAX,
    TSR_FIGURE_BYTES,
    TSR_FIGURE_TENSORS,
    TSR_FIGURE_PARAMETERS,
    TSR_FIGURE_QUANTIZED,
    TSR_FIGURE_ERROR,    /* plan-schemes: the cost of a choice */
    TSR_FIGURE_SURVIVED, /* merge: the share of an update that was stored */
    TSR_FIGURE_LOST,     /* merge: elements whose update left no change */
    TSR_FIGURE_SECONDS,
    TSR_N_FIGURES,
} tsr_figure;

/* Comparison of two values of a figure, in dB. */
typedef enum tsr_change {
    TSR_CHANGE_NONE,
    TSR_CHANGE_DB,        /* already in dB; lower is worse */
    TSR_CHANGE_AMPLITUDE, /* an error: 20 lg (new / old) */
    TSR_CHANGE_ENERGY,    /* an error squared: 10 lg (new / old) */
} tsr_change;

typedef struct tsr_figure_facts {
    const char *key, *title;
    bool count; /* a whole number, never negative */
    tsr_change change;
} tsr_figure_facts;

const tsr_figure_facts *tsr_figure_of(tsr_figure figure);

/* A measure that diff orders tensors by. */
typedef struct tsr_diff_metric {
    const char *name; /* as in --metric and in JSON */
    tsr_figure figure;
} tsr_diff_metric;

enum { TSR_DIFF_METRICS = 4 };
extern const tsr_diff_metric tsr_diff_metrics[TSR_DIFF_METRICS];

/* Returns by how many dB `now` is worse than `before`. Negative: better. 0: a value is unknown (NaN), or the figure
 * is not compared. Infinite: there was no error before. */
double tsr_figure_loss(tsr_figure figure, double before, double now);

/* Writes "31.52 dB", "0.0265", "nothing lost", or "-" if unknown, with few digits for people. */
void tsr_figure_text(tsr_text *text, tsr_figure figure, double value);
