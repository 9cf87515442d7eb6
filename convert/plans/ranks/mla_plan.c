/* Plans absorbed MLA: names and shapes per consumer, geometry checks, and the treatment of each tensor. */
#include "convert/plans/ranks/mla_plan.h"

#include "common/glob.h"
#include "convert/configs/fp8_config.h"
#include "convert/io/copied_codes.h"
#include "convert/plans/quantize_report.h"
#include "formats/json/json_edit.h"
#include "formats/json/json_write.h"
#include "formats/names/absorbed.h"

#include <stdlib.h>
#include <string.h>

static const tsr_absorbed_consumer *consumer_of(const tsr_mla_options *o)
{
    static const size_t kAt[] = {
        [TSR_MLA_SGLANG] = 0, [TSR_MLA_VLLM] = 1, [TSR_MLA_TRTLLM] = 2, [TSR_MLA_LLAMACPP] = 3};
    return &tsr_absorbed_consumers[kAt[o->consumer]];
}

static const char *const kForms[] = {"bf16", "fp8-block", "fp8-tensor", "fp8-head"};

typedef struct absorbing {
    const tsr_checkpoint *source;
    const tsr_mla_options *options;
    const tsr_absorbed_consumer *consumer;
    tsr_weights weights;
    tsr_mla_shape mla;
    uint64_t layers; /* kv_b_proj found */
} absorbing;

static bool is_kv_b(const char *name)
{
    return tsr_glob_match("*.kv_b_proj.weight", name);
}

static tsr_status expect_shape(const absorbing *a, const tsr_weight *w, uint64_t rows, uint64_t cols,
                               const char *formula, tsr_err *err)
{
    const tsr_tensor *const t = w->data;
    char shape[192];
    if (w->scale == NULL && !tsr_dtype_is_weight_float((tsr_dtype)t->dtype))
        return tsr_fail(err, TSR_E_UNSUPPORTED, "%s: '%s' is %s: neither FP8 nor BF16, F16 or F32",
                        a->source->files[t->file].path, t->name, tsr_dtype_name((tsr_dtype)t->dtype));
    if (t->rank == 2 && (rows == 0 || t->shape[0] == rows) && (cols == 0 || t->shape[1] == cols))
        return TSR_OK;
    const uint64_t wanted = rows != 0 ? rows : cols, has = t->rank == 2 ? t->shape[rows != 0 ? 0 : 1] : 0;
    return tsr_fail(
        err, TSR_E_SHAPE, "%s: '%s' is %s, but by " TSR_CONFIG_NAME " it has %s = %llu%s",
        a->source->files[t->file].path, t->name, tsr_shape_text(t, shape, sizeof shape), formula, U64(wanted),
        has > 0 && has < wanted && wanted % has == 0 ? ": a rank of --to tp has only its own heads; run --to "
                                                       "mla-absorbed on the whole checkpoint first, then --to tp"
                                                     : "");
}

/* Kept codes require that heads end at block boundaries. */
static tsr_status check_keep(const absorbing *a, const tsr_weight *w, tsr_err *err)
{
    const tsr_tensor *const t = w->data;
    const char *const path = a->source->files[t->file].path;
    const uint64_t rows = a->mla.nope + a->mla.v;
    if (w->scale == NULL)
        return tsr_fail(err, TSR_E_UNSUPPORTED, "%s: '%s' is not FP8, so it has no codes to keep; use --weights bf16",
                        path, t->name);
    if (w->coarse || (a->mla.nope % w->block.rows == 0 && a->mla.v % w->block.rows == 0))
        return w->coarse
                   ? tsr_fail(err, TSR_E_UNSUPPORTED,
                              "%s: '%s' has no blocks; --weights fp8-tensor or fp8-head requantizes it", path, t->name)
                   : TSR_OK;
    return tsr_fail(
        err, TSR_E_SHAPE,
        "%s: '%s': a head has %llu + %llu = %llu rows, which are %g + %g = %g rows of scales of %llu: a block of "
        "scales cannot be cut there; --weights bf16 dequantizes, fp8-head and fp8-tensor requantize",
        path, t->name, U64(a->mla.nope), U64(a->mla.v), U64(rows), (double)a->mla.nope / (double)w->block.rows,
        (double)a->mla.v / (double)w->block.rows, (double)rows / (double)w->block.rows, U64(w->block.rows));
}

