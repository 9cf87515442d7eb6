/* Plans interleaved layouts: which weights, their names, and the manifest that describes them. */
#include "convert/plans/layouts/layout_plan.h"

#include "convert/configs/fp8_config.h"
#include "convert/configs/trtllm_config.h"
#include "convert/ops/layout_op.h"
#include "convert/ops/slice_op.h"
#include "convert/plans/policy_plan.h"
#include "convert/plans/quantize_report.h"
#include "formats/json/json_write.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct laying {
    tsr_plan *plan;
    const tsr_checkpoint *source;
    const tsr_layout_options *options;
    const char *model_type;
    tsr_weights weights;
    tsr_decision *decisions; /* [tensors of the source] */
    tsr_ft_format format;
    tsr_int_scheme scheme;
    tsr_dtype scale_dtype;
    bool from_packed;
    tsr_text entries, renamed; /* members of the manifest's arrays */
    const char **unquantized;  /* [weights]: module names of TensorRT-LLM */
    size_t n_unquantized;
    tsr_err *err;
} laying;

static const char *path_of(const laying *l, const tsr_tensor *t)
{
    return l->source->files[t->file].path;
}

/* ---- selecting what is laid out ---- */

/* Checks that all packed weights have the same bits, groups and group order, because the manifest states only one of
 * each. */
static tsr_status take_packed(laying *l)
{
    const tsr_weight *first = NULL;
    if (l->options->asked != NULL)
        return tsr_fail(l->err, TSR_E_USAGE, "%s: its weights are already quantized, so %s has no effect",
                        l->source->path, l->options->asked);
    for (size_t i = 0; i < l->weights.count; i++) {
        const tsr_weight *const w = &l->weights.items[i];
        if (w->scale == NULL)
            continue;
        const char *const name = w->data->name;
        if (w->coding != TSR_CODED_PACKED)
            return tsr_fail(l->err, TSR_E_UNSUPPORTED,
                            "%s: '%s' is %s; layouts can be made from packed integers (tessera quantize --scheme "
                            "int8-weight-only or int4-weight-only) or from floating point",
                            path_of(l, w->data), name, w->coding == TSR_CODED_INT8 ? "int8 for W8A8" : w->kind->title);
        if (w->zero_point != NULL)
            return tsr_fail(l->err, TSR_E_UNSUPPORTED,
                            "%s: '%s' has zero points, which these layouts cannot store; quantize symmetrically",
                            path_of(l, w->data), name);
        if (w->reordered)
            return tsr_fail(l->err, TSR_E_UNSUPPORTED,
                            "%s: the columns of '%s' have groups in activation order; these layouts cannot store it; "
                            "start from the original or run 'tessera convert --to bf16'",
                            path_of(l, w->group_index), name);
        const uint64_t group = w->coarse ? 0 : w->block.cols;
        if (first == NULL) {
            first = w;
            l->scheme.bits = w->bits;
            l->scheme.group = group;
            l->scale_dtype = (tsr_dtype)w->scale_dtype;
        } else if (w->bits != l->scheme.bits || group != l->scheme.group || w->scale_dtype != l->scale_dtype) {
            return tsr_fail(l->err, TSR_E_UNSUPPORTED,
                            "%s: '%s' is int%u in groups of %llu with %s scales, but '%s' is not; all weights of a "
                            "layout must agree",
                            path_of(l, w->data), name, w->bits, U64(group), tsr_dtype_name((tsr_dtype)w->scale_dtype),
                            first->data->name);
        }
    }
    l->from_packed = true;
    return TSR_OK;
}

static bool is_laid(const laying *l, const tsr_weight *w)
{
    if (l->from_packed)
        return w->scale != NULL;
    const tsr_tensor *const t = w->data;
    return l->decisions[t - l->source->tensors.items].treatment == TSR_QUANTIZE && t->rank == 2 && t->shape[0] > 0 &&
           t->shape[1] > 0 && t->name[tsr_module_length(t->name)] != '\0';
}

