/* Computes hyper-connections (DeepSeek-V4): the streams of a state are joined before each half of a layer, and mixed
 * behind it.
 *
 * Manifold-constrained hyper-connections (Xie et al. 2026): of the normalized streams, a product gives for each token a
 * weight of each stream (pre), of the output in each stream (post), and a matrix between streams (mix), which Sinkhorn
 * and Knopp's iterations make nearly doubly stochastic. */
#include "verify/forward/forward_parts.h"

#include "common/parallel/parallel_for.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* The parameters of one connection, and its product of n tokens, [n][rows]. From malloc. */
typedef struct connection {
    double *fn, *base, *scale, *product;
    size_t rows;
} connection;

static void close_connection(connection *c)
{
    free(c->fn);
    free(c->base);
    free(c->scale);
    free(c->product);
}

/* Computes the product of x [n][width], divided by its RMS, and fn [rows][width]. */
static tsr_status multiply(tsr_forward *f, const tsr_activation *x, size_t n, connection *c, tsr_err *err)
{
    tsr_held normed = {0}, y = {0};
    tsr_status status = TSR_OK;
    c->product = malloc((n * c->rows + 1) * sizeof *c->product);
    if (c->product == NULL)
        TSR_GOTO(tsr_out_of_memory(err, "for hyper-connections"));
    TSR_GOTO(tsr_hold_unset(f, &normed, n * f->width, err));
    TSR_GOTO(f->ops->norm(f->ops, x, f->width, n, f->width, NULL, f->eps, normed.x, f->width, err));
    const tsr_layer_product p = {
        .dense = c->fn, .rows = c->rows, .cols = f->width, .x = normed.x, .ld_x = f->width, .n = n, .part = true};
    TSR_GOTO(tsr_forward_product(f, &p, &y, err));
    status = f->ops->get(f->ops, c->product, y.x, n * c->rows, err);
out:
    tsr_let_go(f, &normed);
    tsr_let_go(f, &y);
    return status;
}

