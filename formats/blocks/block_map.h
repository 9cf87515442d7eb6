/* Which blocks a weight has, and which of them share a cell of its map.
 *
 * A block is what shares a scale: 128 x 128 elements, a row, a group of columns. A map has a cell for each block or, where
 * that were too many, for a rectangle of 2^fold[0] matrices x 2^fold[1] rows of blocks x 2^fold[2] blocks of a row; a cell
 * then stands for the worst of its blocks. */
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

/* How many blocks and cells there are along an axis. */
uint64_t tsr_block_map_blocks(const tsr_block_map *map, unsigned axis);
uint64_t tsr_block_map_extent(const tsr_block_map *map, unsigned axis);

/* All cells. The product fits whatever tsr_block_map_check has let through. */
uint64_t tsr_block_map_cells(const tsr_block_map *map);

/* Whether this can be a map: no axis is empty, blocks are no larger than the matrix, and elements can be counted. */
bool tsr_block_map_check(const tsr_block_map *map);

/* Folds until there are at most `most` cells, at least 1: rows or columns of blocks, so that cells stay as square in
 * elements as they can be, and matrices only when each of them is a single cell. */
void tsr_block_map_fold(tsr_block_map *map, uint64_t most);

#endif
