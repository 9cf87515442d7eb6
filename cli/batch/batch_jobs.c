/* Reads the file of jobs: an array, or one job on each line. It is not trusted: each member is checked, and sizes are
 * capped. */
#include "cli/batch/batch.h"

#include "common/file.h"
#include "formats/json/json.h"

#include <string.h>

enum { MAX_BYTES = 16 << 20, MAX_NAME = 64 };

#define NAME_CHARACTERS "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._+-"

tsr_status tsr_batch_blame(const tsr_batch *batch, const tsr_batch_job *job, tsr_status status, tsr_err *err)
{
    return job->name == NULL ? tsr_prepend(err, status, "%s: line %zu", batch->path, job->line)
                             : tsr_prepend(err, status, "%s: line %zu: job '%s'", batch->path, job->line, job->name);
}

/* ---- one job ---- */

/* Options that belong to the batch itself, or with which a command makes nothing. */
static const char *const kNotInJobs[][2] = {
    {"--help", "a job must write an output or a result"},
    {"-h", "a job must write an output or a result"},
    {"--list-families", "a job must write an output or a result"},
    {"--dry-run", "an option of the batch, not of a job: tessera batch JOBS --dry-run"},
    {"--shard", "each shard is its own process, and 'tessera finish' is another one; start them outside the batch"},
    {"--mpi", "mpirun starts one command, so start it outside the batch"},
    {"--progress", "an option of the batch, not of a job: tessera batch JOBS --progress"},
    {"--progress-file", "an option of the batch, not of a job: tessera batch JOBS --progress-file"},
};

static tsr_status check_words(const tsr_batch_job *job, tsr_err *err)
{
    for (size_t i = 0; i < job->n_given; i++) {
        for (size_t k = 0; k < sizeof kNotInJobs / sizeof *kNotInJobs; k++) {
            const size_t n = strlen(kNotInJobs[k][0]);
            if (strncmp(job->words[i], kNotInJobs[k][0], n) == 0 &&
                (job->words[i][n] == '\0' || job->words[i][n] == '='))
                return tsr_fail(err, TSR_E_USAGE, "%s cannot be used in a job: %s", kNotInJobs[k][0], kNotInJobs[k][1]);
        }
    }
    return TSR_OK;
}

/* Checks the name of a job, which is used in messages and file names. */
static tsr_status check_name(const tsr_batch *batch, const tsr_batch_job *job, tsr_err *err)
{
    const char *const name = job->name;
    if (*name == '\0' || strlen(name) > MAX_NAME || name[strspn(name, NAME_CHARACTERS)] != '\0' || *name == '.' ||
        *name == '-')
        return tsr_fail(
            err, TSR_E_FORMAT,
            "'%.80s' is not a valid name of a job: at most %d letters, digits, '.', '_', '+' and '-', beginning with "
            "a letter, a digit, '_' or '+'",
            name, MAX_NAME);
    for (const tsr_batch_job *other = batch->jobs; other < job; other++) {
        if (strcmp(other->name, name) == 0)
            return tsr_fail(err, TSR_E_FORMAT, "duplicate job name '%s', also in line %zu", name, other->line);
    }
    return TSR_OK;
}

static tsr_status read_text(tsr_json_reader *r, const char *what, tsr_batch *batch, const char **text, tsr_err *err)
{
    tsr_json_kind kind;
    TSR_TRY(tsr_json_peek(r, &kind, err));
    if (kind != TSR_JSON_STRING)
        return tsr_fail(err, TSR_E_FORMAT, "%s: byte %zu: %s must be a string in quotes", r->name, r->pos, what);
    return tsr_json_read_text(r, &batch->arena, text, err);
}

static tsr_status read_args(tsr_json_reader *r, tsr_batch *batch, tsr_batch_job *job, tsr_err *err)
{
    tsr_json_kind kind;
    bool more;
    TSR_TRY(tsr_json_peek(r, &kind, err));
    if (kind != TSR_JSON_ARRAY)
        return tsr_fail(
            err, TSR_E_FORMAT,
            "%s: byte %zu: 'args' must be an array such as [\"quantize\", \"SRC\", \"-o\", \"DST\"]; a command line "
            "in one string is not split",
            r->name, r->pos);
    /* Leaves room for the words that the batch adds. */
    job->words = tsr_arena_alloc(&batch->arena, (TSR_MAX_WORDS + 16) * sizeof *job->words);
    if (job->words == NULL)
        return tsr_out_of_memory(err, NULL);
    TSR_TRY(tsr_json_enter_array(r, err));
    for (;;) {
        const char *word;
        TSR_TRY(tsr_json_next_element(r, &more, err));
        if (!more)
            break;
        if (job->n_words == TSR_MAX_WORDS)
            return tsr_fail(err, TSR_E_FORMAT, "%s: more than %d arguments", r->name, TSR_MAX_WORDS);
        TSR_TRY(read_text(r, "an argument", batch, &word, err));
        job->words[job->n_words++] = (char *)word;
    }
    job->words[job->n_words] = NULL;
    job->n_given = job->n_words;
    return job->n_words == 0 ? tsr_fail(err, TSR_E_FORMAT,
                                        "%s: 'args' is empty; its first element must be the "
                                        "command",
                                        r->name)
                             : TSR_OK;
}

