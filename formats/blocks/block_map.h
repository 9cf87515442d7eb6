/* The blocks of a weight, and the cells of its map.
 *
 * A block is a set of elements with one scale: 128 x 128 elements, a row, a group of columns. A map has a cell for each block or, if
 * these are too many, for a rectangle of 2^fold[0] matrices x 2^fold[1] rows of blocks x 2^fold[2] blocks of a row; a cell
 * has the worst value of its blocks. */
#ifndef TSR_FORMATS_BLOCKS_BLOCK_MAP_H
#define TSR_FORMATS_BLOCKS_BLOCK_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TSR_BLOCK_AXES = 3 }; /* matrices, rows, columns */

typedef struct tsr_block_map {
    uint64_t shape[TSR_BLOCK_AXES]; /* elements; shape[0] is 1, or how many matrices are stacked */
    uint64_t block[TSR_BLOCK_AXES]; /* elements of a block; block[0] is 1. At the edges blocks are what is left */
    uint8_t fold[TSR_BLOCK_AXES];
} tsr_block_map;

/* Returns the number of blocks, or of cells, along an axis. */
uint64_t tsr_block_map_blocks(const tsr_block_map *map, unsigned axis);
uint64_t tsr_block_map_extent(const tsr_block_map *map, unsigned axis);

/* All cells. The product fits whatever tsr_block_map_check has let through. */
uint64_t tsr_block_map_cells(const tsr_block_map *map);

/* Returns true if the map is valid: no axis is empty, blocks are no larger than the matrix, and element counts fit. */
bool tsr_block_map_check(const tsr_block_map *map);

/* Folds until there are at most `most` cells, at least 1: rows or columns of blocks, so that cells stay as square in
 * elements as they can be, and matrices only when each of them is a single cell. */
void tsr_block_map_fold(tsr_block_map *map, uint64_t most);

#endif
