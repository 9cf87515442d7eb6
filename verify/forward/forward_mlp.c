/* Computes the MLP of a layer: dense, or a router with experts over their tokens. */
#include "verify/forward/forward_parts.h"

#include "verify/values/weight_product.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- one MLP ---- */

static tsr_status apply_gate(const tsr_forward *f, const tsr_op_gate *gate, tsr_err *err)
{
    TSR_TRY(f->ops->gate(f->ops, gate, err));
    return tsr_forward_round(f, gate->y, gate->rows * gate->n, err);
}

/* Computes out [n][hidden] = W_down gate(W_gate x, W_up x). `names` has the names of the three weights. */
static tsr_status gated(tsr_forward *f, const char *module, const double *x, size_t n, tsr_held *out, tsr_err *err)
{
    const tsr_moe_names *const names = f->family->names;
    const bool expert = strstr(module, names->experts) != NULL; /* Mixtral's experts have names of their own */
    char name[TSR_MAX_NAME];
    const tsr_weight *w;
    tsr_held gate = {0}, up = {0}, inner = {0};
    tsr_status status;
    TSR_GOTO(tsr_forward_find(f, &w, err, "%s.%s.weight", module, expert ? names->gate : "gate_proj"));
    const size_t width = (size_t)(w->coding == TSR_PLAIN ? w->values->shape[0] : w->rows);
    snprintf(name, sizeof name, "%s.%s", module, expert ? names->gate : "gate_proj");
    TSR_GOTO(tsr_forward_linear(f, name, x, n, width, f->hidden, &gate, err));
    snprintf(name, sizeof name, "%s.%s", module, expert ? names->up : "up_proj");
    TSR_GOTO(tsr_forward_linear(f, name, x, n, width, f->hidden, &up, err));
    TSR_GOTO(tsr_forward_round(f, gate.x, gate.n, err));
    TSR_GOTO(tsr_forward_round(f, up.x, up.n, err));
    TSR_GOTO(tsr_hold(f, &inner, n * width, err));
    TSR_GOTO(apply_gate(
        f,
        &(tsr_op_gate){
            .kind = f->gate, .gate = gate.x, .up = up.x, .ld = width, .step = 1, .rows = n, .n = width, .y = inner.x},
        err));
    tsr_let_go(f, &gate);
    tsr_let_go(f, &up);
    snprintf(name, sizeof name, "%s.%s", module, expert ? names->down : "down_proj");
    TSR_GOTO(tsr_forward_linear(f, name, inner.x, n, f->hidden, width, out, err));
    status = tsr_forward_round(f, out->x, out->n, err);
out:
    tsr_let_go(f, &gate);
    tsr_let_go(f, &up);
    tsr_let_go(f, &inner);
    return status;
}

/* ---- experts in stacks ---- */

/* Transposes one matrix of a plain stack, which is [inputs][outputs]. *dense is from malloc. It is NULL for codes,
 * whose rows are outputs. */
static tsr_status turned(const tsr_side *side, const tsr_weight *w, size_t e, size_t rows, size_t cols, double **dense,
                         tsr_err *err)
{
    *dense = NULL;
    if (w->coding != TSR_PLAIN)
        return TSR_OK;
    double *const stored = malloc(rows * cols * sizeof *stored);
    *dense = malloc(rows * cols * sizeof **dense);
    tsr_status status =
        stored == NULL || *dense == NULL
            ? tsr_out_of_memory(err, "for an expert")
            : tsr_read_values(side->checkpoint, w, &(tsr_piece){.matrix = e, .rows = cols, .cols = rows}, stored, err);
    for (size_t i = 0; status == TSR_OK && i < rows * cols; i++)
        (*dense)[i] = stored[i % cols * rows + i / cols];
    free(stored);
    return status;
}

