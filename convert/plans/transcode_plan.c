/* Turns the steps of a scheme into steps that move codes, or that decode and quantize again. */
#include "convert/plans/transcode_plan.h"

#include "convert/configs/deepseek_v4_config.h"
#include "convert/io/copied_codes.h"
#include "convert/ops/int_op.h"
#include "convert/ops/move/move_op.h"
#include "convert/ops/mx_op.h"
#include "convert/ops/recode_op.h"
#include "convert/plans/experts/gpt_oss_layout.h"
#include "convert/plans/split_plan.h"
#include "convert/plans/views/decoded_powers.h"
#include "formats/names/model.h"

#include <stdlib.h>
#include <string.h>

typedef struct planning {
    tsr_plan *plan;
    tsr_decoded_view *view;
    const tsr_transcode_options *o;
    tsr_move move, beside; /* `beside`: of layers other than experts, for SGLang's w4afp8 */
    bool ordered;          /* some moved weights have a group order */
    bool *moved;           /* [parts]: true if its codes are moved */
    tsr_err *err;
} planning;

/* ---- DeepSeek-V4's own names ---- */

/* Returns true for its n-gram tables, e4m3 with one scale per 32 columns, the only form that its loaders read. */
static bool is_table(const tsr_weight *w)
{
    return strstr(w->data->name, ".engram.embed.") != NULL;
}

/* Returns true for FP8 weights of a model whose experts are in FP4. */
static bool is_no_expert(const tsr_weight *w)
{
    return is_table(w) || (w->kind->family == TSR_FAMILY_FP8 && tsr_part_of(w->data->name) != TSR_PART_ROUTED_EXPERTS);
}

/* Returns true if the source has weights named "X.weight" and "X.scale", whatever its model_type. */
static bool has_names(const tsr_weights *weights)
{
    for (size_t i = 0; i < weights->count; i++) {
        if (weights->items[i].kind != NULL && strcmp(weights->items[i].kind->name, "mxfp4-v4") == 0)
            return true;
    }
    return false;
}

static tsr_stays *what_stays(const tsr_transcode_options *o, const tsr_checkpoint *source)
{
    if (o->experts != NULL)
        return tsr_w4afp8_has;
    if (!tsr_has_deepseek_v4_names(source))
        return NULL;
    if (o->blocks != NULL && o->blocks->dialect == TSR_DIALECT_DEEPSEEK)
        return is_table;
    return o->groups != NULL && o->groups->scheme == TSR_SCHEME_MXFP4 && o->groups->dialect == TSR_DIALECT_DEEPSEEK
               ? is_no_expert
               : NULL;
}

/* ---- the scheme ---- */

/* Returns the move of a weight. */
static const tsr_move *move_for(const planning *p, const tsr_weight *w)
{
    const bool beside = p->o->experts != NULL && tsr_part_of(w->values->name) != TSR_PART_ROUTED_EXPERTS;
    return beside ? &p->beside : &p->move;
}

/* The part must not begin in the middle of a block of the source. */
static const char *reason_to_move(const planning *p, const tsr_decoded_part *part)
{
    const tsr_weight *const w = part->view.weight;
    const bool whole = w->kind->family != TSR_FAMILY_FP8 || part->view.first % w->rows % w->block.rows == 0;
    return p->o->anew || !whole ? NULL : tsr_move_reason(w, move_for(p, w), part->powers);
}

