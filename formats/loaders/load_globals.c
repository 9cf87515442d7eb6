/* Rules about global scales of fused layers. Loaders keep one scale for all members, so the members' scales must be
 * equal. */
#include "formats/loaders/load_query.h"

#include <string.h>

/* Returns the first existing member of the fused layer. */
static const tsr_linear *first_member(const tsr_linear *l)
{
    return l->fused == NULL || l->members[0] == l ? NULL : l->members[0];
}

static bool is_single(const tsr_tensor *t)
{
    return t != NULL && t->dtype == TSR_F32 && tsr_tensor_elements(t) == 1;
}

/* Adds a pair of different scales. NaN is not reported here, because it differs from everything. */
static tsr_status compare(tsr_load_query *q, tsr_unequal *found, const tsr_linear *l, const tsr_tensor *mine,
                          const tsr_tensor *other, bool input, tsr_err *err)
{
    tsr_unequal u = {.member = l, .first = first_member(l), .input = input};
    if (!is_single(mine) || !is_single(other))
        return TSR_OK;
    TSR_TRY(tsr_checkpoint_read(q->s->checkpoint, mine, 0, &u.value, sizeof u.value, err));
    TSR_TRY(tsr_checkpoint_read(q->s->checkpoint, other, 0, &u.other, sizeof u.other, err));
    u.tensor = mine->name;
    if (u.value < u.other || u.value > u.other)
        found[q->n_unequal++] = u;
    return TSR_OK;
}

tsr_status tsr_globals_compare(tsr_load_query *q, tsr_arena *arena, tsr_err *err)
{
    size_t n = 0;
    for (size_t i = 0; i < q->linears->count; i++)
        n += q->linears->items[i].scale != NULL && q->linears->items[i].weight->global_scale != NULL;
    if (n == 0)
        return TSR_OK;
    tsr_unequal *const found = tsr_arena_alloc(arena, 2 * n * sizeof *found);
    if (found == NULL)
        return tsr_out_of_memory(err, "for what loaders ask");
    q->unequal = found;
    for (size_t i = 0; i < q->linears->count; i++) {
        const tsr_linear *const l = &q->linears->items[i], *const first = first_member(l);
        if (first == NULL || l->scale == NULL || first->scale == NULL || l->weight->global_scale == NULL ||
            first->weight->kind != l->weight->kind)
            continue;
        TSR_TRY(compare(q, found, l, l->weight->global_scale, first->weight->global_scale, false, err));
        TSR_TRY(compare(q, found, l, l->weight->input_scale, first->weight->input_scale, true, err));
    }
    return TSR_OK;
}

/* Reports unequal global scales. vLLM and SGLang use the largest for all members, so the weights of the others are
 * scaled wrong. (For experts they use that of w1.) The largest input scale is right for all members. TensorRT-LLM
 * asserts that both are equal. */
void tsr_rule_globals(const tsr_load_query *q)
{
    for (size_t i = 0; i < q->n_unequal; i++) {
        const tsr_unequal *const u = &q->unequal[i];
        if (!tsr_query_reads(q, u->member) || (u->input && q->loader != TSR_LOADER_TRTLLM))
            continue;
        tsr_query_note(q, true, u->tensor, "global scales",
                       "`tessera convert --to nvfp4-weight-only --scales mse` writes one for all",
                       "it is %.9g, but '%s', which is run together with it as %s, has %.9g: %s", (double)u->value,
                       u->first->module, u->member->fused->name, (double)u->other,
                       q->loader == TSR_LOADER_TRTLLM ? "the loader asserts that they are equal"
                       : u->member->part == TSR_PART_ROUTED_EXPERTS
                           ? "the loader uses the first member's for both, so the values of the other are wrong"
                           : "the loader uses the largest for all, so the values of the others are wrong");
    }
}
