/* The phases of a run: verify what is there, convert what is missing, finish. */
#include "convert/engine/engine.h"

#include "common/checked.h"
#include "common/threads.h"
#include "convert/engine/blocks_file.h"
#include "convert/engine/engine_run.h"

#include <fenv.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

void tsr_run_note_failure(tsr_run *r, tsr_status status, const tsr_err *err)
{
    tsr_note_failure(&r->failure, status, err);
    pthread_cond_broadcast(&r->changed);
}

void tsr_run_fail(tsr_run *r, tsr_status status, const tsr_err *err)
{
    pthread_mutex_lock(&r->lock);
    tsr_run_note_failure(r, status, err);
    pthread_mutex_unlock(&r->lock);
}

const char *tsr_run_path(const tsr_run *r, size_t file, char path[PATH_MAX])
{
    return tsr_output_path(r->dst, r->plan->files[file].name, path);
}

static void report_progress(void *context)
{
    tsr_run *const r = context;
    if (r->options->run.progress == NULL)
        return;
    pthread_mutex_lock(&r->lock);
    const tsr_progress p = {
        .phase = r->phase,
        .bytes_done = r->bytes_read,
        .bytes_total = r->bytes_total,
        .items_done = r->steps_done,
        .items_total = r->steps_total,
        .items = r->plan->counted == NULL ? "tensors" : r->plan->counted,
        .seconds = tsr_seconds_since(&r->began),
    };
    pthread_mutex_unlock(&r->lock);
    r->options->run.progress(&p, r->options->run.progress_data);
}

/* Has an amax found, unless no step of this phase asks for it or another one has asked before. Returns what there is to
 * read for it. */
static uint64_t want_amax(tsr_run *r, const tsr_amax *amax)
{
    if (amax == NULL || r->amaxes[amax->index].left > 0)
        return 0;
    r->amaxes[amax->index].left = tsr_amax_units(amax);
    return tsr_amax_bytes(amax);
}

/* Chooses the files that take part in the present phase. Returns how many bytes there are to read. */
static uint64_t choose_files(tsr_run *r)
{
    uint64_t chosen = 0;
    r->next_step = r->next_amax = 0;
    r->next_unit = r->next_amax_unit = 0;
    r->n_open = 0;
    r->bytes_read = r->bytes_total = r->steps_done = r->steps_total = 0;
    for (size_t i = 0; i < r->plan->n_files; i++) {
        const tsr_out_file *const f = &r->plan->files[i];
        r->files[i] = (tsr_file_state){.fd = -1, .mine = r->journal.finished[i] == r->verifying};
        if (!r->files[i].mine)
            continue;
        chosen++;
        for (size_t s = f->first_step; s < f->first_step + f->n_steps; s++)
            r->steps_total += tsr_run_makes_tensor(r->plan, s);
        if (r->verifying)
            r->bytes_total += f->bytes;
        for (size_t s = f->first_step; !r->verifying && s < f->first_step + f->n_steps; s++)
            r->bytes_total += tsr_step_input(&r->plan->steps[s]) + want_amax(r, r->plan->steps[s].amax);
    }
    clock_gettime(CLOCK_MONOTONIC, &r->began);
    return chosen;
}

/* Removes the unfinished files of a failed phase: the next run redoes whole files and has no use for them. */
static void abandon_files(tsr_run *r)
{
    for (size_t s = 0; s < r->plan->n_steps; s++) {
        tsr_run_free_step(r, s);
        tsr_text_free(&r->frames[s]);
    }
    for (size_t i = 0; i < r->plan->n_files; i++) {
        char path[PATH_MAX];
        if (r->files[i].fd >= 0)
            close(r->files[i].fd);
        if (!r->verifying && r->files[i].mine && r->files[i].phase != TSR_FILE_DONE &&
            r->files[i].phase != TSR_FILE_WAITING)
            unlink(tsr_part_path(r->dst, i, path));
    }
}

static tsr_status run_phase(tsr_run *r, const char *phase)
{
    pthread_t committer;
    r->phase = phase;
    const bool committing = pthread_create(&committer, NULL, tsr_run_commit_files, r) == 0;
    if (!committing || tsr_run_threads(r->workers, tsr_run_work, report_progress, r) == 0)
        tsr_run_fail(r, TSR_E_NOMEM, &(tsr_err){"cannot start a thread"});
    if (committing)
        pthread_join(committer, NULL);
    report_progress(r);
    abandon_files(r);
    return r->failure.status;
}

/* Marks files for redoing that the journal calls finished but that are gone or have another size, or whose figures of
 * blocks are. They need not be read first. */
static void drop_missing(tsr_run *r)
{
    for (size_t i = 0; i < r->plan->n_files; i++) {
        char path[PATH_MAX];
        struct stat st;
        const tsr_out_file *const f = &r->plan->files[i];
        if (r->journal.finished[i] &&
            (stat(tsr_run_path(r, i, path), &st) != 0 || !S_ISREG(st.st_mode) ||
             (!f->appended && (uint64_t)st.st_size != f->bytes) || !tsr_blocks_kept(r->plan, r->dst, i)))
            r->journal.finished[i] = false;
    }
}

/* Removes files that were renamed just before a kill and are not in the journal. They are made again, and need the
 * space. */
static void remove_unknown(const tsr_run *r)
{
    for (size_t i = 0; i < r->plan->n_files; i++) {
        char path[PATH_MAX];
        if (!r->journal.finished[i])
            unlink(tsr_run_path(r, i, path));
    }
}

