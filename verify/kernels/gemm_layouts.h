/* The kernels of a device over the operands of one job, as serving code lays them out, and the judgement of each. */
#ifndef TSR_VERIFY_KERNELS_GEMM_LAYOUTS_H
#define TSR_VERIFY_KERNELS_GEMM_LAYOUTS_H

#include "verify/kernels/gemm_operands.h"

/* How rows of activations lie before a kernel. */
typedef enum tsr_gemm_layout {
    TSR_GEMM_ROWS,       /* of one weight: one after another */
    TSR_GEMM_CONTIGUOUS, /* of experts: each begins at a multiple of 128 rows */
    TSR_GEMM_MASKED,     /* of experts: each has room for as many rows as any of them has */
} tsr_gemm_layout;

/* Runs every kernel of the device in this layout, and adds a judgement for each of its result types. */
tsr_status tsr_gemm_run_layout(tsr_gemm_operands *operands, tsr_gemm_layout layout, tsr_err *err) TSR_WARN_UNUSED;

#endif
