/* Collects statistics of single blocks per step and stores them per file. */
#include "convert/run/step_blocks.h"

#include "convert/records/blocks_file.h"
#include "formats/blocks/block_file.h"

#include <stdlib.h>

tsr_status tsr_run_begin_blocks(tsr_run *r, size_t index, tsr_err *err)
{
    tsr_block_map map;
    tsr_code_bins bins;
    if (r->verifying || !tsr_plan_has_blocks(r->plan, index, &map, &bins))
        return TSR_OK;
    tsr_block_cells *const cells = calloc(1, sizeof *cells);
    r->steps[index]->blocks = cells;
    return cells != NULL && tsr_block_cells_begin(cells, &map, bins)
               ? TSR_OK
               : tsr_fail(err, TSR_E_NOMEM, "out of memory for '%s'", r->plan->steps[index].in[0]->name);
}

void tsr_run_free_blocks(tsr_step_state *s)
{
    if (s->blocks != NULL)
        tsr_block_cells_free(s->blocks);
    free(s->blocks);
    s->blocks = NULL;
}

tsr_status tsr_run_end_blocks(tsr_run *r, size_t index, tsr_err *err)
{
    const tsr_block_cells *const cells = r->steps[index]->blocks;
    tsr_text record = {0};
    if (cells == NULL)
        return TSR_OK;
    const char *const name = tsr_step_reported(&r->plan->steps[index])->name;
    tsr_status status = tsr_block_cells_write(cells, name, &r->rows.stats[index], &record, err);
    if (status == TSR_OK)
        status = tsr_blocks_add_frame(&r->frames[index], record.data, record.size, err);
    tsr_text_free(&record);
    return status;
}

tsr_status tsr_run_keep_blocks(tsr_run *r, size_t file, tsr_err *err)
{
    const tsr_out_file *const f = &r->plan->files[file];
    tsr_text all = {0};
    for (size_t s = f->first_step; s < f->first_step + f->n_steps; s++) {
        if (r->frames[s].size > 0)
            tsr_text_append(&all, r->frames[s].data, r->frames[s].size);
        tsr_text_free(&r->frames[s]);
    }
    tsr_status status = tsr_text_status(&all, err);
    if (status == TSR_OK && all.size > 0)
        status = tsr_blocks_keep(r->plan, r->dst, file, &all, err);
    tsr_text_free(&all);
    return status;
}