/* Returns true if a stack is [experts, inputs, outputs], as plain values or as codes of outputs by inputs. */
static bool has_shape(const tsr_weight *w, size_t experts, size_t rows, size_t cols)
{
    const tsr_tensor *const t = w->values;
    if (w->coding != TSR_PLAIN)
        return w->matrices == experts && w->rows == rows && w->cols == cols;
    return t->rank == 3 && t->shape[0] == experts && t->shape[1] == cols && t->shape[2] == rows &&
           tsr_dtype_is_weight_float((tsr_dtype)t->dtype);
}

/* Computes y [n][rows] of expert e of the stack `name`, with its bias. */
static tsr_status stacked(tsr_forward *f, const char *mlp, const char *which, size_t experts, size_t e, size_t rows,
                          size_t cols, const double *x, size_t n, tsr_held *y, tsr_err *err)
{
    const tsr_weight *own, *w, *of_bias;
    const tsr_side *side;
    double *dense = NULL, *bias = NULL;
    tsr_input_coding none = {.type = TSR_INPUT_PLAIN};
    tsr_status status;
    TSR_GOTO(tsr_forward_find(f, &own, err, "%s.%s", mlp, which));
    w = own;
    side = tsr_forward_side_of(f, &w);
    TSR_GOTO(tsr_forward_find(f, &of_bias, err, "%s.%s_bias", mlp, which));
    if (!has_shape(w, experts, rows, cols) || of_bias->values->rank != 2 || of_bias->values->shape[0] != experts ||
        of_bias->values->shape[1] != rows)
        TSR_GOTO(tsr_fail(err, TSR_E_SHAPE,
                          "%s: '%s' or its bias does not match " TSR_CONFIG_NAME ": %zu experts of %zu by %zu",
                          side->checkpoint->path, w->values->name, experts, rows, cols));
    bias = malloc(rows * sizeof *bias);
    if (bias == NULL)
        TSR_GOTO(tsr_out_of_memory(err, "for a bias"));
    TSR_GOTO(tsr_read_values(f->side->checkpoint, of_bias, &(tsr_piece){.row = e, .rows = 1, .cols = rows}, bias, err));
    TSR_GOTO(turned(side, w, e, rows, cols, &dense, err));
    if (dense != NULL) {
        f->bytes_read += w->data->bytes / experts;
        f->noise = fmax(f->noise, tsr_noise_of(w, &none));
    }
    tsr_layer_product p = {.matrix = e,
                           .stack = w->values->name,
                           .matrices = experts,
                           .dense = dense,
                           .bias = bias,
                           .rows = rows,
                           .cols = cols,
                           .x = x,
                           .n = n};
    p.weight = dense == NULL ? own : NULL;
    p.ld_x = cols;
    TSR_GOTO(tsr_forward_product(f, &p, y, err));
    status = tsr_forward_round(f, y->x, y->n, err);
out:
    free(dense);
    free(bias);
    return status;
}

static tsr_status gated_in_stack(tsr_forward *f, const char *mlp, size_t experts, size_t e, const double *x, size_t n,
                                 tsr_held *out, tsr_err *err)
{
    const size_t width = tsr_forward_size(f, "intermediate_size", 0);
    tsr_held both = {0}, inner = {0};
    tsr_status status;
    TSR_GOTO(stacked(f, mlp, "gate_up_proj", experts, e, 2 * width, f->hidden, x, n, &both, err));
    TSR_GOTO(tsr_hold(f, &inner, n * width, err));
    TSR_GOTO(apply_gate(f,
                        &(tsr_op_gate){.kind = f->gate,
                                       .limit = f->gate_limit,
                                       .gate = both.x,
                                       .up = both.x + 1,
                                       .ld = 2 * width,
                                       .step = 2,
                                       .rows = n,
                                       .n = width,
                                       .y = inner.x},
                        err));
    status = stacked(f, mlp, "down_proj", experts, e, f->hidden, width, inner.x, n, out, err);
out:
    tsr_let_go(f, &both);
    tsr_let_go(f, &inner);
    return status;
}

/* ---- experts ---- */

