/* Plans int8, int4 and FP8 per row in compressed-tensors' dialect: codes, configuration, and azp_adj. */
#include "convert/plans/ct_plan.h"

#include "convert/configs/ct_config.h"
#include "convert/configs/fp8_config.h"
#include "convert/ops/fp8_rows_op.h"
#include "convert/ops/int_op.h"
#include "convert/plans/policy_plan.h"
#include "convert/plans/quantize_plan.h"
#include "formats/names/fused.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* |activation - azp| <= 255 and |code| <= 128: their products, summed over K, stay below 2^31 for K up to here. */
enum { AZP_MAX_COLS = INT32_MAX / (255 * 128) };

/* ---- selecting what is quantized ---- */

static tsr_scheme_form form_of(const tsr_ct_options *o)
{
    return tsr_scheme_row_of(o->id)->form;
}

static bool has_a_place(const tsr_tensor *t)
{
    return t->rank == 2 && t->shape[0] > 0 && t->shape[1] > 0 && t->name[tsr_module_length(t->name)] != '\0';
}

static bool becomes_codes(const tsr_tensor *t, const tsr_decision *decision)
{
    return decision->treatment == TSR_QUANTIZE && has_a_place(t);
}

tsr_status tsr_ct_check_shape(const tsr_checkpoint *c, const tsr_tensor *t, tsr_scheme id, const tsr_int_scheme *scheme,
                              tsr_err *err)
{
    const tsr_scheme_form form = tsr_scheme_row_of(id)->form;
    const uint64_t cols = t->shape[1], group = scheme->group;
    const uint64_t word = form == TSR_FORM_PACKED ? 32 / scheme->bits : 1;
    const char *const path = c->files[t->file].path;
    if (form == TSR_FORM_W8A8 && cols > AZP_MAX_COLS)
        return tsr_fail(err, TSR_E_SHAPE,
                        "%s: '%s' has %llu columns: a product less azp times azp_adj may overflow int32 above %d; "
                        "--exclude keeps it unchanged",
                        path, t->name, U64(cols), AZP_MAX_COLS);
    if (cols % word != 0)
        return tsr_fail(err, TSR_E_SHAPE,
                        "%s: '%s' has %llu columns, not a multiple of the %llu codes in a word; %llu or %llu would "
                        "fit; --exclude keeps it unchanged",
                        path, t->name, U64(cols), U64(word), U64(cols / word * word), U64((cols / word + 1) * word));
    if (group == 0 || cols % group == 0)
        return TSR_OK;
    uint64_t fits = group;
    while (cols % fits != 0)
        fits /= 2;
    return tsr_fail(
        err, TSR_E_SHAPE,
        "%s: groups of %llu do not divide the %llu columns of '%s': groups of %llu do; --exclude keeps it unchanged",
        path, U64(group), U64(cols), t->name, U64(fits));
}

bool tsr_ct_takes(const tsr_checkpoint *source, const tsr_tensor *t, tsr_scheme id)
{
    return has_a_place(t) && tsr_ct_check_shape(source, t, id, &tsr_scheme_row_of(id)->ints, NULL) == TSR_OK;
}

/* Finds the static quantization of a layer's activations; it is the same for all members of a fused layer. */
static tsr_status find_input(const tsr_checkpoint *c, const tsr_tensor *t, const tsr_ct_options *o,
                             const tsr_decision *decisions, tsr_static_input *input, tsr_err *err)
{
    const tsr_tensor *members[TSR_FUSED_MEMBERS];
    const tsr_calibrated *known[TSR_FUSED_MEMBERS];
    const size_t all = tsr_fused_members(c, t, members);
    const char *const path = o->calibration->path;
    size_t n = 0;
    for (size_t i = 0; i < all; i++) {
        if (!becomes_codes(members[i], &decisions[members[i] - c->tensors.items]))
            continue;
        known[n] = tsr_calibration_find(o->calibration, members[i]->name);
        if (known[n] == NULL)
            return tsr_fail(err, TSR_E_MISMATCH,
                            "%s: no ranges for '%s', which is quantized; calibrate it, or use --exclude '%s'", path,
                            members[i]->name, members[i]->name);
        if (known[n]->scaled && o->asymmetric_activations && !known[n]->has_zero_point)
            return tsr_fail(err, TSR_E_MISMATCH,
                            "%s: '%s' has no input_zero_point, which --activation-zero-points requires", path,
                            known[n]->module);
        if (known[n]->zero_point != 0 && !o->asymmetric_activations)
            return tsr_fail(err, TSR_E_MISMATCH,
                            "%s: '%s' has an input_zero_point; add --activation-zero-points to keep it", path,
                            known[n]->module);
        n++;
    }
    input->value = tsr_int_input_of(known, n, o->asymmetric_activations);
    input->asymmetric = o->asymmetric_activations;
    return isfinite(input->value.scale)
               ? TSR_OK
               : tsr_fail(err, TSR_E_FORMAT, "%s: '%s': the range of its inputs is too wide for a scale in FP32", path,
                          known[0]->module);
}

