/* Declares the CPU kernels as a table of function pointers, and detects instruction sets.
 *
 * The scalar reference (`*_ref`) is the definition of every operation. Every other variant gives the same bits for
 * every input, including NaN, Inf, subnormals, ties and tails. tests/unit compares them. A row in
 * kernels/cpu/kernels.inc declares, selects and tests a variant. */
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

/* Sets of features. A set is present only if the CPU has all of it and the OS saves its registers. Each architecture
 * counts from the first bit: mask 0 selects the definitions, and 1 the first set, on all of them. */
enum {
    TSR_CPU_AVX2 = 1u << 0,   /* AVX2, FMA, F16C, BMI1, BMI2 */
    TSR_CPU_AVX512 = 1u << 1, /* AVX-512 F, BW, VL, DQ, CD */
    TSR_CPU_VBMI = 1u << 2,   /* TSR_CPU_AVX512 and AVX-512 VBMI: byte table look-ups */
#ifdef __aarch64__
    TSR_CPU_NEON = 1u << 0, /* Advanced SIMD, which every aarch64 that runs Linux has */
    TSR_CPU_ALL = TSR_CPU_NEON,
#else
    TSR_CPU_ALL = (1u << 3) - 1,
#endif
};

/* Returns the instruction sets of this machine, from CPUID and XCR0, or from the auxiliary vector on ARM. Pure. */
unsigned tsr_cpu_flags(void);

/* Returns the name of the widest set in `flags`: "scalar", "avx2", "avx512", "avx512+vbmi", "neon". Static storage. */
const char *tsr_cpu_name(unsigned flags);

typedef struct tsr_cpu_kernels {
#define TSR_OP(op, type) type *op;
#define TSR_KERNEL(op, flags, variant)
#include "kernels/cpu/kernels.inc"
#undef TSR_OP
#undef TSR_KERNEL
} tsr_cpu_kernels;

/* Fills the table: first the references, then every variant whose flags are all in `flags`, in the order of
 * kernels.inc. Later rows, which are faster, replace earlier ones. Pure. */
void tsr_cpu_kernels_init(tsr_cpu_kernels *kernels, unsigned flags);
