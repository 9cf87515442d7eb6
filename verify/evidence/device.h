/* Devices that run the kernels under test: a table of functions, so that checks do not depend on the device.
 *
 * Operands and results are in host memory; the functions of a GPU copy them. Every device has the CPU's kernels and
 * models; a GPU also has its own kernels. A test plants faults by making its own table. Thread-safe once open:
 * functions that cannot run concurrently wait for each other. */
#pragma once

#include "common/status.h"
#include "kernels/cpu/causal_attention.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/index_scores.h"
#include "kernels/cpu/mla_attention.h"
#include "kernels/cpu/mx_gemm.h"
#include "kernels/cpu/project.h"
#include "kernels/cpu/weight_only_gemm.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum tsr_out { TSR_OUT_BF16, TSR_OUT_F16, TSR_OUT_F32, TSR_N_OUTS } tsr_out;

/* Returns the name: "bf16", ... Static storage. */
const char *tsr_out_name(tsr_out out);

/* Rounds x[n] to `out` (once, to nearest even) and stores the results as floats. */
void tsr_out_round(tsr_out out, float *x, size_t n);

/* How a product is accumulated, which determines its error bound. */
typedef enum tsr_accumulation {
    TSR_ACCUMULATE_FP32,
    TSR_ACCUMULATE_PROMOTED,   /* a Hopper tensor core, added to FP32 every 128 elements */
    TSR_ACCUMULATE_UNPROMOTED, /* a Hopper tensor core over all of K, compared only with its own bound */
} tsr_accumulation;

typedef struct tsr_device tsr_device;
typedef struct tsr_device_gemm tsr_device_gemm;

/* Replaces parts [ranks][n] by their sum, one copy per rank. Values are floats that `out` can represent, and each of
 * the ranks - 1 additions is rounded to it. *seconds is the time of the additions without copies. */
typedef tsr_status tsr_device_sum_fn(tsr_device *device, size_t ranks, tsr_out out, float *parts, size_t n,
                                     double *seconds, tsr_err *err);
/* Gives each rank its own GPU; `how` receives how they are connected. TSR_E_NOT_APPLICABLE: there are too few, or
 * nothing that connects them; then all ranks stay on one. TSR_E_DEVICE: connecting them failed. */
typedef tsr_status tsr_device_spread_fn(tsr_device *device, size_t ranks, char *how, size_t size, tsr_err *err);

/* Tensor-parallel ranks of a kernel (verify/evidence/device_ranks.h). */
typedef struct tsr_device_ranks {
    tsr_device_sum_fn *sum;
    tsr_device_spread_fn *spread; /* NULL: ranks run in turn, and `sum` adds in their order */
} tsr_device_ranks;

/* Computes d = A * W^T as floats that `out` can represent. `rank` selects the GPU if each rank has one. */
typedef tsr_status tsr_device_gemm_fn(const tsr_device_gemm *kernel, size_t rank, const tsr_fp8_gemm_args *args,
                                      tsr_out out, tsr_err *err);

/* The products of several experts in one call, in a layout of serving code. n, k and the blocks are the same for all.
 * gemm.m is the number of rows of A and D; gemm.w is [groups][n][k], with scales per group. */
typedef struct tsr_grouped_gemm {
    tsr_fp8_gemm_args gemm;
    size_t groups;
    const int32_t *expert_of_row; /* contiguous layout: [m], -1 for padding between experts, which is neither read nor
                                   * written */
    const int32_t
        *rows_of_expert; /* masked layout: [groups], each with m / groups rows, of which this many are used. Else
                          * NULL */
} tsr_grouped_gemm;

typedef tsr_status tsr_device_grouped_fn(const tsr_device_gemm *kernel, size_t rank, const tsr_grouped_gemm *grouped,
                                         tsr_out out, tsr_err *err);

struct tsr_device_gemm {
    const char *name;
    tsr_accumulation accumulation;
    tsr_device_gemm_fn *run;
    tsr_device_grouped_fn *run_grouped; /* runs several experts at once; NULL: `run` is called for each */
    bool rounds_last;                   /* its BF16 and F16 results are its F32 result, rounded, so one run suffices */
    bool row_by_row; /* it computes each row separately and slowly, so rows that are not judged are left out */
    tsr_device_ranks ranks;
    tsr_device *device;
    uintptr_t variant; /* selects the kernel that `run` calls */
};

/* An int8 product with its epilogue. d are floats that `out` can represent. */
typedef struct tsr_device_epilogue tsr_device_epilogue;
typedef tsr_status tsr_device_epilogue_fn(const tsr_device_epilogue *kernel, const tsr_int8_gemm_args *args,
                                          tsr_out out, tsr_err *err);
struct tsr_device_epilogue {
    const char *name;
    tsr_device_epilogue_fn *run;
    tsr_device *device;
    uintptr_t variant;
};

