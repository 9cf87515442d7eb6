/* Prints the plan and the table of a batch, and writes its summary as JSON. */
#include "cli/batch/batch.h"

#include "cli/io/output.h"
#include "formats/json/json_write.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Returns "not begun", "done", "short", "failed" or "interrupted". Static storage. */
static const char *batch_state_name(tsr_batch_state state)
{
    static const char *const kNames[] = {[TSR_JOB_NOT_BEGUN] = "not begun",
                                         [TSR_JOB_DONE] = "done",
                                         [TSR_JOB_SHORT] = "short",
                                         [TSR_JOB_FAILED] = "failed",
                                         [TSR_JOB_INTERRUPTED] = "interrupted"};
    return kNames[state];
}

/* ---- text ---- */

static int name_width(const tsr_batch *batch)
{
    size_t width = strlen("job");
    for (size_t i = 0; i < batch->n_jobs; i++) {
        const size_t n = strlen(batch->jobs[i].name);
        width = n > width ? n : width;
    }
    return (int)width;
}

static void print_after(const tsr_batch *batch, const tsr_batch_job *job)
{
    const char *before = "after ";
    for (size_t i = 0; i < batch->n_jobs; i++) {
        if (!job->after[i])
            continue;
        tsr_print("%s%s", before, batch->jobs[i].name);
        before = ", ";
    }
}

/* Prints the jobs that are read together, and how many bytes that saves. */
static void print_groups(const tsr_batch *batch)
{
    char once[32], wanted[32];
    for (size_t i = 0; i < batch->n_jobs; i++) {
        const tsr_batch_job *const leader = &batch->jobs[i];
        uint64_t bytes = leader->bytes_wanted;
        if (leader->leader != leader || leader->bytes_once == 0)
            continue;
        tsr_print("read together:");
        for (size_t k = i; k < batch->n_jobs; k++) {
            if (batch->jobs[k].leader != leader)
                continue;
            tsr_print(" %s", batch->jobs[k].name);
            bytes += batch->dry_run ? batch->jobs[k].bytes_in : 0;
        }
        tsr_print("; %s of the source in place of %s\n", tsr_bytes_text((double)leader->bytes_once, once),
                  tsr_bytes_text((double)bytes, wanted));
    }
    for (size_t i = 0; batch->dry_run && i < batch->n_jobs; i++) {
        if (batch->jobs[i].alone != NULL)
            tsr_print("by itself: %s: %s\n", batch->jobs[i].name, batch->jobs[i].alone);
    }
}

void tsr_batch_print_plan(const tsr_batch *batch)
{
    const int width = name_width(batch);
    uint64_t in = 0, out = 0;
    char read[32], written[32];
    for (size_t i = 0; i < batch->n_jobs; i++) {
        const tsr_batch_job *const job = &batch->jobs[i];
        tsr_print("%-*s  %-15s ", width, job->name, job->words[0]);
        if (job->planned)
            tsr_print("%s in, %s out in %llu file%s", tsr_bytes_text((double)job->bytes_in, read),
                      tsr_bytes_text((double)job->bytes_out, written), U64(job->files), tsr_plural(job->files));
        else if (job->dependent)
            print_after(batch, job);
        else if (job->status != TSR_OK)
            tsr_print("cannot be planned: %s", job->err.msg);
        else
            tsr_print("reads only");
        tsr_print("\n");
        in += job->bytes_in;
        out += job->bytes_out;
    }
    print_groups(batch);
    tsr_print("%zu job%s; of those that can be planned now: %s in, %s out\n", batch->n_jobs, tsr_plural(batch->n_jobs),
              tsr_bytes_text((double)in, read), tsr_bytes_text((double)out, written));
}

static const char *result_word(const tsr_batch_job *job, char text[32])
{
    if (job->state == TSR_JOB_DONE)
        return job->complete ? "complete already" : "done";
    if (job->state == TSR_JOB_NOT_BEGUN)
        return "not begun";
    snprintf(text, 32, "%s (exit %d)", job->state == TSR_JOB_SHORT ? "fell short" : batch_state_name(job->state),
             job->code);
    return text;
}

static void print_row(const tsr_batch_job *job, int width)
{
    char word[32], read[32] = "", written[32] = "", seconds[32] = "", sqnr[32] = "";
    if (job->measured) {
        tsr_bytes_text((double)job->bytes_read, read);
        tsr_bytes_text((double)job->bytes_written, written);
    }
    if (job->state != TSR_JOB_NOT_BEGUN)
        snprintf(seconds, sizeof seconds, "%.1f", job->seconds);
    if (job->measured && !isnan(job->sqnr))
        snprintf(sqnr, sizeof sqnr, "%.2f dB", job->sqnr);
    tsr_print("%-*s  ", width, job->name);
    tsr_print_word(job->state == TSR_JOB_DONE        ? TSR_INK_GOOD
                   : job->state == TSR_JOB_NOT_BEGUN ? TSR_INK_NOTABLE
                                                     : TSR_INK_BAD,
                   result_word(job, word), 20);
    tsr_print("  %10s  %10s  %9s  %10s", read, written, seconds, sqnr);
    if (job->waits_for != NULL)
        tsr_print("  needs %s", job->waits_for);
    tsr_print("\n");
}

