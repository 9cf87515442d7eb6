/* Shared by all kernel checks: the selection of tensors and inputs, the limits, and the threads that run the jobs. */
#pragma once

#include "common/parallel/threads.h"
#include "verify/compare/compare.h"
#include "verify/evidence/device.h"
#include "verify/evidence/evidence.h"

typedef struct tsr_kernel_limits {
    double max_kernel_error; /* limit for the largest error of an element divided by its bound */
    double max_kernel_rms;   /* limit for the RMS error divided by the expected one; 16-bit results: TSR_RMS_OF_NARROW
                              * of it */
    double max_kernel_bias;  /* limit for the mean signed error, in standard errors */
    double min_sqnr;         /* dB, quantization error; NaN: the check's own default */
} tsr_kernel_limits;

/* The error of rounding to 16 bits is known more exactly than that of accumulation: truncated results have a ratio of
 * 1.8 to 2. */
#define TSR_RMS_OF_NARROW 0.75

/* Returns the default limits. 1: the bound is the worst case of the accumulation. 2: independent errors have the
 * expected RMS within a few per cent, so twice that is another kind of error. 6 standard errors: one false alarm in 5e8
 * judgements. */
tsr_kernel_limits tsr_kernel_limits_defaults(void);

/* The options of verify mla only. */
typedef struct tsr_mla_request {
    uint64_t layer, batch, context, new_tokens; /* all except `layer` are at least 1 */
    bool fp8_cache;                             /* check the FP8 latent cache, too */
    bool sparse;                                /* check the layer's indexer and sparse attention, too */
    bool sparse_if_indexed;                     /* do so if the layer has an indexer of a known family */
    uint64_t top_k;                             /* tokens that a query attends to; 0: index_topk, or half of the longest
                                   * context if index_topk would leave none out */
    const tsr_checkpoint *stages;               /* stages of another implementation; NULL: none */
} tsr_mla_request;

typedef struct tsr_kernel_options {
    tsr_side side;                     /* whose tensors */
    const tsr_side *against;           /* the originals; NULL: unknown, so only activations can be compared with
                                        * theirs */
    const tsr_checkpoint *activations; /* NULL: drawn */
    const tsr_checkpoint *azp;         /* tessera-azp.safetensors, for tsr_check_epilogue; NULL: none */
    tsr_device *device;
    const char *const *globs; /* globs of the names to check; none: all */
    size_t n_globs;
    uint64_t sample; /* number of tensors chosen by the seed; 0: all */
    uint64_t seed;
    uint64_t tokens;     /* M */
    uint64_t columns;    /* output channels of a tensor that are computed and judged, in whole blocks; 0: all */
    uint64_t experts;    /* experts of a set, chosen by the seed */
    uint64_t group_rows; /* tokens that share a scale: 1, or the scale granularity M of CUTLASS's blockwise scaling */
    uint64_t ranks;      /* tensor-parallel ranks of gemm and mla, at least 1 */
    bool gpu_per_rank;   /* fail if a rank has to share a GPU */
    tsr_run_options run; /* memory and progress are not used */
    tsr_kernel_limits limits;
    tsr_mla_request mla;
} tsr_kernel_options;

/* A check of kernels. `outs` has bit 1 << tsr_out for each result type. Findings are added to *evidence, which may be
 * empty. TSR_E_NOT_APPLICABLE: no weight that is selected is of the check's kinds. TSR_E_MISMATCH: `against` lacks a
 * tensor. */
typedef tsr_status tsr_kernel_check_fn(const tsr_kernel_options *options, unsigned outs, tsr_evidence *evidence,
                                       tsr_err *err);

/* Checks that the model has weights for a check. Same statuses as tsr_subjects_exist. */
typedef tsr_status tsr_kernel_applies_fn(const tsr_kernel_options *options, tsr_err *err);

/* The weights that a check accepts. */
typedef struct tsr_subjects {
    /* Returns NULL for a weight that can be checked, "" for one that the check ignores, and otherwise the reason why it
     * cannot be checked. */
    const char *(*unfit)(const tsr_weight *weight);
    bool need_inputs; /* skip weights without inputs in the file of activations */
    const char *kind; /* description for the message that there is none: "tensor of int8 with a scale a row" */
} tsr_subjects;

/* Returns true if the kind has a scale per 16 or 32 columns: MXFP4, NVFP4, MXFP8. */
bool tsr_has_small_groups(const tsr_weight *weight);

/* Returns the reason why no checked kernel of integers or block FP8 accepts a weight of this kind; NULL: some check has
 * kernels for it. */
const char *tsr_without_kernels(const tsr_weight *weight);

