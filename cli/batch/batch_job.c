/* Validates, plans, begins and ends one job of a batch. */
#include "cli/batch/batch.h"

#include "cli/io/output.h"

#include <string.h>

/* ---- words that the batch adds ---- */

/* Returns the value of an option among the words of a job; NULL: it is not given. */
static const char *value_of(const tsr_batch_job *job, const char *option)
{
    const size_t n = strlen(option);
    for (size_t i = 1; i < job->n_given; i++) {
        const char *const word = job->words[i];
        if (strcmp(word, option) == 0)
            return i + 1 < job->n_given ? job->words[i + 1] : "";
        if (strncmp(word, option, n) == 0 && word[n] == '=')
            return word + n + 1;
    }
    return NULL;
}

static bool takes(const tsr_option *options, const char *name)
{
    while (options->name != NULL && strcmp(options->name, name) != 0)
        options++;
    return options->name != NULL;
}

static void add_words(tsr_batch_job *job, const char *option, const char *value)
{
    job->words[job->n_words++] = (char *)option;
    if (value != NULL)
        job->words[job->n_words++] = (char *)value;
    job->words[job->n_words] = NULL;
}

/* Passes the batch's options on to a command that accepts them. The job's own options have precedence. */
static tsr_status complete(tsr_batch *batch, tsr_batch_job *job, const tsr_option *options, tsr_err *err)
{
    const char *const passed[][2] = {
        {"--threads", batch->threads}, {"--memory", batch->memory}, {"--cpumask", batch->cpumask}, {"--io", batch->io}};
    /* Jobs that are read together share threads and memory, but each has its own I/O mode. */
    static const char *const kOwn[] = {"it has its own --threads", "it has its own --memory",
                                       "it has its own --cpumask", NULL};
    for (size_t i = 0; i < sizeof passed / sizeof *passed; i++) {
        const bool own = value_of(job, passed[i][0]) != NULL;
        if (own)
            job->own_option = kOwn[i] == NULL ? job->own_option : kOwn[i];
        else if (passed[i][1] != NULL && takes(options, passed[i][0]))
            add_words(job, passed[i][0], passed[i][1]);
    }
    if (!batch->main->prints)
        add_words(job, "--quiet", NULL);
    job->json = value_of(job, "--json");
    if (job->json == NULL && batch->results != NULL) {
        job->json = tsr_arena_printf(&batch->arena, "%s/%s.json", batch->results, job->name);
        if (job->json == NULL)
            return tsr_out_of_memory(err, NULL);
        job->in_results = true;
        add_words(job, "--json", job->json);
    }
    job->context =
        (tsr_batch_context){.job = job->name, .progress_fd = -1, .keep = job->json == NULL, .promised = batch->results};
    return TSR_OK;
}

/* ---- paths ---- */

static void record(tsr_batch_job *job, const char *option, const char *path, bool folder, bool tensors)
{
    if (path != NULL)
        job->paths[job->n_paths++] =
            (tsr_batch_path){.option = option, .path = path, .folder = folder, .tensors = tensors};
}

/* Records the inputs and outputs of a job. Paths are copied, because the command that listed them ends. */
static tsr_status record_paths(tsr_batch *batch, tsr_batch_job *job, const tsr_io_paths *p, tsr_err *err)
{
    job->paths = tsr_arena_alloc(&batch->arena, (TSR_MAX_SOURCES + TSR_MAX_REPORTS + 1) * sizeof *job->paths);
    if (job->paths == NULL)
        return tsr_out_of_memory(err, NULL);
    job->n_paths = 0;
    for (size_t i = 0; i < TSR_MAX_SOURCES; i++)
        record(job, NULL, p->sources[i], false, false);
    record(job, "-o", p->dst, true, false);
    record(job, "--json", p->json, false, false);
    record(job, "--junit", p->junit, false, false);
    for (const tsr_output *more = p->more; more->option != NULL; more++)
        record(job, more->option, more->path, false, more->tensors);
    for (size_t i = 0; i < job->n_paths; i++) {
        tsr_batch_path *const one = &job->paths[i];
        if (one->option != NULL && !one->folder && tsr_is_stdout(one->path))
            return tsr_fail(err, TSR_E_USAGE, "%s %s: stdout belongs to the batch; name a file", one->option,
                            one->path);
        one->path = tsr_arena_dup(&batch->arena, one->path, strlen(one->path));
        if (one->path == NULL)
            return tsr_out_of_memory(err, NULL);
    }
    return TSR_OK;
}

tsr_status tsr_batch_record_own_paths(tsr_batch *batch, tsr_err *err)
{
    const tsr_common_options *const own = &batch->main->common;
    const tsr_io_paths paths = {.sources = {batch->path},
                                .json = tsr_is_stdout(own->json) ? NULL : own->json,
                                .junit = tsr_is_stdout(own->junit) ? NULL : own->junit};
    return record_paths(batch, &batch->jobs[batch->n_jobs], &paths, err);
}

/* ---- validating and planning ---- */

/* Begins the command of a job. */
static tsr_status begin(tsr_batch *batch, tsr_batch_job *job, tsr_command_context *c, tsr_err *err)
{
    TSR_TRY(tsr_command_begin(c, job->command, batch->main, err));
    c->batch = &job->context;
    return TSR_OK;
}

