/* Computes the operations of a forward pass on a GPU between its products. */
#include "kernels/cuda/activation_ops.h"

#include <initializer_list>

#include "kernels/cuda/block_reduce.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/several.cuh"

namespace
{

constexpr int kWide = 256;

// ---- rows: blockIdx.x is the row, or one CTA has a whole row; N elements are loaded at once ----

template <typename T, int N> __global__ void norm(const tsr_act_norm a)
{
    using vector = several<T, N>;
    const auto *const x = (const vector *)((const T *)a.x + blockIdx.x * a.ld_x);
    auto *const y = (vector *)((T *)a.y + blockIdx.x * a.ld_y);
    T sum = 0;
    for (size_t i = threadIdx.x; i < a.n / N; i += blockDim.x) {
        const vector v = x[i];
        for (int k = 0; k < N; k++)
            sum += v.of[k] * v.of[k];
    }
    const T r = 1 / sqrt(reduce(sum, add_up()) / (T)a.n + (T)a.eps);
    for (size_t i = threadIdx.x; i < a.n / N; i += blockDim.x) {
        vector v = x[i];
        for (int k = 0; k < N; k++)
            v.of[k] *= a.gain == nullptr ? r : r * (T)a.gain[i * N + k];
        y[i] = v;
    }
}

template <typename T> __global__ void center(const T *x, size_t n, T *y)
{
    const size_t at = blockIdx.x * n;
    T sum = 0;
    for (size_t i = threadIdx.x; i < n; i += blockDim.x)
        sum += x[at + i];
    const T mean = reduce(sum, add_up()) / (T)n;
    for (size_t i = threadIdx.x; i < n; i += blockDim.x)
        y[at + i] = x[at + i] - mean;
}

template <typename T> __device__ T gated(tsr_gate kind, T limit, T g, T u)
{
    switch (kind) {
    case TSR_GATE_SILU:
        return g / (1 + exp(-g)) * u;
    case TSR_GATE_GELU_TANH:
        return (T)0.5 * g * (1 + tanh((T)0.79788456080286535588 * (g + (T)0.044715 * g * g * g))) * u;
    case TSR_GATE_RELU2:
        return g < 0 ? 0 : g * g;
    case TSR_GATE_SIGMOID:
        return u / (1 + exp(-g));
    case TSR_GATE_LIMITED:
    case TSR_GATE_CLAMPED:
        g = g > limit ? limit : g;
        u = u > limit ? limit : u < -limit ? -limit : u;
        return kind == TSR_GATE_LIMITED ? g / (1 + exp(-g)) * u : g / (1 + exp((T)-1.702 * g)) * (u + 1);
    }
    return (T)NAN;
}

// With N > 1, a.step is 1.
template <typename T, int N> __global__ void gate(const tsr_act_gate a)
{
    using vector = several<T, N>;
    const T *const g = (const T *)a.gate + blockIdx.x * a.ld, *const u = (const T *)a.up + blockIdx.x * a.ld;
    auto *const y = (vector *)((T *)a.y + blockIdx.x * a.n);
    for (size_t i = (size_t)blockIdx.y * kWide + threadIdx.x; i < a.n / N; i += (size_t)gridDim.y * kWide) {
        const size_t at = N == 1 ? i * a.step : i * N;
        const vector from = *(const vector *)(g + at), up = *(const vector *)(u + at);
        vector to;
        for (int k = 0; k < N; k++)
            to.of[k] = gated(a.kind, (T)a.limit, from.of[k], up.of[k]);
        y[i] = to;
    }
}

template <typename T, int N> __global__ void move_rows(const tsr_act_rows a)
{
    using vector = several<T, N>;
    const size_t row = blockIdx.x, to = a.to_row != nullptr ? a.to_row[row] : row,
                 from = a.from_row != nullptr ? a.from_row[row] : row;
    const auto *const x = (const vector *)((const T *)a.x + from * a.ld_x);
    auto *const y = (vector *)((T *)a.y + to * a.ld_y);
    const T weight = a.weight != nullptr ? (T)a.weight[row] : 1;
    for (size_t i = (size_t)blockIdx.y * kWide + threadIdx.x; i < a.n / N; i += (size_t)gridDim.y * kWide) {
        vector v = x[i], old = {};
        if (a.add)
            old = y[i];
        for (int k = 0; k < N; k++)
            v.of[k] = old.of[k] + weight * v.of[k];
        y[i] = v;
    }
}

template <typename T> __global__ void turn(const tsr_act_turn t)
{
    const unsigned each = (unsigned)(t.heads * t.pairs), pairs = (unsigned)t.pairs;
    T *const row = (T *)t.x + blockIdx.x * t.ld + t.at;
    const double *const angles = t.angles + (size_t)t.places[blockIdx.x] * t.pairs * 2;
    for (unsigned i = blockIdx.y * kWide + threadIdx.x; i < each; i += gridDim.y * kWide) {
        const unsigned head = i / pairs, pair = i % pairs;
        T *const x = row + head * t.step;
        T *const p = t.adjacent ? x + 2 * pair : x + pair, *const q = t.adjacent ? p + 1 : x + pair + pairs;
        const T u = *p, v = *q, c = (T)angles[2 * pair], turned = (T)angles[2 * pair + 1],
                s = t.back ? -turned : turned;
        *p = u * c - v * s;
        *q = v * c + u * s;
    }
}

// ---- sums over rows ----

constexpr size_t kRowsOfAPart = 256;

// Sums of one column; `least` becomes NaN with the first element that is not finite, and stays NaN.
template <typename T> struct column_sum {
    double squares;
    T least, largest;

    __device__ void add(double square, T low, T high)
    {
        squares += square;
        least = low < least || isnan(low) ? low : least;
        largest = high > largest ? high : largest;
    }

    __device__ void store(double *to, size_t cols) const
    {
        to[0] = squares;
        to[cols] = least;
        to[2 * cols] = largest;
    }
};

// A thread sums one column of a part.
template <typename T> __global__ void sum_columns(const T *x, size_t n, size_t cols, double *parts)
{
    const size_t col = (size_t)blockIdx.x * blockDim.x + threadIdx.x, first = blockIdx.y * kRowsOfAPart;
    const size_t end = n < first + kRowsOfAPart ? n : first + kRowsOfAPart;
    column_sum<T> sum = {0, (T)INFINITY, -(T)INFINITY};
    if (col >= cols)
        return;
#pragma unroll 8
    for (size_t row = first; row < end; row++) {
        const T v = x[row * cols + col];
        sum.add((double)v * (double)v, isfinite(v) ? v : (T)NAN, v);
    }
    sum.store(parts + blockIdx.y * TSR_ACT_COLUMN_SUMS * cols + col, cols);
}

// Adds up the parts of 32 columns, into the first ones. Each of kAdders threads of a column adds up every kAdders-th part.
constexpr int kAdders = 16;

__global__ void add_parts(double *parts, size_t n_parts, size_t cols)
{
    __shared__ column_sum<double> sums[kAdders][32];
    const size_t col = (size_t)blockIdx.x * 32 + threadIdx.x;
    column_sum<double> sum = {0, INFINITY, -INFINITY};
    for (size_t i = threadIdx.y; col < cols && i < n_parts; i += kAdders) {
        const double *const part = parts + i * TSR_ACT_COLUMN_SUMS * cols + col;
        sum.add(part[0], part[cols], part[2 * cols]);
    }
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y > 0 || col >= cols)
        return;
    for (int i = 1; i < kAdders; i++)
        sum.add(sums[i][threadIdx.x].squares, sums[i][threadIdx.x].least, sums[i][threadIdx.x].largest);
    sum.store(parts + col, cols);
}

