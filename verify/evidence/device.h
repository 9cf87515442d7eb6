/* Where the kernels under test run: a table of functions, so that checks need not know the device.
 *
 * Operands and results lie in the host's memory; the functions of a GPU copy them. Every device has the CPU's kernels
 * and models; a GPU has its own kernels besides. A test plants faults by making a table of its own. Thread-safe once
 * open: functions that cannot run side by side take turns. */
#ifndef TSR_VERIFY_EVIDENCE_DEVICE_H
#define TSR_VERIFY_EVIDENCE_DEVICE_H

#include "common/status.h"
#include "kernels/cpu/causal_attention.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/mla_attention.h"
#include "kernels/cpu/mx_gemm.h"
#include "kernels/cpu/project.h"
#include "kernels/cpu/weight_only_gemm.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum tsr_out { TSR_OUT_BF16, TSR_OUT_F16, TSR_OUT_F32, TSR_N_OUTS } tsr_out;

/* "bf16", ... Static storage. */
const char *tsr_out_name(tsr_out out);

/* x[n] rounded to `out` (once, to nearest even), as floats. */
void tsr_out_round(tsr_out out, float *x, size_t n);

/* The accumulation of a product, which decides the bound of its results. */
typedef enum tsr_accumulation {
    TSR_ACCUMULATE_FP32,
    TSR_ACCUMULATE_PROMOTED,   /* a Hopper tensor core, added to FP32 every 128 elements */
    TSR_ACCUMULATE_UNPROMOTED, /* a Hopper tensor core over all of K, compared with its own bound only */
} tsr_accumulation;

typedef struct tsr_device tsr_device;
typedef struct tsr_device_gemm tsr_device_gemm;

/* d = A * W^T as floats that `out` can hold. */
typedef tsr_status tsr_device_gemm_fn(const tsr_device_gemm *kernel, const tsr_fp8_gemm_args *args, tsr_out out,
                                      tsr_err *err);

/* The products of several experts in one call, over what serving code lays out; n, k and the blocks are the same for
 * all of them. gemm.m rows of A and D; gemm.w [groups][n][k], with scales per group. */
typedef struct tsr_grouped_gemm {
    tsr_fp8_gemm_args gemm;
    size_t groups;
    const int32_t *expert_of_row; /* contiguous: [m], -1: padding between experts, neither read nor written */
    const int32_t
        *rows_of_expert; /* masked: [groups], of m / groups rows each; those beyond are not touched. Else NULL */
} tsr_grouped_gemm;

typedef tsr_status tsr_device_grouped_fn(const tsr_device_gemm *kernel, const tsr_grouped_gemm *grouped, tsr_out out,
                                         tsr_err *err);

struct tsr_device_gemm {
    const char *name;
    tsr_accumulation accumulation;
    tsr_device_gemm_fn *run;
    tsr_device_grouped_fn *run_grouped; /* of several experts at once; NULL: `run` does one after another */
    bool rounds_last;                   /* its BF16 and F16 results are its F32 result, rounded: one run is enough */
    bool row_by_row; /* it computes each row by itself, and slowly: rows that are not judged are left out */
    tsr_device *device;
    uintptr_t variant; /* which of the device's kernels `run` calls */
};

/* An int8 product with its epilogue; d as floats that `out` can hold. */
typedef struct tsr_device_epilogue tsr_device_epilogue;
typedef tsr_status tsr_device_epilogue_fn(const tsr_device_epilogue *kernel, const tsr_int8_gemm_args *args,
                                          tsr_out out, tsr_err *err);
struct tsr_device_epilogue {
    const char *name;
    tsr_device_epilogue_fn *run;
    tsr_device *device;
    uintptr_t variant;
};

/* Words of 4 int8 or 8 int4 codes, biased and even elements first, as the interleaved layouts have them, to values
 * of BF16 or F16: those of word i begin at values[i * 32 / bits], in the order of its elements. */
typedef struct tsr_device_dequant tsr_device_dequant;
typedef tsr_status tsr_device_dequant_fn(const tsr_device_dequant *kernel, int bits, tsr_out out, const uint32_t *words,
                                         size_t n_words, uint16_t *values, tsr_err *err);
struct tsr_device_dequant {
    const char *name;
    tsr_device_dequant_fn *run;
    tsr_device *device;
    uintptr_t variant;
};

