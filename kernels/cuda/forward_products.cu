/* Converts activations to operands of products and back, and computes the softmax of attention. */
#include "kernels/cuda/forward_products.h"

#include <cuda_bf16.h>

#include "kernels/cuda/block_reduce.cuh"
#include "kernels/cuda/launch.cuh"

namespace
{

constexpr int kThreads = 256, kSoftmaxThreads = 128;

template <typename T> struct sums_of {
    using type = float;
};
template <> struct sums_of<double> {
    using type = double;
};

template <typename S> __device__ void convert(S x, double *y)
{
    *y = x;
}
template <typename S> __device__ void convert(S x, float *y)
{
    *y = (float)x;
}
template <typename S> __device__ void convert(S x, __nv_bfloat16 *y)
{
    *y = __float2bfloat16((float)x);
}

__device__ double widened(double x)
{
    return x;
}
__device__ double widened(float x)
{
    return x;
}
__device__ double widened(__nv_bfloat16 x)
{
    return __bfloat162float(x);
}

// Numbers that a thread copies at once.
template <typename T, int N> struct alignas(N * sizeof(T)) several {
    T of[N];
};

// A CTA copies a part of one row of a group. blockIdx.x: row, counted through all groups; blockIdx.y: part.
template <typename T, int N> __global__ void group(const tsr_grouped a)
{
    const size_t token = blockIdx.x % a.tokens, g = blockIdx.x / a.tokens;
    const auto *const x = (const several<double, N> *)(a.x + token * a.ld + g * a.width);
    auto *const y = (several<T, N> *)((T *)a.y + g * a.step + token * a.width);
    for (size_t i = (size_t)blockIdx.y * kThreads + threadIdx.x; i < a.width / N; i += (size_t)gridDim.y * kThreads) {
        const several<double, N> from = x[i];
        several<T, N> to;
        for (int k = 0; k < N; k++)
            convert(from.of[k], &to.of[k]);
        y[i] = to;
    }
}

template <typename S, int N> __global__ void ungroup(const tsr_grouped a, bool add)
{
    const size_t token = blockIdx.x % a.tokens, g = blockIdx.x / a.tokens;
    auto *const x = (several<double, N> *)(a.x + token * a.ld + g * a.width);
    const auto *const y = (const several<S, N> *)((const S *)a.y + g * a.step + token * a.width);
    for (size_t i = (size_t)blockIdx.y * kThreads + threadIdx.x; i < a.width / N; i += (size_t)gridDim.y * kThreads) {
        const several<S, N> from = y[i];
        several<double, N> to = {};
        if (add)
            to = x[i];
        for (int k = 0; k < N; k++)
            to.of[k] += widened(from.of[k]);
        x[i] = to;
    }
}

// The visible keys of a query: those of [begin, end), counted from the first one of the product, whose bits are set, if there are
// bits of positions.
struct seen_keys {
    size_t begin, end, first;
    const uint64_t *bits;

    __device__ bool has(size_t j) const
    {
        const size_t position = first + j;
        return j >= begin && j < end && (bits == nullptr || (bits[position / 64] >> (position % 64) & 1) != 0);
    }
};

__device__ seen_keys keys_of(const tsr_attention_softmax &s, size_t query, size_t head)
{
    const size_t place = s.first_query + query, seen = place + 1 < s.window ? place + 1 : s.window,
                 from = place + 1 - seen;
    const uint64_t *const bits =
        s.chosen == nullptr ? nullptr : s.chosen + (head / s.heads_of_choice * s.rows + s.first_row + query) * s.words;
    return {from > s.first_key ? from - s.first_key : 0, place + 1 - s.first_key, s.first_key, bits};
}

template <typename S> __device__ S scaled(const tsr_attention_softmax &s, S score)
{
    score *= (S)s.scale;
    return s.cap != 0 ? (S)s.cap * tanh(score / (S)s.cap) : score;
}

// A row of scores: of one query and head.
template <typename T> struct score_row {
    using S = typename sums_of<T>::type;
    const S *scores;
    T *probabilities;
    seen_keys seen;
    S sink;

    __device__ explicit score_row(const tsr_attention_softmax &s)
    {
        const size_t query = blockIdx.x / s.share, head = blockIdx.y * s.share + blockIdx.x % s.share;
        const size_t at = ((size_t)blockIdx.y * gridDim.x + blockIdx.x) * s.keys;
        scores = (const S *)s.scores + at;
        probabilities = (T *)s.probabilities + at;
        seen = keys_of(s, query, head);
        sink = s.sinks != nullptr ? (S)s.sinks[head] : -(S)INFINITY;
    }
};

// A CTA converts a row, of which each thread holds up to EACH scores in registers.
template <typename T, int EACH> __global__ void softmax(const tsr_attention_softmax s)
{
    using S = typename sums_of<T>::type;
    const score_row<T> row(s);
    S most = row.sink, sum = 0, held[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const size_t j = (size_t)i * kSoftmaxThreads + threadIdx.x;
        held[i] = row.seen.has(j) ? scaled(s, row.scores[j]) : -(S)INFINITY;
        most = fmax(most, held[i]);
    }
    most = reduce(most, larger());
#pragma unroll
    for (int i = 0; i < EACH; i++)
        sum += held[i] = exp(held[i] - most);
    const S share = 1 / (reduce(sum, add_up()) + exp(row.sink - most));
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const size_t j = (size_t)i * kSoftmaxThreads + threadIdx.x;
        if (j < s.keys)
            convert(held[i] * share, row.probabilities + j);
    }
}

