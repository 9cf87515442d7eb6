/* Several numbers that a thread loads or stores at once. Included only by CUDA sources. */
#pragma once

template <typename T, int N> struct alignas(N * sizeof(T)) several {
    T of[N];
};
