/* What each scheme would cost a model, without writing a checkpoint.
 *
 * Every tensor is read once, in strips of 128 rows; each scheme quantizes the strip with the very functions of
 * quantize/, whose statistics are added strip by strip in order: the result is the same for any number of threads. The
 * global scale of NVFP4 is that of the strip, since that of the tensor is known only when all of it has been read: their
 * codes differ where an e4m3 scale rounds the other way. */
#ifndef TSR_CONVERT_PLANS_COMPARE_SCHEMES_H
#define TSR_CONVERT_PLANS_COMPARE_SCHEMES_H

#include "common/ranks.h"
#include "common/threads.h"
#include "formats/checkpoint/checkpoint.h"
#include "quantize/quant_stats.h"

typedef enum tsr_scheme {
    TSR_SCHEME_FP8_BLOCK,
    TSR_SCHEME_FP8_BLOCK_UE8M0,
    TSR_SCHEME_FP8_BLOCK_MSE,
    TSR_SCHEME_FP8_CHANNEL,
    TSR_SCHEME_INT8_CHANNEL,
    TSR_SCHEME_INT8_WEIGHT_ONLY,
    TSR_SCHEME_INT8_GROUP_128,
    TSR_SCHEME_INT4_GROUP_32,
    TSR_SCHEME_INT4_GROUP_64,
    TSR_SCHEME_INT4_GROUP_128,
    TSR_SCHEME_INT4_GROUP_128_ASYMMETRIC,
    TSR_SCHEME_INT4_CHANNEL,
    TSR_SCHEME_NVFP4,
    TSR_SCHEME_MXFP4,
    TSR_SCHEME_MXFP8,
    TSR_SCHEMES,
} tsr_scheme;

/* "fp8-block", "int4 groups of 128, zero points", ...; and the options of `tessera quantize` that it stands for. */
const char *tsr_scheme_name(tsr_scheme scheme);
const char *tsr_scheme_options(tsr_scheme scheme);

typedef struct tsr_scheme_cost {
    tsr_quant_stats stats; /* without the figures of scales; empty where the scheme does not take the tensor */
    uint64_t bytes; /* codes, scales and zero points; or the tensor's own bytes, where the scheme does not take it */
    bool taken;     /* false: a checkpoint of the scheme keeps it as it is (tsr_ct_takes), or cannot hold it */
} tsr_scheme_cost;

/* What a scheme makes of weights, and of the activations that it multiplies them with. */
typedef enum tsr_scheme_kind { TSR_W8A8, TSR_W8A16, TSR_W4A16 } tsr_scheme_kind;
tsr_scheme_kind tsr_scheme_kind_of(tsr_scheme scheme);

/* Bits: for which kinds of scheme the policy would quantize a tensor. It is stricter for block scales, because members
 * of a fused layer must end on block boundaries, and for small groups, of which a row must be a multiple. */
enum {
    TSR_TAKEN_IN_BLOCKS = 1,
    TSR_TAKEN_IN_FP8_ROWS = 2,
    TSR_TAKEN_AS_INT8 = 4,
    TSR_TAKEN_AS_INT4 = 8,
    TSR_TAKEN_AS_NVFP4 = 16,
    TSR_TAKEN_AS_MXFP4 = 32,
    TSR_TAKEN_AS_MXFP8 = 64,
};

/* Decides as quantize does for each kind of scheme: taken[i] gets the bits of the checkpoint's i-th tensor. The caller's
 * array. */
tsr_status tsr_schemes_decide(const tsr_checkpoint *checkpoint, const char *model_type, uint8_t *taken,
                              tsr_arena *arena, tsr_err *err) TSR_WARN_UNUSED;

/* The bit that says whether the policy would have this scheme quantize a tensor. */
unsigned tsr_scheme_taken_bit(tsr_scheme scheme);

typedef struct tsr_compare_schemes_options {
    tsr_run_options run;
    const uint8_t *taken; /* [n] of the bits above; NULL: every scheme takes every tensor */
    unsigned schemes;     /* bits of tsr_scheme: those to be tried; 0: all. The others take nothing */
    unsigned cpu_flags;
    tsr_ranks *ranks; /* who works with this process; NULL: nobody. Borrowed */
} tsr_compare_schemes_options;

/* costs[i * TSR_SCHEMES + scheme] of tensors[i], matrices [R, C] or stacks [M, R, C] of BF16, F16 or F32. The caller
 * allocates costs[n * TSR_SCHEMES]. In a rank but 0 it compares for rank 0, and no errors are added up. TSR_E_VALUE: NaN or Inf, with coordinates. TSR_E_NOMEM, TSR_E_IO,
 * TSR_E_CANCELLED. */
tsr_status tsr_compare_schemes(const tsr_checkpoint *checkpoint, const tsr_tensor *const *tensors, size_t n,
                               const tsr_compare_schemes_options *options, tsr_scheme_cost *costs,
                               tsr_err *err) TSR_WARN_UNUSED;

#endif
