/* Computes the operations of a forward pass on a GPU in FP64, except products and attention. */
#include "kernels/cuda/forward_f64.h"

#include "kernels/cuda/block_reduce.cuh"
#include "kernels/cuda/launch.cuh"

namespace
{

__global__ void index_scores(const tsr_f64_index a)
{
    const size_t all = a.queries * a.keys;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < all; i += (size_t)gridDim.x * blockDim.x) {
        const double *const weights = a.weights + i / a.keys * a.heads;
        double sum = 0;
        for (size_t h = 0; h < a.heads; h++) {
            const double score = a.of_heads[h * all + i];
            sum += score < 0 ? 0 : weights[h] * score;
        }
        a.scores[i] = sum;
    }
}

__global__ void norm(const tsr_f64_norm a)
{
    const double *const x = a.x + blockIdx.x * a.ld_x;
    double *const y = a.y + blockIdx.x * a.ld_y;
    double sum = 0;
    for (size_t i = threadIdx.x; i < a.n; i += blockDim.x)
        sum += x[i] * x[i];
    const double r = 1 / sqrt(reduce(sum, add_up()) / (double)a.n + a.eps);
    for (size_t i = threadIdx.x; i < a.n; i += blockDim.x)
        y[i] = x[i] * r * a.gain[i];
}

__global__ void center(const double *x, size_t n, double *y)
{
    const size_t at = blockIdx.x * n;
    double sum = 0;
    for (size_t i = threadIdx.x; i < n; i += blockDim.x)
        sum += x[at + i];
    const double mean = reduce(sum, add_up()) / (double)n;
    for (size_t i = threadIdx.x; i < n; i += blockDim.x)
        y[at + i] = x[at + i] - mean;
}

// ---- sums over rows ----

constexpr size_t kRowsOfAPart = 256;

// Sums of one column; `least` becomes NaN with the first element that is not finite, and stays NaN.
struct column_sum {
    double squares, least, largest;

