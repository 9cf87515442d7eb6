/* Finds all members of a stack by name and plans their combination. */
#include "convert/plans/experts/stack_experts.h"

#include "convert/ops/rows/decode_rows.h"
#include "convert/ops/rows/gather_rows.h"
#include "convert/ops/stack_op.h"
#include "formats/names/expert_stacks.h"
#include "quantize/policy/policy.h"

#include <stdlib.h>
#include <string.h>

typedef struct stacking {
    tsr_plan *plan;
    const tsr_weights *weights;
    const tsr_weight *first; /* gate or down projection of expert 0 */
    tsr_stacked_expert at;   /* position of `first` in the stack */
    tsr_stack_layout layout;
    tsr_dtype dtype;
    enum what { VALUES, CODES, SCALES } what; /* stacked tensors */
    bool bias;
    tsr_err *err;
} stacking;

static const tsr_checkpoint *source_of(const stacking *s)
{
    return s->plan->sources[0];
}

static const tsr_weight *member(const stacking *s, uint64_t expert, unsigned projection, const char **name)
{
    *name = tsr_arena_printf(&s->plan->arena, "%.*s%s%llu.%s%s", (int)s->at.before, s->first->values->name,
                             s->at.stack->experts, U64(expert), s->at.stack->projections[projection], s->at.ending);
    return *name == NULL ? NULL : tsr_weights_find(s->weights, source_of(s), *name);
}

/* Returns true if the layer has any tensor of this expert. collect() reports missing members. */
static bool is_there(const stacking *s, uint64_t expert)
{
    static const char *const kMembers[] = {"gate_proj.weight", "up_proj.weight", "down_proj.weight",
                                           "gate_proj.bias",   "up_proj.bias",   "down_proj.bias"};
    bool found = false;
    for (size_t i = 0; i < sizeof kMembers / sizeof *kMembers && !found; i++) {
        const char *const name =
            tsr_arena_printf(&s->plan->arena, "%.*s%s%llu.%s", (int)s->at.before, s->first->values->name,
                             s->at.stack->experts, U64(expert), kMembers[i]);
        found = name != NULL && tsr_weights_find(s->weights, source_of(s), name) != NULL;
    }
    return found;
}

static uint64_t count_experts(const stacking *s)
{
    uint64_t n = 1;
    while (is_there(s, n))
        n++;
    return n;
}

static bool is_alike(const tsr_weight *a, const tsr_weight *b, enum what what)
{
    return (what == VALUES || (a->kind == b->kind && a->data->dtype == b->data->dtype)) &&
           tsr_same_shape(a->values, b->values) && (a->scale == NULL) == (b->scale == NULL) &&
           (a->scale != NULL || a->data->dtype == b->data->dtype);
}

/* Returns the tensor with the codes (two per byte) or the scales. */
static const tsr_tensor *stored(const stacking *s, const tsr_weight *w)
{
    return s->what == CODES ? w->data : w->scale;
}

static const tsr_decoded *decode(const stacking *s, const tsr_weight *w)
{
    if (s->what != VALUES)
        return tsr_gather_rows(
            s->plan, &(tsr_gather){.from = stored(s, w), .step = 1, .rows = w->rows, .cols = stored(s, w)->shape[1]});
    if (w->scale != NULL) {
        const tsr_row_view view = tsr_view_whole(w);
        return tsr_decode_rows(s->plan, &view);
    }
    return tsr_gather_rows(
        s->plan,
        &(tsr_gather){.from = w->data, .step = 1, .rows = w->data->shape[0], .cols = s->bias ? 1 : w->data->shape[1]});
}

