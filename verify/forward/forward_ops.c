/* Implements the operations on the CPU. Results do not depend on the number of threads. */
#include "verify/forward/forward_ops.h"

#include "common/checked.h"
#include "common/parallel/parallel_for.h"
#include "kernels/cpu/cpu.h"
#include "verify/values/weight_product.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS_A_TURN = 16, ELEMENTS_A_TURN = 1 << 14, LINE = 64 /* bytes of a line of the caches */ };

/* ---- memory ---- */

static tsr_status make(tsr_ops *ops, size_t n, bool zero, tsr_activation **x, tsr_err *err)
{
    const size_t bytes = tsr_round_up((n + 1) * ops->element, LINE);
    *x = aligned_alloc(LINE, bytes);
    if (*x == NULL)
        return tsr_out_of_memory(err, "for activations");
    if (zero)
        memset(*x, 0, bytes);
    ops->held += n * ops->element;
    ops->most = tsr_max_u64(ops->most, ops->held);
    return TSR_OK;
}

static void drop(tsr_ops *ops, tsr_activation *x, size_t n)
{
    if (x != NULL)
        ops->held -= n * ops->element;
    free(x);
}

static tsr_status copy(tsr_ops *ops, tsr_activation *to, const tsr_activation *from, size_t n, tsr_err *err)
{
    (void)err;
    memmove(to, from, n * ops->element);
    return TSR_OK;
}

static tsr_status put(tsr_ops *ops, tsr_activation *to, const double *host, size_t n, tsr_err *err)
{
    (void)ops, (void)err;
    memcpy(to, host, n * sizeof *host);
    return TSR_OK;
}

static tsr_status get(tsr_ops *ops, double *host, const tsr_activation *from, size_t n, tsr_err *err)
{
    (void)ops, (void)err;
    memcpy(host, from, n * sizeof *host);
    return TSR_OK;
}

static tsr_status fetch(tsr_ops *ops, tsr_activation *to, tsr_ops *other, const tsr_activation *from, size_t n,
                        tsr_err *err)
{
    (void)other;
    ops->fetched += n * ops->element;
    return copy(ops, to, from, n, err);
}

static tsr_status fill(tsr_ops *ops, tsr_activation *y, size_t rows, size_t n, const double *host, tsr_err *err)
{
    (void)ops, (void)err;
    for (size_t i = 0; i < rows; i++)
        memcpy(tsr_doubles(y) + i * n, host, n * sizeof *host);
    return TSR_OK;
}

static tsr_status place(tsr_ops *ops, tsr_activation *y, size_t ld_y, size_t to, const tsr_activation *x, size_t ld_x,
                        size_t from, size_t rows, size_t n, tsr_err *err)
{
    (void)err;
    for (size_t i = 0; i < rows; i++)
        memcpy(tsr_at(ops, y, i * ld_y + to), tsr_at(ops, x, i * ld_x + from), n * ops->element);
    return TSR_OK;
}

/* ---- products ---- */

static tsr_status linear(tsr_ops *ops, const tsr_op_linear *a, tsr_err *err)
{
    const tsr_linear_product product = {.checkpoint = a->checkpoint,
                                        .weight = a->weight,
                                        .matrix = a->matrix,
                                        .dense = a->dense,
                                        .cols = a->cols,
                                        .first_row = a->first_row,
                                        .rows = a->rows,
                                        .x = tsr_doubles(a->x),
                                        .ld_x = a->ld_x,
                                        .n = a->n,
                                        .y = tsr_doubles(a->y),
                                        .ld_y = a->ld_y,
                                        .set = a->set};
    return tsr_linear_run(&product, ops->threads, err);
}

/* ---- element by element ---- */

/* An operation over n items, run in pieces. */
typedef struct loop {
    const void *args;
    size_t n, each;
    void (*run)(const void *args, size_t first, size_t n);
} loop;

static tsr_status run_piece(void *context, size_t i, size_t worker, tsr_err *err)
{
    const loop *const l = context;
    (void)worker, (void)err;
    l->run(l->args, i * l->each, tsr_min_u64(l->each, l->n - i * l->each));
    return TSR_OK;
}

static tsr_status spread(const tsr_ops *ops, size_t n, size_t each, void (*run)(const void *, size_t, size_t),
                         const void *args, tsr_err *err)
{
    loop l = {args, n, each, run};
    return tsr_parallel_for((size_t)tsr_ceil_div(n, each), ops->threads, ops->cancel, run_piece, &l, err);
}

