/* Joins the ranks of DeepSeek's inference code into a checkpoint with Hugging Face's names. */
#include "convert/io/copied_codes.h"
#include "convert/ops/slice_op.h"
#include "convert/plans/ranks/deepseek_mp_plan.h"
#include "convert/plans/ranks/deepseek_names.h"
#include "convert/plans/ranks/tp_cut.h"
#include "formats/json/json.h"
#include "formats/json/json_edit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct joining {
    tsr_plan *plan;
    const tsr_checkpoint *const *ranks;
    size_t n;
    const char *config;
    size_t config_size;
    uint64_t layers, experts;
    bool fp8, mtp; /* seen */
    tsr_err *err;
} joining;

static const char *path_of(const joining *j, size_t rank)
{
    return j->ranks[rank]->files[0].path;
}

/* ---- configuration ---- */

/* Reads an integer of config.json, or of its text_config. */
static bool find_u64(const joining *j, const char *key, uint64_t *value)
{
    char nested[64];
    tsr_json_text text;
    snprintf(nested, sizeof nested, "text_config.%s", key);
    return (tsr_json_find(j->config, j->config_size, key, &text) ||
            tsr_json_find(j->config, j->config_size, nested, &text)) &&
           tsr_json_u64_of(text, value);
}

static tsr_status find_config(joining *j)
{
    const tsr_checkpoint *const c = j->ranks[0];
    tsr_side_text found = {.text = NULL};
    if (j->config == NULL)
        TSR_TRY(tsr_checkpoint_side_json(c, TSR_DEEPSEEK_MANIFEST, &j->plan->arena, &found, j->err));
    if (found.text != NULL) {
        j->config = tsr_json_find_string(found.text, found.size, "config", &j->plan->arena);
        j->config_size = j->config == NULL ? 0 : strlen(j->config);
    }
    if (j->config == NULL)
        return tsr_fail(j->err, TSR_E_FORMAT,
                        "%s: no " TSR_DEEPSEEK_MANIFEST
                        ", which 'tessera convert --to deepseek-mp' writes; give the model's own config.json with "
                        "--config FILE (not one of DeepSeek's inference/configs)",
                        c->path);
    tsr_json_reader r = tsr_json_open(TSR_CONFIG_NAME, j->config, j->config_size);
    TSR_TRY(tsr_json_skip(&r, NULL, j->err));
    TSR_TRY(tsr_json_finish(&r, j->err));
    if (!find_u64(j, "num_hidden_layers", &j->layers))
        return tsr_fail(j->err, TSR_E_FORMAT,
                        "the configuration has no num_hidden_layers: give the model's own config.json, not one of "
                        "DeepSeek's inference/configs");
    if (!find_u64(j, "n_routed_experts", &j->experts))
        j->experts = 0;
    return TSR_OK;
}

/* Checks that the codes of the ranks match the configuration, and drops MTP layers that the configuration does not
 * have. */
static tsr_status plan_config(const joining *j)
{
    tsr_json_text q;
    const bool stated = tsr_json_find(j->config, j->config_size, "quantization_config", &q) && !tsr_json_is(q, "null");
    uint64_t promised;
    tsr_text edited = {0};
    if (stated != j->fp8)
        return tsr_fail(j->err, TSR_E_FORMAT,
                        j->fp8 ? "%s: holds FP8, but the configuration has no quantization_config"
                               : "%s: holds no FP8, but the configuration has a quantization_config: remove it there",
                        path_of(j, 0));
    if (j->mtp || !find_u64(j, "num_nextn_predict_layers", &promised) || promised == 0)
        return tsr_plan_text_file(j->plan, "", TSR_CONFIG_NAME, j->config, j->config_size, j->err);
    tsr_status status = tsr_json_edit_set(&edited, j->config, j->config_size, "num_nextn_predict_layers", "0", j->err);
    if (status == TSR_OK)
        status = tsr_plan_text_file(j->plan, "", TSR_CONFIG_NAME, edited.data, edited.size, j->err);
    tsr_text_free(&edited);
    return status;
}

/* ---- tensors ---- */

