/* Carries out any plan.
 *
 * Workers take units in the plan's order; each reads, computes and writes, so that one worker's disk time is another's
 * arithmetic. A file is written under a temporary name (DST/.tessera/N.part); when its last unit is done it is fsynced,
 * renamed and recorded in the journal (DST/.tessera/journal) with a digest of its bytes. The texts come last, and
 * config.json is the last of them. A rerun of the same plan reads the files that the journal names, compares digests,
 * and makes what is missing.
 *
 * The same plan gives the same bytes for any number of threads, any instruction set and any interruption. */
#ifndef TSR_CONVERT_ENGINE_ENGINE_H
#define TSR_CONVERT_ENGINE_ENGINE_H

#include "common/ranks.h"
#include "common/threads.h"
#include "convert/engine/io_choice.h"
#include "convert/engine/links.h"
#include "convert/engine/shards.h"

typedef struct tsr_engine_options {
    tsr_run_options run; /* its progress counts what steps make, without side files */
    bool force;          /* start over, whatever the destination holds */
    tsr_io_mode io;
    tsr_link_mode link;
    unsigned cpu_flags;     /* for tsr_cpu_kernels_init */
    const tsr_shard *shard; /* NULL: all files are made. Borrowed */
    tsr_ranks *ranks;       /* who works with this process; NULL: nobody. Borrowed */
} tsr_engine_options;

typedef struct tsr_engine_result {
    bool already_complete;              /* nothing was left to do: the output was verified */
    uint64_t files_resumed;             /* found finished, and verified */
    uint64_t files_redone;              /* journalled as finished, but gone, or their digest differs: made again */
    uint64_t bytes_read, bytes_written; /* of files, what was verified included */
    double seconds;
    uint64_t units_elsewhere; /* carried out by other ranks */
    unsigned threads;         /* how many ran */
    tsr_io_told io;
    tsr_links_told links;
    tsr_quant_stats *rows; /* [plan->n_steps]; freed by tsr_engine_result_free */
} tsr_engine_result;

/* Carries out the plan in directory `dst`, which is made if need be.
 * TSR_E_EXISTS: dst holds files that no run of Tessera put there, or a run with other options. TSR_E_MISMATCH: a run
 * from a source that has changed since.
 * TSR_E_IO: among others, a source file that changed while it was read.
 * TSR_E_NOSPACE: with the number of bytes that are missing. TSR_E_NOMEM: --memory too small, with what is needed.
 * TSR_E_CANCELLED: stopped by *run.cancel; the state can be resumed, as after any other failure.
 * TSR_E_NOTHING: shards are to be put together, and are not all complete; nothing was written. */
tsr_status tsr_engine_run(const tsr_plan *plan, const char *dst, const tsr_engine_options *options,
                          tsr_engine_result *result, tsr_err *err) TSR_WARN_UNUSED;

/* Has all ranks agree that they have this plan. In rank 0 it returns then, and tsr_engine_run may begin. In another one it carries
 * out units for rank 0 until there are no more: it reads the source, computes, and writes the units' output into their files, which
 * it opens by their names in `dst` as this rank sees it. Before rank 0 makes a file durable, every rank that wrote to it has synced
 * its own descriptor: on a network file system, an fsync elsewhere does not cover that. */
tsr_status tsr_engine_join(const tsr_plan *plan, const char *dst, const tsr_engine_options *options,
                           tsr_err *err) TSR_WARN_UNUSED;

/* One of several plans that are carried out together. */
typedef struct tsr_engine_job {
    const tsr_plan *plan;
    const char *dst;
    bool force;
    const tsr_shard *shard; /* NULL: all files */
    tsr_io_mode io;
    tsr_link_mode link; /* with ranks: NONE */
    tsr_ranks *ranks;   /* NULL: nobody else; else this is the only job */
    /* How it ended: */
    tsr_status status;
    tsr_err err;
    tsr_engine_result result; /* to be freed whatever the status; its bytes_read are those that its steps had */
} tsr_engine_job;

/* Carries out plans together, each in a directory of its own, within one budget of threads and memory. What several of them
 * read of a file is read once, as long as the memory holds it: they go through their sources side by side, and *bytes_read
 * says how many bytes of source files were read. Each output has the very bytes that tsr_engine_run would give it. One plan's failure
 * is its own, and the others are carried on. Fails as a whole only before anything is written: TSR_E_NOMEM. */
tsr_status tsr_engine_run_together(tsr_engine_job *jobs, size_t n, const tsr_run_options *options, unsigned cpu_flags,
                                   uint64_t *bytes_read, tsr_err *err) TSR_WARN_UNUSED;

/* The memory that a plan takes where it is carried out with others. */
typedef struct tsr_engine_need {
    uint64_t tables; /* of the plan, its sources and their stretches */
    uint64_t held;   /* of the largest step, while it runs */
    uint64_t unit;   /* of the largest unit */
    uint64_t widest; /* see tsr_plan */
    size_t lanes;
} tsr_engine_need;

tsr_engine_need tsr_engine_needs(const tsr_plan *plan);

/* The most bytes of memory that a plan takes by itself, with so many threads, a tsr_io_mode, and --memory. */
uint64_t tsr_engine_memory_at_most(const tsr_plan *plan, uint64_t threads, int io, uint64_t memory);

/* Bytes of memory that these plans need together, with one worker. */
uint64_t tsr_engine_memory(const tsr_engine_need *needs, size_t n);

/* How many bytes of source files these plans read together, as long as the memory holds what is shared. */
tsr_status tsr_engine_bytes_once(const tsr_plan *const *plans, size_t n, uint64_t *bytes, tsr_err *err) TSR_WARN_UNUSED;

/* The SQNR in dB of all that was quantized, against its source; NaN: nothing was. */
double tsr_engine_result_sqnr(const tsr_engine_result *result, const tsr_plan *plan);

void tsr_engine_result_free(tsr_engine_result *result);

#endif
