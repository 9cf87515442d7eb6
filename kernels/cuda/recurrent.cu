/* Computes causal convolutions by element, and recurrences with one CTA for each sequence and head. */
#include "kernels/cuda/recurrent.h"

#include "kernels/cuda/launch.cuh"

namespace
{

constexpr int kThreads = 128;

template <typename T> __global__ void convolve(const tsr_act_convolve a)
{
    const auto *const x = (const T *)a.x;
    const size_t all = a.rows * a.channels;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < all; i += (size_t)gridDim.x * blockDim.x) {
        const size_t row = i / a.channels, c = i % a.channels, before = a.places[row];
        double sum = a.bias != nullptr ? a.bias[c] : 0;
        for (size_t j = a.taps > before + 1 ? a.taps - before - 1 : 0; j < a.taps; ++j)
            sum += a.weight[c * a.taps + j] * (double)x[(row + 1 + j - a.taps) * a.channels + c];
        ((T *)a.y)[i] = (T)(sum / (1 + exp(-sum)));
    }
}

// Returns the factor that makes x have length 1. All threads add in the same order.
template <typename T> __device__ double shorten(const T *x, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; ++i)
        sum += (double)x[i] * (double)x[i];
    return 1 / sqrt(sum + 1e-6);
}

// Returns max(softplus(decay + shift), least).
template <typename T> __device__ double step_of(const tsr_act_recur &a, size_t at, size_t head, size_t i)
{
    const double x = ((const T *)a.decay)[at * a.decays + i] + a.shift[head * a.decays + i];
    return fmax(fmax(x, 0.0) + log1p(exp(-fabs(x))), a.least);
}

// A thread has columns of the state, and goes through its rows.
template <typename T> __global__ void __launch_bounds__(kThreads) recur(const tsr_act_recur a)
{
    const auto *const all_q = (const T *)a.q, *const all_k = (const T *)a.k;
    extern __shared__ double shared[]; // q, k, and what is kept of each row
    const size_t head = blockIdx.x, s = blockIdx.y, d = a.dim, vd = a.v_dim;
    double *const q = shared, *const k = q + d, *const keep = k + d;
    double *const state = a.states + (s * a.heads + head) * d * vd;
    for (size_t i = threadIdx.x; i < d * vd; i += blockDim.x)
        state[i] = 0;
    for (size_t token = a.first[s]; token < a.first[s + 1]; ++token) {
        const size_t at = token * a.heads + head, from = (token * a.k_heads + head / (a.heads / a.k_heads)) * d;
        const double by_q = a.scan ? 1 : shorten(all_q + from, d) / sqrt((double)d);
        const double by_k = a.scan ? 1 : shorten(all_k + from, d);
        __syncthreads(); // all threads are done with the token before
        for (size_t i = threadIdx.x; i < d; i += blockDim.x) {
            const size_t j = a.decays == 1 ? 0 : i;
            q[i] = all_q[from + i] * by_q;
            k[i] = all_k[from + i] * by_k;
            keep[i] = exp(-a.rate[head] * step_of<T>(a, at, head, j));
        }
        __syncthreads();
        for (size_t j = threadIdx.x; j < vd; j += blockDim.x) {
            const double v = ((const T *)a.v)[at * vd + j];
            double added = v, out = a.scan ? a.skip[head] * v : 0;
            for (size_t i = 0; i < d; ++i) {
                state[i * vd + j] *= keep[i];
                added -= a.scan ? 0 : state[i * vd + j] * k[i];
            }
            added *= a.scan ? step_of<T>(a, at, head, 0) : 1 / (1 + exp(-(double)((const T *)a.beta)[at]));
            for (size_t i = 0; i < d; ++i) {
                state[i * vd + j] += k[i] * added;
                out += state[i * vd + j] * q[i];
            }
            ((T *)a.out)[at * vd + j] = (T)out;
        }
    }
}

} // namespace

extern "C" {

tsr_status tsr_cuda_act_convolve(const tsr_act_convolve *a, tsr_precision precision, tsr_stream stream, tsr_err *err)
{
    auto *const kernel = precision == TSR_PRECISION_FP64 ? convolve<double> : convolve<float>;
    const size_t ctas = (a->rows * a->channels + kThreads - 1) / kThreads;
    if (ctas > 0)
        kernel<<<(unsigned)(ctas < 65536 ? ctas : 65536), kThreads, 0, stream>>>(*a);
    return host::launched("a convolution", cudaSuccess, err);
}

tsr_status tsr_cuda_act_recur(const tsr_act_recur *a, tsr_precision precision, tsr_stream stream, tsr_err *err)
{
    auto *const kernel = precision == TSR_PRECISION_FP64 ? recur<double> : recur<float>;
    const size_t shared = 3 * a->dim * sizeof(double);
    if (a->dim > 1024 || a->sequences > 65535)
        return tsr_fail(err, TSR_E_SHAPE, "a recurrence of %zu rows and %zu sequences exceeds the kernel's grid",
                        a->dim, a->sequences);
    if (a->sequences > 0)
        kernel<<<dim3((unsigned)a->heads, (unsigned)a->sequences), kThreads, shared, stream>>>(*a);
    return host::launched("a recurrence", cudaSuccess, err);
}

} // extern "C"
