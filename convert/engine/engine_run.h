/* One run of the engine, shared by the files that it is made of:
 *
 * engine.c         the phases: verify what is there, convert what is missing, finish
 * engine_memory.c  how the memory is divided, and whether reads are shared
 * crew.c           several runs and lanes at a time: workers
 * crew_turns.c     whose turn it is
 * engine_lanes.c   lanes: files that are made one after another, side by side with those of other lanes
 * engine_units.c   workers, which take units in the order of their lane and carry them out
 * engine_amax.c    what steps must know of whole tensors before
 * engine_files.c   bytes of output files, and the committer, which finishes files in the order of their lane
 * engine_shards.c  files that other processes make
 * engine_remote.c  units that other ranks carry out
 * engine_serve.c   the other side of it: a rank that carries out units for rank 0
 * engine_append.c  files whose size is not known before they are written
 * engine_blocks.c  figures of single blocks */
#ifndef TSR_CONVERT_ENGINE_ENGINE_RUN_H
#define TSR_CONVERT_ENGINE_ENGINE_RUN_H

#include "common/atomics.h"
#include "common/first_failure.h"
#include "common/numa.h"
#include "convert/engine/destination.h"
#include "convert/engine/digests.h"
#include "convert/engine/engine.h"
#include "convert/engine/io_choice.h"
#include "convert/engine/journal.h"
#include "convert/engine/links.h"
#include "convert/engine/outgoing.h"
#include "convert/engine/shared_reads.h"
#include "convert/engine/source_sums.h"
#include "convert/engine/watch.h"

#include <limits.h>
#include <pthread.h>

/* A step that has begun. */
typedef struct tsr_step_state {
    uint64_t units, left;
    tsr_quant_stats *partials;   /* [units]: added in the order of units once all are done, whatever thread made them */
    void *held[TSR_MAX_OUTPUTS]; /* whole output tensors, for the bits set in step->held */
    /* For an appended file: the unit that may write next, the piece that is being digested, and the bytes digested. */
    uint64_t turn;
    XXH3_state_t *stream;
    uint64_t fed;
    tsr_block_cells *blocks; /* NULL: figures of single blocks are not wanted */
} tsr_step_state;

/* A file is WHOLE when all of its steps are done: the committer may then take it. */
typedef enum tsr_file_phase { TSR_FILE_WAITING, TSR_FILE_OPEN, TSR_FILE_WHOLE, TSR_FILE_DONE } tsr_file_phase;

typedef struct tsr_file_state {
    tsr_file_phase phase;
    tsr_io_file io;
    size_t steps_left;
    uint64_t done; /* bytes written or, when verifying, read back */
    uint64_t end;  /* of an appended file, so far */
    bool mine;     /* takes part in the present phase */
    bool linked;   /* it has its bytes, and none are written */
    bool named;    /* and its name, as a hard link */
} tsr_file_state;

/* Of a tsr_amax: the units that are still to be found, none where no step asks, and the largest so far. */
typedef struct tsr_amax_state {
    uint64_t left;
    float amax;
} tsr_amax_state;

/* Files of a run that follow one another in the plan and go through the source once. Units are taken, and files finished, in
 * this order. Where reads are shared, a run has the lanes of its plan (tsr_plan_begin_lane), else one. */
typedef struct tsr_lane {
    struct tsr_run *run;
    size_t end_step; /* behind the last */
    size_t next_step;
    uint64_t next_unit;
    size_t next_file, end_file; /* to be committed */
    bool waiting;               /* found so since something changed */
    bool placed;                /* `place` is where the next unit reads */
    uint64_t place;
} tsr_lane;

/* The workers, and what the runs that they carry out at a time have in common. */
typedef struct tsr_crew {
    const tsr_run_options *options;
    struct tsr_run *runs;
    size_t n_runs;
    unsigned workers;
    tsr_ranks *ranks;             /* NULL: this process is alone */
    uint8_t *touched;             /* [n_files * ranks]: which ranks have a file open */
    atomic_ullong elsewhere;      /* units that other ranks have carried out */
    atomic_ullong read_elsewhere; /* bytes of source files that they have read for them */
    /* With other ranks: the source in zones. Whoever takes the first unit that reads in one takes all of them, in every lane, so that
     * only one rank reads it. */
    uint16_t *owners; /* of each zone, 1 + the rank; 0: nobody yet. NULL: there are no zones */
    uint64_t zone_bytes;
    atomic_uint started;      /* threads, in this phase: those behind the workers wait for other ranks */
    uint64_t unit_bytes;      /* of the largest unit of all runs */
    bool shares;              /* reads are shared, where that spares any */
    uint64_t capacity;        /* bytes of memory for what is shared */
    tsr_shared_reads *shared; /* NULL: each run reads for itself */
    bool ring;                /* the system has io_uring, and some run may use it */
    unsigned most_depth;      /* units that a worker may have under way at a time, as the memory allows */
    unsigned depth;           /* in the present phase */
    tsr_numa numa;            /* the machine's nodes, which workers go around */
    const char *phase;        /* for the progress callback */
    struct timespec began;

    pthread_mutex_t lock; /* guards what changes in the runs */
    pthread_cond_t changed;
} tsr_crew;

