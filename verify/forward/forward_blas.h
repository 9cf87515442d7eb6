/* Declares the products of a forward pass in FP32 on the CPU, by OpenBLAS, which is loaded at run time. */
#pragma once

#include "verify/forward/forward_ops.h"

/* Replaces the products of the CPU's operations, which are in FP64, by products in FP32. ops->close unloads the
 * library. TSR_E_UNSUPPORTED: the library is missing, or the program is static. TSR_E_MISMATCH: the library computes
 * wrong products on this processor. */
tsr_status tsr_ops_use_blas(tsr_ops *ops, tsr_err *err);
