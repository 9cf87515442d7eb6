/* Plans which tensors get updates of the adapters, and which are copied. */
#include "convert/plans/merge/merge_plan.h"

#include "convert/ops/merge/merge_op.h"
#include "convert/plans/merge/merge_report.h"
#include "formats/adapters/lora.h"
#include "formats/checkpoint/listing.h"
#include "formats/names/fused.h"
#include "formats/weights/weights.h"

#include <string.h>

/* The parts of the plan that several weights of a layer share. */
typedef struct treated {
    tsr_merge_source *source; /* NULL: not made yet */
    const tsr_amax *amax;     /* the amax of a scale that it shares; NULL: none, or not made yet */
} treated;

typedef struct planning {
    tsr_plan *plan;
    const tsr_weights *weights;
    const tsr_lora *loras; /* [n] */
    size_t n;
    treated *treated; /* [weights->count] */
    tsr_err *err;
} planning;

/* ---- sources and groups ---- */

/* Copies a tensor of an adapter. */
static const tsr_tensor *of_adapter(const planning *p, const tsr_tensor *t, size_t adapter)
{
    tsr_tensor *const copy = tsr_plan_tensor(p->plan, t);
    if (copy != NULL)
        copy->source = (uint16_t)(1 + adapter);
    return copy;
}

/* Returns the update in the form of the operation. Its tensors are NULL when memory is exhausted. */
static tsr_update update_of(const planning *p, const tsr_lora_update *u, size_t adapter)
{
    const tsr_weight *const w = u->weight;
    const tsr_tensor *const t = w->data;
    const bool codes = w->kind != NULL;
    return (tsr_update){.a = of_adapter(p, u->a, adapter),
                        .b = of_adapter(p, u->b, adapter),
                        .matrices = u->experts,
                        .rows = codes ? w->rows : t->shape[t->rank - 2],
                        .cols = codes ? w->cols : t->shape[t->rank - 1],
                        .rank = u->rank,
                        .scale = u->scale,
                        .turned = u->turned};
}

static bool has_update(const planning *p, const tsr_weight *w)
{
    bool any = false;
    for (size_t i = 0; i < p->n; i++)
        any = any || tsr_lora_update_of(&p->loras[i], w) != NULL;
    return any;
}

static treated *treated_of(const planning *p, const tsr_weight *w)
{
    return &p->treated[w - p->weights->items];
}

static tsr_status source_of(const planning *p, const tsr_weight *w, tsr_merge_source **source)
{
    treated *const t = treated_of(p, w);
    tsr_update updates[TSR_MERGE_ADAPTERS];
    uint32_t n = 0;
    bool enough = true;
    for (size_t i = 0; i < p->n && t->source == NULL; i++) {
        const tsr_lora_update *const u = tsr_lora_update_of(&p->loras[i], w);
        if (u == NULL)
            continue;
        updates[n] = update_of(p, u, i);
        enough = enough && updates[n].a != NULL && updates[n].b != NULL;
        n++;
    }
    if (t->source == NULL && enough)
        t->source = tsr_merge_source_make(p->plan, w, updates, n);
    *source = t->source;
    return t->source == NULL ? tsr_out_of_memory(p->err, "while planning") : TSR_OK;
}

static tsr_status read_global(const planning *p, const tsr_weight *w, float *value)
{
    return tsr_checkpoint_read(p->plan->sources[0], w->global_scale, 0, value, sizeof *value, p->err);
}

/* Lists the weights that share the global scale of an NVFP4 weight: the members of its fused layer with an equal one.
 * Any other weight is alone. */
static tsr_status find_group(const planning *p, const tsr_weight *w, const tsr_weight *group[TSR_FUSED_MEMBERS],
                             size_t *n)
{
    const char *const name = w->values->name;
    const size_t length = tsr_module_length(name);
    const tsr_fused *const fused = w->global_scale == NULL ? NULL : tsr_fused_find_in(name, length);
    const char *const dot = memrchr(name, '.', length);
    const int parent = dot == NULL ? 0 : (int)(dot + 1 - name);
    float mine, other;
    group[0] = w;
    *n = 1;
    if (fused == NULL)
        return TSR_OK;
    *n = 0;
    TSR_TRY(read_global(p, w, &mine));
    for (size_t i = 0; i < TSR_FUSED_MEMBERS && fused->members[i] != NULL; i++) {
        const char *const member =
            tsr_arena_printf(&p->plan->arena, "%.*s%s%s", parent, name, fused->members[i], name + length);
        if (member == NULL)
            return tsr_out_of_memory(p->err, "while planning");
        const tsr_weight *const m = tsr_weights_find(p->weights, p->plan->sources[0], member);
        if (m == NULL || m->kind != w->kind || m->matrices != 1)
            continue;
        TSR_TRY(read_global(p, m, &other));
        if (memcmp(&mine, &other, sizeof mine) == 0)
            group[(*n)++] = m;
    }
    return TSR_OK;
}

