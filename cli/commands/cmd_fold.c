/* Implements `tessera fold`: scales channels by powers of two, so that 4 bits lose less. */
#include "cli/commands/commands.h"
#include "cli/io/output.h"
#include "cli/plan_job.h"
#include "cli/show/plan_result.h"
#include "convert/jobs/fold_job.h"
#include "formats/json/json_write.h"

#include <math.h>

typedef struct folding {
    tsr_plan_job plan; /* first: see tsr_command.makes_plan */
    tsr_fold_job job;
} folding;

static const char kHelp[] =
    "tessera fold SRC -o DST --importance FILE [--scheme SCHEME] [options]\n\n"
    "Writes a model of the same function whose weights lose less in 4 bits, by the idea of AWQ: the columns\n"
    "of a layer with large inputs are multiplied by powers of two, and the norm or the layer before it is\n"
    "divided by them. All products are exact, so every output of the model is the same. The powers are\n"
    "those with the least error of the layers' outputs under the scheme. Then quantize DST, with statistics\n"
    "of DST.\n\n"
    "Families: those of docs/fold.md. Another one is refused, and the error lists them. The same command\n"
    "resumes a run that was killed.\n\n"
    "Examples:\n"
    "  tessera calibrate Llama-3.1-8B --tokens text.txt -o stats.safetensors\n"
    "  tessera fold Llama-3.1-8B -o folded --importance stats.safetensors --scheme 'int4-weight-only --group-size 64'\n"
    "  tessera calibrate folded --tokens text.txt -o stats2.safetensors\n"
    "  tessera quantize folded -o out --scheme int4-weight-only --group-size 64 --importance stats2.safetensors\n\n"
    "Options:\n";

static tsr_status make(tsr_plan_job *plan, tsr_err *err)
{
    folding *const f = (folding *)plan;
    return tsr_fold_job_plan(&f->job, &plan->from, &plan->plan, err);
}

static void set_defaults(tsr_command_context *c)
{
    folding *const f = c->job;
    f->plan = tsr_plan_job_defaults(make, "folding");
}

static void add_options(tsr_command_context *c, tsr_option *options)
{
    folding *const f = c->job;
    tsr_fold_job_options(&f->job, options);
    tsr_plan_job_run_options(&f->plan, options);
}

static tsr_status check(tsr_command_context *c, tsr_err *err)
{
    const folding *const f = c->job;
    TSR_TRY(tsr_plan_job_check(c, err));
    return f->job.importance != NULL
               ? TSR_OK
               : tsr_fail(err, TSR_E_USAGE, "no statistics given: --importance FILE, from tessera calibrate");
}

static void list_paths(const tsr_command_context *c, tsr_io_paths *paths)
{
    const folding *const f = c->job;
    const char *const sources[] = {f->plan.from.path, f->job.importance};
    tsr_plan_job_paths(c, sources, sizeof sources / sizeof *sources, paths);
}

/* Returns the gain of the layers' errors in dB; NaN: the search did not run. */
static double gain_db(const tsr_fold_gain *g)
{
    return g->sets == 0 ? NAN : 10 * log10(g->before / g->after);
}

static tsr_status print(tsr_command_context *c, tsr_err *err)
{
    const folding *const f = c->job;
    const tsr_fold_gain *const g = &f->job.gain;
    if (g->sets > 0)
        tsr_print(
            "%zu of %zu sets of channels scaled, mean alpha %.2f: errors of the layers' outputs under %s are %.2f dB smaller\n",
            g->scaled, g->sets, g->mean_alpha, tsr_scheme_spelling(f->job.search.scheme), gain_db(g));
    if (g->unmeasured > 0)
        tsr_print("%zu sets have no importance, or no layer that the scheme quantizes\n", g->unmeasured);
    return tsr_plan_result_print(c, err);
}

static void write_json(const tsr_command_context *c, tsr_text *t)
{
    const folding *const f = c->job;
    const tsr_fold_gain *const g = &f->job.gain;
    tsr_plan_result_json(c, t);
    tsr_json_member_u64(t, "sets", g->sets);
    tsr_json_member_u64(t, "sets_scaled", g->scaled);
    tsr_json_member_u64(t, "sets_unmeasured", g->unmeasured);
    tsr_json_member_number(t, "mean_alpha", g->sets == 0 ? NAN : g->mean_alpha);
    tsr_json_member_number(t, "gain_db", gain_db(g));
}

static void close_job(tsr_command_context *c)
{
    folding *const f = c->job;
    tsr_plan_job_close(&f->plan);
    tsr_fold_job_free(&f->job);
}

const tsr_command tsr_command_fold = {
    .name = "fold",
    .summary = "scales of channels that 4 bits lose less of (AWQ)",
    .schema = "tessera-fold/1",
    TSR_COMMAND_FUNCTIONS(folding),
    .takes = TSR_PLAN_TAKES,
    .most_words = 1,
    .makes_plan = true,
    .set_defaults = set_defaults,
    .open = tsr_plan_job_open,
    .run = tsr_plan_job_run,
    .print = print,
    .write_json = write_json,
    .conclude = tsr_plan_job_conclude,
    .exit_code = tsr_plan_job_exit_code,
};
