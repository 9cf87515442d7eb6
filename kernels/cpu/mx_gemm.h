/* Declares the product of operands in small groups, D = A * W^T: the definition, for verifying and not for serving.
 *
 * Each operand is a matrix of codes, k contiguous, with a scale for each group of 16 or 32 columns; A may also be plain
 * BF16, where t is 1. With t the FP32 scale of a group, as the format defines it, and G the group of W:
 *
 *   s[g]   = sum over the group of A[i,x] * W[j,x], codes' values, added in the order of x
 *   D[i,j] = sum over groups of (t_a[g] * t_w[g]) * s[g]: group g is added to partial sum g % 32; the 32 are added in
 *   halves
 *
 * all in FP32, each operation rounded once, nothing fused. Products of codes' values are exact: they have at most 4 + 8
 * significant bits. So a term is rounded at most G - 1 times in its group, twice with the scales, and once in each
 * addition of its partial sum and of the five halvings. With r = G + ceil(groups / 32) + 5
 *
 *   |D - exact| <= 1.01 r 2^-24 * sum of |t_a A t_w W|
 *
 * plus the loss of FP32 below its normal numbers. The rounding of s * global to FP32 is not an error, because the
 * format defines t that way. The GPU's plain kernel (kernels/cuda/mx_gemm.h) gives the same bits. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { TSR_MX_GEMM_LANES = 32, TSR_MX_GROUP_MOST = 32 };

typedef enum tsr_mx_form {
    TSR_MX_FORM_BF16,          /* values, no scales */
    TSR_MX_FORM_MXFP4,         /* e2m1 in groups of 32, t = 2^(scale - 127) */
    TSR_MX_FORM_MXFP8,         /* e4m3 in groups of 32, scales of E8M0 */
    TSR_MX_FORM_NVFP4_TIMES,   /* e2m1 in groups of 16, scales of e4m3: t = scale * global (ModelOpt) */
    TSR_MX_FORM_NVFP4_DIVIDED, /* t = scale / global (compressed-tensors) */
} tsr_mx_form;

typedef struct tsr_mx_matrix {
    tsr_mx_form form;
    const void *codes; /* [rows][k] of 16 bits; [rows][k / 2], the even column in the low nibble; or [rows][k] bytes */
    const uint8_t *scales; /* [rows][k / group]; none of them NaN or negative */
    float global;          /* NVFP4: positive, finite, and small enough that no t is infinite */
} tsr_mx_matrix;

/* Returns "BF16", "MXFP4", "MXFP8" or "NVFP4". Static storage. */
const char *tsr_mx_form_name(tsr_mx_form form);

/* Return the columns that share a scale (0: no scales), and the bytes of the codes of k columns. */
size_t tsr_mx_form_group(tsr_mx_form form);
size_t tsr_mx_form_bytes(tsr_mx_form form, size_t k);

/* Computes t[i] of scale at + i, i < n. */
void tsr_mx_scales(const tsr_mx_matrix *matrix, size_t at, size_t n, float *t);

typedef struct tsr_mx_gemm_args {
    tsr_mx_matrix a, w;  /* [m][k], [n][k]; a is BF16 or has the group of w; w is not BF16 */
    float *d;            /* [m][ldd] */
    size_t m, n, k, ldd; /* k is a multiple of the group */
} tsr_mx_gemm_args;

/* Returns r above. */
size_t tsr_mx_gemm_roundings(size_t k, size_t group);

/* Computes the product. Allocates nothing, cannot fail, is thread-safe. */
void tsr_mx_gemm_reference(const tsr_mx_gemm_args *args);

#ifdef __cplusplus
}
#endif
