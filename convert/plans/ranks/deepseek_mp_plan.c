/* Plans the files of DeepSeek's inference code: names, ranks and cuts. */
#include "convert/plans/ranks/deepseek_mp_plan.h"

#include "convert/plans/ranks/deepseek_names.h"
#include "convert/plans/ranks/tp_cut.h"
#include "formats/checkpoint/config.h"
#include "formats/json/json_write.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct mapping {
    const tsr_checkpoint *source;
    const tsr_deepseek_mp_options *options;
    tsr_weights weights;
    uint64_t layers, heads, experts;
} mapping;

/* The treatment of one weight. */
typedef struct fate {
    const char *name, *scale; /* NULL: dropped */
    tsr_tp_cut shard;
    bool expert; /* one rank holds all of it */
    uint32_t rank;
} fate;

static tsr_status find_key(const mapping *m, const tsr_tensor *t, bool mtp, tsr_deepseek_key *key, tsr_err *err)
{
    return tsr_deepseek_key_of(t->name, mtp, key)
               ? TSR_OK
               : tsr_fail(err, TSR_E_UNSUPPORTED,
                          "%s: '%s': DeepSeek's inference code has no such tensor; it supports DeepSeek-V2, V3, R1 and "
                          "V3.2, not models distilled from them",
                          m->source->files[t->file].path, t->name);
}

/* DeepSeek's model.py hard-codes 128x128 blocks. */
static tsr_status check_blocks(const mapping *m, const tsr_weight *w, tsr_err *err)
{
    if (w->scale == NULL || (!w->coarse && w->block.rows == 128 && w->block.cols == 128))
        return TSR_OK;
    return tsr_fail(
        err, TSR_E_UNSUPPORTED,
        "%s: '%s': DeepSeek's inference code reads FP8 in blocks of 128x128 only; run 'tessera convert --to "
        "fp8-block --block 128x128' or --to bf16 first",
        m->source->files[w->data->file].path, w->data->name);
}

/* Checks that no expert is missing: the expert before this one must exist and, for the first one, the last expert. */
static tsr_status check_neighbour(const mapping *m, const tsr_tensor *t, uint64_t expert, tsr_err *err)
{
    const char *number;
    char name[1200];
    const size_t digits = tsr_name_component(t->name, 2, &number);
    const uint64_t other = expert == 0 ? m->experts - 1 : expert - 1;
    snprintf(name, sizeof name, "%.*s%llu%s", (int)(number - t->name), t->name, U64(other),
             number + strcspn(number, "."));
    return digits > 0 && tsr_checkpoint_find(m->source, name) != NULL
               ? TSR_OK
               : tsr_fail(
                     err, TSR_E_FORMAT,
                     "%s: '%s' is in none of the %zu files, but n_routed_experts is %llu: DeepSeek's loader needs all",
                     m->source->path, name, m->source->n_files, U64(m->experts));
}

static tsr_status decide(const mapping *m, tsr_plan *plan, const tsr_weight *w, fate *f, tsr_err *err)
{
    const tsr_tensor *const t = w->data;
    const bool mtp = tsr_deepseek_layer(t->name) >= (long long)m->layers;
    uint64_t expert;
    tsr_deepseek_key key;
    *f = (fate){.shard.parts = 1};
    if (mtp && !m->options->keep_mtp)
        return TSR_OK;
    TSR_TRY(find_key(m, t, mtp, &key, err));
    TSR_TRY(check_blocks(m, w, err));
    const char *last;
    (void)tsr_name_component(t->name, 0, &last);
    f->name =
        tsr_deepseek_name(&plan->arena, t->name, &key, strcmp(last, "e_score_correction_bias") == 0 ? "bias" : last);
    f->scale = tsr_deepseek_name(&plan->arena, t->name, &key, "scale");
    if (f->name == NULL || f->scale == NULL)
        return tsr_out_of_memory(err, "while planning");
    f->expert = tsr_deepseek_expert(t->name, &expert);
    if (!f->expert)
        return tsr_shard_weight(m->source, w, key.how, key.heads ? m->heads : 0, false, m->options->ranks, &f->shard,
                                err);
    if (expert >= m->experts)
        return tsr_fail(err, TSR_E_FORMAT, "%s: '%s' exists, but " TSR_CONFIG_NAME " has n_routed_experts %llu",
                        m->source->files[t->file].path, t->name, U64(m->experts));
    f->rank = (uint32_t)(expert / (m->experts / m->options->ranks));
    return check_neighbour(m, t, expert, err);
}

static tsr_status note(tsr_plan *plan, const tsr_weight *w, const fate *f, tsr_err *err)
{
    const char *action = "rename", *reason = "every rank needs all of it";
    if (f->name == NULL) {
        action = "drop";
        reason = "MTP layer (number num_hidden_layers or above): DeepSeek's code cannot store it";
    } else if (f->expert) {
        action = "place";
        reason = tsr_arena_printf(&plan->arena, "a routed expert of rank %u", f->rank);
    } else if (f->shard.data_rows > 0) {
        action = "cut";
        reason = "over the ranks";
    }
    TSR_TRY(tsr_plan_add_note(plan, w->data, action, reason, err));
    if (w->input_scale != NULL)
        TSR_TRY(tsr_plan_add_note(plan, w->input_scale, "drop", "input scale: DeepSeek's code computes its own", err));
    return w->scale == NULL ? TSR_OK : tsr_plan_add_note(plan, w->scale, action, "with its weight", err);
}