// ---- rounding: bit for bit verify/forward/inputs.c ----

__device__ double round_to(double x, int bits, int least, double most)
{
    int exponent;
    if (!(fabs(x) <= most))
        return isnan(x) ? x : copysign(most, x);
    frexp(x, &exponent);
    const double step = ldexp(1.0, (exponent - 1 > least ? exponent - 1 : least) - bits);
    return rint(x / step) * step;
}

__device__ double power_above(double x)
{
    int exponent;
    const double fraction = frexp(x, &exponent);
    return ldexp(1.0, fraction == 0.5 ? exponent - 1 : exponent);
}

__device__ double to_bf16(double x)
{
    constexpr double kMost = 0x1.FEp127, kBeyond = 0x1.FFp127;
    if (!isfinite(x))
        return x;
    return fabs(x) >= kBeyond ? copysign((double)INFINITY, x) : round_to(x, 7, -126, kMost);
}

struct code_scale {
    double scale, zero;
};

template <typename T> __device__ code_scale find_scale(const tsr_act_quantize &q, const T *x, size_t n)
{
    double most = 0, high = -INFINITY, low = INFINITY;
    for (size_t i = threadIdx.x; i < n; i += blockDim.x) {
        most = fmax(most, fabs((double)x[i]));
        high = fmax(high, (double)x[i]);
        low = fmin(low, (double)x[i]);
    }
    most = reduce(most, larger());
    if (q.type == 1) {
        const double scale = q.scale != 0 ? q.scale : (double)(float)(fmax(most, 1e-10) / 448);
        return {q.powers_of_two ? power_above(scale) : scale, 0};
    }
    if (q.type == 3)
        return {q.powers_of_two ? power_above(fmax(most, 0x1p-120) / 6)
                                : round_to((double)(float)(most * q.scale / 6), 3, -6, 448) / q.scale,
                0};
    if (q.scale != 0)
        return {q.scale, q.zero};
    if (!q.zero_points)
        return {(double)(float)(most / 127), 0};
    high = reduce(high, larger());
    low = reduce(low, smaller());
    const double scale = (double)(float)((high - low) / 255);
    return {scale, scale == 0 ? 0 : rint(-128 - low / scale)};
}