    __device__ void add(double square, double low, double high)
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
__global__ void sum_columns(const double *x, size_t n, size_t cols, double *parts)
{
    const size_t col = (size_t)blockIdx.x * blockDim.x + threadIdx.x, first = blockIdx.y * kRowsOfAPart;
    column_sum sum = {0, INFINITY, -INFINITY};
    if (col >= cols)
        return;
    for (size_t row = first; row < n && row < first + kRowsOfAPart; row++) {
        const double v = x[row * cols + col];
        sum.add(v * v, isfinite(v) ? v : NAN, v);
    }
    sum.store(parts + blockIdx.y * TSR_F64_COLUMN_SUMS * cols + col, cols);
}

// Adds up the parts of 32 columns, into the first ones. Each of kAdders threads of a column adds up every kAdders-th part.
constexpr int kAdders = 16;

__global__ void add_parts(double *parts, size_t n_parts, size_t cols)
{
    __shared__ column_sum sums[kAdders][32];
    const size_t col = (size_t)blockIdx.x * 32 + threadIdx.x;
    column_sum sum = {0, INFINITY, -INFINITY};
    for (size_t i = threadIdx.y; col < cols && i < n_parts; i += kAdders) {
        const double *const part = parts + i * TSR_F64_COLUMN_SUMS * cols + col;
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

__device__ code_scale find_scale(const tsr_f64_quantize &q, const double *x, size_t n)
{
    double most = 0, high = -INFINITY, low = INFINITY;
    for (size_t i = threadIdx.x; i < n; i += blockDim.x) {
        most = fmax(most, fabs(x[i]));
        high = fmax(high, x[i]);
        low = fmin(low, x[i]);
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

__global__ void quantize(const tsr_f64_quantize q)
{
    const size_t groups = (q.n + q.group - 1) / q.group, g = blockIdx.x % groups;
    double *const x = q.x + blockIdx.x / groups * q.n + g * q.group;
    const size_t n = q.n - g * q.group < q.group ? q.n - g * q.group : q.group;
    const code_scale s = find_scale(q, x, n);
    for (size_t i = threadIdx.x; i < n; i += blockDim.x) {
        const double ratio = (double)(float)(x[i] / s.scale);
        if (q.type == 1)
            x[i] = round_to(ratio, 3, -6, 448) * s.scale;
        else if (q.type == 3)
            x[i] = s.scale == 0 ? 0 : round_to(ratio, 1, 0, 6) * s.scale;
        else if (s.scale != 0 && !isnan(x[i]))
            x[i] = (fmin(fmax(rint(ratio) + s.zero, -128.0), 127.0) - s.zero) * s.scale;
    }
}

// ---- element by element ----

__global__ void turn(const tsr_f64_turn t)
{
    const size_t each = t.heads * t.pairs, all = t.rows * each;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < all; i += (size_t)gridDim.x * blockDim.x) {
        const size_t row = i / each, head = i % each / t.pairs, pair = i % t.pairs;
        double *const x = t.x + row * t.ld + t.at + head * t.step;
        double *const p = t.adjacent ? x + 2 * pair : x + pair, *const q = t.adjacent ? p + 1 : x + pair + t.pairs;
        const double *const angle = t.angles + ((size_t)t.places[row] * t.pairs + pair) * 2;
        const double u = *p, v = *q;
        *p = u * angle[0] - v * angle[1];
        *q = v * angle[0] + u * angle[1];
    }
}

__device__ double gated(int kind, double limit, double g, double u)
{
    if (kind == 0)
        return g / (1 + exp(-g)) * u;
    if (kind == 1)
        return 0.5 * g * (1 + tanh(0.79788456080286535588 * (g + 0.044715 * g * g * g))) * u;
    if (kind == 3)
        return g < 0 ? 0 : g * g;
    if (kind == 4)
        return u / (1 + exp(-g));
    g = g > limit ? limit : g;
    u = u > limit ? limit : u < -limit ? -limit : u;
    return g / (1 + exp(-1.702 * g)) * (u + 1);
}

__global__ void gate(const tsr_f64_gate a)
{
    const size_t all = a.rows * a.n;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < all; i += (size_t)gridDim.x * blockDim.x) {
        const size_t at = i / a.n * a.ld + i % a.n * a.step;
        a.y[i] = gated(a.kind, a.limit, a.gate[at], a.up[at]);
    }
}

__global__ void move_rows(const tsr_f64_rows a)
{
    const size_t all = a.rows * a.n;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < all; i += (size_t)gridDim.x * blockDim.x) {
        const size_t row = i / a.n, k = i % a.n;
        const size_t to = a.to_row != nullptr ? a.to_row[row] : row,
                     from = a.from_row != nullptr ? a.from_row[row] : row;
        const double x = (a.weight != nullptr ? a.weight[row] : 1) * a.x[from * a.ld_x + k];
        double *const y = a.y + to * a.ld_y + k;
        *y = a.add ? *y + x : x;
    }
}

__global__ void scale(double *x, size_t n, double by)
{
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        x[i] *= by;
}

__global__ void round_all(double *x, size_t n)
{
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        x[i] = to_bf16(x[i]);
}

constexpr int kWide = 256;

unsigned ctas_for(size_t n)
{
    const size_t ctas = (n + kWide - 1) / kWide;
    return (unsigned)(ctas < 65536 ? ctas : 65536);
}

} // namespace

extern "C" {

tsr_status tsr_cuda_f64_index(const tsr_f64_index *a, tsr_stream stream, tsr_err *err)
{
    if (a->queries * a->keys > 0)
        index_scores<<<ctas_for(a->queries * a->keys), kWide, 0, stream>>>(*a);
    return host::launched("FP64 scores of tokens", cudaSuccess, err);
}

tsr_status tsr_cuda_f64_norm(const tsr_f64_norm *a, tsr_stream stream, tsr_err *err)
{
    if (a->rows > 0)
        norm<<<(unsigned)a->rows, kWide, 0, stream>>>(*a);
    return host::launched("FP64 norm", cudaSuccess, err);
}

tsr_status tsr_cuda_f64_center(const double *x, size_t rows, size_t n, double *y, tsr_stream stream, tsr_err *err)
{
    if (rows > 0)
        center<<<(unsigned)rows, kWide, 0, stream>>>(x, n, y);
    return host::launched("FP64 center", cudaSuccess, err);
}

size_t tsr_cuda_f64_column_parts(size_t n)
{
    return (n + kRowsOfAPart - 1) / kRowsOfAPart;
}

tsr_status tsr_cuda_f64_columns(const double *x, size_t n, size_t cols, double *parts, tsr_stream stream, tsr_err *err)
{
    const dim3 grid((unsigned)((cols + kWide - 1) / kWide), (unsigned)tsr_cuda_f64_column_parts(n));
    if (n * cols == 0)
        return TSR_OK;
    if (grid.y > 65535)
        return tsr_fail(err, TSR_E_SHAPE, "sums over %zu rows exceed the kernel's grid", n);
    sum_columns<<<grid, kWide, 0, stream>>>(x, n, cols, parts);
    add_parts<<<(unsigned)((cols + 31) / 32), dim3(32, kAdders), 0, stream>>>(parts, grid.y, cols);
    return host::launched("FP64 column sums", cudaSuccess, err);
}

tsr_status tsr_cuda_f64_turn(const tsr_f64_turn *a, tsr_stream stream, tsr_err *err)
{
    if (a->rows * a->heads * a->pairs > 0)
        turn<<<ctas_for(a->rows * a->heads * a->pairs), kWide, 0, stream>>>(*a);
    return host::launched("FP64 RoPE", cudaSuccess, err);
}

tsr_status tsr_cuda_f64_gate(const tsr_f64_gate *a, tsr_stream stream, tsr_err *err)
{
    if (a->rows * a->n > 0)
        gate<<<ctas_for(a->rows * a->n), kWide, 0, stream>>>(*a);
    return host::launched("FP64 gate", cudaSuccess, err);
}

tsr_status tsr_cuda_f64_rows(const tsr_f64_rows *a, tsr_stream stream, tsr_err *err)
{
    if (a->rows * a->n > 0)
        move_rows<<<ctas_for(a->rows * a->n), kWide, 0, stream>>>(*a);
    return host::launched("FP64 rows", cudaSuccess, err);
}

tsr_status tsr_cuda_f64_scale(double *x, size_t n, double by, tsr_stream stream, tsr_err *err)
{
    if (n > 0)
        scale<<<ctas_for(n), kWide, 0, stream>>>(x, n, by);
    return host::launched("FP64 scale", cudaSuccess, err);
}

tsr_status tsr_cuda_f64_round(double *x, size_t n, tsr_stream stream, tsr_err *err)
{
    if (n > 0)
        round_all<<<ctas_for(n), kWide, 0, stream>>>(x, n);
    return host::launched("rounding to BF16", cudaSuccess, err);
}

tsr_status tsr_cuda_f64_quantize(const tsr_f64_quantize *a, tsr_stream stream, tsr_err *err)
{
    tsr_f64_quantize q = *a;
    q.group = q.group == 0 || q.group > q.n ? q.n : q.group;
    if (q.rows * q.n > 0)
        quantize<<<(unsigned)(q.rows * ((q.n + q.group - 1) / q.group)), q.group <= 128 ? 64 : kWide, 0, stream>>>(q);
    return host::launched("quantizing inputs", cudaSuccess, err);
}

} // extern "C"
