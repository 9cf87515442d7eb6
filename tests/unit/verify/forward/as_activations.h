/* Converts arrays of a test to activations of the CPU. */
#ifndef TSR_TESTS_UNIT_VERIFY_FORWARD_AS_ACTIVATIONS_H
#define TSR_TESTS_UNIT_VERIFY_FORWARD_AS_ACTIVATIONS_H

#include "verify/forward/forward_ops.h"

/* Returns the same address; NULL for NULL. */
static inline tsr_activation *as_activations(double *x)
{
    return (tsr_activation *)x;
}

#endif
