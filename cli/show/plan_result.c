/* Prints plans and their results, and writes them as JSON. */
#include "cli/show/plan_result.h"

#include "cli/help/next_command.h"
#include "cli/io/io_summary.h"
#include "cli/io/output.h"
#include "cli/io/space.h"
#include "cli/proof.h"
#include "cli/show/merge_result.h"
#include "common/checked.h"
#include "convert/plans/quantize_report.h"
#include "formats/json/json_write.h"
#include "formats/remote/objects.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { WORST = 10, WORST_BLOCKS = 5 };

/* Tensors whose errors differ by at most this are considered equal. */
static const double kAlikeDb = 0.1;

/* Schemes of 4 bits usually leave less than this, others more. */
static const double kFourBitsDb = 25;

/* ---- text ---- */

/* The number of tensors with each action, in order of first occurrence. */
typedef struct tally {
    const char *action[16];
    uint64_t count[16];
    size_t n;
} tally;

static tally count_actions(const tsr_plan *plan)
{
    tally t = {.n = 0};
    for (size_t i = 0; i < plan->n_notes; i++) {
        size_t k = 0;
        while (k < t.n && strcmp(t.action[k], plan->notes[i].action) != 0)
            k++;
        if (k == t.n)
            t.action[t.n++] = plan->notes[i].action;
        t.count[k]++;
    }
    return t;
}

static void print_sums(const tsr_plan *plan)
{
    const bool bounded = tsr_plan_bounded_bytes(plan) > 0;
    char in[32], again[128] = "", written[32];
    const tally t = count_actions(plan);
    if (plan->bytes_again > 0)
        snprintf(again, sizeof again,
                 " (%s of it is read twice if --memory cannot hold it, for scales of whole "
                 "tensors)",
                 tsr_bytes_text((double)plan->bytes_again, written));
    tsr_print("%zu tensor%s: ", plan->n_notes, tsr_plural(plan->n_notes));
    for (size_t i = 0; i < t.n; i++)
        tsr_print("%s%s %llu", i == 0 ? "" : ", ", t.action[i], U64(t.count[i]));
    if (plan->n_added > 0)
        tsr_print("%sadded %zu", t.n == 0 ? "" : ", ", plan->n_added);
    tsr_print("; %zu file%s, %s in%s, %s%s out\n", plan->n_files, tsr_plural(plan->n_files),
              tsr_bytes_text((double)plan->bytes_in, in), again, bounded ? "at most " : "",
              tsr_bytes_text((double)plan->bytes_out, written));
}

/* Prints the loaders that read a format. The rules of loaders can only be applied to an existing output. */
static void print_readers(const tsr_plan *plan)
{
    if (plan->made.readers != NULL && plan->sources[0]->config != NULL)
        tsr_print("%s in the dialect of %s: loaded by %s\n", plan->made.scheme, plan->made.dialect, plan->made.readers);
}

/* Prints the plan of all shards. The plan of one shard has files only. */
static void print_steps(const tsr_plan *plan)
{
    for (size_t i = 0; i < plan->n_notes; i++) {
        const tsr_plan_note *const n = &plan->notes[i];
        char shape[192];
        tsr_print("%-10s %-7s %-18s %s  (%s)\n", n->action, tsr_dtype_name(n->source->dtype),
                  tsr_shape_text(n->source, shape, sizeof shape), n->source->name, n->reason);
    }
    for (size_t i = 0; i < plan->n_files; i++)
        tsr_print("write      %s, %s%llu bytes\n", plan->files[i].name, plan->files[i].appended ? "at most " : "",
                  U64(plan->files[i].bytes));
    for (size_t i = 0; i < plan->n_texts; i++)
        tsr_print("write      %s, %zu bytes\n", plan->texts[i].name, plan->texts[i].size);
    for (size_t i = 0; i < plan->n_warnings; i++)
        tsr_print("note       %s\n", plan->warnings[i]);
}

static uint64_t memory_at_most(const tsr_command_context *c)
{
    const tsr_plan_job *const job = c->job;
    const uint64_t most = tsr_engine_memory_at_most(&job->plan, c->common.threads, job->io, c->common.memory);
    return job->address == NULL ? most : tsr_min_u64(most + TSR_OBJECTS_MEMORY, tsr_max_u64(most, c->common.memory));
}

