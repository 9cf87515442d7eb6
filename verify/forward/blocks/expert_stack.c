/* Computes experts whose weights are stacks: one tensor for the gates and ups of all experts, and one for their
 * downs. */
#include "verify/forward/forward_parts.h"

#include <math.h>
#include <stdlib.h>

/* A stack of `experts` matrices, [rows][cols] as a linear layer uses them. */
typedef struct stack {
    tsr_forward *f;
    size_t layer;
    const tsr_weight *own, *w; /* w: in `side`, from which the pass takes it */
    const tsr_side *side;
    bool alternating; /* plain values are [experts][cols][rows] */
    size_t experts, rows, cols;
} stack;

/* Finds the stack of gates and ups (0) or downs (1) of a layer, with or without ".weight" behind its name. */
static tsr_status find(const tsr_forward *f, const tsr_weight **w, size_t layer, size_t which, tsr_err *err)
{
    char name[TSR_MAX_NAME];
    *w = NULL;
    if (f->family->moe->stacks[which] == NULL)
        return TSR_OK;
    tsr_forward_name(f, name, layer, f->family->moe->stacks[which]);
    TSR_TRY(tsr_forward_find(f, w, NULL, "%s.weight", name));
    return *w != NULL ? TSR_OK : tsr_forward_find(f, w, err, "%s", name);
}

bool tsr_forward_has_stacks(const tsr_forward *f, size_t layer)
{
    const tsr_weight *w = NULL;
    return find(f, &w, layer, 0, NULL) == TSR_OK && w != NULL;
}

/* Transposes one matrix of a plain stack of [inputs][outputs]. *dense is from malloc. It is NULL for codes and for
 * other stacks, whose rows are outputs. */
static tsr_status turned(const stack *s, size_t e, double **dense, tsr_err *err)
{
    const size_t rows = s->rows, cols = s->cols;
    const tsr_piece piece = {.matrix = e, .rows = cols, .cols = rows};
    *dense = NULL;
    if (s->w->coding != TSR_PLAIN || !s->alternating)
        return TSR_OK;
    double *const stored = malloc(rows * cols * sizeof *stored);
    *dense = malloc(rows * cols * sizeof **dense);
    tsr_status status = stored == NULL || *dense == NULL
                            ? tsr_out_of_memory(err, "for an expert")
                            : tsr_read_values(s->side->checkpoint, s->w, &piece, stored, err);
    for (size_t i = 0; status == TSR_OK && i < rows * cols; i++)
        (*dense)[i] = stored[i % cols * rows + i / cols];
    free(stored);
    return status;
}

static bool has_shape(const stack *s)
{
    const tsr_tensor *const t = s->w->values;
    if (s->w->coding != TSR_PLAIN)
        return s->w->matrices == s->experts && s->w->rows == s->rows && s->w->cols == s->cols;
    return t->rank == 3 && t->shape[0] == s->experts && t->shape[1] == (s->alternating ? s->cols : s->rows) &&
           t->shape[2] == (s->alternating ? s->rows : s->cols) && tsr_dtype_is_weight_float((tsr_dtype)t->dtype);
}

/* Reads the bias of expert e, if the family has biases. */
static tsr_status read_bias(const stack *s, size_t which, size_t e, double **bias, tsr_err *err)
{
    char name[TSR_MAX_NAME];
    const tsr_checkpoint *const c = s->f->side->checkpoint;
    const tsr_piece piece = {.row = e, .rows = 1, .cols = s->rows};
    const tsr_weight *w;
    *bias = NULL;
    tsr_forward_name(s->f, name, s->layer, s->f->family->moe->stacks[which]);
    TSR_TRY(tsr_forward_find(s->f, &w, s->alternating ? err : NULL, "%s_bias", name));
    if (w == NULL)
        return TSR_OK;
    if (w->values->rank != 2 || w->values->shape[0] != s->experts || w->values->shape[1] != s->rows)
        return tsr_fail(err, TSR_E_SHAPE, "%s: '%s' is not [%zu, %zu]", c->path, w->values->name, s->experts, s->rows);
    *bias = malloc(s->rows * sizeof **bias);
    return *bias == NULL ? tsr_out_of_memory(err, "for a bias") : tsr_read_values(c, w, &piece, *bias, err);
}

