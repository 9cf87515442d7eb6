/* Maps the blocks of a weight to the cells of its map.
 *
 * A block is a set of elements with one scale: 128 x 128 elements, a row, or a group of columns. A map has a cell for
 * each block or, if these are too many, for a rectangle of 2^fold[0] matrices x 2^fold[1] rows of blocks x 2^fold[2]
 * blocks of a row. A cell has the worst value of its blocks. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TSR_BLOCK_AXES = 3 }; /* matrices, rows, columns */

typedef struct tsr_block_map {
    uint64_t shape[TSR_BLOCK_AXES]; /* elements; shape[0] is the number of stacked matrices, or 1 */
    uint64_t block[TSR_BLOCK_AXES]; /* elements of a block; block[0] is 1. Blocks at the edges may be smaller */
    uint8_t fold[TSR_BLOCK_AXES];
} tsr_block_map;

/* Returns the number of cells along an axis. */
uint64_t tsr_block_map_extent(const tsr_block_map *map, unsigned axis);

/* Returns the number of cells. The product does not overflow for maps that passed tsr_block_map_check. */
uint64_t tsr_block_map_cells(const tsr_block_map *map);

/* Returns true if the map is valid: no axis is empty, blocks are no larger than the matrix, and element counts fit. */
bool tsr_block_map_check(const tsr_block_map *map);

/* Folds the map until it has at most `most` cells (at least 1). Folds rows or columns of blocks so that cells stay
 * nearly square in elements, and matrices only when each is a single cell. */
void tsr_block_map_fold(tsr_block_map *map, uint64_t most);