/* Returns the name of a tensor beside a kv_b_proj: its prefix "model.layers.0.self_attn." with another name. */
static const char *sibling(tsr_arena *arena, const char *kv_b, const char *name)
{
    const size_t prefix = strlen(kv_b) - strlen("kv_b_proj.weight");
    return name == NULL ? NULL : tsr_arena_printf(arena, "%.*s%s", (int)prefix, kv_b, name);
}

static tsr_status plan_parts(tsr_plan *plan, const absorbing *a, const tsr_weight *w, tsr_err *err)
{
    const tsr_absorbed_part *const half[2] = {&a->consumer->keys, &a->consumer->values};
    const bool one_scale = a->options->form == TSR_MLA_TENSOR;
    tsr_mla_part parts[2] = {{.values = false}, {.values = true}};
    for (size_t i = 0; i < 2; i++) {
        parts[i].transposed = half[i]->latent_first;
        parts[i].name = sibling(&plan->arena, w->data->name, half[i]->name);
        parts[i].scale = sibling(&plan->arena, w->data->name, one_scale ? half[i]->one_scale : half[i]->scale);
    }
    if (parts[0].name == NULL || parts[1].name == NULL)
        return tsr_out_of_memory(err, "while planning");
    for (size_t i = 0; i < 2; i++) {
        if (tsr_checkpoint_find(a->source, parts[i].name) != NULL)
            return tsr_fail(err, TSR_E_FORMAT, "%s: '%s' already exists", a->source->path, parts[i].name);
    }
    plan->n_added += 2 + (one_scale ? 1 : a->options->form == TSR_MLA_PLAIN ? 0 : 2);
    if (one_scale)
        return tsr_plan_mla_split(plan, w, &a->mla, a->options->form, parts, 2, err);
    TSR_TRY(tsr_plan_mla_split(plan, w, &a->mla, a->options->form, &parts[0], 1, err));
    return tsr_plan_mla_split(plan, w, &a->mla, a->options->form, &parts[1], 1, err);
}

static tsr_status plan_kv_b(tsr_plan *plan, absorbing *a, const tsr_weight *w, tsr_err *err)
{
    a->layers++;
    TSR_TRY(expect_shape(a, w, a->mla.heads * (a->mla.nope + a->mla.v), 0,
                         "num_attention_heads * (qk_nope_head_dim + v_head_dim)", err));
    TSR_TRY(expect_shape(a, w, 0, a->mla.rank, "kv_lora_rank", err));
    if (a->options->form == TSR_MLA_KEEP)
        TSR_TRY(check_keep(a, w, err));
    if (!a->options->fold)
        TSR_TRY(plan_parts(plan, a, w, err));
    const bool dropped = a->options->drop_kv_b;
    const char *const action = dropped ? (a->options->fold ? "fold" : "split") : "copy";
    const char *const reason = dropped ? "its parts replace it" : "its parts are added";
    TSR_TRY(tsr_plan_add_note(plan, w->data, action, reason, err));
    if (w->scale != NULL)
        TSR_TRY(tsr_plan_add_note(plan, w->scale, action, "with its weight", err));
    if (dropped)
        return TSR_OK;
    TSR_TRY(tsr_plan_copy(plan, w->data, w->data->name, err));
    if (w->scale == NULL)
        return TSR_OK;
    TSR_TRY(tsr_plan_copy(plan, w->scale, w->scale->name, err));
    tsr_plan_copies_scales(plan, (tsr_dtype)w->scale_dtype);
    return TSR_OK;
}

