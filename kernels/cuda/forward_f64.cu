/* FP64 on a GPU: a product whose tiles pass through shared memory in three stages, and plain kernels around it. */
#include "kernels/cuda/forward_f64.h"

#include "kernels/cuda/launch.cuh"

namespace
{

// ---- the product ----

// A CTA computes 128 x 64 of C, and each of its 8 warps 32 x 32. A row has 16 columns and 4 of padding, so that the 32
// doubles that a
// warp loads for one m8n8k4 are in different banks.
constexpr int kTileM = 128, kTileN = 64, kTileK = 16, kLd = kTileK + 4, kStages = 3, kThreads = 256;
constexpr int kStage = (kTileM + kTileN) * kLd;
constexpr int kShared = kStages * kStage * (int)sizeof(double);

__device__ void copy_or_zero(double *to, const double *from, bool there)
{
    const unsigned at = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;\n" ::"r"(at), "l"(from), "r"(there ? 8 : 0));
}

__device__ void multiply_add(double (&c)[2], double a, double b)
{
    asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {%2}, {%3}, {%0,%1};\n"
                 : "+d"(c[0]), "+d"(c[1])
                 : "d"(a), "d"(b));
}

template <bool A_ACROSS, bool ACROSS>
__device__ void load_stage(double *stage, const tsr_f64_gemm &g, const double *a, const double *b, size_t m0, size_t n0,
                           size_t k0)
{
    for (int i = threadIdx.x; i < kTileM * kTileK; i += kThreads) {
        const int row = A_ACROSS ? i % kTileM : i / kTileK, col = A_ACROSS ? i / kTileM : i % kTileK;
        const size_t m = m0 + row, k = k0 + col;
        const bool there = m < g.m && k < g.k;
        copy_or_zero(stage + row * kLd + col, there ? a + (A_ACROSS ? k * g.lda + m : m * g.lda + k) : a, there);
    }
    for (int i = threadIdx.x; i < kTileN * kTileK; i += kThreads) {
        const int row = ACROSS ? i % kTileN : i / kTileK, col = ACROSS ? i / kTileN : i % kTileK;
        const size_t n = n0 + row, k = k0 + col;
        const bool there = n < g.n && k < g.k;
        copy_or_zero(stage + (kTileM + row) * kLd + col, there ? b + (ACROSS ? k * g.ldb + n : n * g.ldb + k) : b,
                     there);
    }
    asm volatile("cp.async.commit_group;\n");
}

template <bool A_ACROSS, bool ACROSS> __global__ void __launch_bounds__(kThreads) gemm(const tsr_f64_gemm g)
{
    extern __shared__ double shared[];
    const size_t n0 = (size_t)blockIdx.x * kTileN, m0 = (size_t)blockIdx.y * kTileM, z = blockIdx.z;
    const double *const a = g.a + z * g.step_a, *const b = g.b + z / g.share_b * g.step_b;
    double *const c = g.c + z * g.step_c;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = lane / 4, col = lane % 4;
    const int wm = warp / 2 * 32, wn = warp % 2 * 32;
    const size_t steps = (g.k + kTileK - 1) / kTileK;
    double sum[4][4][2] = {};
    for (int s = 0; s < kStages - 1; s++)
        load_stage<A_ACROSS, ACROSS>(shared + s * kStage, g, a, b, m0, n0, (size_t)s * kTileK);
    for (size_t step = 0; step < steps; step++) {
        asm volatile("cp.async.wait_group %0;\n" ::"n"(kStages - 2));
        __syncthreads();
        load_stage<A_ACROSS, ACROSS>(shared + (step + kStages - 1) % kStages * kStage, g, a, b, m0, n0,
                                     (step + kStages - 1) * kTileK);
        const double *const stage = shared + step % kStages * kStage;
        for (int k = 0; k < kTileK; k += 4) {
            double x[4], w[4];
            for (int i = 0; i < 4; i++) {
                x[i] = stage[(wm + 8 * i + row) * kLd + k + col];
                w[i] = stage[(kTileM + wn + 8 * i + row) * kLd + k + col];
            }
            for (int i = 0; i < 4; i++) {
                for (int j = 0; j < 4; j++)
                    multiply_add(sum[i][j], x[i], w[j]);
            }
        }
    }
    for (int i = 0; i < 4; i++) {
        for (int j = 0; j < 4; j++) {
            for (int e = 0; e < 2; e++) {
                const size_t m = m0 + wm + 8 * i + row, n = n0 + wn + 8 * j + 2 * col + e;
                if (m < g.m && n < g.n)
                    c[m * g.ldc + n] = (g.add ? c[m * g.ldc + n] : 0) + sum[i][j][e];
            }
        }
    }
}