static tsr_move move_of(const tsr_transcode_options *o)
{
    static const tsr_move_to kTo[] = {
        [TSR_NVFP4] = TSR_MOVE_NVFP4, [TSR_MXFP4] = TSR_MOVE_MXFP4, [TSR_MXFP8] = TSR_MOVE_MXFP8};
    tsr_move m = {.lossy = o->lossy};
    if (o->groups != NULL && tsr_scheme_row_of(o->groups->scheme)->form == TSR_FORM_FP8_TENSOR)
        return m;
    if (o->experts != NULL) {
        m.to = TSR_MOVE_NIBBLES;
        m.bits = o->experts->experts.bits;
        m.group = o->experts->experts.group;
        return m;
    }
    if (o->groups != NULL) {
        m.to = kTo[tsr_scheme_row_of(o->groups->scheme)->kind];
        m.global_divides = o->groups->dialect == TSR_DIALECT_COMPRESSED_TENSORS;
    } else if (o->blocks != NULL) {
        m.to = TSR_MOVE_FP8_BLOCK;
        m.block = (tsr_block){o->blocks->block.block_rows, o->blocks->block.block_cols};
        m.powers = o->blocks->block.scale_fmt == TSR_SCALE_UE8M0;
    } else if (tsr_scheme_row_of(o->rows->id)->form == TSR_FORM_PACKED) {
        m.to = TSR_MOVE_PACKED;
        m.bits = o->rows->scheme.bits;
        m.group = o->rows->scheme.group;
        m.zero_points = o->rows->scheme.asymmetric;
    }
    return m;
}

/* Uses the group size of the source's integers: that of the first weight with groups smaller than a row. Without one,
 * keeps the scheme's. */
static void take_group(planning *p)
{
    bool found = false;
    for (size_t i = 0; i < p->view->n_parts; i++) {
        const tsr_weight *const w = p->view->parts[i].view.weight;
        const uint64_t group = w == NULL ? UINT64_MAX : tsr_move_group(w, &p->move);
        if (group == UINT64_MAX || (found && p->move.group != 0))
            continue;
        p->move.group = group;
        found = true;
    }
}

/* Returns the scale dtype and group order that a weight keeps when it is moved to packed integers. */
static bool keep_packed(const void *context, const tsr_tensor *weight, tsr_ct_kept *kept)
{
    const planning *const p = context;
    const tsr_decoded_part *const part = tsr_decoded_part_of(p->view, weight);
    if (part == NULL || part->view.weight == NULL || reason_to_move(p, part) == NULL)
        return false;
    const tsr_weight *const w = part->view.weight;
    *kept = (tsr_ct_kept){.scale_dtype = (tsr_dtype)w->scale_dtype, .order = p->ordered ? w->group_index : NULL};
    return true;
}

static tsr_policy_options policy_of(const tsr_transcode_options *o)
{
    return (tsr_policy_options){.exclude = o->exclude, .n_exclude = o->n_exclude, .as_source = true};
}

static tsr_status plan_scheme(const planning *p)
{
    const tsr_transcode_options *const o = p->o;
    if (o->groups != NULL) {
        tsr_mx_options groups = *o->groups;
        groups.policy = policy_of(o);
        groups.native_block = p->view->weights.block;
        return tsr_mx_plan(p->plan, p->view->sources, &groups, p->err);
    }
    if (o->rows != NULL) {
        tsr_ct_options rows = *o->rows;
        rows.policy = policy_of(o);
        rows.scheme.group = p->move.to == TSR_MOVE_PACKED ? p->move.group : rows.scheme.group;
        rows.kept = keep_packed;
        rows.context = p;
        rows.ordered = p->ordered;
        return tsr_ct_plan(p->plan, p->view->sources, &rows, p->err);
    }
    if (o->experts != NULL) {
        tsr_w4afp8_options experts = *o->experts;
        experts.policy = policy_of(o);
        return tsr_w4afp8_plan(p->plan, p->view->sources, &experts, p->err);
    }
    tsr_quantize_options blocks = *o->blocks;
    blocks.policy = policy_of(o);
    if (blocks.dialect == TSR_DIALECT_DEEPSEEK && has_names(&p->view->weights))
        blocks.dialect = TSR_DIALECT_DEEPSEEK_V4;
    return tsr_quantize_plan(p->plan, p->view->sources, &blocks, p->err);
}

