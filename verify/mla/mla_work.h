/* Operands, exact results and judgements shared by the checks of MLA kernels. */
#pragma once

#include "kernels/cpu/mla_attention.h"
#include "verify/evidence/kernel_tally.h"
#include "verify/mla/attention_oracle.h"
#include "verify/mla/mla_kernels.h"

enum { TSR_MLA_PAGE = 64 }; /* tokens per page */

/* The operands of the kernels, and the exact results over them. Every sequence has as many query slots as the
 * sequence with the most queries needs. */
typedef struct tsr_mla_work {
    const tsr_mla_subject *s;
    tsr_evidence *evidence;
    double *since;
    size_t width, s_q, pages, max_pages, slots;
    bool fp8, steep;  /* fp8: format of the cache; steep: scores of tsr_attention_steepen */
    uint16_t *q;      /* [slots][heads][width] */
    size_t list;      /* entries of the list of a slot, a multiple of 64; 0: attention is not sparse */
    int32_t *indices; /* [slots][list]: rows of the cache, -1: none */
    size_t *listed;   /* [queries][list]: the tokens in the order of the list, without -1 */
    size_t *n_listed; /* [queries] */
    uint8_t *cache;
    int32_t *table, *seqlens;
    float *rows; /* [tokens + 1][width] as attention sees them; the last one is zeros */
    float *out;  /* [slots][heads][rank] */
    float *scratch;
    double *exact;         /* [queries][heads][rank] */
    double *mass, *square; /* as `exact`: sums of p |v| and of (p v)^2 */
    double *jitter;        /* as `exact`: effect of rounding the scores, in units of u^2 / 3 */
    double *largest;       /* [queries][heads]: largest sum |q k| */
    double *got, *values;  /* [queries][heads][rank]; [queries][heads][v], exact */
    tsr_arena arena;
} tsr_mla_work;

/* Returns the slot of a query. */
static inline size_t tsr_mla_slot_of(const tsr_mla_work *work, size_t query)
{
    const tsr_mla_batch *const b = work->s->batch;
    const size_t s = b->seq_of[query];
    return s * work->s_q + work->s_q - (b->first[s + 1] - b->token_of[query]);
}

/* Returns the row of the cache of a token of sequence s. */
static inline size_t tsr_mla_row_of(const tsr_mla_work *work, size_t s, size_t token)
{
    const size_t at = token - work->s->batch->first[s];
    return (size_t)work->table[s * work->max_pages + at / TSR_MLA_PAGE] * TSR_MLA_PAGE + at % TSR_MLA_PAGE;
}

/* Returns the tokens that a query attends to. */
static inline tsr_attended tsr_mla_attended(const tsr_mla_work *work, size_t query)
{
    const tsr_mla_batch *const b = work->s->batch;
    const bool sparse = work->list > 0;
    const float *const rows = sparse ? work->rows : work->rows + b->first[b->seq_of[query]] * work->width;
    return (tsr_attended){.keys = rows,
                          .values = rows,
                          .rows = sparse ? work->listed + query * work->list : NULL,
                          .ld_keys = work->width,
                          .ld_values = work->width,
                          .width = work->width,
                          .columns = work->s->model->rank,
                          .n = sparse ? work->n_listed[query] : tsr_mla_tokens_seen(b, query),
                          .scale = (double)(float)work->s->model->softmax_scale};
}

/* Allocates from the work's arena, and stores the address in the pointer at `to`. */
tsr_status tsr_mla_take(tsr_mla_work *work, void *to, size_t bytes, tsr_err *err);

/* Adds the time since the last call to a phase (tsr_lap). */
void tsr_mla_lap(tsr_mla_work *work, tsr_phase phase);

/* Fills queries and cache, and computes the exact results over them in FP64. */
tsr_status tsr_mla_fill(tsr_mla_work *work, tsr_err *err);

/* Returns the arguments for a kernel over all heads. */
tsr_mla_attention tsr_mla_arguments(const tsr_mla_work *work);

/* Judges work->out against the exact result. */
tsr_status tsr_mla_judge_decode(tsr_mla_work *work, const tsr_device_mla *kernel, const char *what, double seconds,
                                tsr_err *err);

/* Calls tsr_kernel_tally_end, and ends the time of judging. */
tsr_status tsr_mla_end_tally(tsr_mla_work *work, tsr_kernel_tally *tally, const char *fault, const char *rms_fault,
                             tsr_err *err);

/* Checks heads divided among ranks: each rank's share by every kernel, then W_v, W_o and the sum over ranks. */
tsr_status tsr_mla_check_ranks(tsr_mla_work *work, tsr_err *err);