typedef struct rows_args {
    const double *x, *vector;
    double *y;
    size_t ld_x, ld_y, n;
    double number;
    const tsr_input_coding *coding;
    const uint32_t *index;
} rows_args;

static void norm_rows(const void *args, size_t first, size_t rows)
{
    const rows_args *const a = args;
    for (size_t i = first; i < first + rows; i++)
        tsr_rms_norm(a->x + i * a->ld_x, a->n, a->vector, a->number, a->y + i * a->ld_y);
}

/* ---- sums over rows ---- */

enum { COLUMNS = 64 /* that a thread sums at a time */ };

typedef struct column_sums {
    const tsr_op_columns *args;
    double (*ranges)[2]; /* [blocks of COLUMNS]: least and largest */
} column_sums;

static tsr_status sum_columns(void *context, size_t block, size_t worker, tsr_err *err)
{
    const column_sums *const s = context;
    const tsr_op_columns *const a = s->args;
    const size_t from = block * COLUMNS, to = (size_t)tsr_min_u64(from + COLUMNS, a->cols);
    const double *const x = tsr_doubles(a->x);
    double least = x[from], largest = least, unused[COLUMNS] = {0};
    double *const squares = a->squares == NULL ? unused : a->squares + from;
    bool finite = true;
    (void)worker, (void)err;
    for (size_t row = 0; row < a->n; row++) {
        for (size_t i = from; i < to; i++) {
            const double v = x[row * a->cols + i];
            squares[i - from] += v * v;
            least = v < least ? v : least;
            largest = v > largest ? v : largest;
            finite = finite && isfinite(v);
        }
    }
    s->ranges[block][0] = finite ? least : NAN;
    s->ranges[block][1] = largest;
    return TSR_OK;
}

static tsr_status columns(tsr_ops *ops, tsr_op_columns *a, tsr_err *err)
{
    const size_t blocks = (size_t)tsr_ceil_div(a->cols, COLUMNS);
    column_sums s = {a, malloc(blocks * sizeof *s.ranges)};
    tsr_status status = s.ranges == NULL ? tsr_out_of_memory(err, "for statistics of inputs")
                                         : tsr_parallel_for(blocks, ops->threads, ops->cancel, sum_columns, &s, err);
    for (size_t i = 0; status == TSR_OK && i < blocks; i++) {
        const double least = s.ranges[i][0], largest = s.ranges[i][1];
        a->least = i == 0 || least < a->least || isnan(least) ? least : a->least;
        a->largest = i == 0 || largest > a->largest ? largest : a->largest;
    }
    free(s.ranges);
    return status;
}

/* ---- products of inputs ---- */

enum { GRAM_TOKENS = 256 /* that are packed at a time */ };

typedef struct summing {
    const tsr_cpu_kernels *kernels;
    const double *panels; /* [tiles][n][TSR_GRAM_TILE] */
    size_t n, tiles;
    double *sums;
} summing;

/* Adds to the tiles of one row of tiles. The longest rows come first. */
static tsr_status add_band(void *context, size_t i, size_t worker, tsr_err *err)
{
    const summing *const s = context;
    const size_t row = s->tiles - 1 - i, ld = s->tiles * TSR_GRAM_TILE, panel = s->n * TSR_GRAM_TILE;
    (void)worker, (void)err;
    for (size_t col = 0; col <= row; col++)
        s->kernels->outer_products(s->panels + row * panel, s->panels + col * panel, s->n,
                                   s->sums + row * TSR_GRAM_TILE * ld + col * TSR_GRAM_TILE, ld);
    return TSR_OK;
}

static tsr_status gram(tsr_ops *ops, tsr_activation *sums, const tsr_activation *x, size_t n, size_t cols, tsr_err *err)
{
    const size_t tiles = (size_t)tsr_ceil_div(cols, TSR_GRAM_TILE), width = TSR_GRAM_TILE;
    double *const panels = malloc((tiles * width * GRAM_TOKENS + 1) * sizeof *panels);
    tsr_status status = panels == NULL ? tsr_out_of_memory(err, "for products of inputs") : TSR_OK;
    tsr_cpu_kernels kernels;
    tsr_cpu_kernels_init(&kernels, tsr_cpu_flags());
    for (size_t first = 0; first < n && status == TSR_OK; first += GRAM_TOKENS) {
        summing s = {&kernels, panels, n - first < GRAM_TOKENS ? n - first : GRAM_TOKENS, tiles, tsr_doubles(sums)};
        for (size_t i = 0; i < tiles * width; i++) {
            for (size_t k = 0; k < s.n; k++)
                panels[(i / width * s.n + k) * width + i % width] =
                    i < cols ? tsr_doubles(x)[(first + k) * cols + i] : 0;
        }
        status = tsr_parallel_for(tiles, ops->threads, ops->cancel, add_band, &s, err);
    }
    free(panels);
    return status;
}

