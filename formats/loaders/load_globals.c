/* Rules about global scales of fused layers. Loaders keep one scale for all members, so the members' scales must be
 * equal. */
#include "formats/loaders/load_query.h"

#include "common/float_bits.h"

#include <string.h>

/* Returns the first existing member of the fused layer. */
static const tsr_linear *first_member(const tsr_linear *l)
{
    return l->fused == NULL || l->members[0] == l ? NULL : l->members[0];
}

static bool is_single(const tsr_tensor *t)
{
    return t != NULL && (t->dtype == TSR_F32 || t->dtype == TSR_BF16) && tsr_tensor_elements(t) == 1;
}

static tsr_status read_single(const tsr_load_query *q, const tsr_tensor *t, float *value, tsr_err *err)
{
    uint16_t half;
    if (t->dtype == TSR_F32)
        return tsr_checkpoint_read(q->s->checkpoint, t, 0, value, sizeof *value, err);
    TSR_TRY(tsr_checkpoint_read(q->s->checkpoint, t, 0, &half, sizeof half, err));
    *value = tsr_f32_from_bf16(half);
    return TSR_OK;
}

/* Returns true for int4 experts of SGLang, which have a scale of the input but no global scale of the weight. */
static bool is_pairs(const tsr_linear *l)
{
    return tsr_linear_is_kind(l, "int4-sglang") && l->weight->input_scale != NULL;
}

static bool is_compared(const tsr_linear *l)
{
    return l->scale != NULL && (l->weight->global_scale != NULL || is_pairs(l));
}

/* Adds a pair of different scales. NaN is not reported here, because it differs from everything. */
static tsr_status compare(tsr_load_query *q, tsr_unequal *found, const tsr_linear *l, const tsr_tensor *mine,
                          const tsr_tensor *other, bool input, tsr_err *err)
{
    tsr_unequal u = {.member = l, .first = first_member(l), .input = input};
    if (!is_single(mine) || !is_single(other))
        return TSR_OK;
    TSR_TRY(read_single(q, mine, &u.value, err));
    TSR_TRY(read_single(q, other, &u.other, err));
    u.tensor = mine->name;
    if (u.value < u.other || u.value > u.other)
        found[q->n_unequal++] = u;
    return TSR_OK;
}

tsr_status tsr_globals_compare(tsr_load_query *q, tsr_arena *arena, tsr_err *err)
{
    size_t n = 0;
    for (size_t i = 0; i < q->linears->count; i++)
        n += is_compared(&q->linears->items[i]);
    if (n == 0)
        return TSR_OK;
    tsr_unequal *const found = tsr_arena_alloc(arena, 2 * n * sizeof *found);
    if (found == NULL)
        return tsr_out_of_memory(err, "for what loaders ask");
    q->unequal = found;
    for (size_t i = 0; i < q->linears->count; i++) {
        const tsr_linear *const l = &q->linears->items[i], *const first = first_member(l);
        if (first == NULL || first->scale == NULL || !is_compared(l) || first->weight->kind != l->weight->kind)
            continue;
        TSR_TRY(compare(q, found, l, l->weight->global_scale, first->weight->global_scale, false, err));
        TSR_TRY(compare(q, found, l, l->weight->input_scale, first->weight->input_scale, true, err));
    }
    return TSR_OK;
}

/* Reports unequal scales of the inputs of gate and up: SGLang stops at a difference above 1e-5
 * (fused_moe_triton/layer.py). */
static void check_pairs(const tsr_load_query *q, const tsr_unequal *u)
{
    const float difference = u->value > u->other ? u->value - u->other : u->other - u->value;
    if (q->loader == TSR_LOADER_SGLANG && difference > 1e-5f)
        tsr_query_note(q, true, u->tensor, "input scale", "store one scale for both, as tessera quantize does",
                       "it is %.9g, but '%s', which is run together with it, has %.9g: the loader refuses a difference",
                       (double)u->value, u->first->module, (double)u->other);
}

/* Reports unequal global scales. vLLM and SGLang use the largest for all members, so the weights of the others are
 * scaled wrong. (For experts they use that of w1.) The largest input scale is right for all members. TensorRT-LLM
 * asserts that both are equal. */
void tsr_rule_globals(const tsr_load_query *q)
{
    for (size_t i = 0; i < q->n_unequal; i++) {
        const tsr_unequal *const u = &q->unequal[i];
        if (is_pairs(u->member)) {
            check_pairs(q, u);
            continue;
        }
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
