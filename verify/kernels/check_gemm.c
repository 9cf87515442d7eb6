/* Groups weights into jobs by name, and judges each job. */
#include "verify/kernels/check_gemm.h"

#include "common/parallel/threads.h"
#include "verify/evidence/activations.h"
#include "verify/kernels/gemm_layouts.h"
#include "verify/kernels/mx_product.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int by_key(const void *x, const void *y)
{
    const tsr_gemm_entry *const a = x, *const b = y;
    const int order = strcmp(a->key, b->key);
    if (order != 0)
        return order;
    if (a->weight != b->weight)
        return a->weight < b->weight ? -1 : 1;
    return a->matrix < b->matrix ? -1 : a->matrix > b->matrix;
}

/* "model.layers.3.mlp.experts.17.up_proj.weight" -> "model.layers.3.mlp.experts.*.up_proj.weight". */
static const char *key_of(tsr_arena *arena, const char *name)
{
    size_t digits;
    const size_t number = tsr_experts_length(name, &digits);
    if (digits == 0 || name[number + digits] != '.')
        return name;
    return tsr_arena_printf(arena, "%.*s*%s", (int)number, name, name + number + digits);
}

static const char *unfit_because(const tsr_weight *w)
{
    if (w->coding == TSR_PLAIN)
        return "";
    if (tsr_has_small_groups(w))
        return tsr_mx_unfit(w);
    if (tsr_without_kernels(w) != NULL)
        return tsr_without_kernels(w);
    if (w->coding != TSR_CODED_E4M3)
        return "not e4m3";
    if (w->coarse)
        return "its scales are not of blocks";
    if (w->block.cols % TSR_GEMM_TILE != 0)
        return "its blocks are not whole tiles of 128 columns";
    return w->rows == 0 || w->cols == 0 ? "it is empty" : NULL;
}

static const tsr_subjects kSubjects = {
    .unfit = unfit_because, .need_inputs = true, .kind = "tensor of e4m3 with block scales, MXFP4, NVFP4 or MXFP8"};

static tsr_status add_entries(tsr_gemm_check *c, const tsr_weight *w, const char *key, tsr_err *err)
{
    tsr_gemm_entry *const larger = realloc(c->entries, (c->n_entries + w->matrices) * sizeof *larger);
    if (larger == NULL || key == NULL)
        return tsr_out_of_memory(err, "for the tensors to check");
    c->entries = larger;
    for (uint64_t matrix = 0; matrix < w->matrices; matrix++)
        c->entries[c->n_entries++] = (tsr_gemm_entry){key, w, matrix};
    return TSR_OK;
}

static tsr_status find_entries(tsr_gemm_check *c, tsr_evidence *evidence, tsr_err *err)
{
    const tsr_weights *const weights = c->options->side.weights;
    size_t *fit = NULL, n = 0;
    tsr_status status = tsr_find_subjects(c->options, &kSubjects, &fit, &n, evidence, err);
    for (size_t i = 0; status == TSR_OK && i < n; i++) {
        const tsr_weight *const w = &weights->items[fit[i]];
        status = add_entries(c, w, key_of(&c->arena, w->values->name), err);
    }
    free(fit);
    return status;
}

static tsr_status make_jobs(tsr_gemm_check *c, tsr_evidence *evidence, tsr_err *err)
{
    qsort(c->entries, c->n_entries, sizeof *c->entries, by_key);
    c->jobs = malloc(c->n_entries * sizeof *c->jobs);
    if (c->jobs == NULL)
        return tsr_out_of_memory(err, "for the tensors to check");
    for (size_t i = 0; i < c->n_entries; i++) {
        if (i == 0 || !tsr_gemm_alike(&c->entries[i - 1], &c->entries[i]))
            c->jobs[c->n_jobs++] = i;
    }
    evidence->candidates = c->n_jobs;
    c->n_jobs = tsr_sample(c->options, c->jobs, c->n_jobs);
    evidence->subjects = c->n_jobs;
    return TSR_OK;
}

