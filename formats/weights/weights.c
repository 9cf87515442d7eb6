/* Finds each weight's scale, and checks both. */
#include "formats/weights/weights.h"

#include "common/text.h"
#include "formats/names/absorbed.h"
#include "formats/weights/foreign.h"
#include "formats/weights/pairing.h"

#include <stdlib.h>
#include <string.h>

/* ---- pairing ---- */

/* Passes a problem to the caller's callback. Without one, records the tensor in the error and returns the status. */
static tsr_status judge(const tsr_pairing *p, const tsr_tensor *tensor, tsr_status status)
{
    if (status == TSR_OK || status == TSR_E_NOMEM)
        return status;
    if (p->problem == NULL)
        return tensor == NULL ? status : tsr_fail_at(p->err, status, tensor->name);
    p->problem(p->data, tensor, status, p->err->msg);
    return TSR_OK;
}

/* Checks that there is one global scale for the tensor, or one for each matrix. */
static tsr_status check_global(const tsr_pairing *p, const tsr_weight *x)
{
    const tsr_tensor *const g = x->global_scale;
    const uint64_t n = g == NULL ? 1 : tsr_tensor_elements(g);
    char shape[192];
    if (n == 1 || n == x->matrices)
        return TSR_OK;
    return tsr_fail(p->err, TSR_E_FORMAT, "%s: '%s' is %s; '%s' needs one value, or one for each of its %llu matrices",
                    tsr_pairing_path(p, g), g->name, tsr_shape_text(g, shape, sizeof shape), x->data->name,
                    U64(x->matrices));
}

static tsr_status pair_codes(const tsr_pairing *p, tsr_weight *x)
{
    x->part = x->coding == TSR_CODED_E4M3 ? tsr_absorbed_find(x->data->name) : NULL;
    TSR_TRY(tsr_find_companions(p, x));
    switch ((tsr_coding)x->coding) {
    case TSR_CODED_E2M1:
        TSR_TRY(tsr_check_e2m1(p, x));
        break;
    case TSR_CODED_AWQ:
    case TSR_CODED_GPTQ:
        TSR_TRY(tsr_check_gptq(p, x));
        break;
    case TSR_CODED_INT8:
    case TSR_CODED_NIBBLES:
    case TSR_CODED_PACKED:
        TSR_TRY(tsr_check_integers(p, x));
        break;
    default:
        TSR_TRY(tsr_check_e4m3(p, x));
    }
    TSR_TRY(check_global(p, x));
    return tsr_check_stated(p, x);
}

/* Pairs every weight of codes with its scale, in the order of the checkpoint, into the first entries. */
static tsr_status pair_scaled(tsr_pairing *p, bool *codes)
{
    tsr_weights *const w = p->w;
    const tsr_tensors *const all = &p->c->tensors;
    for (size_t i = 0; i < all->count; i++) {
        const tsr_tensor *const t = &all->items[i];
        const tsr_status foreign = tsr_refuse_foreign(p->c, t, p->err);
        p->unread[i] = foreign != TSR_OK;
        TSR_TRY(judge(p, t, foreign));
        tsr_weight x = {.data = t, .coding = (uint8_t)tsr_coding_of(p->c, t)};
        if (p->unread[i] || x.coding == TSR_PLAIN)
            continue;
        *codes = true;
        const tsr_status status = pair_codes(p, &x);
        p->unread[i] = status == TSR_E_UNSUPPORTED;
        if (status == TSR_OK)
            w->items[w->n_scaled++] = x;
        TSR_TRY(judge(p, x.data, status));
    }
    return TSR_OK;
}

