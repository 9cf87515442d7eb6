/* Stubs of the forward pass on a GPU for builds without CUDA. */
#include "verify/forward/forward_cuda.h"

tsr_status tsr_ops_of_cuda(tsr_ops *ops, size_t number, unsigned threads, const atomic_bool *cancel, tsr_err *err)
{
    (void)ops, (void)number, (void)threads, (void)cancel;
    return tsr_fail(err, TSR_E_DEVICE, "built without CUDA");
}