/* A weight-only product; d as floats that BF16 or F16 can hold: args->bf16 says which. */
typedef struct tsr_device_weight_only tsr_device_weight_only;
typedef tsr_status tsr_device_weight_only_fn(const tsr_device_weight_only *kernel, const tsr_weight_only_args *args,
                                             tsr_err *err);
struct tsr_device_weight_only {
    const char *name;
    tsr_device_weight_only_fn *run;
    bool one_by_one; /* products are added in FP32 one by one, each token by itself; else a tensor core's steps of 16 */
    bool lifts;      /* of int4 and F16, up to 16 tokens, no zero points: it adds A * (code + 8) and A * 8 apart */
    bool general;    /* it takes groups of any size; else those of 32, 64 and 128 */
    tsr_device *device;
    uintptr_t variant;
};

/* Values of codes in small groups: values[rows][k] of BF16, bit by bit those of kernels/cpu/mx_values.h. */
typedef struct tsr_device_mx_dequant tsr_device_mx_dequant;
typedef tsr_status tsr_device_mx_dequant_fn(const tsr_device_mx_dequant *kernel, const tsr_mx_matrix *matrix,
                                            size_t rows, size_t k, uint16_t *values, tsr_err *err);
struct tsr_device_mx_dequant {
    const char *name;
    tsr_device_mx_dequant_fn *run;
    tsr_device *device;
    uintptr_t variant;
};

/* A product of operands in small groups, as kernels/cpu/mx_gemm.h adds it up; d as floats that `out` can hold. */
typedef struct tsr_device_mx_gemm tsr_device_mx_gemm;
typedef tsr_status tsr_device_mx_gemm_fn(const tsr_device_mx_gemm *kernel, const tsr_mx_gemm_args *args, tsr_out out,
                                         tsr_err *err);
struct tsr_device_mx_gemm {
    const char *name;
    tsr_device_mx_gemm_fn *run;
    bool rounds_last; /* its BF16 and F16 results are its F32 result, rounded: one run is enough */
    tsr_device *device;
    uintptr_t variant;
};

/* Decoding attention over a latent cache, and the projections after it if heads are cut over ranks. `rank` selects the
 * GPU if ranks have their own; before that all are on one. *seconds is the time of a run without copies. */
typedef struct tsr_device_mla tsr_device_mla;
typedef tsr_status tsr_device_mla_fn(const tsr_device_mla *kernel, size_t rank, const tsr_mla_attention *args,
                                     double *seconds, tsr_err *err);
typedef tsr_status tsr_device_project_fn(const tsr_device_mla *kernel, size_t rank, const tsr_project_args *args,
                                         tsr_err *err);
/* parts [ranks][n] become their sum, each rank's its own copy of it; ranks - 1 roundings in any order. */
typedef tsr_status tsr_device_sum_fn(const tsr_device_mla *kernel, size_t ranks, float *parts, size_t n,
                                     double *seconds, tsr_err *err);
/* Gives each rank a GPU of its own; `how` says how they are joined. TSR_E_DEVICE: there are not as many, or nothing
 * that joins them; then they stay on one. */
typedef tsr_status tsr_device_spread_fn(const tsr_device_mla *kernel, size_t ranks, char *how, size_t size,
                                        tsr_err *err);
struct tsr_device_mla {
    const char *name;
    bool tensor_core; /* has the bound of kernels/cuda/mla_decode.h; else that of kernels/cpu/mla_attention.h */
    bool to_bf16;     /* rounds its result to BF16 */
    bool widens;      /* makes BF16 of an FP8 cache on the way in; the values stay, since scales are powers of two */
    tsr_device_mla_fn *run; /* TSR_E_UNSUPPORTED: it does not take this shape */
    tsr_device_project_fn *project;
    tsr_device_sum_fn *sum;
    tsr_device_spread_fn *spread; /* NULL: there is nothing to spread over */
    tsr_device *device;
    uintptr_t variant;
};

/* Causal attention over expanded keys and values, its result in FP32. */
typedef struct tsr_device_prefill tsr_device_prefill;
typedef tsr_status tsr_device_prefill_fn(const tsr_device_prefill *kernel, const tsr_causal_attention *args,
                                         double *seconds, tsr_err *err);
struct tsr_device_prefill {
    const char *name;
    bool tensor_core;           /* has the bound of kernels/cuda/mla_prefill.h */
    tsr_device_prefill_fn *run; /* TSR_E_UNSUPPORTED: it does not take this shape */
    tsr_device *device;
    uintptr_t variant;
};

