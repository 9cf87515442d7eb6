/* Do the product of 16-bit activations with one int8 or int4 weight, laid out, and the weight itself come out as they
 * must? Part of tsr_check_dequant.
 *
 * Quantization error: the product of the codes, with scales and activations in BF16 and in F16, against the product of
 * the originals, or, where those are unknown, of the weights that the checkpoint states; and each code against its
 * original. Kernel error: every kernel, with one token, with 16 and with all of them, against double over the same operands. */
#ifndef TSR_VERIFY_KERNELS_WEIGHT_ONLY_H
#define TSR_VERIFY_KERNELS_WEIGHT_ONLY_H

#include "formats/model/ft_layout.h"
#include "verify/evidence/jobs.h"

typedef struct tsr_weight_only {
    const tsr_kernel_options *options;
    unsigned outs; /* of which BF16 and F16 count */
    const tsr_weight *weight;
    const tsr_columns *columns; /* rows of the checkpoint's [N, K] that are judged */
    const tsr_ft_format *format;
    const int8_t *codes;   /* [n][k] */
    const uint32_t *words; /* the same, laid out */
    size_t n, k;
} tsr_weight_only;

/* Adds to `evidence`; what no kernel takes is skipped there, with the reason. */
tsr_status tsr_judge_weight_only(const tsr_weight_only *w, tsr_evidence *evidence, tsr_err *err) TSR_WARN_UNUSED;

#endif
