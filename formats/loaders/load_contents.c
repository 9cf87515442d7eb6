/* Rules about tensors that must be present, and rules of single loaders. */
#include "formats/loaders/load_query.h"

#include "formats/checkpoint/config.h"

#include "common/arena.h"
#include "common/checked.h"
#include "common/glob.h"
#include "common/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- which tensors must be present ---- */

static bool find(const tsr_load_query *q, const char *weight)
{
    return tsr_weights_find(q->s->weights, q->s->checkpoint, weight) != NULL;
}

static bool find_leaf(const tsr_load_query *q, const char *stem, size_t length, const char *leaf)
{
    char name[1200];
    snprintf(name, sizeof name, "%.*s%s.weight", (int)length, stem, leaf);
    return find(q, name);
}

/* Layers that occur together. Names differ between families and between the towers of one model: o_proj is out_proj in
 * many vision towers, and the gate_proj of an attention has no up_proj. So a sibling is required only if modules of the
 * same name in other layers have it. */
enum { MAX_TOGETHER = 4, MLPS = 2 };
static const char *const kTogether[][MAX_TOGETHER] = {
    {"gate_proj", "up_proj", "down_proj"},    {"w1", "w2", "w3"}, /* the MLPS */
    {"q_proj", "k_proj", "v_proj", "o_proj"}, {"q_a_proj", "q_b_proj"}, {"kv_a_proj_with_mqa", "kv_b_proj", "o_proj"},
};

enum { MAX_NAME = 1200 };

/* Names of linear layers with '*' for each number, sorted. */
typedef struct folded {
    const char **names;
    size_t count;
    tsr_arena arena;
} folded;

static void fold(char name[MAX_NAME], const char *stem, size_t length, const char *leaf)
{
    size_t n = 0;
    for (size_t i = 0; i < length && n < MAX_NAME / 2; i++) {
        const bool digit = stem[i] >= '0' && stem[i] <= '9';
        if (!digit || i == 0 || stem[i - 1] < '0' || stem[i - 1] > '9')
            name[n++] = digit ? '*' : stem[i];
    }
    snprintf(name + n, MAX_NAME - n, "%s", leaf);
}

/* Collects the names; `all` is zero-initialized. Returns false when memory is exhausted. */
static bool fold_all(folded *all, const tsr_linears *linears)
{
    char name[MAX_NAME];
    all->names = tsr_arena_alloc(&all->arena, (linears->count + 1) * sizeof *all->names);
    for (size_t i = 0; all->names != NULL && i < linears->count; i++) {
        const tsr_linear *const l = &linears->items[i];
        fold(name, l->module, (size_t)(l->leaf - l->module), l->leaf);
        if ((all->names[all->count] = tsr_arena_dup(&all->arena, name, strlen(name))) == NULL)
            return false;
        all->count++;
    }
    if (all->names != NULL)
        qsort(all->names, all->count, sizeof *all->names, tsr_by_text);
    return all->names != NULL;
}

/* Returns how many layers have this folded name; 2 means several. */
static unsigned count_folded(const folded *all, const char *name)
{
    const char **const found = bsearch(&name, all->names, all->count, sizeof *all->names, tsr_by_text);
    if (found == NULL)
        return 0;
    const size_t at = (size_t)(found - all->names);
    const bool more = (at > 0 && strcmp(all->names[at - 1], name) == 0) ||
                      (at + 1 < all->count && strcmp(all->names[at + 1], name) == 0);
    return more ? 2 : 1;
}

/* Returns true if `leaf`, which is missing beside `l`, is required. A single MLP, such as that of DeepSeek's first
 * layer, is compared with other MLPs if it has two of the three. */
static bool is_expected(const folded *names, const tsr_linear *l, size_t set, const char *leaf, unsigned present,
                        bool known)
{
    char name[MAX_NAME];
    const size_t stem = (size_t)(l->leaf - l->module);
    fold(name, l->module, stem, leaf);
    if (count_folded(names, name) > 0)
        return true;
    fold(name, l->module, stem, l->leaf);
    return known && set < MLPS && present == 2 && count_folded(names, name) == 1;
}

