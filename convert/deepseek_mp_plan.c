/* Names, ranks and cuts of DeepSeek's inference code. */
#include "convert/deepseek_mp_plan.h"

#include "convert/shard.h"
#include "formats/config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define U64(x) ((unsigned long long)(x))

/* The last component but one of a name, ".weight" and the like following it (convert.py, `mapping`). */
static const struct key {
    const char *hf, *deepseek;
    tsr_parallel how;
    bool heads; /* num_attention_heads are cut with it */
} kKeys[] = {
    {"embed_tokens", "embed", TSR_PARALLEL_ROWS, false},
    {"input_layernorm", "attn_norm", TSR_PARALLEL_REPLICATE, false},
    {"post_attention_layernorm", "ffn_norm", TSR_PARALLEL_REPLICATE, false},
    {"q_proj", "wq", TSR_PARALLEL_ROWS, true},
    {"q_a_proj", "wq_a", TSR_PARALLEL_REPLICATE, false},
    {"q_a_layernorm", "q_norm", TSR_PARALLEL_REPLICATE, false},
    {"q_b_proj", "wq_b", TSR_PARALLEL_ROWS, true},
    {"kv_a_proj_with_mqa", "wkv_a", TSR_PARALLEL_REPLICATE, false},
    {"kv_a_layernorm", "kv_norm", TSR_PARALLEL_REPLICATE, false},
    {"kv_b_proj", "wkv_b", TSR_PARALLEL_ROWS, true},
    {"o_proj", "wo", TSR_PARALLEL_COLUMNS, true},
    {"gate", "gate", TSR_PARALLEL_REPLICATE, false},
    {"gate_proj", "w1", TSR_PARALLEL_ROWS, false},
    {"down_proj", "w2", TSR_PARALLEL_COLUMNS, false},
    {"up_proj", "w3", TSR_PARALLEL_ROWS, false},
    {"norm", "norm", TSR_PARALLEL_REPLICATE, false},
    {"lm_head", "head", TSR_PARALLEL_ROWS, false},
};

/* Of V3.2's indexer, whose convert.py has them in its table: every rank has all of it, under its own names. */
static const char *const kIndexerKeys[] = {"wq_b", "wk", "k_norm", "weights_proj"};

/* Of the MTP layer, for --keep-mtp: kept whole, under their own names. */
static const char *const kMtpKeys[] = {"eh_proj", "enorm", "hnorm", "head"};

typedef struct mapping {
    const tsr_checkpoint *source;
    const tsr_deepseek_mp_options *options;
    tsr_weights weights;
    uint64_t layers, heads, experts;
} mapping;

/* What becomes of one weight. */
typedef struct fate {
    const char *name, *scale; /* NULL: dropped */
    tsr_shard shard;
    bool expert; /* all of it belongs to one rank */
    uint32_t rank;
} fate;

static tsr_status out_of_memory(tsr_err *err)
{
    return tsr_fail(err, TSR_E_NOMEM, "out of memory while planning");
}

/* The component of a dotted name that stands `from_end` places before the last. Its length; 0 when there is none. */
static size_t component(const char *name, int from_end, const char **start)
{
    const char *end = name + strlen(name), *p = end;
    for (;; from_end--) {
        while (p > name && p[-1] != '.')
            p--;
        *start = p;
        if (from_end == 0)
            return (size_t)(end - p);
        if (p == name)
            return 0;
        end = --p;
    }
}

static bool component_is(const char *name, int from_end, const char *word)
{
    const char *start;
    const size_t n = component(name, from_end, &start);
    return n == strlen(word) && memcmp(start, word, n) == 0;
}

/* N of "model.layers.N.", or -1. */
static long long layer_of(const char *name)
{
    long long layer;
    return sscanf(name, "model.layers.%lld.", &layer) == 1 ? layer : -1;
}

/* The name in DeepSeek's words: "model." gone, self_attn -> attn, mlp -> ffn, the key replaced, the last word kept but
 * for the router's bias. */