typedef struct moe {
    tsr_forward *f;
    char experts_at[TSR_MAX_NAME / 2];
    size_t experts, n;
    const double *x;
    double *out;
    uint32_t *choices, *rows; /* [n][chosen], [n] */
    double *weights, *shares; /* [n][chosen], [n] */
} moe;

/* Records that no token reached an expert. Experts of a stack have their numbers of tokens in one entry. */
static tsr_status collect_none(const moe *m, size_t e, tsr_err *err)
{
    const tsr_moe_names *const names = m->f->family->names;
    const char *const parts[] = {names->gate, names->up, names->down};
    const tsr_weight *w;
    char module[TSR_MAX_NAME];
    for (size_t i = 0; m->f->collector != NULL && (m->f->traits & TSR_STACKED_EXPERTS) == 0 && i < 3; i++) {
        snprintf(module, sizeof module, "%s.%zu.%s", m->experts_at, e, parts[i]);
        TSR_TRY(tsr_forward_find(m->f, &w, err, "%s.weight", module));
        const size_t cols = (size_t)(w->coding == TSR_PLAIN ? w->values->shape[1] : w->cols);
        TSR_TRY(tsr_forward_collect(m->f, module, NULL, 0, cols, err));
    }
    return TSR_OK;
}

/* Adds the output of expert e, for the tokens that chose it. */
static tsr_status run_expert(const moe *m, size_t e, tsr_err *err)
{
    tsr_forward *const f = m->f;
    const size_t chosen = f->router.chosen;
    char module[TSR_MAX_NAME];
    tsr_held in = {0}, out = {0};
    size_t taken = 0;
    for (size_t i = 0; i < m->n * chosen; i++) {
        if (m->choices[i] != e)
            continue;
        m->rows[taken] = (uint32_t)(i / chosen);
        m->shares[taken++] = m->weights[i];
    }
    if (taken == 0)
        return collect_none(m, e, err);
    tsr_status status = tsr_hold(f, &in, taken * f->hidden, err);
    if (status == TSR_OK)
        status = f->ops->take(f->ops, in.x, m->x, m->rows, taken, f->hidden, err);
    snprintf(module, sizeof module, "%s.%zu", m->experts_at, e);
    if (status == TSR_OK)
        status = (f->traits & TSR_STACKED_EXPERTS) != 0
                     ? gated_in_stack(f, m->experts_at, m->experts, e, in.x, taken, &out, err)
                     : gated(f, module, in.x, taken, &out, err);
    if (status == TSR_OK)
        status = f->ops->add(f->ops, m->out, out.x, taken, f->hidden, m->rows, m->shares, err);
    tsr_let_go(f, &in);
    tsr_let_go(f, &out);
    return status;
}

static tsr_status choose_experts(const moe *m, const char *router, tsr_err *err)
{
    tsr_forward *const f = m->f;
    char name[TSR_MAX_NAME];
    tsr_held of_ops = {0};
    double *bias = NULL, *const logits = malloc((m->n * m->experts + 1) * sizeof *logits);
    tsr_status status = logits == NULL ? tsr_out_of_memory(err, "for routing") : TSR_OK;
    snprintf(name, sizeof name, "%s.e_score_correction_bias", router);
    if (status == TSR_OK)
        status = tsr_forward_vector(f, name, m->experts, false, &bias, err);
    if (status == TSR_OK)
        status = tsr_forward_linear(f, router, m->x, m->n, m->experts, f->hidden, &of_ops, err);
    if (status == TSR_OK)
        status = f->ops->get(f->ops, logits, of_ops.x, m->n * m->experts, err);
    if (status == TSR_OK)
        status = tsr_forward_route(f, router, m->experts, bias, logits, m->n, m->choices, m->weights, err);
    tsr_let_go(f, &of_ops);
    free(bias);
    free(logits);
    return status;
}