template <typename T> __global__ void quantize(const tsr_act_quantize q)
{
    const size_t groups = (q.n + q.group - 1) / q.group, g = blockIdx.x % groups;
    T *const x = (T *)q.x + blockIdx.x / groups * q.n + g * q.group;
    const size_t n = q.n - g * q.group < q.group ? q.n - g * q.group : q.group;
    const code_scale s = find_scale(q, x, n);
    for (size_t i = threadIdx.x; i < n; i += blockDim.x) {
        const double ratio = (double)(float)((double)x[i] / s.scale);
        if (q.type == 1)
            x[i] = (T)(round_to(ratio, 3, -6, 448) * s.scale);
        else if (q.type == 3)
            x[i] = s.scale == 0 ? 0 : (T)(round_to(ratio, 1, 0, 6) * s.scale);
        else if (s.scale != 0 && !isnan(x[i]))
            x[i] = (T)((fmin(fmax(rint(ratio) + s.zero, -128.0), 127.0) - s.zero) * s.scale);
    }
}

// ---- element by element ----

template <typename T> __global__ void index_scores(const tsr_act_index a)
{
    const size_t all = a.queries * a.keys;
    const auto *const of_heads = (const T *)a.of_heads;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < all; i += (size_t)gridDim.x * blockDim.x) {
        const T *const weights = (const T *)a.weights + i / a.keys * a.heads;
        T sum = 0;
        for (size_t h = 0; h < a.heads; h++) {
            const T score = of_heads[h * all + i];
            sum += score < 0 ? 0 : weights[h] * score;
        }
        ((T *)a.scores)[i] = sum;
    }
}

// A thread computes one channel of an entry.
template <typename T> __global__ void compress(const tsr_act_compress a)
{
    const size_t all = a.entries * a.dim, width = a.overlaps ? 2 * a.dim : a.dim;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < all; i += (size_t)gridDim.x * blockDim.x) {
        const size_t entry = i / a.dim, own = i % a.dim + width - a.dim;
        const size_t before = a.overlaps && a.number[entry] > 0 ? a.rate : 0; // tokens of the window before
        const size_t first = (size_t)a.token[entry] - before;
        T most = -(T)INFINITY, sum = 0, total = 0;
        for (size_t k = 0; k < before + a.rate; k++) {
            const size_t column = k < before ? i % a.dim : own;
            most =
                fmax(most, ((const T *)a.gates)[(first + k) * width + column] + (T)a.bias[k % a.rate * width + column]);
        }
        for (size_t k = 0; k < before + a.rate; k++) {
            const size_t column = k < before ? i % a.dim : own, at = (first + k) * width + column;
            const T share = exp(((const T *)a.gates)[at] + (T)a.bias[k % a.rate * width + column] - most);
            total += share;
            sum += share * ((const T *)a.values)[at];
        }
        ((T *)a.out)[i] = sum / total;
    }
}

