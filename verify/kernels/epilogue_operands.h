/* Operands of int8 products: codes, scales, bias, and activations quantized in four ways. */
#pragma once

#include "verify/evidence/jobs.h"

typedef struct tsr_epilogue_check {
    const tsr_kernel_options *options;
    unsigned outs;
    size_t *jobs; /* indices of weights */
} tsr_epilogue_check;

/* Activations in the quantization of one kind of epilogue. */
typedef struct tsr_quantized {
    int8_t *codes; /* [m][k] */
    float *scales; /* [m] */
    int32_t *azp;  /* [m] */
    double *sums;  /* [m][n]: codes times codes, exact */
} tsr_quantized;

/* Bits of the index of a quantization. */
enum { TSR_PER_TENSOR = 1, TSR_SYMMETRIC = 2, TSR_QUANTIZATIONS = 4 };

/* input_scale and input_zero_point of the layer in the checkpoint. */
typedef struct tsr_epilogue_input {
    unsigned quantization; /* the quantization that they define; TSR_QUANTIZATIONS: none */
    float scale;
    int32_t zero_point;
    double low, high; /* the least and largest value of codes */
} tsr_epilogue_input;

typedef struct tsr_epilogue_operands {
    const tsr_epilogue_check *c;
    tsr_evidence *evidence;
    tsr_arena arena;
    const tsr_weight *weight;
    const char *name;
    tsr_columns columns;
    size_t m, n, k, padded;
    uint16_t *x;
    int8_t *w;      /* [n][k] */
    float *scale_w; /* [n] */
    float *bias;    /* [n] */
    int32_t *azp_adj, *with_adj, *stated_with_adj;
    double *row_sums; /* [n]: sums of the codes per channel, computed here */
    tsr_epilogue_input input;
    double *x2, *w2;  /* [m], [n]: sums of squares of the values before quantizing */
    double *original; /* [m][n] */
    bool unfit;       /* a scale or bias is NaN or out of range, which is already a finding */
    tsr_quantized q[TSR_QUANTIZATIONS];
} tsr_epilogue_operands;

/* Reads input_scale, reads or generates the activations, quantizes them, and allocates the remaining arrays. All
 * memory is in operands->arena, also on failure. */
tsr_status tsr_epilogue_operands_begin(tsr_epilogue_operands *operands, tsr_err *err);

/* Reads codes, scales and bias, and computes the exact sums and the products of the originals. Scales or a bias that
 * make the product impossible to compute become findings, and set operands->unfit. */
tsr_status tsr_epilogue_operands_fill(tsr_epilogue_operands *operands, tsr_err *err);

/* Computes azp_adj and azp_with_adj, and compares those of the extra file, for all channels. */
tsr_status tsr_epilogue_operands_get_azp(tsr_epilogue_operands *operands, tsr_err *err);
