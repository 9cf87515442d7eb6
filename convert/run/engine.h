/* Executes plans.
 *
 * Workers take units in the plan's order; each reads, computes and writes, so that disk and arithmetic overlap. A file
 * is written under a temporary name (DST/.tessera/N.part). When its last unit is done, it is fsynced, renamed and
 * recorded in the journal (DST/.tessera/journal) with its digest. The texts come last, and config.json is the last of
 * them. A rerun of the same plan reads the files that the journal names, compares digests, and makes what is missing.
 *
 * With ranks (common/cluster/ranks.h), each rank claims whole files and makes or verifies them like any other run. Rank
 * 0 holds the directory's journal and completes the output. On success, every rank gets the result of all.
 *
 * An output of s3:// is made in the same way in a local directory, its spool, and each finished file is sent from there
 * (convert/uploads/uploads.h).
 *
 * The same plan gives the same bytes for any number of threads and ranks, any instruction set and any interruption. */
#pragma once

#include "common/cluster/ranks.h"
#include "common/parallel/threads.h"
#include "convert/io/io_choice.h"
#include "convert/io/links.h"
#include "convert/records/shards.h"
#include "convert/uploads/uploads.h"

typedef struct tsr_engine_options {
    tsr_run_options run; /* its progress counts the tensors that steps make, without side files */
    bool force;          /* start over, even if the destination holds other files */
    tsr_io_mode io;
    tsr_link_mode link;
    unsigned cpu_flags;     /* for tsr_cpu_kernels_init */
    const tsr_shard *shard; /* NULL: all files are made. Borrowed */
    tsr_ranks *ranks;       /* the processes that share the job; NULL: only this one. Borrowed */
    const char *address;    /* where the output is sent: s3://BUCKET/PREFIX; NULL: it stays in `dst`. Borrowed */
} tsr_engine_options;

typedef struct tsr_engine_result {
    bool already_complete;              /* nothing was left to do; the output was only verified */
    uint64_t files_resumed;             /* files that were already finished, and verified */
    uint64_t files_redone;              /* files recorded as finished but missing or with another digest; made again */
    uint64_t bytes_read, bytes_written; /* bytes of files, including verified files */
    double seconds;
    uint64_t files_elsewhere; /* made or verified by other ranks */
    unsigned threads;         /* number of threads in all ranks */
    tsr_io_summary io;
    tsr_links_summary links;
    tsr_uploads_summary uploads;
    tsr_quant_stats *rows; /* [plan->n_steps]; freed by tsr_engine_result_free */
} tsr_engine_result;

/* Executes the plan in directory `dst`, which is created if it does not exist.
 * TSR_E_EXISTS: dst holds other files, or the output of a run with other options. TSR_E_MISMATCH: it was begun from a
 * source that has changed since.
 * TSR_E_IO: among others, a source file changed while it was read. TSR_E_NOSPACE: the message has the missing bytes.
 * TSR_E_NOMEM: --memory is too small; the message has the required size. TSR_E_CANCELLED: stopped by *run.cancel; a
 * rerun resumes, as after any other failure. TSR_E_NOTHING: shards are to be joined and are not all complete; nothing
 * was written. */
tsr_status tsr_engine_run(const tsr_plan *plan, const char *dst, const tsr_engine_options *options,
                          tsr_engine_result *result, tsr_err *err);

/* One of several plans that are executed together. */
typedef struct tsr_engine_job {
    const tsr_plan *plan;
    const char *dst;
    bool force;
    const tsr_shard *shard; /* NULL: all files */
    tsr_io_mode io;
    tsr_link_mode link;  /* with ranks: NONE */
    tsr_ranks *ranks;    /* NULL: only this process; otherwise this must be the only job */
    const char *address; /* NULL: the output stays in `dst`; otherwise this must be the only job */
    /* How it ended: */
    tsr_status status;
    tsr_err err;
    tsr_engine_result result; /* must be freed whatever the status; bytes_read are those that its steps used */
} tsr_engine_job;

/* Executes plans together, each in its own directory, within one limit of threads and memory. Source bytes that several
 * plans need are read once, as far as memory allows. *bytes_read receives the bytes read from source files. Each output
 * has the bytes that tsr_engine_run would give it. A plan that fails does not stop the others. TSR_E_NOMEM: all fail
 * before anything is written. */
tsr_status tsr_engine_run_together(tsr_engine_job *jobs, size_t n, const tsr_run_options *options, unsigned cpu_flags,
                                   uint64_t *bytes_read, tsr_err *err);

/* The memory that a plan needs when it is executed with others. */
typedef struct tsr_engine_need {
    uint64_t tables;   /* bytes of the plan, its sources and their chunk tables */
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

/* Computes the bytes of source files that these plans read together if memory suffices for everything that they
 * share. */
tsr_status tsr_engine_bytes_once(const tsr_plan *const *plans, size_t n, uint64_t *bytes, tsr_err *err);

/* Returns the SQNR in dB of all quantized tensors against their sources. NaN: none was quantized. */
double tsr_engine_result_sqnr(const tsr_engine_result *result, const tsr_plan *plan);

void tsr_engine_result_free(tsr_engine_result *result);
