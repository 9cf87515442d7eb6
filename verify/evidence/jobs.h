/* Shared by all kernel checks: the selection of tensors and inputs, the limits, and the threads that run the jobs. */
#ifndef TSR_VERIFY_EVIDENCE_JOBS_H
#define TSR_VERIFY_EVIDENCE_JOBS_H

#include "common/parallel/threads.h"
#include "verify/compare/compare.h"
#include "verify/evidence/device.h"
#include "verify/evidence/evidence.h"

typedef struct tsr_kernel_limits {
    double max_kernel_error; /* the largest error of an element over its bound */
    double max_kernel_rms;   /* the RMS error over the expected one; of results in 16 bits TSR_RMS_OF_NARROW of it */
    double max_kernel_bias;  /* the mean error, with its sign, in standard errors */
    double min_sqnr;         /* dB, quantization error; NaN: the check's own default */
} tsr_kernel_limits;

/* Rounding to 16 bits is known better than what accumulates: results that are truncated are at 1.8 to 2. */
#define TSR_RMS_OF_NARROW 0.75

/* 1: the bound is what the accumulation can do at worst. 2: independent errors add up to the expected RMS within a few
 * per cent; twice that is another kind of error. 6 standard errors: one false alarm in 5e8 judgements. */
tsr_kernel_limits tsr_kernel_limits_defaults(void);

/* The options of verify mla alone. */
typedef struct tsr_mla_request {
    uint64_t layer, batch, context, new_tokens, ranks; /* all but `layer` at least 1 */
    bool fp8_cache;
    const tsr_checkpoint *stages; /* another implementation's; NULL: none */
} tsr_mla_request;

typedef struct tsr_kernel_options {
    tsr_side side;                     /* whose tensors */
    const tsr_side *against;           /* the originals; NULL: unknown, only activations can be compared with theirs */
    const tsr_checkpoint *activations; /* NULL: drawn */
    const tsr_checkpoint *azp;         /* tessera-azp.safetensors, NULL: none; for tsr_check_epilogue */
    tsr_device *device;
    const char *const *globs; /* tensors: those whose name matches one; all when there is none */
    size_t n_globs;
    uint64_t sample; /* so many of them, chosen by the seed; 0: all */
    uint64_t seed;
    uint64_t tokens;     /* M */
    uint64_t columns;    /* output channels of a tensor that are computed and judged, in whole blocks; 0: all */
    uint64_t experts;    /* of a set of experts, chosen by the seed */
    uint64_t group_rows; /* tokens that share a scale: 1, or CUTLASS's M-granular and blockwise scalings */
    tsr_run_options run; /* without memory and progress */
    tsr_kernel_limits limits;
    tsr_mla_request mla;
} tsr_kernel_options;

/* Returns true if a name is selected by the options. */
bool tsr_is_selected(const tsr_kernel_options *options, const char *name);

/* Which weights a check takes. */
typedef struct tsr_subjects {
    /* Returns NULL for a weight that can be checked, "" for one that is none of the check's business, and otherwise the
     * reason why it cannot be checked. */
    const char *(*unfit)(const tsr_weight *weight);
    bool need_inputs; /* weights without inputs in the file of activations are skipped */
    const char *kind; /* "tensor of int8 with a scale a row": for the message that there is none */
} tsr_subjects;

/* Returns true if its kind has a scale for each 16 or 32 columns: MXFP4, NVFP4, MXFP8. */
bool tsr_has_small_groups(const tsr_weight *weight);

/* Why no kernel of integers or of FP8 in blocks that is checked here takes a weight of this kind; NULL: some check has kernels for it. */
const char *tsr_without_kernels(const tsr_weight *weight);

/* (*indices)[0 .. *n) are the weights of options->side that are asked for and fit, as indices; from malloc, also on
 * failure. Those that do not fit are listed in `evidence` as skipped, with the reason. TSR_E_NOT_APPLICABLE: none fits;
 * TSR_E_UNSUPPORTED: there is a file of activations, and none fits it. */
tsr_status tsr_find_subjects(const tsr_kernel_options *options, const tsr_subjects *subjects, size_t **indices,
                             size_t *n, tsr_evidence *evidence, tsr_err *err) TSR_WARN_UNUSED;

/* Finds jobs, but keeps only options->sample of them: one for each job of the check. */
tsr_status tsr_find_jobs(const tsr_kernel_options *options, const tsr_subjects *subjects, size_t **indices, size_t *n,
                         tsr_evidence *evidence, tsr_err *err) TSR_WARN_UNUSED;