/* Computes y [n][rows] of expert e, with its bias. */
static tsr_status multiply(stack *s, size_t which, size_t e, const tsr_activation *x, size_t n, tsr_held *y,
                           tsr_err *err)
{
    tsr_forward *const f = s->f;
    double *dense = NULL, *bias = NULL;
    const tsr_input_coding none = {.type = TSR_INPUT_PLAIN};
    tsr_status status;
    TSR_GOTO(find(f, &s->own, s->layer, which, err));
    s->w = s->own;
    s->side = tsr_forward_side_of(f, &s->w);
    if (!has_shape(s))
        TSR_GOTO(tsr_fail(err, TSR_E_SHAPE, "%s: '%s' does not match " TSR_CONFIG_NAME ": %zu experts of %zu by %zu",
                          s->side->checkpoint->path, s->w->values->name, s->experts, s->rows, s->cols));
    TSR_GOTO(read_bias(s, which, e, &bias, err));
    TSR_GOTO(turned(s, e, &dense, err));
    if (dense != NULL) {
        f->bytes_read += s->w->data->bytes / s->experts;
        f->noise = fmax(f->noise, tsr_noise_of(s->w, &none));
    }
    const tsr_layer_product p = {.weight = dense == NULL ? s->own : NULL,
                                 .matrix = e,
                                 .stack = s->w->values->name,
                                 .matrices = s->experts,
                                 .dense = dense,
                                 .bias = bias,
                                 .rows = s->rows,
                                 .cols = s->cols,
                                 .x = x,
                                 .ld_x = s->cols,
                                 .n = n};
    TSR_GOTO(tsr_forward_product(f, &p, y, err));
    status = tsr_forward_round(f, y->x, y->n, err);
out:
    free(dense);
    free(bias);
    return status;
}

/* Finds the number of channels between the two stacks. */
static tsr_status find_width(const tsr_forward *f, size_t layer, size_t *width, tsr_err *err)
{
    const tsr_weight *w;
    TSR_TRY(find(f, &w, layer, 1, err));
    const tsr_tensor *const t = w->values;
    if (w->coding == TSR_PLAIN && t->rank != 3)
        return tsr_fail(err, TSR_E_SHAPE, "%s: '%s' is not a stack", f->side->checkpoint->path, t->name);
    *width = (size_t)(w->coding != TSR_PLAIN ? w->cols : t->shape[f->family->moe->alternating ? 1 : 2]);
    return TSR_OK;
}

tsr_status tsr_forward_stacked(tsr_forward *f, size_t layer, size_t n_experts, size_t e, const tsr_activation *x,
                               size_t n, tsr_held *out, tsr_err *err)
{
    const bool alternating = f->family->moe->alternating;
    size_t width = 0;
    tsr_held both = {0}, inner = {0};
    tsr_status status;
    TSR_TRY(find_width(f, layer, &width, err));
    stack s = {
        .f = f, .layer = layer, .alternating = alternating, .experts = n_experts, .rows = 2 * width, .cols = f->hidden};
    TSR_GOTO(multiply(&s, 0, e, x, n, &both, err));
    TSR_GOTO(tsr_hold(f, &inner, n * width, err));
    const tsr_op_gate gate = {.kind = f->gate,
                              .limit = f->gate_limit,
                              .gate = both.x,
                              .up = tsr_at(f->ops, both.x, alternating ? 1 : width),
                              .ld = 2 * width,
                              .step = alternating ? 2 : 1,
                              .rows = n,
                              .n = width,
                              .y = inner.x};
    TSR_GOTO(tsr_forward_gate(f, &gate, err));
    s.rows = f->hidden;
    s.cols = width;
    status = multiply(&s, 1, e, inner.x, n, out, err);
out:
    tsr_let_go(f, &both);
    tsr_let_go(f, &inner);
    return status;
}
