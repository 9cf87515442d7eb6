/* Quantizes one array in memory, by the plan of a checkpoint with one tensor. */
#include "lib/api.h"

#include "common/checked.h"
#include "common/parallel/parallel_for.h"
#include "convert/jobs/quantize_job.h"
#include "quantize/mx_weight.h"

#include <stdlib.h>
#include <string.h>

enum { ALIGNED = 64 };

/* A plan that reads from one memory and writes to another. */
typedef struct making {
    const tsr_plan *plan;
    const tsr_memory *from, *to;
    uint64_t (*place)[TSR_MAX_OUTPUTS]; /* offsets of each step's outputs in `to` */
    uint64_t threads;
    tsr_cpu_kernels kernels;
    float amax;
    const tsr_step *step; /* the current step */
} making;

/* ---- the largest |x| ---- */

static tsr_status find_amax(making *m, const tsr_amax *amax, tsr_err *err)
{
    void *const scratch = aligned_alloc(ALIGNED, tsr_round_up(tsr_amax_unit_bytes(amax), ALIGNED) + ALIGNED);
    tsr_status status = scratch == NULL ? tsr_out_of_memory(err, "for an array") : TSR_OK;
    m->amax = 0;
    for (uint64_t unit = 0; unit < tsr_amax_units(amax) && status == TSR_OK; unit++) {
        const tsr_amax_rows at = tsr_amax_unit(amax, unit);
        const tsr_mx_rows rows = {.tensor = at.tensor,
                                  .row = at.row,
                                  .rows = at.rows,
                                  .x = m->from->map + at.tensor->offset + at.in[0].offset,
                                  .scratch = scratch};
        status = tsr_mx_amax(&m->kernels, &rows, &m->amax, err);
    }
    free(scratch);
    return status;
}

/* ---- units ---- */

static tsr_status run_unit(void *context, size_t unit, size_t worker, tsr_err *err)
{
    const making *const m = context;
    const tsr_step *const step = m->step;
    const uint64_t *const place = m->place[step - m->plan->steps];
    tsr_unit u = tsr_step_unit(step, unit);
    tsr_quant_stats stats = {0};
    uint64_t appended = 0;
    (void)worker;
    for (unsigned i = 0; i < TSR_MAX_INPUTS; i++) {
        if (u.in[i].rows == 0)
            continue;
        if (!tsr_window_is_gapless(&u.in[i]))
            return tsr_fail(err, TSR_E_UNSUPPORTED,
                            "'%s' cannot be quantized in memory: its data would be read in "
                            "separate parts",
                            step->in[0]->name);
        u.in_data[i] = m->from->map + step->in[u.from[i]]->offset + u.in[i].offset;
    }
    for (unsigned i = 0; i < step->n_out; i++) {
        const bool buffered = tsr_is_buffered(step, i);
        if (!buffered && !tsr_window_is_gapless(&u.out[i]))
            return tsr_fail(err, TSR_E_UNSUPPORTED,
                            "'%s' cannot be quantized in memory: its data would be read in "
                            "separate parts",
                            step->in[0]->name);
        u.out_data[i] = m->to->map + place[i] + (buffered ? 0 : u.out[i].offset);
    }
    const uint64_t scratch = step->op->units.scratch_bytes == NULL ? 0 : step->op->units.scratch_bytes(step);
    u.scratch = aligned_alloc(ALIGNED, tsr_round_up(scratch, ALIGNED) + ALIGNED);
    if (u.scratch == NULL)
        return tsr_out_of_memory(err, step->in[0]->name);
    u.appended = &appended;
    u.amax = m->amax;
    const tsr_status status = step->op->units.run(step, unit, &u, &m->kernels, &stats, err);
    free(u.scratch);
    return status;
}

/* Returns true if the step makes part of the weight. Other steps make files for engines. */
static bool is_made(const tsr_step *step)
{
    return step->coproduced_by == 0;
}

static tsr_status run_step(making *m, const tsr_step *step, tsr_err *err)
{
    void *buffered[TSR_MAX_OUTPUTS] = {NULL};
    const uint64_t *const place = m->place[step - m->plan->steps];
    m->step = step;
    if (step->amax != NULL)
        TSR_TRY(find_amax(m, step->amax, err));
    TSR_TRY(tsr_parallel_for(step->op->units.count(step), m->threads, NULL, run_unit, m, err));
    for (unsigned i = 0; i < step->n_out; i++)
        buffered[i] = tsr_is_buffered(step, i) ? m->to->map + place[i] : NULL;
    if (step->op->seal != NULL)
        step->op->seal(step, buffered);
    return TSR_OK;
}

/* ---- the result ---- */

/* Assigns an offset to each output. */
static tsr_status lay_out(making *m, tessera_checkpoint *to, tsr_tensors *tensors, tsr_err *err)
{
    uint64_t size = 0;
    for (size_t s = 0; s < m->plan->n_steps; s++) {
        const tsr_step *const step = &m->plan->steps[s];
        for (unsigned i = 0; i < step->n_out && is_made(step); i++) {
            tsr_tensor t = *step->out[i];
            m->place[s][i] = t.offset = size;
            t.file = t.source = 0;
            t.name = tsr_arena_dup(&to->arena, t.name, strlen(t.name));
            if (t.name == NULL || !tsr_add_u64(size, t.bytes, &size) || size > SIZE_MAX / 2)
                return tsr_out_of_memory(err, "for an array");
            size = tsr_round_up(size, ALIGNED);
            TSR_TRY(tsr_tensors_add(tensors, &t, err));
        }
    }
    return tsr_memory_make(&to->memory, size, err);
}

