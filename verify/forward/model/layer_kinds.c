/* Reads layer types, windows, and layers without RoPE from config.json. */
#include "verify/forward/forward_parts.h"

#include "common/checked.h"
#include "formats/checkpoint/config.h"

#include <string.h>

/* Names of layer types. The first of a kind is transformers' own. */
static const struct {
    const char *name;
    tsr_layer_kind kind;
} kTypes[] = {
    {"full_attention", TSR_LAYER_FULL},
    {"attention", TSR_LAYER_FULL},
    {"sliding_attention", TSR_LAYER_WINDOW},
    {"indexed_attention", TSR_LAYER_INDEXED},
    {"deepseek_sparse_attention", TSR_LAYER_INDEXED},
    {"minimax_m3_sparse", TSR_LAYER_INDEXED},
    {"compressed_sparse_attention", TSR_LAYER_INDEXED},
    {"heavily_compressed_attention", TSR_LAYER_COMPRESSED},
    {"linear_attention", TSR_LAYER_DELTA},
    {"linear_attention", TSR_LAYER_KIMI},
    {"linear_attention", TSR_LAYER_SCAN},
    {"mamba", TSR_LAYER_SCAN},
    {"moe", TSR_LAYER_MLP},
    {"mlp", TSR_LAYER_MLP},
};

static size_t number(const tsr_forward *f, const char *key, size_t otherwise)
{
    return tsr_forward_size(f, key, otherwise);
}

/* Returns true if layers of the family can have this kind. */
static bool allows(const tsr_forward *f, tsr_layer_kind kind)
{
    const tsr_layer_rule rule = f->family->layers;
    switch (kind) {
    case TSR_LAYER_FULL:
        return rule != TSR_INDEXED_ALL && rule != TSR_COMPRESSED_LISTED;
    case TSR_LAYER_INDEXED:
        return rule == TSR_INDEXED_ALL || rule == TSR_INDEXED_LISTED || rule == TSR_COMPRESSED_LISTED;
    case TSR_LAYER_COMPRESSED:
        return rule == TSR_COMPRESSED_LISTED;
    case TSR_LAYER_WINDOW:
        return (rule != TSR_WINDOW_UNKNOWN && rule < TSR_DELTA_PATTERN) || rule == TSR_COMPRESSED_LISTED;
    case TSR_LAYER_DELTA:
        return rule == TSR_DELTA_PATTERN;
    case TSR_LAYER_KIMI:
        return rule == TSR_KIMI_LISTED;
    case TSR_LAYER_SCAN:
        return rule == TSR_SCAN_LISTED || rule == TSR_BLOCKS_LISTED;
    case TSR_LAYER_MLP:
        return rule == TSR_BLOCKS_LISTED;
    }
    return false;
}

/* Numbers of config.json that rules use. */
typedef struct rule_numbers {
    size_t pattern, listed; /* sliding_window_pattern: by default 6, and 0 if it is not stated */
    size_t interval;        /* full_attention_interval */
    size_t later;           /* max_window_layers; SIZE_MAX: none */
    bool windows_on;        /* use_sliding_window */
} rule_numbers;

static rule_numbers read_rule_numbers(const tsr_forward *f)
{
    return (rule_numbers){.pattern = (size_t)tsr_max_u64(number(f, "sliding_window_pattern", 6), 1),
                          .listed = number(f, "sliding_window_pattern", 0),
                          .interval = (size_t)tsr_max_u64(number(f, "full_attention_interval", 4), 1),
                          .later = number(f, "max_window_layers", SIZE_MAX),
                          .windows_on = tsr_forward_is(f, "use_sliding_window", "true")};
}

