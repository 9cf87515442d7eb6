/* The attention weights of one DeepSeek layer (multi-head latent attention), and what config.json says of it.
 *
 * DeepSeek-V2, section 2.1; inference/model.py of DeepSeek-V3. Projections stay on disk and are read band by band;
 * kv_b_proj is held in double. */
#ifndef TSR_VERIFY_MLA_MLA_MODEL_H
#define TSR_VERIFY_MLA_MLA_MODEL_H

#include "verify/mla/rope.h"
#include "verify/weights/compare.h"

typedef struct tsr_mla_model {
    const tsr_checkpoint *checkpoint;
    size_t hidden, heads, nope, rope, v, rank, q_rank; /* rank: kv_lora_rank; q_rank 0: q_proj, no latent query */
    double eps;                                        /* of both norms */
    double softmax_scale; /* (nope + rope)^-0.5 * m^2, m = 0.1 mscale_all_dim ln(factor) + 1 where YaRN is on */
    double plain_scale;   /* the same without m, which a consumer may forget */
    tsr_rope turn;
    double *q_norm, *kv_norm;
    const tsr_weight *q_a, *q, *kv_a, *o;
    double *keys, *values; /* [heads][nope][rank], [heads][v][rank]: of kv_b_proj; of the parts where it was dropped */
    double *w_kc, *w_vc;   /* the same of the parts that a consumer absorbs; of kv_b_proj where there are none */
    bool has_parts, has_kv_b;
    bool folded;              /* W_k is in q and W_v in o: nope and v are `rank` then, keys and values the identity */
    size_t head_nope, head_v; /* nope and v as config.json has them */
    unsigned threads;         /* 1 unless the caller sets more; no result depends on it */
    tsr_arena arena;
} tsr_mla_model;

/* Reads layer `layer`. The side's weights may come from tsr_weights_survey; both are borrowed until the end.
 * TSR_E_FORMAT: tensors are missing (all are named) or have no scale. TSR_E_SHAPE: not as config.json has it.
 * TSR_E_UNSUPPORTED: no MLA, or a kind of RoPE, bias or weight that is not known here. */
tsr_status tsr_mla_model_open(tsr_mla_model *model, const tsr_side *side, uint64_t layer, tsr_err *err) TSR_WARN_UNUSED;
void tsr_mla_model_close(tsr_mla_model *model);

/* y[n][rows of w] += x[n][first .. first + cols) W[:, first .. first + cols)^T; x and y have their own row lengths. */
tsr_status tsr_mla_project(const tsr_mla_model *model, const tsr_weight *w, size_t first, size_t cols, const double *x,
                           size_t ld_x, size_t n, double *y, tsr_err *err) TSR_WARN_UNUSED;

#endif
