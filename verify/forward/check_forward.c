/* Compares the forward passes of source and model layer by layer. */
#include "verify/forward/check_parts.h"

#include "common/parallel/threads.h"
#include "verify/evidence/jobs.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* docs/verify-forward.md derives these. */
static const double kFp32 = 1e-5, kHalf = 1.0 / 128;

typedef tsr_forward_check check;

static tsr_status measure(const check *c, tsr_judgement *j, const double *x, const double *y, const double *base,
                          tsr_err *err)
{
    TSR_TRY(tsr_measure(&j->metrics, x, y, base, c->n, c->hidden, &c->request->run, err));
    if (j->metrics.differ > 0)
        tsr_forward_locate(c, j->metrics.max_abs_at, c->hidden, "channel", j->worst_at, sizeof j->worst_at);
    return TSR_OK;
}

static void tell(const check *c, size_t layer)
{
    const tsr_forward_request *const r = c->request;
    const tsr_progress progress = {.items_done = layer + 1 - r->first,
                                   .items_total = c->last + 1 - r->first,
                                   .items = "layer",
                                   .seconds = tsr_now() - c->began};
    if (r->run.progress != NULL)
        r->run.progress(&progress, r->run.progress_data);
}

/* ---- layers ---- */

static void count_alike(const check *c, tsr_judgement *j, const uint32_t *x, const uint32_t *y)
{
    const size_t k = c->source.router.chosen;
    j->choices = c->n * k;
    for (size_t i = 0; i < j->choices; i++) {
        for (size_t at = i / k * k; at < i / k * k + k; at++)
            j->agreed += x[i] == y[at];
    }
}

/* Counts the tokens that a layer attends to: on each model's own stream, and in the layer alone. */
static void count_tokens(const check *c, size_t layer, tsr_judgement *stream, tsr_judgement *alone)
{
    const tsr_token_choice *const x = &c->source.choice, *const y = &c->model.choice;
    if (c->source.kinds[layer] != TSR_LAYER_INDEXED || x->bits == NULL || y->bits == NULL)
        return;
    tsr_token_choice_compare(x, y, 0, &c->tokens, &stream->tokens, &stream->tokens_agreed);
    tsr_token_choice_compare(x, y, c->n, &c->tokens, &alone->tokens, &alone->tokens_agreed);
}

/* Marks a judgement below `least` dB as a fault; `fault` is the buffer of its text. */
static void limit_sqnr(tsr_judgement *j, double least, char *fault, size_t size)
{
    j->fault = tsr_forward_nonfinite(&j->metrics);
    if (j->fault == NULL && !isnan(least) && !(tsr_metrics_sqnr(&j->metrics) >= least)) {
        snprintf(fault, size, "SQNR below %.1f dB", least);
        j->fault = fault;
    }
    j->limit = least;
}