template <typename T> __global__ void fill(T *y, size_t n, const double *x)
{
    for (size_t i = (size_t)blockIdx.y * kWide + threadIdx.x; i < n; i += (size_t)gridDim.y * kWide)
        y[blockIdx.x * n + i] = (T)x[i];
}

template <typename T> __global__ void scale(T *x, size_t n, double by)
{
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        x[i] *= (T)by;
}

template <typename T> __global__ void round_all(T *x, size_t n)
{
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        x[i] = (T)to_bf16(x[i]);
}

// ---- launches ----

unsigned ctas_for(size_t n)
{
    const size_t ctas = (n + kWide - 1) / kWide;
    return (unsigned)(ctas < 65536 ? ctas : 65536);
}

// A thread has up to four of the `n` elements or vectors of a row.
dim3 row_grid(size_t rows, size_t n)
{
    const size_t parts = (n + 4 * kWide - 1) / (4 * kWide);
    return dim3((unsigned)rows, (unsigned)(parts < 65535 ? parts : 65535));
}

// Calls run(T()) with the type of activations.
template <typename RUN> void by_type(tsr_precision precision, RUN run)
{
    if (precision == TSR_PRECISION_FP64)
        run(double());
    else
        run(float());
}

template <typename T> constexpr int kEach = 16 / sizeof(T); // elements of a vector

// Returns true if vectors of 16 bytes begin at these addresses and after each of these numbers of elements.
template <typename T> bool has_vectors(std::initializer_list<const void *> arrays, std::initializer_list<size_t> steps)
{
    bool fine = true;
    for (const void *const x : arrays)
        fine = fine && host::aligned(x, 16);
    for (const size_t step : steps)
        fine = fine && step % kEach<T> == 0;
    return fine;
}

} // namespace

