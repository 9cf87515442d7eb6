/* Finds weights by name and computes products and norms with them. */
#include "verify/forward/forward_parts.h"

#include "common/checked.h"
#include "verify/values/decode.h"
#include "verify/values/weight_product.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

tsr_status tsr_hold(const tsr_forward *f, tsr_held *held, size_t n, tsr_err *err)
{
    *held = (tsr_held){.n = n};
    return f->ops->make(f->ops, n, true, &held->x, err);
}

tsr_status tsr_hold_unset(const tsr_forward *f, tsr_held *held, size_t n, tsr_err *err)
{
    *held = (tsr_held){.n = n};
    return f->ops->make(f->ops, n, false, &held->x, err);
}

void tsr_let_go(const tsr_forward *f, tsr_held *held)
{
    f->ops->drop(f->ops, held->x, held->n);
    *held = (tsr_held){0};
}

tsr_status tsr_forward_round(const tsr_forward *f, tsr_activation *x, size_t n, tsr_err *err)
{
    return f->served ? f->ops->round(f->ops, x, n, err) : TSR_OK;
}

tsr_status tsr_forward_find(const tsr_forward *f, const tsr_weight **weight, tsr_err *err, const char *format, ...)
{
    char name[TSR_MAX_NAME];
    va_list args;
    va_start(args, format);
    vsnprintf(name, sizeof name, format, args);
    va_end(args);
    *weight = tsr_weights_find(f->side->weights, f->side->checkpoint, name);
    return *weight != NULL || err == NULL
               ? TSR_OK
               : tsr_fail(err, TSR_E_FORMAT, "%s: lacks '%s'", f->side->checkpoint->path, name);
}

const char *tsr_forward_name(const tsr_forward *f, char name[TSR_MAX_NAME], size_t layer, const char *part)
{
    snprintf(name, TSR_MAX_NAME, "%slayers.%zu.%s", f->root, layer, part);
    return name;
}

const tsr_side *tsr_forward_side_of(const tsr_forward *f, const tsr_weight **weight)
{
    const tsr_exchange *const x = &f->exchange;
    if (x->side == NULL || x->group_of[(*weight)->data - f->side->checkpoint->tensors.items] != x->group)
        return f->side;
    *weight = tsr_weights_find(x->side->weights, x->side->checkpoint, (*weight)->values->name);
    return x->side;
}

tsr_status tsr_forward_vector(const tsr_forward *f, const char *name, size_t n, bool needed, double **values,
                              tsr_err *err)
{
    const tsr_weight *w;
    *values = NULL;
    TSR_TRY(tsr_forward_find(f, &w, needed ? err : NULL, "%s", name));
    if (w == NULL)
        return TSR_OK;
    TSR_TRY(tsr_linear_expect(f->side->checkpoint, w, n, 0, err));
    *values = malloc(n * sizeof **values);
    return *values == NULL ? tsr_fail(err, TSR_E_NOMEM, "out of memory for '%s'", name)
                           : tsr_read_values(f->side->checkpoint, w, &(tsr_piece){.rows = 1, .cols = n}, *values, err);
}

tsr_status tsr_forward_elements(const tsr_forward *f, const char *name, size_t n, double **values, tsr_err *err)
{
    const tsr_weight *w;
    *values = NULL;
    TSR_TRY(tsr_forward_find(f, &w, err, "%s", name));
    const tsr_tensor *const t = w->values;
    if (w->coding != TSR_PLAIN || !tsr_dtype_is_weight_float((tsr_dtype)t->dtype) || tsr_tensor_elements(t) != n)
        return tsr_fail(err, TSR_E_SHAPE, "%s: '%s' does not have %zu floating-point elements",
                        f->side->checkpoint->path, name, n);
    *values = malloc((n + 1) * sizeof **values);
    return *values == NULL ? tsr_fail(err, TSR_E_NOMEM, "out of memory for '%s'", name)
                           : tsr_decode_tensor(f->side->checkpoint, t, *values, err);
}

