/* Makes the rounded counterpart of an output, runs tokens through both and their source, and shows the gain. */
#include "cli/proof.h"

#include "cli/help/next_command.h"
#include "cli/io/output.h"
#include "cli/io/space.h"
#include "cli/plan_job.h"
#include "cli/show/verify_kernels.h"
#include "convert/records/destination.h"
#include "convert/records/journal.h"
#include "formats/json/json_write.h"

#include <math.h>
#include <string.h>

#define SUFFIX ".rounded"

static const char kBaseline[] = "rounding to nearest";

/* ---- options ---- */

tsr_proof tsr_proof_defaults(const tsr_quantize_job *of)
{
    return (tsr_proof){.of = of, .pass = tsr_pass_options_defaults(), .plain = tsr_quantize_job_defaults()};
}

#define NEEDS_PROOF "--count --batch --exact --device --precision --devices"

void tsr_proof_options(tsr_proof *p, tsr_option *options)
{
    const tsr_option own[] = {
        {"--prove", TSR_OPT_TEXT, &p->pass.tokens, "FILE",
         "afterwards run held-out text (token ids as text or .npy, or text for SRC's tokenizer) through SRC, DST and a copy "
         "that is rounded to nearest, in DST" SUFFIX ", and print the gain; exit code 1 if the copy is nearer to SRC"},
        {"--count", TSR_OPT_POSITIVE, &p->pass.length, "N", "most tokens of a sequence (512)"},
        {"--batch", TSR_OPT_POSITIVE, &p->pass.sequences, "B", "most sequences (all)"},
        {"--exact", TSR_OPT_FLAG, &p->exact, NULL,
         "compute DST in double too, so that only the error of the weights remains"},
        TSR_DEVICE_OPTION(&p->pass.device),
        TSR_PRECISION_OPTION(&p->pass.precision),
        {"--devices", TSR_OPT_POSITIVE, &p->pass.devices, "N", "number of GPUs; figures may differ slightly (1)"},
        {0},
    };
    tsr_options_append_topic(options, "Proof", own);
}

/* Returns the reason why an output cannot be proven; NULL: it can be. */
static const char *find_obstacle(const tsr_command_context *c)
{
    const tsr_plan_job *const job = c->job;
    if (c->batch != NULL)
        return "in a batch; add a job for each checkpoint, and one of verify forward with --baseline";
    if (c->common.mpi)
        return "with --mpi; prove the finished output with tessera verify forward, or repeat the command without --mpi";
    if (job->shards.text != NULL)
        return "with --shard; prove the output of tessera finish with tessera verify forward";
    if (job->address != NULL)
        return "with an output of s3://; write to a directory";
    return NULL;
}

tsr_status tsr_proof_check(const tsr_command_context *c, tsr_err *err)
{
    const tsr_plan_job *const job = c->job;
    const char *const obstacle = find_obstacle(c);
    for (size_t i = 0; c->options[i].name != NULL && job->proof->pass.tokens == NULL; i++) {
        if ((c->given >> i & 1) != 0 && tsr_is_listed(NEEDS_PROOF, c->options[i].name))
            return tsr_fail(err, TSR_E_USAGE, "%s has no effect without --prove FILE", c->options[i].name);
    }
    if (job->proof->pass.tokens == NULL)
        return TSR_OK;
    return obstacle == NULL ? tsr_pass_options_check(&job->proof->pass, err)
                            : tsr_fail(err, TSR_E_USAGE, "--prove cannot be used %s", obstacle);
}

/* ---- planning ---- */

static bool has_counterpart(const tsr_proof *p)
{
    return p->plan.n_steps > 0;
}

/* Sets p->rounded to the folder beside `dst`. */
static tsr_status name_folder(tsr_proof *p, const char *dst, tsr_arena *arena, tsr_err *err)
{
    size_t n = strlen(dst);
    while (n > 1 && dst[n - 1] == '/')
        n--;
    const char *const name = memrchr(dst, '/', n) == NULL ? dst : (const char *)memrchr(dst, '/', n) + 1;
    if (name == dst + n || strncmp(name, "..", (size_t)(dst + n - name)) == 0)
        return tsr_fail(err, TSR_E_USAGE, "-o %s: --prove writes beside the output; give the directory by its name",
                        dst);
    p->rounded = tsr_arena_printf(arena, "%.*s" SUFFIX, (int)n, dst);
    return tsr_arena_status(arena, TSR_OK, err);
}

