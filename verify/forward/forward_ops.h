/* Declares the operations of a forward pass, as a table of functions for one kind of memory.
 *
 * Activations ([rows][columns]) are in memory allocated by `make` of the table, and only functions of the table access
 * them. Vectors of weights (gains, biases) and all parameters are on the host, in double. The functions of the CPU
 * (forward_ops.c) are the definition. Those of a GPU compute the same sums in another order, in FP64 or FP32. */
#pragma once

#include "common/atomics.h"
#include "common/gate.h"
#include "common/precision.h"
#include "common/status.h"
#include "verify/forward/inputs.h"
#include "verify/forward/tokens/token_choice.h"
#include "verify/mla/rope.h"
#include "verify/values/weight_product.h"

/* An activation: a double on the CPU, and a double or float on a GPU. tsr_at returns the address of one in an array. */
typedef struct tsr_activation tsr_activation;

/* A linear layer: y[t][r] (+)= sum over c of x[t][c] W[first_row + r][c], for r < rows and t < n. */
typedef struct tsr_op_linear {
    const tsr_checkpoint *checkpoint;
    const tsr_weight *weight; /* a matrix, plain or coded, or `matrix` of a stack; NULL: `dense` */
    uint64_t matrix;
    const double *dense; /* [..][cols] on the host */
    size_t first_row, rows, cols;
    const tsr_activation *x; /* [n], rows are ld_x elements apart */
    size_t ld_x, n;
    tsr_activation *y; /* [n], rows are ld_y elements apart */
    size_t ld_y;
    bool set; /* y becomes the sums; otherwise they are added to it */
} tsr_op_linear;

/* RoPE of `heads` heads in each of n rows. Heads are `step` elements apart; the first begins at `at`. Pairs (i, i +
 * pairs) of a head, or (2i, 2i + 1) if `adjacent`, are rotated by position * frequency[i]. */
typedef struct tsr_op_turn {
    const tsr_rope *rope;
    const tsr_tokens *tokens; /* positions are those in the sequences of these tokens */
    tsr_activation *x;
    size_t ld, at, heads, step;
    size_t rate;         /* positions are multiplied by this; 0: 1 */
    bool adjacent, back; /* back: by the negative angles */
} tsr_op_turn;

/* Entries of a compressed cache, which are keys and values at once (DeepSeek-V4). Entry i of a sequence is visible from
 * position (i + 1) rate - 1 on. */
typedef struct tsr_op_entries {
    const tsr_activation *x;  /* [tokens->count][dim]; NULL: none */
    const tsr_tokens *tokens; /* the entries of each sequence */
    size_t rate;
} tsr_op_entries;

/* Causal attention of every token over those of its sequence up to itself, and over visible entries. */
typedef struct tsr_op_attend {
    const tsr_tokens *tokens;
    const tsr_activation *q, *k, *v;    /* [count][heads][dim], [count][kv_heads][dim], [count][kv_heads][v_dim] */
    tsr_activation *out;                /* [count][heads][v_dim], ld_out from one token to the next */
    size_t ld_q, ld_out;                /* k and v are contiguous */
    size_t common;                      /* the last columns of keys, which all heads share; 0: none */
    size_t heads, kv_heads, dim, v_dim; /* head h uses the keys of h / (heads / kv_heads) */
    double scale, cap;                  /* scores become cap * tanh(score / cap); 0: no cap */
    size_t window;                      /* most visible tokens, including the query's own */
    const double *sinks;                /* [heads]: one more logit in the softmax; NULL: none */
    tsr_op_entries entries;             /* for one head of keys and values of the same size */
    const tsr_token_choice *
        chosen; /* visible tokens, or entries if there are any. Head h uses group h / (heads / groups). NULL: not limited */
} tsr_op_attend;