static tsr_status collect(const stacking *s, const tsr_decoded **parts, uint64_t experts)
{
    const unsigned n = tsr_stack_projections(s->at.stack);
    for (uint64_t i = 0; i < experts * n; i++) {
        const char *name;
        const tsr_weight *const w = member(s, i / n, (unsigned)(i % n), &name);
        if (name == NULL)
            return tsr_out_of_memory(s->err, "while planning");
        if (w == NULL)
            return tsr_fail(s->err, TSR_E_UNSUPPORTED, "%s: no '%s', which the stack of '%s' needs", source_of(s)->path,
                            name, s->first->values->name);
        if (!is_alike(s->first, w, s->what))
            return tsr_fail(s->err, TSR_E_UNSUPPORTED,
                            "'%s' differs from '%s' in shape or form, so they cannot be stacked", name,
                            s->first->values->name);
        parts[i] = decode(s, w);
        if (parts[i] == NULL)
            return tsr_out_of_memory(s->err, "while planning");
    }
    return TSR_OK;
}

static tsr_tensor *stack_tensor(const stacking *s, const tsr_stack_shape *shape)
{
    static const char *const kEndings[] = {[CODES] = "_blocks", [SCALES] = "_scales"};
    const bool own = strcmp(s->at.stack->set, s->at.stack->experts) != 0; /* Granite's are modules */
    const char *const name = tsr_arena_printf(&s->plan->arena, "%.*s%s%s%s", (int)s->at.before, s->first->values->name,
                                              s->at.stack->set, s->at.stack->leaf,
                                              s->what != VALUES ? kEndings[s->what]
                                              : s->bias         ? "_bias"
                                              : own             ? ".weight"
                                                                : "");
    const uint64_t all = shape->projections * shape->rows;
    if (s->what != VALUES) /* blocks of 16 bytes hold 32 codes */
        return tsr_plan_new_tensor(s->plan, name, TSR_U8, s->what == CODES ? 4 : 3,
                                   (const uint64_t[]){shape->experts, all, s->first->grid_cols, 16});
    const tsr_dtype dtype = s->first->scale != NULL ? s->dtype : (tsr_dtype)s->first->data->dtype;
    return s->bias ? tsr_plan_new_tensor(s->plan, name, dtype, 2, (const uint64_t[]){shape->experts, all})
                   : tsr_plan_new_tensor(s->plan, name, dtype, 3,
                                         (const uint64_t[]){shape->experts, shape->turned ? shape->cols : all,
                                                            shape->turned ? all : shape->cols});
}

static tsr_status add_stack(const stacking *s)
{
    const tsr_tensor *const t = s->first->values;
    const tsr_stack_shape shape = {.experts = count_experts(s),
                                   .projections = tsr_stack_projections(s->at.stack),
                                   .rows = t->shape[0],
                                   .cols = s->what != VALUES ? stored(s, s->first)->shape[1]
                                           : s->bias         ? 1
                                                             : t->shape[1],
                                   .turned = s->layout.turned && s->what == VALUES,
                                   .powers = s->what == SCALES,
                                   .interleaved = s->layout.interleaved && tsr_stack_projections(s->at.stack) == 2};
    const tsr_decoded **const parts = calloc(shape.experts * shape.projections + 1, sizeof *parts);
    tsr_tensor *const out = stack_tensor(s, &shape);
    tsr_status status = parts == NULL || out == NULL ? tsr_out_of_memory(s->err, "while planning") : TSR_OK;
    if (status == TSR_OK)
        status = collect(s, parts, shape.experts);
    if (status == TSR_OK)
        status = tsr_plan_stack(s->plan, parts, s->first->scale != NULL && s->what == VALUES, &shape, out, s->err);
    free(parts);
    return status;
}

static tsr_status add_notes(const stacking *s, const tsr_weight *w)
{
    const tsr_tensor *companions[TSR_MAX_COMPANIONS];
    const size_t n = tsr_weight_companions(w, companions, NULL);
    TSR_TRY(tsr_plan_add_note(s->plan, w->data, "stack", "an expert, stacked with the others of its layer", s->err));
    for (size_t i = 0; i < n; i++)
        TSR_TRY(tsr_plan_add_note(s->plan, companions[i], s->what == VALUES ? "consume" : "stack",
                                  s->what == VALUES ? "belongs to a weight that is dequantized" : "stands with codes",
                                  s->err));
    return TSR_OK;
}