static tsr_status print_plan(const tsr_command_context *c, tsr_err *err)
{
    const tsr_plan_job *const job = c->job;
    const tsr_plan *const plan = &job->plan;
    char memory[32];
    if (tsr_is_shard(&job->shards))
        TSR_TRY(tsr_shard_print_plan(&job->shards, plan, err));
    else
        print_steps(plan);
    print_sums(plan);
    print_readers(plan);
    tsr_print("memory: %s at most with %llu thread%s%s; ", tsr_bytes_text((double)memory_at_most(c), memory),
              U64(c->common.threads), tsr_plural(c->common.threads),
              plan->bytes_wanted > plan->bytes_in
                  ? ", plus a cache of the rest of --memory for bytes that are read again"
                  : "");
    if (tsr_is_shard(&job->shards))
        tsr_shard_print_space(&job->shards);
    else if (job->address != NULL)
        tsr_space_print_spool(plan, job->dst);
    else
        tsr_space_print(plan, job->dst);
    if (job->proof != NULL)
        tsr_proof_print_plan(job->proof);
    return TSR_OK;
}

static bool is_low(const tsr_plan_job *job, const tsr_quant_stats *row)
{
    return row->sum_x2 > 0 && tsr_quant_stats_sqnr(row) < job->sqnr.low;
}

/* Returns true if the worst block has noise above a third of the usual signal: an outlier may have set its scale. */
static bool is_outlier(const tsr_quant_stats *row)
{
    return tsr_quant_stats_worst_block(row) > 1.0 / 3;
}

static tsr_quant_stats add_all(const tsr_plan_job *job, const tsr_plan *plan, const tsr_quant_stats *rows,
                               tsr_stats_of of, size_t *low)
{
    tsr_quant_stats whole = {0};
    *low = 0;
    for (size_t s = 0; s < plan->n_steps; s++) {
        if (plan->steps[s].op->stats_of != of)
            continue;
        tsr_quant_stats_add(&whole, &rows[s]);
        *low += is_low(job, &rows[s]);
    }
    return whole;
}

/* Returns true if n > 1 sorted errors, the worst first, differ insignificantly. */
static bool are_alike(double worst, double least, size_t n)
{
    return n > 1 && 20 * log10(worst / least) <= kAlikeDb;
}

/* Prints the tensors of lowest SQNR, in one line if all are about equal. */
static void print_worst_tensors(const tsr_plan_job *job, const tsr_plan *plan, const tsr_quant_stats *rows,
                                const size_t *worst, size_t n)
{
    if (n > 0 && !is_low(job, &rows[worst[0]]) &&
        are_alike(tsr_quant_stats_relative_error(&rows[worst[0]]), tsr_quant_stats_relative_error(&rows[worst[n - 1]]),
                  n)) {
        tsr_print("worst tensors: no outlier; the lowest %zu have %.2f to %.2f dB\n", n,
                  tsr_quant_stats_sqnr(&rows[worst[0]]), tsr_quant_stats_sqnr(&rows[worst[n - 1]]));
        return;
    }
    tsr_print("worst tensors:\n");
    for (size_t i = 0; i < n; i++) {
        const tsr_quant_stats *const row = &rows[worst[i]];
        tsr_print("  %6.2f dB  max error %.3g of amax %.3g  %s", tsr_quant_stats_sqnr(row), row->max_error, row->amax,
                  plan->steps[worst[i]].in[0]->name);
        if (is_low(job, row))
            tsr_print_word(TSR_INK_NOTABLE, "  <- low: check it", 0);
        tsr_print("\n");
    }
}

