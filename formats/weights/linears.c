/* Collects the linear layers and how they are fused. */
#include "formats/weights/linears.h"

#include "common/checked.h"
#include "common/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_linear(const tsr_weight *w, tsr_part part, bool mtp)
{
    const tsr_tensor *const t = w->values;
    const bool matrix = t->rank == 2 || t->rank == 3;
    /* gpt-oss has the biases of all experts in one matrix */
    if (!matrix || tsr_ends_with(t->name, "_bias") ||
        (w->scale == NULL && !tsr_dtype_is_weight_float((tsr_dtype)t->dtype)))
        return false;
    switch (part) {
    case TSR_PART_ATTENTION:
    case TSR_PART_DENSE_MLP:
    case TSR_PART_ROUTED_EXPERTS:
    case TSR_PART_SHARED_EXPERTS:
        return true;
    case TSR_PART_OTHER: /* a projection outside the towers, except the MTP layer's eh_proj */
        return !mtp && w->scale != NULL;
    default:
        return false;
    }
}

/* `blocks`: scales of e4m3 are per block, not per row or matrix. */
static tsr_status describe(tsr_linears *all, tsr_linear *l, const tsr_weight *w, bool blocks, tsr_err *err)
{
    const tsr_tensor *const t = w->values;
    l->tensor = t;
    l->scale = w->scale;
    l->weight = w;
    l->coding = w->scale == NULL ? TSR_PLAIN : (tsr_coding)w->coding;
    l->zero_points = w->zero_point != NULL;
    l->module = tsr_arena_dup(&all->arena, t->name, tsr_module_length(t->name));
    if (l->module == NULL)
        return tsr_out_of_memory(err, "for the linear layers");
    const char *const dot = strrchr(l->module, '.');
    l->leaf = dot == NULL ? l->module : dot + 1;
    l->cut = tsr_tp_find_rule(t->name);
    l->matrices = t->rank == 3 ? t->shape[0] : 1;
    l->rows = w->transposed ? w->rows : t->shape[t->rank - 2];
    l->cols = w->transposed ? w->cols : t->shape[t->rank - 1];
    if (w->scale != NULL && (tsr_linear_is_fp8(l) ? blocks : !w->coarse))
        l->block = w->block;
    if (l->block.rows != 0) {
        l->grid_rows = tsr_ceil_div(l->rows, l->block.rows);
        l->grid_cols = tsr_ceil_div(l->cols, l->block.cols);
    }
    return TSR_OK;
}

/* Returns the layer with the name of l except for the last component. `at` maps tensors to layers. */
static const tsr_linear *sibling(const tsr_linears *all, const tsr_checkpoint *c, const tsr_weights *weights,
                                 const uint32_t *at, const tsr_linear *l, const char *leaf)
{
    char name[1200];
    snprintf(name, sizeof name, "%.*s%s.weight", (int)(l->leaf - l->module), l->module, leaf);
    const tsr_weight *const w = tsr_weights_find(weights, c, name);
    const uint32_t index = w == NULL ? 0 : at[w->data - c->tensors.items];
    return index == 0 ? NULL : &all->items[index - 1];
}

static void join(const tsr_linears *all, const tsr_checkpoint *c, const tsr_weights *weights, const uint32_t *at,
                 tsr_linear *l)
{
    const tsr_fused *const fused = tsr_fused_find(l->module);
    for (size_t k = 0; fused != NULL && k < TSR_FUSED_MEMBERS && fused->members[k] != NULL; k++) {
        const tsr_linear *const member = sibling(all, c, weights, at, l, fused->members[k]);
        if (member != NULL)
            l->members[l->n_members++] = member;
    }
    l->fused = l->n_members > 1 ? fused : NULL;
}

tsr_status tsr_linears_collect(tsr_linears *linears, const tsr_checkpoint *checkpoint, const tsr_weights *weights,
                               const tsr_model *model, tsr_err *err)
{
    *linears = (tsr_linears){0};
    linears->items = tsr_arena_alloc(&linears->arena, (weights->count + 1) * sizeof *linears->items);
    uint32_t *const at = calloc(checkpoint->tensors.count + 1, sizeof *at);
    tsr_status status = TSR_OK;
    if (linears->items == NULL || at == NULL)
        status = tsr_out_of_memory(err, "for the linear layers");
    for (size_t i = 0; status == TSR_OK && i < weights->count; i++) {
        const tsr_weight *const w = &weights->items[i];
        const size_t tensor = (size_t)(w->data - checkpoint->tensors.items);
        const tsr_part part = tsr_part_of(w->values->name);
        const bool mtp = tsr_model_is_mtp(model, w->values->name);
        if (!is_linear(w, part, mtp))
            continue;
        tsr_linear *const l = &linears->items[linears->count++];
        *l = (tsr_linear){.part = part, .mtp = mtp};
        at[tensor] = (uint32_t)linears->count;
        status = describe(linears, l, w, weights->block.rows != 0, err);
    }
    for (size_t i = 0; status == TSR_OK && i < linears->count; i++)
        join(linears, checkpoint, weights, at, &linears->items[i]);
    free(at);
    if (status != TSR_OK)
        tsr_linears_free(linears);
    return status;
}

bool tsr_linear_is_integers(const tsr_linear *l)
{
    return l->coding == TSR_CODED_INT8 || l->coding == TSR_CODED_PACKED;
}

bool tsr_linear_is_kind(const tsr_linear *l, const char *name)
{
    return l->scale != NULL && strcmp(l->weight->kind->name, name) == 0;
}

bool tsr_linear_is_fp8(const tsr_linear *l)
{
    return tsr_linear_is_quantized(l) && l->weight->kind->family == TSR_FAMILY_FP8;
}

void tsr_linears_free(tsr_linears *linears)
{
    tsr_arena_free(&linears->arena);
    *linears = (tsr_linears){0};
}

uint64_t tsr_linear_ranks(const tsr_linear *l, const tsr_model *model, uint64_t tp)
{
    if (l->cut->how == TSR_TP_REPLICATE || l->cut->how == TSR_TP_UNKNOWN)
        return 1;
    if (l->cut->unit == TSR_TP_FEATURES || model->heads == 0)
        return tp;
    if (model->heads % tp != 0)
        return 0;
    if (l->cut->unit == TSR_TP_HEADS || model->kv_heads == 0 || model->kv_heads % tp == 0)
        return tp;
    return tp % model->kv_heads == 0 ? model->kv_heads : 0;
}
