/* Quantizes an indexer's operands, and computes scores over the codes in double. */
#include "verify/mla/sparse/index_codes.h"

#include "common/float_bits.h"
#include "common/parallel/parallel_for.h"
#include "verify/evidence/tensor_core_step.h"

#include <math.h>
#include <string.h>

static const double kUnit = 0x1p-24, kHigherOrders = 1.01, kLeastAmax = 1e-4;

const char *tsr_index_without_codes(size_t dim, bool rotated)
{
    if (dim > TSR_INDEX_WIDTH)
        return "index scores in FP8: heads of more than 128 elements need more than one scale";
    return rotated && (dim & (dim - 1)) != 0
               ? "index scores in FP8, rotated: index_head_dim is no power of two, so there is no Hadamard matrix"
               : NULL;
}

/* Multiplies x[n] by the normalized Hadamard matrix, n a power of two. */
static void rotate(double *x, size_t n)
{
    for (size_t half = 1; half < n; half *= 2) {
        for (size_t i = 0; i < n; i++) {
            if ((i & half) != 0)
                continue;
            const double u = x[i], v = x[i + half];
            x[i] = u + v;
            x[i + half] = u - v;
        }
    }
    for (size_t i = 0; i < n; i++)
        x[i] /= sqrt((double)n);
}

/* Writes the codes of n values. Returns their scale, a power of two. */
static float encode(const double *values, size_t n, bool rotated, uint8_t *codes)
{
    double x[TSR_INDEX_WIDTH], amax = kLeastAmax;
    int exponent;
    memcpy(x, values, n * sizeof *x);
    if (rotated)
        rotate(x, n);
    for (size_t i = 0; i < n; i++)
        amax = fmax(amax, fabs(x[i]));
    const double mantissa = frexp(amax / (double)TSR_E4M3_MAX, &exponent);
    const double scale = ldexp(1, mantissa == 0.5 ? exponent - 1 : exponent);
    for (size_t i = 0; i < n; i++)
        codes[i] = tsr_e4m3_from_f32((float)(x[i] / scale));
    return (float)scale;
}

static void *take(tsr_index_codes *c, size_t bytes)
{
    return tsr_arena_alloc(&c->arena, bytes + 64);
}

tsr_status tsr_index_codes_make(tsr_index_codes *c, const tsr_mla_model *m, const tsr_mla_batch *b,
                                const tsr_mla_stages *stages, bool rotated, tsr_err *err)
{
    const size_t heads = m->index.heads, dim = m->index.dim, rows = b->queries * heads;
    *c = (tsr_index_codes){0};
    c->q = take(c, rows * dim);
    c->k = take(c, b->tokens * dim);
    c->k_scale = take(c, b->tokens * sizeof *c->k_scale);
    c->weights = take(c, rows * sizeof *c->weights);
    if (c->q == NULL || c->k == NULL || c->k_scale == NULL || c->weights == NULL)
        return tsr_out_of_memory(err, "for codes of an indexer");
    for (size_t i = 0; i < rows; i++) {
        const float scale = encode(stages->of[TSR_STAGE_INDEX_Q] + i * dim, dim, rotated, c->q + i * dim);
        c->weights[i] = (float)(stages->of[TSR_STAGE_INDEX_WEIGHTS][i] * (double)scale / sqrt((double)dim));
    }
    for (size_t i = 0; i < b->tokens; i++)
        c->k_scale[i] = encode(stages->of[TSR_STAGE_INDEX_K] + i * dim, dim, rotated, c->k + i * dim);
    return TSR_OK;
}

void tsr_index_codes_free(tsr_index_codes *c)
{
    tsr_arena_free(&c->arena);
    *c = (tsr_index_codes){0};
}

tsr_index_scores tsr_index_arguments(const tsr_index_codes *c, const tsr_mla_model *m, const tsr_mla_batch *b,
                                     size_t from, size_t to)
{
    const size_t heads = m->index.heads, dim = m->index.dim, s = b->seq_of[from];
    return (tsr_index_scores){.q = c->q + from * heads * dim,
                              .k = c->k + b->first[s] * dim,
                              .k_scale = c->k_scale + b->first[s],
                              .weights = c->weights + from * heads,
                              .queries = to - from,
                              .keys = b->first[s + 1] - b->first[s],
                              .heads = heads,
                              .width = dim};
}

