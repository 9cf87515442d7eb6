/* Chooses tokens by an indexer's scores, runs index kernels, and runs attention to the chosen tokens. */
#include "verify/mla/sparse/check_sparse.h"

#include "common/checked.h"
#include "verify/evidence/kernel_tally.h"
#include "verify/mla/mla_faults.h"
#include "verify/mla/sparse/index_codes.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Results of index kernels are only compared with mistakes if they are so far from the exact ones. */
static const double kFar = 0x1p-8;

/* One batch. */
typedef struct pass {
    const tsr_mla_subject *s;
    const tsr_mla_model *original; /* NULL: none */
    const char *name;              /* "", ", prefill" */
    tsr_evidence *evidence;
    double *since;
    size_t top_k;
    tsr_token_choice choice; /* by the model's scores in double */
} pass;

/* Returns the end of the queries of one sequence, which begin at `from`. */
static size_t end_of_sequence(const tsr_mla_batch *b, size_t from)
{
    size_t to = from;
    while (to < b->queries && b->seq_of[to] == b->seq_of[from])
        to++;
    return to;
}

/* Returns the tokens of a batch without their numbers in the vocabulary. */
static tsr_tokens tokens_of(const tsr_mla_batch *b)
{
    return (tsr_tokens){.sequences = b->sequences, .count = b->tokens, .longest = b->longest, .first = b->first};
}

/* Chooses the tokens with the largest scores, [queries][longest]. */
static tsr_status choose(const pass *p, const double *scores, tsr_token_choice *choice, tsr_err *err)
{
    const tsr_mla_batch *const b = p->s->batch;
    const tsr_run_options *const run = &p->s->options->run;
    const tsr_tokens tokens = tokens_of(b);
    TSR_TRY(tsr_token_choice_make(choice, 1, &tokens, 1, err));
    for (size_t from = 0, to; from < b->queries; from = to) {
        to = end_of_sequence(b, from);
        const tsr_token_scores of = {.scores = scores + from * b->longest,
                                     .queries = to - from,
                                     .keys = b->longest,
                                     .token = b->token_of[from],
                                     .position = tsr_mla_tokens_seen(b, from) - 1,
                                     .block = 1,
                                     .kept = p->top_k};
        TSR_TRY(tsr_token_choice_add(choice, &of, (unsigned)run->threads, run->cancel, err));
    }
    return TSR_OK;
}

/* Judges scores y against x, and the tokens that y chooses against those of `chosen`. */
static tsr_status judge_scores(const pass *p, const char *what, const double *x, const tsr_token_choice *chosen,
                               const double *y, tsr_err *err)
{
    const tsr_mla_batch *const b = p->s->batch;
    const tsr_tokens tokens = tokens_of(b);
    tsr_token_choice other = {0};
    tsr_judgement j = {
        .subject = p->s->name, .what = what, .kind = TSR_ERROR_QUANTIZATION, .of_bound = -1, .of_expected = -1};
    tsr_mla_judge_sqnr(&j, x, y, b->queries, b->longest, p->s->min_sqnr);
    tsr_status status = choose(p, y, &other, err);
    if (status == TSR_OK) {
        tsr_token_choice_compare(chosen, &other, 0, &tokens, &j.tokens, &j.tokens_agreed);
        tsr_lap(p->evidence, TSR_PHASE_JUDGE, p->since);
        status = tsr_evidence_add(p->evidence, &j, err);
    }
    tsr_token_choice_free(&other);
    return status;
}

/* Compares the scores of the original, from its own stages, with the model's. */
static tsr_status judge_original(const pass *p, tsr_err *err)
{
    char what[96];
    tsr_mla_stages stages = {{NULL}};
    tsr_token_choice chosen = {0};
    tsr_status status = TSR_OK;
    for (tsr_mla_stage s = 0; status == TSR_OK && s < TSR_N_STAGES; s++) {
        if (s <= TSR_STAGE_Q_NORM || s >= TSR_STAGE_INDEX_Q)
            status = tsr_mla_compute(p->original, p->s->batch, &stages, s, TSR_MLA_RIGHT, true, &stages.of[s], err);
    }
    tsr_lap(p->evidence, TSR_PHASE_ORACLE, p->since);
    snprintf(what, sizeof what, "index scores, in double%s", p->name);
    const double *const scores = stages.of[TSR_STAGE_INDEX_SCORES];
    if (status == TSR_OK)
        status = choose(p, scores, &chosen, err);
    if (status == TSR_OK)
        status = judge_scores(p, what, scores, &chosen, p->s->stages->of[TSR_STAGE_INDEX_SCORES], err);
    tsr_token_choice_free(&chosen);
    tsr_mla_stages_free(&stages);
    return status;
}

