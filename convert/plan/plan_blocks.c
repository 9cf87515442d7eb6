/* Selects the steps that write block statistics, and how far their maps are folded. */
#include "convert/plan/plan.h"

#include "common/checked.h"
#include "formats/blocks/block_file.h"

#include <string.h>

const tsr_tensor *tsr_step_reported(const tsr_step *step)
{
    return step->reported != NULL ? step->reported : step->in[0];
}

/* Gets the map of a step from its operation. Returns false if it has none. */
static bool unfolded(const tsr_plan *plan, size_t index, tsr_block_map *map, tsr_code_bins *bins)
{
    const tsr_step *const step = &plan->steps[index];
    if (plan->report == NULL || step->op->blocks == NULL)
        return false;
    *map = (tsr_block_map){0};
    step->op->blocks(step, map, bins);
    return tsr_block_map_check(map);
}

bool tsr_plan_has_blocks(const tsr_plan *plan, size_t index, tsr_block_map *map, tsr_code_bins *bins)
{
    if (!unfolded(plan, index, map, bins))
        return false;
    tsr_block_map_fold(map, plan->block_cells);
    return true;
}

/* Returns the number of cells of all maps if no tensor has more than `most`. */
static uint64_t all_cells(const tsr_plan *plan, uint64_t most)
{
    uint64_t cells = 0;
    for (size_t s = 0; s < plan->n_steps; s++) {
        tsr_block_map map;
        tsr_code_bins bins;
        if (!unfolded(plan, s, &map, &bins))
            continue;
        tsr_block_map_fold(&map, most);
        cells += tsr_block_map_cells(&map);
    }
    return cells;
}

/* Returns the most cells that the maps may have, so that the file is small compared with even a small model. */
static uint64_t most_cells(const tsr_plan *plan)
{
    uint64_t weights = 0;
    for (size_t s = 0; s < plan->n_steps; s++) {
        tsr_block_map map;
        tsr_code_bins bins;
        if (unfolded(plan, s, &map, &bins))
            weights += map.shape[0] * map.shape[1] * map.shape[2];
    }
    const uint64_t bytes = tsr_max_u64(TSR_BLOCKS_LEAST_PLANES, weights / TSR_BLOCKS_WEIGHTS_PER_BYTE);
    return tsr_min_u64(TSR_BLOCKS_MOST_PLANES, bytes) / TSR_BLOCK_PLANES;
}

void tsr_plan_fold_blocks(tsr_plan *plan)
{
    const uint64_t most = most_cells(plan);
    plan->block_cells = TSR_BLOCK_MOST_CELLS;
    if (all_cells(plan, plan->block_cells) <= most)
        return;
    uint64_t low = 1; /* binary search: `low` is small enough, block_cells is too large */
    while (plan->block_cells - low > 1) {
        const uint64_t middle = low + (plan->block_cells - low) / 2;
        if (all_cells(plan, middle) <= most)
            low = middle;
        else
            plan->block_cells = middle;
    }
    plan->block_cells = low;
}

static uint64_t record_bytes(const tsr_plan *plan, size_t index)
{
    tsr_block_map map;
    tsr_code_bins bins;
    if (!tsr_plan_has_blocks(plan, index, &map, &bins))
        return 0;
    return tsr_block_record_bound(strlen(tsr_step_reported(&plan->steps[index])->name), tsr_block_map_cells(&map),
                                  bins);
}

uint64_t tsr_plan_block_bytes(const tsr_plan *plan, size_t file)
{
    const tsr_out_file *const f = &plan->files[file];
    uint64_t bytes = 0;
    for (size_t s = f->first_step; s < f->first_step + f->n_steps; s++)
        bytes += record_bytes(plan, s);
    return bytes;
}

uint64_t tsr_step_block_memory(const tsr_plan *plan, size_t index)
{
    enum { ZSTD_ITSELF = 1 << 20, WHILE_CODED = sizeof(float) + TSR_BLOCK_PLANES };
    tsr_block_map map;
    tsr_code_bins bins;
    if (!tsr_plan_has_blocks(plan, index, &map, &bins))
        return 0;
    return tsr_block_cells_bytes(&map) + tsr_block_map_cells(&map) * WHILE_CODED + 3 * record_bytes(plan, index) +
           ZSTD_ITSELF;
}
