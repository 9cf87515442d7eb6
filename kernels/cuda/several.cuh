/* Several numbers that a thread loads or stores at once. Included only by CUDA sources. */
#ifndef TSR_KERNELS_CUDA_SEVERAL_CUH
#define TSR_KERNELS_CUDA_SEVERAL_CUH

template <typename T, int N> struct alignas(N * sizeof(T)) several {
    T of[N];
};

#endif
