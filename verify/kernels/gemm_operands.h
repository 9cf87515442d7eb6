/* Operands of one job of tsr_check_gemm: a weight, or a set of experts of one shape, with their tokens. */
#pragma once

#include "verify/evidence/device_ranks.h"
#include "verify/evidence/jobs.h"
#include "verify/kernels/gemm_oracle.h"

/* One matrix of the checkpoint, under the name of the job that it belongs to. */
typedef struct tsr_gemm_entry {
    const char *key; /* name of the tensor, with '*' for the number of an expert */
    const tsr_weight *weight;
    uint64_t matrix;
} tsr_gemm_entry;

typedef struct tsr_gemm_check {
    const tsr_kernel_options *options;
    unsigned outs;
    tsr_gemm_entry *entries;
    size_t n_entries;
    size_t *jobs; /* index of the first entry of each */
    size_t n_jobs;
    char how[TSR_RANKS_HOW]; /* how the GPUs of ranks are connected (gemm_ranks.c) */
    tsr_arena arena;
} tsr_gemm_check;

/* The operands of one job. Rows are the tokens of all experts, one expert after another. */
typedef struct tsr_gemm_operands {
    const tsr_gemm_check *c;
    tsr_evidence *evidence;
    tsr_arena arena;
    tsr_weight_reader readers[2]; /* one for the checkpoint, one for the originals */
    const char *name;
    const tsr_gemm_entry *experts;
    size_t n_experts;
    size_t *first;             /* [n_experts + 1]: an expert's first row */
    size_t *first_judged;      /* [n_experts + 1]: the first judged row of each expert */
    tsr_columns columns, rows; /* the judged ones */
    size_t m, judged, n, k, padded, grid_n, grid_k, block_n, block_k;
    uint16_t *x;
    uint8_t *a, *w;           /* [m][k], [n_experts][n][k] */
    float *scale_a, *scale_w; /* [grid_k][m], [n_experts][grid_n][grid_k] */
    double *original;         /* [judged][n]: the product of the originals */
    tsr_exact *exact;         /* [judged][n] */
    bool unfit;               /* a code or scale is NaN or out of range, which is already a finding */
} tsr_gemm_operands;

/* Returns true if two matrices are experts of one set. */
bool tsr_gemm_alike(const tsr_gemm_entry *a, const tsr_gemm_entry *b);

/* Chooses the experts of a job: all, or a subset by the seed. */
tsr_status tsr_gemm_choose_experts(tsr_gemm_operands *operands, size_t job, tsr_err *err);

/* Chooses experts, tokens, and the judged rows and columns. Reads or generates the activations, and allocates the
 * remaining arrays. `job` is an index into c->jobs. tsr_gemm_operands_free frees the memory, also after a failure. */
tsr_status tsr_gemm_operands_shape(tsr_gemm_operands *operands, size_t job, tsr_err *err);

/* Quantizes the activations, reads the weights, and computes the exact products and those of the originals. Codes or
 * scales that make the product impossible to compute become findings, and set operands->unfit. */
tsr_status tsr_gemm_operands_fill(tsr_gemm_operands *operands, tsr_err *err);

void tsr_gemm_operands_free(tsr_gemm_operands *operands);

/* Returns the arguments for the product of expert `e` with its tokens, except d. */
tsr_fp8_gemm_args tsr_gemm_expert_args(const tsr_gemm_operands *operands, size_t e);
