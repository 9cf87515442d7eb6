/* Checks FP8 codes and scales that are copied. NaN ends the job. */
#pragma once

#include "convert/plan/plan.h"

/* Notes that a step, or the last step of a plan, copies scales of this dtype. Codes of F8_E4M3 and scales of F8_E8M0
 * are recognized without this call. */
void tsr_step_copies_scales(tsr_step *step, tsr_dtype dtype);
void tsr_plan_copies_scales(tsr_plan *plan, tsr_dtype dtype);

/* Returns true if a copying step has codes of F8_E4M3 or scales to check. */
bool tsr_copies_codes(const tsr_step *step);

/* The bytes of one window of a tensor. */
typedef struct tsr_copied {
    const tsr_tensor *tensor;
    const tsr_window *window;
    const void *data;
    tsr_dtype dtype; /* dtype of the bytes */
    bool scales;     /* they are scales; else codes of F8_E4M3 */
} tsr_copied;

/* Checks bytes [at, at + n) of the data, whole elements. TSR_E_VALUE, with coordinates and file offset: a code is NaN;
 * a scale is NaN, infinite or negative. Thread-safe. */
tsr_status tsr_check_copied_as(const tsr_copied *copied, uint64_t at, uint64_t n, const tsr_cpu_kernels *kernels,
                               tsr_err *err);

/* Checks bytes [at, at + n) of u->in_data[i] if they are codes of F8_E4M3 or scales. */
tsr_status tsr_check_copied(const tsr_step *step, const tsr_unit *u, unsigned i, uint64_t at, uint64_t n,
                            const tsr_cpu_kernels *kernels, tsr_err *err);