/* Returns the kind of layer i by a rule. */
static tsr_layer_kind kind_by_rule(tsr_layer_rule rule, const rule_numbers *n, size_t i)
{
    bool slides = false;
    switch (rule) {
    case TSR_WINDOW_LISTED:
        slides = n->listed != 0 && (i + 1) % n->listed != 0;
        break;
    case TSR_WINDOW_UNKNOWN:
    case TSR_KIMI_LISTED:
    case TSR_SCAN_LISTED:
    case TSR_BLOCKS_LISTED:
    case TSR_INDEXED_LISTED:
        break;
    case TSR_WINDOW_ALL:
        slides = true;
        break;
    case TSR_WINDOW_EVEN:
        slides = i % 2 == 0;
        break;
    case TSR_WINDOW_PATTERN:
        slides = (i + 1) % n->pattern != 0;
        break;
    case TSR_WINDOW_LATER:
        slides = n->windows_on && i >= n->later;
        break;
    case TSR_WINDOW_FROM:
        slides = i >= n->later;
        break;
    case TSR_DELTA_PATTERN:
        return (i + 1) % n->interval != 0 ? TSR_LAYER_DELTA : TSR_LAYER_FULL;
    case TSR_COMPRESSED_LISTED: /* DeepseekV4Config of transformers, if it lists nothing */
        return i >= 2 && i % 2 != 0 ? TSR_LAYER_INDEXED : TSR_LAYER_COMPRESSED;
    case TSR_INDEXED_ALL:
        return TSR_LAYER_INDEXED;
    }
    return slides ? TSR_LAYER_WINDOW : TSR_LAYER_FULL;
}

static tsr_status set_type(const tsr_forward *f, size_t layer, tsr_json_text word, tsr_err *err)
{
    for (size_t i = 0; i < sizeof kTypes / sizeof *kTypes; i++) {
        if (strlen(kTypes[i].name) != word.size || memcmp(word.data, kTypes[i].name, word.size) != 0 ||
            !allows(f, kTypes[i].kind))
            continue;
        if (layer < f->layers)
            f->kinds[layer] = kTypes[i].kind;
        return TSR_OK;
    }
    return tsr_fail(err, TSR_E_UNSUPPORTED, "%s/" TSR_CONFIG_NAME ": layer_types[%zu] is '%.*s'",
                    f->side->checkpoint->path, layer, (int)tsr_min_u64(word.size, 64), word.data);
}

/* Finds the list of layer types, under the name of the family. */
static bool find_types(const tsr_forward *f, tsr_json_text *types)
{
    static const char *const kKeys[] = {"layer_types", "layers_block_type"};
    for (size_t i = 0; i < sizeof kKeys / sizeof *kKeys; i++) {
        if (tsr_config_find_model(f->side->checkpoint, kKeys[i], types) && !tsr_json_is(*types, "null"))
            return true;
    }
    return false;
}

/* Finds the letters of hybrid_override_pattern between its quotes. */
static bool find_pattern(const tsr_forward *f, tsr_json_text *letters)
{
    if ((f->traits & TSR_ONE_BLOCK) == 0 ||
        !tsr_config_find_model(f->side->checkpoint, "hybrid_override_pattern", letters) || letters->size < 2 ||
        letters->data[0] != '"')
        return false;
    letters->data++;
    letters->size -= 2;
    return true;
}

/* Sets kinds by hybrid_override_pattern, a letter for each layer. */
static tsr_status read_pattern(const tsr_forward *f, tsr_json_text letters, tsr_err *err)
{
    static const char kLetters[] = "M*E-";
    static const tsr_layer_kind kKinds[] = {TSR_LAYER_SCAN, TSR_LAYER_FULL, TSR_LAYER_MLP, TSR_LAYER_MLP};
    const char *const path = f->side->checkpoint->path;
    if (letters.size != f->layers)
        return tsr_fail(err, TSR_E_FORMAT, "%s/" TSR_CONFIG_NAME ": hybrid_override_pattern must have %zu letters",
                        path, f->layers);
    for (size_t i = 0; i < f->layers; i++) {
        const char *const at = memchr(kLetters, letters.data[i], sizeof kLetters - 1);
        if (at == NULL)
            return tsr_fail(err, TSR_E_UNSUPPORTED, "%s/" TSR_CONFIG_NAME ": hybrid_override_pattern[%zu] is '%c'",
                            path, i, letters.data[i]);
        f->kinds[i] = kKinds[at - kLetters];
    }
    return TSR_OK;
}

