/* Implements attention on the CPU. */
#include "verify/forward/forward_ops.h"

#include "common/checked.h"
#include "common/parallel/parallel_for.h"
#include "verify/values/weight_product.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct attending {
    const tsr_op_attend *a;
    double *scratch; /* [workers][scores] */
    size_t scores;   /* most scores of a query */
} attending;

/* Returns true if attention of a token is not limited to others than this position or entry. */
static bool sees(const tsr_op_attend *a, size_t token, size_t head, size_t position)
{
    const tsr_token_choice *const chosen = a->chosen;
    return chosen == NULL ||
           tsr_is_chosen(chosen, head / (a->heads / chosen->groups) * chosen->count + token, position);
}

/* Keys of one query: rows of k and of v, ld_k and ld_v apart. */
typedef struct key_rows {
    const double *k, *v;
    size_t ld_k, ld_v, n;
    size_t first;  /* position or entry of the first one */
    bool selected; /* only those that the choice has are visible */
} key_rows;

static void score_keys(const tsr_op_attend *a, const key_rows *r, size_t token, size_t head, double *p)
{
    const double *const q = tsr_doubles(a->q) + token * a->ld_q + head * a->dim;
    for (size_t t = 0; t < r->n; t++) {
        if (r->selected && !sees(a, token, head, r->first + t)) {
            p[t] = -INFINITY;
            continue;
        }
        p[t] = tsr_dot(q, r->k + t * r->ld_k, a->dim) * a->scale;
        p[t] = a->cap != 0 ? a->cap * tanh(p[t] / a->cap) : p[t];
    }
}

static void add_values(const tsr_op_attend *a, const key_rows *r, size_t token, size_t head, const double *p)
{
    double *const out = tsr_doubles(a->out) + token * a->ld_out + head * a->v_dim;
    for (size_t t = 0; t < r->n; t++) {
        if (r->selected && !sees(a, token, head, r->first + t))
            continue;
        for (size_t i = 0; i < a->v_dim; i++)
            out[i] += p[t] * r->v[t * r->ld_v + i];
    }
}

/* Returns the tokens that a query sees, the last `window` of its sequence up to its own. */
static key_rows tokens_of(const tsr_op_attend *a, size_t begin, size_t token, size_t head)
{
    const size_t seen = tsr_min_u64(token - begin + 1, a->window), from = token + 1 - seen;
    const size_t shared = head / (a->heads / a->kv_heads), ld_k = a->kv_heads * a->dim, ld_v = a->kv_heads * a->v_dim;
    return (key_rows){.k = tsr_doubles(a->k) + from * ld_k + shared * a->dim,
                      .v = tsr_doubles(a->v) + from * ld_v + shared * a->v_dim,
                      .ld_k = ld_k,
                      .ld_v = ld_v,
                      .n = seen,
                      .first = from - begin,
                      .selected = a->entries.x == NULL};
}

/* Returns the entries of sequence s that a query sees. */
static key_rows entries_of(const tsr_op_attend *a, size_t s, size_t position)
{
    const tsr_op_entries *const e = &a->entries;
    if (e->x == NULL)
        return (key_rows){.n = 0};
    const double *const x = tsr_doubles(e->x) + e->tokens->first[s] * a->dim;
    return (key_rows){.k = x, .v = x, .ld_k = a->dim, .ld_v = a->dim, .n = (position + 1) / e->rate, .selected = true};
}

/* Computes one query of one head, over the tokens from the begin of sequence s to its own. */
static void attend_one(const tsr_op_attend *a, size_t s, size_t token, size_t head, double *p)
{
    const size_t begin = a->tokens->first[s];
    const key_rows tokens = tokens_of(a, begin, token, head), entries = entries_of(a, s, token - begin);
    const size_t seen = tokens.n + entries.n;
    score_keys(a, &tokens, token, head, p);
    score_keys(a, &entries, token, head, p + tokens.n);
    if (a->sinks != NULL)
        p[seen] = a->sinks[head];
    tsr_soften(p, seen + (a->sinks != NULL));
    memset(tsr_doubles(a->out) + token * a->ld_out + head * a->v_dim, 0, a->v_dim * sizeof(double));
    add_values(a, &tokens, token, head, p);
    add_values(a, &entries, token, head, p + tokens.n);
}

/* Computes one sequence and head. */
static tsr_status attend_turn(void *context, size_t i, size_t worker, tsr_err *err)
{
    const attending *const w = context;
    const tsr_tokens *const tokens = w->a->tokens;
    const size_t s = i / w->a->heads;
    (void)err;
    for (size_t token = tokens->first[s]; token < tokens->first[s + 1]; token++)
        attend_one(w->a, s, token, i % w->a->heads, w->scratch + worker * w->scores);
    return TSR_OK;
}

tsr_status tsr_cpu_attend(tsr_ops *ops, const tsr_op_attend *a, tsr_err *err)
{
    const size_t turns = a->tokens->sequences * a->heads, workers = tsr_parallel_workers(turns, ops->threads);
    const size_t scores = a->tokens->longest + (a->entries.x != NULL ? a->entries.tokens->longest : 0) + 1;
    attending w = {a, malloc(workers * scores * sizeof(double)), scores};
    const tsr_status status = w.scratch == NULL
                                  ? tsr_out_of_memory(err, "for attention")
                                  : tsr_parallel_for(turns, ops->threads, ops->cancel, attend_turn, &w, err);
    free(w.scratch);
    return status;
}