static tsr_status describe(const laying *l, const tsr_weight *const *parts, size_t n, const char *name, tsr_layout *to)
{
    *to = (tsr_layout){.format = l->format,
                       .scheme = l->scheme,
                       .scale_dtype = l->scale_dtype,
                       .n_parts = n,
                       .k = parts[0]->values->shape[1]};
    for (size_t i = 0; i < n; i++) {
        to->parts[i] = *parts[i];
        to->n += parts[i]->values->shape[0];
        if (parts[i]->values->shape[1] != to->k || parts[i]->data->dtype != parts[0]->data->dtype)
            return tsr_fail(l->err, TSR_E_SHAPE, "%s: '%s' and '%s' must be joined, but differ in dtype or input",
                            path_of(l, parts[i]->data), parts[0]->values->name, parts[i]->values->name);
    }
    return tsr_layout_check(to, name, l->err);
}

/* Records the treatment of a weight and its companions. */
static tsr_status note(const laying *l, const tsr_weight *w, const char *action, const char *reason)
{
    const tsr_tensor *companions[TSR_MAX_COMPANIONS];
    const size_t n = w->scale == NULL ? 0 : tsr_weight_companions(w, companions, NULL);
    TSR_TRY(tsr_plan_add_note(l->plan, w->data, action, reason, l->err));
    for (size_t i = 0; i < n; i++)
        TSR_TRY(tsr_plan_add_note(l->plan, companions[i], action, "with its weight", l->err));
    return TSR_OK;
}

/* ---- the manifest ---- */

static void list_parts(laying *l, const tsr_layout *layout, const char *file, const char *tensor, const char *scale)
{
    uint64_t first = 0;
    for (size_t i = 0; i < layout->n_parts; i++) {
        const tsr_tensor *const part = layout->parts[i].values;
        tsr_json_begin_object(&l->entries, true);
        tsr_json_member_string(&l->entries, "name", part->name);
        tsr_json_member_string(&l->entries, "file", file);
        if (tensor != NULL) {
            tsr_json_member_string(&l->entries, "tensor", tensor);
            tsr_json_member_string(&l->entries, "scale", scale);
        }
        tsr_json_member_u64(&l->entries, "k", layout->k);
        tsr_json_member_u64(&l->entries, "n", layout->n);
        tsr_json_member_u64(&l->entries, "first", first);
        tsr_json_member_u64(&l->entries, "columns", part->shape[0]);
        tsr_json_end_object(&l->entries);
        first += part->shape[0];
    }
}

static void list_renamed(laying *l, const tsr_tensor *t, const char *tensor, uint64_t first)
{
    tsr_json_begin_object(&l->renamed, true);
    tsr_json_member_string(&l->renamed, "name", t->name);
    tsr_json_member_string(&l->renamed, "tensor", tensor);
    tsr_json_member_u64(&l->renamed, "first", first);
    tsr_json_member_u64(&l->renamed, "bytes", t->bytes);
    tsr_json_member_array(&l->renamed, "shape", true);
    for (unsigned i = 0; i < t->rank; i++)
        tsr_json_u64(&l->renamed, t->shape[i]);
    tsr_json_end_array(&l->renamed);
    tsr_json_end_object(&l->renamed);
}

static tsr_status plan_manifest(laying *l)
{
    const tsr_layout_options *const o = l->options;
    tsr_text t = {0};
    tsr_json_begin_object(&t, false);
    tsr_json_member_string(&t, "schema", "tessera-layout/1");
    tsr_json_member_string(&t, "target", o->kind == TSR_LAYOUT_TRTLLM ? "trtllm" : "fastertransformer");
    tsr_json_member_string(&t, "producer", tsr_ft_producer_name(o->producer));
    tsr_json_member_u64(&t, "arch", (uint64_t)o->arch);
    tsr_json_member_string(&t, "layout", tsr_ft_layout_name(l->format.layout));
    tsr_json_member_u64(&t, "bits", l->scheme.bits);
    tsr_json_member_u64(&t, "group_size", l->scheme.group);
    tsr_json_member_number(&t, "divisor", l->from_packed ? NAN : (double)l->scheme.divisor);
    tsr_json_member_string(&t, "rounding", l->from_packed ? NULL : l->scheme.away ? "away" : "even");
    tsr_json_member_string(&t, "scale_dtype", tsr_dtype_name(l->scale_dtype));
    tsr_json_end_array(&l->entries);
    tsr_json_end_array(&l->renamed);
    tsr_status status = tsr_text_status(&l->entries, l->err);
    if (status == TSR_OK)
        status = tsr_text_status(&l->renamed, l->err);
    if (status == TSR_OK) {
        tsr_json_key(&t, "weights");
        tsr_json_raw(&t, l->entries.data, l->entries.size);
        tsr_json_key(&t, "tensors");
        tsr_json_raw(&t, l->renamed.data, l->renamed.size);
        tsr_json_end_document(&t);
    }
    return tsr_plan_take_text(l->plan, "", TSR_LAYOUT_NAME, &t, status, l->err);
}