static tsr_status pair_all(tsr_pairing *p)
{
    tsr_weights *const w = p->w;
    const tsr_tensors *const all = &p->c->tensors;
    bool codes = false;
    TSR_TRY(pair_scaled(p, &codes));
    /* Moves the scaled weights to their position in the checkpoint's order, beginning with the last. */
    size_t scaled = w->n_scaled;
    w->count = all->count;
    for (size_t i = all->count; i-- > 0;) {
        const bool is_scaled = scaled > 0 && w->items[scaled - 1].data == &all->items[i];
        w->items[i] = is_scaled ? w->items[--scaled] : (tsr_weight){.data = &all->items[i], .values = &all->items[i]};
    }
    size_t kept = 0;
    for (size_t i = 0; i < all->count; i++) {
        tsr_weight *const x = &w->items[i];
        if (p->claimed[i])
            continue;
        if (x->scale == NULL && !p->unread[i]) {
            const tsr_status status = tsr_coding_of(p->c, x->data) == TSR_PLAIN
                                          ? tsr_find_plain_rule(p->c, x->data, &x->rule, p->err)
                                          : TSR_OK;
            if (status != TSR_OK)
                x->coding = TSR_UNREAD;
            p->unread[i] = status == TSR_E_UNSUPPORTED;
            TSR_TRY(judge(p, x->data, status));
        }
        if (p->unread[i])
            x->coding = TSR_UNREAD;
        w->n_unread += p->unread[i];
        w->items[kept++] = *x;
    }
    w->count = kept;
    if (codes || w->n_unread > 0 || w->method == NULL)
        return TSR_OK;
    const tsr_status status =
        tsr_fail(p->err, TSR_E_UNSUPPORTED,
                 "%s/" TSR_CONFIG_NAME ": quant_method is '%s', but no tensor is quantized; the configuration belongs "
                 "to another checkpoint, or the format of the weights is not supported here",
                 p->c->path, w->method);
    return judge(p, NULL, status);
}

/* Returns true if a weight is FP8 in blocks, or FP8 with a grid that does not fit, which a survey reports. */
static bool has_blocks(const tsr_weights *weights)
{
    for (size_t i = 0; i < weights->count; i++) {
        const tsr_weight *const w = &weights->items[i];
        if (w->kind == NULL ? w->data->dtype == TSR_F8_E4M3 : w->kind->grid == TSR_GRID_BLOCKS)
            return true;
    }
    return false;
}

tsr_status tsr_weights_refuse_block(const tsr_weights *weights, size_t n, tsr_block block, tsr_err *err)
{
    bool used = block.rows == 0, blocks = false;
    for (size_t i = 0; i < n; i++) {
        const bool has = has_blocks(&weights[i]);
        blocks = blocks || has;
        used = used || (has && tsr_block_equal(weights[i].block, block));
    }
    return used ? TSR_OK
                : tsr_fail(err, TSR_E_USAGE, "--source-block has no effect: %s",
                           blocks ? TSR_CONFIG_NAME " states another size" : "no weight is FP8 in blocks");
}

tsr_status tsr_weights_pair(tsr_weights *weights, const tsr_checkpoint *checkpoint, tsr_block block, tsr_err *err)
{
    const char *const target = tsr_layout_target(checkpoint);
    *weights = (tsr_weights){0};
    if (target != NULL)
        return tsr_fail(err, TSR_E_UNSUPPORTED,
                        "%s: its weights are in the layout of a kernel, described by " TSR_LAYOUT_NAME
                        "; convert them back with 'tessera convert %s -o DST --from %s'",
                        checkpoint->path, checkpoint->path, target);
    TSR_TRY(tsr_weights_survey(weights, checkpoint, block, NULL, NULL, err));
    const tsr_status status = tsr_weights_refuse_block(weights, 1, block, err);
    if (status != TSR_OK)
        tsr_weights_free(weights);
    return status;
}

tsr_status tsr_weights_refuse_parts(const tsr_weights *weights, const tsr_checkpoint *checkpoint, const char *doing,
                                    tsr_err *err)
{
    for (size_t i = 0; i < weights->count; i++) {
        const tsr_weight *const w = &weights->items[i];
        if (w->part != NULL)
            return tsr_fail(err, TSR_E_UNSUPPORTED,
                            "%s: '%s' is an FP8 part of an absorbed kv_b_proj: %s must come before absorbing; start "
                            "from the original checkpoint",
                            checkpoint->files[w->data->file].path, w->data->name, doing);
    }
    return TSR_OK;
}

tsr_status tsr_weights_pair_or(tsr_weights *weights, const tsr_checkpoint *checkpoint, tsr_block otherwise,
                               tsr_err *err)
{
    const tsr_status status = tsr_weights_pair(weights, checkpoint, (tsr_block){0, 0}, err);
    const bool fails = status == TSR_E_USAGE || status == TSR_E_FORMAT;
    return fails && otherwise.rows > 0 ? tsr_weights_pair(weights, checkpoint, otherwise, err) : status;
}

