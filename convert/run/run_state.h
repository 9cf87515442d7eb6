/* Declares the state of a run: its files, steps, units in progress, and the pool of workers that executes it. */
#pragma once

#include "common/atomics.h"
#include "common/parallel/first_failure.h"
#include "common/parallel/numa.h"
#include "convert/io/io_choice.h"
#include "convert/io/links.h"
#include "convert/io/outgoing.h"
#include "convert/io/shared_reads.h"
#include "convert/records/destination.h"
#include "convert/records/digests.h"
#include "convert/records/journal.h"
#include "convert/records/source_sums.h"
#include "convert/records/watch.h"
#include "convert/run/engine.h"

#include <limits.h>
#include <pthread.h>

/* A step that has begun. */
typedef struct tsr_step_state {
    uint64_t units, left;
    tsr_quant_stats
        *partials; /* [units]: summed in the order of units when all are done, so that sums do not depend on threads */
    void *buffered[TSR_MAX_OUTPUTS]; /* whole output tensors, for the bits set in step->buffered */
    /* For an appended file: the unit that may write next, the hash state of the current piece, and the bytes
     * digested. */
    uint64_t turn;
    XXH3_state_t *stream;
    uint64_t fed;
    tsr_source_sum read;     /* the sum over finished units */
    tsr_block_cells *blocks; /* NULL: no statistics of single blocks */
} tsr_step_state;

/* A file is WHOLE when all of its steps are done. Then the committer can take it. */
typedef enum tsr_file_phase { TSR_FILE_WAITING, TSR_FILE_OPEN, TSR_FILE_WHOLE, TSR_FILE_DONE } tsr_file_phase;

typedef struct tsr_file_state {
    tsr_file_phase phase;
    tsr_io_file io;
    size_t steps_left;
    uint64_t done; /* bytes written or, when verifying, read back */
    uint64_t end;  /* current size of an appended file */
    bool wanted;   /* takes part in the current phase, on any rank */
    bool mine;     /* this rank makes or verifies it in the current phase */
    bool linked;   /* it is a link, so nothing is written */
    bool named;    /* it is a hard link and has its final name */
} tsr_file_state;

/* The state of a tsr_amax. `left` counts the units that are not computed yet, and `taken` those that workers have
 * taken; both are 0 if no step needs it. `amax` is the largest |x| so far. */
typedef struct tsr_amax_state {
    uint64_t left, taken;
    float amax;
    bool wanted;  /* a step needs it */
    bool counted; /* its bytes are included in bytes_total */
} tsr_amax_state;

/* Consecutive files of a plan that read the source once. Units are taken, and files are finished, in this order. If
 * reads are shared, a run has the sequences of its plan (tsr_plan_begin_sequence), otherwise one. */
typedef struct tsr_file_sequence {
    struct tsr_run *run;
    size_t end_step; /* end of its steps */
    size_t next_step;
    uint64_t next_unit;
    size_t next_file, end_file; /* files that are not committed yet */
    bool waiting;               /* no unit was ready since the last change */
    bool placed;                /* `place` is the source position of the next unit */
    uint64_t place;
} tsr_file_sequence;

/* The workers, and the data shared by the runs that they execute together. */
typedef struct tsr_pool {
    const tsr_run_options *options;
    struct tsr_run *runs;
    size_t n_runs;
    unsigned workers;
    tsr_ranks *ranks;         /* the processes that share the only run; NULL: only this one */
    atomic_uint started;      /* threads that started in this phase */
    uint64_t unit_bytes;      /* bytes of the largest unit of all runs */
    uint64_t sending_bytes;   /* bytes of memory for what is being sent */
    uint64_t sent_before;     /* bytes that were sent before this phase */
    bool shares;              /* reads may be shared */
    uint64_t capacity;        /* bytes of memory for shared chunks */
    tsr_shared_reads *shared; /* NULL: each run reads for itself */
    bool ring;                /* the system has io_uring and some run may use it */
    unsigned most_depth;      /* concurrent units of a worker that memory allows */
    unsigned depth;           /* concurrent units in the current phase */
    tsr_numa numa;            /* the memory nodes, over which workers are spread */
    const char *phase;        /* name of the phase, for progress */
    struct timespec began;

    pthread_mutex_t lock; /* guards the state of the runs */
    pthread_cond_t changed;
} tsr_pool;

/* A unit of a step, or of an amax. */
typedef struct tsr_work {
    struct tsr_run *run;
    bool amax;
    size_t index;
    uint64_t unit;
} tsr_work;

/* A unit in progress in a worker: its input is read, it is computed, its output is written. A worker has several, so
 * that reads and writes continue while another unit is computed. */
