/* The formats in which a merged weight is stored: how rows of FP32 values become what the base has in their place. */
#pragma once

#include "convert/plan/plan.h"
#include "formats/weights/weights.h"

/* Some whole rows of one matrix of a weight, numbered through all matrices. */
typedef struct tsr_merged_rows {
    const tsr_weight *weight;
    const tsr_tensor *values; /* name and shape of the FP32 values, for positions in messages */
    bool powers;              /* scales are powers of two */
    uint64_t row, rows;
    const float *x; /* [rows, cols]; finite */
    void *data;     /* output: the bytes of these rows in weight->data */
    /* Outputs: the whole scale, zero points and global scale, as far as the weight has them, in this order. They are
     * zero at first, and rows that are stored by other calls are not touched. */
    void *const *others;
    float shared; /* the scale of the whole tensor, or its global scale; 0: there is none */
    void *scratch;
} tsr_merged_rows;

typedef struct tsr_merge_format {
    /* Returns the number of rows that must be stored together; rows begin at a multiple of it. */
    uint64_t (*rows)(const tsr_weight *weight);
    uint64_t (*scratch)(const tsr_weight *weight);
    /* Returns the scale of the whole tensor for values up to `amax`; `stored` is that of the base. NULL: there is
     * none. */
    float (*shared)(const tsr_weight *weight, bool powers, float stored, float amax, const tsr_cpu_kernels *kernels);
    /* Stores the rows. Thread-safe. TSR_E_VALUE: a value cannot be stored. */
    tsr_status (*store)(const tsr_merged_rows *rows, const tsr_cpu_kernels *kernels, tsr_err *err);
} tsr_merge_format;

/* Returns the format of a weight, or NULL, with the reason in *why: its values cannot be stored again. */
const tsr_merge_format *tsr_merge_format_of(const tsr_weight *weight, const char **why);