/* Whether there is a unit to take. */
typedef enum tsr_turn {
    TSR_TURN_TAKEN,
    TSR_TURN_WAITS, /* not before others have done theirs */
    TSR_TURN_OVER,  /* there is none left, or the run has failed */
} tsr_turn;

/* A unit of a step, or of an amax that a step waits for. */
typedef struct tsr_work {
    struct tsr_run *run;
    bool amax;
    size_t index;
    uint64_t unit;
} tsr_work;

/* A unit under way in a worker: its input is read, then it is computed, then its output is written. Several are under way at a
 * time, so that reading and writing go on while another is computed. */
typedef struct tsr_task {
    tsr_work work;
    char *memory; /* for its buffers */
    tsr_io *io;
    tsr_io_batch batch;
    tsr_status status; /* how it is going: a failure is told when it is its turn */
    tsr_err err;
    /* Of a step: */
    tsr_unit unit;
    tsr_block_notes notes;
    uint64_t in, appended;
    uint64_t done; /* bytes written or read back */
    /* Of an amax: */
    tsr_amax_rows rows;
    void *data[TSR_DECODED_INPUTS];
    char *scratch;
} tsr_task;

typedef struct tsr_run {
    tsr_crew *crew;
    bool present; /* takes part in the present phase */
    const tsr_plan *plan;
    const char *dst;
    bool force;
    const tsr_shard *shard; /* NULL: this run makes all files */
    uint32_t *owner;        /* [plan->n_files]: whose each file is */
    tsr_cpu_kernels kernels;
    tsr_journal journal;
    tsr_digests digests;
    tsr_watch watch;
    tsr_quant_stats *rows;
    uint64_t noted;   /* files that the journal called finished */
    tsr_text *frames; /* [plan->n_steps]: of figures of blocks, from the end of the step to that of its file */
    bool verifying;
    tsr_io_choice io;
    tsr_link_mode link;
    bool *whole; /* [plan->n_files]: files that are a source's whole, where they are to be linked; NULL: none are */

    /* What follows is guarded by the crew's lock. */
    tsr_step_state **steps; /* [plan->n_steps]; NULL when not in flight */
    tsr_file_state *files;  /* [plan->n_files] */
    tsr_amax_state *amaxes; /* [plan->n_amaxes] */
    tsr_lane *lanes;        /* [n_lanes], of the present phase */
    size_t n_lanes;
    size_t next_amax;
    uint64_t next_amax_unit;
    size_t n_open; /* files */
    tsr_links_told links;
    tsr_first_failure failure;
    uint64_t bytes_read, bytes_written, bytes_total;
    uint64_t steps_done, steps_total;
} tsr_run;

/* Whether a file is another shard's to make. */
static inline bool tsr_is_others(const tsr_run *r, size_t file)
{
    return r->shard != NULL && !r->shard->finish && r->owner[file] != r->shard->index;
}

/* Whether a step is not run by itself, since units of another one of this phase make its outputs. */
static inline bool tsr_is_given(const tsr_run *r, size_t index)
{
    const uint32_t by = r->plan->steps[index].given_by;
    return by > 0 && !r->verifying && r->files[r->plan->steps[by - 1].file].mine &&
           r->files[r->plan->steps[index].file].mine;
}

/* The step that this one gives in this phase; false: none. */
static inline bool tsr_gives(const tsr_run *r, size_t index, size_t *given)
{
    *given = r->plan->steps[index].gives - 1u;
    return r->plan->steps[index].gives > 0 && tsr_is_given(r, *given);
}

/* Whether a step's output is appended to its file. */
static inline bool tsr_is_appended(const tsr_run *r, const tsr_step *step)
{
    return r->plan->files[step->file].appended;
}

/* Ends the run with this status, unless it has failed before. Called with the lock held. */
void tsr_run_note_failure(tsr_run *r, tsr_status status, const tsr_err *err);

/* The same without the lock. */
void tsr_run_fail(tsr_run *r, tsr_status status, const tsr_err *err);

/* The path at which an output file stands when it is finished. Returns path. */
const char *tsr_run_path(const tsr_run *r, size_t file, char path[PATH_MAX]);

/* ---- crew.c ---- */

/* Carries out the units of all runs that are present, and commits their files; returns when none is left. How each ended, its
 * failure says. */
