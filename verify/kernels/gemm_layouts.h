/* Runs block FP8 kernels over one job in the layouts of serving code, and judges them. */
#ifndef TSR_VERIFY_KERNELS_GEMM_LAYOUTS_H
#define TSR_VERIFY_KERNELS_GEMM_LAYOUTS_H

#include "verify/kernels/gemm_operands.h"

/* Arrangement of the activations' rows. */
typedef enum tsr_gemm_layout {
    TSR_GEMM_ROWS,       /* one weight: consecutive rows */
    TSR_GEMM_CONTIGUOUS, /* experts, each at a multiple of 128 rows */
    TSR_GEMM_MASKED,     /* experts, each with space for the rows of the largest */
} tsr_gemm_layout;

/* Runs every kernel of the device in this layout, and adds a judgement for each result type. */
tsr_status tsr_gemm_run_layout(tsr_gemm_operands *operands, tsr_gemm_layout layout, tsr_err *err) TSR_WARN_UNUSED;

#endif