double tsr_noise_of(const tsr_weight *w, const tsr_input_coding *inputs)
{
    /* SQNR in dB of rounded ordinary weights and inputs (docs/verify-forward.md). */
    enum { E4M3 = 31, E3M2 = 25, E2M1 = 18, INT4 = 17, INT4_ROWS = 12 };
    const bool integer = w->coding != TSR_PLAIN && tsr_codes_of(w) == TSR_CODES_INTEGERS;
    const double codes = w->coding == TSR_CODED_E2M1   ? E2M1
                         : w->coding == TSR_CODED_E3M2 ? E3M2
                         : !integer || w->bits != 4    ? E4M3
                         : w->block.cols <= 128        ? INT4
                                                       : INT4_ROWS;
    const double of_inputs =
        inputs->type == TSR_INPUT_PLAIN ? 0 : pow(10, -(inputs->type == TSR_INPUT_FP4 ? E2M1 : E4M3) / 10.0);
    return pow(10, -codes / 10) + of_inputs;
}

/* Counts the bytes that the layer reads, and notes its coarseness. */
static void note(tsr_forward *f, const tsr_weight *w, uint64_t matrices, const tsr_input_coding *coding)
{
    const tsr_tensor *companions[TSR_MAX_COMPANIONS];
    const double noise = tsr_noise_of(w, coding);
    uint64_t bytes = w->data->bytes;
    for (size_t i = tsr_weight_companions(w, companions, NULL); i > 0; i--)
        bytes += companions[i - 1]->bytes;
    f->bytes_read += bytes / tsr_max_u64(tsr_max_u64(w->matrices, matrices), 1);
    if (noise > f->noise)
        f->noise = noise;
    if (coding->type != TSR_INPUT_PLAIN)
        f->input_coding = *coding;
}

/* Returns the input `x` of a product, quantized as a consumer does and contiguous in `held` if necessary. */
static tsr_status take_input(tsr_forward *f, const tsr_layer_product *p, tsr_held *held, const tsr_activation **x,
                             size_t *ld_x, tsr_err *err)
{
    tsr_input_coding coding = {.type = TSR_INPUT_PLAIN};
    *x = p->x;
    *ld_x = p->ld_x;
    if (p->weight == NULL)
        return TSR_OK;
    if (f->served)
        TSR_TRY(tsr_input_coding_of(&coding, f->inputs, f->side, p->weight, err));
    note(f, p->weight, p->matrices, &coding);
    if (coding.type == TSR_INPUT_PLAIN)
        return TSR_OK;
    TSR_TRY(tsr_hold_unset(f, held, p->n * p->cols, err));
    TSR_TRY(f->ops->place(f->ops, held->x, p->cols, 0, p->x, p->ld_x, 0, p->n, p->cols, err));
    *x = held->x;
    *ld_x = p->cols;
    return f->ops->quantize(f->ops, held->x, p->n, p->cols, &coding, err);
}

/* ---- statistics of inputs ---- */

tsr_status tsr_forward_collect(const tsr_forward *f, const char *module, const tsr_activation *x, size_t n, size_t cols,
                               tsr_err *err)
{
    const tsr_collected_rows rows = {.module = module, .matrices = 1, .x = x, .n = n, .cols = cols};
    return f->collector == NULL ? TSR_OK : tsr_collect(f->collector, &rows, err);
}

/* Collects the input of a product, if the pass has a collector. */
static tsr_status collect_product(const tsr_forward *f, const tsr_layer_product *p, tsr_err *err)
{
    char module[TSR_MAX_NAME];
    if (f->collector == NULL || p->part || (p->weight == NULL && p->stack == NULL))
        return TSR_OK;
    const char *const name = p->stack != NULL ? p->stack : p->weight->values->name;
    snprintf(module, sizeof module, "%.*s", (int)tsr_module_length(name), name);
    if (p->ld_x != p->cols)
        return tsr_fail(err, TSR_E_UNSUPPORTED, "'%s': its input is part of another", name);
    const tsr_collected_rows rows = {.module = module,
                                     .matrices = p->stack != NULL ? p->matrices : 1,
                                     .matrix = (size_t)p->matrix,
                                     .x = p->x,
                                     .n = p->n,
                                     .cols = p->cols};
    return tsr_collect(f->collector, &rows, err);
}

