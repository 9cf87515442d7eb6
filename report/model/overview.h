/* Sums up a result for all writers: quantiles, groups of tensors, outliers, and the worst tensors. */
#pragma once

#include "report/model/result.h"

typedef enum tsr_grouping {
    TSR_BY_LAYER,
    TSR_BY_MODULE, /* kind of module: q_proj, experts.down_proj */
    TSR_BY_EXPERT, /* number of the expert, over all layers */
    TSR_BY_WHAT,   /* the judged subject, such as a stage of attention */
    TSR_N_GROUPINGS,
} tsr_grouping;

/* Returns "layer", "module", "expert" or "stage". Static storage. */
const char *tsr_grouping_name(tsr_grouping grouping);

/* A group of rows. Figures are NaN if no row of the group has them. */
typedef struct tsr_tensor_group {
    const char *label;           /* "3", or "visual.blocks.3" in models with several stacks; "q_proj" */
    uint32_t number;             /* number of layer or expert; TSR_NO_NUMBER: none */
    uint32_t first, count;       /* position of its rows in `order`, lowest SQNR first */
    double lowest, median;       /* SQNR */
    double relative;             /* the largest relative error */
    double worst_block;          /* the largest error of a block */
    uint32_t block_row;          /* row of that block; TSR_NO_ROW: none */
    size_t failed;               /* rows that failed */
    bool outlier, block_outlier; /* far worse than the other groups */
} tsr_tensor_group;

typedef struct tsr_groups {
    uint32_t *order; /* rows */
    tsr_tensor_group *items;
    size_t count;
    size_t outliers;
} tsr_groups;

/* Compares pointers to groups of one array by their lowest SQNR, worst first, for qsort. */
int tsr_worst_group_first(const void *a, const void *b);

enum { TSR_N_QUANTILES = 6, TSR_MOST_WORST = 10 };

/* Names of the quantiles: "min", "1 %", ..., and their positions from 0 to 1. Static storage. */
extern const char *const tsr_quantile_names[TSR_N_QUANTILES];
extern const char *const tsr_quantile_keys[TSR_N_QUANTILES];

/* SQNR over the rows of a series. */
typedef struct tsr_spread {
    size_t rows, measured;             /* rows with an SQNR, lossless ones included */
    size_t lossless;                   /* lossless rows, which the quantiles exclude */
    double quantiles[TSR_N_QUANTILES]; /* NaN: no row has an error */
} tsr_spread;

typedef struct tsr_overview {
    const tsr_result *result; /* borrowed */
    tsr_spread *spreads;      /* one per series */
    bool charted;             /* true if there is a series to chart; its number */
    uint32_t series;
    tsr_groups groups[TSR_N_GROUPINGS];
    uint32_t lowest[TSR_MOST_WORST], blocks[TSR_MOST_WORST]; /* rows by SQNR and by worst block, worst first */
    size_t n_lowest, n_blocks;
    size_t passed, failed, skipped; /* rows by outcome */
    tsr_arena arena;
} tsr_overview;

/* Sums up a result, which must outlive the overview. After a failure there is nothing to free. */
tsr_status tsr_overview_make(tsr_overview *overview, const tsr_result *result, tsr_err *err);

/* Returns the number of findings of a check. */
size_t tsr_count_findings(const tsr_result *result, const char *check);

void tsr_overview_free(tsr_overview *overview);

/* Returns the label of the layer that contains a name, or "outside of layers". In the arena; NULL: no memory. */
const char *tsr_layer_label(const char *name, tsr_arena *arena);