/* ---- index kernels ---- */

/* Operands and results of the index kernels: [queries][longest]. */
typedef struct indexing {
    const pass *p;
    tsr_index_codes codes;
    double *value, *bound, *variance, *got;
    bool tensor_core; /* bound and variance are those of a tensor core */
    float *logits;    /* [queries][tokens] of one sequence */
    int32_t *seen;    /* [queries] */
} indexing;

/* Computes the exact scores, with the bounds of one way of accumulating. */
static tsr_status solve(indexing *x, bool tensor_core, tsr_err *err)
{
    const tsr_mla_subject *const s = x->p->s;
    const tsr_index_exact exact = {x->value, x->bound, x->variance};
    x->tensor_core = tensor_core;
    TSR_TRY(
        tsr_index_solve(&x->codes, s->model, s->batch, tensor_core, TSR_INDEX_RIGHT, &s->options->run, &exact, err));
    tsr_lap(x->p->evidence, TSR_PHASE_ORACLE, x->p->since);
    return TSR_OK;
}

/* Runs a kernel on each sequence with queries. Fills `got`, with 0 for tokens that are not seen. *hidden is false if a
 * token that is not seen has another score than -infinity. */
static tsr_status run_index(indexing *x, const tsr_device_index *kernel, double *seconds, bool *hidden, tsr_err *err)
{
    const tsr_mla_batch *const b = x->p->s->batch;
    *hidden = true;
    for (size_t from = 0, to; from < b->queries; from = to) {
        double once = 0;
        to = end_of_sequence(b, from);
        for (size_t i = from; i < to; i++)
            x->seen[i] = (int32_t)tsr_mla_tokens_seen(b, i);
        tsr_index_scores args = tsr_index_arguments(&x->codes, x->p->s->model, b, from, to);
        args.seen = x->seen + from;
        args.logits = x->logits;
        memset(x->logits, 0xFF, args.queries * args.keys * sizeof *x->logits);
        TSR_TRY(kernel->run(kernel, &args, &once, err));
        *seconds += once;
        for (size_t at = 0; at < args.queries * b->longest; at++) {
            const size_t i = at / b->longest, j = at % b->longest;
            const bool seen = j < (size_t)args.seen[i];
            const double logit = j < args.keys ? (double)x->logits[i * args.keys + j] : -INFINITY;
            x->got[from * b->longest + at] = seen ? logit : 0;
            *hidden = *hidden && (seen || logit == -INFINITY);
        }
    }
    return TSR_OK;
}

/* Sets the fault of a judgement if a known mistake explains the kernel's result. */
static tsr_status name_index(const indexing *x, const tsr_device_index *kernel, bool hidden, tsr_judgement *j,
                             tsr_err *err)
{
    const pass *const p = x->p;
    const size_t n = p->s->batch->queries * p->s->batch->longest;
    if (!hidden)
        j->fault = "tokens that a query does not see have a score";
    if (j->fault != NULL || tsr_mla_relative(x->value, x->got, n) < kFar)
        return TSR_OK;
    double *const wrong = malloc((n + 1) * sizeof *wrong);
    tsr_status status = wrong == NULL ? tsr_out_of_memory(err, "for index scores") : TSR_OK;
    const tsr_index_exact exact = {.value = wrong};
    for (tsr_index_mistake m = TSR_INDEX_RIGHT + 1; status == TSR_OK && j->fault == NULL && m < TSR_N_INDEX_MISTAKES;
         m++) {
        status = tsr_index_solve(&x->codes, p->s->model, p->s->batch, kernel->tensor_core, m, &p->s->options->run,
                                 &exact, err);
        if (status == TSR_OK && tsr_mla_relative(wrong, x->got, n) < kFar)
            j->fault = tsr_index_mistake_text(m);
    }
    free(wrong);
    return status;
}