/* Prints the tensors with the worst blocks, in one line if all are about equal. */
static void print_worst_blocks(const tsr_plan *plan, const tsr_quant_stats *rows, const size_t *worst, size_t n)
{
    if (n > 0 && !is_outlier(&rows[worst[0]]) &&
        are_alike(tsr_quant_stats_worst_block(&rows[worst[0]]), tsr_quant_stats_worst_block(&rows[worst[n - 1]]), n)) {
        tsr_print("worst blocks (rms error relative to the rms of values): no outlier, at most %.4f\n",
                  tsr_quant_stats_worst_block(&rows[worst[0]]));
        return;
    }
    if (n > 0)
        tsr_print("worst blocks (rms error relative to the rms of values):\n");
    for (size_t i = 0; i < n; i++) {
        const tsr_quant_stats *const row = &rows[worst[i]];
        tsr_print("  %6.4f     max error %.3g of amax %.3g, %llu clipped  %s%s\n", tsr_quant_stats_worst_block(row),
                  row->max_error, row->amax, U64(row->saturated), plan->steps[worst[i]].in[0]->name,
                  is_outlier(row) ? "  <- check it: one outlier may dominate its block" : "");
    }
}

/* Prints how the total SQNR compares with the usual value of the scheme, and how 4 bits lose less. */
static void print_usual(const tsr_plan_job *job, const tsr_plan *plan, double sqnr)
{
    if (job->scheme == NULL || !(job->sqnr.to > 0))
        return;
    tsr_print("%s %s, which usually leaves %g to %g dB\n",
              sqnr < job->sqnr.from ? "below the range of"
              : sqnr > job->sqnr.to ? "above the range of"
                                    : "typical of",
              job->scheme, job->sqnr.from, job->sqnr.to);
    if (job->sqnr.to < kFourBitsDb && plan->importance == NULL)
        tsr_print(
            "4 bits lose less with --importance, statistics of the inputs: tessera calibrate (docs/calibrate.md)\n");
}

static void print_scales(const tsr_plan *plan)
{
    if (plan->made.scales != NULL)
        tsr_print("scales are %s: no other scale that can be stored has a smaller %ssquared error\n", plan->made.scales,
                  plan->importance != NULL ? "weighted " : "");
}

/* Prints the error of all tensors and of the worst ones, if a step has such statistics. */
static void print_errors(const tsr_plan_job *job, const tsr_plan *plan, const tsr_quant_stats *rows, tsr_stats_of of,
                         const char *title)
{
    size_t low, worst[WORST];
    const tsr_quant_stats whole = add_all(job, plan, rows, of, &low);
    if (whole.elements == 0)
        return;
    tsr_print("%s: SQNR %.2f dB, relative error %.5f, cosine %.6f, %llu saturated, %llu flushed to zero, %llu zero "
              "blocks\n",
              title, tsr_quant_stats_sqnr(&whole), tsr_quant_stats_relative_error(&whole),
              tsr_quant_stats_cosine(&whole), U64(whole.saturated), U64(whole.flushed), U64(whole.zero_blocks));
    if (whole.sum_wx2 > 0)
        tsr_print("weighted by importance: SQNR %.2f dB\n", tsr_quant_stats_weighted_sqnr(&whole));
    if (whole.output_d2 > 0)
        tsr_print(
            "gptq: the squared error of outputs on the text of calibration is %.2f dB below that of nearest codes\n",
            tsr_quant_stats_gptq_gain(&whole));
    if (of == TSR_STATS_SOURCE && whole.sum_x2 > 0 && whole.output_d2 == 0)
        print_usual(job, plan, tsr_quant_stats_sqnr(&whole));
    print_worst_tensors(job, plan, rows, worst, tsr_worst_steps(plan, rows, of, TSR_WORST_SQNR, worst, WORST));
    print_worst_blocks(plan, rows, worst, tsr_worst_steps(plan, rows, of, TSR_WORST_BLOCK, worst, WORST_BLOCKS));
    if (low > 0)
        tsr_print("%zu tensor%s below %.0f dB: outliers or tiny values in a block\n", low, low == 1 ? " is" : "s are",
                  job->sqnr.low);
}

/* Returns true if the command used statistics of inputs and could prove what they gain. */
static bool could_be_proven(const tsr_plan_job *job)
{
    return job->plan.importance != NULL && job->proof != NULL && job->proof->pass.tokens == NULL &&
           job->address == NULL && !job->shards.shard.finish;
}

