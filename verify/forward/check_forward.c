/* Two streams side by side, and the figures between them. */
#include "verify/forward/check_forward.h"

#include "common/checked.h"
#include "common/threads.h"
#include "verify/evidence/jobs.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 64 }; /* positions whose logits are held at a time */

/* docs/verify.md derives these. */
static const double kLayerSqnr = 10, kFp32 = 1e-5, kHalf = 1.0 / 128;

typedef struct check {
    const tsr_forward_request *request;
    tsr_evidence *evidence;
    tsr_forward source, model;
    tsr_tokens tokens, twice; /* twice: all sequences two times, for a layer that runs on two inputs at once */
    size_t n, hidden, last;   /* last: layer */
    double began;
    double *before, *x, *y; /* [n][hidden] of the source before and behind a layer; [2 n][hidden] of the model:
                               its own stream, and behind it the source's */
    uint32_t *chosen[2];    /* experts: of the source [n], of the model [2 n] */
} check;

tsr_forward_limits tsr_forward_limits_defaults(void)
{
    return (tsr_forward_limits){kLayerSqnr, NAN, NAN};
}

/* "sequence 1, token 12, channel 3". */
static void locate(const check *c, uint64_t index, size_t width, const char *column, char *text, size_t size)
{
    const size_t token = (size_t)index / width;
    size_t s = 0;
    while (c->tokens.first[s + 1] <= token)
        s++;
    snprintf(text, size, "sequence %zu, token %zu, %s %zu", s, token - c->tokens.first[s], column,
             (size_t)index % width);
}

