/* Builds batches, compares stages, and names faults. */
#include "verify/mla/check_mla.h"

#include "common/parallel/threads.h"
#include "formats/checkpoint/config.h"
#include "kernels/cpu/mla_attention.h"
#include "verify/evidence/activations.h"
#include "verify/mla/mla_expanded.h"
#include "verify/mla/mla_faults.h"
#include "verify/mla/sparse/check_sparse.h"
#include "verify/values/weight_reader.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* docs/verify-mla.md derives these. */
static const double kStageSqnr = 20, kIdentity = 1e-10, kFp32Stage = 1e-5, kHalfStage = 1.0 / 128;

typedef struct check {
    const tsr_kernel_options *options;
    tsr_evidence *evidence;
    tsr_mla_model original, model; /* `original` is the model again where no originals are known */
    tsr_mla_batch batch;
    tsr_mla_stages reference, own; /* stages of the original; of the model, each from the original's stage */
    const char *subject;
    double min_sqnr;
    double since; /* see tsr_lap */
} check;

static void lap(check *c, tsr_phase phase)
{
    tsr_lap(c->evidence, phase, &c->since);
}

/* Adds a judgement. `named` is the name of the fault if it is known, or NULL. */
static tsr_status add(check *c, const tsr_mla_fault_pair *p, const char *named, tsr_err *err)
{
    tsr_judgement j = {.subject = c->subject, .what = p->what, .kind = p->kind, .of_bound = -1, .of_expected = -1};
    char fault[192];
    if (p->rows > 0)
        tsr_judge(&j, p->x, p->y, p->rows, p->cols, NULL, NULL);
    if (!tsr_mla_within(p, tsr_mla_relative(p->x, p->y, p->rows * p->cols)) || j.metrics.nonfinite[1] > 0) {
        if (named != NULL)
            snprintf(fault, sizeof fault, "%s", named);
        else if (isnan(p->max_relative))
            snprintf(fault, sizeof fault, "SQNR below %g dB", p->min_sqnr);
        else
            snprintf(fault, sizeof fault, "relative error above %.3g", p->max_relative);
        j.fault = fault;
    }
    lap(c, TSR_PHASE_JUDGE);
    return tsr_evidence_add(c->evidence, &j, err);
}

static tsr_status name_stage(const check *c, const tsr_mla_stages *in, tsr_mla_stage stage, const tsr_mla_fault_pair *p,
                             char *text, size_t size, const char **named, tsr_err *err)
{
    const tsr_mla_model *const m = c->model.folded ? &c->model : &c->original; /* the model with the shapes of `in` */
    return tsr_mla_name_stage(m, &c->batch, in, stage, p, (size_t)c->options->ranks, text, size, named, err);
}

/* ---- weights ---- */

/* Compares W_k or W_v, [heads][rows][rank], with the originals, and names the fault if heads are in the wrong order. */
static tsr_status check_part(check *c, const char *what, const double *x, const double *y, size_t rows, tsr_err *err)
{
    const size_t heads = c->model.heads, rank = c->model.rank, n = heads * rows * rank;
    const tsr_mla_fault_pair p = {what, TSR_ERROR_QUANTIZATION, x, y, 1, n, NAN, c->min_sqnr};
    char text[160];
    const char *named = NULL;
    if (!tsr_mla_within(&p, tsr_mla_relative(x, y, n))) {
        double *const turned = malloc(n * sizeof *turned);
        if (turned == NULL)
            return tsr_fail(err, TSR_E_NOMEM, "out of memory for %s", what);
        /* Try the part with its two dimensions swapped, in both directions. */
        for (int way = 0; way < 2 && named == NULL; way++) {
            const size_t inner = way == 0 ? rank : rows, outer = way == 0 ? rows : rank;
            for (size_t i = 0; i < n; i++) {
                const size_t h = i / (rows * rank), at = i % (rows * rank);
                turned[i] = x[h * rows * rank + at % outer * inner + at / outer];
            }
            if (tsr_mla_within(&p, tsr_mla_relative(turned, y, n)))
                named = "transposed within each head";
        }
        free(turned);
        if (named == NULL && tsr_mla_name_heads(&p, heads, (size_t)c->options->ranks, text, sizeof text))
            named = text;
    }
    return add(c, &p, named, err);
}

