/* A result summed up: quantiles, groups of tensors, outliers among them, and the worst tensors. All writers show this. */
#ifndef TSR_REPORT_OVERVIEW_H
#define TSR_REPORT_OVERVIEW_H

#include "report/model.h"

typedef enum tsr_grouping {
    TSR_BY_LAYER,
    TSR_BY_MODULE, /* kind of module: q_proj, experts.down_proj */
    TSR_BY_EXPERT, /* number of the expert, over all layers */
    TSR_BY_WHAT,   /* what was judged, such as a stage of attention */
    TSR_N_GROUPINGS,
} tsr_grouping;

/* "layer", "module", "expert", "stage". Static storage. */
const char *tsr_grouping_name(tsr_grouping grouping);

/* Figures are NaN where no row of the group has them. */
typedef struct tsr_group {
    const char *label;           /* "3", or "visual.blocks.3" where a model has several stacks; "q_proj" */
    uint32_t number;             /* of layer or expert; TSR_NO_NUMBER: outside of layers, or not a number */
    uint32_t first, count;       /* its rows in the order of the groups, lowest SQNR first */
    double lowest, median;       /* SQNR */
    double relative;             /* the largest relative error */
    double worst_block;          /* the largest error of a block */
    uint32_t block_row;          /* the row of that block; TSR_NO_ROW: none */
    size_t failed;               /* rows that failed */
    bool outlier, block_outlier; /* far worse than groups of its kind usually are */
} tsr_group;

typedef struct tsr_groups {
    uint32_t *order; /* rows */
    tsr_group *items;
    size_t count;
    size_t outliers;
} tsr_groups;

enum { TSR_N_QUANTILES = 6, TSR_MOST_WORST = 10 };

/* The quantiles' names: "min", "1 %", ... and their places from 0 to 1. Static storage. */
extern const char *const tsr_quantile_names[TSR_N_QUANTILES];
extern const char *const tsr_quantile_keys[TSR_N_QUANTILES];

/* SQNR over the rows of a series. */
typedef struct tsr_spread {
    size_t rows, measured;             /* those with an SQNR, nothing lost included */
    size_t lossless;                   /* nothing lost; not among the quantiles */
    double quantiles[TSR_N_QUANTILES]; /* NaN: no row lost anything */
} tsr_spread;

typedef struct tsr_overview {
    const tsr_result *result; /* borrowed */
    tsr_spread *spreads;      /* of each series */
    bool charted;             /* whether there is a series to chart, and its number */
    uint32_t series;
    tsr_groups groups[TSR_N_GROUPINGS];
    uint32_t lowest[TSR_MOST_WORST], blocks[TSR_MOST_WORST]; /* rows by SQNR and by worst block, worst first */
    size_t n_lowest, n_blocks;
    size_t passed, failed, skipped; /* rows by outcome */
    tsr_arena arena;
} tsr_overview;

/* After a failure there is nothing to free. `result` has to live as long. */
tsr_status tsr_overview_make(tsr_overview *overview, const tsr_result *result, tsr_err *err) TSR_WARN_UNUSED;

/* How many findings a check has. */
size_t tsr_count_findings(const tsr_result *result, const char *check);

void tsr_overview_free(tsr_overview *overview);

/* The label of the layer that a name stands in, "outside of layers" when in none. In the arena; NULL: no memory. */
const char *tsr_layer_label(const char *name, tsr_arena *arena);

#endif