static tsr_status read_members(tsr_json_reader *r, tsr_batch *batch, tsr_batch_job *job, tsr_err *err)
{
    for (;;) {
        tsr_json_text key;
        const char *name;
        char meant[80];
        bool more;
        TSR_TRY(tsr_json_next_member(r, &key, &more, err));
        if (!more)
            break;
        TSR_TRY(tsr_json_decode(r, key, &batch->arena, &name, err));
        const bool names = strcmp(name, "name") == 0, args = strcmp(name, "args") == 0;
        if (!names && !args)
            return tsr_fail(err, TSR_E_FORMAT, "%s: unknown key '%.80s' in a job%s; known keys: name, args", r->name,
                            name, tsr_did_you_mean(name, "name|args", meant));
        if ((names && job->name != NULL) || (args && job->words != NULL))
            return tsr_fail(err, TSR_E_FORMAT, "%s: duplicate key '%s' in a job", r->name, name);
        TSR_TRY(names ? read_text(r, "a name", batch, &job->name, err) : read_args(r, batch, job, err));
    }
    return job->name == NULL || job->words == NULL
               ? tsr_fail(err, TSR_E_FORMAT, "%s: a job has no '%s'", r->name, job->name == NULL ? "name" : "args")
               : TSR_OK;
}

static tsr_status read_job(tsr_json_reader *r, tsr_batch *batch, size_t line, tsr_err *err)
{
    tsr_json_kind kind;
    if (batch->n_jobs == TSR_MAX_JOBS)
        return tsr_fail(err, TSR_E_FORMAT, "%s: more than %d jobs", r->name, TSR_MAX_JOBS);
    tsr_batch_job *const job = &batch->jobs[batch->n_jobs];
    *job = (tsr_batch_job){.line = line};
    TSR_TRY(tsr_json_peek(r, &kind, err));
    if (kind != TSR_JSON_OBJECT)
        return tsr_fail(err, TSR_E_FORMAT,
                        "%s: byte %zu: expected a job, an object such as {\"name\": ..., "
                        "\"args\": [...]}",
                        r->name, r->pos);
    TSR_TRY(tsr_json_enter_object(r, err));
    TSR_TRY(read_members(r, batch, job, err));
    const tsr_status named = check_name(batch, job, err);
    if (named != TSR_OK)
        return tsr_prepend(err, named, "%s", r->name);
    const tsr_status status = check_words(job, err);
    if (status != TSR_OK)
        return tsr_batch_blame(batch, job, status, err);
    batch->n_jobs++;
    return TSR_OK;
}

/* ---- all jobs ---- */

static tsr_status name_line(tsr_batch *batch, size_t line, const char **name, tsr_err *err)
{
    *name = tsr_arena_printf(&batch->arena, "%s: line %zu", batch->path, line);
    return *name == NULL ? tsr_out_of_memory(err, NULL) : TSR_OK;
}

static tsr_status read_array(tsr_batch *batch, const char *text, size_t size, tsr_err *err)
{
    tsr_json_reader r = tsr_json_open(batch->path, text, size);
    size_t line = 1, counted = 0;
    TSR_TRY(tsr_json_enter_array(&r, err));
    for (;;) {
        tsr_json_kind kind;
        bool more;
        r.name = batch->path;
        TSR_TRY(tsr_json_next_element(&r, &more, err));
        if (!more)
            return tsr_json_finish(&r, err);
        TSR_TRY(tsr_json_peek(&r, &kind, err)); /* after the white space */
        for (; counted < r.pos; counted++)
            line += text[counted] == '\n';
        TSR_TRY(name_line(batch, line, &r.name, err));
        TSR_TRY(read_job(&r, batch, line, err));
    }
}

static tsr_status read_lines(tsr_batch *batch, const char *text, size_t size, tsr_err *err)
{
    size_t number = 1;
    for (const char *line = text, *const end = text + size; line < end; number++) {
        const char *const stop = memchr(line, '\n', (size_t)(end - line));
        const size_t n = (size_t)((stop == NULL ? end : stop) - line);
        tsr_json_reader r = tsr_json_open(NULL, line, n);
        line += n + 1;
        if (strspn(r.text, " \t\r") >= n)
            continue;
        TSR_TRY(name_line(batch, number, &r.name, err));
        TSR_TRY(read_job(&r, batch, number, err));
        TSR_TRY(tsr_json_finish(&r, err));
    }
    return TSR_OK;
}

tsr_status tsr_batch_read_text(tsr_batch *batch, const char *text, size_t size, tsr_err *err)
{
    const size_t space = strspn(text, " \t\r\n");
    batch->jobs = tsr_arena_alloc(&batch->arena, (TSR_MAX_JOBS + 1) * sizeof *batch->jobs);
    if (batch->jobs == NULL)
        return tsr_out_of_memory(err, NULL);
    if (space < size && text[space] != '[' && text[space] != '{')
        return tsr_fail(err, TSR_E_FORMAT,
                        "%s: expected an array of jobs, or one job on each line (JSON Lines), such as {\"args\": "
                        "[\"inspect\", \"model\"]}",
                        batch->path);
    TSR_TRY(text[space] == '[' ? read_array(batch, text, size, err) : read_lines(batch, text, size, err));
    batch->jobs[batch->n_jobs] = (tsr_batch_job){.name = "the batch itself"};
    return batch->n_jobs == 0 ? tsr_fail(err, TSR_E_FORMAT, "%s: no job in it", batch->path) : TSR_OK;
}

tsr_status tsr_batch_read(tsr_batch *batch, tsr_err *err)
{
    const char *text;
    size_t size;
    TSR_TRY(tsr_read_file(batch->path, MAX_BYTES, &batch->arena, &text, &size, err));
    return tsr_batch_read_text(batch, text, size, err);
}