static tsr_status read_config(mapping *m, tsr_err *err)
{
    const tsr_checkpoint *const c = m->source;
    if (c->config == NULL)
        return tsr_fail(err, TSR_E_USAGE, "%s: needs a directory with its " TSR_CONFIG_NAME, c->path);
    if (!tsr_config_find_u64(c, "num_hidden_layers", &m->layers) ||
        !tsr_config_find_u64(c, "num_attention_heads", &m->heads))
        return tsr_fail(err, TSR_E_FORMAT, "%s/" TSR_CONFIG_NAME ": no num_hidden_layers or num_attention_heads",
                        c->path);
    if (!tsr_config_find_u64(c, "n_routed_experts", &m->experts))
        m->experts = 0;
    if (m->experts % m->options->ranks != 0)
        return tsr_fail(err, TSR_E_SHAPE,
                        "%s: %llu experts cannot be divided among %u ranks; use a divisor of the number of experts",
                        c->path, U64(m->experts), m->options->ranks);
    return TSR_OK;
}

/* Writes the configuration, which convert.py omits; the inverse conversion needs it. */
static tsr_status plan_manifest(tsr_plan *plan, const mapping *m, tsr_err *err)
{
    tsr_text t = {0};
    tsr_json_begin_object(&t, false);
    tsr_json_member_string(&t, "schema", "tessera-deepseek-mp/1");
    tsr_json_member_u64(&t, "ranks", m->options->ranks);
    tsr_json_member_string(&t, "config", m->source->config);
    tsr_json_end_document(&t);
    return tsr_plan_take_text(plan, "", TSR_DEEPSEEK_MANIFEST, &t, TSR_OK, err);
}

static tsr_status plan_ranks(tsr_plan *plan, const mapping *m, const fate *fates, tsr_err *err)
{
    const uint32_t n = m->options->ranks;
    for (uint32_t k = 0; k < n; k++) {
        for (size_t i = 0; i < m->weights.count; i++) {
            const fate *const f = &fates[i];
            if (f->name != NULL && (!f->expert || f->rank == k))
                TSR_TRY(tsr_plan_shard(plan, &m->weights.items[i], &f->shard, f->name, f->scale, n, k, err));
        }
        const char *const name = tsr_arena_printf(&plan->arena, "model%u-mp%u.safetensors", k, n);
        if (name == NULL)
            return tsr_out_of_memory(err, "while planning");
        TSR_TRY(tsr_plan_file(plan, name, err));
        tsr_plan_begin_sequence(plan, k);
    }
    TSR_TRY(tsr_plan_side_files(plan, "", "*token*", (const char *const[]){TSR_DEEPSEEK_MANIFEST, NULL}, err));
    return plan_manifest(plan, m, err);
}

static tsr_status make_plan(tsr_plan *plan, mapping *m, tsr_err *err)
{
    fate *const fates = calloc(m->weights.count + 1, sizeof *fates);
    plan->command = tsr_arena_printf(&plan->arena, "convert --to deepseek-mp --mp %u%s", m->options->ranks,
                                     m->options->keep_mtp ? " --keep-mtp" : "");
    plan->advice = "for inference/generate.py of DeepSeek-V3, with a config of its inference/configs; convert --from "
                   "deepseek-mp takes it back";
    plan->next = tsr_arena_printf(&plan->arena, "tessera inspect DST/model0-mp%u.safetensors%s", m->options->ranks,
                                  m->weights.n_scaled > 0 ? " --source-block 128x128" : "");
    tsr_status status = fates == NULL || plan->next == NULL || plan->command == NULL
                            ? tsr_out_of_memory(err, "while planning")
                            : read_config(m, err);
    for (size_t i = 0; status == TSR_OK && i < m->weights.count; i++) {
        status = decide(m, plan, &m->weights.items[i], &fates[i], err);
        if (status == TSR_OK)
            status = note(plan, &m->weights.items[i], &fates[i], err);
    }
    if (status == TSR_OK)
        status = plan_ranks(plan, m, fates, err);
    free(fates);
    return status == TSR_OK ? tsr_plan_finish(plan, err) : status;
}

tsr_status tsr_deepseek_mp_plan(tsr_plan *plan, const tsr_checkpoint *const *source,
                                const tsr_deepseek_mp_options *options, tsr_err *err)
{
    mapping m = {.source = *source, .options = options};
    *plan = tsr_plan_begin(source, 1);
    if (options->ranks == 0 || options->ranks > TSR_MAX_RANKS)
        return tsr_fail(err, TSR_E_USAGE, "--mp: a number of ranks from 1 to %d", TSR_MAX_RANKS);
    TSR_TRY(tsr_weights_pair_fp8(&m.weights, *source, (tsr_block){0, 0}, "renaming for DeepSeek's code", err));
    tsr_status status = tsr_plan_warn_of(plan, &m.weights, err);
    if (status == TSR_OK)
        status = make_plan(plan, &m, err);
    tsr_weights_free(&m.weights);
    return tsr_plan_ended(plan, status);
}
