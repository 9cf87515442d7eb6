/* Runs block FP8 kernels over one job in the layouts of serving code and divided among ranks, and judges them. */
#pragma once

#include "verify/kernels/gemm_operands.h"

/* Arrangement of the activations' rows. */
typedef enum tsr_gemm_layout {
    TSR_GEMM_ROWS,       /* one weight: consecutive rows */
    TSR_GEMM_CONTIGUOUS, /* experts, each at a multiple of 128 rows */
    TSR_GEMM_MASKED,     /* experts, each with space for the rows of the largest */
} tsr_gemm_layout;

/* Operands in a layout, and the position of each row. Zero-initialized: empty. */
typedef struct tsr_gemm_laid_out {
    tsr_grouped_gemm grouped;
    size_t *place; /* [m]: row in grouped.gemm of each row of tsr_gemm_operands */
    uint8_t *a;
    float *scale_a, *d, *results; /* d [grouped.gemm.m][n]; results [judged][n] */
    int32_t *per_row, *per_expert;
} tsr_gemm_laid_out;

/* Arranges all rows, or only the judged ones. tsr_gemm_laid_out_free frees the memory, also after a failure. */
tsr_status tsr_gemm_lay_out(const tsr_gemm_operands *operands, tsr_gemm_layout layout, bool all, tsr_gemm_laid_out *to,
                            tsr_err *err);
void tsr_gemm_laid_out_free(tsr_gemm_laid_out *laid_out);

/* Runs a kernel over the operands; `rank` selects its GPU. *ran is false if the kernel does not support them, which is
 * listed in the evidence as skipped. */
tsr_status tsr_gemm_run_once(tsr_gemm_operands *operands, const tsr_device_gemm *kernel, size_t rank, tsr_out out,
                             tsr_gemm_laid_out *laid_out, bool *ran, tsr_err *err);

/* Gathers the results of the judged rows. Returns a description of a fault in the padding rows, or NULL. */
const char *tsr_gemm_gather(const tsr_gemm_operands *operands, const tsr_gemm_laid_out *laid_out);

/* A result of a kernel, or the sum of the results of ranks. */
typedef struct tsr_gemm_result {
    const char *name, *fault; /* fault: NULL, or one that was found already */
    tsr_accumulation accumulation;
    tsr_out out;
    const float *d;         /* [judged][n] */
    const tsr_exact *exact; /* [ranks][judged][n] */
    size_t ranks, k;        /* k: of each rank */
    double seconds;         /* 0: not measured */
} tsr_gemm_result;

/* Adds a judgement of a result. */
tsr_status tsr_gemm_judge(tsr_gemm_operands *operands, const tsr_gemm_result *result, tsr_err *err);

/* Returns the words for a layout in names of results: "", ", contiguous" or ", masked". */
const char *tsr_gemm_layout_words(tsr_gemm_layout layout);

/* Runs every kernel of the device in this layout, and adds a judgement for each result type. */
tsr_status tsr_gemm_run_layout(tsr_gemm_operands *operands, tsr_gemm_layout layout, tsr_err *err);

/* ---- tensor-parallel ranks (gemm_ranks.c) ----
 *
 * As in vLLM's RowParallelLinear, each rank multiplies K / ranks input features, in whole blocks of scales, and rounds
 * its result to the type of the output. The all-reduce adds in that type. */

/* Checks that options->ranks can divide the row-parallel weights among the entries, and connects the GPUs of the ranks
 * (check->how). Row-parallel are block FP8 weights that loaders divide along K. The others are multiplied without ranks
 * only. TSR_E_USAGE: a weight cannot be divided. TSR_E_NOT_APPLICABLE: no weight is row-parallel. */
tsr_status tsr_gemm_ranks_begin(tsr_gemm_check *check, tsr_evidence *evidence, tsr_err *err);

/* Runs every kernel on each rank's part of the operands, adds the results, and judges the sum in each result type.
 * Sets of experts have the contiguous layout. */
tsr_status tsr_gemm_check_ranks(tsr_gemm_operands *operands, tsr_err *err);
