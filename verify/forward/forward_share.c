/* Divides the rows of a product's weight among devices.
 *
 * Each device decodes, copies and multiplies its own rows. docs/verify-forward.md explains why weights are divided,
 * and not tokens. */
#include "verify/forward/forward_ops.h"

#include "common/checked.h"
#include "common/parallel/parallel_for.h"

#include <stdlib.h>

/* A share begins at a multiple of ROWS_OF_A_SHARE rows. With MANY_TOKENS or more, and more tokens than rows, copying
 * the tokens to another device takes longer than multiplying them. */
enum { ROWS_OF_A_SHARE = 16, MANY_TOKENS = 1024 };

typedef struct share {
    tsr_ops *ops;
    tsr_op_linear product;
    tsr_activation *x, *y; /* in this table's memory; unused for the first table, which uses the product's own */
    tsr_activation *back;  /* y in the first table's memory */
} share;

typedef struct sharing {
    const tsr_op_linear *whole;
    tsr_ops *first;
    const tsr_activation *x; /* contiguous */
    tsr_activation *packed;  /* contiguous copy of the product's x, if that has gaps */
    share *shares;
    size_t n;
} sharing;

static tsr_status run_share(void *context, size_t i, size_t worker, tsr_err *err)
{
    const sharing *const s = context;
    tsr_ops part = *s->shares[i].ops; /* nothing else uses this table meanwhile */
    part.threads = (unsigned)tsr_max_u64(s->first->threads / s->n, 1);
    (void)worker;
    const tsr_status status = part.linear(&part, &s->shares[i].product, err);
    s->shares[i].ops->exchanged = part.exchanged;
    return status;
}

/* Copies rows [from, from + rows) of the tokens, and of y, to the table `to`. */
static tsr_status give(const sharing *s, share *to, size_t from, size_t rows, tsr_err *err)
{
    const tsr_op_linear *const w = s->whole;
    to->product = *w;
    to->product.first_row += from;
    to->product.rows = rows;
    to->product.y = tsr_at(s->first, w->y, from);
    if (to->ops == s->first)
        return TSR_OK;
    TSR_TRY(to->ops->make(to->ops, w->n * w->cols, false, &to->x, err));
    TSR_TRY(to->ops->fetch(to->ops, to->x, s->first, s->x, w->n * w->cols, err));
    TSR_TRY(s->first->make(s->first, w->n * rows, false, &to->back, err));
    TSR_TRY(s->first->place(s->first, to->back, rows, 0, w->y, w->ld_y, from, w->n, rows, err));
    TSR_TRY(to->ops->make(to->ops, w->n * rows, false, &to->y, err));
    to->product.x = to->x;
    to->product.ld_x = w->cols;
    to->product.y = to->y;
    to->product.ld_y = rows;
    return to->ops->fetch(to->ops, to->y, s->first, to->back, w->n * rows, err);
}

static tsr_status take_back(const sharing *s, const share *from, tsr_err *err)
{
    const tsr_op_linear *const w = s->whole;
    const size_t rows = from->product.rows;
    if (from->ops == s->first)
        return TSR_OK;
    TSR_TRY(s->first->fetch(s->first, from->back, from->ops, from->y, w->n * rows, err));
    return s->first->place(s->first, w->y, w->ld_y, from->product.first_row - w->first_row, from->back, rows, 0, w->n,
                           rows, err);
}

static void drop_share(const sharing *s, share *of)
{
    const size_t rows = of->product.rows;
    of->ops->drop(of->ops, of->x, s->whole->n * s->whole->cols);
    of->ops->drop(of->ops, of->y, s->whole->n * rows);
    s->first->drop(s->first, of->back, s->whole->n * rows);
}

/* Returns the number of tables for a product. *rows is the number of rows of each but the last. */
static size_t divide(const tsr_ops *ops, const tsr_op_linear *a, size_t *rows)
{
    *rows = (size_t)tsr_round_up(tsr_ceil_div(a->rows, 1 + ops->n_beside), ROWS_OF_A_SHARE);
    return a->n == 0 || a->rows < tsr_min_u64(a->n, MANY_TOKENS) ? 1 : (size_t)tsr_ceil_div(a->rows, *rows);
}

static tsr_status run_shared(sharing *s, size_t rows, tsr_err *err)
{
    const tsr_op_linear *const w = s->whole;
    s->x = w->x;
    if (w->ld_x != w->cols) {
        TSR_TRY(s->first->make(s->first, w->n * w->cols, false, &s->packed, err));
        TSR_TRY(s->first->place(s->first, s->packed, w->cols, 0, w->x, w->ld_x, 0, w->n, w->cols, err));
        s->x = s->packed;
    }
    for (size_t i = 0; i < s->n; i++) {
        s->shares[i].ops = i == 0 ? s->first : &s->first->beside[i - 1];
        TSR_TRY(give(s, &s->shares[i], i * rows, (size_t)tsr_min_u64(rows, w->rows - i * rows), err));
    }
    TSR_TRY(tsr_parallel_for(s->n, s->n, s->first->cancel, run_share, s, err));
    for (size_t i = 0; i < s->n; i++)
        TSR_TRY(take_back(s, &s->shares[i], err));
    return TSR_OK;
}

tsr_status tsr_ops_linear(tsr_ops *ops, const tsr_op_linear *a, tsr_err *err)
{
    size_t rows;
    const size_t n = divide(ops, a, &rows);
    if (n <= 1)
        return ops->linear(ops, a, err);
    sharing s = {.whole = a, .first = ops, .shares = calloc(n, sizeof *s.shares), .n = n};
    const tsr_status status =
        s.shares == NULL ? tsr_out_of_memory(err, "for shares of a product") : run_shared(&s, rows, err);
    for (size_t i = 0; s.shares != NULL && i < n && s.shares[i].ops != NULL; i++)
        drop_share(&s, &s.shares[i]);
    ops->drop(ops, s.packed, a->n * a->cols);
    free(s.shares);
    return status;
}