/* Rejects experts that are not MXFP4, the only format of gpt-oss' layout. */
static tsr_status check_codes(const stacking *s, const tsr_weight *w)
{
    const bool mxfp4 = w->scale != NULL && w->coding == TSR_CODED_E2M1 && w->scale_dtype == TSR_F8_E8M0 &&
                       w->block.cols == 32 && w->cols % 32 == 0 && tsr_dtype_bytes((tsr_dtype)w->data->dtype) == 1 &&
                       w->data->bytes == w->rows * w->cols / 2 && w->scale->bytes == w->rows * w->cols / 32;
    if (mxfp4)
        return TSR_OK;
    return tsr_fail(s->err, TSR_E_UNSUPPORTED,
                    "%s: '%s' is %s, but --dialect gpt-oss needs MXFP4 codes; run 'tessera convert --to bf16 --experts "
                    "stack' and then 'tessera quantize --scheme mxfp4-weight-only'",
                    source_of(s)->path, w->values->name, w->kind == NULL ? "no codes" : w->kind->title);
}

static tsr_status add_codes(stacking *s)
{
    TSR_TRY(add_stack(s));
    s->what = SCALES;
    return add_stack(s);
}

static tsr_status stack(tsr_plan *plan, const tsr_weights *weights, const tsr_weight *weight, tsr_dtype dtype,
                        bool codes, bool *handled, tsr_err *err)
{
    const tsr_tensor *const t = weight->values;
    stacking s = {.plan = plan, .weights = weights, .first = weight, .dtype = dtype, .err = err};
    *handled = tsr_stack_place(t->name, &s.at);
    s.bias = *handled && strcmp(s.at.ending, ".bias") == 0;
    *handled = *handled && (s.bias || strcmp(s.at.ending, ".weight") == 0) && t->rank == (s.bias ? 1 : 2) &&
               (weight->scale != NULL || tsr_dtype_is_weight_float((tsr_dtype)t->dtype));
    if (!*handled)
        return TSR_OK;
    const char *const type = tsr_policy_model_type(source_of(&s), &plan->arena), *name;
    s.layout = tsr_stack_layout_of(type);
    if (!tsr_policy_knows(type))
        return tsr_fail(err, TSR_E_UNSUPPORTED,
                        "%s: '%s' is an expert of an unknown model_type, so the layout of its stacks is unknown",
                        source_of(&s)->path, t->name);
    s.what = codes && !s.bias ? CODES : VALUES;
    if (s.what == CODES)
        TSR_TRY(check_codes(&s, weight));
    TSR_TRY(add_notes(&s, weight));
    if (s.at.expert == 0 && s.at.projection == 0)
        return s.what == CODES ? add_codes(&s) : add_stack(&s);
    /* the same check for each expert makes sure that all experts down to 0 exist */
    const bool begun = member(&s, s.at.expert == 0 ? 0 : s.at.expert - 1, 0, &name) != NULL;
    return begun ? TSR_OK
                 : tsr_fail(err, TSR_E_UNSUPPORTED, "%s: '%s' exists, but '%s' before it is missing",
                            source_of(&s)->path, t->name, name == NULL ? "" : name);
}

tsr_status tsr_stack_experts(tsr_plan *plan, const tsr_weights *weights, const tsr_weight *weight, tsr_dtype dtype,
                             bool *handled, tsr_err *err)
{
    return stack(plan, weights, weight, dtype, false, handled, err);
}

tsr_status tsr_stack_codes(tsr_plan *plan, const tsr_weights *weights, const tsr_weight *weight, bool *handled,
                           tsr_err *err)
{
    return stack(plan, weights, weight, TSR_U8, true, handled, err);
}
