/* How the memory is divided: tables, workers, and with what is left, stretches of the source that are wanted more than once. */
#include "convert/engine/engine_run.h"

#include "common/checked.h"
#include "convert/engine/plan_reads.h"

#include <stdlib.h>

/* Of zones, where ranks share the source: what one of them reads at a time, and how many each should have at least to go round. */
#define LARGEST_ZONE ((uint64_t)256 << 20)
enum { ZONES_EACH = 4 };

/* What a worker may read ahead of the others that want the same bytes. */
enum { AHEAD = 2 * TSR_UNIT_BYTES + 2 * TSR_STRETCH_BYTES };

tsr_engine_need tsr_engine_needs(const tsr_plan *plan)
{
    const uint64_t tables = tsr_plan_memory(plan, 0), unit = tsr_plan_unit_bytes(plan);
    return (tsr_engine_need){.tables = tables + tsr_shared_tables(plan),
                             .held = tsr_plan_memory(plan, 1) - tables - unit,
                             .unit = unit,
                             .lanes = tsr_plan_lanes(plan),
                             .widest = plan->widest};
}

/* Bytes that runs need together. */
typedef struct division {
    uint64_t fixed;               /* tables, and what is held of the step that each lane has begun */
    uint64_t each, unit;          /* of a worker; of it for the largest unit */
    uint64_t shared, shared_each; /* of what is shared, and the part of a worker in it */
} division;

/* Lanes that read parts of the same rows stay together when what one of them has gone over is kept until all have had theirs,
 * and the same for what is read ahead. */
static division divide(const tsr_engine_need *needs, size_t n)
{
    division d = {.fixed = 0};
    uint64_t held = 0, widest = 0, lanes = 0;
    for (size_t i = 0; i < n; i++) {
        d.fixed += needs[i].tables + needs[i].lanes * needs[i].held;
        d.unit = tsr_max_u64(d.unit, needs[i].unit);
        held = tsr_max_u64(held, needs[i].held);
        widest = tsr_max_u64(widest, needs[i].widest);
        lanes += needs[i].lanes;
    }
    d.each = d.unit + held;
    d.shared = 2 * widest;
    d.shared_each = tsr_max_u64(AHEAD, widest / tsr_max_u64(1, lanes));
    return d;
}

uint64_t tsr_engine_memory(const tsr_engine_need *needs, size_t n)
{
    const division d = divide(needs, n);
    return d.fixed + d.shared + d.each + d.shared_each;
}

uint64_t tsr_engine_memory_at_most(const tsr_plan *plan, uint64_t threads, int io, uint64_t memory)
{
    const unsigned workers = (unsigned)tsr_min_u64(threads, TSR_MAX_THREADS);
    const uint64_t wanted = tsr_plan_memory(plan, workers * (io == TSR_IO_BUFFERED ? 1 : TSR_IO_BATCHES));
    return tsr_min_u64(wanted, tsr_max_u64(memory, tsr_plan_memory(plan, 1)));
}

/* What threads of other ranks send to rank 0 is no more than a step holds and, of an appended file, a unit's output. */
static uint64_t sent_bytes(const tsr_crew *c, const tsr_plan *plan, uint64_t held)
{
    return tsr_ranks_others(c->ranks) * (held + (tsr_plan_bounded_bytes(plan) > 0 ? c->unit_bytes : 0));
}

/* As many workers as are wanted and fit; then as many units under way in each. */
static tsr_status choose_workers(tsr_crew *c, uint64_t fixed, uint64_t each, tsr_err *err)
{
    TSR_TRY(tsr_choose_threads(c->options, fixed, each, &c->workers, err));
    const uint64_t depth = (c->options->memory - fixed) / tsr_max_u64(1, c->workers * each);
    c->most_depth = c->ring ? (unsigned)tsr_min_u64(TSR_IO_BATCHES, depth) : 1;
    return TSR_OK;
}

static tsr_status choose_sharing(tsr_crew *c, const tsr_engine_job *jobs, tsr_err *err)
{
    tsr_engine_need *const needs = calloc(c->n_runs + 1, sizeof *needs);
    if (needs == NULL)
        return tsr_out_of_memory(err, "for the runs");
    for (size_t i = 0; i < c->n_runs; i++)
        needs[i] = tsr_engine_needs(jobs[i].plan);
    const division d = divide(needs, c->n_runs);
    free(needs);
    c->unit_bytes = d.unit;
    const uint64_t fixed = d.fixed + sent_bytes(c, jobs[0].plan, d.each - d.unit);
    TSR_TRY(choose_workers(c, fixed + d.shared, d.each + d.shared_each, err));
    c->capacity = c->options->memory - fixed - c->workers * c->most_depth * d.each;
    c->shares = true;
    return TSR_OK;
}

/* A single run that shares nothing, among its lanes either. */
static tsr_status choose_alone(tsr_crew *c, const tsr_plan *plan, tsr_err *err)
{
    const uint64_t tables = tsr_plan_memory(plan, 0), each = tsr_plan_memory(plan, 1) - tables;
    c->unit_bytes = tsr_plan_unit_bytes(plan);
    return choose_workers(c, tables + sent_bytes(c, plan, each - c->unit_bytes), each, err);
}

/* Whether a plan's lanes are to share what they read: as ranks they need one each. */
static bool wants_sharing(const tsr_plan *plan, unsigned ranks)
{
    return tsr_worth_sharing(plan->bytes_wanted, plan->bytes_in) && (ranks == 1 || tsr_plan_lanes(plan) >= ranks);
}