void tsr_batch_print(const tsr_batch *batch)
{
    const int width = name_width(batch);
    size_t count[TSR_JOB_INTERRUPTED + 1] = {0};
    tsr_print("\n%-*s  %-20s  %10s  %10s  %9s  %10s\n", width, "job", "result", "read", "written", "seconds", "SQNR");
    for (size_t i = 0; i < batch->n_jobs; i++) {
        print_row(&batch->jobs[i], width);
        count[batch->jobs[i].state]++;
    }
    print_groups(batch);
    tsr_print("%zu job%s", batch->n_jobs, tsr_plural(batch->n_jobs));
    for (tsr_batch_state s = TSR_JOB_DONE; s <= TSR_JOB_INTERRUPTED; s++) {
        if (count[s] > 0)
            tsr_print(", %zu %s", count[s], batch_state_name(s));
    }
    if (count[TSR_JOB_NOT_BEGUN] > 0)
        tsr_print(", %zu not begun", count[TSR_JOB_NOT_BEGUN]);
    tsr_print(" in %.1f s\n", batch->seconds);
    if (batch->code != 0)
        tsr_print("repeat the command to resume: finished outputs are kept\n");
}

/* ---- JSON ---- */

/* Writes the result of the job's command as a value. */
static void write_result(tsr_text *t, const tsr_text *result)
{
    size_t n = result->size;
    while (n > 0 && result->data[n - 1] == '\n')
        n--;
    tsr_json_key(t, "result");
    if (n == 0)
        tsr_json_null(t);
    else
        tsr_json_raw(t, result->data, n);
}

static void write_plan(tsr_text *t, const tsr_batch *batch, const tsr_batch_job *job)
{
    if (job->planned) {
        tsr_json_member_u64(t, "files", job->files);
        tsr_json_member_u64(t, "bytes_in", job->bytes_in);
        tsr_json_member_u64(t, "bytes_out", job->bytes_out);
    }
    if (job->n_warnings > 0)
        tsr_json_member_strings(t, "warnings", job->warnings, job->n_warnings);
    if (job->leader != NULL)
        tsr_json_member_string(t, "with", job->leader->name);
    if (job->alone != NULL)
        tsr_json_member_string(t, "alone", job->alone);
    tsr_json_member_array(t, "after", true);
    for (size_t i = 0; i < batch->n_jobs; i++) {
        if (job->after[i])
            tsr_json_string(t, batch->jobs[i].name);
    }
    tsr_json_end_array(t);
}

static void write_outcome(tsr_text *t, const tsr_batch_job *job)
{
    if (job->state != TSR_JOB_NOT_BEGUN) {
        tsr_json_member_u64(t, "code", (uint64_t)job->code);
        tsr_json_member_number(t, "seconds", job->seconds);
    }
    if (job->waits_for != NULL)
        tsr_json_member_string(t, "needs", job->waits_for);
    if (job->measured) {
        tsr_json_member_u64(t, "bytes_read", job->bytes_read);
        tsr_json_member_u64(t, "bytes_written", job->bytes_written);
        tsr_json_member_bool(t, "complete_already", job->complete);
        tsr_json_member_number(t, "sqnr_db", job->sqnr);
    }
    tsr_json_member_string(t, "result_file", job->state == TSR_JOB_NOT_BEGUN ? NULL : job->json);
    write_result(t, &job->result);
}

static void write_job(tsr_text *t, const tsr_batch *batch, const tsr_batch_job *job)
{
    tsr_json_begin_object(t, false);
    tsr_json_member_string(t, "name", job->name);
    tsr_json_member_u64(t, "line", job->line);
    tsr_json_member_string(t, "command", job->words[0]);
    tsr_json_member_strings(t, "args", (const char *const *)job->words, job->n_given);
    tsr_json_member_string(t, "state", batch->dry_run ? "planned" : batch_state_name(job->state));
    if (job->status != TSR_OK && (batch->dry_run || job->state != TSR_JOB_NOT_BEGUN))
        tsr_json_member_string(t, "message", job->err.msg);
    write_plan(t, batch, job);
    if (!batch->dry_run)
        write_outcome(t, job);
    tsr_json_end_object(t);
}

/* Writes the groups of jobs that are read together. */
static void write_groups(tsr_text *t, const tsr_batch *batch)
{
    tsr_json_member_array(t, "together", false);
    for (size_t i = 0; i < batch->n_jobs; i++) {
        const tsr_batch_job *const leader = &batch->jobs[i];
        uint64_t wanted = leader->bytes_wanted;
        if (leader->leader != leader || (!batch->dry_run && leader->state == TSR_JOB_NOT_BEGUN))
            continue;
        tsr_json_begin_object(t, false);
        tsr_json_member_array(t, "jobs", true);
        for (size_t k = i; k < batch->n_jobs; k++) {
            if (batch->jobs[k].leader != leader)
                continue;
            tsr_json_string(t, batch->jobs[k].name);
            wanted += batch->dry_run ? batch->jobs[k].bytes_in : 0;
        }
        tsr_json_end_array(t);
        tsr_json_member_u64(t, "bytes_wanted", wanted);
        tsr_json_member_u64(t, "bytes_read", leader->bytes_once);
        tsr_json_end_object(t);
    }
    tsr_json_end_array(t);
}

void tsr_batch_json(const tsr_batch *batch, tsr_text *t)
{
    tsr_json_member_string(t, "jobs_file", batch->path);
    if (!batch->dry_run) {
        tsr_json_member_bool(t, "passed", batch->code == 0);
        tsr_json_member_u64(t, "code", (uint64_t)batch->code);
        tsr_json_member_number(t, "seconds", batch->seconds);
    }
    tsr_json_member_bool(t, "dry_run", batch->dry_run);
    tsr_json_member_bool(t, "keep_going", batch->keep_going);
    write_groups(t, batch);
    tsr_json_member_array(t, "jobs", false);
    for (size_t i = 0; i < batch->n_jobs; i++)
        write_job(t, batch, &batch->jobs[i]);
    tsr_json_end_array(t);
}
