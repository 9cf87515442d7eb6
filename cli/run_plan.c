/* Printing plans, running jobs, telling results. */
#include "cli/run_plan.h"

#include "cli/io_told.h"
#include "cli/next.h"
#include "cli/output.h"
#include "cli/places.h"
#include "cli/results.h"
#include "cli/serving.h"
#include "cli/space.h"
#include "cli/stage.h"
#include "cli/terminal.h"
#include "common/file.h"
#include "common/threads.h"
#include "convert/engine/engine.h"
#include "convert/plans/policy_plan.h"
#include "convert/plans/quantize_report.h"
#include "formats/json/json_write.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { WORST = 10, WORST_BLOCKS = 5 };

/* ---- telling ---- */

/* How many tensors were treated in each way, in the order in which the ways first occur. */
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
        snprintf(again, sizeof again, " (%s of it twice if --memory does not hold it, for scales of whole tensors)",
                 tsr_bytes_text((double)plan->bytes_again, written));
    tsr_print("%zu tensors: ", plan->n_notes);
    for (size_t i = 0; i < t.n; i++)
        tsr_print("%s%s %llu", i == 0 ? "" : ", ", t.action[i], U64(t.count[i]));
    if (plan->n_added > 0)
        tsr_print("%sadded %zu", t.n == 0 ? "" : ", ", plan->n_added);
    tsr_print("; %zu files, %s in%s, %s%s out\n", plan->n_files, tsr_bytes_text((double)plan->bytes_in, in), again,
              bounded ? "at most " : "", tsr_bytes_text((double)plan->bytes_out, written));
}

/* Who loads a format that names its readers, before there is an output that the loaders' rules could judge. */
static void print_readers(const tsr_plan *plan)
{
    if (plan->made.readers != NULL && plan->sources[0]->config != NULL)
        tsr_print("%s in the dialect of %s: loaded by %s\n", plan->made.scheme, plan->made.dialect, plan->made.readers);
}

/* The plan of all shards: of one, there are only files. */
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

static tsr_status print_plan(const tsr_plan_run *run, const tsr_plan *plan, tsr_err *err)
{
    if (tsr_is_shard(&run->shards))
        TSR_TRY(tsr_shard_print_plan(&run->shards, plan, err));
    else
        print_steps(plan);
    print_sums(plan);
    print_readers(plan);
    char memory[32];
    tsr_print("memory: %s at most with %llu threads%s; ",
              tsr_bytes_text((double)tsr_engine_memory_at_most(plan, run->threads, run->io, run->memory), memory),
              U64(run->threads),
              plan->bytes_wanted > plan->bytes_in
                  ? ", and what --memory leaves, to read bytes once that are wanted again"
                  : "");
    if (tsr_is_shard(&run->shards))
        tsr_shard_print_space(&run->shards);
    else
        tsr_space_print(plan, run->dst);
    return TSR_OK;
}

static bool is_low(const tsr_plan_run *run, const tsr_quant_stats *row)
{
    return row->sum_x2 > 0 && tsr_quant_stats_sqnr(row) < run->low_sqnr;
}

/* A block whose noise is a third of the usual signal may hold little but the value that set its scale. */
static bool is_outlier(const tsr_quant_stats *row)
{
    return tsr_quant_stats_worst_block(row) > 1.0 / 3;
}

static tsr_quant_stats add_all(const tsr_plan_run *run, const tsr_plan *plan, const tsr_quant_stats *rows,
                               tsr_stats_of of, size_t *low)
{
    tsr_quant_stats whole = {0};
    *low = 0;
    for (size_t s = 0; s < plan->n_steps; s++) {
        if (plan->steps[s].op->stats_of != of)
            continue;
        tsr_quant_stats_add(&whole, &rows[s]);
        *low += is_low(run, &rows[s]);
    }
    return whole;
}