/* ---- FasterTransformer: one blob per weight ---- */

static tsr_status plan_blob(laying *l, const tsr_weight *w)
{
    tsr_layout layout;
    const char *const file = tsr_arena_printf(&l->plan->arena, "%s.0.bin", w->values->name);
    if (strchr(w->values->name, '/') != NULL)
        return tsr_fail(l->err, TSR_E_UNSUPPORTED, "%s: '%s' cannot be used as a file name", path_of(l, w->data),
                        w->values->name);
    TSR_TRY(describe(l, &w, 1, w->values->name, &layout));
    const tsr_tensor shape = {.name = file, .dtype = TSR_U8};
    const tsr_layout_tensors to = {tsr_plan_tensor(l->plan, &shape), tsr_plan_tensor(l->plan, &shape), NULL};
    tsr_tensor *const reported = tsr_plan_tensor(l->plan, w->values);
    if (file == NULL || to.codes == NULL || to.scales == NULL || reported == NULL ||
        (reported->name = tsr_arena_dup(&l->plan->arena, w->values->name, strlen(w->values->name))) == NULL)
        return tsr_out_of_memory(l->err, "while planning");
    TSR_TRY(tsr_plan_layout(l->plan, &layout, &to, reported, l->err));
    list_parts(l, &layout, file, NULL, NULL);
    TSR_TRY(note(l, w, l->from_packed ? "lay out" : "quantize", file));
    return tsr_plan_raw_file(l->plan, file, false, l->err);
}

static tsr_status plan_fastertransformer(laying *l)
{
    const tsr_checkpoint *const c = l->source;
    for (size_t i = 0; i < l->weights.count; i++) {
        if (is_laid(l, &l->weights.items[i]))
            TSR_TRY(plan_blob(l, &l->weights.items[i]));
    }
    for (size_t i = 0; i < l->weights.count; i++) {
        const tsr_weight *const w = &l->weights.items[i];
        if (is_laid(l, w))
            continue;
        TSR_TRY(tsr_plan_copy(l->plan, w->data, w->data->name, l->err));
        TSR_TRY(
            note(l, w, "copy", l->from_packed ? tsr_plain_reason(w) : l->decisions[w->data - c->tensors.items].reason));
    }
    TSR_TRY(tsr_plan_model_files(l->plan, l->options->max_shard_bytes, (const char *const[]){TSR_LAYOUT_NAME, NULL},
                                 l->err));
    TSR_TRY(plan_manifest(l));
    if (c->config == NULL)
        return TSR_OK;
    tsr_text config = {0};
    const tsr_status status = tsr_fp8_config_remove(&config, c, l->err);
    return tsr_plan_take_text(l->plan, "", TSR_CONFIG_NAME, &config, status, l->err);
}

/* ---- TensorRT-LLM: one file with its own names ---- */

static const char kRank0[] = "rank0.safetensors", kHfConfig[] = "hf_config.json";

/* Makes a tensor called NAME without ".weight", plus `ending`. */
static tsr_tensor *beside(const laying *l, const char *name, const char *ending)
{
    const tsr_tensor t = {.name =
                              tsr_arena_printf(&l->plan->arena, "%.*s%s", (int)tsr_module_length(name), name, ending)};
    return t.name == NULL ? NULL : tsr_plan_tensor(l->plan, &t);
}