/* Judges a layer. `routed`: the layer chooses experts in both models. */
static tsr_status judge_layer(check *c, size_t layer, bool routed, tsr_err *err)
{
    const size_t k = c->source.router.chosen;
    char subject[64], faults[2][64];
    snprintf(subject, sizeof subject, "model.layers.%zu", layer);
    tsr_judgement stream = tsr_forward_blank(subject, TSR_FORWARD_STREAM, TSR_ERROR_QUANTIZATION);
    tsr_judgement alone = tsr_forward_blank(subject, TSR_FORWARD_LAYER, TSR_ERROR_QUANTIZATION);
    tsr_metrics carried = {0}; /* the earlier error of the stream, after the source's layer */
    TSR_TRY(measure(c, &stream, c->x, c->y, NULL, err));
    if (routed) {
        count_alike(c, &stream, c->chosen[0], c->chosen[1]);
        count_alike(c, &alone, c->chosen[0], c->chosen[1] + c->n * k);
    }
    count_tokens(c, layer, &stream, &alone);
    if (c->request->kl_by_layer) {
        tsr_judgement heads = {0};
        TSR_TRY(tsr_forward_compare_heads(c, &heads, err));
        stream.kl.known = true;
        stream.kl.mean = heads.kl.mean;
        stream.kl.max = heads.kl.max;
    }
    /* the difference that the layer makes, source against model on the same input */
    TSR_TRY(measure(c, &alone, c->x, c->other[1], c->before, err));
    TSR_TRY(tsr_measure(&carried, c->x, c->other[0], NULL, c->n, c->hidden, &c->request->run, err));
    tsr_forward_budget_add(&c->budget, &(tsr_forward_layer_loss){.noise = fmax(c->source.noise, c->model.noise),
                                                                 .served = c->model.served,
                                                                 .latent = (c->source.traits & TSR_LATENT) != 0,
                                                                 .carried = carried.sum_d2,
                                                                 .stream = &stream,
                                                                 .alone = &alone});
    const double own = c->request->limits.min_sqnr, whole = c->request->limits.min_stream;
    limit_sqnr(&stream, isnan(whole) ? c->budget.stream : whole, faults[0], sizeof faults[0]);
    if (c->budget.crossed)
        stream.fault = tsr_forward_nonfinite(&stream.metrics);
    c->budget.crossed = c->budget.crossed || stream.fault != NULL;
    limit_sqnr(&alone, isnan(own) ? c->budget.alone : own, faults[1], sizeof faults[1]);
    tsr_forward_limit_choices(&alone);
    TSR_TRY(tsr_evidence_add(c->evidence, &stream, err));
    return tsr_evidence_add(c->evidence, &alone, err);
}

/* A layer, and whether it chooses experts in each model. */
typedef struct layer_run {
    size_t layer;
    bool routed[2];
} layer_run;

static tsr_status run_model(const tsr_forward_both *both, tsr_forward *f, size_t i, tsr_err *err)
{
    check *const c = both->check;
    layer_run *const r = both->context;
    const tsr_forward_states states = {.parts = 2,
                                       .in = {i == 0 ? c->x : c->y, i == 0 ? c->y : c->x},
                                       .out = {i == 0 ? c->before : c->y_before, c->other[i]}};
    return tsr_forward_run_layer(f, r->layer, &c->twice, &states, c->chosen[i], &r->routed[i], err);
}

static void swap(double **a, double **b)
{
    double *const first = *a;
    *a = *b;
    *b = first;
}

static tsr_status run_layer(check *c, size_t layer, tsr_err *err)
{
    layer_run r = {.layer = layer};
    const double began = tsr_now();
    TSR_TRY(tsr_forward_run_both(&(tsr_forward_both){c, run_model, &r}, err));
    swap(&c->x, &c->before);
    swap(&c->y, &c->y_before);
    const double ran = tsr_now();
    c->evidence->phases[TSR_PHASE_ORACLE] += ran - began;
    const tsr_status status = judge_layer(c, layer, r.routed[0] && r.routed[1], err);
    c->evidence->phases[TSR_PHASE_JUDGE] += tsr_now() - ran;
    return status;
}

/* ---- another implementation ---- */

/* Loads a tensor [.., width] of the reference, which must have n * width elements. */
static tsr_status load(const check *c, const tsr_tensor *t, size_t width, double *out, tsr_err *err)
{
    const tsr_checkpoint *const file = c->request->reference;
    if (!tsr_dtype_is_weight_float((tsr_dtype)t->dtype) || tsr_tensor_elements(t) != c->n * width)
        return tsr_fail(err, TSR_E_SHAPE, "%s: '%s' is not %zu x %zu of F32, BF16 or F16", file->path, t->name, c->n,
                        width);
    return tsr_decode_tensor(file, t, out, err);
}