/* Scores by which an indexer chooses tokens (DeepSeek-V3.2), or entries of a compressed cache. Query i is token first +
 * i, at position `position` + i of its sequence, and key j is row begin + j of k:
 *   scores[i][j] = sum over h of weights[first + i][h] max(q[first + i][h] . k[begin + j], 0)
 * Without weights, each head has scores of its own: scores[h][i][j] = q[first + i][h] . k[begin + j]. Key j is visible
 * from position (j + 1) rate - 1 on; scores of keys that are not visible have no meaning. */
typedef struct tsr_op_index {
    const tsr_activation *q, *k, *weights; /* [count][heads][dim], [..][dim], [count][heads] or NULL */
    size_t heads, dim;
    size_t begin, first, position, queries, keys, rate;
    tsr_activation *scores; /* [queries][keys], or [heads][queries][keys] */
} tsr_op_index;

typedef struct tsr_op_gate {
    tsr_gate kind;
    double limit;
    const tsr_activation *gate, *up;
    size_t ld, step, rows, n;
    tsr_activation *y;
} tsr_op_gate;

/* Causal convolution with one filter per channel, then silu:
 *   y[t][c] = silu(bias[c] + sum over j < taps of weight[c][j] x[t + 1 - taps + j][c])
 * Tokens before the first of a sequence are zeros. */
typedef struct tsr_op_convolve {
    const tsr_tokens *tokens;
    const tsr_activation *x;
    tsr_activation *y;           /* x and y: [count][channels] */
    const double *weight, *bias; /* on the host: [channels][taps], and [channels] or NULL */
    size_t channels, taps;
} tsr_op_convolve;

/* Compresses `rate` tokens each to an entry (DeepSeek-V4). For each channel of [dim] it is a mean of the values of the
 * window's tokens, weighted by softmax over gate + bias. With `overlaps`, tokens have 2 dim channels: the first half
 * takes part in the entry of the next window, the second half in that of its own. */
typedef struct tsr_op_compress {
    const tsr_tokens *tokens, *entries;   /* entries: those of each sequence, for its whole windows */
    const tsr_activation *values, *gates; /* [count][dim], or [count][2 dim] with `overlaps` */
    const double *bias;                   /* on the host: [rate][dim or 2 dim] */
    tsr_activation *out;                  /* [entries->count][dim] */
    size_t dim, rate;
    bool overlaps;
} tsr_op_compress;

typedef enum tsr_recurrence { TSR_RECUR_DELTA, TSR_RECUR_SCAN } tsr_recurrence;

/* A recurrence over the tokens of each sequence. Each head has a state S [dim][v_dim], which is zero before a sequence.
 * With t[i] = max(softplus(decay[i] + shift[i]), least), a token does S[i] *= exp(-rate t[i]), and then:
 *   the gated delta rule (Yang et al. 2024):  S += k (sigmoid(beta) (v - S^T k))^T,  out = S^T q
 *     where k is divided by sqrt(sum of k^2 + 1e-6), and q in the same way, and by sqrt(dim)
 *   a scan (Mamba-2, Dao and Gu 2024):        S += k (t v)^T,  out = S^T q + skip v */
typedef struct tsr_op_recur {
    tsr_recurrence kind;
    const tsr_tokens *tokens;
    const tsr_activation *q, *k, *v;    /* [count][k_heads][dim] twice, [count][heads][v_dim] */
    const tsr_activation *decay, *beta; /* [count][heads][decays], [count][heads]; beta: of the delta rule */
    const double *rate, *shift;         /* on the host: [heads], [heads][decays] */
    const double *skip;                 /* on the host: [heads]; of a scan */
    tsr_activation *out;                /* [count][heads][v_dim] */
    size_t heads, k_heads;              /* head h uses q and k of h / (heads / k_heads) */
    size_t dim, v_dim, decays;          /* decays: 1 for all rows of the state, or dim; of a scan 1 */
    double least;
} tsr_op_recur;

/* Sums over the rows of x [n][cols], which is not empty. */
typedef struct tsr_op_columns {
    const tsr_activation *x;
    size_t n, cols;
    double *squares;       /* on the host: [cols], to which the sums of x^2 are added; NULL: only the range is wanted */
    double least, largest; /* results: the range of all elements; least is NaN if one of them is NaN or infinite */
} tsr_op_columns;