/* Returns true if the weight is the q_b_proj (or q_proj) or o_proj that belongs to a kv_b_proj. Sets *kv_b. */
static bool is_folded(const absorbing *a, tsr_plan *plan, const tsr_weight *w, bool *output, const tsr_weight **kv_b)
{
    static const char *const kNames[] = {"q_b_proj.weight", "q_proj.weight", "o_proj.weight"};
    const char *const name = w->data->name;
    for (size_t i = 0; a->options->fold && i < sizeof kNames / sizeof *kNames; i++) {
        const size_t n = strlen(name), m = strlen(kNames[i]);
        if (n <= m || name[n - m - 1] != '.' || strcmp(name + n - m, kNames[i]) != 0)
            continue;
        const char *const other = tsr_arena_printf(&plan->arena, "%.*skv_b_proj.weight", (int)(n - m), name);
        *kv_b = other == NULL ? NULL : tsr_weights_find(&a->weights, a->source, other);
        *output = i == 2;
        return *kv_b != NULL;
    }
    return false;
}

static tsr_status plan_fold(tsr_plan *plan, const absorbing *a, const tsr_weight *w, const tsr_weight *kv_b,
                            bool output, tsr_err *err)
{
    const tsr_mla_shape *const m = &a->mla;
    TSR_TRY(tsr_plan_add_note(plan, w->data, "fold", output ? "takes in w_vc" : "takes in w_kc", err));
    if (w->scale != NULL)
        TSR_TRY(tsr_plan_add_note(plan, w->scale, "consume", "the scale of a weight that is folded", err));
    TSR_TRY(output ? expect_shape(a, w, 0, m->heads * m->v, "num_attention_heads * v_head_dim", err)
                   : expect_shape(a, w, m->heads * (m->nope + m->rope), 0,
                                  "num_attention_heads * (qk_nope_head_dim + qk_rope_head_dim)", err));
    return output ? tsr_plan_mla_fold_o(plan, w, kv_b, m, err) : tsr_plan_mla_fold_q(plan, w, kv_b, m, err);
}

static tsr_status plan_copies(tsr_plan *plan, const tsr_weight *w, tsr_err *err)
{
    const tsr_tensor *const tensors[] = {w->data, w->scale, w->input_scale};
    for (size_t i = 0; i < 3; i++) {
        if (tensors[i] == NULL)
            continue;
        TSR_TRY(tsr_plan_copy(plan, tensors[i], tensors[i]->name, err));
        if (tensors[i] == w->scale)
            tsr_plan_copies_scales(plan, (tsr_dtype)w->scale_dtype);
        TSR_TRY(tsr_plan_add_note(plan, tensors[i], "copy", "not used by absorption", err));
    }
    return TSR_OK;
}

static tsr_status plan_tensors(tsr_plan *plan, absorbing *a, tsr_err *err)
{
    for (size_t i = 0; i < a->weights.count; i++) {
        const tsr_weight *const w = &a->weights.items[i], *kv_b;
        bool output;
        if (is_kv_b(w->data->name))
            TSR_TRY(plan_kv_b(plan, a, w, err));
        else if (is_folded(a, plan, w, &output, &kv_b))
            TSR_TRY(plan_fold(plan, a, w, kv_b, output, err));
        else
            TSR_TRY(plan_copies(plan, w, err));
    }
    return a->layers > 0 ? TSR_OK
                         : tsr_fail(err, TSR_E_UNSUPPORTED,
                                    "%s: no kv_b_proj: not a model with multi-head latent "
                                    "attention",
                                    a->source->path);
}

/* ---- config.json ---- */

static void describe(tsr_text *t, const absorbing *a)
{
    const struct {
        const char *key, *value;
    } words[] = {{"consumer", a->consumer->word}, {"weights", kForms[a->options->form]}};
    tsr_json_begin_object(t, false);
    for (size_t i = 0; i < sizeof words / sizeof *words && !a->options->fold; i++) {
        tsr_json_member_string(t, words[i].key, words[i].value);
    }
    tsr_json_member_bool(t, "folded", a->options->fold);
    tsr_json_member_bool(t, "kv_b_proj_dropped", a->options->drop_kv_b);
    tsr_json_end_object(t);
}

/* Folded weights are BF16 in a model that may otherwise be FP8, so its list of unquantized modules must contain them.
 * If they were its only FP8 weights, quantization_config is removed. */