static void check_companions_of(const tsr_load_query *q, const tsr_linear *l, size_t set, const bool *known,
                                const folded *names)
{
    const char *const *const all = kTogether[set];
    const size_t stem = (size_t)(l->leaf - l->module);
    size_t own = 0;
    while (own < MAX_TOGETHER && all[own] != NULL && strcmp(l->leaf, all[own]) != 0)
        own++;
    if (own == MAX_TOGETHER || all[own] == NULL || strcmp(l->leaf, "o_proj") == 0)
        return;
    bool there[MAX_TOGETHER] = {false};
    unsigned present = 0;
    for (size_t i = 0; i < MAX_TOGETHER && all[i] != NULL; i++) {
        there[i] = find_leaf(q, l->module, stem, all[i]);
        if (there[i] && i < own) /* only the first one present reports missing siblings */
            return;
        /* Hy-V4's gate has another name. */
        there[i] = there[i] || (strcmp(all[i], "gate_proj") == 0 && find_leaf(q, l->module, stem, "linear_gate"));
        present += there[i];
    }
    for (size_t i = 0; i < MAX_TOGETHER && all[i] != NULL; i++) {
        if (!there[i] && is_expected(names, l, set, all[i], present, known[i]))
            tsr_query_note(q, true, l->module, "missing", "download what is missing", "no '%.*s%s.weight' beside it",
                           (int)stem, l->module, all[i]);
    }
}

static void check_companions(const tsr_load_query *q)
{
    folded names = {0};
    if (!fold_all(&names, q->linears))
        q->issues->failed = true;
    for (size_t k = 0; !q->issues->failed && k < COUNT(kTogether); k++) {
        bool known[MAX_TOGETHER] = {false};
        for (size_t i = 0; i < q->linears->count; i++) {
            for (size_t m = 0; m < MAX_TOGETHER && kTogether[k][m] != NULL; m++)
                known[m] = known[m] || strcmp(q->linears->items[i].leaf, kTogether[k][m]) == 0;
        }
        if (q->s->model->kv_lora_rank > 0 && strcmp(kTogether[k][0], "q_proj") == 0)
            continue;
        for (size_t i = 0; i < q->linears->count; i++) {
            if (q->linears->items[i].tensor->rank == 2)
                check_companions_of(q, &q->linears->items[i], k, known, &names);
        }
    }
    tsr_arena_free(&names.arena);
}

/* Returns the number of experts of a layer according to config.json. The MTP stages of DeepSeek-V4.1 have fewer than
 * its layers. (vLLM's dspark.py and SGLang's deepseek_v4_dspark.py) */
static uint64_t experts_of(const tsr_load_query *q, const tsr_linear *l)
{
    uint64_t stages;
    return l->mtp && tsr_config_find_u64(q->s->checkpoint, "dspark_n_routed_experts", &stages) && stages > 0
               ? stages
               : q->s->model->experts;
}

static void check_experts(const tsr_load_query *q)
{
    for (size_t i = 0; q->s->model->experts > 0 && i < q->linears->count; i++) {
        const tsr_linear *const l = &q->linears->items[i];
        const uint64_t experts = experts_of(q, l);
        size_t digits;
        const size_t number = tsr_experts_length(l->module, &digits);
        if (digits != 1 || strncmp(l->module + number, "0.", 2) != 0)
            continue;
        char name[1200];
        for (uint64_t e = 1; e < experts; e++) {
            snprintf(name, sizeof name, "%.*s%llu.%s.weight", (int)number, l->module, U64(e), l->module + number + 2);
            if (find(q, name))
                continue;
            tsr_query_note(q, true, l->module, "missing", "download what is missing",
                           "config.json says %llu experts, but '%s' does not exist", U64(experts), name);
            break;
        }
    }
}

/* Reports layers without a tensor. LongCat-Flash has num_layers layers, and two attentions in each, which
 * num_hidden_layers counts. */
