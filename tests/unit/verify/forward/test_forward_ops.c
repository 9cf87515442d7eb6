/* Tests the CPU's functions of a forward pass, which are the definition, against a second implementation of their
 * formulas. */
#include "tests/unit/verify/forward/as_activations.h"

#include "tests/unit/random_bits.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

static double uniform(double size) /* in [-size, size) */
{
    return size * ((double)(random_bits() >> 11) * 0x1p-52 - 1);
}

static tsr_ops ops;

static void begin(void)
{
    ops = tsr_ops_of_cpu(2, NULL);
}

/* Tests values far beyond the limit on both sides, some of which gpt-oss clips. */
Test(forward_ops, gates_are_their_formulas, .init = begin)
{
    enum { ROWS = 40, N = 24, LD = 2 * N };
    static double both[ROWS * LD], y[ROWS * N];
    static const double kLimit = 7, kPi = 3.14159265358979323846;
    for (size_t i = 0; i < ROWS * LD; i++)
        both[i] = uniform(i % 3 == 0 ? 20 : 2);
    for (int kind = TSR_GATE_SILU; kind <= TSR_GATE_SIGMOID; kind++) {
        const tsr_op_gate args = {.kind = (tsr_gate)kind,
                                  .limit = kLimit,
                                  .gate = as_activations(both),
                                  .up = as_activations(both + 1),
                                  .ld = LD,
                                  .step = 2,
                                  .rows = ROWS,
                                  .n = N,
                                  .y = as_activations(y)};
        tsr_err err;
        cr_assert_eq(ops.gate(&ops, &args, &err), TSR_OK);
        for (size_t i = 0; i < ROWS * N; i++) {
            const double g = both[2 * i], u = both[2 * i + 1], cut_g = fmin(g, kLimit),
                         cut_u = fmax(fmin(u, kLimit), -kLimit);
            const double want = kind == TSR_GATE_SILU ? g / (1 + exp(-g)) * u
                                : kind == TSR_GATE_GELU_TANH
                                    ? g / 2 * (1 + tanh(sqrt(2 / kPi) * (g + 0.044715 * pow(g, 3)))) * u
                                : kind == TSR_GATE_CLAMPED ? cut_g / (1 + exp(-1.702 * cut_g)) * (cut_u + 1)
                                : kind == TSR_GATE_RELU2   ? pow(fmax(g, 0), 2)
                                                           : u / (1 + exp(-g));
            cr_assert_float_eq(y[i], want, 1e-12 * (1 + fabs(want)), "kind %d, %g and %g: %.17g, not %.17g", kind, g, u,
                               y[i], want);
        }
    }
}

/* Tests sequences of several lengths, heads that share keys, a window, a cap, sinks and chosen tokens, each with and
 * without. */
Test(forward_ops, attention_is_its_formula, .init = begin)
{
    enum { COUNT = 23, HEADS = 4, KV_HEADS = 2, DIM = 6, V_DIM = 5 };
    static double q[COUNT * HEADS * DIM], k[COUNT * KV_HEADS * DIM], v[COUNT * KV_HEADS * V_DIM],
        out[COUNT * HEADS * V_DIM];
    static const double kSinks[HEADS] = {0.5, -2, 3, 0};
    size_t first[] = {0, 1, 10, COUNT};
    const tsr_tokens tokens = {.sequences = 3, .count = COUNT, .longest = 13, .first = first};
    for (size_t i = 0; i < COUNT * HEADS * DIM; i++)
        q[i] = uniform(2);
    for (size_t i = 0; i < COUNT * KV_HEADS * DIM; i++)
        k[i] = uniform(2);
    for (size_t i = 0; i < COUNT * KV_HEADS * V_DIM; i++)
        v[i] = uniform(2);
    static uint64_t bits[2 * COUNT]; /* two groups of heads, a word for each token */
    const tsr_token_choice choice = {bits, 2, COUNT, 1};
    for (size_t i = 0; i < 2 * COUNT; i++)
        bits[i] = random_bits() | (uint64_t)1 << (i % COUNT - first[i % COUNT < 1 ? 0 : i % COUNT < 10 ? 1 : 2]);
    for (int kind = 0; kind < 16; kind++) {
        const size_t window = (kind & 1) != 0 ? 4 : SIZE_MAX;
        const double cap = (kind & 2) != 0 ? 1.5 : 0, *const sinks = (kind & 4) != 0 ? kSinks : NULL;
        const tsr_op_attend args = {.tokens = &tokens,
                                    .q = as_activations(q),
                                    .k = as_activations(k),
                                    .v = as_activations(v),
                                    .out = as_activations(out),
                                    .ld_q = HEADS * DIM,
                                    .ld_out = HEADS * V_DIM,
                                    .heads = HEADS,
                                    .kv_heads = KV_HEADS,
                                    .dim = DIM,
                                    .v_dim = V_DIM,
                                    .scale = 0.4,
                                    .cap = cap,
                                    .window = window,
                                    .sinks = sinks,
                                    .chosen = (kind & 8) != 0 ? &choice : NULL};
        tsr_err err;
        cr_assert_eq(ops.attend(&ops, &args, &err), TSR_OK);
        for (size_t s = 0; s < 3; s++) {
            for (size_t token = first[s]; token < first[s + 1]; token++) {
                for (size_t h = 0; h < HEADS; h++) {
                    double total = sinks == NULL ? 0 : exp(sinks[h]), sum[V_DIM] = {0};
                    for (size_t t = first[s]; t <= token; t++) {
                        double score = 0;
                        for (size_t i = 0; i < DIM; i++)
                            score += q[(token * HEADS + h) * DIM + i] * k[(t * KV_HEADS + h / 2) * DIM + i];
                        score *= 0.4;
                        const bool hidden = (kind & 8) != 0 && (bits[h / 2 * COUNT + token] >> (t - first[s]) & 1) == 0;
                        const double weight =
                            token - t >= window || hidden ? 0 : exp(cap != 0 ? cap * tanh(score / cap) : score);
                        total += weight;
                        for (size_t i = 0; i < V_DIM; i++)
                            sum[i] += weight * v[(t * KV_HEADS + h / 2) * V_DIM + i];
                    }
                    for (size_t i = 0; i < V_DIM; i++)
                        cr_assert_float_eq(out[(token * HEADS + h) * V_DIM + i], sum[i] / total, 1e-13,
                                           "kind %d, token %zu, head %zu", kind, token, h);
                }
            }
        }
    }
}

