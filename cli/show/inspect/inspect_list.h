/* Lists tensors of a checkpoint for `tessera inspect --tensors`: place, dtype, shape, and the format of the weight. */
#pragma once

#include "common/text.h"
#include "formats/weights/weights.h"

/* A tensor, and the quantized weight that it is a part of. */
typedef struct tsr_listed {
    const tsr_tensor *tensor;
    const tsr_weight *weight; /* NULL: not quantized */
    const char *role;         /* "codes", or as tsr_weights_owner; NULL: not quantized */
} tsr_listed;

typedef struct tsr_tensor_list {
    tsr_listed *rows; /* in the order of the checkpoint; from malloc */
    size_t count;
    uint64_t bytes; /* sum over all rows */
} tsr_tensor_list;

/* Lists the tensors whose names match one of the globs. TSR_E_USAGE: a glob matches no name. */
tsr_status tsr_tensor_list_find(tsr_tensor_list *list, const tsr_checkpoint *checkpoint, const tsr_weights *weights,
                                const char *const *globs, size_t n_globs, tsr_err *err);

/* Prints a line for each tensor. */
void tsr_tensor_list_print(const tsr_tensor_list *list, const tsr_checkpoint *checkpoint);

/* Writes members of the open object. */
void tsr_tensor_list_json(const tsr_tensor_list *list, const tsr_checkpoint *checkpoint, tsr_text *text);