/* Reads NAME_fn [rows][width], NAME_base [rows] and NAME_scale [scales], and multiplies. */
static tsr_status open_connection(tsr_forward *f, const char *name, size_t rows, size_t scales, const tsr_activation *x,
                                  size_t n, connection *c, tsr_err *err)
{
    char full[TSR_MAX_NAME];
    *c = (connection){.rows = rows};
    snprintf(full, sizeof full, "%s_fn", name);
    TSR_TRY(tsr_forward_elements(f, full, rows * f->width, &c->fn, err));
    snprintf(full, sizeof full, "%s_base", name);
    TSR_TRY(tsr_forward_elements(f, full, rows, &c->base, err));
    snprintf(full, sizeof full, "%s_scale", name);
    TSR_TRY(tsr_forward_elements(f, full, scales, &c->scale, err));
    return multiply(f, x, n, c, err);
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* ---- weights of a token ---- */

typedef struct weighing {
    const tsr_forward *f;
    const connection *c;
    double *pre; /* [streams][n] */
    size_t n;
    tsr_hyper *hyper;
} weighing;

/* Divides the rows or columns of a square matrix by their sums + eps. */
static void normalize(double *m, size_t n, bool rows, double eps)
{
    const size_t line = rows ? n : 1, step = rows ? 1 : n;
    for (size_t i = 0; i < n; i++) {
        double sum = 0;
        for (size_t k = 0; k < n; k++)
            sum += m[i * line + k * step];
        for (size_t k = 0; k < n; k++)
            m[i * line + k * step] /= sum + eps;
    }
}

static void make_mix(const weighing *w, const double *product, double *mix)
{
    const size_t s = w->f->streams;
    const double eps = w->f->compression.eps;
    for (size_t i = 0; i < s; i++) {
        double *const row = mix + i * s;
        double most = -INFINITY, sum = 0;
        for (size_t k = 0; k < s; k++) {
            row[k] = product[i * s + k] * w->c->scale[2] + w->c->base[2 * s + i * s + k];
            most = fmax(most, row[k]);
        }
        for (size_t k = 0; k < s; k++)
            sum += row[k] = exp(row[k] - most);
        for (size_t k = 0; k < s; k++)
            row[k] = row[k] / sum + eps;
    }
    normalize(mix, s, false, eps);
    for (size_t i = 1; i < w->f->compression.iterations; i++) {
        normalize(mix, s, true, eps);
        normalize(mix, s, false, eps);
    }
}

static tsr_status weigh_token(void *context, size_t token, size_t worker, tsr_err *err)
{
    const weighing *const w = context;
    const connection *const c = w->c;
    const size_t s = w->f->streams;
    const double *const product = c->product + token * c->rows;
    (void)worker, (void)err;
    for (size_t i = 0; i < s; i++)
        w->pre[i * w->n + token] = sigmoid(product[i] * c->scale[0] + c->base[i]) + w->f->compression.eps;
    if (w->hyper == NULL)
        return TSR_OK;
    for (size_t i = 0; i < s; i++)
        w->hyper->post[i * w->n + token] = 2 * sigmoid(product[s + i] * c->scale[1] + c->base[s + i]);
    double mix[TSR_MAX_STREAMS * TSR_MAX_STREAMS];
    make_mix(w, product + 2 * s, mix);
    for (size_t i = 0; i < s * s; i++)
        w->hyper->mix[i * w->n + token] = mix[i];
    return TSR_OK;
}

/* ---- streams ---- */

/* Returns the rows of each stream among those of all, [streams][n], from malloc. */
static uint32_t *rows_of_streams(const tsr_forward *f, size_t n)
{
    uint32_t *const rows = malloc((f->streams * n + 1) * sizeof *rows);
    for (size_t i = 0; rows != NULL && i < f->streams * n; i++)
        rows[i] = (uint32_t)(i % n * f->streams + i / n);
    return rows;
}

/* Copies one stream of x to y [n][hidden]. */
static tsr_status take_stream(const tsr_forward *f, const tsr_activation *x, size_t stream, size_t n, tsr_activation *y,
                              tsr_err *err)
{
    return f->ops->place(f->ops, y, f->hidden, 0, x, f->width, stream * f->hidden, n, f->hidden, err);
}

/* Computes the sum of the streams of x, each times its weights pre [streams][n]. */
static tsr_status join(const tsr_forward *f, const tsr_activation *x, size_t n, const double *pre, tsr_activation *y,
                       tsr_err *err)
{
    tsr_held stream = {0}, sum = {0};
    tsr_status status = TSR_OK;
    TSR_GOTO(tsr_hold_unset(f, &stream, n * f->hidden, err));
    TSR_GOTO(tsr_hold(f, &sum, n * f->hidden, err));
    for (size_t s = 0; s < f->streams; s++) {
        TSR_GOTO(take_stream(f, x, s, n, stream.x, err));
        TSR_GOTO(f->ops->add(f->ops, sum.x, stream.x, n, f->hidden, NULL, pre + s * n, err));
    }
    TSR_GOTO(f->ops->copy(f->ops, y, sum.x, n * f->hidden, err));
    status = tsr_forward_round(f, y, n * f->hidden, err);
out:
    tsr_let_go(f, &stream);
    tsr_let_go(f, &sum);
    return status;
}

/* Weighs and joins. NULL `hyper`: only the sum is wanted. */
static tsr_status weigh(tsr_forward *f, const char *name, const tsr_activation *x, size_t n, tsr_activation *y,
                        tsr_hyper *hyper, tsr_err *err)
{
    const size_t s = f->streams;
    double *const pre = malloc((n * s + 1) * sizeof *pre);
    connection c = {0};
    tsr_status status = TSR_OK;
    if (pre == NULL)
        TSR_GOTO(tsr_out_of_memory(err, "for hyper-connections"));
    TSR_GOTO(open_connection(f, name, hyper == NULL ? s : (2 + s) * s, hyper == NULL ? 1 : 3, x, n, &c, err));
    weighing w = {f, &c, pre, n, hyper};
    TSR_GOTO(tsr_parallel_for(n, f->ops->threads, f->ops->cancel, weigh_token, &w, err));
    status = join(f, x, n, pre, y, err);
out:
    close_connection(&c);
    free(pre);
    return status;
}

tsr_status tsr_forward_join_streams(tsr_forward *f, size_t layer, const char *half, const tsr_activation *x, size_t n,
                                    tsr_activation *y, tsr_hyper *hyper, tsr_err *err)
{
    char part[TSR_MAX_NAME / 4], name[TSR_MAX_NAME];
    const size_t s = f->streams;
    *hyper = (tsr_hyper){malloc((n * s + 1) * sizeof(double)), malloc((n * s * s + 1) * sizeof(double))};
    if (hyper->post == NULL || hyper->mix == NULL)
        return tsr_out_of_memory(err, "for hyper-connections");
    snprintf(part, sizeof part, "hc_%s", half);
    return weigh(f, tsr_forward_name(f, name, layer, part), x, n, y, hyper, err);
}

tsr_status tsr_forward_join_last(tsr_forward *f, const tsr_activation *x, size_t n, tsr_activation *y, tsr_err *err)
{
    char name[TSR_MAX_NAME];
    snprintf(name, sizeof name, "%shc_head", f->root);
    return weigh(f, name, x, n, y, NULL, err);
}

tsr_status tsr_forward_split_streams(const tsr_forward *f, const tsr_hyper *hyper, const tsr_activation *out, size_t n,
                                     tsr_activation *x, tsr_err *err)
{
    const size_t s = f->streams, hidden = f->hidden;
    uint32_t *const rows = rows_of_streams(f, n);
    tsr_held stream = {0}, sums = {0};
    tsr_status status = TSR_OK;
    if (rows == NULL)
        TSR_GOTO(tsr_out_of_memory(err, "for hyper-connections"));
    TSR_GOTO(tsr_hold_unset(f, &stream, n * hidden, err));
    TSR_GOTO(tsr_hold(f, &sums, n * f->width, err));
    for (size_t k = 0; k < s; k++)
        TSR_GOTO(f->ops->add(f->ops, sums.x, out, n, hidden, rows + k * n, hyper->post + k * n, err));
    for (size_t j = 0; j < s; j++) {
        TSR_GOTO(take_stream(f, x, j, n, stream.x, err));
        for (size_t k = 0; k < s; k++)
            TSR_GOTO(f->ops->add(f->ops, sums.x, stream.x, n, hidden, rows + k * n, hyper->mix + (j * s + k) * n, err));
    }
    TSR_GOTO(f->ops->copy(f->ops, x, sums.x, n * f->width, err));
    status = tsr_forward_round(f, x, n * f->width, err);
out:
    tsr_let_go(f, &stream);
    tsr_let_go(f, &sums);
    free(rows);
    return status;
}

void tsr_hyper_free(tsr_hyper *hyper)
{
    free(hyper->post);
    free(hyper->mix);
    *hyper = (tsr_hyper){0};
}