const char *tsr_index_mistake_text(tsr_index_mistake mistake)
{
    static const char *const kTexts[TSR_N_INDEX_MISTAKES] = {
        NULL,
        "negative sums of heads count: ReLU is missing",
        "the scales of the keys are not applied",
        "the scales of the keys are applied twice",
        "the weights of the heads are not applied",
    };
    return kTexts[mistake];
}

/* ---- exact scores ---- */

typedef struct solving {
    const tsr_index_codes *codes;
    const tsr_mla_model *model;
    const tsr_mla_batch *batch;
    bool tensor_core;
    tsr_index_mistake mistake;
    const tsr_index_exact *exact;
    double values[256];
} solving;

/* Sums of the products of one head. */
typedef struct head_sums {
    double sum, mass, squares;
    double slack, variance; /* errors of a tensor core */
} head_sums;

static head_sums add_head(const solving *w, const uint8_t *q, const uint8_t *k)
{
    const size_t dim = w->model->index.dim;
    head_sums s = {0};
    for (size_t at = 0; at < dim; at += TSR_GEMM_STEP) {
        double largest = fabs(s.sum), step = 0;
        for (size_t d = at; d < dim && d < at + TSR_GEMM_STEP; d++) {
            const double product = w->values[q[d]] * w->values[k[d]];
            step += product;
            s.mass += fabs(product);
            s.squares += product * product;
            largest = fmax(largest, fabs(product));
        }
        s.sum += step;
        s.slack += tsr_step_slack(largest);
        s.variance += tsr_step_variance(tsr_step_quantum(largest));
    }
    return s;
}

/* Computes the score of one query and key, with the bound and the expected square of a kernel's error. */
static void solve_key(const solving *w, const tsr_index_scores *a, size_t j, size_t at)
{
    const double width = (double)a->width, heads = (double)a->heads, scale = (double)a->k_scale[j];
    double total = 0, mass = 0, squares = 0, slack = 0, variance = 0;
    for (size_t h = 0; h < a->heads; h++) {
        const head_sums s = add_head(w, a->q + h * a->width, a->k + j * a->width);
        const double weight = w->mistake == TSR_INDEX_NO_WEIGHTS ? 1 : (double)a->weights[h];
        const double part = weight * (w->mistake == TSR_INDEX_NO_RELU ? s.sum : fmax(s.sum, 0));
        const double fp32 = kUnit * kUnit / 3 * (s.squares * width / 2 + s.sum * s.sum * width / 3);
        total += part;
        squares += part * part;
        mass += fabs(weight) * s.mass;
        slack += fabs(weight) * s.slack;
        variance += s.sum > 0 ? weight * weight * (w->tensor_core ? s.variance : fp32) : 0;
    }
    const double factor = w->mistake == TSR_INDEX_NO_SCALE      ? 1
                          : w->mistake == TSR_INDEX_SCALE_TWICE ? scale * scale
                                                                : scale;
    w->exact->value[at] = factor * total;
    if (w->exact->bound == NULL)
        return;
    const double roundings = w->tensor_core ? heads + 1 : width + heads + 1;
    w->exact->bound[at] =
        scale * (kHigherOrders * roundings * kUnit * mass + (w->tensor_core ? slack : 0)) + 0x1p-126 * (mass + 1);
    variance += kUnit * kUnit / 3 * (squares * (heads / 2 + 1) + total * total * (heads / 3 + 2));
    w->exact->variance[at] = scale * scale * variance;
}

static tsr_status solve_query(void *context, size_t i, size_t worker, tsr_err *err)
{
    const solving *const w = context;
    const tsr_index_scores a = tsr_index_arguments(w->codes, w->model, w->batch, i, i + 1);
    const size_t seen = tsr_mla_tokens_seen(w->batch, i), longest = w->batch->longest;
    (void)worker, (void)err;
    for (size_t j = 0; j < seen; j++)
        solve_key(w, &a, j, i * longest + j);
    for (size_t j = seen; j < longest; j++)
        w->exact->value[i * longest + j] = 0;
    return TSR_OK;
}

tsr_status tsr_index_solve(const tsr_index_codes *codes, const tsr_mla_model *m, const tsr_mla_batch *b,
                           bool tensor_core, tsr_index_mistake mistake, const tsr_run_options *run,
                           const tsr_index_exact *exact, tsr_err *err)
{
    solving w = {codes, m, b, tensor_core, mistake, exact, {0}};
    for (size_t code = 0; code < 256; code++)
        w.values[code] = (double)tsr_e4m3_to_f32((uint8_t)code);
    return tsr_parallel_for(b->queries, run->threads, run->cancel, solve_query, &w, err);
}