/* Plans again, with the tensors that the scheme keeps written as BF16. */
static tsr_status plan_and_keep(const planning *p)
{
    bool any = false;
    TSR_TRY(plan_scheme(p));
    for (size_t i = 0; i < p->plan->n_steps; i++) {
        const tsr_step *const step = &p->plan->steps[i];
        const tsr_decoded_part *const part = tsr_decoded_part_of(p->view, step->in[0]);
        if (part == NULL || part->view.weight == NULL || step->op != &tsr_copy_op)
            continue;
        if (step->in[0]->rank == 3)
            return tsr_fail(p->err, TSR_E_UNSUPPORTED,
                            "'%s' is a stack of experts, which the format cannot store; add --experts split",
                            step->in[0]->name);
        tsr_decoded_view_keep(p->view, step->in[0]);
        any = true;
    }
    if (!any)
        return TSR_OK;
    tsr_plan_free(p->plan);
    return plan_scheme(p);
}

/* ---- what is moved ---- */

/* Returns true if all weights with this global scale are moved. They are moved together or not at all. */
static bool all_move(const planning *p, const tsr_amax *a, bool *largest)
{
    bool all = true;
    *largest = true;
    for (uint32_t i = 0; i < a->n; i++) {
        const tsr_decoded_part *const part = tsr_decoded_part_of(p->view, a->of[i]);
        all = all && reason_to_move(p, part) != NULL;
        *largest = *largest && tsr_move_needs_largest(part->view.weight, &p->move);
    }
    for (uint32_t i = 0; i < a->n && all; i++) {
        const tsr_decoded_part *const part = tsr_decoded_part_of(p->view, a->of[i]);
        all = tsr_move_needs_largest(part->view.weight, &p->move) == *largest;
    }
    return all;
}

static tsr_status decode_amax(const planning *p, const tsr_amax *a, bool powers, tsr_amax *instead)
{
    tsr_arena *const arena = &p->plan->arena;
    const tsr_decoded **const decoded = tsr_arena_alloc(arena, (a->n + 1) * sizeof *decoded);
    const tsr_tensor **const of = tsr_arena_alloc(arena, (a->n + 1) * sizeof *of);
    if (decoded == NULL || of == NULL)
        return tsr_out_of_memory(p->err, "while planning");
    for (uint32_t i = 0; i < a->n; i++) {
        const tsr_row_view *const view = &tsr_decoded_part_of(p->view, a->of[i])->view;
        const uint64_t grid[] = {view->rows, view->weight->grid_cols};
        of[i] = powers ? tsr_plan_new_tensor(p->plan, view->weight->scale->name, TSR_F32, 2, grid) : a->of[i];
        decoded[i] = powers ? tsr_decode_powers(p->plan, view) : tsr_decode_rows(p->plan, view);
        if (of[i] == NULL || decoded[i] == NULL)
            return tsr_out_of_memory(p->err, "while planning");
    }
    *instead = (tsr_amax){.of = of, .n = a->n, .decoded = decoded};
    return TSR_OK;
}

static tsr_status decide_amaxes(const planning *p)
{
    tsr_amax *const instead = calloc(p->plan->n_amaxes + 1, sizeof *instead);
    tsr_status status = instead == NULL ? tsr_out_of_memory(p->err, "while planning") : TSR_OK;
    for (size_t i = 0; status == TSR_OK && i < p->plan->n_amaxes; i++) {
        const tsr_amax *const a = p->plan->amaxes[i];
        bool largest;
        const bool moved = all_move(p, a, &largest);
        for (uint32_t k = 0; k < a->n; k++)
            p->moved[a->of[k]->offset] = moved;
        if (!moved || largest)
            status = decode_amax(p, a, moved, &instead[i]);
    }
    if (status == TSR_OK)
        status = tsr_plan_replace_amaxes(p->plan, instead, p->err);
    free(instead);
    return status;
}

/* ---- steps ---- */

static tsr_status refuse_nothing(const planning *p)
{
    size_t i = 0;
    while (i + 1 < p->plan->n_notes && tsr_decoded_part_of(p->view, p->plan->notes[i].source) == NULL)
        i++;
    return tsr_fail(p->err, TSR_E_NOTHING, "%s: no weight can be converted, so nothing was written; '%s' is kept: %s",
                    p->view->source->path, p->plan->notes[i].source->name, p->plan->notes[i].reason);
}