static tsr_status carry_out(making *m, tessera_checkpoint *to, tsr_block block, tsr_err *err)
{
    tsr_tensors tensors = {0};
    m->place = calloc(m->plan->n_steps + 1, sizeof *m->place);
    m->to = &to->memory;
    tsr_status status = m->place == NULL ? tsr_out_of_memory(err, "for an array") : lay_out(m, to, &tensors, err);
    for (size_t s = 0; s < m->plan->n_steps && status == TSR_OK; s++) {
        if (is_made(&m->plan->steps[s]))
            status = run_step(m, &m->plan->steps[s], err);
    }
    const tsr_plan_text *const config = tsr_plan_config(m->plan);
    const char *const text = config == NULL ? NULL : tsr_arena_dup(&to->arena, config->data, config->size);
    if (status == TSR_OK)
        status = tsr_memory_see(to, &tensors, text, block, err);
    tsr_tensors_free(&tensors);
    free(m->place);
    return status;
}

/* ---- the plan ---- */

/* Parses the options. An array is always quantized as a whole. */
static tsr_status read_words(tsr_quantize_job *job, const char *const *words, uint64_t *threads, tsr_err *err)
{
    tsr_option options[TSR_MAX_OPTIONS] = {
        {"--threads", TSR_OPT_POSITIVE, threads, "N", NULL},
    };
    uint64_t given;
    tsr_quantize_job_options(job, options);
    TSR_TRY(tsr_words_parse(words, options, &given, err));
    TSR_TRY(tsr_quantize_job_check(job, options, given, err));
    const bool of_checkpoints = job->rules != NULL || job->scales_from != NULL || job->experts >= 0 ||
                                job->of.include.count > 0 || job->of.exclude.count > 0;
    if (of_checkpoints)
        return tsr_fail(err, TSR_E_USAGE,
                        "--rules, --scales-from, --experts, --include and --exclude do not apply to an array");
    job->of.include.items[job->of.include.count++] = "*";
    return tsr_scheme_read(&job->of, true, &job->scheme, err);
}

static tsr_status check_plan(const tsr_plan *plan, tsr_err *err)
{
    if (plan->n_notes == 1 && strcmp(plan->notes[0].action, "quantize") == 0)
        return TSR_OK;
    return tsr_fail(err, TSR_E_SHAPE, "'%s' is not quantized: %s",
                    plan->n_notes == 0 ? "array" : plan->notes[0].source->name,
                    plan->n_notes == 0 ? "it is empty" : plan->notes[0].reason);
}

static tsr_status quantize(tsr_quantize_job *job, const tessera_array *array, const char *const *words,
                           tessera_checkpoint *from, tessera_checkpoint *to, tsr_err *err)
{
    making m = {.from = &from->memory, .threads = tsr_cpu_count()};
    tsr_plan plan = {0};
    TSR_TRY(read_words(job, words, &m.threads, err));
    if (array->rank != 2)
        return tsr_fail(err, TSR_E_SHAPE, "an array of %llu dimensions: a weight must be a matrix, [outputs, inputs]",
                        U64(array->rank));
    TSR_TRY(tsr_memory_take(from, array, 1, "{}", (tsr_block){0, 0}, err));
    tsr_scheme_settle(&job->of, from->of, true, &job->scheme);
    TSR_TRY(tsr_plan_named_scheme(&plan, &from->of, &job->of, &job->scheme, err));
    tsr_block block = {0, 0};
    tsr_status status = tsr_parse_block("--block", job->of.block, &block, err);
    if (status == TSR_OK)
        status = check_plan(&plan, err);
    tsr_cpu_kernels_init(&m.kernels, tsr_cpu_flags());
    m.plan = &plan;
    if (status == TSR_OK)
        status = carry_out(&m, to, job->of.scheme == TSR_SCHEME_FP8_BLOCK ? block : (tsr_block){0, 0}, err);
    tsr_plan_free(&plan);
    return status;
}

tessera_status tessera_quantize(tessera_checkpoint **quantized, const tessera_array *array, const char *const *options,
                                tessera_error *error)
{
    tsr_call call;
    tsr_call_begin(&call);
    tessera_checkpoint *const from = tsr_checkpoint_new(), *to = tsr_checkpoint_new();
    tsr_quantize_job *const job = malloc(sizeof *job);
    tsr_status status = TSR_OK;
    if (job != NULL)
        *job = tsr_quantize_job_defaults();
    if (from == NULL || to == NULL || job == NULL)
        status = tsr_out_of_memory(&call.err, "for an array");
    else
        status = quantize(job, array, options, from, to, &call.err);
    if (job != NULL)
        tsr_quantize_job_free(job);
    free(job);
    tessera_close(from);
    if (status != TSR_OK) {
        tessera_close(to);
        to = NULL;
    }
    *quantized = to;
    return tsr_call_end(&call, status, error);
}
