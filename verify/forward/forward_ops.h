/* What a forward pass is made of, as a table of functions: the pass itself does not know where its numbers lie.
 *
 * Activations ([rows][columns] of double) lie in memory that the table's own `make` gives, and nothing but its functions
 * touches them; vectors of weights (gains, biases) and everything that says how to compute are on the host. The CPU's
 * functions (forward_ops.c) are the definition. Those of a GPU compute the same sums in FP64, in another order. */
#ifndef TSR_VERIFY_FORWARD_FORWARD_OPS_H
#define TSR_VERIFY_FORWARD_FORWARD_OPS_H

#include "common/atomics.h"
#include "common/status.h"
#include "verify/forward/inputs.h"
#include "verify/forward/tokens.h"
#include "verify/mla/rope.h"
#include "verify/weights/weight_reader.h"

/* y [n][rows] += x [n][cols] W^T, of rows [first, first + rows) of W. */
typedef struct tsr_op_linear {
    const tsr_checkpoint *checkpoint;
    const tsr_weight *weight; /* decoded band by band; or, where it is NULL, `dense` [..][cols] on the host */
    uint64_t matrix;          /* of a stack */
    const double *dense;
    size_t first, rows, cols;
    const double *x;
    size_t ld_x, n;
    double *y;
    size_t ld_y;
} tsr_op_linear;

/* RoPE: of each of n rows, `heads` heads that are `step` elements apart, the first of them at `at`. Of a head the pairs
 * (i, i + pairs), or where `adjacent` (2i, 2i + 1), are turned by position * frequency[i]. */
typedef struct tsr_op_turn {
    const tsr_rope *rope;
    const tsr_tokens *tokens; /* whose places in their sequences are the positions */
    double *x;
    size_t ld, at, heads, step;
    bool adjacent;
} tsr_op_turn;

/* Causal attention of every token over those of its sequence up to itself. */
typedef struct tsr_op_attend {
    const tsr_tokens *tokens;
    const double *q, *k, *v;            /* [count][heads][dim], [count][kv_heads][dim], [count][kv_heads][v_dim] */
    double *out;                        /* [count][heads][v_dim], ld_out from one token to the next */
    size_t ld_q, ld_out;                /* k and v are gapless */
    size_t heads, kv_heads, dim, v_dim; /* head h has the keys of h / (heads / kv_heads) */
    double scale, cap;                  /* scores are cap * tanh(score / cap), where cap is not 0 */
    size_t window;                      /* so many tokens are seen at most, itself among them */
    const double *sinks;                /* [heads]: a logit more, which takes its share of the softmax; NULL: none */
} tsr_op_attend;

typedef enum tsr_gate {
    TSR_GATE_SILU,      /* silu(gate) * up */
    TSR_GATE_GELU_TANH, /* gelu(gate) * up, by the tanh that approximates it */
    TSR_GATE_CLAMPED,   /* gpt-oss: g sigmoid(1.702 g) (u + 1), g at most `limit`, |u| at most `limit` */
} tsr_gate;

typedef struct tsr_op_gate {
    tsr_gate kind;
    double limit;
    const double *gate, *up;
    size_t ld, step, rows, n;
    double *y;
} tsr_op_gate;

typedef struct tsr_ops tsr_ops;
struct tsr_ops {
    const char *name; /* "CPU", or the GPU's */
    unsigned threads; /* no result depends on it */
    const atomic_bool *cancel;
    void *state;
    size_t held, most; /* bytes of activations: now, and at most so far */
    tsr_ops *beside;   /* n_beside more tables of the same kind, which share in products (forward_share.c) */
    size_t n_beside;

    tsr_status (*make)(tsr_ops *ops, size_t n, double **x, tsr_err *err); /* n zeros */
    void (*drop)(tsr_ops *ops, double *x, size_t n);                      /* NULL is fine */
    tsr_status (*put)(tsr_ops *ops, double *to, const double *host, size_t n, tsr_err *err);
    tsr_status (*get)(tsr_ops *ops, double *host, const double *from, size_t n, tsr_err *err);
    tsr_status (*copy)(tsr_ops *ops, double *to, const double *from, size_t n, tsr_err *err);
    /* From the memory of `other`, a table of the same kind. What either was asked for before comes first, and what either
     * is asked for next waits for it. */
    tsr_status (*fetch)(tsr_ops *ops, double *to, tsr_ops *other, const double *from, size_t n, tsr_err *err);
    /* Every one of `rows` rows becomes the host's vector of n. */
    tsr_status (*fill)(tsr_ops *ops, double *y, size_t rows, size_t n, const double *host, tsr_err *err);
    tsr_status (*linear)(tsr_ops *ops, const tsr_op_linear *args, tsr_err *err);
    /* y = x / RMS(x) * gain of `rows` rows of n, which are ld_x and ld_y apart; x and y may be the same. */
    tsr_status (*norm)(tsr_ops *ops, const double *x, size_t ld_x, size_t rows, size_t n, const double *gain,
                       double eps, double *y, size_t ld_y, tsr_err *err);
    tsr_status (*turn)(tsr_ops *ops, const tsr_op_turn *args, tsr_err *err);
    tsr_status (*attend)(tsr_ops *ops, const tsr_op_attend *args, tsr_err *err);
    /* y [rows][n]: element k of row i is of gate[i * ld + k * step] and up[i * ld + k * step]. */
    tsr_status (*gate)(tsr_ops *ops, const tsr_op_gate *args, tsr_err *err);
    /* y[to_row ? to_row[i] : i] += weight[i] * x[i] of rows of n; a NULL weight is 1. No two rows go to one. */
    tsr_status (*add)(tsr_ops *ops, double *y, const double *x, size_t rows, size_t n, const uint32_t *to_row,
                      const double *weight, tsr_err *err);
    /* y[i] = x[row[i]] of rows of n. */
    tsr_status (*take)(tsr_ops *ops, double *y, const double *x, const uint32_t *row, size_t rows, size_t n,
                       tsr_err *err);
    /* Columns [from, from + n) of x [rows][ld_x] to columns [to, ...) of y [rows][ld_y]. */
    tsr_status (*place)(tsr_ops *ops, double *y, size_t ld_y, size_t to, const double *x, size_t ld_x, size_t from,
                        size_t rows, size_t n, tsr_err *err);
    tsr_status (*scale)(tsr_ops *ops, double *x, size_t n, double by, tsr_err *err);
    /* x [rows][n] as a consumer quantizes it and reads it back. */
    tsr_status (*quantize)(tsr_ops *ops, double *x, size_t rows, size_t n, const tsr_input_coding *coding,
                           tsr_err *err);
    tsr_status (*round)(tsr_ops *ops, double *x, size_t n, tsr_err *err); /* to BF16, to nearest even */
    void (*close)(tsr_ops *ops);
};

/* The CPU's. */
tsr_ops tsr_ops_of_cpu(unsigned threads, const atomic_bool *cancel);

/* ops->linear, with the rows of W divided among `ops` and the tables beside it where that pays. Every element of y is
 * summed by one of them, over the same numbers in the same order, so that no bit depends on how many there are. */
tsr_status tsr_ops_linear(tsr_ops *ops, const tsr_op_linear *args, tsr_err *err) TSR_WARN_UNUSED;

#endif