static tsr_status check_weights(check *c, tsr_err *err)
{
    const tsr_mla_model *const a = &c->original, *const b = &c->model;
    if (b->folded) /* a folded model is judged by its stages */
        return TSR_OK;
    if (c->options->against != NULL) {
        TSR_TRY(check_part(c, "weights: keys of kv_b_proj", a->keys, b->keys, a->nope, err));
        TSR_TRY(check_part(c, "weights: values of kv_b_proj", a->values, b->values, a->v, err));
    }
    if (!b->has_parts)
        return TSR_OK;
    TSR_TRY(check_part(c, "weights: w_kc", a->keys, b->w_kc, a->nope, err));
    return check_part(c, "weights: w_vc", a->values, b->w_vc, a->v, err);
}

/* ---- the checkpoint's stages ---- */

/* Compares each stage with the reference `in`, which has the shapes of the model. */
static tsr_status check_each_stage(check *c, const tsr_mla_stages *in, tsr_err *err)
{
    char what[64], text[160];
    for (tsr_mla_stage s = 0; s < TSR_N_STAGES; s++) {
        double *y;
        const char *named;
        if (!tsr_mla_has_stage(&c->model, s))
            continue;
        tsr_status status = tsr_mla_compute(&c->model, &c->batch, in, s, TSR_MLA_RIGHT, true, &y, err);
        lap(c, TSR_PHASE_ORACLE);
        snprintf(what, sizeof what, "stage %s", tsr_mla_stage_name(s));
        const tsr_mla_fault_pair p = {what,
                                      TSR_ERROR_QUANTIZATION,
                                      in->of[s],
                                      y,
                                      tsr_mla_stage_rows(&c->batch, s),
                                      tsr_mla_stage_cols(&c->model, &c->batch, s),
                                      NAN,
                                      c->min_sqnr};
        if (status == TSR_OK)
            status = name_stage(c, in, s, &p, text, sizeof text, &named, err);
        if (status == TSR_OK)
            status = add(c, &p, named, err);
        free(y);
        TSR_TRY(status);
    }
    const tsr_mla_fault_pair whole = {"the whole layer",
                                      TSR_ERROR_QUANTIZATION,
                                      c->reference.of[TSR_STAGE_OUTPUT],
                                      c->own.of[TSR_STAGE_OUTPUT],
                                      c->batch.queries,
                                      c->model.hidden,
                                      NAN,
                                      NAN};
    return add(c, &whole, NULL, err);
}

/* Computes the stages of a folded model: queries multiplied by W_k, and attention before W_v. */
static tsr_status fold(const check *c, tsr_mla_stages *out, tsr_err *err)
{
    const tsr_mla_model *const from = &c->original, *const to = &c->model;
    const size_t n = c->batch.queries * to->heads, width = from->nope + from->rope;
    double *const query = malloc((n * (to->nope + to->rope) + 1) * sizeof *query);
    if (query == NULL)
        return tsr_out_of_memory(err, "for queries");
    out->of[TSR_STAGE_QUERY] = query;
    for (size_t i = 0; i < n; i++) {
        const double *const x = c->reference.of[TSR_STAGE_QUERY] + i * width;
        double *const y = query + i * (to->nope + to->rope);
        memset(y, 0, to->nope * sizeof *y);
        for (size_t k = 0; k < from->nope; k++) {
            const double *const row = from->keys + (i % to->heads * from->nope + k) * to->rank;
            for (size_t j = 0; j < to->rank; j++)
                y[j] += x[k] * row[j];
        }
        memcpy(y + to->nope, x + from->nope, to->rope * sizeof *y);
    }
    return tsr_mla_compute(to, &c->batch, out, TSR_STAGE_ATTENTION, TSR_MLA_RIGHT, true, &out->of[TSR_STAGE_ATTENTION],
                           err);
}

static tsr_status check_stages(check *c, tsr_err *err)
{
    if (!c->model.folded || c->original.folded)
        return check_each_stage(c, &c->reference, err);
    tsr_mla_stages folded = c->reference;
    folded.of[TSR_STAGE_QUERY] = folded.of[TSR_STAGE_ATTENTION] = NULL;
    tsr_status status = fold(c, &folded, err);
    lap(c, TSR_PHASE_ORACLE);
    if (status == TSR_OK)
        status = check_each_stage(c, &folded, err);
    free(folded.of[TSR_STAGE_QUERY]);
    free(folded.of[TSR_STAGE_ATTENTION]);
    return status;
}

