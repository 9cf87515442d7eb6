/* Lanes: which files they have, where they are, and which of their files is whole. */
#include "convert/engine/engine_run.h"
#include "convert/engine/plan_reads.h"

void tsr_run_lay_lanes(tsr_run *r)
{
    const tsr_plan *const plan = r->plan;
    r->n_lanes = 0;
    for (size_t i = 0; i < plan->n_files; i++) {
        const tsr_out_file *const f = &plan->files[i];
        if (i == 0 || (f->begins_lane && r->crew->shared != NULL))
            r->lanes[r->n_lanes++] = (tsr_lane){.run = r, .next_step = f->first_step, .next_file = i};
        tsr_lane *const lane = &r->lanes[r->n_lanes - 1];
        lane->end_step = f->first_step + f->n_steps;
        lane->end_file = i + 1;
    }
}

bool tsr_lane_find_step(tsr_lane *lane)
{
    const tsr_run *const r = lane->run;
    while (lane->next_step < lane->end_step &&
           (!r->files[r->plan->steps[lane->next_step].file].mine || tsr_is_given(r, lane->next_step)))
        lane->next_step++;
    return lane->next_step < lane->end_step;
}

bool tsr_lane_wants_amax(const tsr_lane *lane)
{
    const tsr_step *const step = &lane->run->plan->steps[lane->next_step];
    return step->amax != NULL && lane->run->amaxes[step->amax->index].left > 0;
}

/* ---- places ---- */

typedef struct placing {
    const tsr_run *run;
    uint64_t place; /* UINT64_MAX: not known yet */
} placing;

static tsr_status note_place(void *data, const tsr_tensor *t, const tsr_window *w, tsr_err *err)
{
    placing *const p = data;
    (void)err;
    if (p->place == UINT64_MAX)
        p->place = tsr_shared_place(p->run->crew->shared, p->run->plan->sources[t->source], t, w);
    return TSR_OK;
}

static uint64_t find_place(tsr_lane *lane)
{
    tsr_run *const r = lane->run;
    placing p = {.run = r, .place = UINT64_MAX};
    uint64_t unit;
    size_t index;
    if (!tsr_lane_find_step(lane))
        return 0; /* it has nothing left to wait for */
    const tsr_step *const step = &r->plan->steps[lane->next_step];
    if (!tsr_lane_wants_amax(lane) && step->op->units(step) > 0)
        (void)!tsr_step_reads(step, lane->next_unit, note_place, &p, NULL);
    else if (tsr_lane_wants_amax(lane) && tsr_run_next_amax(r, &index, &unit))
        (void)!tsr_amax_reads(r->plan->amaxes[index], unit, note_place, &p, NULL);
    return p.place == UINT64_MAX ? 0 : p.place;
}

uint64_t tsr_lane_place(tsr_lane *lane)
{
    if (!lane->placed)
        lane->place = find_place(lane);
    /* What the amaxes read next does not depend on this lane alone. */
    lane->placed = lane->next_step >= lane->end_step || !tsr_lane_wants_amax(lane);
    return lane->place;
}

/* ---- commits ---- */

tsr_lane *tsr_run_next_whole(tsr_run *r, bool *over)
{
    *over = true;
    for (size_t k = 0; k < r->n_lanes; k++) {
        tsr_lane *const lane = &r->lanes[k];
        while (lane->next_file < lane->end_file && !r->files[lane->next_file].mine)
            lane->next_file++;
        if (lane->next_file == lane->end_file)
            continue;
        *over = false;
        const bool empty = r->plan->files[lane->next_file].n_steps == 0 && r->failure.status == TSR_OK;
        if (empty || r->files[lane->next_file].phase == TSR_FILE_WHOLE)
            return lane;
    }
    return NULL;
}