/* Sets kind for the layers, counted from 1, that linear_attn_config lists at `key`. Adds their number to *n. */
static tsr_status read_numbers(const tsr_forward *f, const char *key, tsr_layer_kind kind, size_t *n, tsr_err *err)
{
    const char *const path = f->side->checkpoint->path;
    tsr_json_text list;
    uint64_t number;
    if (!tsr_config_find_model(f->side->checkpoint, key, &list))
        return TSR_OK;
    tsr_json_reader r = tsr_json_open(path, list.data, list.size);
    bool more = tsr_json_enter_array(&r, NULL) == TSR_OK;
    for (; more && tsr_json_next_element(&r, &more, NULL) == TSR_OK && more; ++*n) {
        if (tsr_json_read_u64(&r, &number, NULL) != TSR_OK || number == 0 || number > f->layers)
            return tsr_fail(err, TSR_E_FORMAT, "%s/" TSR_CONFIG_NAME ": %s is not a list of layers", path, key);
        f->kinds[number - 1] = kind;
    }
    return TSR_OK;
}

/* Sets kinds by linear_attn_config, which lists each layer once. */
static tsr_status read_kimi(const tsr_forward *f, tsr_err *err)
{
    size_t n = 0;
    TSR_TRY(read_numbers(f, "linear_attn_config.kda_layers", TSR_LAYER_KIMI, &n, err));
    TSR_TRY(read_numbers(f, "linear_attn_config.full_attn_layers", TSR_LAYER_FULL, &n, err));
    return n == f->layers
               ? TSR_OK
               : tsr_fail(err, TSR_E_FORMAT, "%s/" TSR_CONFIG_NAME ": linear_attn_config must list %zu layers",
                          f->side->checkpoint->path, f->layers);
}

size_t tsr_layer_kinds_count(const tsr_forward *f)
{
    tsr_json_text found;
    if ((f->traits & TSR_ONE_BLOCK) == 0)
        return 0;
    if (find_pattern(f, &found))
        return found.size;
    size_t n = 0;
    if (find_types(f, &found)) {
        tsr_json_reader r = tsr_json_open(f->side->checkpoint->path, found.data, found.size);
        tsr_json_text word;
        bool more = tsr_json_enter_array(&r, NULL) == TSR_OK;
        while (more && tsr_json_next_element(&r, &more, NULL) == TSR_OK && more &&
               tsr_json_read_string(&r, &word, NULL) == TSR_OK)
            n++;
    }
    return n;
}

const char *tsr_forward_module(const tsr_forward *f, size_t layer)
{
    static const char *const kModules[] = {[TSR_LAYER_FULL] = "self_attn",    [TSR_LAYER_WINDOW] = "self_attn",
                                           [TSR_LAYER_INDEXED] = "self_attn", [TSR_LAYER_COMPRESSED] = "attn",
                                           [TSR_LAYER_DELTA] = "linear_attn", [TSR_LAYER_KIMI] = "self_attn",
                                           [TSR_LAYER_SCAN] = "mamba",        [TSR_LAYER_MLP] = "mlp"};
    return (f->traits & TSR_ONE_BLOCK) != 0 ? "mixer"
           : (f->traits & TSR_STREAMS) != 0 ? "attn"
                                            : kModules[f->kinds[layer]];
}

/* Sets kinds by layer_types, a list with one word per layer. */
static tsr_status read_types(const tsr_forward *f, tsr_json_text types, tsr_err *err)
{
    const tsr_checkpoint *const c = f->side->checkpoint;
    tsr_json_reader r = tsr_json_open(c->path, types.data, types.size);
    tsr_json_text word;
    size_t layer = 0;
    bool more = tsr_json_enter_array(&r, NULL) == TSR_OK;
    while (more && tsr_json_next_element(&r, &more, NULL) == TSR_OK && more) {
        if (tsr_json_read_string(&r, &word, NULL) != TSR_OK)
            break;
        TSR_TRY(set_type(f, layer++, word, err));
    }
    return layer == f->layers ? TSR_OK
                              : tsr_fail(err, TSR_E_FORMAT, "%s/" TSR_CONFIG_NAME ": layer_types must have %zu entries",
                                         c->path, f->layers);
}