/* Judges the reference's values y against Tessera's, x. */
static tsr_status judge_theirs(check *c, const char *subject, const char *what, const tsr_tensor *t, const double *x,
                               const double *y, size_t width, tsr_err *err)
{
    const double limit = t->dtype == TSR_F32 ? kFp32 : kHalf;
    tsr_judgement j = tsr_forward_blank(subject, what, TSR_ERROR_KERNEL);
    char fault[64];
    TSR_TRY(tsr_measure(&j.metrics, x, y, NULL, c->n, width, &c->request->run, err));
    if (j.metrics.differ > 0)
        tsr_forward_locate(c, j.metrics.max_abs_at, width, "channel", j.worst_at, sizeof j.worst_at);
    if (!(tsr_metrics_relative(&j.metrics) <= limit) || j.metrics.nonfinite[1] > 0) {
        snprintf(fault, sizeof fault, "relative error above %.3g", limit);
        j.fault = fault;
    }
    return tsr_evidence_add(c->evidence, &j, err);
}

static const tsr_tensor *state_of(const check *c, size_t layer)
{
    char name[64];
    snprintf(name, sizeof name, "hidden_states.%zu", layer);
    return tsr_checkpoint_find(c->request->reference, name);
}

/* Compares layer by layer. Each layer starts from the reference's state if the file has it, so that only the faulty
 * layer fails. */
static tsr_status run_theirs(check *c, tsr_err *err)
{
    const tsr_tensor *before = state_of(c, c->request->first);
    char subject[64];
    if (before != NULL) {
        TSR_TRY(load(c, before, c->hidden, c->y, err));
        if (c->request->first == 0)
            TSR_TRY(judge_theirs(c, "model.embed_tokens", "embedding", before, c->x, c->y, c->hidden, err));
        memcpy(c->x, c->y, c->n * c->hidden * sizeof *c->x);
    }
    const tsr_forward_states states = {.parts = 1, .in = {c->x}, .out = {c->x}};
    for (size_t layer = c->request->first; layer <= c->last; layer++) {
        const tsr_tensor *const after = state_of(c, layer + 1);
        const double began = tsr_now();
        bool routed;
        TSR_TRY(tsr_forward_run_layer(&c->source, layer, &c->tokens, &states, NULL, &routed, err));
        c->evidence->phases[TSR_PHASE_ORACLE] += tsr_now() - began;
        if (after != NULL) {
            snprintf(subject, sizeof subject, "model.layers.%zu", layer);
            TSR_TRY(load(c, after, c->hidden, c->y, err));
            TSR_TRY(judge_theirs(c, subject, TSR_FORWARD_STREAM, after, c->x, c->y, c->hidden, err));
            memcpy(c->x, c->y, c->n * c->hidden * sizeof *c->x);
        }
        tell(c, layer);
    }
    const tsr_tensor *const t = tsr_checkpoint_find(c->request->reference, "logits");
    if (t == NULL)
        return TSR_OK;
    const size_t width = c->source.vocabulary;
    double *const logits = malloc((2 * c->n * width + 1) * sizeof *logits);
    tsr_status status = logits == NULL ? tsr_out_of_memory(err, "for logits")
                                       : tsr_forward_logits_of(&c->source, c->x, c->n, logits, err);
    if (status == TSR_OK)
        status = load(c, t, width, logits + c->n * width, err);
    if (status == TSR_OK)
        status = judge_theirs(c, "model", TSR_FORWARD_LOGITS, t, logits, logits + c->n * width, width, err);
    free(logits);
    return status;
}

/* ---- the check ---- */

static tsr_status read_tokens(check *c, tsr_err *err)
{
    const tsr_forward_request *const r = c->request;
    const tsr_token_limits limits = {r->sequences, r->length, c->source.vocabulary};
    const tsr_tensor *const ids = r->reference == NULL ? NULL : tsr_checkpoint_find(r->reference, "input_ids");
    if (ids != NULL)
        return tsr_tokens_load(&c->tokens, r->reference, ids, c->source.vocabulary, err);
    if (r->reference != NULL)
        return tsr_fail(err, TSR_E_FORMAT, "%s: no input_ids", r->reference->path);
    return r->tokens == NULL ? tsr_tokens_draw(&c->tokens, r->seed, r->sequences, r->length, c->source.vocabulary, err)
                             : tsr_tokens_read_file(&c->tokens, r->tokens, r->source->checkpoint->path, limits, err);
}

