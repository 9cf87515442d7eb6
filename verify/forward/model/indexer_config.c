/* Reads the sizes of indexers from config.json, and which layers share the choice of another one. */
#include "verify/forward/forward_parts.h"

#include "formats/checkpoint/config.h"
#include "verify/mla/index_query.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static tsr_status fail(const tsr_forward *f, tsr_status status, const char *key, tsr_err *err)
{
    return tsr_fail(err, status, "%s/" TSR_CONFIG_NAME ": %s %s", f->side->checkpoint->path,
                    status == TSR_E_FORMAT ? "missing or invalid" : "unsupported", key);
}

/* Finds a value of config.json that is not null. */
static bool find(const tsr_forward *f, const char *key, tsr_json_text *value)
{
    return tsr_config_find_model(f->side->checkpoint, key, value) && !tsr_json_is(*value, "null");
}

/* Reads a list with "full" or "shared" for each layer. */
static tsr_status read_words(const tsr_forward *f, const char *key, tsr_json_text list, tsr_err *err)
{
    tsr_json_reader r = tsr_json_open(f->side->checkpoint->path, list.data, list.size);
    tsr_json_text word;
    size_t layer = 0;
    bool more = tsr_json_enter_array(&r, NULL) == TSR_OK;
    for (; more && tsr_json_next_element(&r, &more, NULL) == TSR_OK && more; layer++) {
        if (layer == f->layers || tsr_json_read_string(&r, &word, NULL) != TSR_OK)
            return fail(f, TSR_E_FORMAT, key, err);
        f->shares[layer] = word.size == 6 && memcmp(word.data, "shared", 6) == 0;
        if (!f->shares[layer] && (word.size != 4 || memcmp(word.data, "full", 4) != 0))
            return fail(f, TSR_E_UNSUPPORTED, key, err);
    }
    return layer == f->layers ? TSR_OK : fail(f, TSR_E_FORMAT, key, err);
}

/* Reads a string with F or S for each layer. */
static tsr_status read_letters(const tsr_forward *f, const char *key, tsr_json_text text, tsr_err *err)
{
    if (text.size != f->layers + 2 || text.data[0] != '"')
        return fail(f, TSR_E_FORMAT, key, err);
    for (size_t i = 0; i < f->layers; i++) {
        f->shares[i] = text.data[i + 1] == 'S';
        if (!f->shares[i] && text.data[i + 1] != 'F')
            return fail(f, TSR_E_UNSUPPORTED, key, err);
    }
    return TSR_OK;
}

/* Sets shares by the number of layers with the same choice, and by the first layer of them. */
static void count_shares(const tsr_forward *f, size_t frequency)
{
    const size_t offset = tsr_forward_size(f, "index_skip_topk_offset", 2);
    for (size_t i = 0; i < f->layers; i++)
        f->shares[i] = frequency > 1 && i + 1 > offset && (i + 1 - offset) % frequency != 0;
}

/* Sets shares as GlmMoeDsaConfig of transformers does. Other families have no shared choices. */
static tsr_status read_shares(tsr_forward *f, tsr_err *err)
{
    static const char kTypes[] = "indexer_types", kPattern[] = "index_topk_pattern", kFrequency[] = "index_topk_freq";
    const size_t frequency = tsr_forward_size(f, kFrequency, 1);
    tsr_json_text types, pattern;
    const bool has_types = find(f, kTypes, &types), has_pattern = find(f, kPattern, &pattern);
    if ((f->traits & TSR_SHARED_CHOICE) == 0)
        return has_types || has_pattern || frequency > 1 ? fail(f, TSR_E_UNSUPPORTED,
                                                                has_types     ? kTypes
                                                                : has_pattern ? kPattern
                                                                              : kFrequency,
                                                                err)
                                                         : TSR_OK;
    count_shares(f, frequency);
    if (has_types)
        TSR_TRY(read_words(f, kTypes, types, err));
    else if (has_pattern)
        TSR_TRY(pattern.data[0] == '[' ? read_words(f, kPattern, pattern, err)
                                       : read_letters(f, kPattern, pattern, err));
    return f->shares[0] ? fail(f, TSR_E_FORMAT, kTypes, err) : TSR_OK;
}

/* Reads the indexer of latent attention (DeepSeek-V3.2, GLM-5). */
static tsr_status read_latent(tsr_forward *f, tsr_err *err)
{
    struct tsr_indexer *const i = &f->indexer;
    tsr_index_sizes sizes;
    TSR_TRY(tsr_index_sizes_read(&sizes, f->side->checkpoint, (f->traits & TSR_ADJACENT_ROPE) != 0, &f->arena, err));
    i->groups = i->block = 1;
    i->kept = sizes.kept;
    i->heads = sizes.heads;
    i->dim = sizes.dim;
    i->rope = sizes.rope;
    return TSR_OK;
}

/* Reads a size of MiniMax-M3, under the name of transformers or of the release. */
static tsr_status read_either(const tsr_forward *f, const char *key, const char *released, size_t *value, tsr_err *err)
{
    char path[64];
    snprintf(path, sizeof path, "sparse_attention_config.%s", released);
    *value = tsr_forward_size(f, path, tsr_forward_size(f, key, 0));
    return *value > 0 ? TSR_OK : fail(f, TSR_E_FORMAT, key, err);
}