static tsr_status plan_laid(laying *l, const tsr_weight *const *parts, size_t n, const char *name)
{
    tsr_layout layout;
    TSR_TRY(describe(l, parts, n, name, &layout));
    const bool groups = l->scheme.group != 0;
    tsr_tensor codes = {.name = name, .rank = 2, .dtype = groups ? TSR_F16 : TSR_I8, .shape = {layout.k, layout.n}};
    codes.shape[1] = groups ? layout.n / 4 : layout.n * l->scheme.bits / 8;
    const tsr_tensor whole = {.name = name, .rank = 2, .shape = {layout.n, layout.k}};
    const tsr_layout_tensors to = {tsr_plan_tensor(l->plan, &codes),
                                   beside(l, name, groups ? ".weights_scaling_factor" : ".per_channel_scale"),
                                   groups ? beside(l, name, ".zero") : NULL};
    const tsr_tensor *const reported = tsr_plan_tensor(l->plan, &whole);
    if (to.codes == NULL || to.scales == NULL || (groups && to.zeros == NULL) || reported == NULL)
        return tsr_out_of_memory(l->err, "while planning");
    TSR_TRY(tsr_plan_layout(l->plan, &layout, &to, reported, l->err));
    list_parts(l, &layout, kRank0, name, to.scales->name);
    for (size_t i = 0; i < n; i++)
        TSR_TRY(note(l, parts[i], l->from_packed ? "lay out" : "quantize", name));
    return TSR_OK;
}

/* Warns about a parameter whose dtype differs from that of the scales. TensorRT-LLM has one dtype for activations, and
 * its plugins reject others. */
static tsr_status check_dtype(const laying *l, const tsr_tensor *t)
{
    const bool same = !tsr_dtype_is_weight_float((tsr_dtype)t->dtype) || t->dtype == l->scale_dtype;
    if (same || l->options->kind != TSR_LAYOUT_TRTLLM)
        return TSR_OK;
    return tsr_fail(l->err, TSR_E_UNSUPPORTED,
                    "%s: '%s' is %s, but with scales in %s the model's dtype is %s, which TensorRT-LLM requires for "
                    "every plain tensor; use a source in %s, or --scale-dtype %s if the scheme supports it",
                    path_of(l, t), t->name, tsr_dtype_name((tsr_dtype)t->dtype), tsr_dtype_name(l->scale_dtype),
                    tsr_dtype_name(l->scale_dtype), tsr_dtype_name(l->scale_dtype),
                    t->dtype == TSR_F16 ? "f16" : "bf16");
}

/* Plans a tensor that stays in floating point, alone or joined with others. */
static tsr_status plan_plain(laying *l, const tsr_weight *const *parts, size_t n, const char *name)
{
    const tsr_tensor *in[TSR_LAYOUT_PARTS];
    tsr_tensor *const out = tsr_plan_tensor(l->plan, parts[0]->data);
    uint64_t first = 0;
    if (out == NULL)
        return tsr_out_of_memory(l->err, "while planning");
    out->name = name;
    out->bytes = 0;
    out->shape[0] = 0;
    for (size_t i = 0; i < n; i++) {
        in[i] = parts[i]->data;
        TSR_TRY(check_dtype(l, in[i]));
        if (in[i]->rank == 0 || in[i]->rank != in[0]->rank || in[i]->dtype != in[0]->dtype ||
            (in[i]->rank > 1 && in[i]->shape[1] != in[0]->shape[1]))
            return tsr_fail(l->err, TSR_E_SHAPE, "%s: '%s' and '%s' must be joined, but differ in dtype or shape",
                            path_of(l, in[i]), in[0]->name, in[i]->name);
        out->bytes += in[i]->bytes;
        out->shape[0] += in[i]->shape[0];
        list_renamed(l, in[i], name, first);
        first += in[i]->bytes;
        TSR_TRY(note(l, parts[i], n == 1 ? "rename" : "join", name));
    }
    if (out->rank > 1) {
        l->unquantized[l->n_unquantized] = tsr_arena_dup(&l->plan->arena, name, tsr_module_length(name));
        if (l->unquantized[l->n_unquantized++] == NULL)
            return tsr_out_of_memory(l->err, "while planning");
    }
    return tsr_plan_concatenate(l->plan, in, (uint32_t)n, out, l->err);
}

/* Finds the parts of a joined layer from its first part. */
static tsr_status find_parts(const laying *l, const tsr_weight *w, size_t n, const tsr_weight **parts)
{
    static const char *const kParts[] = {".q_proj.", ".k_proj.", ".v_proj."};
    const char *const at = strstr(w->values->name, kParts[0]);
    char name[1200];
    parts[0] = w;
    for (size_t i = 1; i < n; i++) {
        snprintf(name, sizeof name, "%.*s%s%s", (int)(at - w->values->name), w->values->name, kParts[i],
                 at + strlen(kParts[0]));
        parts[i] = tsr_weights_find(&l->weights, l->source, name);
        if (parts[i] == NULL)
            return tsr_fail(l->err, TSR_E_FORMAT, "%s: '%s' must be joined with '%s', which is missing",
                            l->source->path, w->values->name, name);
        if (is_laid(l, parts[i]) != is_laid(l, w))
            return tsr_fail(l->err, TSR_E_UNSUPPORTED,
                            "%s: '%s' and '%s' must be joined, but only one of them is quantized", l->source->path,
                            w->values->name, name);
    }
    return TSR_OK;
}