enum { TSR_DEVICE_KERNELS = 8 /* of a kind */, TSR_MAX_LEFT_OUT = 8 };

/* A kernel that this device has not, and why. */
typedef struct tsr_left_out {
    const char *check; /* "gemm", "mla": the check of the kernel */
    const char *name;
    char why[160];
} tsr_left_out;

struct tsr_device {
    char name[256];
    tsr_cpu_kernels cpu; /* of every device */
    tsr_device_gemm gemms[TSR_DEVICE_KERNELS];
    tsr_device_epilogue epilogues[TSR_DEVICE_KERNELS];
    tsr_device_dequant dequants[TSR_DEVICE_KERNELS];
    tsr_device_weight_only weight_onlys[TSR_DEVICE_KERNELS];
    tsr_device_mx_dequant mx_dequants[TSR_DEVICE_KERNELS];
    tsr_device_mx_gemm mx_gemms[TSR_DEVICE_KERNELS];
    tsr_device_mla mlas[TSR_DEVICE_KERNELS];
    tsr_device_prefill prefills[TSR_DEVICE_KERNELS];
    size_t n_gemms, n_epilogues, n_dequants, n_weight_onlys, n_mx_dequants, n_mx_gemms, n_mlas, n_prefills;
    tsr_left_out left_out[TSR_MAX_LEFT_OUT];
    size_t n_left_out;
    void *state; /* of the CUDA device, from its opening to `close`; NULL on the CPU */
    void (*close)(tsr_device *device);
};

typedef enum tsr_device_kind { TSR_DEVICE_AUTO, TSR_DEVICE_CPU, TSR_DEVICE_CUDA } tsr_device_kind;

/* Opens a device at `device`, which must stay there. AUTO takes the GPU where there is one that fits, else the CPU:
 * then `note` (may be NULL) says why. TSR_E_DEVICE: CUDA was asked for, and there is none, or none that fits. */
tsr_status tsr_device_open(tsr_device *device, tsr_device_kind kind, tsr_err *note, tsr_err *err) TSR_WARN_UNUSED;

/* A zero-initialised one is fine. */
void tsr_device_close(tsr_device *device);

/* Adds a kernel to the table; its device becomes this one. TSR_E_UNSUPPORTED: there are TSR_DEVICE_KERNELS of its kind.
 */
tsr_status tsr_device_add_gemm(tsr_device *device, const tsr_device_gemm *gemm, tsr_err *err) TSR_WARN_UNUSED;
tsr_status tsr_device_add_epilogue(tsr_device *device, const tsr_device_epilogue *epilogue,
                                   tsr_err *err) TSR_WARN_UNUSED;
tsr_status tsr_device_add_dequant(tsr_device *device, const tsr_device_dequant *dequant, tsr_err *err) TSR_WARN_UNUSED;
tsr_status tsr_device_add_weight_only(tsr_device *device, const tsr_device_weight_only *weight_only,
                                      tsr_err *err) TSR_WARN_UNUSED;
tsr_status tsr_device_add_mx_dequant(tsr_device *device, const tsr_device_mx_dequant *mx_dequant,
                                     tsr_err *err) TSR_WARN_UNUSED;
tsr_status tsr_device_add_mx_gemm(tsr_device *device, const tsr_device_mx_gemm *mx_gemm, tsr_err *err) TSR_WARN_UNUSED;
tsr_status tsr_device_add_mla(tsr_device *device, const tsr_device_mla *mla, tsr_err *err) TSR_WARN_UNUSED;
tsr_status tsr_device_add_prefill(tsr_device *device, const tsr_device_prefill *prefill, tsr_err *err) TSR_WARN_UNUSED;

/* Notes that the device lacks a kernel; notes beyond the buffer are dropped. */
void tsr_device_leave_out(tsr_device *device, const char *check, const char *name, const char *why);

/* Runs the kernel for all experts if there is one; else the dense kernel over runs of rows of one expert. */
tsr_status tsr_device_run_grouped(const tsr_device_gemm *kernel, const tsr_grouped_gemm *grouped, tsr_out out,
                                  tsr_err *err) TSR_WARN_UNUSED;

/* Adds the GPU's kernels to a table that has the CPU's, and names it. Only where Tessera was built with CUDA. */
tsr_status tsr_device_add_cuda(tsr_device *device, tsr_err *err) TSR_WARN_UNUSED;

#endif