/* ---- absorption ---- */

/* Compares the two orders of multiplication with one model's weights, in double. */
static tsr_status check_identity(check *c, const char *what, const tsr_mla_model *m, const tsr_mla_stages *stages,
                                 tsr_err *err)
{
    tsr_mla_stages absorbed = *stages;
    absorbed.of[TSR_STAGE_SCORES] = absorbed.of[TSR_STAGE_PROBABILITIES] = absorbed.of[TSR_STAGE_ATTENTION] = NULL;
    tsr_status status = TSR_OK;
    for (tsr_mla_stage s = TSR_STAGE_SCORES; status == TSR_OK && s <= TSR_STAGE_ATTENTION; s++)
        status = tsr_mla_compute(m, &c->batch, &absorbed, s, TSR_MLA_RIGHT, true, &absorbed.of[s], err);
    lap(c, TSR_PHASE_ORACLE);
    /* Absorbed parts that exist in addition to kv_b_proj may be rounded. They are judged as weights; this comparison
     * shows only the cost of rounding. */
    const bool apart = m->has_parts && m->has_kv_b;
    const tsr_mla_fault_pair p = {what,
                                  TSR_ERROR_ABSORPTION,
                                  stages->of[TSR_STAGE_ATTENTION],
                                  absorbed.of[TSR_STAGE_ATTENTION],
                                  c->batch.queries,
                                  m->heads * m->v,
                                  apart ? NAN : kIdentity,
                                  apart ? c->min_sqnr : NAN};
    if (status == TSR_OK)
        status = add(c, &p, NULL, err);
    for (tsr_mla_stage s = TSR_STAGE_SCORES; s <= TSR_STAGE_ATTENTION; s++)
        free(absorbed.of[s]);
    return status;
}

static tsr_status tell_sizes(check *c, tsr_err *err)
{
    const tsr_mla_model *const m = &c->model;
    const size_t naive = m->heads * (m->head_nope + m->rope + m->head_v), latent = m->rank + m->rope;
    char what[160];
    snprintf(what, sizeof what, "cache a token: latent %zu values (%zu bytes in BF16), naive %zu (%zu): 1 to %.1f",
             latent, 2 * latent, naive, 2 * naive, (double)naive / (double)latent);
    const tsr_mla_fault_pair p = {what, TSR_ERROR_ABSORPTION, NULL, NULL, 0, 0, NAN, NAN};
    return add(c, &p, NULL, err);
}

/* ---- heads cut over ranks ---- */

static tsr_status check_ranks(check *c, tsr_err *err)
{
    const tsr_mla_model *const m = &c->model;
    const size_t ranks = (size_t)c->options->ranks, share = m->heads / ranks * m->v, all = m->heads * m->v;
    char what[64];
    if (ranks == 1)
        return TSR_OK;
    double *const sum = calloc(c->batch.queries * m->hidden + 1, sizeof *sum);
    tsr_status status = sum == NULL ? tsr_out_of_memory(err, "for ranks") : TSR_OK;
    for (size_t r = 0; status == TSR_OK && r < ranks; r++)
        status =
            tsr_mla_project(m, m->o, r * share, share, c->own.of[TSR_STAGE_ATTENTION], all, c->batch.queries, sum, err);
    lap(c, TSR_PHASE_ORACLE);
    snprintf(what, sizeof what, "heads divided among %zu ranks, outputs added", ranks);
    /* each product and sum has an error of 2^-53; kIdentity leaves three digits for cancellation */
    const tsr_mla_fault_pair p = {
        what, TSR_ERROR_ABSORPTION, c->own.of[TSR_STAGE_OUTPUT], sum, c->batch.queries, m->hidden, kIdentity, NAN};
    if (status == TSR_OK)
        status = add(c, &p, NULL, err);
    free(sum);
    return status;
}

/* ---- another implementation's stages ---- */

