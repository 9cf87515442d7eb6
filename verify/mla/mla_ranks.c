/* Runs heads divided among ranks, serially or on one GPU each, and judges their sum. */
#include "verify/mla/mla_work.h"

#include "common/checked.h"
#include "verify/evidence/device_ranks.h"
#include "verify/values/weight_product.h"
#include "verify/values/weight_reader.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BAND = 64 };

static const double kUnit = 0x1p-24, kHigherOrders = 1.01;

/* Properties of each value that W_o is applied to. */
enum {
    EXACT,
    SIZE,     /* |computed value| */
    MASS,     /* sum of the magnitudes of its terms */
    SQUARE,   /* EXACT^2 */
    VARIANCE, /* mean square error */
    N_OF_A
};

typedef struct cut {
    size_t ranks, share;         /* share: heads per rank */
    char joined[TSR_RANKS_HOW];  /* how the ranks are connected */
    float *w_v, *w_o;            /* [heads][v][rank], [hidden][heads * v] */
    uint16_t *q;                 /* one rank: [slots] */
    float *out;                  /* [slots][share][rank] */
    float *values;               /* [slots][heads * v] */
    float *parts;                /* [ranks][slots][hidden] */
    float *uncut;                /* [slots][hidden] */
    double *row, *size, *square; /* a row of W_o, heads * v, with magnitudes and squares */
    double *of_a[N_OF_A];        /* [slots][heads * v] */
    double *x, *y;               /* [slots][hidden]: values to judge */
} cut;

static tsr_status load_weights(tsr_mla_work *w, cut *c, tsr_err *err)
{
    const tsr_mla_model *const m = w->s->model;
    const size_t cols = m->heads * m->v;
    tsr_weight_reader reader = {0};
    tsr_view view;
    for (size_t i = 0; i < cols * m->rank; i++)
        c->w_v[i] = (float)m->w_vc[i];
    tsr_status status = tsr_view_init(&view, m->checkpoint, m->o, err);
    for (size_t at = 0; status == TSR_OK && at < m->hidden; at += BAND) {
        const tsr_piece piece = {.row = at, .rows = tsr_min_u64(BAND, m->hidden - at), .cols = cols};
        status = tsr_weight_reader_load(&reader, &view, &piece, err);
        for (size_t i = 0; status == TSR_OK && i < piece.rows; i++) {
            tsr_weight_reader_row(&reader, i, 0, cols, c->row);
            for (size_t k = 0; k < cols; k++)
                c->w_o[(at + i) * cols + k] = (float)c->row[k];
        }
    }
    tsr_weight_reader_free(&reader);
    tsr_mla_lap(w, TSR_PHASE_READ);
    return status;
}

static tsr_status open_cut(tsr_mla_work *w, cut *c, tsr_err *err)
{
    const tsr_mla_model *const m = w->s->model;
    const size_t cols = m->heads * m->v, outputs = w->slots * m->hidden;
    c->ranks = (size_t)w->s->options->ranks;
    c->share = m->heads / c->ranks;
    TSR_TRY(tsr_mla_take(w, &c->w_v, cols * m->rank * sizeof *c->w_v, err));
    TSR_TRY(tsr_mla_take(w, &c->w_o, m->hidden * cols * sizeof *c->w_o, err));
    TSR_TRY(tsr_mla_take(w, &c->q, w->slots * c->share * w->width * sizeof *c->q, err));
    TSR_TRY(tsr_mla_take(w, &c->out, w->slots * c->share * m->rank * sizeof *c->out, err));
    TSR_TRY(tsr_mla_take(w, &c->values, w->slots * cols * sizeof *c->values, err));
    TSR_TRY(tsr_mla_take(w, &c->parts, c->ranks * outputs * sizeof *c->parts, err));
    TSR_TRY(tsr_mla_take(w, &c->uncut, outputs * sizeof *c->uncut, err));
    TSR_TRY(tsr_mla_take(w, &c->row, cols * sizeof *c->row, err));
    TSR_TRY(tsr_mla_take(w, &c->size, cols * sizeof *c->size, err));
    TSR_TRY(tsr_mla_take(w, &c->square, cols * sizeof *c->square, err));
    for (size_t i = 0; i < N_OF_A; i++)
        TSR_TRY(tsr_mla_take(w, &c->of_a[i], w->slots * cols * sizeof(double), err));
    TSR_TRY(tsr_mla_take(w, &c->x, outputs * sizeof *c->x, err));
    TSR_TRY(tsr_mla_take(w, &c->y, outputs * sizeof *c->y, err));
    return load_weights(w, c, err);
}

