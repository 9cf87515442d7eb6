/* Computes attention of one query and head in double, with the largest and the expected error of a kernel.
 *
 * It uses the operands that kernels get. The bounds are those of kernels/cpu/mla_attention.h and
 * kernels/cuda/mla_decode.h. verify/mla/mla_kernels.h derives the expected errors. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* n tokens, each with a key of `width` and a value of `columns` elements. Token t is row t of keys and values, or row
 * rows[t]. */
typedef struct tsr_attended {
    const float *keys, *values;
    const size_t *rows; /* [n]; NULL: 0, 1, ... */
    size_t ld_keys, ld_values, width, columns, n;
    double scale;
} tsr_attended;

/* All but `largest` are [columns]; p are the exact probabilities. */
typedef struct tsr_attention_exact {
    double *exact;  /* sum of p v */
    double *mass;   /* sum of p |v| */
    double *square; /* sum of (p v)^2 */
    double *jitter; /* squared effect of rounding the scores, in units of u^2 / 3 */
    double largest; /* largest sum |q k| of any token */
} tsr_attention_exact;

/* The rounding properties of a kernel. */
typedef struct tsr_attention_rounding {
    bool tensor_core; /* products in steps of 16, values of `block` tokens at a time, probabilities in BF16 */
    bool to_bf16;     /* the result is BF16 */
    size_t block;
} tsr_attention_rounding;

/* Computes the exact result for q in BF16. `scratch` has room for 2 n + width elements. With n = 0 the result is 0. */
void tsr_attention_solve(const tsr_attended *tokens, const uint16_t *q, double *scratch, tsr_attention_exact *result);

/* Multiplies q by a power of two, so that the scores have a standard deviation of 8 to 16. The factor is smaller if
 * a tensor core's score would otherwise be off by 2^-4 or more. The multiplication is exact. `scratch` as above.
 *
 * Kernels postpone rescaling until a score is 5.5 above the largest so far (exponentials of 2^8). With these scores
 * that happens in every long row. Generated scores differ so little that a kernel without any rescaling of its sums
 * would stay within all bounds. */
void tsr_attention_steepen(const tsr_attended *tokens, uint16_t *q, double *scratch);

/* Returns the largest error of element `i` of a kernel's result. */
double tsr_attention_bound(const tsr_attention_rounding *kernel, const tsr_attended *tokens,
                           const tsr_attention_exact *exact, size_t i);

/* Returns the mean square error of element `i`. */
double tsr_attention_variance(const tsr_attention_rounding *kernel, const tsr_attended *tokens,
                              const tsr_attention_exact *exact, size_t i);

/* Returns the largest relative bias of correct results (verify/evidence/kernel_tally.h). Truncated sums of a tensor
 * core make large scores and results slightly too small. */
double tsr_attention_slope(const tsr_attention_rounding *kernel);