/* Returns one score for all heads with weights, and one per head without. */
Test(forward_ops, scores_of_an_indexer_are_their_formula, .init = begin)
{
    enum {
        BEGIN = 5,
        FIRST = 12,
        QUERIES = 9,
        KEYS = FIRST + QUERIES - BEGIN,
        HEADS = 3,
        DIM = 7,
        COUNT = FIRST + QUERIES
    };
    static double q[COUNT * HEADS * DIM], k[COUNT * DIM], weights[COUNT * HEADS], scores[HEADS * QUERIES * KEYS];
    tsr_err err;
    for (size_t i = 0; i < COUNT * HEADS * DIM; i++)
        q[i] = uniform(2);
    for (size_t i = 0; i < COUNT * DIM; i++)
        k[i] = uniform(2);
    for (size_t i = 0; i < COUNT * HEADS; i++)
        weights[i] = uniform(2);
    for (int weighted = 0; weighted < 2; weighted++) {
        const tsr_op_index args = {.q = as_activations(q),
                                   .k = as_activations(k),
                                   .weights = as_activations(weighted ? weights : NULL),
                                   .heads = HEADS,
                                   .dim = DIM,
                                   .begin = BEGIN,
                                   .first = FIRST,
                                   .position = FIRST - BEGIN,
                                   .rate = 1,
                                   .queries = QUERIES,
                                   .keys = KEYS,
                                   .scores = as_activations(scores)};
        cr_assert_eq(ops.index(&ops, &args, &err), TSR_OK);
        for (size_t i = 0; i < QUERIES; i++) {
            for (size_t j = 0; BEGIN + j <= FIRST + i; j++) {
                double sum = 0;
                for (size_t h = 0; h < HEADS; h++) {
                    double score = 0;
                    for (size_t d = 0; d < DIM; d++)
                        score += q[((FIRST + i) * HEADS + h) * DIM + d] * k[(BEGIN + j) * DIM + d];
                    sum += weights[(FIRST + i) * HEADS + h] * fmax(score, 0);
                    if (!weighted)
                        cr_assert_float_eq(scores[(h * QUERIES + i) * KEYS + j], score, 1e-13);
                }
                if (weighted)
                    cr_assert_float_eq(scores[i * KEYS + j], sum, 1e-13);
            }
        }
    }
}

Test(forward_ops, norms_and_sums_are_their_formulas, .init = begin)
{
    enum { ROWS = 33, N = 10 };
    static double x[ROWS * N], y[ROWS * N], gain[N], weight[ROWS];
    static uint32_t to_row[ROWS];
    tsr_err err;
    for (size_t i = 0; i < ROWS * N; i++)
        x[i] = uniform(3);
    for (size_t i = 0; i < N; i++)
        gain[i] = uniform(2);
    cr_assert_eq(ops.norm(&ops, as_activations(x), N, ROWS, N, gain, 1e-3, as_activations(y), N, &err), TSR_OK);
    for (size_t row = 0; row < ROWS; row++) {
        double squares = 0;
        for (size_t i = 0; i < N; i++)
            squares += x[row * N + i] * x[row * N + i];
        for (size_t i = 0; i < N; i++)
            cr_assert_float_eq(y[row * N + i], x[row * N + i] / sqrt(squares / N + 1e-3) * gain[i], 1e-13);
    }
    cr_assert_eq(ops.center(&ops, as_activations(x), ROWS, N, as_activations(y), &err), TSR_OK);
    for (size_t row = 0; row < ROWS; row++) {
        double sum = 0;
        for (size_t i = 0; i < N; i++)
            sum += x[row * N + i];
        for (size_t i = 0; i < N; i++)
            cr_assert_float_eq(y[row * N + i], x[row * N + i] - sum / N, 1e-14);
    }
    for (size_t row = 0; row < ROWS; row++) {
        to_row[row] = (uint32_t)(ROWS - 1 - row);
        weight[row] = uniform(1);
        for (size_t i = 0; i < N; i++)
            y[row * N + i] = 100;
    }
    cr_assert_eq(ops.add(&ops, as_activations(y), as_activations(x), ROWS, N, to_row, weight, &err), TSR_OK);
    for (size_t row = 0; row < ROWS; row++) {
        for (size_t i = 0; i < N; i++)
            cr_assert_float_eq(y[to_row[row] * N + i], 100 + weight[row] * x[row * N + i], 1e-13);
    }
}