/* Converts words of 4 int8 or 8 int4 codes, biased and with even elements first as in interleaved layouts, to BF16 or
 * F16. Values of word i begin at values[i * 32 / bits], in the order of its elements. */
typedef struct tsr_device_dequant tsr_device_dequant;
typedef tsr_status tsr_device_dequant_fn(const tsr_device_dequant *kernel, int bits, tsr_out out, const uint32_t *words,
                                         size_t n_words, uint16_t *values, tsr_err *err);
struct tsr_device_dequant {
    const char *name;
    tsr_device_dequant_fn *run;
    tsr_device *device;
    uintptr_t variant;
};

/* A weight-only product. d are floats that BF16 or F16 (args->bf16) can represent. */
typedef struct tsr_device_weight_only tsr_device_weight_only;
typedef tsr_status tsr_device_weight_only_fn(const tsr_device_weight_only *kernel, const tsr_weight_only_args *args,
                                             tsr_err *err);
struct tsr_device_weight_only {
    const char *name;
    tsr_device_weight_only_fn *run;
    bool one_by_one; /* products are added in FP32 one by one, separately per token; otherwise in a tensor core's steps
                      * of 16 */
    bool lifts;      /* for int4 and F16, up to 16 tokens, no zero points: A * (code + 8) and A * 8 are summed
                      * separately */
    bool general;    /* accepts groups of any size; otherwise 32, 64 and 128 */
    tsr_device *device;
    uintptr_t variant;
};

/* Converts codes in small groups to BF16 values[rows][k], bit for bit as kernels/cpu/mx_values.h does. */
typedef struct tsr_device_mx_dequant tsr_device_mx_dequant;
typedef tsr_status tsr_device_mx_dequant_fn(const tsr_device_mx_dequant *kernel, const tsr_mx_matrix *matrix,
                                            size_t rows, size_t k, uint16_t *values, tsr_err *err);
struct tsr_device_mx_dequant {
    const char *name;
    tsr_device_mx_dequant_fn *run;
    tsr_device *device;
    uintptr_t variant;
};

/* A product of operands in small groups, summed as in kernels/cpu/mx_gemm.h. d are floats that `out` can represent. */
typedef struct tsr_device_mx_gemm tsr_device_mx_gemm;
typedef tsr_status tsr_device_mx_gemm_fn(const tsr_device_mx_gemm *kernel, const tsr_mx_gemm_args *args, tsr_out out,
                                         tsr_err *err);
struct tsr_device_mx_gemm {
    const char *name;
    tsr_device_mx_gemm_fn *run;
    bool rounds_last; /* its BF16 and F16 results are its F32 result, rounded, so one run suffices */
    tsr_device *device;
    uintptr_t variant;
};

/* Decode attention over a latent cache, and the following projections if heads are divided among ranks. `rank` selects
 * the GPU if each rank has one; otherwise all run on one GPU. *seconds is the time of a run without copies. */
typedef struct tsr_device_mla tsr_device_mla;
typedef tsr_status tsr_device_mla_fn(const tsr_device_mla *kernel, size_t rank, const tsr_mla_attention *args,
                                     double *seconds, tsr_err *err);
typedef tsr_status tsr_device_project_fn(const tsr_device_mla *kernel, size_t rank, const tsr_project_args *args,
                                         tsr_err *err);
struct tsr_device_mla {
    const char *name;
    bool tensor_core;       /* has the error bound of kernels/cuda/mla_decode.h; otherwise that of
                             * kernels/cpu/mla_attention.h */
    bool to_bf16;           /* rounds its result to BF16 */
    bool widens;            /* converts an FP8 cache to BF16 when reading it, exactly, since scales are powers of two */
    tsr_device_mla_fn *run; /* TSR_E_UNSUPPORTED: it does not support this shape */
    tsr_device_project_fn *project;
    tsr_device_ranks ranks;
    tsr_device *device;
    uintptr_t variant;
};

/* Causal attention over expanded keys and values, with an FP32 result. */
typedef struct tsr_device_prefill tsr_device_prefill;
typedef tsr_status tsr_device_prefill_fn(const tsr_device_prefill *kernel, const tsr_causal_attention *args,
                                         double *seconds, tsr_err *err);
struct tsr_device_prefill {
    const char *name;
    bool tensor_core;           /* has the error bound of kernels/cuda/prefill.h */
    tsr_device_prefill_fn *run; /* TSR_E_UNSUPPORTED: it does not support this shape */
    tsr_device *device;
    uintptr_t variant;
};

/* The scores of an indexer over FP8 codes. *seconds is the time of a run without copies. */
typedef struct tsr_device_index tsr_device_index;
typedef tsr_status tsr_device_index_fn(const tsr_device_index *kernel, const tsr_index_scores *args, double *seconds,
                                       tsr_err *err);