static tsr_status refuse(const joining *j, size_t rank, const tsr_tensor *t, const char *why)
{
    return tsr_fail(j->err, TSR_E_MISMATCH, "%s: '%s' %s", path_of(j, rank), t->name, why);
}

/* Finds the tensor of rank k with this name, as an input of the plan. */
static tsr_status find_part(const joining *j, size_t k, const tsr_tensor *first, const tsr_tensor **part)
{
    const tsr_tensor *const t = tsr_checkpoint_find(j->ranks[k], first->name);
    if (t == NULL || t->dtype != first->dtype || !tsr_same_shape(t, first))
        return tsr_fail(j->err, TSR_E_MISMATCH,
                        "%s: '%s' is missing or differs from %s; these are not ranks of one model", path_of(j, k),
                        first->name, path_of(j, 0));
    tsr_tensor *const copy = tsr_plan_tensor(j->plan, t);
    if (copy == NULL)
        return tsr_out_of_memory(j->err, "while planning");
    copy->source = (uint16_t)k;
    *part = copy;
    return TSR_OK;
}

/* Plans an expert of rank k. Checks that it belongs to this rank, and that the expert before it (for the first one, the
 * last) is in its place. */
static tsr_status plan_expert(const joining *j, size_t k, const tsr_tensor *t, const char *name, uint64_t expert)
{
    const char *number;
    char other_name[1200];
    if (j->experts == 0 || j->experts % j->n != 0 || expert >= j->experts || expert / (j->experts / j->n) != k)
        return tsr_fail(j->err, TSR_E_MISMATCH,
                        "%s: '%s' is not an expert of rank %zu of %zu, by the configuration's n_routed_experts %llu",
                        path_of(j, k), t->name, k, j->n, U64(j->experts));
    (void)tsr_name_component(t->name, 2, &number);
    const uint64_t other = expert == 0 ? j->experts - 1 : expert - 1;
    snprintf(other_name, sizeof other_name, "%.*s%llu%s", (int)(number - t->name), t->name, U64(other),
             number + strcspn(number, "."));
    const size_t home = (size_t)(other / (j->experts / j->n));
    if (tsr_checkpoint_find(j->ranks[home], other_name) == NULL)
        return tsr_fail(j->err, TSR_E_MISMATCH, "%s: '%s' is missing, but the configuration has n_routed_experts %llu",
                        path_of(j, home), other_name, U64(j->experts));
    tsr_tensor *const in = tsr_plan_tensor(j->plan, t);
    if (in == NULL)
        return tsr_out_of_memory(j->err, "while planning");
    in->source = (uint16_t)k;
    TSR_TRY(tsr_plan_add_note(j->plan, in, "rename", "a routed expert", j->err));
    return tsr_plan_copy(j->plan, in, name, j->err);
}

/* Joins a tensor that every rank holds, whole or in parts. */
static tsr_status plan_shared(joining *j, const tsr_tensor *t, const char *name, tsr_tp_split how)
{
    const tsr_tensor *parts[TSR_MAX_RANKS];
    for (size_t k = 0; k < j->n; k++)
        TSR_TRY(find_part(j, k, t, &parts[k]));
    if (how == TSR_TP_REPLICATE || j->n == 1) {
        for (size_t k = 1; k < j->n; k++)
            TSR_TRY(tsr_plan_same(j->plan, parts[0], parts[k], j->err));
        TSR_TRY(tsr_plan_add_note(j->plan, parts[0], "rename", "every rank has all of it", j->err));
        return tsr_plan_copy(j->plan, parts[0], name, j->err);
    }
    const bool columns = how == TSR_TP_COLUMNS;
    if (t->rank != 2)
        return refuse(j, 0, t, "is not a matrix and cannot have been cut");
    tsr_tensor *const out = tsr_plan_tensor(j->plan, t);
    if (out == NULL)
        return tsr_out_of_memory(j->err, "while planning");
    out->name = name;
    out->shape[columns ? 1 : 0] *= j->n;
    out->bytes *= j->n;
    TSR_TRY(tsr_plan_add_note(j->plan, parts[0], "join", columns ? "input features" : "output features", j->err));
    const tsr_slicing cut = {.rows = columns ? t->shape[0] : 1, .parts = (uint32_t)j->n};
    return tsr_plan_join(j->plan, parts, out, cut, j->err);
}

