/* Attention of one query and head in double, over the operands that kernels get, with the largest and the expected
 * error of a kernel. Sources of the formulas: kernels/cpu/mla_attention.h and kernels/cuda/mla_decode.h for the
 * bounds, verify/mla/mla_kernels.h for what is expected. */
#ifndef TSR_VERIFY_MLA_ATTENTION_ORACLE_H
#define TSR_VERIFY_MLA_ATTENTION_ORACLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* n tokens, of each a key of `width` and a value of `columns` elements. */
typedef struct tsr_attended {
    const float *keys, *values;
    size_t ld_keys, ld_values, width, columns, n;
    double scale;
} tsr_attended;

/* All but `largest` are [columns]; p are the exact probabilities. */
typedef struct tsr_attention_exact {
    double *exact;  /* sum of p v */
    double *mass;   /* sum of p |v| */
    double *square; /* sum of (p v)^2 */
    double *jitter; /* what roundings of scores move, squared, in units of u^2 / 3 */
    double largest; /* of any token's sum |q k| */
} tsr_attention_exact;

/* How a kernel rounds. */
typedef struct tsr_attention_rounding {
    bool tensor_core; /* products in steps of 16, values of `block` tokens at a time, probabilities in BF16 */
    bool to_bf16;     /* its result */
    size_t block;
} tsr_attention_rounding;

/* Computes the exact result for q in BF16. `scratch` has room for 2 n + width elements. With n = 0 the result is 0. */
void tsr_attention_solve(const tsr_attended *tokens, const uint16_t *q, double *scratch, tsr_attention_exact *result);

/* Multiplies q by a power of two, which rounds nothing, so that the scores of the tokens have a standard deviation of 8
 * to 16, or as near to that as keeps the error of a tensor core's score below 2^-4. Kernels put off rescaling until a
 * score is 5.5 above the largest so far (exponentials of 2^8), which then happens in every long row. Drawn scores differ so little that a
 * kernel which forgets to rescale its sums when it meets a larger score stays within any bound; with these, the largest
 * score so far decides. `scratch` as above. */
void tsr_attention_steepen(const tsr_attended *tokens, uint16_t *q, double *scratch);

/* How far element `i` of a kernel's result may be from the exact one. */
double tsr_attention_bound(const tsr_attention_rounding *kernel, const tsr_attended *tokens,
                           const tsr_attention_exact *exact, size_t i);

/* The expected square of the error of element `i`. */
double tsr_attention_variance(const tsr_attention_rounding *kernel, const tsr_attended *tokens,
                              const tsr_attention_exact *exact, size_t i);

/* By which share of themselves sound results may all be off (verify/evidence/kernel_tally.h): a tensor core's truncated
 * sums make scores, which are steep where they are large, and results a little too small. */
double tsr_attention_slope(const tsr_attention_rounding *kernel);

#endif
