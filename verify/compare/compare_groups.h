/* Checks the scales of small groups against their rule, while two checkpoints are compared. */
#pragma once

#include "verify/compare/metrics.h"
#include "verify/values/weight_reader.h"

enum { TSR_MAX_GROUP = 32 };

/* Buffer for groups that run down columns. */
typedef struct tsr_group_values {
    double x[TSR_MAX_GROUP * TSR_TILE], y[TSR_MAX_GROUP * TSR_TILE];
} tsr_group_values;

/* Checks the groups of row `row` of a chunk with values x and y; y comes from `reader`. */
void tsr_check_groups_along(const tsr_weight_reader *reader, const tsr_piece *chunk, uint64_t row, const double *x,
                            const double *y, const tsr_group_rule *rule, tsr_metrics *metrics);

/* Checks a whole chunk whose groups run down the columns: readers[0] has x, readers[1] y. */
void tsr_check_groups_down(const tsr_weight_reader readers[2], const tsr_piece *chunk, const tsr_group_rule *rule,
                           tsr_group_values *values, tsr_metrics *metrics);

/* Returns the flat index of a value. */
uint64_t tsr_flat_index(const tsr_view *view, uint64_t matrix, uint64_t row, uint64_t col);