/* Finds the weights of options->side that are selected and accepted: indices (*indices)[0 .. *n), from malloc, also on
 * failure. Weights that are not accepted are listed in `evidence` as skipped, with the reason. TSR_E_NOT_APPLICABLE:
 * none is accepted. TSR_E_UNSUPPORTED: none has inputs in the file of activations. */
tsr_status tsr_find_subjects(const tsr_kernel_options *options, const tsr_subjects *subjects, size_t **indices,
                             size_t *n, tsr_evidence *evidence, tsr_err *err);

/* Checks that there are subjects, regardless of the inputs given. TSR_E_NOT_APPLICABLE: there are none, with the
 * reason. TSR_E_MISMATCH: options->against lacks the original of one. */
tsr_status tsr_subjects_exist(const tsr_kernel_options *options, const tsr_subjects *subjects, tsr_err *err);

/* Keeps options->sample of the n indices in `items`, in order. Returns their number. */
size_t tsr_sample(const tsr_kernel_options *options, size_t *items, size_t n);

/* Runs job number `at` and adds to `evidence`. */
typedef tsr_status tsr_job_fn(void *context, size_t at, tsr_evidence *evidence, tsr_err *err);

/* Runs n jobs on options->run.threads threads. Evidence is joined in their order. The first failure stops all.
 * TSR_E_CANCELLED: stopped by *cancel. */
tsr_status tsr_run_jobs(const tsr_kernel_options *options, size_t n, tsr_job_fn *job, void *context,
                        tsr_evidence *evidence, tsr_err *err);

/* Runs a whole check with a job for each of options->sample tensors of tsr_find_subjects, which are in *indices while
 * the jobs run: tsr_run_jobs, then tsr_jobs_require. */
tsr_status tsr_run_check(const tsr_kernel_options *options, const tsr_subjects *subjects, size_t **indices,
                         tsr_job_fn *job, void *context, tsr_evidence *evidence, tsr_err *err);

/* Fails unless a kernel was judged or a fault was found, because a check that compared nothing must not pass.
 * TSR_E_NOT_APPLICABLE: no kernel accepts any of the weights. TSR_E_UNSUPPORTED: another reason. */
tsr_status tsr_jobs_require(const tsr_kernel_options *options, const tsr_evidence *evidence, tsr_err *err);

/* Loads a piece of a weight, and adds time and bytes to the evidence. `view` must live as long as the reader is
 * used. */
tsr_status tsr_load_piece(tsr_weight_reader *reader, const tsr_side *side, const tsr_weight *weight,
                          const tsr_piece *piece, tsr_view *view, tsr_evidence *evidence, tsr_err *err);

/* Finds the weight with the same name and shape among the originals. TSR_E_MISMATCH: none. */
tsr_status tsr_find_original(const tsr_side *against, const tsr_weight *weight, const tsr_weight **original,
                             tsr_err *err);

/* Adds the seconds since *since to a phase, and sets *since to now. */
void tsr_lap(tsr_evidence *evidence, tsr_phase phase, double *since);

/* The output channels that are judged: `chosen` whole blocks of `block` rows, one from each of as many equal ranges of
 * `rows`. The seed determines its position in the range. */
typedef struct tsr_columns {
    uint64_t rows, block, blocks, chosen, seed;
} tsr_columns;
tsr_columns tsr_choose_columns(const tsr_kernel_options *options, uint64_t rows, uint64_t block, uint64_t seed);
/* Returns the number of the i-th block, i < chosen. */
uint64_t tsr_column_block(const tsr_columns *columns, uint64_t i);
uint64_t tsr_columns_count(const tsr_columns *columns); /* channels in all */
/* Returns the channel that is column j of the computed ones. */
uint64_t tsr_column_of(const tsr_columns *columns, uint64_t j);

/* 3 dB: how far the RMS quantization error may exceed that of rounding to the scales, step^2 / 12 per code. */
#define TSR_MAX_OF_ROUNDING 1.414

enum { TSR_MAX_FAULT = 128 };

/* Compares the quantization error with `limit` dB or, if that is NaN, judgement->of_expected with TSR_MAX_OF_ROUNDING.
 * Writes a fault, if there is one, to `text`. */
void tsr_limit_rounding(tsr_judgement *judgement, double limit, char text[TSR_MAX_FAULT]);

/* Judges y against x, both [m][n]: metrics, and the position of the largest error. `rows` and `columns` map them to
 * tokens and channels (NULL: identity). */
void tsr_judge(tsr_judgement *judgement, const double *x, const double *y, size_t m, size_t n, const tsr_columns *rows,
               const tsr_columns *columns);

/* Adds the metrics of y against x, both [m][n], on several threads, with the bits of one thread. If `base` is not
 * NULL, those of y - base against x - base. */
tsr_status tsr_measure(tsr_metrics *metrics, const double *x, const double *y, const double *base, size_t m, size_t n,
                       const tsr_run_options *run, tsr_err *err);
