/* Plans SGLang's w4afp8: a step for each tensor, and the configuration. */
#include "convert/plans/layouts/w4afp8_plan.h"

#include "common/float_bits.h"
#include "common/text.h"
#include "convert/configs/fp8_config.h"
#include "convert/ops/int_op.h"
#include "convert/ops/quantize_op.h"
#include "convert/plans/ct_plan.h"
#include "convert/plans/mx_layers.h"
#include "convert/plans/policy_plan.h"
#include "convert/plans/quantize_plan.h"
#include "formats/names/coding.h"
#include "formats/names/fused.h"
#include "formats/names/model.h"
#include "kernels/cpu/block_fp8.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct planning {
    tsr_plan *plan;
    const tsr_checkpoint *c;
    const tsr_w4afp8_options *o;
    const tsr_decision *decisions;
    tsr_mx_layers layers; /* coded: the experts */
    float *amaxes;        /* [tensors]: the largest input of an expert */
    tsr_err *err;
} planning;

/* ---- scales of inputs ---- */

/* An expert, with the beginning of its name that all experts of its layer have. Matrices whose products are joined,
 * such as gate and up, have the same input. */
typedef struct measured {
    const char *name;
    size_t size; /* bytes of that beginning */
    bool joined;
    float *amax;
} measured;

static int by_input(const void *a, const void *b)
{
    const measured *const x = a, *const y = b;
    const size_t least = x->size < y->size ? x->size : y->size;
    const int order = memcmp(x->name, y->name, least);
    if (order != 0)
        return order;
    return x->size != y->size ? (x->size > y->size) - (x->size < y->size) : (int)x->joined - (int)y->joined;
}

/* Gives the experts that saw no token the largest input of those that share a layer and a kind of matrix with them.
 * Sorts the experts so that these are next to each other. */
static void fill_unseen(measured *experts, size_t n)
{
    qsort(experts, n, sizeof *experts, by_input);
    for (size_t first = 0, end; first < n; first = end) {
        float amax = 0;
        for (end = first; end < n && by_input(&experts[first], &experts[end]) == 0; end++)
            amax = fmaxf(amax, *experts[end].amax);
        for (size_t i = first; i < end; i++) {
            if (*experts[i].amax == 0)
                *experts[i].amax = amax;
        }
    }
}

/* Sets the largest input of each expert. */
static tsr_status measure_inputs(const planning *p)
{
    if (p->o->calibration == NULL)
        return TSR_OK;
    measured *const experts = malloc((p->c->tensors.count + 1) * sizeof *experts);
    tsr_status status = experts == NULL ? tsr_out_of_memory(p->err, "while planning") : TSR_OK;
    size_t n = 0, digits;
    for (size_t i = 0; status == TSR_OK && i < p->c->tensors.count; i++) {
        const tsr_tensor *const t = &p->c->tensors.items[i];
        if (!p->layers.coded[i])
            continue;
        experts[n++] = (measured){t->name, tsr_experts_length(t->name, &digits),
                                  tsr_fused_find_in(t->name, tsr_module_length(t->name)) != NULL, &p->amaxes[i]};
        status = tsr_mx_layers_input(&p->layers, t, "w4afp8", &p->amaxes[i], p->err);
    }
    if (status == TSR_OK)
        fill_unseen(experts, n);
    free(experts);
    return status;
}

static float input_of(const planning *p, size_t i)
{
    return p->o->calibration == NULL ? p->o->input_scale : tsr_e4m3_scale(tsr_f32_bits(p->amaxes[i]), false);
}

/* ---- steps ---- */

static tsr_status find_experts(const planning *p)
{
    bool any = false;
    for (size_t i = 0; i < p->c->tensors.count; i++) {
        const tsr_tensor *const t = &p->c->tensors.items[i];
        p->layers.coded[i] = p->decisions[i].treatment == TSR_QUANTIZE && t->rank == 2 && t->shape[0] > 0 &&
                             tsr_part_of(t->name) == TSR_PART_ROUTED_EXPERTS;
        any = any || p->layers.coded[i];
        if (p->layers.coded[i])
            TSR_TRY(tsr_ct_check_shape(p->c, t, TSR_SCHEME_W4AFP8, &p->o->experts, p->err));
    }
    return any ? TSR_OK
               : tsr_fail(p->err, TSR_E_UNSUPPORTED,
                          "%s: no routed expert is quantized as a tensor of its own, and SGLang's w4afp8 has int4 for "
                          "these only; use --scheme int4-weight-only or fp8-block, or --experts split for stacks",
                          p->c->path);
}