static tsr_status open_side(tsr_forward *f, const tsr_side *side, tsr_ops *ops, tsr_err *err)
{
    TSR_TRY(tsr_forward_open(f, side, err));
    f->ops = ops;
    return TSR_OK;
}

/* Finds the last requested layer. */
static tsr_status find_last(const tsr_forward_request *r, const tsr_forward *f, size_t *last, tsr_err *err)
{
    *last = r->last == SIZE_MAX ? f->layers - 1 : r->last;
    if (r->first <= *last && *last < f->layers)
        return TSR_OK;
    return tsr_fail(err, TSR_E_USAGE, "--layers %zu..%zu: the model has layers 0..%zu", r->first, *last, f->layers - 1);
}

tsr_status tsr_forward_applies(const tsr_forward_request *r, tsr_err *err)
{
    const tsr_side *const sides[] = {r->source, r->model};
    tsr_status status = TSR_OK;
    for (size_t i = 0; status == TSR_OK && i < 2 && sides[i] != NULL; i++) {
        tsr_forward f;
        size_t last;
        status = tsr_forward_open(&f, sides[i], err);
        if (status == TSR_E_UNSUPPORTED || sides[i]->checkpoint->config == NULL)
            status = TSR_E_NOT_APPLICABLE;
        else if (status == TSR_OK)
            status = find_last(r, &f, &last, err);
        tsr_forward_close(&f);
    }
    return status;
}

/* Returns true if both models have the same sizes. */
static bool are_alike(const tsr_forward *a, const tsr_forward *b)
{
    return a->layers == b->layers && a->width == b->width && a->vocabulary == b->vocabulary &&
           (a->traits & TSR_LATENT) == (b->traits & TSR_LATENT) && a->router.chosen == b->router.chosen &&
           a->indexer.groups == b->indexer.groups;
}

static tsr_status hold_states(check *c, tsr_err *err)
{
    const size_t size = c->n * c->hidden * sizeof(double), choices = c->n * c->source.router.chosen * sizeof(uint32_t);
    double **const states[] = {&c->x, &c->y, &c->before, &c->y_before, &c->other[0], &c->other[1]};
    bool held = true;
    for (size_t i = 0; i < sizeof states / sizeof *states; i++) {
        *states[i] = malloc(size + 1);
        held = held && *states[i] != NULL;
    }
    c->chosen[0] = malloc(2 * choices + 1);
    c->chosen[1] = malloc(2 * choices + 1);
    return held && c->chosen[0] != NULL && c->chosen[1] != NULL ? TSR_OK : tsr_out_of_memory(err, "for hidden states");
}

static void drop_states(const check *c)
{
    double *const states[] = {c->x, c->y, c->before, c->y_before, c->other[0], c->other[1]};
    for (size_t i = 0; i < sizeof states / sizeof *states; i++)
        free(states[i]);
    free(c->chosen[0]);
    free(c->chosen[1]);
}

static tsr_status embed(const tsr_forward_both *both, tsr_forward *f, size_t i, tsr_err *err)
{
    const check *const c = both->check;
    return tsr_forward_embed_states(f, &c->tokens, i == 0 ? c->x : c->y, err);
}

static tsr_status open_both(check *c, tsr_err *err)
{
    const tsr_forward_request *const r = c->request;
    TSR_TRY(open_side(&c->source, r->source, c->devices.of_source, err));
    TSR_TRY(open_side(&c->model, r->model != NULL ? r->model : r->source, c->devices.of_model, err));
    if (!are_alike(&c->source, &c->model))
        return tsr_fail(err, TSR_E_MISMATCH, "%s and %s are models of different sizes", r->source->checkpoint->path,
                        r->model->checkpoint->path);
    c->model.served = r->model != NULL && !r->exact;
    c->model.inputs = r->inputs;
    TSR_TRY(find_last(r, &c->source, &c->last, err));
    TSR_TRY(read_tokens(c, err));
    TSR_TRY(tsr_forward_check_tokens(&c->source, &c->tokens, c->devices.passes, r->run.memory, err));
    TSR_TRY(tsr_forward_check_tokens(&c->model, &c->tokens, c->devices.passes, r->run.memory, err));
    c->n = c->tokens.count;
    c->hidden = c->source.width;
    return TSR_OK;
}