/* Makes the amax of a shared scale for all weights of a group, if one of them has an update. */
static tsr_status plan_shared(const planning *p, const tsr_weight *w)
{
    const tsr_weight *group[TSR_FUSED_MEMBERS];
    tsr_merge_source *sources[TSR_FUSED_MEMBERS];
    size_t n;
    bool any = false;
    TSR_TRY(find_group(p, w, group, &n));
    for (size_t i = 0; i < n; i++)
        any = any || has_update(p, group[i]);
    if (!any)
        return TSR_OK;
    for (size_t i = 0; i < n; i++)
        TSR_TRY(source_of(p, group[i], &sources[i]));
    const tsr_amax *const amax = tsr_merge_amax(p->plan, sources, n);
    for (size_t i = 0; i < n; i++)
        treated_of(p, group[i])->amax = amax;
    return amax == NULL ? tsr_out_of_memory(p->err, "while planning") : TSR_OK;
}

/* ---- steps ---- */

static tsr_status copy(const planning *p, const tsr_tensor *t, const char *reason)
{
    TSR_TRY(tsr_plan_copy(p->plan, t, t->name, p->err));
    return tsr_plan_add_note(p->plan, t, "copy", reason, p->err);
}

/* Rejects a weight whose codes another tensor or file sums up. */
static tsr_status check_sums(const planning *p, const tsr_weight *w)
{
    const tsr_checkpoint *const base = p->plan->sources[0];
    const tsr_tensor *const t = tsr_find_sibling(base, w->values->name, tsr_module_length(w->values->name), ".azp_adj");
    const char *sums = t == NULL ? NULL : t->name;
    for (size_t i = 0; i < base->n_side_files && w->kind->family == TSR_FAMILY_INTEGERS; i++) {
        if (strcmp(base->files[base->n_files + i].name, TSR_AZP_NAME) == 0)
            sums = TSR_AZP_NAME;
    }
    return sums == NULL ? TSR_OK
                        : tsr_fail_at(p->err,
                                      tsr_fail(p->err, TSR_E_UNSUPPORTED,
                                               "%s: '%s' has an update, but '%s' has the sums of its codes; run "
                                               "'tessera convert --to bf16' and merge into the result",
                                               base->files[w->data->file].path, w->data->name, sums),
                                      w->data->name);
}

/* Notes the tensors of the updates of a weight. */
static tsr_status note_updates(const planning *p, const tsr_weight *w)
{
    static const char kUsed[] = "belongs to an update";
    for (size_t i = 0; i < p->n; i++) {
        const tsr_lora_update *const u = tsr_lora_update_of(&p->loras[i], w);
        if (u == NULL)
            continue;
        TSR_TRY(tsr_plan_add_note(p->plan, u->a, "consume", kUsed, p->err));
        TSR_TRY(tsr_plan_add_note(p->plan, u->b, "consume", kUsed, p->err));
    }
    return TSR_OK;
}

/* Describes the updates of a weight. NULL: memory is exhausted. */
static const char *reason_of(const planning *p, const tsr_merge_source *s)
{
    const char *reason =
        s->n_updates == 0 ? "no update, but it has the scale of a weight with one, which may have to grow" : "";
    for (uint32_t i = 0; i < s->n_updates && reason != NULL; i++)
        reason = tsr_arena_printf(&p->plan->arena, "%s%san update of rank %llu, times %g", reason, i == 0 ? "" : "; ",
                                  U64(s->updates[i].rank), (double)s->updates[i].scale);
    return reason;
}

static tsr_status merge_weight(const planning *p, const tsr_weight *w)
{
    tsr_merge_source *source;
    if (w->kind != NULL)
        TSR_TRY(check_sums(p, w));
    TSR_TRY(source_of(p, w, &source));
    const char *const reason = reason_of(p, source);
    if (reason == NULL)
        return tsr_out_of_memory(p->err, "while planning");
    TSR_TRY(tsr_plan_merge(p->plan, source, p->weights->ue8m0, treated_of(p, w)->amax, p->err));
    TSR_TRY(tsr_plan_add_note(p->plan, w->data, source->n_updates == 0 ? "copy" : "merge", reason, p->err));
    return note_updates(p, w);
}

/* Returns true if the step that merges the weight also writes this companion. */
static bool is_made_anew(const tsr_weight *w, const tsr_tensor *companion)
{
    return companion == w->scale || companion == w->zero_point || companion == w->global_scale;
}

