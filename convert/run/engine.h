/* Carries out any plan.
 *
 * Workers take units in the plan's order; each reads, computes and writes, so that one worker's disk time is another's
 * arithmetic. A file is written under a temporary name (DST/.tessera/N.part); when its last unit is done it is fsynced,
 * renamed and recorded in the journal (DST/.tessera/journal) with a digest of its bytes. The texts come last, and
 * config.json is the last of them. A rerun of the same plan reads the files that the journal names, compares digests,
 * and makes what is missing.
 *
 * With ranks (common/cluster/ranks.h), each rank claims whole files and makes or verifies them like any other run. Rank 0 holds
 * the directory's journal and completes the output. On success, every rank gets the result of all.
 *
 * The same plan gives the same bytes for any number of threads and ranks, any instruction set and any interruption. */
#ifndef TSR_CONVERT_RUN_ENGINE_H
#define TSR_CONVERT_RUN_ENGINE_H

#include "common/cluster/ranks.h"
#include "common/parallel/threads.h"
#include "convert/io/io_choice.h"
#include "convert/io/links.h"
#include "convert/records/shards.h"

typedef struct tsr_engine_options {
    tsr_run_options run; /* its progress counts the tensors that steps make, without side files */
    bool force;          /* start over, even if the destination holds other files */
    tsr_io_mode io;
    tsr_link_mode link;
    unsigned cpu_flags;     /* for tsr_cpu_kernels_init */
    const tsr_shard *shard; /* NULL: all files are made. Borrowed */
    tsr_ranks *ranks;       /* the processes that share the job; NULL: this one alone. Borrowed */
} tsr_engine_options;

typedef struct tsr_engine_result {
    bool already_complete;              /* nothing was left to do: the output was verified */
    uint64_t files_resumed;             /* found finished, and verified */
    uint64_t files_redone;              /* recorded as finished, but gone or with another digest: made again */
    uint64_t bytes_read, bytes_written; /* bytes of files, verified files included */
    double seconds;
    uint64_t files_elsewhere; /* made or verified by other ranks */
    unsigned threads;         /* how many ran, in all ranks */
    tsr_io_summary io;
    tsr_links_summary links;
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

/* One of several plans that are carried out together. */
typedef struct tsr_engine_job {
    const tsr_plan *plan;
    const char *dst;
    bool force;
    const tsr_shard *shard; /* NULL: all files */
    tsr_io_mode io;
    tsr_link_mode link; /* with ranks: NONE */
    tsr_ranks *ranks;   /* NULL: this process alone; else this is the only job */
    /* How it ended: */
    tsr_status status;
    tsr_err err;
    tsr_engine_result result; /* has to be freed whatever the status; bytes_read are those that its steps used */
} tsr_engine_job;

/* Carries out plans together, each in a directory of its own, within one budget of threads and memory. Bytes of a
 * source that several plans read are read once, as far as the memory holds them. *bytes_read: bytes of source files
 * that were read. Each output has the bytes that tsr_engine_run would give it. A plan that fails does not stop the
 * others. Fails as a whole only before anything is written: TSR_E_NOMEM. */
tsr_status tsr_engine_run_together(tsr_engine_job *jobs, size_t n, const tsr_run_options *options, unsigned cpu_flags,
                                   uint64_t *bytes_read, tsr_err *err) TSR_WARN_UNUSED;

/* The memory that a plan needs when it is carried out with others. */
typedef struct tsr_engine_need {
    uint64_t tables;   /* bytes for the plan, its sources and the tables of their chunks */
    uint64_t buffered; /* bytes that the largest step buffers while it runs */
    uint64_t unit;     /* bytes of the largest unit */
    uint64_t widest;   /* see tsr_plan */
    size_t sequences;
} tsr_engine_need;

tsr_engine_need tsr_engine_needs(const tsr_plan *plan);

/* Returns the most bytes of memory that a plan takes alone, with these threads, this tsr_io_mode and --memory. */
uint64_t tsr_engine_memory_at_most(const tsr_plan *plan, uint64_t threads, int io, uint64_t memory);

/* Returns the bytes of memory that these plans need together, with one worker. */
uint64_t tsr_engine_memory(const tsr_engine_need *needs, size_t n);

/* Computes the bytes of source files that these plans read together if the memory holds what they share. */
tsr_status tsr_engine_bytes_once(const tsr_plan *const *plans, size_t n, uint64_t *bytes, tsr_err *err) TSR_WARN_UNUSED;

/* Returns the SQNR in dB of all quantized tensors against their sources. NaN: none was quantized. */
double tsr_engine_result_sqnr(const tsr_engine_result *result, const tsr_plan *plan);

void tsr_engine_result_free(tsr_engine_result *result);

#endif