void tsr_crew_work(tsr_crew *crew, const char *phase);

/* ---- crew_turns.c ---- */

/* The first lane, or the one behind *lane; false: there is none. */
bool tsr_crew_next_lane(const tsr_crew *c, tsr_lane **lane);

/* A unit of whichever lane, for a rank; false when there is none left in any, or none to be had now and `wait` is false. */
bool tsr_crew_take_work(tsr_crew *c, unsigned rank, tsr_work *w, bool wait);

/* ---- engine_memory.c ---- */

/* How a rank but 0 divides its memory: threads that compute, units that they have under way, and bytes that keep what lanes share
 * (0: they share nothing). `deep`: several units for each thread are worth while. */
typedef struct tsr_rank_memory {
    unsigned threads, units;
    uint64_t shared;
} tsr_rank_memory;
tsr_status tsr_divide_rank_memory(const tsr_plan *plan, const tsr_run_options *options, unsigned ranks, bool deep,
                                  tsr_rank_memory *memory, tsr_err *err) TSR_WARN_UNUSED;

/* Chooses how many work; what they leave of the memory keeps what is shared. TSR_E_NOMEM: not one fits. */
tsr_status tsr_crew_begin(tsr_crew *c, const tsr_engine_job *jobs, tsr_err *err) TSR_WARN_UNUSED;

/* Lets the runs that are present, and their lanes, share what they read, if that spares any. */
void tsr_crew_share(tsr_crew *c);

/* ---- engine_lanes.c ---- */

/* Lays out the lanes of a phase. */
void tsr_run_lay_lanes(tsr_run *r);

/* Passes over the steps of files that take no part, and over those that others give. False: none is left. */
bool tsr_lane_find_step(tsr_lane *lane);

/* Whether the lane's next step waits for an amax. */
bool tsr_lane_wants_amax(const tsr_lane *lane);

/* Where in the source the next unit reads: lanes of all runs that read the same source take turns by it. Called with the lock
 * held. */
uint64_t tsr_lane_place(tsr_lane *lane);

/* The lane whose next file to be committed is whole, the first of them; NULL: none is. *over: none will be. Called with the
 * lock held. */
tsr_lane *tsr_run_next_whole(tsr_run *r, bool *over);

/* ---- engine_files.c ---- */

/* Opens a file, for writing or to be verified, and writes or checks its header. Called with the lock held, on the first
 * unit of the file. */
tsr_status tsr_run_open_file(tsr_run *r, size_t file, tsr_err *err) TSR_WARN_UNUSED;

void tsr_run_close_file(tsr_file_state *file);

/* Begins to read a window of a source tensor, rows without gaps, into *memory, which moves behind it. */
tsr_status tsr_run_read_window(tsr_task *task, const tsr_tensor *t, const tsr_window *w, char **memory, void **data,
                               tsr_err *err) TSR_WARN_UNUSED;

/* Asks the system for a window of a source tensor. It has rows. */
void tsr_run_prefetch_window(const tsr_run *r, const tsr_tensor *t, const tsr_window *w);

/* The place for a window of an output tensor in *memory, which moves behind it. */
void *tsr_run_place_output(const tsr_run *r, const tsr_tensor *t, const tsr_window *w, char **memory);

/* Begins to take what will be made at `data` as a window of output i of a step; false: the window is not one stretch. */
bool tsr_run_begin_output(const tsr_run *r, size_t step, unsigned i, const tsr_window *w, void *data,
                          tsr_outgoing *out);

/* Writes `data` as a window of an output tensor, at once. */
tsr_status tsr_run_write_window(const tsr_run *r, const tsr_tensor *t, const tsr_window *w, const void *data,
                                tsr_err *err) TSR_WARN_UNUSED;

/* Begins to read back what was written. Without a task it is read when this returns. */
tsr_status tsr_run_read_back(tsr_run *r, tsr_task *task, const tsr_tensor *t, const tsr_window *w, void *data,
                             tsr_err *err) TSR_WARN_UNUSED;

/* The committer's thread: finishes files in the order of their lane. `argument` is the run. */
void *tsr_run_commit_files(void *argument);

/* ---- engine_shards.c ---- */

/* Says whose each file is, where there are shards. */
tsr_status tsr_run_divide(tsr_run *r, tsr_err *err) TSR_WARN_UNUSED;

/* Opens the journal of all files, of a shard's, or that in which all shards' are put together. */
tsr_status tsr_run_open_journal(tsr_run *r, tsr_err *err) TSR_WARN_UNUSED;

/* Before shards are put together: TSR_E_NOTHING unless all files are finished. */
tsr_status tsr_run_check_shards(tsr_run *r, tsr_err *err) TSR_WARN_UNUSED;