static tsr_status plan_counterpart(tsr_command_context *c, tsr_err *err)
{
    const tsr_plan_job *const job = c->job;
    tsr_proof *const p = job->proof;
    if (tsr_quantize_job_is_plain(p->of))
        return TSR_OK;
    TSR_TRY(tsr_quantize_job_make_plain(&p->plain, p->of, err));
    TSR_TRY(tsr_quantize_job_plan(&p->plain, &job->from, &p->plan, err));
    if (job->dst == NULL) /* a dry run */
        return TSR_OK;
    TSR_TRY(name_folder(p, job->dst, &c->arena, err));
    const tsr_status status = tsr_journal_check_resumable(&p->plan, p->rounded, err);
    if (status == TSR_E_EXISTS || status == TSR_E_MISMATCH)
        return tsr_fail(err, TSR_E_EXISTS,
                        "%s: not made by this command, which needs the name for --prove; remove or rename it",
                        p->rounded);
    TSR_TRY(status);
    return job->dry_run ? TSR_OK : tsr_space_check_both(&job->plan, job->dst, &p->plan, p->rounded, err);
}

/* Checks the passes with a preview of the output, which is not made yet. */
static tsr_status check_passes(const tsr_command_context *c, tsr_err *err)
{
    const tsr_plan_job *const job = c->job;
    tsr_proof *const p = job->proof;
    tsr_verify_forward *const v = &p->forward;
    const tsr_run_options run = {.threads = c->common.threads, .memory = c->common.memory};
    tsr_plan_preview output;
    v->sides[0] = job->from.path;
    v->ignore = &job->from.ignore;
    v->request = tsr_pass_request(&p->pass, &v->opened[0], run);
    v->request.exact = p->exact;
    v->request.last = SIZE_MAX;
    v->request.limits = tsr_forward_limits_defaults();
    TSR_TRY(tsr_verify_forward_open(v, err));
    TSR_TRY(tsr_plan_preview_make(&output, &job->plan, job->plan.sources[0], err));
    const tsr_side model = {&output.seen, &output.weights};
    v->request.model = &model;
    const tsr_status status = tsr_forward_check_request(&v->request, err);
    v->request.model = NULL;
    tsr_plan_preview_free(&output);
    return status == TSR_OK ? TSR_OK : tsr_prepend(err, status, "--prove");
}

tsr_status tsr_proof_open(tsr_command_context *c, tsr_err *err)
{
    const tsr_plan_job *const job = c->job;
    if (job->proof == NULL || job->proof->pass.tokens == NULL)
        return TSR_OK;
    TSR_TRY(plan_counterpart(c, err));
    return check_passes(c, err);
}

/* ---- running ---- */

static tsr_status make_counterpart(const tsr_command_context *c, tsr_terminal *terminal, tsr_err *err)
{
    const tsr_plan_job *const job = c->job;
    const tsr_engine_options options = {
        .run = tsr_terminal_run_options(terminal, c->common.threads, c->common.memory),
        .io = (tsr_io_mode)job->io,
        .cpu_flags = tsr_cpu_flags() & (unsigned)c->common.cpumask,
    };
    tsr_engine_result result;
    terminal->verb = "rounding";
    const tsr_status status = tsr_engine_run(&job->proof->plan, job->proof->rounded, &options, &result, err);
    tsr_engine_result_free(&result);
    return status == TSR_OK ? TSR_OK : tsr_prepend(err, status, kBaseline);
}

static tsr_status run_passes(const tsr_command_context *c, tsr_terminal *terminal, tsr_err *err)
{
    const tsr_plan_job *const job = c->job;
    tsr_proof *const p = job->proof;
    tsr_verify_forward *const v = &p->forward;
    v->sides[1] = job->dst;
    v->sides[2] = has_counterpart(p) ? p->rounded : NULL;
    v->request.run = tsr_terminal_run_options(terminal, v->request.run.threads, c->common.memory);
    TSR_TRY(tsr_verify_forward_open(v, err));
    TSR_TRY(tsr_verify_forward_run(v, err));
    v->baseline.path = has_counterpart(p) ? kBaseline : NULL;
    p->made = true;
    return TSR_OK;
}

static tsr_status compare(const tsr_command_context *c, tsr_terminal *terminal, tsr_err *err)
{
    const tsr_proof *const p = ((const tsr_plan_job *)c->job)->proof;
    if (!has_counterpart(p))
        return run_passes(c, terminal, err);
    tsr_status status = make_counterpart(c, terminal, err);
    if (status == TSR_E_EXISTS || status == TSR_E_MISMATCH) /* another process has made a folder of this name */
        return status;
    if (status == TSR_OK)
        status = run_passes(c, terminal, err);
    tsr_err why;
    const tsr_status removed = tsr_remove_output(p->rounded, &why);
    return status != TSR_OK ? status : removed == TSR_OK ? TSR_OK : tsr_fail_with(err, removed, &why);
}

