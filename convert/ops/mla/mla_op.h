/* Declares the steps of absorbed multi-head latent attention: kv_b_proj split per head, or folded into q_b_proj and
 * o_proj.
 *
 * kv_b_proj is [heads * (nope + v), L], L = kv_lora_rank. Each head has `nope` rows that make keys (W_k), followed by
 * `v` rows that make values (W_v). In absorbed form, q_nope . W_k is a query over the latent cache, and attention .
 * W_v^T gives its values. Sources: DeepSeek-V2, section 2.1; DeepSeek-V3 inference/model.py, `MLA.forward`, attn_impl
 * "absorb". */
#pragma once

#include "convert/plan/plan.h"
#include "formats/names/mla_shape.h"
#include "formats/weights/weights.h"

#include <stdbool.h>
#include <stdint.h>

typedef enum tsr_mla_form {
    TSR_MLA_PLAIN,  /* plain weights keep their dtype, FP8 becomes BF16 */
    TSR_MLA_KEEP,   /* FP8 codes stay, their scales are split per head */
    TSR_MLA_TENSOR, /* FP8 is quantized again with one scale for all of kv_b_proj, as in SGLang */
    TSR_MLA_HEAD,   /* FP8 is quantized again with one scale for each head's part */
} tsr_mla_form;

/* One half of kv_b_proj in the form that a consumer needs. */
typedef struct tsr_mla_part {
    const char *name;  /* name of the output tensor */
    const char *scale; /* name of its scales, for KEEP and HEAD */
    bool values;       /* W_v; else W_k */
    bool transposed;   /* [heads, L, rows] if true, else [heads, rows, L] */
} tsr_mla_part;

/* Adds the step that writes one part and its scales. KEEP: FP32 [heads, row blocks, column blocks], transposed with the
 * part. HEAD: [heads]. TENSOR writes both parts, K then V, and the one FP32 scale as parts[0].scale. The caller has
 * checked the shapes and, for KEEP, that heads end at block boundaries. */
tsr_status tsr_plan_mla_split(tsr_plan *plan, const tsr_weight *kv_b, const tsr_mla_shape *mla, tsr_mla_form form,
                              const tsr_mla_part *parts, size_t n_parts, tsr_err *err);

/* Adds the step that folds W_k into q_b_proj [heads * (nope + rope), C]. The result is BF16 [heads * (L + rope), C]:
 * per head W_k^T . q_nope, followed by its unchanged rope rows. Sums are in FP64 and rounded once. The statistics
 * measure the rounding error. */
tsr_status tsr_plan_mla_fold_q(tsr_plan *plan, const tsr_weight *q_b, const tsr_weight *kv_b, const tsr_mla_shape *mla,
                               tsr_err *err);

/* Adds the step that folds W_v into o_proj [hidden, heads * v]. The result is BF16 [hidden, heads * L]: o . W_v per
 * head. */
tsr_status tsr_plan_mla_fold_o(tsr_plan *plan, const tsr_weight *o, const tsr_weight *kv_b, const tsr_mla_shape *mla,
                               tsr_err *err);