/* What was lost, of the whole and of the worst tensors; nothing when no step has such statistics. */
static void print_errors(const tsr_plan_run *run, const tsr_plan *plan, const tsr_quant_stats *rows, tsr_stats_of of,
                         const char *title)
{
    size_t low, worst[WORST];
    const tsr_quant_stats whole = add_all(run, plan, rows, of, &low);
    if (whole.elements == 0)
        return;
    tsr_print("%s: SQNR %.2f dB, relative error %.5f, cosine %.6f, %llu saturated, %llu flushed to zero, %llu zero "
              "blocks\n",
              title, tsr_quant_stats_sqnr(&whole), tsr_quant_stats_relative_error(&whole),
              tsr_quant_stats_cosine(&whole), U64(whole.saturated), U64(whole.flushed), U64(whole.zero_blocks));
    size_t n = tsr_worst_steps(plan, rows, of, TSR_WORST_SQNR, worst, WORST);
    tsr_print("worst tensors:\n");
    for (size_t i = 0; i < n; i++) {
        const tsr_quant_stats *const row = &rows[worst[i]];
        tsr_print("  %6.2f dB  max error %.3g of amax %.3g  %s", tsr_quant_stats_sqnr(row), row->max_error, row->amax,
                  plan->steps[worst[i]].in[0]->name);
        tsr_print_word(TSR_NOTABLE, is_low(run, row) ? "  <- low: look at it" : "", 0);
        tsr_print("\n");
    }
    n = tsr_worst_steps(plan, rows, of, TSR_WORST_BLOCK, worst, WORST_BLOCKS);
    if (n > 0)
        tsr_print("worst blocks (rms error beside the rms of values):\n");
    for (size_t i = 0; i < n; i++) {
        const tsr_quant_stats *const row = &rows[worst[i]];
        tsr_print("  %6.4f     max error %.3g of amax %.3g, %llu clipped  %s%s\n", tsr_quant_stats_worst_block(row),
                  row->max_error, row->amax, U64(row->saturated), plan->steps[worst[i]].in[0]->name,
                  is_outlier(row) ? "  <- look at it: an outlier drowns its block?" : "");
    }
    if (low > 0)
        tsr_print("%zu tensors are below %.0f dB: outliers or tiny values in a block\n", low, run->low_sqnr);
}

static void print_summary(const tsr_plan_run *run, const tsr_plan *plan, const tsr_engine_result *result,
                          const tsr_serving *serving)
{
    const bool shard = tsr_is_shard(&run->shards);
    char links[384];
    if (!shard)
        print_sums(plan);
    print_errors(run, plan, result->rows, TSR_STATS_SOURCE, "whole");
    print_errors(run, plan, result->rows, TSR_STATS_ORIGINAL, "against the original");
    if (!shard)
        tsr_quant_limits_print(&run->limits, plan, result->rows);
    char read[32], written[32], rate[32], io[256];
    tsr_print("%s read, %s written in %.1f s (%s/s), %u threads, %s\n",
              tsr_bytes_text((double)result->bytes_read, read), tsr_bytes_text((double)result->bytes_written, written),
              result->seconds, tsr_bytes_text((double)result->bytes_read / fmax(result->seconds, 1e-9), rate),
              result->threads, tsr_io_text(&result->io, io));
    if (run->link != TSR_LINK_NONE)
        tsr_print("%s\n", tsr_links_text(&result->links, links));
    if (result->files_redone > 0)
        tsr_print("%llu files were not what the journal says and were made again\n", U64(result->files_redone));
    if (run->shards.shard.finish)
        tsr_print("%s is put together from %u shards: all %zu files verified\n", run->dst, run->shards.shard.count,
                  plan->n_files);
    else if (result->already_complete && !shard)
        tsr_print("%s was complete already: all %zu files verified\n", run->dst, plan->n_files);
    else if (result->files_resumed > 0)
        tsr_print("resumed: %llu finished files verified and kept\n", U64(result->files_resumed));
    if (shard) {
        tsr_shard_print_end(&run->shards, run->dst);
        return;
    }
    tsr_serving_print(serving);
    if (plan->advice != NULL)
        tsr_print("%s\n", plan->advice);
    if (plan->report != NULL)
        tsr_print("report: %s/" TSR_REPORT_NAME "\n", run->dst);
    tsr_print_next(run->from.path, run->dst, run->from.ignore.count > 0, plan);
}

static void json_counts(tsr_text *t, const tsr_plan_run *run, const tsr_plan *plan)
{
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
        {"memory", tsr_engine_memory_at_most(plan, run->threads, run->io, run->memory)},
    };
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        tsr_json_member_u64(t, counts[i].key, counts[i].value);
    }
    tsr_space_json(t, plan, run->dry_run);
    const tally actions = count_actions(plan);
    tsr_json_key(t, "actions");
    tsr_json_begin_object(t, true);
    for (size_t i = 0; i < actions.n; i++) {
        tsr_json_member_u64(t, actions.action[i], actions.count[i]);
    }
    tsr_json_end_object(t);
}