static tsr_status read_stage(const check *c, const tsr_tensor *t, size_t elements, double **out, tsr_err *err)
{
    const tsr_checkpoint *const file = c->options->mla.stages;
    if (!tsr_dtype_is_weight_float((tsr_dtype)t->dtype) || tsr_tensor_elements(t) != elements)
        return tsr_fail(err, TSR_E_SHAPE, "%s: '%s' is not %zu elements of F32, BF16 or F16", file->path, t->name,
                        elements);
    *out = malloc((elements + 1) * sizeof **out);
    return *out == NULL ? tsr_fail(err, TSR_E_NOMEM, "out of memory for '%s'", t->name)
                        : tsr_decode_tensor(file, t, *out, err);
}

/* Sets masked scores of all heads to 0. Other implementations have -inf there. */
static void unmask(const check *c, size_t heads, double *scores)
{
    for (size_t i = 0; i < c->batch.queries * heads; i++) {
        for (size_t t = tsr_mla_tokens_seen(&c->batch, i / heads); t < c->batch.longest; t++)
            scores[i * c->batch.longest + t] = 0;
    }
}

/* Compares each stage in the file. A stage is computed from the file's own earlier stages, so that only the faulty
 * stage fails. */
static tsr_status check_file(check *c, tsr_err *err)
{
    const tsr_checkpoint *const file = c->options->mla.stages;
    tsr_mla_stages theirs = {{NULL}};
    tsr_status status = TSR_OK;
    double *x = NULL;
    char what[64], text[160];
    for (tsr_mla_stage s = 0; s < TSR_N_STAGES; s++) {
        if (!tsr_mla_has_stage(&c->model, s))
            continue;
        const tsr_tensor *const t = tsr_checkpoint_find(file, tsr_mla_stage_name(s));
        const size_t rows = tsr_mla_stage_rows(&c->batch, s), cols = tsr_mla_stage_cols(&c->model, &c->batch, s);
        const char *named;
        TSR_GOTO(tsr_mla_compute(&c->model, &c->batch, &theirs, s, TSR_MLA_RIGHT, false, &x, err));
        lap(c, TSR_PHASE_ORACLE);
        if (t == NULL) {
            theirs.of[s] = x;
            x = NULL;
            continue;
        }
        TSR_GOTO(read_stage(c, t, rows * cols, &theirs.of[s], err));
        lap(c, TSR_PHASE_READ);
        if (s == TSR_STAGE_SCORES || s == TSR_STAGE_INDEX_SCORES)
            unmask(c, s == TSR_STAGE_SCORES ? c->model.heads : 1, theirs.of[s]);
        snprintf(what, sizeof what, "stage %s", tsr_mla_stage_name(s));
        const tsr_mla_fault_pair p = {
            what, TSR_ERROR_KERNEL, x, theirs.of[s], rows, cols, t->dtype == TSR_F32 ? kFp32Stage : kHalfStage, NAN};
        TSR_GOTO(name_stage(c, &theirs, s, &p, text, sizeof text, &named, err));
        TSR_GOTO(add(c, &p, named, err));
        free(x);
        x = NULL;
    }
out:
    free(x);
    tsr_mla_stages_free(&theirs);
    return status;
}

/* ---- batches ---- */

/* Generates a batch. The first sequence is the longest, the second is empty, the others have any length. */
static tsr_status draw_batch(check *c, tsr_err *err)
{
    const tsr_mla_request *const r = &c->options->mla;
    const uint64_t seed = tsr_seed_of(c->options->seed, c->subject);
    size_t *const lengths = calloc((size_t)r->batch, sizeof *lengths);
    if (lengths == NULL)
        return tsr_out_of_memory(err, "for a batch");
    for (size_t s = 0; s < r->batch; s++)
        lengths[s] = s == 0 ? (size_t)r->context : s == 1 ? 0 : (size_t)(tsr_mix_bits(seed + s) % (r->context + 1));
    tsr_status status =
        tsr_mla_batch_shape(&c->batch, lengths, (size_t)r->batch, (size_t)r->new_tokens, c->model.hidden, err);
    free(lengths);
    TSR_TRY(status);
    const size_t n = c->batch.tokens * c->model.hidden;
    uint16_t *const x = malloc((n + 1) * sizeof *x);
    if (x == NULL)
        return tsr_out_of_memory(err, "for hidden states");
    tsr_activations_draw(seed, c->batch.tokens, c->model.hidden, x);
    tsr_decode(TSR_BF16, (const unsigned char *)x, n, c->batch.hidden);
    free(x);
    return TSR_OK;
}