static void check_layers(const tsr_load_query *q)
{
    const tsr_model *const m = q->s->model;
    const tsr_tensors *const all = &q->s->checkpoint->tensors;
    uint64_t layers = m->layers;
    bool mtp = false;
    if (tsr_query_family(q, " longcat_flash ") && !tsr_config_find_u64(q->s->checkpoint, "num_layers", &layers))
        layers = m->layers;
    unsigned char *const seen = calloc(m->layers + 1, 1);
    if (seen == NULL) {
        q->issues->failed = true;
        return;
    }
    for (size_t i = 0; i < all->count; i++) {
        uint64_t layer;
        mtp = mtp || tsr_model_is_mtp(m, all->items[i].name);
        if (tsr_layer_of(all->items[i].name, &layer) && layer < m->layers)
            seen[layer] = 1;
    }
    uint64_t missing = 0, first = 0;
    for (uint64_t layer = tsr_min_u64(layers, m->layers); layer-- > 0;) {
        missing += !seen[layer];
        first = seen[layer] ? first : layer;
    }
    free(seen);
    if (missing > 0)
        tsr_query_note(q, true, NULL, "missing", "download what is missing",
                       "config.json says %llu layers, but no tensor belongs to layer %llu and %llu other layers",
                       U64(m->layers), U64(first), U64(missing - 1));
    const bool engine = q->loader != TSR_LOADER_TRANSFORMERS && q->loader != TSR_LOADER_DEEPSEEK;
    if (engine && m->mtp_layers > 0 && !mtp)
        tsr_query_note(
            q, false, NULL, "MTP", "copy the MTP layer from the original, or set num_nextn_predict_layers to 0",
            "config.json says num_nextn_predict_layers %llu, but no tensor belongs to layer %llu or above: no "
            "speculative decoding",
            U64(m->mtp_layers), U64(m->layers));
    if (engine && m->mtp_layers == 0 && mtp)
        tsr_query_note(
            q, false, NULL, "MTP", "set num_nextn_predict_layers to 1",
            "tensors of layer %llu or above exist, but config.json has no num_nextn_predict_layers: they are dropped "
            "without an error",
            U64(m->layers));
}

/* Returns true if any tensor of this part exists: outside of the layers or, if `layers`, inside. */
static bool has_part(const tsr_load_query *q, tsr_part part, bool layers)
{
    uint64_t layer;
    for (size_t i = 0; i < q->s->weights->count; i++) {
        const char *const name = q->s->weights->items[i].values->name;
        if (tsr_layer_of(name, &layer) == layers && tsr_part_of(name) == part)
            return true;
    }
    return false;
}

/* Checks for embeddings, the last norm and the output head, whose names differ in some families. A family whose norms
 * have no weights has none in its layers either. */
static void check_ends(const tsr_load_query *q)
{
    const struct {
        tsr_part part;
        const char *usual;
        bool asked;
    } kEnds[] = {{TSR_PART_EMBEDDING, "model.embed_tokens.weight", true},
                 {TSR_PART_NORM, "model.norm.weight", has_part(q, TSR_PART_NORM, true)},
                 {TSR_PART_HEAD, "lm_head.weight", q->s->model->untied}};
    for (size_t i = 0; i < COUNT(kEnds); i++) {
        if (kEnds[i].asked && !has_part(q, kEnds[i].part, false))
            tsr_query_note(q, true, NULL, "missing", "download what is missing", "there is no '%s'", kEnds[i].usual);
    }
}

void tsr_rule_presence(const tsr_load_query *q)
{
    uint64_t layer;
    bool plain = false; /* names are those of a text model of transformers */
    for (size_t i = 0; i < q->linears->count && !plain; i++)
        plain = strncmp(q->linears->items[i].module, "model.layers.", 13) == 0 &&
                tsr_layer_of(q->linears->items[i].module, &layer);
    check_companions(q);
    check_experts(q);
    if (q->s->model->layers > 0 && plain) {
        check_layers(q);
        check_ends(q);
    }
}

/* ---- single loaders ---- */

/* Reports ragged blocks. When it dequantizes, transformers computes the block as size / number of scales
 * (finegrained_fp8.py, _dequantize_one). It stops if that is not an integer, and is silently wrong if it is an integer
 * but not the block size. A single scale is always right. For compressed-tensors it pads instead. */
