/* An indexer's operands in FP8, and the exact scores over them.
 *
 * q of each head and k get e4m3 codes and one scale, amax / 448 with amax at least 1e-4, rounded up to a power of two.
 * The scale of q and dim^-0.5 become a part of the head's weight, in FP32. DeepSeek's code and SGLang rotate q and k by
 * a normalized Hadamard matrix first, which leaves their products as they are and spreads outliers. vLLM does not.
 * Sources: DeepSeek-V3.2's inference/model.py and kernel.py; vLLM's deepseek_v2.py; SGLang's nsa_indexer.py.
 *
 * Expected error of a kernel (verify/mla/mla_kernels.h has the model), with S, T the sum of a head's products and of
 * their squares, w a weight and t = w relu(S): the products of heads with S > 0 give w^2 v, v = (T width / 2 + S^2
 * width / 3) u^2 / 3; the sum over heads (T' (heads / 2 + 1) + S'^2 (heads / 3 + 1)) u^2 / 3 of the t, and the scale
 * S'^2 u^2 /
 * 3. On a tensor core v is 33 / 3 q^2 for each step of 32 products, with q 2^-13 of the power of two of the largest
 * magnitude (kernels/cpu/fp8_gemm.h), and the bound 33 * 2^-13 of that magnitude. */
#pragma once

#include "verify/evidence/jobs.h"
#include "verify/mla/mla_reference.h"

enum { TSR_INDEX_WIDTH = 128 /* most elements that share a scale */ };

typedef struct tsr_index_codes {
    uint8_t *q, *k;           /* [queries][heads][dim], [tokens][dim] */
    float *k_scale, *weights; /* [tokens], [queries][heads] */
    tsr_arena arena;
} tsr_index_codes;

/* Returns the reason why there is no such form of an indexer with heads of `dim` elements; NULL: there is. */
const char *tsr_index_without_codes(size_t dim, bool rotated);

/* Makes codes of the stages index_q, index_k and index_weights. */
tsr_status tsr_index_codes_make(tsr_index_codes *codes, const tsr_mla_model *model, const tsr_mla_batch *batch,
                                const tsr_mla_stages *stages, bool rotated, tsr_err *err);
void tsr_index_codes_free(tsr_index_codes *codes);

/* Returns the arguments for the queries [from, to) of one sequence. The caller sets `logits`, and `seen` as
 * tsr_mla_tokens_seen. */
tsr_index_scores tsr_index_arguments(const tsr_index_codes *codes, const tsr_mla_model *model,
                                     const tsr_mla_batch *batch, size_t from, size_t to);

/* A deliberate mistake. */
typedef enum tsr_index_mistake {
    TSR_INDEX_RIGHT,
    TSR_INDEX_NO_RELU,
    TSR_INDEX_NO_SCALE,    /* the scales of keys are left out */
    TSR_INDEX_SCALE_TWICE, /* or applied twice */
    TSR_INDEX_NO_WEIGHTS,  /* heads are added with weights of 1 */
    TSR_N_INDEX_MISTAKES,
} tsr_index_mistake;
const char *tsr_index_mistake_text(tsr_index_mistake mistake);

/* The exact scores, [queries][longest], 0 for tokens that a query does not see. */
typedef struct tsr_index_exact {
    double *value, *bound, *variance; /* bound, variance: of the error of a kernel; both NULL: not computed */
} tsr_index_exact;
tsr_status tsr_index_solve(const tsr_index_codes *codes, const tsr_mla_model *model, const tsr_mla_batch *batch,
                           bool tensor_core, tsr_index_mistake mistake, const tsr_run_options *run,
                           const tsr_index_exact *exact, tsr_err *err);
