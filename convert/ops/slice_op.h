/* Declares steps that slice tensors for tensor parallelism and join the parts.
 *
 * In bytes, every cut has the same form: the tensor is `rows` rows of `parts` segments of equal size, and part k
 * consists of the k-th segment of each row. Column parallelism (output features of [R, C]) has one row. Row parallelism
 * (input features) has R rows. A stack [M, R, C] has M rows, or M * R. Gate and up in one [2I, C] have two rows. */
#pragma once

#include "convert/plan/plan.h"

typedef struct tsr_slicing {
    uint64_t rows;
    uint32_t parts;
} tsr_slicing;

/* Adds a step that writes part k of `tensor` to *out. */
tsr_status tsr_plan_slice(tsr_plan *plan, const tsr_tensor *tensor, const tsr_tensor *out, tsr_slicing cut, uint32_t k,
                          tsr_err *err);

/* Adds a step that joins parts[cut.parts] to *out. */
tsr_status tsr_plan_join(tsr_plan *plan, const tsr_tensor *const *parts, const tsr_tensor *out, tsr_slicing cut,
                         tsr_err *err);

/* Adds a step that writes n parts of any size one after another. */
tsr_status tsr_plan_concatenate(tsr_plan *plan, const tsr_tensor *const *parts, uint32_t n, const tsr_tensor *out,
                                tsr_err *err);

/* Adds a step that writes `out->bytes` bytes of `tensor`, from `offset` on. */
tsr_status tsr_plan_range(tsr_plan *plan, const tsr_tensor *tensor, uint64_t offset, const tsr_tensor *out,
                          tsr_err *err);

/* Adds a step that writes nothing and fails (TSR_E_MISMATCH) unless the bytes of both tensors are the same. */
tsr_status tsr_plan_same(tsr_plan *plan, const tsr_tensor *a, const tsr_tensor *b, tsr_err *err);