static tsr_status run(check *c, tsr_err *err)
{
    const tsr_forward_request *const r = c->request;
    const tsr_forward_both both = {c, embed, NULL};
    tsr_metrics embedded = {0};
    TSR_TRY(open_both(c, err));
    TSR_TRY(tsr_tokens_repeat(&c->tokens, 2, &c->twice, err));
    TSR_TRY(hold_states(c, err));
    if (r->reference != NULL) {
        TSR_TRY(embed(&both, &c->source, 0, err));
        return run_theirs(c, err);
    }
    TSR_TRY(tsr_forward_run_both(&both, err));
    TSR_TRY(tsr_measure(&embedded, c->x, c->y, NULL, c->n, c->hidden, &r->run, err));
    c->budget.power = embedded.sum_x2;
    c->budget.error = c->budget.allowed = embedded.sum_d2;
    for (size_t layer = r->first; layer <= c->last; layer++) {
        TSR_TRY(run_layer(c, layer, err));
        tell(c, layer);
    }
    return tsr_forward_judge_logits(c, err);
}

/* Records the sizes and settings of the run for the result. */
static void tell_figures(const check *c, tsr_forward_figures *figures)
{
    figures->sequences = c->tokens.sequences;
    figures->tokens = c->tokens.count;
    figures->weight_bytes = c->source.bytes_read + (c->request->model != NULL ? c->model.bytes_read : 0);
    for (size_t i = 0; i < c->devices.n; i++) {
        figures->activation_bytes += c->devices.ops[i].most;
        figures->bytes_between_devices += c->devices.ops[i].fetched;
        figures->bytes_of_host += c->devices.ops[i].exchanged;
    }
    figures->predictions = c->predictions;
    figures->inputs = c->model.input_coding;
    figures->devices = c->devices.n;
    snprintf(figures->device, sizeof figures->device, "%s", c->devices.ops->name);
}

/* Closes the devices, and what open_both opened. */
static void close_check(check *c)
{
    tsr_tokens_free(&c->tokens);
    tsr_tokens_free(&c->twice);
    tsr_forward_close(&c->source);
    tsr_forward_close(&c->model);
    tsr_forward_close_devices(&c->devices);
}

tsr_status tsr_forward_check_request(const tsr_forward_request *request, tsr_err *err)
{
    check c = {.request = request};
    TSR_TRY(tsr_forward_open_devices(request, &c.devices, err));
    const tsr_status status = open_both(&c, err);
    close_check(&c);
    return status;
}

tsr_status tsr_check_forward(const tsr_forward_request *request, tsr_evidence *evidence, tsr_forward_figures *figures,
                             tsr_err *err)
{
    check c = {.request = request, .evidence = evidence, .predictions = tsr_forward_predictions_unknown()};
    TSR_TRY(tsr_forward_open_devices(request, &c.devices, err));
    c.began = tsr_now();
    tsr_status status = run(&c, err);
    if (status == TSR_OK && evidence->count == 0)
        status = tsr_fail(err, TSR_E_FORMAT, "%s: nothing to judge: no logits, and no hidden_states.N of these layers",
                          request->reference->path);
    evidence->subjects = c.last + 1 - request->first;
    evidence->candidates = c.source.layers;
    evidence->seconds = tsr_now() - c.began;
    tell_figures(&c, figures);
    evidence->bytes_read = figures->weight_bytes;
    drop_states(&c);
    close_check(&c);
    return status;
}