static tsr_status run_experts(tsr_forward *f, size_t layer, const tsr_weight *gate, const double *x, size_t n,
                              tsr_held *out, uint32_t *choices, tsr_err *err)
{
    const size_t chosen = f->router.chosen;
    moe m = {.f = f, .experts = (size_t)gate->values->shape[0], .n = n, .x = x};
    char router[TSR_MAX_NAME];
    tsr_status status = TSR_OK;
    snprintf(router, sizeof router, "model.layers.%zu.%s", layer, f->family->names->router);
    snprintf(m.experts_at, sizeof m.experts_at, "model.layers.%zu.%s", layer, f->family->names->experts);
    m.choices = malloc((n * chosen + 1) * sizeof *m.choices);
    m.weights = malloc((n * chosen + 1) * sizeof *m.weights);
    m.rows = malloc((n + 1) * sizeof *m.rows);
    m.shares = malloc((n + 1) * sizeof *m.shares);
    if (m.choices == NULL || m.weights == NULL || m.rows == NULL || m.shares == NULL)
        TSR_GOTO(tsr_out_of_memory(err, "for routing"));
    TSR_GOTO(choose_experts(&m, router, err));
    TSR_GOTO(tsr_hold(f, out, n * f->hidden, err));
    m.out = out->x;
    for (size_t e = 0; e < m.experts; e++)
        TSR_GOTO(run_expert(&m, e, err));
    if (choices != NULL)
        memcpy(choices, m.choices, n * chosen * sizeof *choices);
out:
    free(m.choices);
    free(m.weights);
    free(m.rows);
    free(m.shares);
    return status;
}

/* Adds the shared expert to out, multiplied by its gate if the family has one. */
static tsr_status add_shared(tsr_forward *f, size_t layer, const double *x, size_t n, double *out, tsr_err *err)
{
    const tsr_moe_names *const names = f->family->names;
    char module[TSR_MAX_NAME];
    const tsr_weight *w;
    tsr_held shared = {0}, gate = {0};
    double *shares = NULL;
    tsr_status status = TSR_OK;
    snprintf(module, sizeof module, "model.layers.%zu.%s", layer, names->shared == NULL ? "" : names->shared);
    TSR_TRY(tsr_forward_find(f, &w, NULL, "%s.gate_proj.weight", module));
    if (names->shared == NULL || w == NULL)
        return TSR_OK;
    TSR_GOTO(gated(f, module, x, n, &shared, err));
    if (names->shared_gate != NULL) {
        snprintf(module, sizeof module, "model.layers.%zu.%s", layer, names->shared_gate);
        TSR_GOTO(tsr_forward_linear(f, module, x, n, 1, f->hidden, &gate, err));
        shares = malloc((n + 1) * sizeof *shares);
        if (shares == NULL)
            TSR_GOTO(tsr_out_of_memory(err, "for experts"));
        TSR_GOTO(f->ops->get(f->ops, shares, gate.x, n, err));
        for (size_t i = 0; i < n; i++)
            shares[i] = 1 / (1 + exp(-shares[i]));
    }
    status = f->ops->add(f->ops, out, shared.x, n, f->hidden, NULL, shares, err);
out:
    tsr_let_go(f, &shared);
    tsr_let_go(f, &gate);
    free(shares);
    return status;
}

tsr_status tsr_forward_mlp(tsr_forward *f, size_t layer, const double *x, size_t n, tsr_held *out, uint32_t *choices,
                           bool *routed, tsr_err *err)
{
    char mlp[TSR_MAX_NAME];
    const tsr_weight *gate;
    TSR_TRY(tsr_forward_find(f, &gate, NULL, "model.layers.%zu.%s.weight", layer, f->family->names->router));
    *routed = gate != NULL;
    snprintf(mlp, sizeof mlp, "model.layers.%zu.mlp", layer);
    if (gate == NULL)
        return gated(f, mlp, x, n, out, err);
    TSR_TRY(run_experts(f, layer, gate, x, n, out, choices, err));
    TSR_TRY(add_shared(f, layer, x, n, out->x, err));
    return tsr_forward_round(f, out->x, out->n, err);
}
