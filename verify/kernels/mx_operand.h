/* Weights in small groups (MXFP4, NVFP4, MXFP8) as kernels take them: codes and scale bytes of the rows that are judged,
 * with the scales' values by verify's own decoders beside them. */
#ifndef TSR_VERIFY_KERNELS_MX_OPERAND_H
#define TSR_VERIFY_KERNELS_MX_OPERAND_H

#include "kernels/cpu/mx_gemm.h"
#include "verify/evidence/jobs.h"

enum { TSR_MX_BAND = 128 /* rows that are chosen and read at a time */ };

/* One matrix of the checkpoint. */
typedef struct tsr_mx_subject {
    const tsr_kernel_options *options;
    const tsr_weight *weight;
    uint64_t matrix;
    const char *name; /* in the evidence */
} tsr_mx_subject;

typedef struct tsr_mx_operand {
    tsr_mx_matrix matrix; /* [n][k] */
    uint8_t *codes, *scales;
    double *t; /* [n][k / group] */
    size_t n, k, group;
    tsr_columns columns; /* the rows of the checkpoint's matrix that these are */
} tsr_mx_operand;

/* Why a weight whose kind has small groups cannot be checked; NULL: it can. */
const char *tsr_mx_unfit(const tsr_weight *weight);

/* "NAME", or "NAME[3]" of a stack; in `arena`. NULL: out of memory. */
const char *tsr_mx_subject_name(tsr_arena *arena, const tsr_weight *weight, uint64_t matrix);

/* Reads the rows that options choose into memory of `arena`. Scales, codes or a global scale of which no value comes are
 * noted in the evidence as a fault of the checkpoint, and *sound becomes false. */
tsr_status tsr_mx_operand_read(const tsr_mx_subject *subject, tsr_arena *arena, tsr_mx_operand *operand, bool *sound,
                               tsr_evidence *evidence, tsr_err *err) TSR_WARN_UNUSED;

/* out[rows][k]: the values of codes, without their scales. */
void tsr_mx_decode_codes(tsr_mx_form form, const void *codes, size_t rows, size_t k, double *out);

/* t[n]: the values of scales with their global scale, as the format defines them. */
void tsr_mx_decode_scales(const tsr_mx_matrix *matrix, size_t n, double *t);

#endif