static tsr_status choose_threads(tsr_run *r, tsr_err *err)
{
    const uint64_t tables = tsr_plan_memory(r->plan, 0), each = tsr_plan_memory(r->plan, 1) - tables;
    TSR_TRY(tsr_choose_threads(&r->options->run, tables, each, &r->workers, err));
    r->unit_bytes = tsr_plan_unit_bytes(r->plan);
    return TSR_OK;
}

/* During a repair, too, nobody may take the directory for a model before it is whole again. */
static tsr_status withdraw(tsr_run *r, tsr_err *err)
{
    tsr_arena scratch = {0};
    tsr_names names;
    tsr_status status = tsr_plan_names(r->plan, &scratch, &names, err);
    if (status == TSR_OK) {
        names.items += r->plan->n_files; /* a raw copy of this name may be finished, and stays */
        names.count -= r->plan->n_files;
        status = tsr_withdraw(r->dst, &names, err);
    }
    tsr_arena_free(&scratch);
    return status;
}

/* Whichever way the phase ended: outputs of a source file that has changed since are not to be trusted. */
static tsr_status check_sources(tsr_run *r, tsr_status status, tsr_err *err)
{
    tsr_err why = {{0}};
    const tsr_status changed = tsr_watch_check_all(&r->watch, r->plan, r->journal.finished, &why);
    if (changed == TSR_OK)
        return status;
    const tsr_status noted = tsr_journal_rewrite(&r->journal, r->plan, r->dst, r->rows, NULL);
    if (noted == TSR_OK)
        remove_unknown(r);
    if (status == TSR_OK)
        tsr_run_fail(r, changed, &why);
    return status == TSR_OK ? tsr_fail(err, changed, "%s", why.msg) : status;
}

static tsr_status convert(tsr_run *r, tsr_err *err)
{
    if (r->journal.read_only)
        return tsr_fail(err, TSR_E_IO,
                        "%s: not complete, and nothing can be written there: is it mounted read-only, or another "
                        "user's?",
                        r->dst);
    TSR_TRY(withdraw(r, err));
    remove_unknown(r);
    TSR_TRY(tsr_check_space(r->plan, r->dst, r->journal.finished, err));
    TSR_TRY(tsr_watch_begin(&r->watch, r->plan, err));
    return check_sources(r, run_phase(r, "converting"), err);
}

static tsr_status run_all(tsr_run *r, tsr_engine_result *result, tsr_err *err)
{
    TSR_TRY(choose_threads(r, err));
    TSR_TRY(tsr_journal_open(&r->journal, r->plan, r->dst, r->options->force, r->rows, err));
    uint64_t noted = 0;
    for (size_t i = 0; i < r->plan->n_files; i++)
        noted += r->journal.finished[i];
    drop_missing(r);
    r->verifying = true;
    if (choose_files(r) > 0 && run_phase(r, "verifying") != TSR_OK)
        return r->failure.status;
    for (size_t i = 0; i < r->plan->n_files; i++)
        result->files_resumed += r->journal.finished[i];
    result->files_redone = noted - result->files_resumed;
    result->bytes_read = r->bytes_read;

    r->verifying = false;
    result->already_complete = choose_files(r) == 0;
    if (!result->already_complete)
        TSR_TRY(convert(r, err));
    result->bytes_read += r->bytes_read;
    result->bytes_written = r->bytes_written;
    tsr_plan_blocks blocks;
    TSR_TRY(tsr_blocks_write(r->plan, r->dst, &blocks, err));
    return tsr_write_texts(r->plan, r->dst, r->rows, &blocks, err);
}

tsr_status tsr_engine_run(const tsr_plan *plan, const char *dst, const tsr_engine_options *options,
                          tsr_engine_result *result, tsr_err *err)
{
    tsr_run r = {
        .plan = plan,
        .dst = dst,
        .options = options,
        .journal = {.fd = -1},
        .lock = PTHREAD_MUTEX_INITIALIZER,
        .changed = PTHREAD_COND_INITIALIZER,
        .rows = calloc(plan->n_steps, sizeof *r.rows),
        .frames = calloc(plan->n_steps, sizeof *r.frames),
        .steps = calloc(plan->n_steps, sizeof *r.steps),
        .files = calloc(plan->n_files, sizeof *r.files),
        .amaxes = calloc(plan->n_amaxes + 1, sizeof *r.amaxes),
    };
    struct timespec began;
    fenv_t callers_mode;
    (void)fegetenv(&callers_mode);
    tsr_set_float_mode(); /* for the report's sums; each worker sets its own */
    clock_gettime(CLOCK_MONOTONIC, &began);
    *result = (tsr_engine_result){0};
    tsr_cpu_kernels_init(&r.kernels, options->cpu_flags);
    tsr_status status = r.rows == NULL || r.frames == NULL || r.steps == NULL || r.files == NULL || r.amaxes == NULL
                            ? tsr_fail(err, TSR_E_NOMEM, "out of memory for %zu steps", plan->n_steps)
                            : run_all(&r, result, err);
    if (status != TSR_OK && r.failure.status == status && err != NULL)
        *err = r.failure.err;
    if (status == TSR_E_NOSPACE && r.failure.status == status)
        status = tsr_explain_no_space(plan, dst, r.journal.finished, err);
    tsr_watch_end(&r.watch);
    tsr_journal_close(&r.journal);
    free(r.frames);
    free(r.steps);
    free(r.files);
    free(r.amaxes);
    result->rows = r.rows;
    result->threads = r.workers;
    result->seconds = tsr_seconds_since(&began);
    (void)fesetenv(&callers_mode);
    return status;
}

void tsr_engine_result_free(tsr_engine_result *result)
{
    free(result->rows);
    *result = (tsr_engine_result){0};
}