static tsr_status validate(tsr_batch_job *job, tsr_command_context *c, tsr_err *err)
{
    return tsr_command_validate(c, (int)job->n_words - job->n_name, job->words + job->n_name, err);
}

tsr_status tsr_batch_validate_job(tsr_batch *batch, tsr_batch_job *job, tsr_err *err)
{
    job->command = tsr_command_find(batch->main->commands, (int)job->n_given, job->words, &job->n_name);
    if (job->command == NULL || job->command == batch->main->command)
        return tsr_fail(err, TSR_E_USAGE, "'%s' is not a command that a batch can run; 'tessera --help' lists them",
                        job->words[0]);
    tsr_command_context c;
    tsr_status status = begin(batch, job, &c, err);
    if (status == TSR_OK)
        status = complete(batch, job, c.options, err);
    if (status == TSR_OK)
        status = validate(job, &c, err);
    if (status == TSR_OK && c.done)
        status = tsr_fail(err, TSR_E_USAGE, "the command would end without reading or writing anything");
    if (status == TSR_OK)
        status = record_paths(batch, job, &c.paths, err);
    tsr_command_close(&c);
    return status;
}

tsr_status tsr_batch_make_plan(tsr_batch *batch, tsr_batch_job *job, tsr_command_context *c, tsr_err *err)
{
    TSR_TRY(begin(batch, job, c, err));
    TSR_TRY(validate(job, c, err));
    return tsr_plan_job_make(c->job, err);
}

/* Keeps the warnings of a plan for the summary of a dry run. Otherwise they are printed when the job runs. */
static tsr_status keep_warnings(tsr_batch *batch, tsr_batch_job *job, const tsr_command_context *c, tsr_err *err)
{
    tsr_plan_job *const made = c->job;
    const tsr_plan *const p = &made->plan;
    if (!batch->dry_run)
        return TSR_OK;
    made->dry_run = true; /* without the warning about disk space */
    tsr_plan_job_warn(c);
    job->warnings = tsr_arena_alloc(&batch->arena, (p->n_warnings + 1) * sizeof *job->warnings);
    for (size_t i = 0; i < p->n_warnings && job->warnings != NULL; i++)
        job->warnings[job->n_warnings++] = tsr_arena_dup(&batch->arena, p->warnings[i], strlen(p->warnings[i]));
    return tsr_arena_status(&batch->arena, TSR_OK, err);
}

tsr_status tsr_batch_plan_job(tsr_batch *batch, tsr_batch_job *job, tsr_err *err)
{
    tsr_command_context c;
    tsr_status status = tsr_batch_make_plan(batch, job, &c, err);
    if (status == TSR_OK)
        status = keep_warnings(batch, job, &c, err);
    job->planned = status == TSR_OK;
    if (job->planned) {
        const tsr_plan_job *const made = c.job;
        const tsr_plan *const p = &made->plan;
        job->files = p->n_files;
        job->bytes_in = p->bytes_in;
        job->bytes_out = p->bytes_out;
        job->need = tsr_engine_needs(p);
        job->memory = c.common.memory;
        job->source = p->sources[0]->n_files > 0 ? p->sources[0]->files[0].stamp : (tsr_stamp){0};
    }
    tsr_command_close(&c);
    return status;
}

/* ---- beginning and ending ---- */

static tsr_batch_state state_of(int code)
{
    return code == 0 ? TSR_JOB_DONE : code == 1 ? TSR_JOB_SHORT : code == 130 ? TSR_JOB_INTERRUPTED : TSR_JOB_FAILED;
}

void tsr_batch_begin_job(const tsr_batch *batch, tsr_batch_job *job)
{
    if (batch->main->prints)
        tsr_print("== %s: %s (%zu of %zu) ==\n", job->name, job->words[0], (size_t)(job - batch->jobs) + 1,
                  batch->n_jobs);
    job->context.progress_fd = batch->terminal->fd;
    job->context.jsonl = batch->terminal->jsonl;
}

/* Records the bytes that a command has read and written. */
static void note_measures(tsr_batch_job *job, const tsr_command_context *c)
{
    const tsr_plan_job *const made = c->job;
    if (!job->command->makes_plan || made == NULL || !made->executed)
        return;
    job->measured = true;
    job->complete = made->result.already_complete;
    job->bytes_read = made->result.bytes_read;
    job->bytes_written = made->result.bytes_written;
    job->sqnr = tsr_engine_result_sqnr(&made->result, &made->plan);
}

void tsr_batch_end_job(tsr_batch *batch, tsr_batch_job *job, tsr_command_context *c, tsr_status status,
                       const tsr_err *err, double seconds)
{
    job->code = tsr_command_end(c, status, err);
    job->status = c->status;
    job->err = c->err;
    job->seconds = seconds;
    job->state = state_of(job->code);
    batch->code = tsr_graver_code(batch->code, job->code);
    note_measures(job, c);
    if (tsr_command_has_reports(batch->main)) {
        job->result = c->result;
        c->result = (tsr_text){0};
    }
    tsr_command_close(c);
}