/* Checks that there are subjects, regardless of the inputs given. TSR_E_NOT_APPLICABLE: there are none, with the reason.
 * TSR_E_MISMATCH: options->against lacks the original of one. */
tsr_status tsr_subjects_exist(const tsr_kernel_options *options, const tsr_subjects *subjects,
                              tsr_err *err) TSR_WARN_UNUSED;

/* Keeps options->sample of the n indices in `items`, in order; returns how many are left. */
size_t tsr_sample(const tsr_kernel_options *options, size_t *items, size_t n);

/* One job: adds to `evidence`. `at` is its number. */
typedef tsr_status tsr_job_fn(void *context, size_t at, tsr_evidence *evidence, tsr_err *err);

/* Runs n jobs on options->run.threads threads; evidence is joined in their order. The first failure stops all.
 * TSR_E_CANCELLED: stopped by *cancel. */
tsr_status tsr_run_jobs(const tsr_kernel_options *options, size_t n, tsr_job_fn *job, void *context,
                        tsr_evidence *evidence, tsr_err *err) TSR_WARN_UNUSED;

/* A whole check with a job for each of its tensors: tsr_find_jobs, which leaves the tensors in *indices while the jobs
 * run, tsr_run_jobs, and the demand that something was judged (tsr_jobs_require). */
tsr_status tsr_run_check(const tsr_kernel_options *options, const tsr_subjects *subjects, size_t **indices,
                         tsr_job_fn *job, void *context, tsr_evidence *evidence, tsr_err *err) TSR_WARN_UNUSED;

/* The demand that a kernel was judged, or a fault found: a check that compared nothing must not pass. TSR_E_NOT_APPLICABLE:
 * no kernel takes a single one of the weights; TSR_E_UNSUPPORTED: something else was in the way. */
tsr_status tsr_jobs_require(const tsr_kernel_options *options, const tsr_evidence *evidence,
                            tsr_err *err) TSR_WARN_UNUSED;

/* Loads a piece of a weight, and notes seconds and bytes; `view` has to live as long as the reader is used. */
tsr_status tsr_load_piece(tsr_weight_reader *reader, const tsr_side *side, const tsr_weight *weight,
                          const tsr_piece *piece, tsr_view *view, tsr_evidence *evidence, tsr_err *err) TSR_WARN_UNUSED;

/* The weight of the same name and shape among the originals. TSR_E_MISMATCH: none. */
tsr_status tsr_find_original(const tsr_side *against, const tsr_weight *weight, const tsr_weight **original,
                             tsr_err *err) TSR_WARN_UNUSED;

/* Books the seconds from *since until now on a phase; *since becomes now. */
void tsr_lap(tsr_evidence *evidence, tsr_phase phase, double *since);

/* The output channels that are judged: `chosen` whole blocks of `block` rows, one from each of as many equal stretches
 * of `rows`, where the seed decides its place. */
typedef struct tsr_columns {
    uint64_t rows, block, blocks, chosen, seed;
} tsr_columns;
tsr_columns tsr_choose_columns(const tsr_kernel_options *options, uint64_t rows, uint64_t block, uint64_t seed);
uint64_t tsr_column_block(const tsr_columns *columns, uint64_t i); /* number of the i-th block, i < chosen */
uint64_t tsr_columns_count(const tsr_columns *columns);            /* channels in all */
uint64_t tsr_column_of(const tsr_columns *columns, uint64_t j);    /* the channel that is column j of those computed */

/* 3 dB: how far the RMS error of quantization may be above the one of rounding to the scales, step^2 / 12 a code. */
#define TSR_MAX_OF_ROUNDING 1.414

enum { TSR_MAX_FAULT = 128 };

/* Compares the quantization error with `limit` dB or, where that is NaN, judgement->of_expected with
 * TSR_MAX_OF_ROUNDING. A fault, if there is one, is written to `text`. */
void tsr_limit_rounding(tsr_judgement *judgement, double limit, char text[TSR_MAX_FAULT]);

/* Judges y against x, [m][n] both: figures, and the place of the largest error. `rows` and
 * `columns` say which tokens and channels these are (NULL: all of them). */
void tsr_judge(tsr_judgement *judgement, const double *x, const double *y, size_t m, size_t n, const tsr_columns *rows,
               const tsr_columns *columns);

#endif