static void print_summary(const tsr_plan_job *job)
{
    const tsr_plan *const plan = &job->plan;
    const tsr_engine_result *const result = &job->result;
    const bool shard = tsr_is_shard(&job->shards);
    char links[384];
    if (!shard)
        print_sums(plan);
    print_errors(job, plan, result->rows, TSR_STATS_SOURCE, "whole");
    print_errors(job, plan, result->rows, TSR_STATS_ORIGINAL, "against the original");
    print_scales(plan);
    tsr_merge_result_print(plan, result->rows);
    if (!shard && job->judged.n_findings == 0)
        tsr_quant_limits_print(&job->limits, &job->judged);
    char read[32], written[32], rate[32], io[256];
    tsr_print("%s read, %s written in %.1f s (%s/s), %u thread%s, %s\n",
              tsr_bytes_text((double)result->bytes_read, read), tsr_bytes_text((double)result->bytes_written, written),
              result->seconds, tsr_bytes_text((double)result->bytes_read / fmax(result->seconds, 1e-9), rate),
              result->threads, tsr_plural(result->threads), tsr_io_text(&result->io, io));
    if (job->address != NULL)
        tsr_print("%llu object%s, %s sent to %s; %llu kept there\n", U64(result->uploads.objects),
                  tsr_plural(result->uploads.objects), tsr_bytes_text((double)result->uploads.bytes, read),
                  job->address, U64(result->uploads.kept));
    if (job->link != TSR_LINK_NONE)
        tsr_print("%s\n", tsr_links_text(&result->links, links));
    if (result->files_redone > 0)
        tsr_print("%llu file%s from the journal and %s written again\n", U64(result->files_redone),
                  result->files_redone == 1 ? " differs" : "s differ", result->files_redone == 1 ? "was" : "were");
    if (job->shards.shard.finish)
        tsr_print("%s was joined from %u shard%s: %zu file%s verified\n", tsr_plan_job_output(job),
                  job->shards.shard.count, tsr_plural(job->shards.shard.count), plan->n_files,
                  tsr_plural(plan->n_files));
    else if (result->already_complete && !shard)
        tsr_print("%s was already complete: %zu file%s verified\n", tsr_plan_job_output(job), plan->n_files,
                  tsr_plural(plan->n_files));
    else if (result->files_resumed > 0)
        tsr_print("resumed: %llu finished file%s verified and kept\n", U64(result->files_resumed),
                  tsr_plural(result->files_resumed));
    if (job->proof != NULL)
        tsr_proof_print(job->proof);
    if (shard) {
        tsr_shard_print_end(&job->shards, tsr_plan_job_output(job), job->address == NULL ? NULL : job->dst);
        return;
    }
    if (job->judged.n_findings == 0)
        tsr_serve_hints_print(&job->serving);
    if (plan->advice != NULL && job->judged.n_findings == 0)
        tsr_print("%s\n", plan->advice);
    if (plan->report != NULL)
        tsr_print("report: %s/" TSR_REPORT_NAME "\n", tsr_plan_job_output(job));
    if (job->judged.n_findings > 0) { /* last, so that no advice hides it */
        tsr_quant_limits_print(&job->limits, &job->judged);
        return;
    }
    if (could_be_proven(job))
        tsr_print("to prove the gain on held-out text, repeat the command with --prove FILE (docs/calibrate.md)\n");
    tsr_print_next(job->from.path, tsr_plan_job_output(job), job->from.ignore.count > 0, plan);
}

tsr_status tsr_plan_result_print(tsr_command_context *c, tsr_err *err)
{
    const tsr_plan_job *const job = c->job;
    if (job->dry_run)
        return print_plan(c, err);
    print_summary(job);
    return TSR_OK;
}

/* ---- JSON ---- */

static void json_counts(tsr_text *t, const tsr_command_context *c)
{
    const tsr_plan_job *const job = c->job;
    const tsr_plan *const plan = &job->plan;
    const struct {
        const char *key;
        uint64_t value;
    } counts[] = {
        {"tensors", plan->n_notes},
        {"added", plan->n_added},
        {"files", plan->n_files},
        {"bytes_in", plan->bytes_in},
        {"bytes_in_twice", plan->bytes_again},
        {"bytes_out", plan->bytes_out},
        {"memory", memory_at_most(c)},
    };
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        tsr_json_member_u64(t, counts[i].key, counts[i].value);
    }
    tsr_space_json(t, plan, job->dry_run);
    const tally actions = count_actions(plan);
    tsr_json_member_object(t, "actions", true);
    for (size_t i = 0; i < actions.n; i++) {
        tsr_json_member_u64(t, actions.action[i], actions.count[i]);
    }
    tsr_json_end_object(t);
}