/* Returns the judgement of the logits. */
static const tsr_judgement *logits_of(const tsr_proof *p)
{
    const tsr_evidence *const e = &p->forward.evidence;
    return &e->items[e->count - 1];
}

/* Returns true if the output fails: its divergence is above that of the counterpart, or not a number. */
static bool fails(const tsr_proof *p)
{
    return tsr_forward_baseline_is_better(&p->forward.baseline) || !isfinite(logits_of(p)->kl.mean);
}

static tsr_status judge(const tsr_proof *p, const char *dst, tsr_result *judged, tsr_err *err)
{
    const double kl = logits_of(p)->kl.mean;
    tsr_result_finding finding = {.check = "proof", .where = dst, .row = TSR_NO_ROW, .fatal = true};
    TSR_TRY(tsr_result_add_check(judged, finding.check, 1, err));
    if (!fails(p))
        return TSR_OK;
    finding.text = has_counterpart(p)
                       ? tsr_arena_printf(&judged->arena,
                                          "KL divergence %.3g nats from SRC is above the %.3g of rounding to nearest",
                                          kl, p->forward.baseline.kl[0])
                       : tsr_arena_printf(&judged->arena, "the KL divergence from SRC is not a number");
    return finding.text == NULL ? tsr_out_of_memory(err, NULL) : tsr_result_add_finding(judged, &finding, err);
}

tsr_status tsr_proof_run(tsr_command_context *c, tsr_terminal *terminal, tsr_err *err)
{
    tsr_plan_job *const job = c->job;
    if (job->proof == NULL || job->proof->pass.tokens == NULL)
        return TSR_OK;
    tsr_terminal_begin_kind(terminal, "proof");
    const tsr_status status = compare(c, terminal, err);
    if (status == TSR_E_CANCELLED)
        return tsr_fail(err, status, "%s is complete; the proof was interrupted: repeat the command", job->dst);
    return status == TSR_OK ? judge(job->proof, job->dst, &job->judged, err)
                            : tsr_prepend(err, status, "%s is complete, but could not be proven", job->dst);
}

/* ---- the result ---- */

void tsr_proof_print_plan(const tsr_proof *p)
{
    char bytes[32];
    if (p->pass.tokens == NULL)
        return;
    tsr_print("proof: on ");
    tsr_print_path(p->pass.tokens);
    if (has_counterpart(p))
        tsr_print(", against rounding to nearest: %s more in %s, removed afterwards\n",
                  tsr_bytes_text((double)p->plan.bytes_out, bytes), p->rounded == NULL ? "DST" SUFFIX : p->rounded);
    else
        tsr_print(", against SRC alone: the command rounds to nearest\n");
}

void tsr_proof_print(const tsr_proof *p)
{
    const tsr_evidence *const e = &p->forward.evidence;
    if (!p->made)
        return;
    const tsr_judgement *const logits = logits_of(p);
    tsr_print("proof on ");
    tsr_print_path(p->pass.tokens);
    tsr_print(":\n       KL divergence: mean %.3g nats, max %.3g; the most likely token is the same in %.2f %%\n",
              logits->kl.mean, logits->kl.max, 100 * (double)logits->agreed / (double)logits->choices);
    if (!has_counterpart(p))
        tsr_print("       compared with SRC alone: the command rounds to nearest\n");
    tsr_verify_forward_print_figures(&p->forward);
    if (e->failed > 0)
        tsr_print("%zu of %zu judgements are beyond the limits of tessera verify forward, which lists them\n",
                  e->failed, e->count);
}

void tsr_proof_json(tsr_text *t, const tsr_proof *p)
{
    const tsr_evidence *const e = &p->forward.evidence;
    if (!p->made)
        return;
    const tsr_judgement *const logits = logits_of(p);
    tsr_json_member_object(t, "proof", false);
    tsr_json_member_string(t, "tokens", p->pass.tokens);
    tsr_json_member_bool(t, "passed", !fails(p));
    tsr_json_member_number(t, "kl_mean_nats", logits->kl.mean);
    tsr_json_member_number(t, "kl_max_nats", logits->kl.max);
    tsr_json_member_number(t, "agreement", (double)logits->agreed / (double)logits->choices);
    tsr_verify_forward_figures_json(&p->forward, t);
    tsr_json_member_u64(t, "judgements", e->count);
    tsr_json_member_u64(t, "judgements_failed", e->failed);
    tsr_json_member_number(t, "seconds", e->seconds + p->forward.baseline.evidence.seconds);
    tsr_json_end_object(t);
}

void tsr_proof_free(tsr_proof *p)
{
    tsr_verify_forward_free(&p->forward);
    tsr_plan_free(&p->plan);
    tsr_quantize_job_free(&p->plain);
}