/* Rows and columns of sums of products are padded to multiples of this. */
enum { TSR_GRAM_TILE = 8 };

typedef struct tsr_ops tsr_ops;
struct tsr_ops {
    const char *name; /* "CPU", or the GPU's */
    unsigned threads; /* results do not depend on it */
    const atomic_bool *cancel;
    void *state;
    size_t element;     /* bytes of an activation */
    size_t held, most;  /* bytes of activations: now, and at most so far */
    uint64_t room;      /* bytes for the activations of a layer; 0: no limit */
    bool repeats;       /* the weights of the layer are used again soon, for other tokens: they may be kept */
    uint64_t fetched;   /* bytes copied from other tables' memory */
    uint64_t exchanged; /* bytes copied between this table's memory and the host, if they are not the same */
    tsr_ops *beside;    /* n_beside more tables of the same kind, which share products (forward_share.c) */
    size_t n_beside;

    /* Allocates n zeros, or if not `zero` n numbers of any value. */
    tsr_status (*make)(tsr_ops *ops, size_t n, bool zero, tsr_activation **x, tsr_err *err);
    void (*drop)(tsr_ops *ops, tsr_activation *x, size_t n); /* NULL is allowed */
    tsr_status (*put)(tsr_ops *ops, tsr_activation *to, const double *host, size_t n, tsr_err *err);
    tsr_status (*get)(tsr_ops *ops, double *host, const tsr_activation *from, size_t n, tsr_err *err);
    tsr_status (*copy)(tsr_ops *ops, tsr_activation *to, const tsr_activation *from, size_t n, tsr_err *err);
    /* Copies from the memory of `other`, a table of the same kind. The copy follows all earlier operations of both
     * tables, and precedes all later ones. */
    tsr_status (*fetch)(tsr_ops *ops, tsr_activation *to, tsr_ops *other, const tsr_activation *from, size_t n,
                        tsr_err *err);
    /* Sets each of `rows` rows to the host's vector of n. */
    tsr_status (*fill)(tsr_ops *ops, tsr_activation *y, size_t rows, size_t n, const double *host, tsr_err *err);
    /* `rows` is set. */
    tsr_status (*linear)(tsr_ops *ops, const tsr_op_linear *args, tsr_err *err);
    tsr_status (*columns)(tsr_ops *ops, tsr_op_columns *args, tsr_err *err);
    /* Adds x^T x to sums [padded][padded], whose lower triangle is filled, for x [n][cols]. `padded` is cols rounded up
     * to TSR_GRAM_TILE. */
    tsr_status (*gram)(tsr_ops *ops, tsr_activation *sums, const tsr_activation *x, size_t n, size_t cols,
                       tsr_err *err);
    /* Computes y = x / RMS(x) * gain for `rows` rows of n. A NULL gain is 1. Rows are ld_x and ld_y apart; x and y may
     * be equal. */
    tsr_status (*norm)(tsr_ops *ops, const tsr_activation *x, size_t ld_x, size_t rows, size_t n, const double *gain,
                       double eps, tsr_activation *y, size_t ld_y, tsr_err *err);
    /* Computes y = x - mean of x for `rows` rows of n; x and y may be equal. */
    tsr_status (*center)(tsr_ops *ops, const tsr_activation *x, size_t rows, size_t n, tsr_activation *y, tsr_err *err);
    tsr_status (*turn)(tsr_ops *ops, const tsr_op_turn *args, tsr_err *err);
    tsr_status (*attend)(tsr_ops *ops, const tsr_op_attend *args, tsr_err *err);
    tsr_status (*index)(tsr_ops *ops, const tsr_op_index *args, tsr_err *err);
    tsr_status (*convolve)(tsr_ops *ops, const tsr_op_convolve *args, tsr_err *err);
    tsr_status (*recur)(tsr_ops *ops, const tsr_op_recur *args, tsr_err *err);
    tsr_status (*compress)(tsr_ops *ops, const tsr_op_compress *args, tsr_err *err);
    /* Computes y [rows][n]: element k of row i from gate[i * ld + k * step] and up[i * ld + k * step]. If n is ld, y
     * may be `up`. */
    tsr_status (*gate)(tsr_ops *ops, const tsr_op_gate *args, tsr_err *err);
    /* Computes y[to_row ? to_row[i] : i] += weight[i] * x[i] for rows of n. A NULL weight means 1. Destination rows
     * must be distinct. If to_row is NULL, x and y may be equal. */
    tsr_status (*add)(tsr_ops *ops, tsr_activation *y, const tsr_activation *x, size_t rows, size_t n,
                      const uint32_t *to_row, const double *weight, tsr_err *err);
    /* Computes y[i] = x[row[i]] for rows of n. */
    tsr_status (*take)(tsr_ops *ops, tsr_activation *y, const tsr_activation *x, const uint32_t *row, size_t rows,
                       size_t n, tsr_err *err);
    /* Copies columns [from, from + n) of x [rows][ld_x] to columns [to, ...) of y [rows][ld_y]. */
    tsr_status (*place)(tsr_ops *ops, tsr_activation *y, size_t ld_y, size_t to, const tsr_activation *x, size_t ld_x,
                        size_t from, size_t rows, size_t n, tsr_err *err);
    tsr_status (*scale)(tsr_ops *ops, tsr_activation *x, size_t n, double by, tsr_err *err);
    /* Quantizes and dequantizes x [rows][n] as a consumer does. */
    tsr_status (*quantize)(tsr_ops *ops, tsr_activation *x, size_t rows, size_t n, const tsr_input_coding *coding,
                           tsr_err *err);
    tsr_status (*round)(tsr_ops *ops, tsr_activation *x, size_t n, tsr_err *err); /* rounds to BF16, to nearest even */
    void (*close)(tsr_ops *ops);
};