static tsr_status plan_renamed(laying *l, const tsr_weight *w)
{
    size_t part = 0, parts = 1;
    const tsr_weight *all[TSR_LAYOUT_PARTS];
    const char *const name = tsr_trtllm_name(w->values->name, &l->plan->arena, &part, &parts);
    if (name == NULL && tsr_module_length(w->values->name) > 8 &&
        strstr(w->values->name, "rotary_emb.inv_freq") != NULL)
        return note(l, w, "drop", "TensorRT-LLM computes it");
    if (name == NULL)
        return tsr_fail(l->err, TSR_E_UNSUPPORTED, "%s: no TensorRT-LLM name is known for '%s'", path_of(l, w->data),
                        w->values->name);
    if (part != 0)
        return TSR_OK; /* with the first */
    TSR_TRY(find_parts(l, w, parts, all));
    return is_laid(l, w) ? plan_laid(l, all, parts, name) : plan_plain(l, all, parts, name);
}

/* Writes the output head of a model with tied embeddings, because TensorRT-LLM requires it. */
static tsr_status plan_head(laying *l)
{
    const tsr_tensor *const embedding = tsr_checkpoint_find(l->source, "model.embed_tokens.weight");
    if (embedding == NULL || tsr_weights_find(&l->weights, l->source, "lm_head.weight") != NULL)
        return TSR_OK;
    l->unquantized[l->n_unquantized++] = "lm_head";
    return tsr_plan_copy(l->plan, embedding, "lm_head.weight", l->err);
}

static tsr_status plan_trtllm(laying *l)
{
    const tsr_checkpoint *const c = l->source;
    if (c->config == NULL || !tsr_trtllm_knows(l->model_type))
        return tsr_fail(l->err, TSR_E_UNSUPPORTED,
                        "%s: model_type '%s' is not supported: TensorRT-LLM's names are known for llama, mistral, "
                        "qwen2 and qwen3; --to fastertransformer keeps the names",
                        c->path, l->model_type == NULL ? "" : l->model_type);
    if (l->scheme.group != 0 && (l->scheme.bits != 4 || l->scale_dtype != TSR_F16))
        return tsr_fail(l->err, TSR_E_UNSUPPORTED,
                        "TensorRT-LLM supports groups in W4A16_GPTQ only: int4 with F16 scales (--scale-dtype f16)");
    if (l->scale_dtype == TSR_F32)
        return tsr_fail(l->err, TSR_E_UNSUPPORTED,
                        "%s: its scales are F32; TensorRT-LLM reads scales in the dtype of activations, BF16 or F16: "
                        "quantize with --scale-dtype bf16 or f16",
                        c->path);
    for (size_t i = 0; i < l->weights.count; i++)
        TSR_TRY(plan_renamed(l, &l->weights.items[i]));
    TSR_TRY(plan_head(l));
    TSR_TRY(tsr_plan_file(l->plan, kRank0, l->err));
    TSR_TRY(tsr_plan_files_beside(l->plan, (const char *const[]){TSR_LAYOUT_NAME, NULL}, l->err));
    TSR_TRY(plan_manifest(l));
    const tsr_trtllm_quantization quantization = {
        .algorithm = l->scheme.group != 0  ? "W4A16_GPTQ"
                     : l->scheme.bits == 8 ? "W8A16"
                                           : "W4A16",
        .group = l->scheme.group,
        .unquantized = l->unquantized,
        .n_unquantized = l->n_unquantized,
    };
    tsr_text original = {0}, config = {0};
    const tsr_status removed = tsr_fp8_config_remove(&original, c, l->err);
    TSR_TRY(tsr_plan_take_text(l->plan, "", kHfConfig, &original, removed, l->err));
    const tsr_status made = tsr_trtllm_config(&config, c, l->model_type, l->scale_dtype, &quantization, l->err);
    return tsr_plan_take_text(l->plan, "", TSR_CONFIG_NAME, &config, made, l->err);
}