static void measure(const check *c, tsr_judgement *j, const double *x, const double *y, size_t n, size_t width,
                    const char *column)
{
    tsr_judge(j, x, y, n, width, NULL, NULL);
    if (j->metrics.differ > 0)
        locate(c, j->metrics.max_abs_at, width, column, j->worst_at, sizeof j->worst_at);
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

/* ---- distributions of the next token ---- */

static double log_sum(const double *x, size_t n)
{
    double most = -INFINITY, sum = 0;
    for (size_t i = 0; i < n; i++)
        most = fmax(most, x[i]);
    for (size_t i = 0; i < n; i++)
        sum += exp(x[i] - most);
    return most + log(sum);
}

/* KL(x || y) of the distributions of two rows of logits, in nats. */
static double divergence(const double *x, const double *y, size_t n)
{
    const double zx = log_sum(x, n), zy = log_sum(y, n);
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += exp(x[i] - zx) * (x[i] - zx - (y[i] - zy));
    return fmax(sum, 0);
}

static size_t likeliest(const double *x, size_t n)
{
    size_t at = 0;
    for (size_t i = 1; i < n; i++)
        at = x[i] > x[at] ? i : at;
    return at;
}

/* Rows [row, row + n) of the logits x and y of `width` each. */
static void compare_logits(const check *c, tsr_judgement *total, const double *x, const double *y, size_t row, size_t n,
                           size_t width)
{
    tsr_judgement part = {0};
    measure(c, &part, x, y, n, width, "token");
    part.metrics.max_abs_at += row * width;
    for (size_t i = 0; i < part.metrics.n_worst; i++)
        part.metrics.worst[i].row += row;
    tsr_metrics_add(&total->metrics, &part.metrics);
    for (size_t i = 0; i < n; i++) {
        const double kl = divergence(x + i * width, y + i * width, width);
        total->kl.mean += kl / (double)c->n;
        total->kl.max = fmax(total->kl.max, kl);
        total->agreed += likeliest(x + i * width, width) == likeliest(y + i * width, width);
    }
}

/* Puts both streams as they stand through the final norm and head of their models, and adds up how the logits differ. */
static tsr_status compare_heads(const check *c, tsr_judgement *total, tsr_err *err)
{
    const size_t width = c->source.vocabulary;
    double *const logits = malloc(2 * CHUNK * width * sizeof *logits);
    tsr_status status = logits == NULL ? tsr_out_of_memory(err, "for logits") : TSR_OK;
    total->kl.known = true;
    for (size_t row = 0; status == TSR_OK && row < c->n; row += CHUNK) {
        const size_t n = tsr_min_u64(CHUNK, c->n - row);
        status = tsr_forward_logits(&c->source, c->x + row * c->hidden, n, logits, err);
        if (status == TSR_OK)
            status = tsr_forward_logits(&c->model, c->y + row * c->hidden, n, logits + CHUNK * width, err);
        if (status == TSR_OK)
            compare_logits(c, total, logits, logits + CHUNK * width, row, n, width);
    }
    free(logits);
    return status;
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

static tsr_judgement blank(const char *subject, const char *what, tsr_error_kind kind)
{
    return (tsr_judgement){.subject = subject, .what = what, .kind = kind, .of_bound = -1, .of_expected = -1};
}

/* A fault when the source's own values are NaN or Inf, since nothing can be compared with them; otherwise NULL. */
static const char *nonfinite_in(const tsr_metrics *m)
{
    return m->nonfinite[1] > 0 ? "NaN or Inf" : m->nonfinite[0] > 0 ? "NaN or Inf in the source" : NULL;
}

/* `routed`: the layer chooses experts in both models. */
static tsr_status judge_layer(check *c, size_t layer, bool routed, tsr_err *err)
{
    const size_t size = c->n * c->hidden, k = c->source.router.chosen;
    char subject[64], fault[64];
    snprintf(subject, sizeof subject, "model.layers.%zu", layer);
    tsr_judgement stream = blank(subject, TSR_FORWARD_STREAM, TSR_ERROR_QUANTIZATION);
    tsr_judgement alone = blank(subject, TSR_FORWARD_LAYER, TSR_ERROR_QUANTIZATION);
    measure(c, &stream, c->x, c->y, c->n, c->hidden, "channel");
    if (routed) {
        count_alike(c, &stream, c->chosen[0], c->chosen[1]);
        count_alike(c, &alone, c->chosen[0], c->chosen[1] + c->n * k);
    }
    if (c->request->kl_by_layer) {
        tsr_judgement heads = {0};
        TSR_TRY(compare_heads(c, &heads, err));
        stream.kl.known = true;
        stream.kl.mean = heads.kl.mean;
        stream.kl.max = heads.kl.max;
    }
    stream.fault = nonfinite_in(&stream.metrics);
    TSR_TRY(tsr_evidence_add(c->evidence, &stream, err));
    /* The difference between a layer's output and its input is what the layer adds. */
    double *const added = malloc((2 * size + 1) * sizeof *added);
    if (added == NULL)
        return tsr_out_of_memory(err, "for hidden states");
    for (size_t i = 0; i < size; i++) {
        added[i] = c->x[i] - c->before[i];
        added[size + i] = c->y[size + i] - c->before[i];
    }
    measure(c, &alone, added, added + size, c->n, c->hidden, "channel");
    free(added);
    alone.fault = nonfinite_in(&alone.metrics);
    if (alone.fault == NULL && !(tsr_metrics_sqnr(&alone.metrics) >= c->request->limits.min_sqnr)) {
        snprintf(fault, sizeof fault, "SQNR below %g dB", c->request->limits.min_sqnr);
        alone.fault = fault;
    }
    return tsr_evidence_add(c->evidence, &alone, err);
}

static tsr_status run_layer(check *c, size_t layer, tsr_err *err)
{
    const size_t size = c->n * c->hidden;
    const double began = tsr_now();
    bool routed[2];
    memcpy(c->before, c->x, size * sizeof *c->x);
    memcpy(c->y + size, c->x, size * sizeof *c->x);
    TSR_TRY(tsr_forward_layer(&c->source, layer, &c->tokens, c->x, c->chosen[0], &routed[0], err));
    TSR_TRY(tsr_forward_layer(&c->model, layer, &c->twice, c->y, c->chosen[1], &routed[1], err));
    const double ran = tsr_now();
    c->evidence->phases[TSR_PHASE_ORACLE] += ran - began;
    const tsr_status status = judge_layer(c, layer, routed[0] && routed[1], err);
    c->evidence->phases[TSR_PHASE_JUDGE] += tsr_now() - ran;
    return status;
}

/* ---- logits ---- */

/* log sum exp, shifted so that nothing overflows. */
static tsr_status limit_logits(check *c, tsr_judgement *j, tsr_err *err)
{
    const tsr_forward_limits *const limits = &c->request->limits;
    char fault[96];
    if (j->metrics.differ > 0)
        locate(c, j->metrics.max_abs_at, c->source.vocabulary, "logit", j->worst_at, sizeof j->worst_at);
    j->fault = nonfinite_in(&j->metrics);
    if (j->fault != NULL)
        return tsr_evidence_add(c->evidence, j, err);
    if (j->kl.mean > limits->max_kl) {
        snprintf(fault, sizeof fault, "mean KL divergence above %g nats", limits->max_kl);
        j->fault = fault;
    } else if ((double)j->agreed < limits->min_top1 * (double)j->choices) {
        snprintf(fault, sizeof fault, "the likeliest token is the same in less than %g of all positions",
                 limits->min_top1);
        j->fault = fault;
    }
    return tsr_evidence_add(c->evidence, j, err);
}

static tsr_status run_logits(check *c, tsr_err *err)
{
    tsr_judgement j = blank("model", TSR_FORWARD_LOGITS, TSR_ERROR_QUANTIZATION);
    j.choices = c->n;
    TSR_TRY(compare_heads(c, &j, err));
    return limit_logits(c, &j, err);
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
    tsr_judgement j = blank(subject, what, TSR_ERROR_KERNEL);
    char fault[64];
    measure(c, &j, x, y, c->n, width, "channel");
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

/* Compares layer by layer. Each layer starts from the reference's own state before it where the file has one, so that
 * only the layer at fault fails. */
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
    for (size_t layer = c->request->first; layer <= c->last; layer++) {
        const tsr_tensor *const after = state_of(c, layer + 1);
        bool routed;
        TSR_TRY(tsr_forward_layer(&c->source, layer, &c->tokens, c->x, NULL, &routed, err));
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
    tsr_status status =
        logits == NULL ? tsr_out_of_memory(err, "for logits") : tsr_forward_logits(&c->source, c->x, c->n, logits, err);
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
    const tsr_tensor *const ids = r->reference == NULL ? NULL : tsr_checkpoint_find(r->reference, "input_ids");
    if (ids != NULL)
        return tsr_tokens_load(&c->tokens, r->reference, ids, c->source.vocabulary, err);
    if (r->reference != NULL)
        return tsr_fail(err, TSR_E_FORMAT, "%s: no input_ids", r->reference->path);
    return r->tokens == NULL
               ? tsr_tokens_draw(&c->tokens, r->seed, r->sequences, r->length, c->source.vocabulary, err)
               : tsr_tokens_read(&c->tokens, r->tokens, r->sequences, r->length, c->source.vocabulary, err);
}

static tsr_status repeat(const tsr_tokens *t, tsr_tokens *twice, tsr_err *err)
{
    *twice = (tsr_tokens){2 * t->sequences, 2 * t->count, t->longest, malloc((2 * t->sequences + 1) * sizeof *t->first),
                          malloc(2 * t->count * sizeof *t->ids)};
    if (twice->first == NULL || twice->ids == NULL)
        return tsr_out_of_memory(err, "for tokens");
    for (size_t i = 0; i <= twice->sequences; i++)
        twice->first[i] = i <= t->sequences ? t->first[i] : t->count + t->first[i - t->sequences];
    memcpy(twice->ids, t->ids, t->count * sizeof *t->ids);
    memcpy(twice->ids + t->count, t->ids, t->count * sizeof *t->ids);
    return TSR_OK;
}

static tsr_status open_side(const check *c, tsr_forward *f, const tsr_side *side, tsr_err *err)
{
    TSR_TRY(tsr_forward_open(f, side, err));
    f->threads = (unsigned)c->request->run.threads;
    f->cancel = c->request->run.cancel;
    return TSR_OK;
}

/* The last layer that is asked for. */
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

static tsr_status check_memory(const check *c, tsr_err *err)
{
    const uint64_t needed = tsr_forward_memory(&c->source, c->tokens.count, c->tokens.longest),
                   allowed = c->request->run.memory;
    if (allowed == 0 || needed <= allowed)
        return TSR_OK;
    return tsr_fail(
        err, TSR_E_NOT_APPLICABLE,
        "%s: %zu tokens would take %llu MB, more than --memory has; fewer of them (--count, --batch), or more "
        "memory",
        c->request->source->checkpoint->path, c->tokens.count, U64(needed / 1000000 + 1));
}

static tsr_status open_both(check *c, tsr_err *err)
{
    const tsr_forward_request *const r = c->request;
    const tsr_forward *const a = &c->source, *const b = &c->model;
    TSR_TRY(open_side(c, &c->source, r->source, err));
    TSR_TRY(open_side(c, &c->model, r->model != NULL ? r->model : r->source, err));
    if (a->layers != b->layers || a->hidden != b->hidden || a->vocabulary != b->vocabulary || a->latent != b->latent ||
        a->router.chosen != b->router.chosen)
        return tsr_fail(err, TSR_E_MISMATCH, "%s and %s: other sizes of the model", r->source->checkpoint->path,
                        r->model->checkpoint->path);
    TSR_TRY(find_last(r, a, &c->last, err));
    TSR_TRY(read_tokens(c, err));
    if (c->tokens.longest > tsr_min_u64(a->window, b->window))
        return tsr_fail(err, TSR_E_UNSUPPORTED,
                        "%s/" TSR_CONFIG_NAME ": sliding_window %zu; --count must not be larger",
                        r->source->checkpoint->path, a->window);
    TSR_TRY(check_memory(c, err));
    TSR_TRY(repeat(&c->tokens, &c->twice, err));
    c->n = c->tokens.count;
    c->hidden = a->hidden;
    const size_t size = c->n * c->hidden * sizeof(double), choices = c->n * a->router.chosen * sizeof(uint32_t);
    c->before = malloc(size);
    c->x = malloc(size);
    c->y = malloc(2 * size);
    c->chosen[0] = malloc(choices + 1);
    c->chosen[1] = malloc(2 * choices + 1);
    if (c->before == NULL || c->x == NULL || c->y == NULL || c->chosen[0] == NULL || c->chosen[1] == NULL)
        return tsr_out_of_memory(err, "for hidden states");
    return tsr_forward_embed(&c->source, &c->tokens, c->x, err);
}

static tsr_status run(check *c, tsr_err *err)
{
    const tsr_forward_request *const r = c->request;
    TSR_TRY(open_both(c, err));
    if (r->reference != NULL)
        return run_theirs(c, err);
    TSR_TRY(tsr_forward_embed(&c->model, &c->tokens, c->y, err));
    for (size_t layer = r->first; layer <= c->last; layer++) {
        TSR_TRY(run_layer(c, layer, err));
        tell(c, layer);
    }
    return run_logits(c, err);
}

tsr_status tsr_check_forward(const tsr_forward_request *request, tsr_evidence *evidence, tsr_err *err)
{
    check c = {.request = request, .evidence = evidence, .began = tsr_now()};
    tsr_status status = run(&c, err);
    if (status == TSR_OK && evidence->count == 0)
        status = tsr_fail(err, TSR_E_FORMAT, "%s: no hidden_states.N of these layers, and no logits: nothing to judge",
                          request->reference->path);
    evidence->subjects = c.last + 1 - request->first;
    evidence->candidates = c.source.layers;
    evidence->seconds = tsr_now() - c.began;
    tsr_tokens_free(&c.tokens);
    tsr_tokens_free(&c.twice);
    free(c.before);
    free(c.x);
    free(c.y);
    free(c.chosen[0]);
    free(c.chosen[1]);
    tsr_forward_close(&c.source);
    tsr_forward_close(&c.model);
    return status;
}
