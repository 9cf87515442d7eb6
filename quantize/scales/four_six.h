/* Chooses between two scales for each NVFP4 group: one for a largest element of 6, and one for 4 (--scales four-six).
 *
 * The elements next to 6 are 4 and 3, so numbers near 5 have large errors. With 4 as the largest element, the steps
 * near the top of the group are finer. The global scale is made for group scales up to 256 instead of 448, so that a
 * scale 1.5 times larger can be stored for every group (arXiv:2512.02010).
 *
 * The loss of a scale is the sum of (v * t - x)^2 over the group. The product and the difference are rounded to FP32,
 * as the producers compute them. Squares and sum are FP64. A group takes 4 if its loss is smaller, otherwise 6. */
#pragma once

#include "kernels/cpu/cpu.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The largest group scale that the global scale is made for. */
#define TSR_FOUR_SIX_LARGEST_SCALE 256

/* A row of NVFP4 with its two candidates. `six` and `four` hold groups of 16 elements. */
typedef struct tsr_four_six {
    const uint16_t *bf16;            /* n elements; NULL: `f32` has them */
    const float *f32;                /* finite */
    size_t n;                        /* whole groups */
    const uint32_t *group_amax;      /* largest magnitude of each group, as FP32 bits */
    bool multiplies;                 /* ModelOpt: t = s * global; otherwise compressed-tensors: t = s / global */
    float global;                    /* finite, positive */
    float amax;                      /* ModelOpt: largest magnitude of all weights that share the global scale */
    uint8_t *six, *four;             /* [groups] scale bytes; compressed-tensors: `six` is filled by the caller */
    float *six_t, *four_t;           /* [groups] */
    uint8_t *six_codes, *four_codes; /* [n / 2] */
    double *norms;                   /* [groups] */
    tsr_mx_error error;              /* its arrays have [groups] elements */
} tsr_four_six;

/* Computes the codes of each group under both scales, and leaves the better scale, its t and its codes in six, six_t
 * and six_codes.
 *
 *   compressed-tensors: four = e4m3(six * 1.5), each decoded;                            t = s / global
 *   ModelOpt:           s = e4m3(clamp(A / 6 * 256 / (amax / 6), 2^-9, 448)), with A = the amax of the group for 6, and
 *                       1.5 times that for 4; 1 for a group of zeros;                    t = s * global
 *
 * Each operation is rounded to FP32. */
void tsr_four_six_choose(const tsr_cpu_kernels *kernels, const tsr_four_six *row);