static tsr_status list_folded(tsr_text *out, tsr_plan *plan, const absorbing *a, tsr_err *err)
{
    const tsr_weights *const w = &a->weights;
    const tsr_tensor **const folded = calloc(w->count + 1, sizeof *folded);
    size_t n = 0, left = 0;
    if (folded == NULL)
        return tsr_out_of_memory(err, "while planning");
    for (size_t i = 0; i < w->count; i++) {
        const tsr_weight *kv_b;
        bool output;
        if (w->items[i].scale != NULL && is_folded(a, plan, &w->items[i], &output, &kv_b))
            folded[n++] = w->items[i].data;
        else if (w->items[i].scale != NULL)
            left += !a->options->drop_kv_b || !is_kv_b(w->items[i].data->name);
    }
    const tsr_status status =
        left > 0 ? tsr_quantization_keep(out, a->source, folded, n, err) : tsr_fp8_config_remove(out, a->source, err);
    free(folded);
    return status;
}

static tsr_status plan_config(tsr_plan *plan, const absorbing *a, tsr_err *err)
{
    tsr_text base = {0}, value = {0}, config = {0};
    tsr_status status = TSR_OK;
    if (a->options->fold && a->weights.method != NULL)
        status = list_folded(&base, plan, a, err);
    else
        tsr_text_append(&base, a->source->config, a->source->config_size);
    describe(&value, a);
    if (status == TSR_OK)
        status = tsr_text_status(&value, err);
    if (status == TSR_OK)
        status = tsr_json_edit_set(&config, base.data, base.size, "tessera_mla", value.data, err);
    status = tsr_plan_take_text(plan, "", TSR_CONFIG_NAME, &config, status, err);
    tsr_text_free(&base);
    tsr_text_free(&value);
    return status;
}

static tsr_status make_plan(tsr_plan *plan, absorbing *a, tsr_err *err)
{
    const tsr_mla_options *const o = a->options;
    if (o->form != TSR_MLA_PLAIN && a->consumer->keys.scale == NULL)
        return tsr_fail(err, TSR_E_USAGE,
                        "--consumer %s supports these weights in floating point only; use --weights bf16",
                        a->consumer->word);
    if (o->fold && o->form != TSR_MLA_PLAIN)
        return tsr_fail(err, TSR_E_USAGE, "--fold makes BF16 and cannot be combined with --weights");
    plan->command =
        tsr_arena_printf(&plan->arena, "convert --to mla-absorbed --consumer %s --weights %s%s%s --max-shard-size %llu",
                         a->consumer->word, kForms[o->form], o->fold ? " --fold" : "",
                         o->drop_kv_b ? " --drop-kv-b" : "", U64(o->max_shard_bytes));
    plan->advice =
        o->fold
            ? "for engines of your own: no public engine reads a folded checkpoint"
            : tsr_arena_printf(&plan->arena,
                               "the weights as %s holds them in memory; its loader reads kv_b_proj and computes them "
                               "itself",
                               a->consumer->word);
    if (plan->command == NULL || plan->advice == NULL)
        return tsr_out_of_memory(err, "while planning");
    if (o->fold || o->form == TSR_MLA_TENSOR || o->form == TSR_MLA_HEAD)
        plan->report = tsr_quantize_report;
    TSR_TRY(tsr_mla_shape_read(&a->mla, a->source, err));
    TSR_TRY(plan_tensors(plan, a, err));
    TSR_TRY(tsr_plan_model_files(plan, o->max_shard_bytes, NULL, err));
    TSR_TRY(plan_config(plan, a, err));
    return tsr_plan_finish(plan, err);
}

tsr_status tsr_mla_plan(tsr_plan *plan, const tsr_checkpoint *const *source, const tsr_mla_options *options,
                        tsr_err *err)
{
    absorbing a = {.source = *source, .options = options, .consumer = consumer_of(options)};
    *plan = tsr_plan_begin(source, 1);
    TSR_TRY(tsr_weights_pair_fp8(&a.weights, *source, (tsr_block){0, 0}, "splitting kv_b_proj", err));
    tsr_status status = tsr_plan_warn_of(plan, &a.weights, err);
    if (status == TSR_OK)
        status = make_plan(plan, &a, err);
    tsr_weights_free(&a.weights);
    return tsr_plan_ended(plan, status);
}
