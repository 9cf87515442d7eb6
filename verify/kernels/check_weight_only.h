/* Checks an int8 or int4 weight and its product with 16-bit activations. Part of tsr_check_dequant.
 *
 * Quantization error: the product of the codes, with scales and activations in BF16 and in F16, compared with the
 * product of the originals. Without originals it is compared with the product of the checkpoint's own values. Each
 * code is also compared with its original.
 *
 * Kernel error: every kernel compared with double over the same operands, with one token, with 16 and with all. */
#pragma once

#include "kernels/cpu/ft_layout.h"
#include "verify/evidence/jobs.h"

typedef struct tsr_weight_only {
    const tsr_kernel_options *options;
    unsigned outs; /* bits of BF16 and F16; others are ignored */
    const tsr_weight *weight;
    const tsr_columns *columns; /* the selected rows of the checkpoint's [N, K] */
    const tsr_ft_format *format;
    const int8_t *codes;   /* [n][k] */
    const uint32_t *words; /* the codes in layout T */
    size_t n, k;
} tsr_weight_only;

/* Adds findings to `evidence`. A product that no kernel accepts is skipped there, with the reason. */
tsr_status tsr_judge_weight_only(const tsr_weight_only *w, tsr_evidence *evidence, tsr_err *err);
