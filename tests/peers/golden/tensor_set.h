/* Some tensors with their bytes: read from a small safetensors file, or made here and compared with one. */
#pragma once

#include "common/arena.h"
#include "common/status.h"
#include "formats/checkpoint/safetensors.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct set_tensor {
    tsr_tensor t;
    void *bytes; /* aligned to 16 */
} set_tensor;

enum { MOST_TENSORS = 32 };

typedef struct tensor_set {
    tsr_arena *arena; /* holds names and bytes */
    set_tensor items[MOST_TENSORS];
    size_t count;
} tensor_set;

/* Reads DIR/FILE. */
tsr_status read_set(const char *dir, const char *file, tensor_set *set, tsr_err *err);

/* Returns the first tensor with this ending of its name (".weight_scale"). TSR_E_FORMAT: there is none, or it has
 * another dtype. */
tsr_status find_tensor(const tensor_set *set, const char *suffix, tsr_dtype dtype, const set_tensor **tensor,
                       tsr_err *err);

/* Finds a tensor of any dtype; the second function returns true if there is one. */
tsr_status find_any(const tensor_set *set, const char *suffix, const set_tensor **tensor, tsr_err *err);
bool has_tensor(const tensor_set *set, const char *suffix);

/* Returns true if the name has this suffix; *length, which may be NULL, is set to the length before it. */
bool ends_in(const char *name, const char *suffix, size_t *length);

/* Adds a tensor MODULE SUFFIX, where MODULE is the first `length` characters of `module`, with bytes of zero. */
tsr_status add_tensor(tensor_set *set, const char *module, size_t length, const char *suffix, tsr_dtype dtype,
                      unsigned rank, const uint64_t *shape, set_tensor **tensor, tsr_err *err);

typedef struct set_rules {
    bool zero_sign_free;    /* -0 and 0 of BF16 are the same */
    bool scalar_shape_free; /* [] and [1] are the same */
} set_rules;

/* Compares names, dtypes, shapes and bytes. Any NaN of FP32 equals any other. */
tsr_status compare_sets(const tensor_set *got, const tensor_set *expected, set_rules rules, tsr_err *err);
