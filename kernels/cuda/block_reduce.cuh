/* Combines a value of each thread of a CTA. Included only by CUDA sources. */
#pragma once

struct add_up {
    template <typename S> __device__ S operator()(S a, S b) const
    {
        return a + b;
    }
};

struct larger {
    template <typename S> __device__ S operator()(S a, S b) const
    {
        return fmax(a, b);
    }
};
struct smaller {
    template <typename S> __device__ S operator()(S a, S b) const
    {
        return fmin(a, b);
    }
};

/* Returns op over all threads of the CTA, in every thread. The CTA has whole warps, and all threads call it. */
template <typename S, typename OP> __device__ S reduce(S x, OP op)
{
    __shared__ S parts[32];
    for (int i = 16; i > 0; i /= 2) {
        x = op(x, __shfl_xor_sync(0xFFFFFFFFu, x, i));
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0) {
        parts[threadIdx.x / 32] = x;
    }
    __syncthreads();
    x = parts[0];
    for (unsigned i = 1; i < blockDim.x / 32; i++) {
        x = op(x, parts[i]);
    }
    return x;
}
