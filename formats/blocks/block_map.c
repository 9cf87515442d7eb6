/* Folds the statistics of blocks into the cells of a map. */
#include "formats/blocks/block_map.h"

#include "common/checked.h"

enum { MATRICES, ROWS, COLS, LARGEST_FOLD = 63 };

static uint64_t blocks_along(const tsr_block_map *map, unsigned axis)
{
    return tsr_ceil_div(map->shape[axis], map->block[axis]);
}

uint64_t tsr_block_map_extent(const tsr_block_map *map, unsigned axis)
{
    return ((blocks_along(map, axis) - 1) >> map->fold[axis]) + 1;
}

uint64_t tsr_block_map_cells(const tsr_block_map *map)
{
    return tsr_block_map_extent(map, MATRICES) * tsr_block_map_extent(map, ROWS) * tsr_block_map_extent(map, COLS);
}

bool tsr_block_map_check(const tsr_block_map *map)
{
    uint64_t elements = 1;
    for (unsigned axis = 0; axis < TSR_BLOCK_AXES; axis++) {
        if (map->shape[axis] == 0 || map->block[axis] == 0 || map->fold[axis] > LARGEST_FOLD ||
            !tsr_mul_u64(elements, map->shape[axis], &elements))
            return false;
    }
    return map->block[MATRICES] == 1;
}

/* Returns the axis, rows or columns, along which cells cover fewer elements, unless it is a single cell already. */
static unsigned axis_to_fold(const tsr_block_map *map)
{
    const bool rows = tsr_block_map_extent(map, ROWS) > 1, cols = tsr_block_map_extent(map, COLS) > 1;
    if (!rows && !cols)
        return MATRICES;
    if (!rows || !cols)
        return rows ? ROWS : COLS;
    return map->block[ROWS] << map->fold[ROWS] < map->block[COLS] << map->fold[COLS] ? ROWS : COLS;
}

void tsr_block_map_fold(tsr_block_map *map, uint64_t most)
{
    while (tsr_block_map_cells(map) > most)
        map->fold[axis_to_fold(map)]++;
}