static void check_ragged(const tsr_load_query *q, const tsr_linear *l)
{
    if (l->block.rows == 0 || !tsr_linear_is_fp8(l) || tsr_query_compressed_tensors(q))
        return;
    const struct {
        uint64_t size, block, grid;
        const char *what;
    } kSides[] = {{l->rows, l->block.rows, l->grid_rows, "rows"}, {l->cols, l->block.cols, l->grid_cols, "columns"}};
    for (size_t i = 0; i < COUNT(kSides); i++) {
        const uint64_t size = kSides[i].size, block = kSides[i].block, grid = kSides[i].grid;
        if (size % block == 0 || grid == 1)
            continue;
        tsr_query_note(q, true, l->tensor->name, "ragged blocks",
                       "keep it in BF16 for this loader with `tessera quantize --exclude GLOB`",
                       "%llu / %llu = %g scale %s: on a GPU without FP8 the loader computes the block as %llu / %llu "
                       "= %g, and %s",
                       U64(size), U64(block), (double)size / (double)block, kSides[i].what, U64(size), U64(grid),
                       (double)size / (double)grid,
                       size % grid == 0 ? "gives wrong values without an error"
                                        : "refuses a block size that is not an integer");
    }
}

void tsr_rule_transformers(const tsr_load_query *q)
{
    if (q->loader != TSR_LOADER_TRANSFORMERS)
        return;
    if (q->s->checkpoint->index_path != NULL && !q->s->index_metadata)
        tsr_query_note(q, true, NULL, "index", "add \"metadata\": {\"total_size\": ...} to the index",
                       "the index has no key 'metadata': older versions fail with KeyError");
    for (size_t i = 0; i < q->linears->count; i++) {
        if (tsr_query_reads(q, &q->linears->items[i]))
            check_ragged(q, &q->linears->items[i]);
    }
}

/* Checks that TensorRT-LLM can divide the scales of kv_b_proj by head. */
void tsr_rule_head_scales(const tsr_load_query *q)
{
    const tsr_model *const m = q->s->model;
    for (size_t i = 0; q->loader == TSR_LOADER_TRTLLM && i < q->linears->count; i++) {
        const tsr_linear *const l = &q->linears->items[i];
        if (strcmp(l->leaf, "kv_b_proj") != 0 || l->block.rows == 0 || !tsr_linear_is_fp8(l) ||
            (m->nope % l->block.rows == 0 && m->v_head_dim % l->block.rows == 0))
            continue;
        tsr_query_note(
            q, true, l->tensor->name, "head boundaries",
            "keep it in BF16 with `tessera quantize --exclude '*.kv_b_proj.*'`",
            "a head has %llu + %llu = %llu rows: %llu / %llu = %g scale rows, which cannot be divided among heads",
            U64(m->nope), U64(m->v_head_dim), U64(m->nope + m->v_head_dim), U64(m->nope + m->v_head_dim),
            U64(l->block.rows), (double)(m->nope + m->v_head_dim) / (double)l->block.rows);
    }
}

