/* Measures the cost of each scheme for a model without writing a checkpoint. Every tensor is read once, in strips of
 * 128 rows. Each scheme quantizes the strip with the functions of quantize/. Statistics are added in the order of the
 * strips, so the result does not depend on the number of threads. NVFP4 uses the global scale of the strip, because
 * that of the tensor is known only at its end. So some codes differ from those of quantize, where an e4m3 scale rounds
 * differently. */
#pragma once

#include "common/cluster/ranks.h"
#include "common/parallel/threads.h"
#include "convert/schemes/schemes.h"
#include "formats/checkpoint/checkpoint.h"
#include "formats/importance/importance.h"
#include "quantize/fold.h"
#include "quantize/quant_stats.h"

typedef struct tsr_scheme_cost {
    tsr_quant_stats stats; /* without statistics of scales; empty if the scheme does not quantize the tensor */
    uint64_t bytes;        /* bytes of codes, scales and zero points, or of the unquantized tensor */
    bool taken;            /* false: a checkpoint of the scheme keeps the tensor (tsr_ct_takes) or cannot hold it */
} tsr_scheme_cost;

/* Bits of the weights and of the activations that they are multiplied by. */
typedef enum tsr_scheme_kind { TSR_W8A8, TSR_W8A16, TSR_W4A16 } tsr_scheme_kind;
tsr_scheme_kind tsr_scheme_kind_of(tsr_scheme scheme);

/* Applies the policy of quantize. Sets in taken[i], the caller's array, the bits (1 << scheme) of the schemes for which
 * the policy would quantize tensor i of the checkpoint. The policy is stricter for block scales, because members of a
 * fused layer must end on block boundaries, and for small groups, which must divide a row. */
tsr_status tsr_schemes_decide(const tsr_checkpoint *checkpoint, const char *model_type, uint64_t *taken,
                              tsr_arena *arena, tsr_err *err);

typedef struct tsr_compare_schemes_options {
    tsr_run_options run;
    const uint64_t *taken; /* [n] from tsr_schemes_decide; NULL: every scheme quantizes every tensor */
    uint64_t schemes;      /* bits of the schemes to measure; 0: those that have a title. The others quantize nothing */
    const tsr_importance *importance; /* weights of the columns in squared errors; NULL: all are 1 */
    const tsr_fold *const *folds; /* [n]: the columns of a tensor are multiplied before it is quantized, and its errors
                                   * divided afterwards; NULL: none is */
    unsigned cpu_flags;
    tsr_ranks *ranks; /* the processes that share the job; NULL: only this one. Borrowed */
} tsr_compare_schemes_options;

/* Returns the error of a scheme for a tensor, sum d^2 / sum x^2, weighted by importance if the tensor has any. */
double tsr_scheme_cost_error(const tsr_scheme_cost *cost);

/* Fills costs[i * TSR_SCHEMES + scheme] for tensors[i], matrices [R, C] or stacks [M, R, C] of BF16, F16 or F32. The
 * caller allocates costs[n * TSR_SCHEMES]. Each rank measures the tensors that it claims, and all ranks get all costs.
 * TSR_E_VALUE: NaN or Inf, with its position. TSR_E_MISMATCH: tsr_importance_find. TSR_E_NOMEM, TSR_E_IO,
 * TSR_E_CANCELLED. */
tsr_status tsr_compare_schemes(const tsr_checkpoint *checkpoint, const tsr_tensor *const *tensors, size_t n,
                               const tsr_compare_schemes_options *options, tsr_scheme_cost *costs, tsr_err *err);
