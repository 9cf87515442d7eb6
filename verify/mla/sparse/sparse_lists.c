/* Makes lists of rows, and computes attention with mistaken ones. */
#include "verify/mla/sparse/sparse_lists.h"

#include "common/checked.h"
#include "verify/evidence/activations.h"
#include "verify/mla/mla_faults.h"

#include <stdlib.h>
#include <string.h>

enum { STEP = 64 };

/* A result is only compared with mistakes if it is so far from the exact one. Rounding to BF16 leaves 2^-9. */
static const double kFar = 0x1p-6;

size_t tsr_mla_list_length(size_t top_k)
{
    return (top_k / STEP + 1) * STEP;
}

/* Changes the order of n entries by the seed (Fisher and Yates). */
static void shuffle(int32_t *entries, size_t n, uint64_t seed)
{
    for (size_t i = n; i > 1; i--) {
        const size_t k = (size_t)(tsr_mix_bits(seed + i) % i);
        const int32_t moved = entries[k];
        entries[k] = entries[i - 1];
        entries[i - 1] = moved;
    }
}

static void fill_list(tsr_mla_work *w, size_t query)
{
    const tsr_mla_batch *const b = w->s->batch;
    const size_t s = b->seq_of[query], first = b->first[s], seen = tsr_mla_tokens_seen(b, query);
    int32_t *const to = w->indices + tsr_mla_slot_of(w, query) * w->list;
    size_t n = 0;
    /* Shuffle positions, so that `listed` gets the same order. */
    for (size_t t = 0; t < seen; t++) {
        if (tsr_is_chosen(w->s->choice, b->token_of[query], t))
            to[n++] = (int32_t)t;
    }
    shuffle(to, w->list, tsr_mix_bits(w->s->options->seed) + query * w->list);
    w->n_listed[query] = 0;
    for (size_t i = 0; i < w->list; i++) {
        if (to[i] < 0)
            continue;
        const size_t token = first + (size_t)to[i];
        w->listed[query * w->list + w->n_listed[query]++] = token;
        to[i] = (int32_t)tsr_mla_row_of(w, s, token);
    }
}

void tsr_mla_fill_lists(tsr_mla_work *w)
{
    memset(w->indices, 0xFF, w->slots * w->list * sizeof *w->indices);
    memset(w->rows + w->s->batch->tokens * w->width, 0, w->width * sizeof *w->rows);
    for (size_t i = 0; i < w->s->batch->queries; i++)
        fill_list(w, i);
}

/* ---- mistakes ---- */

typedef enum mistake { POSITIONS, COUNTED_AS_ROW_0, COUNTED_AS_ZEROS, IGNORED, N_MISTAKES } mistake;

/* Returns the token in row 0 of the cache. */
static size_t token_of_row_0(const tsr_mla_work *w)
{
    for (size_t s = 0; s < w->s->batch->sequences; s++) {
        for (size_t t = w->s->batch->first[s]; t < w->s->batch->first[s + 1]; t++) {
            if (tsr_mla_row_of(w, s, t) == 0)
                return t;
        }
    }
    return w->s->batch->tokens;
}

/* Writes the tokens that a query attends to by mistake. Returns their number. */
static size_t mistake_list(const tsr_mla_work *w, mistake m, size_t query, size_t row_0, size_t *tokens)
{
    const tsr_mla_batch *const b = w->s->batch;
    const size_t s = b->seq_of[query], seen = tsr_mla_tokens_seen(b, query), length = b->first[s + 1] - b->first[s];
    const int32_t *const list = w->indices + tsr_mla_slot_of(w, query) * w->list;
    const size_t kept = w->n_listed[query];
    size_t n = 0;
    switch (m) {
    case POSITIONS:
        for (size_t i = 0; i < w->list; i++) {
            if (list[i] >= 0 && (size_t)list[i] < length)
                tokens[n++] = b->first[s] + (size_t)list[i];
        }
        return n;
    case COUNTED_AS_ROW_0:
    case COUNTED_AS_ZEROS:
        memcpy(tokens, w->listed + query * w->list, kept * sizeof *tokens);
        for (n = kept; n < w->list; n++)
            tokens[n] = m == COUNTED_AS_ROW_0 ? row_0 : b->tokens;
        return n;
    default:
        for (n = 0; n < seen; n++)
            tokens[n] = b->first[s] + n;
        return n;
    }
}

/* Computes the result of all queries with a mistake, as work->exact. */
static tsr_status compute_mistake(const tsr_mla_work *w, mistake m, double *out, tsr_err *err)
{
    const size_t heads = w->s->model->heads, rank = w->s->model->rank, most = w->list + w->s->batch->longest;
    const size_t row_0 = token_of_row_0(w);
    size_t *const tokens = malloc((most + 1) * sizeof *tokens);
    double *const scratch = malloc((2 * most + w->width + 3 * rank + 1) * sizeof *scratch);
    const tsr_status status = tokens == NULL || scratch == NULL ? tsr_out_of_memory(err, "for lists") : TSR_OK;
    for (size_t i = 0; status == TSR_OK && i < w->s->batch->queries * heads; i++) {
        double *const rest = scratch + 2 * most + w->width;
        tsr_attended attended = tsr_mla_attended(w, i / heads);
        tsr_attention_exact r = {out + i * rank, rest, rest + rank, rest + 2 * rank, 0};
        const uint16_t *const q = w->q + (tsr_mla_slot_of(w, i / heads) * heads + i % heads) * w->width;
        attended.n = mistake_list(w, m, i / heads, row_0, tokens);
        attended.rows = tokens;
        tsr_attention_solve(&attended, q, scratch, &r);
    }
    free(tokens);
    free(scratch);
    return status;
}

/* Returns true if the slots that have no query are zeros. */
static bool empty_slots_are_zeros(const tsr_mla_work *w)
{
    const tsr_mla_batch *const b = w->s->batch;
    const size_t cells = w->s->model->heads * w->s->model->rank;
    for (size_t at = 0; at < w->slots * cells; at++) {
        const size_t slot = at / cells, s = slot / w->s_q;
        const size_t queries = (size_t)tsr_min_u64(b->first[s + 1] - b->first[s], w->s_q);
        if (slot % w->s_q < w->s_q - queries && w->out[at] != 0)
            return false;
    }
    return true;
}

tsr_status tsr_mla_name_sparse(tsr_mla_work *w, tsr_judgement *j, tsr_err *err)
{
    static const char *const kTexts[N_MISTAKES] = {
        "indices are taken as positions in the sequence instead of rows of the cache",
        "entries of -1 count, as row 0 of the cache",
        "entries of -1 count, as keys and values of zeros",
        "the lists are ignored: queries attend to all tokens",
    };
    const size_t n = w->s->batch->queries * w->s->model->heads * w->s->model->rank;
    const double error = tsr_mla_relative(w->exact, w->got, n);
    if (!empty_slots_are_zeros(w))
        j->fault = "a query whose entries are all -1 does not get zeros";
    if (j->fault != NULL || error < kFar)
        return TSR_OK;
    double *const wrong = malloc((n + 1) * sizeof *wrong);
    tsr_status status = wrong == NULL ? tsr_out_of_memory(err, "for lists") : TSR_OK;
    for (mistake m = 0; status == TSR_OK && j->fault == NULL && m < N_MISTAKES; m++) {
        status = compute_mistake(w, m, wrong, err);
        if (status == TSR_OK && tsr_mla_relative(wrong, w->got, n) < kFar)
            j->fault = kTexts[m];
    }
    free(wrong);
    return status;
}
