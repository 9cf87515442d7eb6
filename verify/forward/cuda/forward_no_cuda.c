/* Stubs of the forward pass on a GPU for builds without CUDA. */
#include "verify/forward/cuda/forward_cuda.h"

tsr_status tsr_ops_of_cuda(tsr_ops *ops, const tsr_gpu_choice *choice, tsr_err *err)
{
    (void)ops, (void)choice;
    return tsr_fail(err, TSR_E_DEVICE, "built without CUDA");
}