tsr_status tsr_divide_rank_memory(const tsr_plan *plan, const tsr_run_options *options, unsigned ranks, bool deep,
                                  tsr_rank_memory *memory, tsr_err *err)
{
    const tsr_engine_need need = tsr_engine_needs(plan);
    const division d = divide(&need, 1);
    const uint64_t tables = tsr_plan_memory(plan, 0);
    const bool shares =
        wants_sharing(plan, ranks) &&
        tsr_choose_threads(options, d.fixed + d.shared, d.each + d.shared_each, &memory->threads, NULL) == TSR_OK;
    if (!shares)
        TSR_TRY(tsr_choose_threads(options, tables, d.each, &memory->threads, err));
    const uint64_t fixed = shares ? d.fixed + d.shared : tables, each = d.each + (shares ? d.shared_each : 0);
    const uint64_t depth = (options->memory - fixed) / tsr_max_u64(1, memory->threads * each);
    memory->units = memory->threads * (deep ? (unsigned)tsr_min_u64(TSR_IO_BATCHES, tsr_max_u64(1, depth)) : 1);
    memory->shared = shares ? options->memory - d.fixed - memory->units * d.each : 0;
    return TSR_OK;
}

tsr_status tsr_crew_begin(tsr_crew *c, const tsr_engine_job *jobs, tsr_err *err)
{
    const tsr_plan *const plan = jobs[0].plan;
    for (size_t i = 0; i < c->n_runs && !c->ring; i++)
        c->ring = jobs[i].io != TSR_IO_BUFFERED && tsr_io_has_ring();
    if (c->n_runs > 1)
        return choose_sharing(c, jobs, err);
    /* Where the memory is too short for sharing, the job reads more and is as right. */
    if (wants_sharing(plan, tsr_ranks_count(c->ranks)) && choose_sharing(c, jobs, NULL) == TSR_OK)
        return TSR_OK;
    return choose_alone(c, plan, err);
}

static tsr_status announce(const tsr_run *r, uint64_t *wanted, tsr_err *err)
{
    bool *const mine = calloc(r->plan->n_files + 1, sizeof *mine);
    if (mine == NULL)
        return tsr_out_of_memory(err, NULL);
    for (size_t i = 0; i < r->plan->n_files; i++)
        mine[i] = r->files[i].mine;
    const tsr_status status = tsr_plan_announce(r->plan, mine, r->crew->shared, wanted, err);
    free(mine);
    return status;
}

/* Cuts the source into zones, if there are other ranks. Without the table, everybody reads everything. */
static void make_zones(tsr_crew *c)
{
    const unsigned ranks = tsr_ranks_count(c->ranks);
    const uint64_t all = tsr_shared_places(c->shared);
    const uint64_t bytes = tsr_min_u64(tsr_min_u64(all / (ZONES_EACH * ranks), LARGEST_ZONE), c->capacity / 2);
    c->zone_bytes = tsr_max_u64(tsr_round_up(bytes, TSR_STRETCH_BYTES), TSR_STRETCH_BYTES);
    c->owners = ranks == 1 ? NULL : calloc(all / c->zone_bytes + 1, sizeof *c->owners);
}

/* Source files that the runs read past the page cache are shared so, too; ahead, unless what follows may be another rank's. */
static void read_directly(tsr_crew *c)
{
    for (size_t i = 0; i < c->n_runs; i++) {
        const tsr_run *const r = &c->runs[i];
        for (size_t k = 0; r->present && k < r->plan->n_sources; k++) {
            const tsr_checkpoint *const source = r->plan->sources[k];
            for (uint32_t file = 0; file < source->n_files; file++)
                tsr_shared_read_directly(c->shared, &source->files[file],
                                         tsr_io_source(&r->io, &(tsr_tensor){.source = (uint16_t)k, .file = file}),
                                         c->ranks == NULL);
        }
    }
}

void tsr_crew_share(tsr_crew *c)
{
    tsr_err err;
    uint64_t wanted = 0;
    tsr_status status = TSR_OK;
    if (!c->shares)
        return;
    c->shared = tsr_shared_begin(c->capacity);
    for (size_t i = 0; c->shared != NULL && status == TSR_OK && i < c->n_runs; i++) {
        uint64_t more = 0;
        if (c->runs[i].present)
            status = announce(&c->runs[i], &more, &err);
        wanted += more;
    }
    /* Without the tables each reads for itself, which is slower and as right. */
    if (status != TSR_OK || (c->shared != NULL && !tsr_worth_sharing(wanted, tsr_shared_announced(c->shared)))) {
        tsr_shared_end(c->shared);
        c->shared = NULL;
    }
    if (c->shared != NULL) {
        make_zones(c);
        read_directly(c);
    }
}

tsr_status tsr_engine_bytes_once(const tsr_plan *const *plans, size_t n, uint64_t *bytes, tsr_err *err)
{
    tsr_shared_reads *const shared = tsr_shared_begin(0);
    tsr_status status = shared == NULL ? tsr_out_of_memory(err, NULL) : TSR_OK;
    for (size_t i = 0; i < n && status == TSR_OK; i++)
        status = tsr_plan_announce(plans[i], NULL, shared, NULL, err);
    *bytes = status == TSR_OK ? tsr_shared_announced(shared) : 0;
    tsr_shared_end(shared);
    return status;
}