static tsr_status norm(tsr_ops *ops, const tsr_activation *x, size_t ld_x, size_t rows, size_t n, const double *gain,
                       double eps, tsr_activation *y, size_t ld_y, tsr_err *err)
{
    const rows_args a = {
        .x = tsr_doubles(x), .vector = gain, .y = tsr_doubles(y), .ld_x = ld_x, .ld_y = ld_y, .n = n, .number = eps};
    return spread(ops, rows, ROWS_A_TURN, norm_rows, &a, err);
}

static void center_rows(const void *args, size_t first, size_t rows)
{
    const rows_args *const a = args;
    for (size_t i = first * a->n; i < (first + rows) * a->n; i += a->n) {
        double sum = 0;
        for (size_t k = 0; k < a->n; k++)
            sum += a->x[i + k];
        for (size_t k = 0; k < a->n; k++)
            a->y[i + k] = a->x[i + k] - sum / (double)a->n;
    }
}

static tsr_status center(tsr_ops *ops, const tsr_activation *x, size_t rows, size_t n, tsr_activation *y, tsr_err *err)
{
    const rows_args a = {.x = tsr_doubles(x), .y = tsr_doubles(y), .n = n};
    return spread(ops, rows, ROWS_A_TURN, center_rows, &a, err);
}

static double gated(tsr_gate kind, double limit, double g, double u)
{
    static const double kRootOf2OverPi = 0.79788456080286535588, kAlpha = 1.702;
    switch (kind) {
    case TSR_GATE_SILU:
        return g / (1 + exp(-g)) * u;
    case TSR_GATE_GELU_TANH:
        return 0.5 * g * (1 + tanh(kRootOf2OverPi * (g + 0.044715 * g * g * g))) * u;
    case TSR_GATE_LIMITED:
    case TSR_GATE_CLAMPED:
        g = g > limit ? limit : g;
        u = u > limit ? limit : u < -limit ? -limit : u;
        return kind == TSR_GATE_LIMITED ? g / (1 + exp(-g)) * u : g / (1 + exp(-kAlpha * g)) * (u + 1);
    case TSR_GATE_RELU2:
        return g < 0 ? 0 : g * g;
    case TSR_GATE_SIGMOID:
        return u / (1 + exp(-g));
    }
    return NAN;
}

static void gate_rows(const void *args, size_t first, size_t rows)
{
    const tsr_op_gate *const a = args;
    for (size_t i = first; i < first + rows; i++) {
        const double *const g = tsr_doubles(a->gate) + i * a->ld, *const u = tsr_doubles(a->up) + i * a->ld;
        double *const y = tsr_doubles(a->y) + i * a->n;
        for (size_t k = 0; k < a->n; k++)
            y[k] = gated(a->kind, a->limit, g[k * a->step], u[k * a->step]);
    }
}

static tsr_status gate(tsr_ops *ops, const tsr_op_gate *a, tsr_err *err)
{
    return spread(ops, a->rows, ROWS_A_TURN, gate_rows, a, err);
}

static void add_rows(const void *args, size_t first, size_t rows)
{
    const rows_args *const a = args;
    for (size_t i = first; i < first + rows; i++) {
        double *const y = a->y + (a->index != NULL ? a->index[i] : i) * a->n;
        const double weight = a->vector != NULL ? a->vector[i] : 1;
        for (size_t k = 0; k < a->n; k++)
            y[k] += weight * a->x[i * a->n + k];
    }
}

static tsr_status add(tsr_ops *ops, tsr_activation *y, const tsr_activation *x, size_t rows, size_t n,
                      const uint32_t *to_row, const double *weight, tsr_err *err)
{
    const rows_args a = {.x = tsr_doubles(x), .y = tsr_doubles(y), .n = n, .vector = weight, .index = to_row};
    return spread(ops, rows, ROWS_A_TURN, add_rows, &a, err);
}