/* ---- the plan ---- */

static tsr_status spell_command(laying *l)
{
    const tsr_layout_options *const o = l->options;
    tsr_text t = {0};
    tsr_text_printf(&t, "convert --to %s --producer %s --arch sm%d",
                    o->kind == TSR_LAYOUT_TRTLLM ? "trtllm" : "fastertransformer", tsr_ft_producer_name(o->producer),
                    o->arch);
    if (!l->from_packed)
        tsr_text_printf(&t, " --bits %u --group-size %llu --divisor %g --rounding %s --scale-dtype %s --scales %s",
                        l->scheme.bits, U64(l->scheme.group), (double)l->scheme.divisor,
                        l->scheme.away ? "away" : "even", tsr_dtype_name(l->scale_dtype),
                        tsr_scale_search_name(l->scheme.search));
    tsr_text_printf(&t, " --max-shard-size %llu", U64(o->max_shard_bytes));
    tsr_spell_policy(&t, &o->policy);
    return tsr_plan_take_command(l->plan, &t, l->err);
}

static tsr_status make_plan(laying *l)
{
    const tsr_layout_options *const o = l->options;
    l->model_type = tsr_policy_model_type(l->source, &l->plan->arena);
    if (l->weights.n_scaled > 0) {
        TSR_TRY(take_packed(l));
    } else {
        tsr_policy_options policy = o->policy;
        policy.block_rows = 1;
        policy.not_fp8 = true;
        l->plan->report = tsr_quantize_report;
        TSR_TRY(tsr_plan_decide(l->plan, &policy, l->decisions, l->err));
    }
    const tsr_ft_target target = {.producer = o->producer, .arch = o->arch, .bits = (int)l->scheme.bits};
    TSR_TRY(tsr_ft_format_of(&target, &l->format, l->err));
    TSR_TRY(spell_command(l));
    tsr_json_begin_array(&l->entries, false);
    tsr_json_begin_array(&l->renamed, false);
    TSR_TRY(o->kind == TSR_LAYOUT_TRTLLM ? plan_trtllm(l) : plan_fastertransformer(l));
    if (l->plan->by_policy)
        TSR_TRY(tsr_plan_warn_of_share(l->plan, l->err));
    l->plan->advice = tsr_arena_printf(
        &l->plan->arena, "layout %s of int%u for sm%d as %s reads it; " TSR_LAYOUT_NAME " describes each file",
        tsr_ft_layout_name(l->format.layout), l->scheme.bits, o->arch, tsr_ft_producer_name(o->producer));
    l->plan->next = "tessera inspect DST";
    return l->plan->advice == NULL ? tsr_out_of_memory(l->err, "while planning") : tsr_plan_finish(l->plan, l->err);
}

tsr_status tsr_layout_plan(tsr_plan *plan, const tsr_checkpoint *const *source, const tsr_layout_options *options,
                           tsr_err *err)
{
    laying l = {.plan = plan,
                .source = *source,
                .options = options,
                .scheme = options->scheme,
                .scale_dtype = options->scale_dtype,
                .err = err};
    *plan = tsr_plan_begin(source, 1);
    if (l.scheme.search == TSR_SCALES_BEST)
        return tsr_fail(err, TSR_E_USAGE,
                        "--scales best cannot be used with --to fastertransformer or trtllm, whose codes are computed "
                        "with FP32 scales; use --scales mse");
    if (l.scheme.search == TSR_SCALES_FOUR_SIX)
        return tsr_fail(err, TSR_E_USAGE,
                        "--scales four-six cannot be used with --to fastertransformer or trtllm; use nvfp4 or "
                        "nvfp4-weight-only");
    TSR_TRY(tsr_weights_pair(&l.weights, *source, (tsr_block){0, 0}, err));
    l.decisions = calloc((*source)->tensors.count + 1, sizeof *l.decisions);
    l.unquantized = calloc(l.weights.count + 2, sizeof *l.unquantized);
    const tsr_status status =
        l.decisions == NULL || l.unquantized == NULL ? tsr_out_of_memory(err, "while planning") : make_plan(&l);
    free(l.decisions);
    free(l.unquantized);
    tsr_text_free(&l.entries);
    tsr_text_free(&l.renamed);
    tsr_weights_free(&l.weights);
    return tsr_plan_ended(plan, status);
}
