/* Converts activations to operands of products and back, and computes the softmax of attention. */
#include "kernels/cuda/forward_products.h"

#include <cuda_bf16.h>

#include "kernels/cuda/block_reduce.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/several.cuh"

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
__device__ void convert(__nv_bfloat16 x, float *y)
{
    *y = __bfloat162float(x);
}

// A CTA copies a part of one row of a group. blockIdx.x: row, counted through all groups; blockIdx.y: part.
// A: the type of activations; T: that of the operand.
template <typename A, typename T, int N> __global__ void group(const tsr_grouped a)
{
    const size_t token = blockIdx.x % a.tokens, g = blockIdx.x / a.tokens;
    const auto *const x = (const several<A, N> *)((const A *)a.x + token * a.ld + g * a.width);
    auto *const y = (several<T, N> *)((T *)a.y + g * a.step + token * a.pitch);
    for (size_t i = (size_t)blockIdx.y * kThreads + threadIdx.x; i < a.width / N; i += (size_t)gridDim.y * kThreads) {
        const several<A, N> from = x[i];
        several<T, N> to;
        for (int k = 0; k < N; k++)
            convert(from.of[k], &to.of[k]);
        y[i] = to;
    }
}

template <typename A, typename T, int N> __global__ void ungroup(const tsr_grouped a)
{
    const size_t token = blockIdx.x % a.tokens, g = blockIdx.x / a.tokens;
    auto *const x = (several<A, N> *)((A *)a.x + token * a.ld + g * a.width);
    const auto *const y = (const several<T, N> *)((const T *)a.y + g * a.step + token * a.pitch);
    for (size_t i = (size_t)blockIdx.y * kThreads + threadIdx.x; i < a.width / N; i += (size_t)gridDim.y * kThreads) {
        const several<T, N> from = y[i];
        several<A, N> to;
        for (int k = 0; k < N; k++)
            convert(from.of[k], &to.of[k]);
        x[i] = to;
    }
}

// The visible keys of a query: those of [begin, end), counted from the first one of the product, and the first `entries` behind
// the `tokens`. Where there are bits of positions, or of entries, they have to be set.
struct seen_keys {
    size_t begin, end, first, tokens, entries;
    bool of_entries;
    const uint64_t *bits;

    __device__ bool is_chosen(size_t i) const
    {
        return bits == nullptr || (bits[i / 64] >> (i % 64) & 1) != 0;
    }

    __device__ bool has(size_t j) const
    {
        return j >= tokens ? j - tokens < entries && is_chosen(j - tokens)
                           : j >= begin && j < end && (of_entries || is_chosen(first + j));
    }
};

__device__ seen_keys keys_of(const tsr_attention_softmax &s, size_t query, size_t head)
{
    const size_t place = s.first_query + query, seen = place + 1 < s.window ? place + 1 : s.window,
                 from = place + 1 - seen;
    const uint64_t *const bits =
        s.chosen == nullptr ? nullptr : s.chosen + (head / s.heads_of_choice * s.rows + s.first_row + query) * s.words;
    return {from > s.first_key ? from - s.first_key : 0,
            place + 1 - s.first_key,
            s.first_key,
            s.keys - s.entries,
            s.entries > 0 ? (place + 1) / s.rate : 0,
            s.rate > 0,
            bits};
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

constexpr int kAtOnce = 4; // numbers of a vector

// Returns true if all rows of both arrays begin where vectors may.
bool has_vectors(const tsr_grouped *a)
{
    return a->width % kAtOnce == 0 && a->ld % kAtOnce == 0 && a->pitch % kAtOnce == 0 && a->step % kAtOnce == 0 &&
           host::aligned(a->x, 32) && host::aligned(a->y, 32);
}

// A thread copies up to four vectors.
dim3 grid_of(const tsr_grouped *a)
{
    constexpr size_t kEach = 4 * kAtOnce * kThreads;
    return dim3((unsigned)(a->tokens * a->groups), (unsigned)((a->width + kEach - 1) / kEach));
}

template <typename A, typename T> void launch_group(const tsr_grouped *a, bool back, tsr_stream stream)
{
    auto *const to = has_vectors(a) ? group<A, T, kAtOnce> : group<A, T, 1>;
    auto *const from = has_vectors(a) ? ungroup<A, T, kAtOnce> : ungroup<A, T, 1>;
    (back ? from : to)<<<grid_of(a), kThreads, 0, stream>>>(*a);
}

tsr_status copy_groups(const tsr_grouped *a, tsr_precision precision, bool back, tsr_stream stream, tsr_err *err)
{
    if (a->tokens * a->groups * a->width == 0)
        return TSR_OK;
    if (precision == TSR_PRECISION_FP64)
        launch_group<double, double>(a, back, stream);
    else if (precision == TSR_PRECISION_FP32)
        launch_group<float, float>(a, back, stream);
    else
        launch_group<float, __nv_bfloat16>(a, back, stream);
    return host::launched("operands of a product", cudaSuccess, err);
}

} // namespace

extern "C" {

tsr_status tsr_cuda_group(const tsr_grouped *a, tsr_precision precision, tsr_stream stream, tsr_err *err)
{
    return copy_groups(a, precision, false, stream, err);
}

tsr_status tsr_cuda_ungroup(const tsr_grouped *a, tsr_precision precision, tsr_stream stream, tsr_err *err)
{
    return copy_groups(a, precision, true, stream, err);
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