/* Converts integers to other integers only if that was requested explicitly. */
static tsr_status refuse_loss(const planning *p, const tsr_weight *w)
{
    const char *const obstacle = p->o->lossy || p->o->anew ? NULL : tsr_move_obstacle(w, move_for(p, w));
    if (obstacle == NULL)
        return TSR_OK;
    return tsr_fail(p->err, TSR_E_USAGE,
                    "%s: '%s' is %s in groups of %llu, and its codes cannot be kept: %s. --lossy recomputes them and "
                    "reports the error",
                    p->view->source->files[w->data->file].path, w->data->name, w->kind->title, U64(w->block.cols),
                    obstacle);
}

static tsr_status give_source(const planning *p, tsr_step *step, const tsr_decoded_part *part)
{
    if (part->view.weight == NULL)
        return tsr_split_set_input(p->plan, step, part, p->err);
    const bool moved = p->moved[step->in[0]->offset] && step->op != &tsr_copy_op;
    tsr_move move = *move_for(p, part->view.weight);
    if (moved && move.to == TSR_MOVE_NIBBLES)
        move.input = tsr_int_step_input(step);
    if (move.to == TSR_MOVE_NVFP4 && step->n_out > 3) {
        const tsr_weight *const w = part->view.weight;
        move.input = tsr_mx_step_input(step);
        if (move.input < 0 && !(moved && tsr_move_has_input(w)))
            return tsr_fail(p->err, TSR_E_USAGE,
                            "'%s' has no input scale to keep; give the ranges with --activations FILE "
                            "(tessera calibrate makes it), or use --to nvfp4-weight-only, which needs none",
                            w->data->name);
    }
    if (!moved && step->op != &tsr_copy_op)
        TSR_TRY(refuse_loss(p, part->view.weight));
    if (moved)
        return tsr_step_move(p->plan, step, &part->view, &move, part->powers, p->err);
    const tsr_decoded *const decoded = tsr_decode_rows(p->plan, &part->view);
    if (decoded == NULL)
        return tsr_out_of_memory(p->err, "while planning");
    return step->op == &tsr_copy_op ? tsr_step_keep(p->plan, step, decoded, p->err)
                                    : tsr_step_decode(p->plan, step, decoded, p->err);
}

static tsr_status give_sources(const planning *p)
{
    bool reported = false, any = false, anew = false;
    for (size_t i = 0; i < p->view->n_parts; i++)
        p->moved[i] = p->view->parts[i].view.weight != NULL && reason_to_move(p, &p->view->parts[i]) != NULL;
    for (size_t i = 0; i < p->plan->n_steps; i++) {
        tsr_step *const step = &p->plan->steps[i];
        if (step->n_in > 1)
            step->n_in = 1; /* the other inputs are members of the same layer, for the amax */
    }
    TSR_TRY(decide_amaxes(p));
    for (size_t i = 0; i < p->plan->n_steps; i++) {
        tsr_step *const step = &p->plan->steps[i];
        const tsr_decoded_part *const part = tsr_decoded_part_of(p->view, step->in[0]);
        const bool codes = part != NULL && step->op != &tsr_copy_op;
        any = any || codes;
        anew = anew || (codes && !p->moved[step->in[0]->offset]);
        if (part != NULL)
            TSR_TRY(give_source(p, step, part));
        if (step->amax != NULL)
            TSR_TRY(tsr_plan_add_amax_inputs(p->plan, step, p->err));
        reported = reported || step->op->stats_of != TSR_STATS_NONE;
    }
    if (!reported)
        p->plan->report = NULL;
    if (any && !anew && p->o->groups != NULL && p->o->groups->rule != NULL)
        return tsr_fail(p->err, TSR_E_USAGE,
                        "%s: --mx-scale has no effect: all codes keep their scales; --scales mse recomputes them",
                        p->view->source->path);
    return any ? TSR_OK : refuse_nothing(p);
}

