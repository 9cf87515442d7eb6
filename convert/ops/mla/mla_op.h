/* The steps of absorbed multi-head latent attention: kv_b_proj split per head, and folded into its neighbours.
 *
 * kv_b_proj is [heads * (nope + v), L], L = kv_lora_rank: of each head `nope` rows that make keys (W_k), then `v` rows
 * that make values (W_v). Absorbed: q_nope . W_k gives a query over the latent cache, attention . W_v^T its values.
 * DeepSeek-V2, section 2.1; DeepSeek-V3 inference/model.py, `MLA.forward`, attn_impl "absorb". */
#ifndef TSR_CONVERT_OPS_MLA_MLA_OP_H
#define TSR_CONVERT_OPS_MLA_MLA_OP_H

#include "convert/plan/plan.h"
#include "formats/names/mla_shape.h"
#include "formats/weights/weights.h"

#include <stdbool.h>
#include <stdint.h>

typedef enum tsr_mla_form {
    TSR_MLA_PLAIN,  /* a plain weight in its own dtype, an FP8 one in BF16 */
    TSR_MLA_KEEP,   /* FP8 codes as they are, their scales cut along the heads */
    TSR_MLA_TENSOR, /* FP8 quantized again with one scale for all of kv_b_proj, as in SGLang */
    TSR_MLA_HEAD,   /* FP8 quantized again with one scale for each head's part */
} tsr_mla_form;

/* One half of kv_b_proj as a consumer wants it. */
typedef struct tsr_mla_part {
    const char *name;  /* of the output tensor */
    const char *scale; /* of its scales, for KEEP and HEAD */
    bool values;       /* W_v; else W_k */
    bool transposed;   /* [heads, L, rows]; else [heads, rows, L] */
} tsr_mla_part;

/* Adds the step that writes one part (and its scales: FP32 [heads, row blocks, column blocks], transposed with it, for
 * KEEP; [heads] for HEAD). For TENSOR: both parts, in the order K, V, and the one FP32 scale as parts[0].scale.
 * The caller has checked the shapes, and for KEEP that heads end where blocks do. */
tsr_status tsr_plan_mla_split(tsr_plan *plan, const tsr_weight *kv_b, const tsr_mla_shape *mla, tsr_mla_form form,
                              const tsr_mla_part *parts, size_t n_parts, tsr_err *err) TSR_WARN_UNUSED;

/* Adds the step that folds W_k into q_b_proj [heads * (nope + rope), C]: BF16 [heads * (L + rope), C], of each head
 * W_k^T . q_nope, then its rope rows as they are. Sums in FP64, one rounding. The statistics tell what that costs. */
tsr_status tsr_plan_mla_fold_q(tsr_plan *plan, const tsr_weight *q_b, const tsr_weight *kv_b, const tsr_mla_shape *mla,
                               tsr_err *err) TSR_WARN_UNUSED;

/* Adds the step that folds W_v into o_proj [hidden, heads * v]: BF16 [hidden, heads * L], of each head o . W_v. */
tsr_status tsr_plan_mla_fold_o(tsr_plan *plan, const tsr_weight *o, const tsr_weight *kv_b, const tsr_mla_shape *mla,
                               tsr_err *err) TSR_WARN_UNUSED;

#endif