// The same for rows of any length, which it reads three times.
template <typename T> __global__ void long_softmax(const tsr_attention_softmax s)
{
    using S = typename sums_of<T>::type;
    const score_row<T> row(s);
    S most = row.sink, sum = 0;
    for (size_t j = threadIdx.x; j < s.keys; j += kSoftmaxThreads)
        most = row.seen.has(j) ? fmax(most, scaled(s, row.scores[j])) : most;
    most = reduce(most, larger());
    for (size_t j = threadIdx.x; j < s.keys; j += kSoftmaxThreads)
        sum += row.seen.has(j) ? exp(scaled(s, row.scores[j]) - most) : 0;
    const S share = 1 / (reduce(sum, add_up()) + exp(row.sink - most));
    for (size_t j = threadIdx.x; j < s.keys; j += kSoftmaxThreads)
        convert(row.seen.has(j) ? exp(scaled(s, row.scores[j]) - most) * share : (S)0, row.probabilities + j);
}

template <typename T> void launch_softmax(const tsr_attention_softmax &s, tsr_stream stream)
{
    const dim3 grid((unsigned)(s.queries * s.share), (unsigned)s.groups);
    if (s.keys <= 4 * kSoftmaxThreads)
        softmax<T, 4><<<grid, kSoftmaxThreads, 0, stream>>>(s);
    else if (s.keys <= 8 * kSoftmaxThreads)
        softmax<T, 8><<<grid, kSoftmaxThreads, 0, stream>>>(s);
    else if (s.keys <= 12 * kSoftmaxThreads)
        softmax<T, 12><<<grid, kSoftmaxThreads, 0, stream>>>(s);
    else if (s.keys <= 16 * kSoftmaxThreads)
        softmax<T, 16><<<grid, kSoftmaxThreads, 0, stream>>>(s);
    else if (s.keys <= 32 * kSoftmaxThreads)
        softmax<T, 32><<<grid, kSoftmaxThreads, 0, stream>>>(s);
    else
        long_softmax<T><<<grid, kSoftmaxThreads, 0, stream>>>(s);
}

// Returns true if all rows of both arrays begin where pairs of numbers may.
bool has_pairs(const tsr_grouped *a)
{
    return a->width % 2 == 0 && a->ld % 2 == 0 && a->step % 2 == 0 && host::aligned(a->x, 16) &&
           host::aligned(a->y, 16);
}

// A thread copies up to four pairs.
dim3 grid_of(const tsr_grouped *a)
{
    return dim3((unsigned)(a->tokens * a->groups), (unsigned)((a->width + 8 * kThreads - 1) / (8 * kThreads)));
}

template <typename T> void launch_group(const tsr_grouped *a, tsr_stream stream)
{
    auto *const kernel = has_pairs(a) ? group<T, 2> : group<T, 1>;
    kernel<<<grid_of(a), kThreads, 0, stream>>>(*a);
}

template <typename S> void launch_ungroup(const tsr_grouped *a, bool add, tsr_stream stream)
{
    auto *const kernel = has_pairs(a) ? ungroup<S, 2> : ungroup<S, 1>;
    kernel<<<grid_of(a), kThreads, 0, stream>>>(*a, add);
}

} // namespace

extern "C" {

tsr_status tsr_cuda_group(const tsr_grouped *a, tsr_precision precision, tsr_stream stream, tsr_err *err)
{
    if (a->tokens * a->groups * a->width == 0)
        return TSR_OK;
    if (precision == TSR_PRECISION_FP64)
        launch_group<double>(a, stream);
    else if (precision == TSR_PRECISION_FP32)
        launch_group<float>(a, stream);
    else
        launch_group<__nv_bfloat16>(a, stream);
    return host::launched("operands of a product", cudaSuccess, err);
}

tsr_status tsr_cuda_ungroup(const tsr_grouped *a, tsr_precision precision, bool add, tsr_stream stream, tsr_err *err)
{
    if (a->tokens * a->groups * a->width == 0)
        return TSR_OK;
    if (precision == TSR_PRECISION_FP64)
        launch_ungroup<double>(a, add, stream);
    else if (precision == TSR_PRECISION_FP32)
        launch_ungroup<float>(a, add, stream);
    else
        launch_ungroup<__nv_bfloat16>(a, add, stream);
    return host::launched("results of a product", cudaSuccess, err);
}

tsr_status tsr_cuda_attention_softmax(const tsr_attention_softmax *s, tsr_stream stream, tsr_err *err)
{
    if (s->groups > 65535)
        return tsr_fail(err, TSR_E_SHAPE, "attention with %zu groups of heads exceeds the kernel's grid", s->groups);
    if (s->precision == TSR_PRECISION_FP64)
        launch_softmax<double>(*s, stream);
    else if (s->precision == TSR_PRECISION_FP32)
        launch_softmax<float>(*s, stream);
    else
        launch_softmax<__nv_bfloat16>(*s, stream);
    return host::launched("softmax of attention", cudaSuccess, err);
}

} // extern "C"