/* Runs one rank: attention of its heads, W_v, and its columns of W_o. */
static tsr_status run_rank(tsr_mla_work *w, cut *c, const tsr_device_mla *kernel, size_t rank, double *slowest,
                           tsr_err *err)
{
    const tsr_mla_model *const m = w->s->model;
    const size_t first = rank * c->share, q_bytes = c->share * w->width * sizeof *c->q, cols = m->heads * m->v;
    tsr_mla_attention args = tsr_mla_arguments(w);
    double seconds = 0;
    for (size_t i = 0; i < w->slots; i++)
        memcpy(c->q + i * c->share * w->width, w->q + (i * m->heads + first) * w->width, q_bytes);
    args.q = c->q;
    args.out = c->out;
    args.heads = c->share;
    TSR_TRY(kernel->run(kernel, rank, &args, &seconds, err));
    *slowest = fmax(*slowest, seconds);
    for (size_t i = 0; i < w->slots; i++)
        memcpy(w->out + (i * m->heads + first) * m->rank, c->out + i * c->share * m->rank,
               c->share * m->rank * sizeof *c->out);
    const tsr_project_args values = {.x = c->out,
                                     .w = c->w_v + first * m->v * m->rank,
                                     .y = c->values + first * m->v,
                                     .batch = c->share,
                                     .m = w->slots,
                                     .n = m->v,
                                     .k = m->rank,
                                     .ld_x = c->share * m->rank,
                                     .ld_w = m->rank,
                                     .ld_y = cols,
                                     .next_x = m->rank,
                                     .next_w = m->v * m->rank,
                                     .next_y = m->v};
    TSR_TRY(kernel->project(kernel, rank, &values, err));
    const tsr_project_args part = {.x = c->values + first * m->v,
                                   .w = c->w_o + first * m->v,
                                   .y = c->parts + rank * w->slots * m->hidden,
                                   .batch = 1,
                                   .m = w->slots,
                                   .n = m->hidden,
                                   .k = c->share * m->v,
                                   .ld_x = cols,
                                   .ld_w = cols,
                                   .ld_y = m->hidden};
    return kernel->project(kernel, rank, &part, err);
}

/* Applies all of W_o at once to the same values. */
static tsr_status run_uncut(tsr_mla_work *w, cut *c, const tsr_device_mla *kernel, tsr_err *err)
{
    const tsr_mla_model *const m = w->s->model;
    const size_t cols = m->heads * m->v;
    const tsr_project_args whole = {.x = c->values,
                                    .w = c->w_o,
                                    .y = c->uncut,
                                    .batch = 1,
                                    .m = w->slots,
                                    .n = m->hidden,
                                    .k = cols,
                                    .ld_x = cols,
                                    .ld_w = cols,
                                    .ld_y = m->hidden};
    return kernel->project(kernel, 0, &whole, err);
}

/* Returns the mean square error of a projection, with `more` additions after it (verify/mla/mla_kernels.h). */
static double variance_of(size_t k, size_t more, double squares, double sum)
{
    const double lane = ceil((double)k / (double)TSR_PROJECT_LANES);
    return kUnit * kUnit / 3 * (squares * (lane / 2 + 6 + (double)more) + sum * sum * (lane / 96 + 1 + (double)more));
}

/* Applies W_v in double to the result of attention. */
static void expand(const tsr_mla_work *w, cut *c)
{
    const tsr_mla_model *const m = w->s->model;
    for (size_t i = 0; i < w->slots * m->heads * m->v; i++) {
        const float *const x = w->out + i / m->v * m->rank;
        const float *const row = c->w_v + (i / m->v % m->heads * m->v + i % m->v) * m->rank;
        double sum = 0, mass = 0, squares = 0;
        for (size_t k = 0; k < m->rank; k++) {
            const double product = (double)x[k] * (double)row[k];
            sum += product;
            mass += fabs(product);
            squares += product * product;
        }
        c->of_a[EXACT][i] = sum;
        c->of_a[SIZE][i] = fabs((double)c->values[i]);
        c->of_a[MASS][i] = mass;
        c->of_a[SQUARE][i] = sum * sum;
        c->of_a[VARIANCE][i] = variance_of(m->rank, 0, squares, sum);
    }
}