/* Writes which rules were used, and the warnings. */
static void json_policy(tsr_text *t, const tsr_plan *plan)
{
    if (plan->by_policy) {
        tsr_json_member_string(t, "model_type", plan->model_type);
        tsr_json_member_string(t, "rules", plan->general_rules ? "general" : "table");
    } else if (plan->n_warnings == 0) {
        return;
    }
    tsr_json_member_array(t, "warnings", false);
    for (size_t i = 0; i < plan->n_warnings; i++)
        tsr_json_string(t, plan->warnings[i]);
    tsr_json_end_array(t);
}

static void json_plan(tsr_text *t, const tsr_plan *plan)
{
    tsr_json_member_array(t, "plan", false);
    for (size_t i = 0; i < plan->n_notes; i++) {
        tsr_json_begin_object(t, true);
        tsr_json_member_string(t, "name", plan->notes[i].source->name);
        tsr_json_member_string(t, "action", plan->notes[i].action);
        tsr_json_member_string(t, "reason", plan->notes[i].reason);
        tsr_json_end_object(t);
    }
    tsr_json_end_array(t);
}

static void json_result(tsr_text *t, const tsr_command_context *c)
{
    const tsr_plan_job *const job = c->job;
    const tsr_plan *const plan = &job->plan;
    const tsr_engine_result *const result = &job->result;
    size_t low, unused;
    const tsr_quant_stats whole = add_all(job, plan, result->rows, TSR_STATS_SOURCE, &low);
    const tsr_quant_stats against = add_all(job, plan, result->rows, TSR_STATS_ORIGINAL, &unused);
    if (!tsr_is_shard(&job->shards))
        tsr_quant_limits_json(t, &job->limits, &job->judged);
    tsr_json_member_number(t, "seconds", result->seconds);
    tsr_json_member_u64(t, "threads", result->threads);
    tsr_json_member_u64(t, "bytes_read", result->bytes_read);
    tsr_json_member_u64(t, "bytes_written", result->bytes_written);
    tsr_io_json(t, &result->io);
    if (job->link != TSR_LINK_NONE)
        tsr_links_json(t, &result->links);
    if (job->address != NULL) {
        tsr_json_member_object(t, "uploads", true);
        tsr_json_member_string(t, "address", job->address);
        tsr_json_member_u64(t, "objects", result->uploads.objects);
        tsr_json_member_u64(t, "bytes", result->uploads.bytes);
        tsr_json_member_u64(t, "objects_kept", result->uploads.kept);
        tsr_json_end_object(t);
    }
    if (c->ranks != NULL) {
        tsr_json_member_u64(t, "ranks", tsr_ranks_count(c->ranks));
        tsr_json_member_u64(t, "files_elsewhere", result->files_elsewhere);
    }
    tsr_json_member_u64(t, "files_resumed", result->files_resumed);
    if (whole.elements > 0) {
        if (isfinite(job->sqnr.low)) {
            tsr_json_member_number(t, "sqnr_limit_db", job->sqnr.low);
            tsr_json_member_u64(t, "tensors_below_limit", low);
        }
        tsr_quant_stats_json(t, &whole);
    }
    tsr_merge_result_json(plan, result->rows, t);
    if (job->proof != NULL)
        tsr_proof_json(t, job->proof);
    if (job->serving.count > 0)
        tsr_serve_hints_json(t, &job->serving);
    if (plan->made.scales != NULL)
        tsr_json_member_string(t, "scales", plan->made.scales);
    if (plan->made.readers != NULL)
        tsr_json_member_string(t, "readers", plan->made.readers);
    if (against.elements > 0) {
        tsr_json_member_object(t, "against", false);
        tsr_quant_stats_json(t, &against);
        tsr_json_end_object(t);
    }
}

void tsr_plan_result_json(const tsr_command_context *c, tsr_text *t)
{
    const tsr_plan_job *const job = c->job;
    json_counts(t, c);
    tsr_shard_json(t, &job->shards);
    json_policy(t, &job->plan);
    if (job->dry_run)
        json_plan(t, &job->plan);
    else
        json_result(t, c);
}