/* Returns the address of element i of x. */
static inline tsr_activation *tsr_at(const tsr_ops *ops, const tsr_activation *x, size_t i)
{
    return (tsr_activation *)((uintptr_t)x + i * ops->element);
}

/* Returns the numbers at x, which is in the CPU's memory. */
static inline double *tsr_doubles(const tsr_activation *x)
{
    return (double *)(uintptr_t)x;
}

/* The functions of a table that each kind of memory defines under the names of the fields. */
#define TSR_OPS_FUNCTIONS                                                                                     \
    .make = make, .drop = drop, .copy = copy, .fetch = fetch, .fill = fill, .columns = columns, .norm = norm, \
    .center = center, .turn = turn, .gate = gate, .add = add, .take = take, .place = place, .scale = scale,   \
    .quantize = quantize, .round = round_all

/* Implement ops->attend, ops->index, ops->convolve, ops->recur and ops->compress on the CPU. */
tsr_status tsr_cpu_attend(tsr_ops *ops, const tsr_op_attend *args, tsr_err *err);
tsr_status tsr_cpu_index(tsr_ops *ops, const tsr_op_index *args, tsr_err *err);
tsr_status tsr_cpu_convolve(tsr_ops *ops, const tsr_op_convolve *args, tsr_err *err);
tsr_status tsr_cpu_recur(tsr_ops *ops, const tsr_op_recur *args, tsr_err *err);
tsr_status tsr_cpu_compress(tsr_ops *ops, const tsr_op_compress *args, tsr_err *err);

/* Returns the operations of the CPU. */
tsr_ops tsr_ops_of_cpu(unsigned threads, const atomic_bool *cancel);

/* Calls ops->linear, with the rows of W divided among `ops` and its further tables if that is faster. One table sums
 * all terms of an element. In FP64 on the CPU their order is fixed, so that results do not depend on the number of
 * tables. */
tsr_status tsr_ops_linear(tsr_ops *ops, const tsr_op_linear *args, tsr_err *err);