/* Checks the scales of codes that stay unchanged. */
static tsr_status check_what_stays(const planning *p)
{
    static const char *const kScales[] = {".scale", "_scale_inv"};
    static const char *const kCodes[] = {".weight", ""};
    tsr_stays *const stays = what_stays(p->o, p->view->source);
    for (size_t i = 0; stays != NULL && i < p->plan->n_steps; i++) {
        tsr_step *const step = &p->plan->steps[i];
        const char *const name = step->in[0]->name;
        const size_t k = p->o->experts != NULL;
        if (step->op != &tsr_copy_op || !tsr_ends_with(name, kScales[k]))
            continue;
        const char *const of =
            tsr_arena_printf(&p->plan->arena, "%.*s%s", (int)(strlen(name) - strlen(kScales[k])), name, kCodes[k]);
        if (of == NULL)
            return tsr_out_of_memory(p->err, "while planning");
        const tsr_weight *const w = tsr_weights_find(&p->view->weights, p->view->source, of);
        if (w != NULL && w->scale != NULL && stays(w))
            tsr_step_copies_scales(step, (tsr_dtype)w->scale_dtype);
    }
    return TSR_OK;
}

/* ---- notes ---- */

static tsr_status note_weight(const planning *p, const tsr_plan_note *n, const tsr_decoded_part *part)
{
    const tsr_weight *const w = part->view.weight;
    const tsr_tensor *companions[TSR_MAX_COMPANIONS];
    const size_t count = tsr_weight_companions(w, companions, NULL);
    const bool becomes = strcmp(n->action, "quantize") == 0, moved = becomes && p->moved[n->source->offset];
    const char *const reason = moved
                                   ? reason_to_move(p, part)
                                   : tsr_arena_printf(&p->plan->arena, "%s%s%s", w->kind->title,
                                                      becomes ? "" : " to BF16: ", becomes ? " made anew" : n->reason);
    if (reason == NULL)
        return tsr_out_of_memory(p->err, "while planning");
    TSR_TRY(tsr_plan_add_note(p->plan, w->data,
                              moved     ? "move"
                              : becomes ? "requantize"
                                        : "dequantize",
                              reason, p->err));
    for (size_t i = 0; i < count; i++)
        TSR_TRY(tsr_plan_add_note(p->plan, companions[i], "consume", "belongs to a weight that is converted", p->err));
    return TSR_OK;
}

/* Makes one note per source tensor from the notes of the scheme's plan, which has one per tensor of the view. */
static tsr_status rewrite_notes(const planning *p)
{
    const size_t n = p->plan->n_notes;
    tsr_plan_note *const notes = p->plan->notes;
    const tsr_decoded_part *last = NULL;
    tsr_status status = TSR_OK;
    p->plan->notes = NULL;
    p->plan->n_notes = p->plan->notes_capacity = 0;
    for (size_t i = 0; i < n && status == TSR_OK; i++) {
        const tsr_decoded_part *const part = tsr_decoded_part_of(p->view, notes[i].source);
        const bool again = part != NULL && last != NULL && tsr_split_source(part) == tsr_split_source(last);
        if (part == NULL)
            status = tsr_plan_add_note(p->plan, notes[i].source, notes[i].action, notes[i].reason, p->err);
        else if (!again && part->cache)
            status = tsr_plan_add_note(p->plan, part->gather.from, "rename", "a scale of the KV cache", p->err);
        else if (!again && part->view.weight == NULL)
            status =
                tsr_plan_add_note(p->plan, part->gather.from, "split",
                                  part->gather.cols == 0 ? "the bias of a stack of experts" : notes[i].reason, p->err);
        else if (!again)
            status = note_weight(p, &notes[i], part);
        last = part == NULL ? last : part;
    }
    free(notes);
    return status;
}

/* ---- configuration ---- */

/* Returns the dialect of the scheme, which names KV-cache scales. */
static tsr_dialect cache_of(const tsr_transcode_options *o)
{
    return o->experts != NULL  ? TSR_DIALECT_SGLANG
           : o->groups != NULL ? o->groups->dialect
           : o->rows != NULL   ? TSR_DIALECT_COMPRESSED_TENSORS
                               : o->blocks->dialect;
}

/* ---- the plan ---- */