static tsr_status judge_kernel(indexing *x, const tsr_device_index *kernel, tsr_err *err)
{
    const pass *const p = x->p;
    const tsr_mla_batch *const b = p->s->batch;
    const double steps = (double)tsr_ceil_div(p->s->model->index.dim, TSR_GEMM_STEP);
    char what[96];
    bool hidden;
    double seconds = 0;
    tsr_err why = {0};
    tsr_status status = run_index(x, kernel, &seconds, &hidden, &why);
    tsr_lap(p->evidence, TSR_PHASE_KERNELS, p->since);
    if (status == TSR_E_UNSUPPORTED)
        return tsr_mla_skip_once(p->evidence, p->s->name, why.msg, err);
    if (status != TSR_OK)
        return tsr_fail_with(err, status, &why);
    if (kernel->tensor_core != x->tensor_core)
        TSR_TRY(solve(x, kernel->tensor_core, err));
    snprintf(what, sizeof what, "%s%s", kernel->name, p->name);
    const tsr_tally_of of = {.subject = p->s->name,
                             .what = what,
                             .seconds = seconds,
                             .rows = b->queries,
                             .cols = b->longest,
                             .out = TSR_OUT_F32,
                             .shared = TSR_SHARE_NOTHING,
                             .systematic = kernel->tensor_core ? steps * 0x1p-14 : 0x1p-18};
    tsr_kernel_tally t;
    TSR_TRY(tsr_kernel_tally_begin(&t, &of, err));
    for (size_t i = 0; i < b->queries; i++) {
        for (size_t j = 0; j < tsr_mla_tokens_seen(b, i); j++) {
            const size_t at = i * b->longest + j;
            tsr_kernel_tally_count(&t, i, j, x->value[at], x->got[at], x->bound[at], x->variance[at]);
        }
    }
    tsr_judge(&t.judgement, x->value, x->got, b->queries, b->longest, NULL, NULL);
    status = name_index(x, kernel, hidden, &t.judgement, err);
    tsr_lap(p->evidence, TSR_PHASE_JUDGE, p->since);
    if (t.judgement.fault != NULL)
        t.judgement.of_bound = INFINITY;
    const tsr_status ended = tsr_kernel_tally_end(&t, &p->s->options->limits, "above the bound of its accumulation",
                                                  "errors above those of its accumulation", p->evidence, err);
    return status != TSR_OK ? status : ended;
}

/* Judges one FP8 form of the scores, and with `kernels` all index kernels over its codes. */
static tsr_status check_form(indexing *x, bool rotated, bool kernels, tsr_err *err)
{
    const pass *const p = x->p;
    const tsr_mla_subject *const s = p->s;
    char what[96];
    TSR_TRY(tsr_index_codes_make(&x->codes, s->model, s->batch, s->stages, rotated, err));
    tsr_lap(p->evidence, TSR_PHASE_QUANTIZE, p->since);
    TSR_TRY(solve(x, false, err));
    snprintf(what, sizeof what, "index scores in FP8%s%s", rotated ? ", rotated" : "", p->name);
    TSR_TRY(judge_scores(p, what, s->stages->of[TSR_STAGE_INDEX_SCORES], &p->choice, x->value, err));
    for (size_t i = 0; kernels && i < s->options->device->n_indexes; i++)
        TSR_TRY(judge_kernel(x, &s->options->device->indexes[i], err));
    return TSR_OK;
}

/* Judges the forms that fit the indexer, and runs the kernels over the first of them. */
static tsr_status check_index(const pass *p, tsr_err *err)
{
    const tsr_mla_batch *const b = p->s->batch;
    const size_t n = b->queries * b->longest + 1;
    indexing x = {.p = p};
    bool kernels = true;
    tsr_status status = TSR_OK;
    x.value = malloc(4 * n * sizeof *x.value);
    x.logits = malloc(n * sizeof *x.logits);
    x.seen = malloc((b->queries + 1) * sizeof *x.seen);
    if (x.value == NULL || x.logits == NULL || x.seen == NULL)
        status = tsr_out_of_memory(err, "for index scores");
    else
        x.bound = x.value + n, x.variance = x.bound + n, x.got = x.variance + n;
    for (int form = 0; status == TSR_OK && form < 2; form++) {
        const char *const why = tsr_index_without_codes(p->s->model->index.dim, form == 0);
        if (why != NULL) {
            status = tsr_mla_skip_once(p->evidence, p->s->name, why, err);
            continue;
        }
        status = check_form(&x, form == 0, kernels, err);
        tsr_index_codes_free(&x.codes);
        kernels = false;
    }
    free(x.value);
    free(x.logits);
    free(x.seen);
    return status;
}

