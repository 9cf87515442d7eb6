/* Selected rows of a weight in small groups (MXFP4, NVFP4, MXFP8): codes, scale bytes, and scale values.
 *
 * The scale values are computed by verify's own decoders. */
#pragma once

#include "kernels/cpu/mx_gemm.h"
#include "verify/evidence/jobs.h"

enum { TSR_MX_BAND = 128 /* rows chosen and read at a time */ };

/* One matrix of the checkpoint. */
typedef struct tsr_mx_subject {
    const tsr_kernel_options *options;
    const tsr_weight *weight;
    uint64_t matrix;
    const char *name; /* name in the evidence */
} tsr_mx_subject;

typedef struct tsr_mx_operand {
    tsr_mx_matrix matrix; /* [n][k] */
    uint8_t *codes, *scales;
    double *t; /* [n][k / group] */
    size_t n, k, group;
    tsr_columns columns; /* the corresponding rows of the checkpoint's matrix */
} tsr_mx_operand;

/* Returns the reason why a weight in small groups cannot be checked, or NULL. */
const char *tsr_mx_unfit(const tsr_weight *weight);

/* Returns "NAME", or "NAME[3]" for a matrix of a stack, in `arena`. NULL: out of memory. */
const char *tsr_mx_subject_name(tsr_arena *arena, const tsr_weight *weight, uint64_t matrix);

/* Reads the rows that the options select into memory of `arena`. Scales, codes or a global scale without a value
 * become findings about the checkpoint, and *sound becomes false. */
tsr_status tsr_mx_operand_read(const tsr_mx_subject *subject, tsr_arena *arena, tsr_mx_operand *operand, bool *sound,
                               tsr_evidence *evidence, tsr_err *err);

/* Decodes codes into out[rows][k], without their scales. */
void tsr_mx_decode_codes(tsr_mx_form form, const void *codes, size_t rows, size_t k, double *out);

/* Decodes scales with their global scale into t[n], as the format defines them. */
void tsr_mx_decode_scales(const tsr_mx_matrix *matrix, size_t n, double *t);