/* Why a run that has something to make cannot write. */
tsr_status tsr_run_refuse_writing(const tsr_run *r, tsr_err *err);

/* Whether there is room for what this run makes and, of them, for `promised` bytes of others. */
tsr_status tsr_run_check_space(const tsr_run *r, uint64_t promised, tsr_err *err) TSR_WARN_UNUSED;

/* tsr_explain_no_space for what this run makes. */
tsr_status tsr_run_explain_no_space(const tsr_run *r, tsr_err *err);

/* What follows the last file: blocks, texts; nothing of a shard. */
tsr_status tsr_run_finish(tsr_run *r, tsr_err *err) TSR_WARN_UNUSED;

/* ---- engine_remote.c ---- */

/* Has a unit carried out by a thread of another rank. */
tsr_status tsr_remote_do(tsr_remote *remote, const tsr_work *work, tsr_err *err) TSR_WARN_UNUSED;

/* Has every rank that has a file open sync it, where it wrote to it, and close it: before it is committed. */
tsr_status tsr_run_settle_file(tsr_run *r, size_t file, tsr_err *err) TSR_WARN_UNUSED;

/* ---- engine_append.c ---- */

/* Writes a unit's output behind that of all earlier units. The held outputs come last, as if each were one more unit.
 */
tsr_status tsr_run_append(tsr_run *r, size_t index, uint64_t unit, const void *data, uint64_t size,
                          tsr_err *err) TSR_WARN_UNUSED;

/* Digests an existing appended file, which is read in pieces of at most `capacity` bytes. */
tsr_status tsr_run_digest_appended(tsr_run *r, size_t index, void *memory, size_t capacity,
                                   tsr_err *err) TSR_WARN_UNUSED;

/* ---- engine_blocks.c ---- */

/* Makes room for figures of blocks, if the step has them. */
tsr_status tsr_run_begin_blocks(tsr_run *r, size_t index, tsr_err *err) TSR_WARN_UNUSED;
void tsr_run_free_blocks(tsr_step_state *step);

/* Makes a frame of what was gathered; r->rows[index] is known. */
tsr_status tsr_run_end_blocks(tsr_run *r, size_t index, tsr_err *err) TSR_WARN_UNUSED;

/* Writes the frames of a file's steps, before the journal says that it is finished. */
tsr_status tsr_run_keep_blocks(tsr_run *r, size_t file, tsr_err *err) TSR_WARN_UNUSED;

/* ---- engine_amax.c ---- */

/* The largest |x| of a unit whose input is in data[]; `memory` is for scratch. TSR_E_VALUE, with its place, for NaN or Inf. */
tsr_status tsr_amax_of_rows(const tsr_cpu_kernels *kernels, const tsr_amax_rows *at, char *memory, void *const *data,
                            float *amax, tsr_err *err) TSR_WARN_UNUSED;

/* Adds what a unit has to the amax. */
void tsr_run_count_amax(tsr_run *r, size_t index, float amax, uint64_t bytes_in);

/* The next unit of an amax that some step asks for, in the plan's order; false when all are taken. Called with the lock
 * held. */
bool tsr_run_next_amax(tsr_run *r, size_t *index, uint64_t *unit);

/* Begins to read a unit. */
tsr_status tsr_run_begin_amax(tsr_task *task, tsr_err *err) TSR_WARN_UNUSED;

/* Adds what it has to the amax. TSR_E_VALUE, with its place, for NaN or Inf. */
tsr_status tsr_run_compute_amax(tsr_task *task, tsr_err *err) TSR_WARN_UNUSED;

/* ---- engine_units.c ---- */

/* The lane's next unit; while its step's amax is not known, one of the amaxes', which then run ahead. Called with the lock
 * held. */
tsr_turn tsr_lane_take_unit(tsr_lane *lane, tsr_work *w);

/* Carries a unit out, in three parts: begins to read, computes and begins to write, counts it as done. Units of one worker go
 * through each part in the order in which they were taken. */
tsr_status tsr_run_begin_unit(tsr_task *task, tsr_err *err) TSR_WARN_UNUSED;
tsr_status tsr_run_compute_unit(tsr_task *task, tsr_err *err) TSR_WARN_UNUSED;
tsr_status tsr_run_end_unit(tsr_task *task, tsr_err *err) TSR_WARN_UNUSED;

/* Counts a unit as done, and ends its step when it was the last. */
tsr_status tsr_run_count_unit(tsr_run *r, size_t index, uint64_t in, uint64_t done, tsr_err *err) TSR_WARN_UNUSED;

/* Frees what a step holds, if it has begun. */
void tsr_run_free_step(tsr_run *r, size_t index);

/* Whether a step makes a tensor; copies of whole side files are not counted as such. */
bool tsr_run_makes_tensor(const tsr_plan *plan, size_t index);

#endif
