/* What the files that pair weights with their scales share: weights.c, quantization_config.c, integer_weights.c. */
#ifndef TSR_FORMATS_MODEL_PAIRING_H
#define TSR_FORMATS_MODEL_PAIRING_H

#include "formats/checkpoint/checkpoint.h"
#include "formats/model/weights.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* How integers are coded, as one of compressed-tensors' groups states it. */
typedef struct tsr_integer_coding {
    uint64_t bits, group; /* group: columns to a scale; 0: one scale a row, or one for the whole matrix */
} tsr_integer_coding;

enum { TSR_MAX_INTEGERS = 8 };

/* A pairing under way. */
typedef struct tsr_pairing {
    tsr_weights *w;
    const tsr_checkpoint *c;
    bool *claimed; /* [tensors]: belongs to a weight, as its scale, zero point, shape or as the scale of its input */
    bool *unread;  /* [tensors]: in a format that Tessera does not read */
    tsr_integer_coding stated[TSR_MAX_INTEGERS];
    size_t n_stated;
    tsr_weights_problem_fn *problem; /* NULL: the first problem ends the pairing */
    void *data;
    tsr_err *err;
} tsr_pairing;

/* The file in which a tensor stands. */
const char *tsr_pairing_path(const tsr_pairing *p, const tsr_tensor *t);

/* Reads what config.json states into the weights, and codings of integers into `stated`. TSR_E_UNSUPPORTED: a
 * quant_method that Tessera does not read; TSR_E_FORMAT: a block size that is none. */
tsr_status tsr_read_quantization(tsr_pairing *p) TSR_WARN_UNUSED;

/* TSR_E_UNSUPPORTED when a scale has a dtype that Tessera does not read. */
tsr_status tsr_check_scale_dtype(const tsr_pairing *p, const tsr_tensor *scale) TSR_WARN_UNUSED;

/* Holds integers to a stated coding, and fills in the weight's sizes. Its scale has been found. */
tsr_status tsr_check_integers(const tsr_pairing *p, tsr_weight *x) TSR_WARN_UNUSED;

#endif