/* Judges all elements of row `i` of W_o. */
static void judge_row(const tsr_mla_work *w, cut *c, size_t i, tsr_kernel_tally *whole, tsr_kernel_tally *sum)
{
    const tsr_mla_model *const m = w->s->model;
    const size_t cols = m->heads * m->v, share = c->share * m->v;
    const size_t uncut = tsr_project_roundings(cols), cut_up = tsr_project_roundings(share) + c->ranks - 1;
    const double behind = kHigherOrders * kUnit * (double)(tsr_project_roundings(m->rank) + uncut);
    const double either = kHigherOrders * kUnit * (double)(uncut + cut_up);
    for (size_t k = 0; k < cols; k++) {
        c->row[k] = (double)c->w_o[i * cols + k];
        c->size[k] = fabs(c->row[k]);
        c->square[k] = c->row[k] * c->row[k];
    }
    for (size_t slot = 0; slot < w->slots; slot++) {
        const size_t at = slot * m->hidden + i, from = slot * cols;
        const double exact = tsr_dot(c->of_a[EXACT] + from, c->row, cols);
        const double squares = tsr_dot(c->of_a[SQUARE] + from, c->square, cols);
        const double variance = variance_of(cols, 0, squares, exact);
        c->x[at] = exact;
        c->y[at] = (double)c->uncut[at];
        tsr_kernel_tally_count(whole, slot, i, exact, c->y[at], behind * tsr_dot(c->of_a[MASS] + from, c->size, cols),
                               variance + tsr_dot(c->of_a[VARIANCE] + from, c->square, cols));
        tsr_kernel_tally_count(sum, slot, i, c->y[at], (double)c->parts[at],
                               either * tsr_dot(c->of_a[SIZE] + from, c->size, cols),
                               variance + variance_of(share, c->ranks - 1, squares, exact));
    }
}

/* Judges the uncut output against the exact one, and the sum of the ranks against the uncut output. */
static tsr_status judge_outputs(tsr_mla_work *w, cut *c, const tsr_device_mla *kernel, double seconds, tsr_err *err)
{
    const size_t hidden = w->s->model->hidden, outputs = w->slots * hidden;
    char names[2][160];
    snprintf(names[0], sizeof names[0], "%s: W_v and W_o uncut, in FP32", kernel->name);
    snprintf(names[1], sizeof names[1], "%s, %zu ranks %s: sum against uncut", kernel->name, c->ranks, c->joined);
    const tsr_tally_of of[2] = {{.subject = w->s->name, .what = names[0], .out = TSR_OUT_F32},
                                {.subject = w->s->name, .what = names[1], .seconds = seconds, .out = TSR_OUT_F32}};
    tsr_kernel_tally whole, sum;
    TSR_TRY(tsr_kernel_tally_begin(&whole, &of[0], err));
    TSR_TRY(tsr_kernel_tally_begin(&sum, &of[1], err));
    expand(w, c);
    for (size_t i = 0; i < hidden; i++)
        judge_row(w, c, i, &whole, &sum);
    tsr_judge(&whole.judgement, c->x, c->y, w->slots, hidden, NULL, NULL);
    for (size_t i = 0; i < outputs; i++)
        c->x[i] = (double)c->parts[i];
    tsr_judge(&sum.judgement, c->y, c->x, w->slots, hidden, NULL, NULL);
    const char *fault = "above the bound of a different order of summation";
    if (!tsr_device_ranks_agree(c->parts, c->ranks, outputs)) {
        fault = TSR_RANKS_DIFFER;
        sum.judgement.of_bound = INFINITY;
    }
    TSR_TRY(tsr_mla_end_tally(w, &whole, "above the bound of its accumulation",
                              "errors above those of its accumulation", err));
    return tsr_mla_end_tally(w, &sum, fault, "errors above those of a different order of summation", err);
}

static tsr_status run_ranks(tsr_mla_work *w, cut *c, const tsr_device_mla *kernel, tsr_err *err)
{
    const size_t outputs = w->slots * w->s->model->hidden;
    char what[160];
    double decode = 0, reduce = 0;
    memset(w->out, 0xFF, w->slots * w->s->model->heads * w->s->model->rank * sizeof *w->out);
    for (size_t r = 0; r < c->ranks; r++) {
        const tsr_status status = run_rank(w, c, kernel, r, &decode, err);
        if (status == TSR_E_UNSUPPORTED)
            return TSR_OK; /* already noted for the uncut kernel */
        TSR_TRY(status);
    }
    TSR_TRY(run_uncut(w, c, kernel, err));
    TSR_TRY(kernel->ranks.sum(kernel->device, c->ranks, TSR_OUT_F32, c->parts, outputs, &reduce, err));
    tsr_mla_lap(w, TSR_PHASE_KERNELS);
    snprintf(what, sizeof what, "%s, %zu ranks %s: their heads", kernel->name, c->ranks, c->joined);
    TSR_TRY(tsr_mla_judge_decode(w, kernel, what, decode, err));
    return judge_outputs(w, c, kernel, reduce, err);
}

tsr_status tsr_mla_check_ranks(tsr_mla_work *w, tsr_err *err)
{
    tsr_device *const device = w->s->options->device;
    cut c = {0};
    TSR_TRY(open_cut(w, &c, err));
    for (size_t i = 0; i < device->n_mlas; i++) {
        const tsr_device_mla *const kernel = &device->mlas[i];
        TSR_TRY(tsr_device_ranks_spread(&kernel->ranks, w->s->options, w->s->name, c.joined, w->evidence, err));
        TSR_TRY(run_ranks(w, &c, kernel, err));
    }
    return TSR_OK;
}