static const char *rename_tensor(tsr_arena *arena, const char *name, const char *hf, const char *deepseek,
                                 const char *last)
{
    char text[1024];
    size_t used = 0;
    const char *p = strncmp(name, "model.", 6) == 0 ? name + 6 : name;
    for (;;) {
        const size_t n = strcspn(p, ".");
        const char *word = p;
        size_t size = n;
        if (p[n] == '\0') {
            word = last;
            size = strlen(last);
        } else if (n == 9 && memcmp(p, "self_attn", n) == 0) {
            word = "attn";
            size = 4;
        } else if (n == 3 && memcmp(p, "mlp", n) == 0) {
            word = "ffn";
            size = 3;
        } else if (n == strlen(hf) && memcmp(p, hf, n) == 0) {
            word = deepseek;
            size = strlen(deepseek);
        }
        if (used + size + 2 > sizeof text)
            return NULL;
        memcpy(text + used, word, size);
        used += size;
        if (p[n] == '\0')
            return tsr_arena_dup(arena, text, used);
        text[used++] = '.';
        p += n + 1;
    }
}

/* The routed expert's number in "...mlp.experts.N.key.weight"; false for all else. */
static bool find_expert(const char *name, uint64_t *expert)
{
    const char *start;
    char *end;
    if (!component_is(name, 3, "experts") || component(name, 2, &start) == 0)
        return false;
    *expert = strtoull(start, &end, 10);
    return *end == '.';
}

static tsr_status find_key(const mapping *m, const tsr_tensor *t, bool mtp, struct key *key, tsr_err *err)
{
    for (size_t i = 0; i < sizeof kKeys / sizeof *kKeys; i++) {
        *key = kKeys[i];
        if (component_is(t->name, 1, key->hf))
            return TSR_OK;
    }
    for (size_t i = 0; component_is(t->name, 2, "indexer") && i < sizeof kIndexerKeys / sizeof *kIndexerKeys; i++) {
        *key = (struct key){kIndexerKeys[i], kIndexerKeys[i], TSR_PARALLEL_REPLICATE, false};
        if (component_is(t->name, 1, key->hf))
            return TSR_OK;
    }
    for (size_t i = 0; mtp && i < sizeof kMtpKeys / sizeof *kMtpKeys; i++) {
        *key = (struct key){kMtpKeys[i], kMtpKeys[i], TSR_PARALLEL_REPLICATE, false};
        if (component_is(t->name, 1, key->hf))
            return TSR_OK;
    }
    return tsr_fail(err, TSR_E_UNSUPPORTED,
                    "%s: '%s': DeepSeek's inference code has no such tensor; it runs DeepSeek-V2, V3, R1 and V3.2, not "
                    "what was distilled from them",
                    m->source->files[t->file].path, t->name);
}

/* That the expert before this one is there, and that the first one has a last one: together, that none is missing. */
static tsr_status check_neighbour(const mapping *m, const tsr_tensor *t, uint64_t expert, tsr_err *err)
{
    const char *number;
    char name[1200];
    const size_t digits = component(t->name, 2, &number);
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
    const bool mtp = layer_of(t->name) >= (long long)m->layers;
    uint64_t expert;
    struct key key;
    *f = (fate){.shard.parts = 1};
    if (mtp && !m->options->keep_mtp)
        return TSR_OK;
    TSR_TRY(find_key(m, t, mtp, &key, err));
    const char *last;
    (void)component(t->name, 0, &last);
    f->name = rename_tensor(&plan->arena, t->name, key.hf, key.deepseek,
                            strcmp(last, "e_score_correction_bias") == 0 ? "bias" : last);
    f->scale = rename_tensor(&plan->arena, t->name, key.hf, key.deepseek, "scale");
    if (f->name == NULL || f->scale == NULL)
        return out_of_memory(err);
    f->expert = find_expert(t->name, &expert);
    if (!f->expert)
        return tsr_shard_weight(m->source, w, key.how, key.heads ? m->heads : 0, false, m->options->ranks, &f->shard,
                                err);
    if (expert >= m->experts)
        return tsr_fail(err, TSR_E_FORMAT, "%s: '%s', but " TSR_CONFIG_NAME " has n_routed_experts %llu",
                        m->source->files[t->file].path, t->name, U64(m->experts));
    f->rank = (uint32_t)(expert / (m->experts / m->options->ranks));
    return check_neighbour(m, t, expert, err);
}