/* Reads a list at `key` with a number for each layer. A flag is true if the number is not 0. */
static tsr_status read_flags(const tsr_forward *f, const char *key, bool *flags, tsr_err *err)
{
    const tsr_checkpoint *const c = f->side->checkpoint;
    tsr_json_text list = {0};
    uint64_t number;
    size_t layer = 0;
    tsr_config_find_model(c, key, &list);
    tsr_json_reader r = tsr_json_open(c->path, list.data, list.size);
    bool more = tsr_json_enter_array(&r, NULL) == TSR_OK;
    for (; more && tsr_json_next_element(&r, &more, NULL) == TSR_OK && more; layer++) {
        if (tsr_json_read_u64(&r, &number, NULL) != TSR_OK)
            break;
        if (layer < f->layers)
            flags[layer] = number != 0;
    }
    return layer == f->layers ? TSR_OK
                              : tsr_fail(err, TSR_E_FORMAT, "%s/" TSR_CONFIG_NAME ": %s must have %zu numbers", c->path,
                                         key, f->layers);
}

/* Sets has_rope by no_rope_layers, a list with 0 for a layer without RoPE, else by no_rope_layer_interval. */
static tsr_status read_listed_rope(const tsr_forward *f, tsr_err *err)
{
    static const char kKey[] = "no_rope_layers";
    const size_t interval = (size_t)tsr_max_u64(number(f, "no_rope_layer_interval", 4), 1);
    tsr_json_text list;
    for (size_t i = 0; i < f->layers; i++)
        f->has_rope[i] = (i + 1) % interval != 0;
    return tsr_config_find_model(f->side->checkpoint, kKey, &list) && !tsr_json_is(list, "null")
               ? read_flags(f, kKey, f->has_rope, err)
               : TSR_OK;
}

/* Sets kinds by a list of flags, if config.json has one at `key`: `kind` or full attention. *found tells so. */
static tsr_status read_flagged(tsr_forward *f, const char *key, tsr_layer_kind kind, bool *found, tsr_err *err)
{
    tsr_json_text list;
    *found = tsr_config_find_model(f->side->checkpoint, key, &list);
    if (!*found)
        return TSR_OK;
    bool *const flags = tsr_arena_alloc(&f->arena, f->layers * sizeof *flags);
    if (flags == NULL)
        return tsr_out_of_memory(err, NULL);
    TSR_TRY(read_flags(f, key, flags, err));
    for (size_t i = 0; i < f->layers; i++)
        f->kinds[i] = flags[i] ? kind : TSR_LAYER_FULL;
    return TSR_OK;
}

/* Reads the most tokens that layers with a window see, the query's own included. */
static size_t read_window(const tsr_forward *f)
{
    size_t window = number(f, "sliding_window", (f->traits & TSR_STREAMS) != 0 ? 128 : SIZE_MAX);
    if ((f->traits & TSR_WINDOW_HEADS) != 0 && number(f, "sliding_window_size", 0) > 0)
        window = number(f, "sliding_window_size", 0) + 1; /* transformers 5.24, MiMoV2FlashConfig */
    return window == 0 || tsr_forward_is(f, "use_sliding_window", "false") ? SIZE_MAX : window;
}

