/* Converts arrays of a test to activations of the CPU. */
#pragma once

#include "verify/forward/forward_ops.h"

/* Returns the same address; NULL for NULL. */
static inline tsr_activation *as_activations(double *x)
{
    return (tsr_activation *)x;
}