tsr_status tsr_forward_collect_cache(const tsr_forward *f, size_t layer, const char *cache, const tsr_activation *x,
                                     size_t n, tsr_err *err)
{
    char module[TSR_MAX_NAME];
    if (f->collector == NULL)
        return TSR_OK;
    snprintf(module, sizeof module, "%slayers.%zu.%s.%s", f->root, layer, tsr_forward_module(f, layer), cache);
    return tsr_collect_range(f->collector, module, x, n, err);
}

/* ---- products ---- */

tsr_status tsr_forward_product(tsr_forward *f, const tsr_layer_product *p, tsr_held *y, tsr_err *err)
{
    tsr_held input = {0};
    const tsr_weight *weight = p->weight;
    const tsr_side *const side = weight == NULL ? f->side : tsr_forward_side_of(f, &weight);
    tsr_op_linear linear = {.checkpoint = side->checkpoint,
                            .weight = weight,
                            .matrix = p->matrix,
                            .dense = p->dense,
                            .first_row = p->first_row,
                            .rows = p->rows,
                            .cols = p->cols,
                            .n = p->n,
                            .ld_y = p->ld_y != 0 ? p->ld_y : p->rows};
    tsr_status status = TSR_OK;
    if (tsr_is_cancelled(f->ops->cancel))
        return tsr_fail(err, TSR_E_CANCELLED, "interrupted");
    linear.set = y->x == NULL && p->bias == NULL;
    if (y->x == NULL)
        TSR_TRY(tsr_hold_unset(f, y, p->n * p->rows, err));
    linear.y = tsr_at(f->ops, y->x, p->first_row);
    TSR_GOTO(collect_product(f, p, err));
    if (p->bias != NULL)
        TSR_GOTO(f->ops->fill(f->ops, y->x, p->n, p->rows, p->bias, err));
    TSR_GOTO(take_input(f, p, &input, &linear.x, &linear.ld_x, err));
    tsr_ahead_move(f);
    TSR_GOTO(tsr_ops_linear(f->ops, &linear, err));
out:
    tsr_let_go(f, &input);
    return status;
}

tsr_status tsr_forward_linear(tsr_forward *f, const char *module, const tsr_activation *x, size_t n, size_t rows,
                              size_t cols, tsr_held *y, tsr_err *err)
{
    char name[TSR_MAX_NAME];
    const tsr_weight *w;
    double *bias = NULL;
    TSR_TRY(tsr_forward_find(f, &w, err, "%s.weight", module));
    TSR_TRY(tsr_linear_expect(f->side->checkpoint, w, rows, cols, err));
    snprintf(name, sizeof name, "%s.bias", module);
    tsr_status status = tsr_forward_vector(f, name, rows, false, &bias, err);
    const tsr_layer_product p = {.weight = w, .bias = bias, .rows = rows, .cols = cols, .x = x, .ld_x = cols, .n = n};
    if (status == TSR_OK)
        status = tsr_forward_product(f, &p, y, err);
    free(bias);
    return status;
}

tsr_status tsr_forward_norm(const tsr_forward *f, const char *name, const tsr_activation *x, size_t rows, size_t n,
                            tsr_activation *y, tsr_err *err)
{
    double *gain;
    tsr_status status = tsr_forward_vector(f, name, n, true, &gain, err);
    for (size_t i = 0; status == TSR_OK && (f->traits & TSR_GAIN_FROM_ONE) != 0 && i < n; i++)
        gain[i] += 1;
    if (status == TSR_OK && (f->traits & TSR_CENTERED) != 0) {
        status = f->ops->center(f->ops, x, rows, n, y, err);
        x = y;
    }
    if (status == TSR_OK)
        status = f->ops->norm(f->ops, x, n, rows, n, gain, f->eps, y, n, err);
    if (status == TSR_OK)
        status = tsr_forward_round(f, y, rows * n, err);
    free(gain);
    return status;
}

tsr_status tsr_forward_gate(const tsr_forward *f, const tsr_op_gate *gate, tsr_err *err)
{
    TSR_TRY(f->ops->gate(f->ops, gate, err));
    return tsr_forward_round(f, gate->y, gate->rows * gate->n, err);
}