/* Sets kinds by compress_ratios, a list with 0, 4 or 128 for each layer and perhaps more, if config.json has it. */
static tsr_status read_ratios(tsr_forward *f, tsr_err *err)
{
    static const char kKey[] = "compress_ratios";
    const char *const path = f->side->checkpoint->path;
    tsr_json_text list;
    uint64_t ratio;
    size_t layer = 0;
    if (!tsr_config_find_model(f->side->checkpoint, kKey, &list) || tsr_json_is(list, "null"))
        return TSR_OK;
    tsr_json_reader r = tsr_json_open(path, list.data, list.size);
    bool more = tsr_json_enter_array(&r, NULL) == TSR_OK;
    for (; more && layer < f->layers && tsr_json_next_element(&r, &more, NULL) == TSR_OK && more; layer++) {
        if (tsr_json_read_u64(&r, &ratio, NULL) != TSR_OK)
            break;
        if (ratio != 0 && ratio != 4 && ratio != 128)
            return tsr_fail(err, TSR_E_UNSUPPORTED, "%s/" TSR_CONFIG_NAME ": %s[%zu] is %llu, not 0, 4 or 128", path,
                            kKey, layer, U64(ratio));
        f->kinds[layer] = ratio == 0 ? TSR_LAYER_WINDOW : ratio == 4 ? TSR_LAYER_INDEXED : TSR_LAYER_COMPRESSED;
    }
    return layer == f->layers
               ? TSR_OK
               : tsr_fail(err, TSR_E_FORMAT, "%s/" TSR_CONFIG_NAME ": %s must have %zu numbers", path, kKey, f->layers);
}

/* Sets the kinds of a family that lists them neither in layer_types nor as letters. */
static tsr_status read_unlisted(tsr_forward *f, tsr_err *err)
{
    const char *const path = f->side->checkpoint->path;
    bool found;
    switch (f->family->layers) {
    case TSR_INDEXED_LISTED:
        return read_flagged(f, "sparse_attention_config.sparse_attention_freq", TSR_LAYER_INDEXED, &found, err);
    case TSR_KIMI_LISTED:
        return read_kimi(f, err);
    case TSR_COMPRESSED_LISTED:
        return read_ratios(f, err);
    case TSR_SCAN_LISTED:
    case TSR_BLOCKS_LISTED:
        return tsr_fail(err, TSR_E_FORMAT, "%s/" TSR_CONFIG_NAME ": no layer_types", path);
    case TSR_WINDOW_LISTED:
        TSR_TRY(read_flagged(f, "hybrid_layer_pattern", TSR_LAYER_WINDOW, &found, err));
        return found || f->window == SIZE_MAX || number(f, "sliding_window_pattern", 0) != 0
                   ? TSR_OK
                   : tsr_fail(err, TSR_E_FORMAT, "%s/" TSR_CONFIG_NAME ": sliding_window without layer_types", path);
    default:
        return TSR_OK;
    }
}

static tsr_status read_ropes(tsr_forward *f, tsr_err *err)
{
    const char *const type = tsr_config_model_string(f->side->checkpoint, "position_embedding_type", &f->arena);
    const bool stated = (type != NULL && strcmp(type, "rope") == 0) || tsr_forward_is(f, "mla_use_nope", "false");
    for (size_t i = 0; i < f->layers; i++) {
        const bool windowed = f->window == SIZE_MAX || f->kinds[i] == TSR_LAYER_WINDOW;
        f->has_rope[i] =
            ((f->traits & TSR_WINDOW_ROPE) == 0 || windowed) && ((f->traits & TSR_STATED_ROPE) == 0 || stated);
    }
    return (f->traits & TSR_LISTED_ROPE) != 0 ? read_listed_rope(f, err) : TSR_OK;
}

tsr_status tsr_layer_kinds_read(tsr_forward *f, tsr_err *err)
{
    const rule_numbers numbers = read_rule_numbers(f);
    tsr_json_text types;
    f->window = read_window(f);
    f->kinds = tsr_arena_alloc(&f->arena, f->layers * sizeof *f->kinds);
    f->has_rope = tsr_arena_alloc(&f->arena, f->layers * sizeof *f->has_rope);
    if (f->kinds == NULL || f->has_rope == NULL)
        return tsr_out_of_memory(err, NULL);
    for (size_t i = 0; i < f->layers; i++)
        f->kinds[i] = kind_by_rule(f->family->layers, &numbers, i);
    if (find_types(f, &types))
        TSR_TRY(read_types(f, types, err));
    else if (find_pattern(f, &types))
        TSR_TRY(read_pattern(f, types, err));
    else
        TSR_TRY(read_unlisted(f, err));
    return read_ropes(f, err);
}
