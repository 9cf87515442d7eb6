/* Divides the memory: tables, workers, and the rest for source bytes that are needed more than once. */
#include "convert/run/run_memory.h"

#include "common/checked.h"
#include "convert/io/plan_reads.h"
#include "formats/remote/objects.h"

#include <stdlib.h>

/* Bytes that a worker may read ahead of others that need them too. */
enum { AHEAD = 2 * TSR_UNIT_BYTES + 2 * TSR_CHUNK_BYTES };

tsr_engine_need tsr_engine_needs(const tsr_plan *plan)
{
    const uint64_t tables = tsr_plan_memory(plan, 0), unit = tsr_plan_unit_bytes(plan);
    return (tsr_engine_need){.tables = tables + tsr_shared_tables(plan),
                             .buffered = tsr_plan_memory(plan, 1) - tables - unit,
                             .unit = unit,
                             .sequences = tsr_plan_sequences(plan),
                             .widest = plan->widest};
}

/* The bytes that the runs need together. */
typedef struct division {
    uint64_t fixed;               /* tables, and the buffered outputs of one step of each sequence */
    uint64_t each, unit;          /* bytes per worker, of which `unit` is for the largest unit */
    uint64_t shared, shared_each; /* bytes for shared reads, and the part per worker */
} division;

/* Computes what runs need. If sequences read parts of the same rows, those rows stay in memory until all have read
 * them. The same holds for rows that are read ahead. */
static division divide(const tsr_engine_need *needs, size_t n)
{
    division d = {.fixed = 0};
    uint64_t buffered = 0, widest = 0, sequences = 0;
    for (size_t i = 0; i < n; i++) {
        d.fixed += needs[i].tables + needs[i].sequences * needs[i].buffered;
        d.unit = tsr_max_u64(d.unit, needs[i].unit);
        buffered = tsr_max_u64(buffered, needs[i].buffered);
        widest = tsr_max_u64(widest, needs[i].widest);
        sequences += needs[i].sequences;
    }
    d.each = d.unit + buffered;
    d.shared = 2 * widest;
    d.shared_each = tsr_max_u64(AHEAD, widest / tsr_max_u64(1, sequences));
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

/* Chooses as many workers as are requested and fit, then as many concurrent units in each. */
static tsr_status choose_workers(tsr_pool *pool, uint64_t fixed, uint64_t each, tsr_err *err)
{
    fixed += pool->sending_bytes;
    TSR_TRY(tsr_choose_threads(pool->options, fixed, each, &pool->workers, err));
    const uint64_t depth = (pool->options->memory - fixed) / tsr_max_u64(1, pool->workers * each);
    pool->most_depth = pool->ring ? (unsigned)tsr_min_u64(TSR_IO_BATCHES, depth) : 1;
    return TSR_OK;
}

static tsr_status choose_sharing(tsr_pool *pool, const tsr_engine_job *jobs, tsr_err *err)
{
    tsr_engine_need *const needs = calloc(pool->n_runs + 1, sizeof *needs);
    if (needs == NULL)
        return tsr_out_of_memory(err, "for the runs");
    for (size_t i = 0; i < pool->n_runs; i++)
        needs[i] = tsr_engine_needs(jobs[i].plan);
    const division d = divide(needs, pool->n_runs);
    free(needs);
    pool->unit_bytes = d.unit;
    TSR_TRY(choose_workers(pool, d.fixed + d.shared, d.each + d.shared_each, err));
    pool->capacity = pool->options->memory - pool->sending_bytes - d.fixed - pool->workers * pool->most_depth * d.each;
    pool->shares = true;
    return TSR_OK;
}

/* Chooses for a single run that shares no reads. */
static tsr_status choose_alone(tsr_pool *pool, const tsr_plan *plan, tsr_err *err)
{
    const uint64_t tables = tsr_plan_memory(plan, 0), each = tsr_plan_memory(plan, 1) - tables;
    pool->unit_bytes = tsr_plan_unit_bytes(plan);
    return choose_workers(pool, tables, each, err);
}

tsr_status tsr_pool_begin(tsr_pool *pool, const tsr_engine_job *jobs, tsr_err *err)
{
    const tsr_plan *const plan = jobs[0].plan;
    for (size_t i = 0; i < pool->n_runs; i++)
        pool->sending_bytes += jobs[i].address == NULL ? 0 : TSR_OBJECTS_MEMORY;
    for (size_t i = 0; i < pool->n_runs && !pool->ring; i++)
        pool->ring = jobs[i].io != TSR_IO_BUFFERED && tsr_io_has_ring();
    if (pool->n_runs > 1)
        return choose_sharing(pool, jobs, err);
    /* If memory is too small for sharing, the job reads more, with the same output. Ranks claim files one after
     * another, so they do not know in advance which bytes they will need twice. */
    if (tsr_ranks_count(pool->ranks) == 1 && tsr_worth_sharing(plan->bytes_wanted, plan->bytes_in) &&
        choose_sharing(pool, jobs, NULL) == TSR_OK)
        return TSR_OK;
    return choose_alone(pool, plan, err);
}

static tsr_status announce(const tsr_run *r, uint64_t *wanted, tsr_err *err)
{
    bool *const mine = calloc(r->plan->n_files + 1, sizeof *mine);
    if (mine == NULL)
        return tsr_out_of_memory(err, NULL);
    for (size_t i = 0; i < r->plan->n_files; i++)
        mine[i] = r->files[i].mine;
    const tsr_status status = tsr_plan_announce(r->plan, mine, r->pool->shared, wanted, err);
    free(mine);
    return status;
}

/* Lets shared reads bypass the page cache where the runs do. */
static void read_directly(tsr_pool *pool)
{
    for (size_t i = 0; i < pool->n_runs; i++) {
        const tsr_run *const r = &pool->runs[i];
        for (size_t k = 0; r->present && k < r->plan->n_sources; k++) {
            const tsr_checkpoint *const source = r->plan->sources[k];
            for (uint32_t file = 0; file < source->n_files; file++)
                tsr_shared_read_directly(pool->shared, &source->files[file],
                                         tsr_io_source(&r->io, &(tsr_tensor){.source = (uint16_t)k, .file = file}));
        }
    }
}

void tsr_pool_share_reads(tsr_pool *pool)
{
    tsr_err err;
    uint64_t wanted = 0;
    tsr_status status = TSR_OK;
    if (!pool->shares)
        return;
    pool->shared = tsr_shared_begin(pool->capacity);
    for (size_t i = 0; pool->shared != NULL && status == TSR_OK && i < pool->n_runs; i++) {
        uint64_t more = 0;
        if (pool->runs[i].present)
            status = announce(&pool->runs[i], &more, &err);
        wanted += more;
    }
    /* Without the tables each run reads for itself: slower, with the same result. */
    if (status != TSR_OK || (pool->shared != NULL && !tsr_worth_sharing(wanted, tsr_shared_announced(pool->shared)))) {
        tsr_shared_end(pool->shared);
        pool->shared = NULL;
    }
    if (pool->shared != NULL)
        read_directly(pool);
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