static tsr_status plan_tensor(joining *j, size_t k, const tsr_tensor *t)
{
    const bool mtp = tsr_deepseek_layer(t->name) >= (long long)j->layers;
    tsr_deepseek_key key;
    uint64_t expert;
    const bool is_expert = tsr_deepseek_expert(t->name, &expert);
    if (k > 0 && !is_expert)
        return tsr_checkpoint_find(j->ranks[0], t->name) != NULL
                   ? TSR_OK
                   : refuse(j, k, t, "is not in rank 0; these are not ranks of one model");
    if (!tsr_deepseek_key_back(t->name, mtp, &key))
        return refuse(j, k, t, "is not a name of DeepSeek's inference code");
    const char *const name = tsr_deepseek_name_back(&j->plan->arena, t->name, &key);
    if (name == NULL)
        return tsr_out_of_memory(j->err, "while planning");
    j->fp8 = j->fp8 || t->dtype == TSR_F8_E4M3;
    j->mtp = j->mtp || mtp;
    TSR_TRY(is_expert ? plan_expert(j, k, t, name, expert) : plan_shared(j, t, name, key.how));
    if (tsr_ends_with(name, ".weight_scale_inv"))
        tsr_plan_copies_scales(j->plan, t->dtype);
    return TSR_OK;
}

/* Checks that no layer is missing: later commands could not notice it. */
static tsr_status check_layers(const joining *j)
{
    static const char *const kOthers[] = {"embed.weight", "norm.weight"};
    char name[64];
    for (size_t i = 0; i < 2; i++) {
        if (tsr_checkpoint_find(j->ranks[0], kOthers[i]) == NULL)
            return tsr_fail(j->err, TSR_E_FORMAT, "%s: '%s' is missing", path_of(j, 0), kOthers[i]);
    }
    for (uint64_t i = 0; i < j->layers; i++) {
        snprintf(name, sizeof name, "layers.%llu.attn_norm.weight", U64(i));
        if (tsr_checkpoint_find(j->ranks[0], name) == NULL)
            return tsr_fail(j->err, TSR_E_FORMAT,
                            "%s: '%s' is missing, but the configuration has num_hidden_layers %llu", path_of(j, 0),
                            name, U64(j->layers));
    }
    return TSR_OK;
}

static tsr_status make_plan(joining *j, uint64_t max_shard_bytes)
{
    tsr_plan *const plan = j->plan;
    if (j->n == 0 || j->n > TSR_MAX_RANKS)
        return tsr_fail(j->err, TSR_E_USAGE, "ranks: from 1 to %d", TSR_MAX_RANKS);
    plan->command = tsr_arena_printf(&plan->arena, "convert --from deepseek-mp, %zu ranks --max-shard-size %llu", j->n,
                                     U64(max_shard_bytes));
    plan->next = "tessera inspect DST"; /* `verify` cannot compare with the ranks */
    if (plan->command == NULL)
        return tsr_out_of_memory(j->err, "while planning");
    TSR_TRY(find_config(j));
    TSR_TRY(check_layers(j));
    for (size_t k = 0; k < j->n; k++) {
        for (size_t i = 0; i < j->ranks[k]->tensors.count; i++)
            TSR_TRY(plan_tensor(j, k, &j->ranks[k]->tensors.items[i]));
    }
    TSR_TRY(tsr_plan_model_files(plan, max_shard_bytes, (const char *const[]){TSR_DEEPSEEK_MANIFEST, NULL}, j->err));
    TSR_TRY(plan_config(j));
    return tsr_plan_finish(plan, j->err);
}

tsr_status tsr_from_deepseek_mp_plan(tsr_plan *plan, const tsr_checkpoint *const *sources, size_t n, const char *config,
                                     size_t config_size, uint64_t max_shard_bytes, tsr_err *err)
{
    joining j = {.plan = plan, .ranks = sources, .n = n, .config = config, .config_size = config_size, .err = err};
    *plan = tsr_plan_begin(sources, n);
    const tsr_status status = make_plan(&j, max_shard_bytes);
    return tsr_plan_ended(plan, status);
}