tsr_status tsr_weights_refuse_kinds(const tsr_weights *weights, const tsr_checkpoint *checkpoint, unsigned families,
                                    const char *doing, tsr_err *err)
{
    for (size_t i = 0; i < weights->count; i++) {
        const tsr_weight *const w = &weights->items[i];
        if (w->scale == NULL || (w->kind->family & families) != 0)
            continue;
        const char *const file = checkpoint->files[w->data->file].path;
        if (w->kind->family == TSR_FAMILY_INTEGERS)
            return tsr_fail(err, TSR_E_UNSUPPORTED,
                            "%s: '%s' is int%u: %s must come before quantizing to integers; start from the original, "
                            "or run 'tessera convert --to bf16'",
                            file, w->data->name, w->bits, doing);
        return tsr_fail(err, TSR_E_UNSUPPORTED,
                        "%s: '%s' is %s: %s does not support this format; run 'tessera convert --to bf16' first", file,
                        w->data->name, w->kind->title, doing);
    }
    return TSR_OK;
}

tsr_status tsr_weights_pair_fp8(tsr_weights *weights, const tsr_checkpoint *checkpoint, tsr_block block,
                                const char *doing, tsr_err *err)
{
    TSR_TRY(tsr_weights_pair(weights, checkpoint, block, err));
    tsr_status status = tsr_weights_refuse_kinds(weights, checkpoint, TSR_FAMILY_FP8, doing, err);
    if (status == TSR_OK)
        status = tsr_weights_refuse_parts(weights, checkpoint, doing, err);
    if (status != TSR_OK)
        tsr_weights_free(weights);
    return status;
}

tsr_status tsr_weights_survey(tsr_weights *weights, const tsr_checkpoint *checkpoint, tsr_block block,
                              tsr_weights_problem_fn *problem, void *data, tsr_err *err)
{
    *weights = (tsr_weights){0};
    tsr_err message = {0};
    tsr_pairing p = {
        .w = weights, .c = checkpoint, .problem = problem, .data = data, .err = err == NULL ? &message : err};
    p.claimed = calloc(checkpoint->tensors.count + 1, sizeof *p.claimed);
    p.unread = calloc(checkpoint->tensors.count + 1, sizeof *p.unread);
    weights->items = tsr_arena_alloc(&weights->arena, (checkpoint->tensors.count + 1) * sizeof *weights->items);
    tsr_status status = TSR_OK;
    if (p.claimed == NULL || p.unread == NULL || weights->items == NULL)
        status = tsr_fail(err, TSR_E_NOMEM, "%s: out of memory", checkpoint->path);
    if (status == TSR_OK)
        status = judge(&p, NULL, tsr_read_quantization(&p));
    if (status == TSR_OK && block.rows != 0)
        tsr_state_block(&p, block);
    if (status == TSR_OK)
        status = pair_all(&p);
    free(p.claimed);
    free(p.unread);
    if (weights->n_warned > 1 && weights->warning != NULL)
        weights->warning = tsr_arena_printf(&weights->arena, "%s (and %zu other%s)", weights->warning,
                                            weights->n_warned - 1, tsr_plural(weights->n_warned - 1));
    status = tsr_arena_status(&weights->arena, status, err);
    if (status != TSR_OK)
        tsr_weights_free(weights);
    return status;
}

void tsr_weights_pass_over(void *data, const tsr_tensor *tensor, tsr_status status, const char *message)
{
    (void)data, (void)tensor, (void)status, (void)message;
}

void tsr_weights_free(tsr_weights *weights)
{
    tsr_arena_free(&weights->arena);
    *weights = (tsr_weights){0};
}

const char *tsr_plain_reason(const tsr_weight *w)
{
    const bool weight = tsr_dtype_is_weight_float((tsr_dtype)w->data->dtype);
    return weight && (w->rule == NULL || strcmp(w->rule, "floating point") == 0) ? "not quantized" : w->rule;
}

const tsr_weight *tsr_weights_find(const tsr_weights *weights, const tsr_checkpoint *checkpoint, const char *name)
{
    const tsr_tensor *t = tsr_checkpoint_find(checkpoint, name);
    for (const tsr_weight_kind *k = tsr_weight_kinds; t == NULL && k->name != NULL; k++)
        t = tsr_kind_find(checkpoint, name, k->codes);
    size_t low = 0, high = weights->count;
    while (t != NULL && low < high) { /* items are sorted by the addresses of their tensors */
        const size_t middle = low + (high - low) / 2;
        if (weights->items[middle].data == t)
            return &weights->items[middle];
        if (weights->items[middle].data < t)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}