/* `codes`: NULL, or the number of the step that makes the codes, for the row sums. */
static tsr_status plan_int8(tsr_plan *plan, const tsr_tensor *t, const tsr_ct_options *o, const tsr_decision *decisions,
                            const size_t *codes, tsr_err *err)
{
    tsr_static_input input;
    if (o->calibration != NULL)
        TSR_TRY(find_input(plan->sources[0], t, o, decisions, &input, err));
    const tsr_static_input *const known = o->calibration == NULL ? NULL : &input;
    return codes != NULL ? tsr_plan_azp(plan, t, &o->scheme, known, *codes, err)
                         : tsr_plan_int8(plan, t, &o->scheme, known, err);
}

static tsr_status plan_fp8(tsr_plan *plan, const tsr_tensor *t, const tsr_int_scheme *s, tsr_err *err)
{
    const tsr_scale_fmt fmt = s->scale_dtype == TSR_BF16 ? TSR_SCALE_BF16 : TSR_SCALE_F32;
    return tsr_plan_fp8_channel(plan, t, fmt, s->search, err);
}

static tsr_status plan_packed(tsr_plan *plan, const tsr_tensor *t, const tsr_ct_options *o, tsr_err *err)
{
    tsr_int_scheme scheme = o->scheme;
    tsr_ct_kept kept;
    if (o->kept == NULL || !o->kept(o->context, t, &kept))
        return tsr_plan_packed(plan, t, &scheme, err);
    scheme.scale_dtype = kept.scale_dtype;
    TSR_TRY(tsr_scheme_check_scales(o->id, scheme.search, scheme.scale_dtype, err));
    TSR_TRY(tsr_plan_packed(plan, t, &scheme, err));
    if (kept.order == NULL)
        return TSR_OK;
    const char *const name =
        tsr_arena_printf(&plan->arena, "%.*s.weight_g_idx", (int)tsr_module_length(t->name), t->name);
    return name == NULL ? tsr_out_of_memory(err, "while planning") : tsr_plan_copy(plan, kept.order, name, err);
}

static tsr_status plan_tensors(tsr_plan *plan, const tsr_ct_options *o, const tsr_decision *decisions, tsr_err *err)
{
    const tsr_checkpoint *const c = plan->sources[0];
    for (size_t i = 0; i < c->tensors.count; i++) {
        const tsr_tensor *const t = &c->tensors.items[i];
        const tsr_decision *const d = &decisions[i];
        if (becomes_codes(t, d)) {
            TSR_TRY(tsr_ct_check_shape(c, t, o->id, &o->scheme, err));
            TSR_TRY(form_of(o) == TSR_FORM_FP8_ROWS ? plan_fp8(plan, t, &o->scheme, err)
                    : form_of(o) == TSR_FORM_PACKED ? plan_packed(plan, t, o, err)
                                                    : plan_int8(plan, t, o, decisions, NULL, err));
            TSR_TRY(tsr_plan_add_note(plan, t, "quantize", d->reason, err));
        } else {
            const bool stacked = d->treatment == TSR_QUANTIZE;
            TSR_TRY(tsr_plan_copy(plan, t, t->name, err));
            TSR_TRY(tsr_plan_add_note(plan, t, "copy", stacked ? tsr_reason_without_place(t) : d->reason, err));
        }
    }
    return TSR_OK;
}

/* azp_adj goes to a separate file that loaders must not take for weights. So the index, which omits this file, is
 * always written. */
static tsr_status plan_azp(tsr_plan *plan, const tsr_ct_options *o, const tsr_decision *decisions, tsr_err *err)
{
    const tsr_checkpoint *const c = plan->sources[0];
    bool any = false;
    for (size_t i = 0, step = 0; i < c->tensors.count && form_of(o) == TSR_FORM_W8A8; i++) {
        if (!becomes_codes(&c->tensors.items[i], &decisions[i]))
            continue;
        while (plan->steps[step].in[0] != &c->tensors.items[i])
            step++;
        any = true;
        TSR_TRY(plan_int8(plan, &c->tensors.items[i], o, decisions, &step, err));
    }
    return any ? tsr_plan_file(plan, TSR_AZP_NAME, err) : TSR_OK;
}

/* ---- configuration ---- */

static const tsr_tensor *kept(const void *context, size_t i)
{
    const tsr_decided *const d = context;
    const tsr_tensor *const t = &d->c->tensors.items[i];
    return becomes_codes(t, &d->decisions[i]) || d->decisions[i].treatment == TSR_KEEP_EMBEDDING ? NULL : t;
}