static tsr_status take(tsr_ops *ops, tsr_activation *y, const tsr_activation *x, const uint32_t *row, size_t rows,
                       size_t n, tsr_err *err)
{
    (void)err;
    for (size_t i = 0; i < rows; i++)
        memcpy(tsr_at(ops, y, i * n), tsr_at(ops, x, row[i] * n), n * ops->element);
    return TSR_OK;
}

static tsr_status scale(tsr_ops *ops, tsr_activation *x, size_t n, double by, tsr_err *err)
{
    (void)ops, (void)err;
    for (size_t i = 0; i < n; i++)
        tsr_doubles(x)[i] *= by;
    return TSR_OK;
}

static void quantize_rows(const void *args, size_t first, size_t rows)
{
    const rows_args *const a = args;
    for (size_t i = first; i < first + rows; i++)
        tsr_input_quantize(a->coding, a->y + i * a->n, a->n);
}

static tsr_status quantize(tsr_ops *ops, tsr_activation *x, size_t rows, size_t n, const tsr_input_coding *coding,
                           tsr_err *err)
{
    const rows_args a = {.y = tsr_doubles(x), .n = n, .coding = coding};
    return spread(ops, rows, ROWS_A_TURN, quantize_rows, &a, err);
}

static void round_elements(const void *args, size_t first, size_t n)
{
    const rows_args *const a = args;
    for (size_t i = first; i < first + n; i++)
        a->y[i] = tsr_round_bf16(a->y[i]);
}

static tsr_status round_all(tsr_ops *ops, tsr_activation *x, size_t n, tsr_err *err)
{
    const rows_args a = {.y = tsr_doubles(x)};
    return spread(ops, n, ELEMENTS_A_TURN, round_elements, &a, err);
}

/* ---- positions ---- */

typedef struct turning {
    const tsr_op_turn *a;
    double *angles; /* [longest][pairs][2]: cos and sin, times the gain */
} turning;

static void make_angles(const void *args, size_t first, size_t n)
{
    const turning *const t = args;
    const tsr_rope *const rope = t->a->rope;
    for (size_t i = first * rope->pairs; i < (first + n) * rope->pairs; i++) {
        const double turned = (double)(i / rope->pairs * tsr_max_u64(t->a->rate, 1)) * rope->frequency[i % rope->pairs],
                     angle = t->a->back ? -turned : turned;
        t->angles[2 * i] = cos(angle) * rope->gain;
        t->angles[2 * i + 1] = sin(angle) * rope->gain;
    }
}

static void turn_tokens(const void *args, size_t first, size_t n)
{
    const turning *const t = args;
    const tsr_op_turn *const a = t->a;
    const size_t pairs = a->rope->pairs;
    for (size_t token = first; token < first + n; token++) {
        const double *const angle = t->angles + tsr_token_position(a->tokens, token) * pairs * 2;
        for (size_t h = 0; h < a->heads; h++) {
            double *const x = tsr_doubles(a->x) + token * a->ld + a->at + h * a->step;
            for (size_t i = 0; i < pairs; i++) {
                double *const p = a->adjacent ? &x[2 * i] : &x[i], *const q = a->adjacent ? p + 1 : &x[i + pairs];
                const double u = *p, v = *q, c = angle[2 * i], s = angle[2 * i + 1];
                *p = u * c - v * s;
                *q = v * c + u * s;
            }
        }
    }
}

static tsr_status turn(tsr_ops *ops, const tsr_op_turn *a, tsr_err *err)
{
    const size_t longest = a->tokens->longest;
    turning t = {a, malloc((longest * a->rope->pairs + 1) * 2 * sizeof(double))};
    tsr_status status = t.angles == NULL ? tsr_out_of_memory(err, "for positions")
                                         : spread(ops, longest, ROWS_A_TURN, make_angles, &t, err);
    if (status == TSR_OK)
        status = spread(ops, a->tokens->count, ROWS_A_TURN, turn_tokens, &t, err);
    free(t.angles);
    return status;
}

static void close(tsr_ops *ops)
{
    (void)ops;
}

tsr_ops tsr_ops_of_cpu(unsigned threads, const atomic_bool *cancel)
{
    return (tsr_ops){
        .name = "CPU",
        .element = sizeof(double),
        .threads = threads,
        .cancel = cancel,
        TSR_OPS_FUNCTIONS,
        .gram = gram,
        .put = put,
        .get = get,
        .linear = linear,
        .attend = tsr_cpu_attend,
        .index = tsr_cpu_index,
        .convolve = tsr_cpu_convolve,
        .recur = tsr_cpu_recur,
        .compress = tsr_cpu_compress,
        .close = close,
    };
}