static tsr_status spell_command(const planning *p)
{
    static const char kQuantize[] = "quantize --scheme ";
    static const char *const kWords[] = {
        [TSR_SPLIT_NONE] = "stack", [TSR_SPLIT_CODES] = "split", [TSR_SPLIT_ALL] = "split all"};
    const char *const rest = p->plan->command + (sizeof kQuantize - 1);
    p->plan->command = tsr_arena_printf(&p->plan->arena, "convert --to %s --source-block %llux%llu%s --experts %s",
                                        rest, U64(p->o->source_block.rows), U64(p->o->source_block.cols),
                                        p->o->lossy ? " --lossy" : "", kWords[p->o->split]);
    if (p->view->has_stacks) /* names of these tensors differ in the source */
        p->plan->next = "tessera inspect DST --can-load all";
    else if (p->o->source_block.rows != 0) /* `verify` needs the block size too */
        p->plan->next = tsr_arena_printf(&p->plan->arena, "tessera verify DST --against SRC --source-block %llux%llu",
                                         U64(p->o->source_block.rows), U64(p->o->source_block.cols));
    return p->plan->command == NULL ? tsr_out_of_memory(p->err, "while planning") : TSR_OK;
}

static tsr_status make_plan(planning *p)
{
    p->move = move_of(p->o);
    p->move.middle = p->view->weights.symmetric;
    p->beside = (tsr_move){.to = TSR_MOVE_FP8_BLOCK, .block = {128, 128}, .lossy = p->o->lossy};
    const bool mxfp8 = p->move.to == TSR_MOVE_MXFP8;
    if (mxfp8 || p->move.powers)
        TSR_TRY(tsr_decoded_view_find_powers(p->view, mxfp8 && !p->o->lossy && !p->o->anew, p->err));
    if (p->o->group_as_source)
        take_group(p);
    for (size_t i = 0; i < p->view->n_parts; i++) {
        const tsr_decoded_part *const part = &p->view->parts[i];
        p->ordered = p->ordered || (p->move.to == TSR_MOVE_PACKED && part->view.weight != NULL &&
                                    part->view.weight->reordered && reason_to_move(p, part) != NULL);
    }
    p->moved = calloc(p->view->n_parts + 1, sizeof *p->moved);
    if (p->moved == NULL)
        return tsr_out_of_memory(p->err, "while planning");
    TSR_TRY(plan_and_keep(p));
    TSR_TRY(give_sources(p));
    TSR_TRY(tsr_plan_warn_of(p->plan, &p->view->weights, p->err));
    TSR_TRY(check_what_stays(p));
    TSR_TRY(rewrite_notes(p));
    TSR_TRY(tsr_plan_kv_cache(p->plan, &p->view->weights, cache_of(p->o), p->err));
    TSR_TRY(spell_command(p));
    if (p->view->has_stacks)
        TSR_TRY(tsr_gpt_oss_warn(p->plan, p->err));
    if (p->ordered)
        TSR_TRY(tsr_plan_warn(
            p->plan, p->err,
            "some weights have groups in activation order (weight_g_idx, actorder \"group\"), which vLLM and "
            "compressed-tensors 0.19 refuse; --scales mse recomputes the codes in column order"));
    p->plan->by_policy = false;
    return tsr_plan_finish(p->plan, p->err);
}

tsr_status tsr_transcode_plan(tsr_plan *plan, tsr_decoded_view *view, const tsr_checkpoint *source,
                              const tsr_transcode_options *options, tsr_err *err)
{
    planning p = {.plan = plan, .view = view, .o = options, .err = err};
    *plan = (tsr_plan){0};
    const tsr_decoding_options how = {.block = options->source_block,
                                      .split = options->split,
                                      .stays = what_stays(options, source),
                                      .cache = cache_of(options)};
    TSR_TRY(tsr_decoded_view_open(view, source, options->paired, &how, err));
    const tsr_status status = make_plan(&p);
    plan->view_bytes = tsr_decoded_view_memory(view);
    free(p.moved);
    if (status != TSR_OK) {
        tsr_plan_free(plan);
        tsr_decoded_view_free(view);
    }
    return status;
}