static tsr_status judge_quantization(tsr_gemm_operands *o, tsr_err *err)
{
    const tsr_kernel_options *const options = o->c->options;
    const bool both = options->against != NULL;
    const double limit = !isnan(options->limits.min_sqnr) ? options->limits.min_sqnr : both ? 27 : 30;
    tsr_judgement j = {.subject = o->name,
                       .kind = TSR_ERROR_QUANTIZATION,
                       .of_bound = -1,
                       .of_expected = -1,
                       .what = both ? "weights and activations" : "activations"};
    char text[128];
    const double began = tsr_now();
    double *const y = malloc(o->judged * o->n * sizeof *y + 64);
    if (y == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "out of memory for the results of '%s'", o->name);
    for (size_t i = 0; i < o->judged * o->n; i++)
        y[i] = o->exact[i].value;
    tsr_judge(&j, o->original, y, o->judged, o->n, &o->rows, &o->columns);
    free(y);
    if (!(tsr_metrics_sqnr(&j.metrics) >= limit)) {
        snprintf(text, sizeof text, "SQNR %.2f dB is below %g", tsr_metrics_sqnr(&j.metrics), limit);
        j.fault = text;
    }
    o->evidence->phases[TSR_PHASE_JUDGE] += tsr_now() - began;
    return tsr_evidence_add(o->evidence, &j, err);
}

static tsr_status fill_and_judge(tsr_gemm_operands *o, size_t job, tsr_err *err)
{
    TSR_TRY(tsr_gemm_operands_shape(o, job, err));
    if (o->c->options->activations != NULL && tsr_activations_are_zero(o->x, o->m * o->k))
        return tsr_evidence_skip(o->evidence, o->name, TSR_ZERO_ACTIVATIONS, err);
    TSR_TRY(tsr_gemm_operands_fill(o, err));
    if (o->unfit)
        return TSR_OK;
    TSR_TRY(judge_quantization(o, err));
    if (o->n_experts == 1) {
        TSR_TRY(tsr_gemm_run_layout(o, TSR_GEMM_ROWS, err));
        return tsr_gemm_check_ranks(o, err);
    }
    TSR_TRY(tsr_gemm_run_layout(o, TSR_GEMM_CONTIGUOUS, err));
    TSR_TRY(tsr_gemm_run_layout(o, TSR_GEMM_MASKED, err));
    return tsr_gemm_check_ranks(o, err);
}

/* Judges each expert that the seed selects. There is no grouped kernel for small groups. */
static tsr_status judge_small_groups(tsr_gemm_operands *o, size_t job, tsr_err *err)
{
    TSR_TRY(tsr_gemm_choose_experts(o, job, err));
    for (size_t e = 0; e < o->n_experts; e++) {
        const tsr_mx_subject subject = {
            .options = o->c->options,
            .weight = o->experts[e].weight,
            .matrix = o->experts[e].matrix,
            .name = tsr_mx_subject_name(&o->arena, o->experts[e].weight, o->experts[e].matrix),
        };
        if (subject.name == NULL)
            return tsr_out_of_memory(err, "for the name of an expert");
        TSR_TRY(tsr_judge_mx_product(&subject, o->c->outs, o->evidence, err));
    }
    return TSR_OK;
}

static tsr_status do_job(void *context, size_t at, tsr_evidence *evidence, tsr_err *err)
{
    const tsr_gemm_check *const c = context;
    const tsr_gemm_entry *const first = &c->entries[c->jobs[at]];
    tsr_gemm_operands o = {.c = c, .evidence = evidence, .name = first->key};
    const tsr_status status =
        tsr_has_small_groups(first->weight) ? judge_small_groups(&o, at, err) : fill_and_judge(&o, at, err);
    tsr_gemm_operands_free(&o);
    return status;
}

tsr_status tsr_gemm_applies(const tsr_kernel_options *options, tsr_err *err)
{
    return tsr_subjects_exist(options, &kSubjects, err);
}

tsr_status tsr_check_gemm(const tsr_kernel_options *options, unsigned outs, tsr_evidence *evidence, tsr_err *err)
{
    tsr_gemm_check c = {.options = options, .outs = outs};
    tsr_status status;
    TSR_GOTO(find_entries(&c, evidence, err));
    TSR_GOTO(tsr_gemm_ranks_begin(&c, evidence, err));
    TSR_GOTO(make_jobs(&c, evidence, err));
    TSR_GOTO(tsr_run_jobs(options, c.n_jobs, do_job, &c, evidence, err));
    status = tsr_jobs_require(options, evidence, err);
out:
    free(c.entries);
    free(c.jobs);
    tsr_arena_free(&c.arena);
    return status;
}