/* Rejects settings of MiniMax-M3 that are not computed. */
static tsr_status check_grouped(tsr_forward *f, tsr_err *err)
{
    static const struct {
        const char *key, *fault; /* fault: the JSON literal that is not computed */
    } kFaults[] = {{"sparse_attention_config.use_sparse_attention", "false"},
                   {"use_gemma_norm", "false"},
                   {"use_qk_norm", "false"},
                   {"attention_output_gate", "true"}};
    static const char kFactor[] = "routed_scaling_factor"; /* transformers: 2 if it is absent, other families 1 */
    static const char kScores[] = "sparse_attention_config.sparse_score_type", kNorms[] = "qk_norm_type",
                      kFirst[] = "sparse_attention_config.sparse_init_block";
    const char *const scores = tsr_config_model_string(f->side->checkpoint, kScores, &f->arena),
                      *const norms = tsr_config_model_string(f->side->checkpoint, kNorms, &f->arena);
    for (size_t i = 0; i < sizeof kFaults / sizeof *kFaults; i++) {
        if (tsr_forward_is(f, kFaults[i].key, kFaults[i].fault))
            return fail(f, TSR_E_UNSUPPORTED, kFaults[i].key, err);
    }
    if (scores != NULL && strcmp(scores, "max") != 0)
        return fail(f, TSR_E_UNSUPPORTED, kScores, err);
    if (norms != NULL && strcmp(norms, "per_head") != 0)
        return fail(f, TSR_E_UNSUPPORTED, kNorms, err);
    if (tsr_forward_size(f, kFirst, 0) != 0)
        return fail(f, TSR_E_UNSUPPORTED, kFirst, err);
    return isnan(tsr_config_model_number(f->side->checkpoint, kFactor, NAN)) ? fail(f, TSR_E_FORMAT, kFactor, err)
                                                                             : TSR_OK;
}

/* Reads the indexer of grouped-query attention (MiniMax-M3), which chooses blocks of tokens. */
static tsr_status read_grouped(tsr_forward *f, tsr_err *err)
{
    struct tsr_indexer *const i = &f->indexer;
    TSR_TRY(read_either(f, "index_n_heads", "sparse_num_index_heads", &i->heads, err));
    TSR_TRY(read_either(f, "index_head_dim", "sparse_index_dim", &i->dim, err));
    TSR_TRY(read_either(f, "index_block_size", "sparse_block_size", &i->block, err));
    TSR_TRY(read_either(f, "index_topk_blocks", "sparse_topk_blocks", &i->kept, err));
    TSR_TRY(read_either(f, "index_local_blocks", "sparse_local_block", &i->local, err));
    i->groups = i->heads;
    i->rope = f->rope;
    if (f->heads % i->heads != 0)
        return fail(f, TSR_E_FORMAT, "index_n_heads", err);
    if (2 * i->rope.pairs > i->dim)
        return fail(f, TSR_E_FORMAT, "index_head_dim", err);
    return i->local <= i->kept ? TSR_OK : fail(f, TSR_E_UNSUPPORTED, "index_local_blocks", err);
}

/* Reads the indexer of compressed attention (DeepSeek-V4), which chooses entries. */
static tsr_status read_compressed(tsr_forward *f, tsr_err *err)
{
    struct tsr_indexer *const i = &f->indexer;
    i->groups = i->block = 1;
    i->kept = tsr_forward_size(f, "index_topk", 512);
    i->heads = tsr_forward_size(f, "index_n_heads", 64);
    i->dim = tsr_forward_size(f, "index_head_dim", 128);
    i->rope = f->rope;
    if (i->kept == 0 || i->heads == 0)
        return fail(f, TSR_E_FORMAT, i->kept == 0 ? "index_topk" : "index_n_heads", err);
    return 2 * i->rope.pairs <= i->dim ? TSR_OK : fail(f, TSR_E_FORMAT, "index_head_dim", err);
}

/* Returns true if a layer has an indexer. */
static bool has_indexer(const tsr_forward *f)
{
    size_t i = 0;
    while (i < f->layers && f->kinds[i] != TSR_LAYER_INDEXED)
        i++;
    return i < f->layers;
}

tsr_status tsr_forward_read_indexer(tsr_forward *f, tsr_err *err)
{
    f->shares = tsr_arena_alloc(&f->arena, f->layers * sizeof *f->shares);
    if (f->shares == NULL)
        return tsr_out_of_memory(err, NULL);
    memset(f->shares, 0, f->layers * sizeof *f->shares);
    if (f->family->layers == TSR_INDEXED_LISTED)
        TSR_TRY(check_grouped(f, err));
    if (!has_indexer(f))
        return TSR_OK;
    TSR_TRY((f->traits & TSR_LATENT) != 0    ? read_latent(f, err)
            : (f->traits & TSR_STREAMS) != 0 ? read_compressed(f, err)
                                             : read_grouped(f, err));
    return read_shares(f, err);
}
