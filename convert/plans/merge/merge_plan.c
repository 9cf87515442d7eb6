/* Plans which tensors get an update of the adapter, and which are copied. */
#include "convert/plans/merge/merge_plan.h"

#include "convert/ops/merge/merge_op.h"
#include "convert/plans/merge/merge_report.h"
#include "formats/adapters/lora.h"
#include "formats/weights/weights.h"

#include <string.h>

typedef struct planning {
    tsr_plan *plan;
    const tsr_weights *weights;
    const tsr_lora *lora;
    tsr_err *err;
} planning;

static tsr_status copy(const planning *p, const tsr_tensor *t, const char *reason)
{
    TSR_TRY(tsr_plan_copy(p->plan, t, t->name, p->err));
    return tsr_plan_add_note(p->plan, t, "copy", reason, p->err);
}

/* Returns the update in the form of the operation. */
static tsr_update update_of(const tsr_lora_update *u)
{
    const tsr_weight *const w = u->weight;
    const tsr_tensor *const t = w->data;
    const bool codes = w->kind != NULL;
    return (tsr_update){.a = u->a,
                        .b = u->b,
                        .matrices = u->experts,
                        .rows = codes ? w->rows : t->shape[t->rank - 2],
                        .cols = codes ? w->cols : t->shape[t->rank - 1],
                        .rank = u->rank,
                        .scale = u->scale,
                        .turned = u->turned};
}

static tsr_status merge_weight(const planning *p, const tsr_weight *w, const tsr_lora_update *u)
{
    static const char kUsed[] = "belongs to an update";
    const tsr_update update = update_of(u);
    const char *const reason =
        tsr_arena_printf(&p->plan->arena, "an update of rank %llu, times %g", U64(u->rank), (double)u->scale);
    if (reason == NULL)
        return tsr_out_of_memory(p->err, "while planning");
    TSR_TRY(tsr_plan_merge(p->plan, w, &update, p->err));
    TSR_TRY(tsr_plan_add_note(p->plan, w->data, "merge", reason, p->err));
    TSR_TRY(tsr_plan_add_note(p->plan, u->a, "consume", kUsed, p->err));
    return tsr_plan_add_note(p->plan, u->b, "consume", kUsed, p->err);
}

/* Returns true if the step that merges the weight also writes this companion. */
static bool is_made_anew(const tsr_weight *w, const tsr_tensor *companion)
{
    return companion == w->scale || companion == w->zero_point || companion == w->global_scale;
}

static tsr_status plan_weight(const planning *p, const tsr_weight *w)
{
    const tsr_lora_update *const u = tsr_lora_update_of(p->lora, w);
    const tsr_tensor *companions[TSR_MAX_COMPANIONS];
    const size_t n = w->kind == NULL ? 0 : tsr_weight_companions(w, companions, NULL);
    TSR_TRY(u == NULL ? copy(p, w->data, "no update") : merge_weight(p, w, u));
    for (size_t i = 0; i < n; i++) {
        if (u == NULL || !is_made_anew(w, companions[i]))
            TSR_TRY(copy(p, companions[i], "stays"));
        else
            TSR_TRY(tsr_plan_add_note(p->plan, companions[i], "merge", "made anew with its weight", p->err));
    }
    return TSR_OK;
}

/* Warns if the adapter has a side file of the base in another size, such as a tokenizer with more tokens. */
static tsr_status warn_of_side_files(const planning *p)
{
    const tsr_checkpoint *const base = p->plan->sources[0], *const adapter = p->plan->sources[1];
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
    TSR_TRY(warn_of_side_files(p));
    for (size_t i = 0; i < p->weights->count; i++)
        TSR_TRY(plan_weight(p, &p->weights->items[i]));
    TSR_TRY(tsr_plan_pack(p->plan, "", o->max_shard_bytes, p->err));
    TSR_TRY(tsr_plan_side_files(p->plan, "", "*", NULL, p->err));
    TSR_TRY(tsr_plan_index(p->plan, "", false, p->err));
    return base->config == NULL
               ? TSR_OK
               : tsr_plan_text_file(p->plan, "", TSR_CONFIG_NAME, base->config, base->config_size, p->err);
}

static tsr_status make_plan(tsr_plan *plan, const tsr_weights *weights, const tsr_merge_options *o, tsr_err *err)
{
    tsr_lora lora;
    TSR_TRY(tsr_lora_read(&lora, plan->sources[1], plan->sources[0], weights, err));
    const planning p = {plan, weights, &lora, err};
    plan->command = tsr_arena_printf(&plan->arena, "merge --source-block %llux%llu --max-shard-size %llu",
                                     U64(o->source_block.rows), U64(o->source_block.cols), U64(o->max_shard_bytes));
    plan->report = tsr_merge_report;
    plan->next = "tessera verify manifest DST";
    tsr_status status = plan->command == NULL ? tsr_out_of_memory(err, "while planning") : plan_tensors(&p, o);
    if (status == TSR_OK)
        status = tsr_plan_finish(plan, err);
    tsr_lora_free(&lora);
    return status;
}

tsr_status tsr_merge_plan(tsr_plan *plan, const tsr_checkpoint *const *sources, const tsr_merge_options *options,
                          tsr_err *err)
{
    tsr_weights weights;
    *plan = tsr_plan_begin(sources, 2);
    TSR_TRY(tsr_weights_pair(&weights, sources[0], options->source_block, err));
    tsr_status status = tsr_weights_refuse_parts(&weights, sources[0], "merging", err);
    if (status == TSR_OK)
        status = make_plan(plan, &weights, options, err);
    tsr_weights_free(&weights);
    return tsr_plan_ended(plan, status);
}