struct tsr_device_index {
    const char *name;
    bool tensor_core; /* sums steps of 32 products as fp8_gemm_tensor_core does (kernels/cpu/fp8_gemm.h), from 0 for
                               * each 128 elements; otherwise the bound is that of kernels/cpu/index_scores.h */
    tsr_device_index_fn *run; /* TSR_E_UNSUPPORTED: it does not support this shape */
    tsr_device *device;
    uintptr_t variant;
};

enum { TSR_DEVICE_KERNELS = 8 /* most kernels of a kind */, TSR_MAX_LEFT_OUT = 8 };

/* A kernel that this device does not have, with the reason. */
typedef struct tsr_left_out {
    const char *check; /* the check of the kernel: "gemm", "mla" */
    const char *name;
    char why[160];
} tsr_left_out;

struct tsr_device {
    char name[256];
    tsr_cpu_kernels cpu; /* kernels of the CPU, on every device */
    tsr_device_gemm gemms[TSR_DEVICE_KERNELS];
    tsr_device_epilogue epilogues[TSR_DEVICE_KERNELS];
    tsr_device_dequant dequants[TSR_DEVICE_KERNELS];
    tsr_device_weight_only weight_onlys[TSR_DEVICE_KERNELS];
    tsr_device_mx_dequant mx_dequants[TSR_DEVICE_KERNELS];
    tsr_device_mx_gemm mx_gemms[TSR_DEVICE_KERNELS];
    tsr_device_mla mlas[TSR_DEVICE_KERNELS];
    tsr_device_prefill prefills[TSR_DEVICE_KERNELS];
    tsr_device_index indexes[TSR_DEVICE_KERNELS];
    size_t n_gemms, n_epilogues, n_dequants, n_weight_onlys, n_mx_dequants, n_mx_gemms, n_mlas, n_prefills, n_indexes;
    tsr_left_out left_out[TSR_MAX_LEFT_OUT];
    size_t n_left_out;
    void *state; /* state of the CUDA device, while it is open; NULL on the CPU */
    void (*close)(tsr_device *device);
};

typedef enum tsr_device_kind { TSR_DEVICE_AUTO, TSR_DEVICE_CPU, TSR_DEVICE_CUDA } tsr_device_kind;

/* Opens a device at `device`, which must not move. AUTO selects a suitable GPU if there is one, else the CPU; then
 * `note` (may be NULL) has the reason. TSR_E_DEVICE: CUDA was requested, and there is no suitable GPU. */
tsr_status tsr_device_open(tsr_device *device, tsr_device_kind kind, tsr_err *note, tsr_err *err);

/* Closes a device. A zero-initialized one is allowed. */
void tsr_device_close(tsr_device *device);

/* Adds a kernel to the table and sets its device. TSR_E_UNSUPPORTED: there are TSR_DEVICE_KERNELS of its kind
 * already. */
tsr_status tsr_device_add_gemm(tsr_device *device, const tsr_device_gemm *gemm, tsr_err *err);
tsr_status tsr_device_add_epilogue(tsr_device *device, const tsr_device_epilogue *epilogue, tsr_err *err);
tsr_status tsr_device_add_dequant(tsr_device *device, const tsr_device_dequant *dequant, tsr_err *err);
tsr_status tsr_device_add_weight_only(tsr_device *device, const tsr_device_weight_only *weight_only, tsr_err *err);
tsr_status tsr_device_add_mx_dequant(tsr_device *device, const tsr_device_mx_dequant *mx_dequant, tsr_err *err);
tsr_status tsr_device_add_mx_gemm(tsr_device *device, const tsr_device_mx_gemm *mx_gemm, tsr_err *err);
tsr_status tsr_device_add_mla(tsr_device *device, const tsr_device_mla *mla, tsr_err *err);
tsr_status tsr_device_add_prefill(tsr_device *device, const tsr_device_prefill *prefill, tsr_err *err);
tsr_status tsr_device_add_index(tsr_device *device, const tsr_device_index *index, tsr_err *err);

/* Records that the device lacks a kernel. Notes beyond the buffer are dropped. */
void tsr_device_leave_out(tsr_device *device, const char *check, const char *name, const char *why);

/* Runs the grouped kernel if there is one, else the dense kernel for the rows of each expert. */
tsr_status tsr_device_run_grouped(const tsr_device_gemm *kernel, size_t rank, const tsr_grouped_gemm *grouped,
                                  tsr_out out, tsr_err *err);

/* Adds the GPU's kernels to a table that has the CPU's, and sets its name. Only if Tessera was built with CUDA. */
tsr_status tsr_device_add_cuda(tsr_device *device, tsr_err *err);