typedef struct tsr_task {
    tsr_work work;
    char *memory; /* memory for its buffers */
    tsr_io *io;
    tsr_io_batch batch;
    tsr_status status; /* a failure is reported when the task ends */
    tsr_err err;
    /* Fields for a unit of a step. */
    tsr_unit unit;
    tsr_block_notes notes;
    uint64_t in, appended;
    tsr_source_sum read;
    uint64_t done; /* bytes written or read back */
    /* Fields for a unit of an amax. */
    tsr_amax_rows rows;
    void *data[TSR_MAX_INPUTS];
    char *scratch;
} tsr_task;

typedef struct tsr_run {
    tsr_pool *pool;
    bool present; /* takes part in the current phase */
    const tsr_plan *plan;
    const char *dst;
    bool force;
    const tsr_shard *shard; /* NULL: this run makes all files */
    uint32_t *owner;        /* [plan->n_files]: the shard that makes each file */
    tsr_cpu_kernels kernels;
    tsr_journal journal;
    tsr_digests digests;
    tsr_watch watch;
    tsr_step_rows rows;
    tsr_uploads *uploads; /* NULL: the output stays in `dst` */
    bool *sent;           /* [plan->n_files]: files that were objects when the run began; NULL without uploads */
    uint64_t noted;       /* files that the journal recorded as finished */
    tsr_text *frames;     /* [plan->n_steps]: block statistics of finished steps, until their file is finished */
    bool verifying;
    tsr_io_choice io;
    tsr_link_mode link;
    unsigned cpu_flags; /* for tsr_cpu_kernels_init */
    bool *whole;        /* [plan->n_files]: files to be linked, each a whole source file; NULL: none */

    /* Members guarded by the pool's lock. */
    tsr_step_state **steps;       /* [plan->n_steps]; NULL if not in progress */
    tsr_file_state *files;        /* [plan->n_files] */
    tsr_amax_state *amaxes;       /* [plan->n_amaxes] */
    tsr_file_sequence *sequences; /* [n_sequences]: sequences of the current phase */
    size_t n_sequences;
    tsr_claims claims; /* claims on files in the current phase */
    size_t claimed;    /* files below this index are assigned to this rank or another */
    bool *done_here;   /* [plan->n_files]: files that this rank has verified or made */
    size_t next_amax;
    size_t n_open;   /* number of open files */
    bool committing; /* a file is being committed */
    tsr_links_summary links;
    tsr_first_failure failure;
    uint64_t bytes_read, bytes_written, bytes_total;
    uint64_t steps_done, steps_total;
    uint64_t bytes_elsewhere; /* bytes of files that other ranks have claimed, included in bytes_total */
} tsr_run;

/* Returns true if another shard makes the file. */
static inline bool tsr_is_others(const tsr_run *r, size_t file)
{
    return r->shard != NULL && !r->shard->finish && r->owner[file] != r->shard->index;
}

/* Returns true if a file was an object of the output when the run began. */
static inline bool tsr_is_sent(const tsr_run *r, size_t file)
{
    return r->sent != NULL && r->sent[file];
}

/* Returns true if units of another step of this phase make the outputs of this step. Ranks claim files one after
 * another, so this is only used for steps of the same file. */
static inline bool tsr_is_coproduced(const tsr_run *r, size_t index)
{
    const uint32_t by = r->plan->steps[index].coproduced_by, file = r->plan->steps[index].file;
    const uint32_t from = by == 0 ? 0 : r->plan->steps[by - 1].file;
    return by > 0 && !r->verifying && r->files[from].mine && r->files[file].mine &&
           (r->pool->ranks == NULL || from == file);
}

/* Finds the step whose outputs this one also makes in this phase. Returns false if there is none. */
static inline bool tsr_coproduces(const tsr_run *r, size_t index, size_t *other)
{
    *other = r->plan->steps[index].coproduces - 1u;
    return r->plan->steps[index].coproduces > 0 && tsr_is_coproduced(r, *other);
}

/* Returns true if the output of a step is appended to its file. */
static inline bool tsr_is_appended(const tsr_run *r, const tsr_step *step)
{
    return r->plan->files[step->file].appended;
}

/* Records that the run has failed, unless it has failed before. Called with the lock held. */
void tsr_run_note_failure(tsr_run *r, tsr_status status, const tsr_err *err);

/* Takes the lock and records that the run has failed. */
void tsr_run_fail(tsr_run *r, tsr_status status, const tsr_err *err);

/* Writes the final path of an output file to `path`, and returns it. */
const char *tsr_run_path(const tsr_run *r, size_t file, char path[PATH_MAX]);

/* Returns true if a step makes a tensor. Copies of whole side files are not counted as tensors. */
bool tsr_run_makes_tensor(const tsr_plan *plan, size_t index);