extern "C" {

tsr_status tsr_cuda_act_index(const tsr_act_index *a, tsr_precision precision, tsr_stream stream, tsr_err *err)
{
    const unsigned ctas = ctas_for(a->queries * a->keys);
    if (ctas > 0)
        by_type(precision, [&](auto t) { index_scores<decltype(t)><<<ctas, kWide, 0, stream>>>(*a); });
    return host::launched("scores of tokens", cudaSuccess, err);
}

tsr_status tsr_cuda_act_compress(const tsr_act_compress *a, tsr_precision precision, tsr_stream stream, tsr_err *err)
{
    const unsigned ctas = ctas_for(a->entries * a->dim);
    if (ctas > 0)
        by_type(precision, [&](auto t) { compress<decltype(t)><<<ctas, kWide, 0, stream>>>(*a); });
    return host::launched("entries of a compressed cache", cudaSuccess, err);
}

tsr_status tsr_cuda_act_norm(const tsr_act_norm *a, tsr_precision precision, tsr_stream stream, tsr_err *err)
{
    const int threads = a->n <= 256 ? 64 : kWide;
    if (a->rows > 0)
        by_type(precision, [&](auto t) {
            using T = decltype(t);
            auto *const kernel =
                has_vectors<T>({a->x, a->y}, {a->n, a->ld_x, a->ld_y}) ? norm<T, kEach<T>> : norm<T, 1>;
            kernel<<<(unsigned)a->rows, threads, 0, stream>>>(*a);
        });
    return host::launched("a norm", cudaSuccess, err);
}

tsr_status tsr_cuda_act_center(const void *x, size_t rows, size_t n, void *y, tsr_precision precision,
                               tsr_stream stream, tsr_err *err)
{
    if (rows > 0)
        by_type(precision, [&](auto t) {
            using T = decltype(t);
            center<T><<<(unsigned)rows, kWide, 0, stream>>>((const T *)x, n, (T *)y);
        });
    return host::launched("means of rows", cudaSuccess, err);
}

size_t tsr_cuda_act_column_parts(size_t n)
{
    return (n + kRowsOfAPart - 1) / kRowsOfAPart;
}

tsr_status tsr_cuda_act_columns(const void *x, size_t n, size_t cols, double *parts, tsr_precision precision,
                                tsr_stream stream, tsr_err *err)
{
    const dim3 grid((unsigned)((cols + kWide - 1) / kWide), (unsigned)tsr_cuda_act_column_parts(n));
    if (n * cols == 0)
        return TSR_OK;
    if (grid.y > 65535)
        return tsr_fail(err, TSR_E_SHAPE, "sums over %zu rows exceed the kernel's grid", n);
    by_type(precision, [&](auto t) {
        using T = decltype(t);
        sum_columns<T><<<grid, kWide, 0, stream>>>((const T *)x, n, cols, parts);
    });
    add_parts<<<(unsigned)((cols + 31) / 32), dim3(32, kAdders), 0, stream>>>(parts, grid.y, cols);
    return host::launched("sums of columns", cudaSuccess, err);
}

tsr_status tsr_cuda_act_turn(const tsr_act_turn *a, tsr_precision precision, tsr_stream stream, tsr_err *err)
{
    const dim3 grid = row_grid(a->rows, a->heads * a->pairs);
    if (a->heads * a->pairs > UINT32_MAX / 2)
        return tsr_fail(err, TSR_E_SHAPE, "RoPE of %zu heads exceeds the kernel's grid", a->heads);
    if (grid.x > 0 && grid.y > 0)
        by_type(precision, [&](auto t) { turn<decltype(t)><<<grid, kWide, 0, stream>>>(*a); });
    return host::launched("RoPE", cudaSuccess, err);
}

tsr_status tsr_cuda_act_gate(const tsr_act_gate *a, tsr_precision precision, tsr_stream stream, tsr_err *err)
{
    if (a->rows * a->n > 0)
        by_type(precision, [&](auto t) {
            using T = decltype(t);
            const bool wide = a->step == 1 && has_vectors<T>({a->gate, a->up, a->y}, {a->n, a->ld});
            auto *const kernel = wide ? gate<T, kEach<T>> : gate<T, 1>;
            kernel<<<row_grid(a->rows, wide ? a->n / kEach<T> : a->n), kWide, 0, stream>>>(*a);
        });
    return host::launched("a gate", cudaSuccess, err);
}

tsr_status tsr_cuda_act_rows(const tsr_act_rows *a, tsr_precision precision, tsr_stream stream, tsr_err *err)
{
    if (a->rows * a->n > 0)
        by_type(precision, [&](auto t) {
            using T = decltype(t);
            const bool wide = has_vectors<T>({a->x, a->y}, {a->n, a->ld_x, a->ld_y});
            auto *const kernel = wide ? move_rows<T, kEach<T>> : move_rows<T, 1>;
            kernel<<<row_grid(a->rows, wide ? a->n / kEach<T> : a->n), kWide, 0, stream>>>(*a);
        });
    return host::launched("rows", cudaSuccess, err);
}

tsr_status tsr_cuda_act_fill(void *y, size_t rows, size_t n, const double *x, tsr_precision precision,
                             tsr_stream stream, tsr_err *err)
{
    if (rows * n > 0)
        by_type(precision, [&](auto t) {
            using T = decltype(t);
            fill<T><<<row_grid(rows, n), kWide, 0, stream>>>((T *)y, n, x);
        });
    return host::launched("filling rows", cudaSuccess, err);
}

tsr_status tsr_cuda_act_scale(void *x, size_t n, double by, tsr_precision precision, tsr_stream stream, tsr_err *err)
{
    if (n > 0)
        by_type(precision, [&](auto t) {
            using T = decltype(t);
            scale<T><<<ctas_for(n), kWide, 0, stream>>>((T *)x, n, by);
        });
    return host::launched("a factor", cudaSuccess, err);
}

tsr_status tsr_cuda_act_round(void *x, size_t n, tsr_precision precision, tsr_stream stream, tsr_err *err)
{
    if (n > 0)
        by_type(precision, [&](auto t) {
            using T = decltype(t);
            round_all<T><<<ctas_for(n), kWide, 0, stream>>>((T *)x, n);
        });
    return host::launched("rounding to BF16", cudaSuccess, err);
}

tsr_status tsr_cuda_act_quantize(const tsr_act_quantize *a, tsr_precision precision, tsr_stream stream, tsr_err *err)
{
    tsr_act_quantize q = *a;
    q.group = q.group == 0 || q.group > q.n ? q.n : q.group;
    if (q.rows * q.n > 0)
        by_type(precision, [&](auto t) {
            const size_t groups = q.rows * ((q.n + q.group - 1) / q.group);
            quantize<decltype(t)><<<(unsigned)groups, q.group <= 128 ? 64 : kWide, 0, stream>>>(q);
        });
    return host::launched("quantizing inputs", cudaSuccess, err);
}

} // extern "C"