/* ---- both batches ---- */

static tsr_status run_pass(pass *p, tsr_err *err)
{
    tsr_mla_subject sparse = *p->s;
    tsr_status status;
    TSR_GOTO(choose(p, p->s->stages->of[TSR_STAGE_INDEX_SCORES], &p->choice, err));
    tsr_lap(p->evidence, TSR_PHASE_ORACLE, p->since);
    if (p->original != NULL)
        TSR_GOTO(judge_original(p, err));
    TSR_GOTO(check_index(p, err));
    sparse.choice = &p->choice;
    sparse.top_k = (size_t)tsr_min_u64(p->top_k, p->s->batch->longest);
    sparse.batch_name = p->name[0] == '\0' ? ", sparse" : ", sparse prefill";
    status = tsr_mla_check_kernels(&sparse, p->evidence, p->since, err);
out:
    tsr_token_choice_free(&p->choice);
    return status;
}

/* Makes a batch of the same tokens with more queries. */
static tsr_status extend_batch(const tsr_mla_subject *s, size_t new_tokens, tsr_mla_batch *batch, tsr_err *err)
{
    const tsr_mla_batch *const b = s->batch;
    size_t *const lengths = malloc((b->sequences + 1) * sizeof *lengths);
    if (lengths == NULL)
        return tsr_out_of_memory(err, "for a batch");
    for (size_t i = 0; i < b->sequences; i++)
        lengths[i] = b->first[i + 1] - b->first[i];
    const tsr_status status = tsr_mla_batch_shape(batch, lengths, b->sequences, new_tokens, s->model->hidden, err);
    if (status == TSR_OK)
        memcpy(batch->hidden, b->hidden, b->tokens * s->model->hidden * sizeof *b->hidden);
    free(lengths);
    return status;
}

static tsr_status run_prefill(const pass *of_batch, size_t queries, tsr_err *err)
{
    tsr_mla_batch batch = {0};
    tsr_mla_stages stages = {{NULL}};
    tsr_mla_subject subject = *of_batch->s;
    pass p = *of_batch;
    subject.batch = &batch;
    subject.stages = &stages;
    subject.new_tokens = queries;
    p.s = &subject;
    p.name = ", prefill";
    tsr_status status = extend_batch(of_batch->s, queries, &batch, err);
    for (tsr_mla_stage s = 0; status == TSR_OK && s < TSR_N_STAGES; s++) {
        if (s != TSR_STAGE_OUTPUT && tsr_mla_has_stage(subject.model, s))
            status = tsr_mla_compute(subject.model, &batch, &stages, s, TSR_MLA_RIGHT, true, &stages.of[s], err);
    }
    tsr_lap(p.evidence, TSR_PHASE_ORACLE, p.since);
    if (status == TSR_OK)
        status = run_pass(&p, err);
    tsr_mla_stages_free(&stages);
    tsr_mla_batch_free(&batch);
    return status;
}

/* Returns how many tokens a query attends to. By default some are left out. */
static size_t tokens_kept(const tsr_mla_subject *s)
{
    const size_t kept = s->model->index.kept, longest = s->batch->longest;
    if (s->options->mla.top_k > 0)
        return (size_t)s->options->mla.top_k;
    return kept < longest ? kept : (longest + 1) / 2;
}

tsr_status tsr_mla_check_sparse(const tsr_mla_subject *s, const tsr_mla_model *original, tsr_evidence *evidence,
                                double *since, tsr_err *err)
{
    const size_t queries = (size_t)tsr_min_u64(s->batch->longest, TSR_SPARSE_PREFILL);
    pass p = {.s = s, .original = original, .name = "", .evidence = evidence, .since = since, .top_k = tokens_kept(s)};
    TSR_TRY(run_pass(&p, err));
    return queries > s->new_tokens ? run_prefill(&p, queries, err) : TSR_OK;
}
