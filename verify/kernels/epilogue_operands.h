/* The operands of the products of one int8 weight: its codes with scales and bias, activations quantized in four ways,
 * and their exact products. For tsr_check_epilogue. */
#ifndef TSR_VERIFY_KERNELS_EPILOGUE_OPERANDS_H
#define TSR_VERIFY_KERNELS_EPILOGUE_OPERANDS_H

#include "verify/evidence/jobs.h"

typedef struct tsr_epilogue_check {
    const tsr_kernel_options *options;
    unsigned outs;
    size_t *jobs; /* indices of weights */
} tsr_epilogue_check;

/* Activations, quantized as one kind of epilogue takes them. */
typedef struct tsr_quantized {
    int8_t *codes; /* [m][k] */
    float *scales; /* [m] */
    int32_t *azp;  /* [m] */
    double *sums;  /* [m][n]: codes times codes, exact */
} tsr_quantized;

/* Bits of the index of a quantization. */
enum { TSR_PER_TENSOR = 1, TSR_SYMMETRIC = 2, TSR_QUANTIZATIONS = 4 };

/* What the checkpoint states for the inputs of the layer. */
typedef struct tsr_static_input {
    unsigned quantization; /* the one that it decides; TSR_QUANTIZATIONS: none, inputs are quantized as they come */
    float scale;
    int32_t zero_point;
    double low, high; /* what codes reach */
} tsr_static_input;

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
    double *row_sums; /* [n]: sums of the codes of a channel, by this file */
    tsr_static_input input;
    double *x2, *w2;  /* [m], [n]: sums of squares of what was tsr_quantized */
    double *original; /* [m][n] */
    bool unfit;       /* a scale or bias is NaN or out of range; this is noted as a finding already */
    tsr_quantized q[TSR_QUANTIZATIONS];
} tsr_epilogue_operands;

/* Reads input_scale, and reads or draws the activations, quantized; allocates the rest. What it allocates is in
 * operands->arena, also on failure. */
tsr_status tsr_epilogue_operands_begin(tsr_epilogue_operands *operands, tsr_err *err) TSR_WARN_UNUSED;

/* Reads codes, scales and bias, and computes the exact sums and the products of the originals. Scales or a bias
 * with which no product can be computed are noted in the evidence, and operands->unfit becomes true. */
tsr_status tsr_epilogue_operands_fill(tsr_epilogue_operands *operands, tsr_err *err) TSR_WARN_UNUSED;

/* Computes azp_adj and azp_with_adj, and judges those beside the checkpoint, of all channels. */
tsr_status tsr_epilogue_operands_get_azp(tsr_epilogue_operands *operands, tsr_err *err) TSR_WARN_UNUSED;

#endif