static tsr_status note(tsr_plan *plan, const tsr_weight *w, const fate *f, tsr_err *err)
{
    const char *action = "rename", *reason = "every rank needs all of it";
    if (f->name == NULL) {
        action = "drop";
        reason = "MTP layer (number num_hidden_layers or above): DeepSeek's code has no place for it";
    } else if (f->expert) {
        action = "place";
        reason = tsr_arena_printf(&plan->arena, "a routed expert of rank %u", f->rank);
    } else if (f->shard.data_rows > 0) {
        action = "cut";
        reason = "over the ranks";
    }
    TSR_TRY(tsr_plan_add_note(plan, w->data, action, reason, err));
    if (w->input_scale != NULL)
        TSR_TRY(tsr_plan_add_note(plan, w->input_scale, "drop", "input scale: DeepSeek's code makes its own", err));
    return w->scale == NULL ? TSR_OK : tsr_plan_add_note(plan, w->scale, action, "with its weight", err);
}

static tsr_status read_config(mapping *m, tsr_err *err)
{
    const tsr_checkpoint *const c = m->source;
    if (c->config == NULL)
        return tsr_fail(err, TSR_E_USAGE, "%s: needs a directory with its " TSR_CONFIG_NAME, c->path);
    if (!tsr_config_find_u64(c->config, c->config_size, "num_hidden_layers", &m->layers) ||
        !tsr_config_find_u64(c->config, c->config_size, "num_attention_heads", &m->heads))
        return tsr_fail(err, TSR_E_FORMAT, "%s/" TSR_CONFIG_NAME ": no num_hidden_layers or num_attention_heads",
                        c->path);
    if (!tsr_config_find_u64(c->config, c->config_size, "n_routed_experts", &m->experts))
        m->experts = 0;
    if (m->experts % m->options->ranks != 0)
        return tsr_fail(err, TSR_E_SHAPE,
                        "%s: %llu experts cannot be shared out to %u ranks; a divisor of it would work", c->path,
                        U64(m->experts), m->options->ranks);
    return TSR_OK;
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
            return out_of_memory(err);
        TSR_TRY(tsr_plan_file(plan, name, err));
    }
    return tsr_plan_side_files(plan, "", "*token*", NULL, err);
}

static tsr_status make_plan(tsr_plan *plan, mapping *m, tsr_err *err)
{
    fate *const fates = calloc(m->weights.count + 1, sizeof *fates);
    plan->command = tsr_arena_printf(&plan->arena, "convert --to deepseek-mp --mp %u%s", m->options->ranks,
                                     m->options->keep_mtp ? " --keep-mtp" : "");
    plan->advice = "for inference/generate.py of DeepSeek-V3, with a config of its inference/configs";
    plan->next = tsr_arena_printf(&plan->arena, "tessera inspect DST/model0-mp%u.safetensors%s", m->options->ranks,
                                  m->weights.n_scaled > 0 ? " --source-block 128x128" : "");
    tsr_status status =
        fates == NULL || plan->next == NULL || plan->command == NULL ? out_of_memory(err) : read_config(m, err);
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
    TSR_TRY(tsr_weights_pair_fp8(&m.weights, *source, 0, 0, "renaming for DeepSeek's code", err));
    const tsr_status status = make_plan(plan, &m, err);
    tsr_weights_free(&m.weights);
    if (status != TSR_OK)
        tsr_plan_free(plan);
    return status;
}