/* Reads hidden_states [batch, tokens, hidden] from a file, for prefill of all tokens. */
static tsr_status read_batch(check *c, tsr_err *err)
{
    const tsr_checkpoint *const file = c->options->mla.stages;
    const tsr_tensor *const t = tsr_checkpoint_find(file, "hidden_states");
    if (t == NULL || t->rank != 3 || t->shape[2] != c->model.hidden || tsr_tensor_elements(t) == 0)
        return tsr_fail(err, TSR_E_SHAPE, "%s: no hidden_states [batch, tokens, %zu]", file->path, c->model.hidden);
    size_t *const lengths = calloc((size_t)t->shape[0], sizeof *lengths);
    if (lengths == NULL)
        return tsr_out_of_memory(err, "for a batch");
    for (size_t s = 0; s < t->shape[0]; s++)
        lengths[s] = (size_t)t->shape[1];
    const tsr_status status =
        tsr_mla_batch_shape(&c->batch, lengths, (size_t)t->shape[0], (size_t)t->shape[1], c->model.hidden, err);
    free(lengths);
    TSR_TRY(status);
    free(c->batch.hidden);
    return read_stage(c, t, c->batch.tokens * c->model.hidden, &c->batch.hidden, err);
}

static tsr_status check_layer(check *c, tsr_err *err)
{
    TSR_TRY(draw_batch(c, err));
    lap(c, TSR_PHASE_QUANTIZE);
    TSR_TRY(tsr_mla_compute_all(&c->original, &c->batch, false, &c->reference, err));
    TSR_TRY(tsr_mla_compute_all(&c->model, &c->batch, true, &c->own, err));
    lap(c, TSR_PHASE_ORACLE);
    bool fit;
    TSR_TRY(tsr_mla_check_finite(&c->model, &c->batch, &c->own, c->subject, &fit, c->evidence, err));
    if (!fit)
        return TSR_OK;
    TSR_TRY(check_weights(c, err));
    if (c->options->against != NULL)
        TSR_TRY(check_stages(c, err));
    TSR_TRY(check_identity(c,
                           c->options->against == NULL ? "absorbed = unabsorbed, in double"
                                                       : "absorbed = unabsorbed, in double, weights of the source",
                           &c->original, &c->reference, err));
    if (c->options->against != NULL) {
        tsr_mla_stages plain = {{NULL}};
        tsr_status status = tsr_mla_compute_all(&c->model, &c->batch, false, &plain, err);
        lap(c, TSR_PHASE_ORACLE);
        if (status == TSR_OK)
            status = check_identity(c, "absorbed = unabsorbed, in double, weights as stored", &c->model, &plain, err);
        tsr_mla_stages_free(&plain);
        TSR_TRY(status);
    }
    TSR_TRY(check_ranks(c, err));
    TSR_TRY(tell_sizes(c, err));
    const tsr_mla_subject subject = {.options = c->options,
                                     .model = &c->model,
                                     .batch = &c->batch,
                                     .stages = &c->own,
                                     .name = c->subject,
                                     .min_sqnr = c->min_sqnr,
                                     .new_tokens = (size_t)c->options->mla.new_tokens};
    TSR_TRY(tsr_mla_check_kernels(&subject, c->evidence, &c->since, err));
    TSR_TRY(tsr_mla_check_expanded(&subject, c->evidence, &c->since, err));
    if (c->model.index.heads == 0)
        return TSR_OK;
    return tsr_mla_check_sparse(&subject, c->options->against != NULL ? &c->original : NULL, c->evidence, &c->since,
                                err);
}