/* Checks that convert.py can rename every tensor: its table must contain the last component but one of each name. */
static void check_deepseek_names(const tsr_load_query *q)
{
    static const char kKeys[] = " embed_tokens input_layernorm post_attention_layernorm q_proj q_a_proj q_a_layernorm "
                                "q_b_proj kv_a_proj_with_mqa kv_a_layernorm kv_b_proj o_proj gate gate_proj down_proj "
                                "up_proj norm lm_head ";
    static const char kIndexerKeys[] = " wq_b wk k_norm weights_proj "; /* V3.2's own convert.py */
    enum { DROPPED_LAYER = 61 };
    const tsr_weights *const all = q->s->weights;
    const tsr_model *const m = q->s->model;
    const char *left = NULL, *lost = NULL;
    size_t n_left = 0, n_lost = 0;
    for (size_t i = 0; i < all->count; i++) {
        const char *const name = all->items[i].values->name;
        if (strncmp(name, "layers.", 7) == 0) {
            tsr_query_note(q, true, name, "names", "check the checkpoint that it was made from",
                           "this is a name of DeepSeek's own layout: convert.py has already converted the checkpoint");
            return;
        }
        const bool dropped = strstr(name, "model.layers.61") != NULL, mtp = tsr_model_is_mtp(m, name);
        if (dropped && !mtp && m->layers > DROPPED_LAYER && n_lost++ == 0)
            lost = name;
        if (mtp && !dropped && n_left++ == 0)
            left = name;
        if (dropped || mtp)
            continue;
        const char *const last = strrchr(name, '.');
        const char *from = last;
        while (from != NULL && from > name && from[-1] != '.')
            from--;
        char word[64];
        snprintf(word, sizeof word, " %.*s ", last == NULL ? 0 : (int)(last - from > 60 ? 60 : last - from),
                 last == NULL ? "" : from);
        const bool indexer = from - name > 9 && memcmp(from - 9, ".indexer.", 9) == 0;
        if (strstr(kKeys, word) == NULL && (!indexer || strstr(kIndexerKeys, word) == NULL))
            tsr_query_note(q, true, name, "names", NULL, "convert.py does not know '%.*s': 'Key not found in mapping'",
                           last == NULL ? 0 : (int)(last - from), last == NULL ? "" : from);
    }
    if (n_lost > 0)
        tsr_query_note(q, true, lost, "MTP",
                       "use `tessera convert --to deepseek-mp --mp N`, which drops the MTP "
                       "layer by its number",
                       "convert.py drops every name with 'model.layers.61' in it, here %zu tensors of the main model",
                       n_lost);
    if (n_left > 0)
        tsr_query_note(
            q, true, left, "MTP",
            "use `tessera convert --to deepseek-mp --mp N`, which drops it by the layer number in config.json",
            "it and %zu others belong to the MTP layer, %llu; convert.py drops layer 61 only, and its loader refuses "
            "extra tensors",
            n_left - 1, U64(m->layers));
}

/* Gate in model.py has a bias only if the width is 7168, and a file must hold exactly the tensors of the model. */
static void check_deepseek_bias(const tsr_load_query *q)
{
    enum { WIDTH_WITH_BIAS = 7168 };
    const uint64_t width = q->s->model->hidden;
    const tsr_weights *const all = q->s->weights;
    const char *bias = NULL, *gate = NULL;
    for (size_t i = 0; i < all->count; i++) {
        const char *const name = all->items[i].values->name;
        if (tsr_model_is_mtp(q->s->model, name))
            continue;
        bias = tsr_glob_match("*.mlp.gate.e_score_correction_bias", name) ? name : bias;
        gate = tsr_glob_match("*.mlp.gate.weight", name) ? name : gate;
    }
    if (bias != NULL && width != WIDTH_WITH_BIAS)
        tsr_query_note(
            q, true, bias, "router bias", NULL,
            "model.py has a bias for the router only if hidden_size is 7168, but it is %llu: 'Unexpected key'",
            U64(width));
    if (gate != NULL && bias == NULL && width == WIDTH_WITH_BIAS)
        tsr_query_note(q, true, gate, "router bias", "download what is missing",
                       "model.py needs a bias for the router if hidden_size is 7168, and there is none: 'Missing key'");
}

void tsr_rule_deepseek(const tsr_load_query *q)
{
    const tsr_linear *fp8 = NULL;
    check_deepseek_names(q);
    check_deepseek_bias(q);
    for (size_t i = 0; i < q->linears->count && fp8 == NULL; i++)
        fp8 = tsr_linear_is_fp8(&q->linears->items[i]) ? &q->linears->items[i] : NULL;
    for (size_t i = 0; fp8 != NULL && i < q->linears->count; i++) {
        const tsr_linear *const l = &q->linears->items[i];
        if (strcmp(l->leaf, "weights_proj") == 0) /* V3.2's indexer has this one in BF16 */
            continue;
        if (!tsr_linear_is_quantized(l) && tsr_query_reads(q, l))
            tsr_query_note(q, true, l->tensor->name, "partly quantized", "quantize every linear layer, or none",
                           "it is %s but '%s' is FP8; the model has one dtype for all linear layers",
                           tsr_dtype_name((tsr_dtype)l->tensor->dtype), fp8->tensor->name);
    }
}