static tsr_status plan_weight(const planning *p, const tsr_weight *w)
{
    const bool updated = has_update(p, w);
    const tsr_tensor *companions[TSR_MAX_COMPANIONS];
    const size_t n = w->kind == NULL ? 0 : tsr_weight_companions(w, companions, NULL);
    if (w->kind != NULL && tsr_merge_has_shared_scale(w) && treated_of(p, w)->amax == NULL)
        TSR_TRY(plan_shared(p, w));
    const bool merged = updated || treated_of(p, w)->amax != NULL;
    TSR_TRY(merged ? merge_weight(p, w) : copy(p, w->data, "no update"));
    for (size_t i = 0; i < n; i++) {
        if (!merged || !is_made_anew(w, companions[i]))
            TSR_TRY(copy(p, companions[i], "stays"));
        else
            TSR_TRY(
                tsr_plan_add_note(p->plan, companions[i], updated ? "merge" : "copy", "goes with its weight", p->err));
    }
    return TSR_OK;
}

/* Warns if an adapter has a side file of the base in another size, such as a tokenizer with more tokens. */
static tsr_status warn_of_side_files(const planning *p, const tsr_checkpoint *adapter)
{
    const tsr_checkpoint *const base = p->plan->sources[0];
    for (size_t i = 0; i < adapter->n_side_files; i++) {
        const tsr_tensor mine = tsr_checkpoint_side_file(adapter, i);
        for (size_t k = 0; k < base->n_side_files; k++) {
            const tsr_tensor other = tsr_checkpoint_side_file(base, k);
            if (strcmp(mine.name, other.name) == 0 && strcmp(mine.name, "README.md") != 0 && mine.bytes != other.bytes)
                return tsr_plan_warn(p->plan, p->err,
                                     "%s of the adapter differs from that of the base, and the output has that of the "
                                     "base: copy the adapter's if the model was trained with it",
                                     mine.name);
        }
    }
    return TSR_OK;
}

static tsr_status plan_tensors(const planning *p, const tsr_merge_options *o)
{
    const tsr_checkpoint *const base = p->plan->sources[0];
    TSR_TRY(tsr_plan_warn_of(p->plan, p->weights, p->err));
    for (size_t i = 0; i < p->n; i++) {
        if (p->loras[i].unmatched != NULL)
            TSR_TRY(tsr_plan_warn(p->plan, p->err, "%s: names that match nothing: %s", p->loras[i].config.path,
                                  p->loras[i].unmatched));
        TSR_TRY(warn_of_side_files(p, p->plan->sources[1 + i]));
    }
    for (size_t i = 0; i < p->weights->count; i++)
        TSR_TRY(plan_weight(p, &p->weights->items[i]));
    TSR_TRY(tsr_plan_model_files(p->plan, o->max_shard_bytes, NULL, p->err));
    return base->config == NULL
               ? TSR_OK
               : tsr_plan_text_file(p->plan, "", TSR_CONFIG_NAME, base->config, base->config_size, p->err);
}

static tsr_status spell_command(tsr_plan *plan, const tsr_merge_options *o, tsr_err *err)
{
    tsr_text t = {0};
    tsr_text_printf(&t, "merge --source-block %llux%llu --max-shard-size %llu", U64(o->source_block.rows),
                    U64(o->source_block.cols), U64(o->max_shard_bytes));
    for (size_t i = 0; i < o->n_adapters && (o->n_adapters > 1 || o->factors[0] != 1); i++)
        tsr_text_printf(&t, " LORA=%.17g", o->factors[i]);
    return tsr_plan_take_command(plan, &t, err);
}

static tsr_status make_plan(planning *p, tsr_lora *loras, const tsr_merge_options *o)
{
    tsr_plan *const plan = p->plan;
    for (; p->n < o->n_adapters; p->n++)
        TSR_TRY(tsr_lora_read(&loras[p->n], plan->sources[1 + p->n], o->factors[p->n], plan->sources[0], p->weights,
                              p->err));
    TSR_TRY(spell_command(plan, o, p->err));
    plan->report = tsr_merge_report;
    plan->next = "tessera verify manifest DST";
    TSR_TRY(plan_tensors(p, o));
    return tsr_plan_finish(plan, p->err);
}

tsr_status tsr_merge_plan(tsr_plan *plan, const tsr_checkpoint *const *sources, const tsr_merge_options *options,
                          tsr_err *err)
{
    tsr_weights weights;
    tsr_lora loras[TSR_MERGE_ADAPTERS];
    *plan = tsr_plan_begin(sources, 1 + options->n_adapters);
    TSR_TRY(tsr_weights_pair(&weights, sources[0], options->source_block, err));
    planning p = {plan, &weights, loras, 0, tsr_arena_alloc(&plan->arena, (weights.count + 1) * sizeof(treated)), err};
    tsr_status status = p.treated == NULL ? tsr_out_of_memory(err, "while planning")
                                          : tsr_weights_refuse_parts(&weights, sources[0], "merging", err);
    if (status == TSR_OK)
        status = make_plan(&p, loras, options);
    for (size_t i = 0; i < p.n; i++)
        tsr_lora_free(&loras[i]);
    tsr_weights_free(&weights);
    return tsr_plan_ended(plan, status);
}
