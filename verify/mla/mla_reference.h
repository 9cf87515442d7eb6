/* Computes multi-head latent attention by stages, in double and in plain loops: the reference for kernels.
 *
 * Sequences are stored one after another. The queries are the last `new_tokens` of each sequence, or all tokens in
 * prefill. A query sees itself and the preceding tokens. Shapes: n tokens, q queries, t = longest sequence:
 *
 *   q_a [q][q_rank] = hidden W_q_a^T;  q_a_norm [q][q_rank] = RMS norm of q_a
 *   query [q][heads][nope + rope] = q_a_norm (without a query rank: hidden) W_q^T
 *   q_rope [q][heads][rope]: RoPE on the last `rope` of each head rotates pairs (2i, 2i + 1) by position * frequency[i]
 *   kv_a [n][rank + rope] = hidden W_kv_a^T;  latent [n][rank] = RMS norm of its first part;  k_rope [n][rope]
 *   scores [q][heads][t] = softmax_scale * (q_nope . (W_k latent) + q_rope . k_rope), 0 for tokens that are not seen
 *   probabilities [q][heads][t];  attention [q][heads][v] = sum of p (W_v latent)
 *   output [q][hidden] = attention W_o^T
 *   index_q [q][index heads][dim], index_k [n][dim], index_weights [q][index heads], index_scores [q][t], 0 for tokens
 *   that are not seen: verify/mla/index_query.h, for a model with an open indexer
 *
 * Sources: DeepSeek-V2, section 2.1; DeepSeek-V3's inference/model.py. Thread-safe over different outputs. */
#pragma once

#include "verify/mla/mla_model.h"

typedef enum tsr_mla_stage {
    TSR_STAGE_Q_A,
    TSR_STAGE_Q_NORM,
    TSR_STAGE_QUERY,
    TSR_STAGE_Q_ROPE,
    TSR_STAGE_KV_A,
    TSR_STAGE_LATENT,
    TSR_STAGE_K_ROPE,
    TSR_STAGE_SCORES,
    TSR_STAGE_PROBABILITIES,
    TSR_STAGE_ATTENTION,
    TSR_STAGE_OUTPUT,
    TSR_STAGE_INDEX_Q,
    TSR_STAGE_INDEX_K,
    TSR_STAGE_INDEX_WEIGHTS,
    TSR_STAGE_INDEX_SCORES,
    TSR_N_STAGES,
} tsr_mla_stage;

/* A deliberate mistake. If it reproduces a wrong result, it explains that result. */
typedef enum tsr_mla_fault {
    TSR_MLA_RIGHT,
    TSR_MLA_ROPE_HALVES,     /* pairs (i, i + rope / 2) */
    TSR_MLA_ROPE_FIRST,      /* RoPE on the first `rope` of a row */
    TSR_MLA_ROPE_NONE,       /* no RoPE */
    TSR_MLA_NO_MSCALE,       /* plain_scale */
    TSR_MLA_NO_NORM,         /* the norm skipped */
    TSR_MLA_KEYS_TRANSPOSED, /* each head's W_k read as [rank][nope] */
    TSR_MLA_VALUES_TRANSPOSED,
    TSR_MLA_INDEX_HALVES,   /* the indexer's RoPE turns pairs (i, i + rope / 2) where it should turn neighbours */
    TSR_MLA_INDEX_ADJACENT, /* the reverse */
    TSR_MLA_INDEX_LAST,     /* RoPE on the last elements of a head of the indexer */
    TSR_MLA_INDEX_NO_BIAS,  /* LayerNorm without its bias */
    TSR_MLA_INDEX_NO_MEAN,  /* LayerNorm computed as an RMS norm */
    TSR_MLA_INDEX_NO_SCALE, /* weights without heads^-0.5 */
    TSR_MLA_INDEX_NO_RELU,
    TSR_N_MLA_FAULTS,
} tsr_mla_fault;

typedef struct tsr_mla_batch {
    size_t sequences, tokens, queries, longest;
    size_t *first;    /* [sequences + 1] */
    size_t *token_of; /* [queries]: index of the token */
    size_t *seq_of;   /* [queries] */
    double *hidden;   /* [tokens][hidden] */
} tsr_mla_batch;

/* The stages, NULL until computed. From malloc. */
typedef struct tsr_mla_stages {
    double *of[TSR_N_STAGES];
} tsr_mla_stages;

/* Return the name of a stage ("q_a", ...) and the description of a mistake. Static storage. */
const char *tsr_mla_stage_name(tsr_mla_stage stage);
const char *tsr_mla_fault_text(tsr_mla_fault fault);

size_t tsr_mla_stage_rows(const tsr_mla_batch *batch, tsr_mla_stage stage);
size_t tsr_mla_stage_cols(const tsr_mla_model *model, const tsr_mla_batch *batch, tsr_mla_stage stage);
bool tsr_mla_has_stage(const tsr_mla_model *model, tsr_mla_stage stage);
/* Returns true if a stage can have this mistake. */
bool tsr_mla_fault_fits(tsr_mla_fault fault, tsr_mla_stage stage);

/* Returns the number of tokens that a query sees: the preceding ones and itself. */
static inline size_t tsr_mla_tokens_seen(const tsr_mla_batch *batch, size_t query)
{
    return batch->token_of[query] + 1 - batch->first[batch->seq_of[query]];
}

/* Computes one stage from the earlier stages in `in`. With `absorbed`, scores are (q_nope w_kc) . latent and
 * attention is (sum of p latent) w_vc. *out is from malloc. */
tsr_status tsr_mla_compute(const tsr_mla_model *model, const tsr_mla_batch *batch, const tsr_mla_stages *in,
                           tsr_mla_stage stage, tsr_mla_fault fault, bool absorbed, double **out, tsr_err *err);

/* Computes all stages in order. */
tsr_status tsr_mla_compute_all(const tsr_mla_model *model, const tsr_mla_batch *batch, bool absorbed,
                               tsr_mla_stages *out, tsr_err *err);

/* Allocates a batch of sequences of these lengths, whose last `new_tokens` tokens are queries. The caller fills in the
 * hidden states. */
tsr_status tsr_mla_batch_shape(tsr_mla_batch *batch, const size_t *lengths, size_t sequences, size_t new_tokens,
                               size_t hidden, tsr_err *err);

void tsr_mla_stages_free(tsr_mla_stages *stages);
void tsr_mla_batch_free(tsr_mla_batch *batch);