/* Which rules decided, and what was warned of. */
static void json_policy(tsr_text *t, const tsr_plan *plan)
{
    if (plan->by_policy) {
        tsr_json_key(t, "model_type");
        if (plan->model_type == NULL)
            tsr_json_null(t);
        else
            tsr_json_string(t, plan->model_type);
        tsr_json_member_string(t, "rules", plan->general_rules ? "general" : "table");
    } else if (plan->n_warnings == 0) {
        return;
    }
    tsr_json_key(t, "warnings");
    tsr_json_begin_array(t, false);
    for (size_t i = 0; i < plan->n_warnings; i++)
        tsr_json_string(t, plan->warnings[i]);
    tsr_json_end_array(t);
}

static void json_plan(tsr_text *t, const tsr_plan *plan)
{
    tsr_json_key(t, "plan");
    tsr_json_begin_array(t, false);
    for (size_t i = 0; i < plan->n_notes; i++) {
        tsr_json_begin_object(t, true);
        tsr_json_member_string(t, "name", plan->notes[i].source->name);
        tsr_json_member_string(t, "action", plan->notes[i].action);
        tsr_json_member_string(t, "reason", plan->notes[i].reason);
        tsr_json_end_object(t);
    }
    tsr_json_end_array(t);
}

static void json_result(tsr_text *t, const tsr_plan_run *run, const tsr_plan *plan, const tsr_engine_result *result,
                        const tsr_serving *serving)
{
    size_t low, unused;
    const tsr_quant_stats whole = add_all(run, plan, result->rows, TSR_STATS_SOURCE, &low);
    const tsr_quant_stats against = add_all(run, plan, result->rows, TSR_STATS_ORIGINAL, &unused);
    if (!tsr_is_shard(&run->shards))
        tsr_quant_limits_json(t, &run->limits, plan, result->rows);
    tsr_json_member_number(t, "seconds", result->seconds);
    tsr_json_member_u64(t, "threads", result->threads);
    tsr_json_member_u64(t, "bytes_read", result->bytes_read);
    tsr_json_member_u64(t, "bytes_written", result->bytes_written);
    tsr_io_json(t, &result->io);
    if (run->link != TSR_LINK_NONE)
        tsr_links_json(t, &result->links);
    if (run->ranks != NULL) {
        tsr_json_member_u64(t, "ranks", tsr_ranks_count(run->ranks));
        tsr_json_member_u64(t, "units_elsewhere", result->units_elsewhere);
    }
    tsr_json_member_u64(t, "files_resumed", result->files_resumed);
    if (whole.elements > 0) {
        if (isfinite(run->low_sqnr)) {
            tsr_json_member_number(t, "sqnr_limit_db", run->low_sqnr);
            tsr_json_member_u64(t, "tensors_below_limit", low);
        }
        tsr_quant_stats_json(t, &whole);
    }
    if (serving->count > 0)
        tsr_serving_json(t, serving);
    if (plan->made.readers != NULL)
        tsr_json_member_string(t, "readers", plan->made.readers);
    if (against.elements > 0) {
        tsr_json_key(t, "against");
        tsr_json_begin_object(t, false);
        tsr_quant_stats_json(t, &against);
        tsr_json_end_object(t);
    }
}

/* `result` is NULL for --dry-run. */
static tsr_status write_json(const tsr_plan_run *run, const tsr_plan *plan, const tsr_engine_result *result,
                             const tsr_serving *serving, tsr_err *err)
{
    if (run->json == NULL && run->junit == NULL)
        return TSR_OK;
    tsr_text t = {0};
    char schema[40];
    snprintf(schema, sizeof schema, "tessera-%s/1", run->command);
    tsr_json_begin_object(&t, false);
    tsr_json_member_string(&t, "schema", schema);
    tsr_json_member_string(&t, "version", TSR_VERSION);
    json_counts(&t, run, plan);
    tsr_shard_json(&t, &run->shards);
    json_policy(&t, plan);
    if (result == NULL)
        json_plan(&t, plan);
    else
        json_result(&t, run, plan, result, serving);
    tsr_json_end_object(&t);
    tsr_text_append(&t, "\n", 1);
    const tsr_status status = tsr_results_write(run->json, run->junit, &t, err);
    tsr_text_free(&t);
    return status;
}

/* ---- doing ---- */

/* Whether the output is a quantized checkpoint as engines load it. */
static bool is_served(const tsr_plan *plan)
{
    return plan->report != NULL && plan->advice == NULL && plan->sources[0]->config != NULL;
}

