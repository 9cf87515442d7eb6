/* Attention weights and configuration of one layer with multi-head latent attention.
 *
 * Sources: DeepSeek-V2, section 2.1; inference/model.py of DeepSeek-V3. Projections stay on disk and are read in
 * bands. kv_b_proj is in memory, in double. */
#pragma once

#include "verify/compare/compare.h"
#include "verify/mla/index_query.h"

typedef struct tsr_mla_model {
    const tsr_checkpoint *checkpoint;
    size_t hidden, heads, nope, rope, v, rank, q_rank; /* rank: kv_lora_rank; q_rank 0: q_proj, no latent query */
    double eps;                                        /* epsilon of both norms */
    double softmax_scale; /* (nope + rope)^-0.5 * m^2, m = 0.1 mscale_all_dim ln(factor) + 1 where YaRN is on */
    double plain_scale;   /* softmax_scale without m, a common mistake of consumers */
    tsr_rope turn;
    double *q_norm, *kv_norm;
    const tsr_weight *q_a, *q, *kv_a, *o;
    double *keys, *values; /* [heads][nope][rank], [heads][v][rank]: from kv_b_proj or the parts */
    double *w_kc, *w_vc;   /* the same from the absorbed parts, or from kv_b_proj without parts */
    bool has_parts, has_kv_b;
    tsr_index_sizes index; /* heads 0: tsr_mla_model_open_indexer was not called */
    const tsr_weight *index_q, *index_k, *index_weights;
    double *index_gain, *index_bias; /* LayerNorm of the indexer's keys */
    bool folded;                     /* W_k is in q and W_v in o: nope = v = rank, keys and values are identities */
    size_t head_nope, head_v;        /* nope and v of config.json */
    unsigned threads;                /* default 1; results do not depend on it */
    tsr_arena arena;
} tsr_mla_model;

/* Reads layer `layer`, whose names begin with `root` ("model"). The weights may come from tsr_weights_survey. `side`
 * and its weights must outlive the model. TSR_E_FORMAT: tensors are missing (the message names all) or have no scale.
 * TSR_E_SHAPE: a shape contradicts config.json. TSR_E_UNSUPPORTED: no MLA, or an unknown kind of RoPE, bias or
 * weight. */
tsr_status tsr_mla_model_open(tsr_mla_model *model, const tsr_side *side, const char *root, uint64_t layer,
                              tsr_err *err);
void tsr_mla_model_close(tsr_mla_model *model);

/* Returns true if the layer has an indexer, and config.json a model_type whose indexer is known. */
bool tsr_mla_model_has_indexer(tsr_mla_model *model, const tsr_side *side, const char *root, uint64_t layer);

/* Reads the layer's indexer into an open model. Arguments and errors are those of tsr_mla_model_open, and:
 * TSR_E_UNSUPPORTED for a model_type whose indexer is not known. */
tsr_status tsr_mla_model_open_indexer(tsr_mla_model *model, const tsr_side *side, const char *root, uint64_t layer,
                                      tsr_err *err);

/* Computes y[n][rows of w] += x[n][first .. first + cols) W[:, first .. first + cols)^T. x and y have their own row
 * lengths. */
tsr_status tsr_mla_project(const tsr_mla_model *model, const tsr_weight *w, size_t first, size_t cols, const double *x,
                           size_t ld_x, size_t n, double *y, tsr_err *err);
