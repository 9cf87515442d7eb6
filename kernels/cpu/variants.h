/* Declares every variant of every CPU kernel, from kernels.inc. Only kernels/cpu and its tests include this; other code
 * calls through tsr_cpu_kernels. A variant must only be called on a CPU that has its flags. */
#pragma once

#include "kernels/cpu/best_scale.h"
#include "kernels/cpu/block_fp8.h"
#include "kernels/cpu/e4m3_decode.h"
#include "kernels/cpu/fp8_gemm.h"
#include "kernels/cpu/group_max.h"
#include "kernels/cpu/hash.h"
#include "kernels/cpu/int4_columns.h"
#include "kernels/cpu/int4_values.h"
#include "kernels/cpu/int8_gemm.h"
#include "kernels/cpu/int_decode.h"
#include "kernels/cpu/int_quant.h"
#include "kernels/cpu/interleave.h"
#include "kernels/cpu/low_rank.h"
#include "kernels/cpu/matmul.h"
#include "kernels/cpu/mx_codes.h"
#include "kernels/cpu/mx_error.h"
#include "kernels/cpu/mx_scales.h"
#include "kernels/cpu/mx_values.h"
#include "kernels/cpu/outer_products.h"
#include "kernels/cpu/transpose.h"

#define TSR_OP(op, type)               type tsr_##op##_ref;
#define TSR_KERNEL(op, flags, variant) tsr_##op##_fn tsr_##op##_##variant;
#include "kernels/cpu/kernels.inc"
#undef TSR_OP
#undef TSR_KERNEL

/* Return the loss of a scale of one group (kernels/cpu/best_scale.h). */
double tsr_best_group_loss(const float *x, const float *weight, const tsr_best_groups *candidates, int scale);
double tsr_best_int4_loss(const float *x, const float *weight, size_t n, const tsr_best_int4 *candidates, float scale,
                          float zero);
double tsr_best_fp8_loss(const float *x, const float *weight, size_t rows, size_t cols, float scale);

/* Encodes a group that the faster variants leave to the definition because of its t. Usually it is a group of zeros,
 * whose quotients need not be computed. */
void tsr_encode_e2m1_bf16_rare(const uint16_t *x, size_t group, float t, tsr_e2m1_rounding rounding, uint8_t *packed);