/* For the table of a batch. */
static void note_measures(const tsr_plan *plan, const tsr_engine_result *result)
{
    tsr_stage *const stage = tsr_stage_now();
    if (stage == NULL)
        return;
    stage->measured = true;
    stage->complete = result->already_complete;
    stage->bytes_read = result->bytes_read;
    stage->bytes_written = result->bytes_written;
    stage->sqnr = tsr_engine_result_sqnr(result, plan);
}

static tsr_status execute(tsr_plan_run *run, const tsr_plan *plan, tsr_err *err)
{
    tsr_terminal terminal;
    TSR_TRY(tsr_terminal_open(&terminal, run->quiet, &run->progress, err));
    terminal.verb = run->verb;
    const tsr_engine_options options = {
        .run = tsr_terminal_run_options(&terminal, run->threads, run->memory),
        .force = run->force,
        .io = (tsr_io_mode)run->io,
        .link = (tsr_link_mode)run->link,
        .cpu_flags = tsr_cpu_flags() & (unsigned)run->cpumask,
        .shard = tsr_shard_of(&run->shards),
        .ranks = run->ranks,
    };
    tsr_engine_result result;
    const tsr_status status = tsr_engine_run(plan, run->dst, &options, &result, err);
    tsr_terminal_close(&terminal);
    const tsr_status told = tsr_run_plan_tell(run, plan, status, &result, err);
    tsr_engine_result_free(&result);
    return told;
}

tsr_status tsr_run_plan_tell(tsr_plan_run *run, const tsr_plan *plan, tsr_status status,
                             const tsr_engine_result *result, tsr_err *err)
{
    tsr_serving serving = {.count = 0};
    if (status == TSR_OK)
        note_measures(plan, result);
    if (status == TSR_OK && !tsr_is_shard(&run->shards))
        run->beyond = tsr_quant_limits_count(&run->limits, plan, result->rows);
    if (status == TSR_OK && is_served(plan) && !tsr_is_shard(&run->shards))
        status = tsr_serving_find(&serving, run->dst, err);
    if (status == TSR_OK && !run->quiet && !tsr_is_stdout(run->json) && !tsr_is_stdout(run->junit))
        print_summary(run, plan, result, &serving);
    if (status == TSR_OK)
        status = write_json(run, plan, result, &serving, err);
    tsr_serving_free(&serving);
    if (status == TSR_E_CANCELLED)
        return tsr_fail(err, status, "interrupted; finished files are kept: repeat the command to carry on");
    return status;
}

static tsr_status check_limits(const tsr_plan_run *run, const tsr_plan *plan, tsr_err *err)
{
    const char *const limit = tsr_quant_limits_given(&run->limits);
    return limit == NULL || plan->report != NULL
               ? TSR_OK
               : tsr_fail(err, TSR_E_USAGE, "%s means nothing here: no weight is quantized", limit);
}

tsr_status tsr_run_plan_check(const tsr_plan_run *run, const tsr_plan *plan, tsr_err *err)
{
    TSR_TRY(check_limits(run, plan, err));
    return tsr_plan_check_any(plan, err);
}

void tsr_run_plan_warn(const tsr_plan_run *run, const tsr_plan *plan)
{
    const tsr_stage *const stage = tsr_stage_now();
    char space[PATH_MAX + 256];
    for (size_t i = 0; i < plan->n_warnings; i++)
        tsr_tell("tessera: %s%s%s\n", stage == NULL ? "" : stage->job, stage == NULL ? "" : ": ", plan->warnings[i]);
    if (!run->dry_run && tsr_space_warning(plan, run->dst, space, sizeof space))
        tsr_tell("tessera: %s%s%s\n", stage == NULL ? "" : stage->job, stage == NULL ? "" : ": ", space);
}

tsr_status tsr_run_plan(tsr_plan_run *run, const tsr_plan *plan, tsr_err *err)
{
    TSR_TRY(check_limits(run, plan, err));
    TSR_TRY(tsr_shard_measure(&run->shards, plan, err));
    tsr_run_plan_warn(run, plan);
    if (run->dry_run) {
        if (!tsr_is_stdout(run->json) && !tsr_is_stdout(run->junit))
            TSR_TRY(print_plan(run, plan, err));
        TSR_TRY(write_json(run, plan, NULL, NULL, err));
    }
    TSR_TRY(tsr_plan_check_any(plan, err));
    return run->dry_run ? TSR_OK : execute(run, plan, err);
}