static tsr_status check_request(const check *c, tsr_err *err)
{
    const tsr_mla_request *const r = &c->options->mla;
    const tsr_mla_model *const a = &c->original, *const b = &c->model;
    if (c->options->ranks == 0 || b->heads % c->options->ranks != 0)
        return tsr_fail(err, TSR_E_USAGE, "--tp %llu: does not divide %zu heads", U64(c->options->ranks), b->heads);
    if (r->fp8_cache && b->rank % TSR_MLA_CACHE_GROUP != 0)
        return tsr_fail(err, TSR_E_USAGE, "--kv fp8: kv_lora_rank %zu is not a multiple of %d", b->rank,
                        TSR_MLA_CACHE_GROUP);
    if (a->folded && !b->folded)
        return tsr_fail(err, TSR_E_MISMATCH, "%s is folded but %s is not", a->checkpoint->path, b->checkpoint->path);
    if (a->hidden != b->hidden || a->heads != b->heads || a->head_nope != b->head_nope || a->rope != b->rope ||
        a->head_v != b->head_v || a->rank != b->rank || a->q_rank != b->q_rank)
        return tsr_fail(err, TSR_E_MISMATCH, "%s and %s have different sizes of attention", a->checkpoint->path,
                        b->checkpoint->path);
    if (a->index.heads != b->index.heads || a->index.dim != b->index.dim || a->index.adjacent != b->index.adjacent)
        return tsr_fail(err, TSR_E_MISMATCH, "%s and %s have different indexers", a->checkpoint->path,
                        b->checkpoint->path);
    return TSR_OK;
}

static tsr_status open_model(const check *c, const tsr_side *side, tsr_mla_model *model, tsr_err *err)
{
    static const char kRoot[] = "model.";
    const tsr_mla_request *const r = &c->options->mla;
    TSR_TRY(tsr_mla_model_open(model, side, kRoot, r->layer, err));
    const bool sparse = r->sparse || (r->sparse_if_indexed && tsr_mla_model_has_indexer(model, side, kRoot, r->layer));
    return sparse ? tsr_mla_model_open_indexer(model, side, kRoot, r->layer, err) : TSR_OK;
}

static tsr_status open_and_check(check *c, tsr_err *err)
{
    const tsr_kernel_options *const o = c->options;
    TSR_TRY(open_model(c, &o->side, &c->model, err));
    TSR_TRY(open_model(c, o->against != NULL ? o->against : &o->side, &c->original, err));
    TSR_TRY(check_request(c, err));
    c->model.threads = c->original.threads = (unsigned)o->run.threads;
    lap(c, TSR_PHASE_READ);
    if (o->mla.stages == NULL)
        return check_layer(c, err);
    TSR_TRY(read_batch(c, err));
    lap(c, TSR_PHASE_READ);
    return check_file(c, err);
}

tsr_status tsr_mla_applies(const tsr_kernel_options *options, tsr_err *err)
{
    const tsr_checkpoint *const c = options->side.checkpoint;
    tsr_json_text value;
    if (tsr_config_find_model(c, "kv_lora_rank", &value) && !tsr_json_is(value, "null"))
        return TSR_OK;
    return tsr_fail(err, TSR_E_NOT_APPLICABLE, "%s: no latent attention: %s", c->path,
                    c->config == NULL ? "there is no " TSR_CONFIG_NAME : TSR_CONFIG_NAME " has no kv_lora_rank");
}

tsr_status tsr_check_mla(const tsr_kernel_options *options, unsigned outs, tsr_evidence *evidence, tsr_err *err)
{
    const double start = tsr_now();
    char subject[64];
    check c = {.options = options, .evidence = evidence, .subject = subject, .since = start};
    (void)outs;
    snprintf(subject, sizeof subject, "model.layers.%llu.self_attn", (unsigned long long)options->mla.layer);
    c.min_sqnr = isnan(options->limits.min_sqnr) ? kStageSqnr : options->limits.min_sqnr;
    tsr_status status = open_and_check(&c, err);
    if (status == TSR_OK)
        status = tsr_evidence_require(
            evidence, false, (options->mla.stages != NULL ? options->mla.stages : options->side.checkpoint)->path, err);
    evidence->subjects = evidence->candidates = 1;
    evidence->seconds = tsr_now() - start;
    tsr_mla_stages_free(&c.reference);
    tsr_mla_stages_free(&c.own);
    tsr_mla_batch_free(&c.batch);
    tsr_mla_model_close(&c.model);
    tsr_mla_model_close(&c.original);
    return status;
}