static tsr_status plan_tensor(const planning *p, size_t i)
{
    const tsr_tensor *const t = &p->c->tensors.items[i];
    const tsr_decision *const d = &p->decisions[i];
    const bool fits = t->rank == 2 && t->name[tsr_module_length(t->name)] != '\0';
    if (p->layers.coded[i]) {
        TSR_TRY(tsr_plan_nibbles(p->plan, t, &p->o->experts, input_of(p, i), p->err));
        return tsr_plan_add_note(p->plan, t, "quantize", d->reason, p->err);
    }
    if (d->treatment != TSR_QUANTIZE || !fits) {
        TSR_TRY(tsr_plan_copy(p->plan, t, t->name, p->err));
        return tsr_plan_add_note(p->plan, t, "copy",
                                 d->treatment == TSR_QUANTIZE ? tsr_reason_without_place(t) : d->reason, p->err);
    }
    TSR_TRY(tsr_plan_quantize(p->plan, &(tsr_weight){.data = t}, &p->o->block, TSR_DIALECT_SGLANG, p->err));
    return tsr_plan_add_note(p->plan, t, "quantize", tsr_arena_printf(&p->plan->arena, "%s: FP8 in blocks", d->reason),
                             p->err);
}

/* ---- the plan ---- */

/* Scales of codes that stay are tensors of the source as well. */
static const tsr_tensor *kept(const void *context, size_t i)
{
    const tsr_decided *const d = context;
    const tsr_tensor *const t = &d->c->tensors.items[i];
    return d->decisions[i].treatment == TSR_KEEP && !tsr_ends_with(t->name, ".weight_scale_inv") ? t : NULL;
}

static tsr_status spell_command(const planning *p)
{
    const tsr_int_scheme *const s = &p->o->experts;
    tsr_text t = {0};
    tsr_text_printf(&t,
                    "quantize --scheme w4afp8 --dialect sglang --divisor %g --rounding %s --scales %s "
                    "--max-shard-size %llu",
                    (double)s->divisor, s->away ? "away" : "even", tsr_scale_search_name(s->search),
                    U64(p->o->max_shard_bytes));
    if (p->o->calibration != NULL)
        tsr_text_printf(&t, " --activations %016llx", U64(p->o->calibration->hash));
    else
        tsr_text_printf(&t, " --input-scale %.9g", (double)p->o->input_scale);
    tsr_spell_policy(&t, &p->o->policy);
    return tsr_plan_take_command(p->plan, &t, p->err);
}

static tsr_status plan_all(const planning *p)
{
    TSR_TRY(find_experts(p));
    TSR_TRY(measure_inputs(p));
    for (size_t i = 0; i < p->c->tensors.count; i++)
        TSR_TRY(plan_tensor(p, i));
    TSR_TRY(tsr_plan_warn_of_share(p->plan, p->err));
    TSR_TRY(tsr_plan_kv_scales(p->plan, &p->o->kv, TSR_DIALECT_SGLANG, p->err));
    TSR_TRY(tsr_plan_model_files(p->plan, p->o->max_shard_bytes, NULL, p->err));
    TSR_TRY(tsr_plan_fp8_config(p->plan, &p->o->block, TSR_DIALECT_SGLANG, kept, &(tsr_decided){p->c, p->decisions},
                                p->c->tensors.count, p->err));
    return tsr_plan_finish(p->plan, p->err);
}

static tsr_status make_plan(tsr_plan *plan, const void *options, tsr_decision *decisions, tsr_err *err)
{
    const tsr_w4afp8_options *const o = options;
    tsr_policy_options policy = o->policy;
    planning p = {.plan = plan,
                  .c = plan->sources[0],
                  .o = o,
                  .decisions = decisions,
                  .layers = {.plan = plan, .calibration = o->calibration},
                  .err = err};
    policy.block_rows = o->block.block_rows;
    plan->importance = o->importance;
    plan->made = (tsr_plan_made){.scheme = "w4afp8",
                                 .dialect = tsr_dialect_name(TSR_DIALECT_SGLANG),
                                 .readers = tsr_scheme_row_of(TSR_SCHEME_W4AFP8)->dialects[TSR_DIALECT_SGLANG].readers};
    if (!policy.as_source) /* in that case it was inspected, and has codes that stay */
        TSR_TRY(tsr_quantize_check_source(p.c, err));
    TSR_TRY(spell_command(&p));
    TSR_TRY(tsr_plan_decide(plan, &policy, decisions, err));
    p.amaxes = calloc(p.c->tensors.count + 1, sizeof *p.amaxes);
    const bool enough = p.amaxes != NULL && tsr_mx_layers_make(&p.layers, p.c->tensors.count);
    const tsr_status status = enough ? plan_all(&p) : tsr_out_of_memory(err, "while planning");
    free(p.amaxes);
    tsr_mx_layers_free(&p.layers);
    return status;
}

bool tsr_w4afp8_has(const tsr_weight *w)
{
    if (tsr_part_of(w->data->name) == TSR_PART_ROUTED_EXPERTS)
        return w->coding == TSR_CODED_NIBBLES && w->block.cols == 128 && !w->coarse;
    return w->kind->family == TSR_FAMILY_FP8 && w->block.rows == 128 && w->block.cols == 128 && !w->coarse &&
           w->part == NULL && w->values->rank == 2 && w->scale_dtype == TSR_F32 &&
           tsr_ends_with(w->scale->name, ".weight_scale_inv") && w->input_scale == NULL;
}

tsr_status tsr_w4afp8_plan(tsr_plan *plan, const tsr_checkpoint *const *source, const tsr_w4afp8_options *options,
                           tsr_err *err)
{
    return tsr_plan_by_policy(plan, source, make_plan, options, err);
}