static tsr_status plan_config(tsr_plan *plan, const tsr_ct_options *o, const tsr_decision *decisions, tsr_err *err)
{
    const tsr_checkpoint *const c = plan->sources[0];
    if (c->config == NULL)
        return TSR_OK;
    const tsr_tensor **const unquantized = calloc(c->tensors.count + 1, sizeof *unquantized);
    if (unquantized == NULL)
        return tsr_out_of_memory(err, "while planning");
    const size_t listed = tsr_list_unquantized(kept, &(tsr_decided){c, decisions}, c->tensors.count, unquantized);
    const size_t n = tsr_list_head(c, unquantized, listed);
    tsr_text value = {0};
    const tsr_ct_config form = {
        .format = tsr_scheme_row_of(o->id)->dialects[TSR_DIALECT_COMPRESSED_TENSORS].name,
        .type = form_of(o) == TSR_FORM_FP8_ROWS ? "float" : "int",
        .bits = o->scheme.bits,
        .group = o->scheme.group,
        .asymmetric = o->scheme.asymmetric,
        .ordered = o->ordered,
        .inputs = form_of(o) == TSR_FORM_PACKED && !tsr_scheme_row_of(o->id)->inputs ? TSR_CT_INPUTS_PLAIN
                  : o->calibration == NULL                                           ? TSR_CT_INPUTS_TOKEN
                                                                                     : TSR_CT_INPUTS_TENSOR,
        .float_inputs = form_of(o) == TSR_FORM_PACKED,
        .asymmetric_inputs = o->asymmetric_activations,
    };
    tsr_ct_config_write(&value, &form, unquantized, n);
    const tsr_status status = tsr_plan_take_quantization(plan, &value, err);
    free(unquantized);
    return status;
}

/* ---- the plan ---- */

static tsr_status spell_command(tsr_plan *plan, const tsr_ct_options *o, tsr_err *err)
{
    const tsr_int_scheme *const s = &o->scheme;
    tsr_text t = {0};
    tsr_text_printf(
        &t,
        "quantize --scheme %s --group-size %llu%s%s --divisor %g --rounding %s --scale-dtype %s --scales %s "
        "--max-shard-size %llu",
        tsr_scheme_row_of(o->id)->name, U64(s->group), s->asymmetric ? " --zero-points" : "",
        o->asymmetric_activations ? " --activation-zero-points" : "", (double)s->divisor, s->away ? "away" : "even",
        tsr_dtype_name(s->scale_dtype), tsr_scale_search_name(s->search), U64(o->max_shard_bytes));
    if (o->calibration != NULL)
        tsr_text_printf(&t, " --activations %016llx", U64(o->calibration->hash));
    tsr_spell_kv_scales(&t, &o->kv);
    tsr_spell_policy(&t, &o->policy);
    return tsr_plan_take_command(plan, &t, err);
}

static tsr_status make_plan(tsr_plan *plan, const void *options, tsr_decision *decisions, tsr_err *err)
{
    const tsr_ct_options *const o = options;
    const tsr_checkpoint *const c = plan->sources[0];
    tsr_policy_options policy = o->policy;
    tsr_scheme_policy(o->id, &policy);
    plan->importance = o->importance;
    if (!o->policy.as_source)
        TSR_TRY(tsr_quantize_check_source(c, err));
    TSR_TRY(spell_command(plan, o, err));
    TSR_TRY(tsr_plan_decide(plan, &policy, decisions, err));
    TSR_TRY(plan_tensors(plan, o, decisions, err));
    TSR_TRY(tsr_plan_warn_of_share(plan, err));
    TSR_TRY(tsr_plan_kv_scales(plan, &o->kv, TSR_DIALECT_COMPRESSED_TENSORS, err));
    TSR_TRY(tsr_plan_pack(plan, "", o->max_shard_bytes, err));
    TSR_TRY(tsr_plan_index(plan, "", form_of(o) == TSR_FORM_W8A8, err));
    TSR_TRY(plan_azp(plan, o, decisions, err));
    TSR_TRY(tsr_plan_files_beside(plan, (const char *const[]){TSR_AZP_NAME, NULL}, err));
    TSR_TRY(plan_config(plan, o, decisions, err));
    TSR_TRY(tsr_plan_state_kv_scales(plan, &o->kv, TSR_DIALECT_COMPRESSED_TENSORS, err));
    return tsr_plan_finish(plan, err);
}

tsr_status tsr_ct_plan(tsr_plan *plan, const tsr_checkpoint *const *source, const tsr_ct_options *options, tsr_err *err)
{
    return tsr_plan_by_policy(plan, source, make_plan, options, err);
}