// ---- reductions over a block ----

template <typename OP> __device__ double reduce(double x, OP op)
{
    __shared__ double parts[32];
    for (int i = 16; i > 0; i /= 2)
        x = op(x, __shfl_xor_sync(0xFFFFFFFFu, x, i));
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        parts[threadIdx.x / 32] = x;
    __syncthreads();
    x = parts[0];
    for (unsigned i = 1; i < blockDim.x / 32; i++)
        x = op(x, parts[i]);
    return x;
}

struct add_up {
    __device__ double operator()(double a, double b) const
    {
        return a + b;
    }
};
struct larger {
    __device__ double operator()(double a, double b) const
    {
        return fmax(a, b);
    }
};
struct smaller {
    __device__ double operator()(double a, double b) const
    {
        return fmin(a, b);
    }
};

__device__ bool is_chosen(const uint64_t *row, size_t position)
{
    return row == nullptr || (row[position / 64] >> (position % 64) & 1) != 0;
}

__global__ void softmax(const tsr_f64_softmax s)
{
    const size_t query = blockIdx.x, head = blockIdx.y, place = s.first_query + query;
    double *const x = s.scores + (head * s.queries + query) * s.keys;
    const uint64_t *const row =
        s.chosen == nullptr ? nullptr : s.chosen + (head / s.share * s.rows + s.first_row + query) * s.words;
    const size_t seen = place + 1 < s.window ? place + 1 : s.window, from = place + 1 - seen;
    const size_t begin = from > s.first_key ? from - s.first_key : 0, end = place + 1 - s.first_key;
    double most = s.sinks != nullptr ? s.sinks[head] : -INFINITY, sum = 0;
    for (size_t j = begin + threadIdx.x; j < end; j += blockDim.x) {
        const double score = x[j] * s.scale;
        x[j] = !is_chosen(row, s.first_key + j) ? -INFINITY : s.cap != 0 ? s.cap * tanh(score / s.cap) : score;
        most = fmax(most, x[j]);
    }
    most = reduce(most, larger());
    for (size_t j = begin + threadIdx.x; j < end; j += blockDim.x)
        sum += x[j] = exp(x[j] - most);
    sum = reduce(sum, add_up()) + (s.sinks != nullptr ? exp(s.sinks[head] - most) : 0);
    for (size_t j = threadIdx.x; j < s.keys; j += blockDim.x)
        x[j] = j >= begin && j < end ? x[j] / sum : 0;
}

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

tsr_status tsr_cuda_f64_gemm(const tsr_f64_gemm *g, tsr_stream stream, tsr_err *err)
{
    const dim3 grid((unsigned)host::ceil_div((int64_t)g->n, kTileN), (unsigned)host::ceil_div((int64_t)g->m, kTileM),
                    (unsigned)g->batch);
    if (g->m == 0 || g->n == 0 || g->batch == 0)
        return TSR_OK;
    if (grid.y > 65535 || grid.z > 65535 || g->share_b == 0)
        return tsr_fail(err, TSR_E_SHAPE, "an FP64 product of %zu rows in a batch of %zu exceeds the kernel's grid",
                        g->m, g->batch);
    auto *const kernel = g->both_across ? gemm<true, true> : g->across ? gemm<false, true> : gemm<false, false>;
    const cudaError_t code = host::allow_shared(kernel, kShared);
    if (code == cudaSuccess)
        kernel<<<grid, kThreads, kShared, stream>>>(*g);
    return host::launched("FP64 product", code, err);
}

tsr_status tsr_cuda_f64_softmax(const tsr_f64_softmax *s, tsr_stream stream, tsr_err *err)
{
    softmax<<<dim3((unsigned)s->queries, (unsigned)s->heads), kWide, 0, stream>>>(*s);
    return host::launched("FP64 softmax", cudaSuccess, err);
}

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
