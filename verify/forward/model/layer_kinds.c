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
    {"linear_attention", TSR_LAYER_DELTA},
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
        return true;
    case TSR_LAYER_WINDOW:
        return rule != TSR_WINDOW_UNKNOWN && rule != TSR_DELTA_PATTERN;
    case TSR_LAYER_DELTA:
        return rule == TSR_DELTA_PATTERN;
    }
    return false;
}

/* Returns the kind of layer i by the rule of the family. */
static tsr_layer_kind kind_by_rule(const tsr_forward *f, size_t i)
{
    const size_t pattern = (size_t)tsr_max_u64(number(f, "sliding_window_pattern", 6), 1);
    const size_t interval = (size_t)tsr_max_u64(number(f, "full_attention_interval", 4), 1);
    const size_t later = number(f, "max_window_layers", SIZE_MAX);
    bool slides = false;
    switch (f->family->layers) {
    case TSR_WINDOW_UNKNOWN:
    case TSR_WINDOW_LISTED:
        break;
    case TSR_WINDOW_ALL:
        slides = true;
        break;
    case TSR_WINDOW_EVEN:
        slides = i % 2 == 0;
        break;
    case TSR_WINDOW_PATTERN:
        slides = (i + 1) % pattern != 0;
        break;
    case TSR_WINDOW_LATER:
        slides = tsr_forward_is(f, "use_sliding_window", "true") && i >= later;
        break;
    case TSR_WINDOW_FROM:
        slides = i >= later;
        break;
    case TSR_DELTA_PATTERN:
        return (i + 1) % interval != 0 ? TSR_LAYER_DELTA : TSR_LAYER_FULL;
    }
    return slides ? TSR_LAYER_WINDOW : TSR_LAYER_FULL;
}

static tsr_status set_type(const tsr_forward *f, size_t layer, tsr_json_text word, tsr_err *err)
{
    size_t i = 0;
    while (i < sizeof kTypes / sizeof *kTypes &&
           (strlen(kTypes[i].name) != word.size || memcmp(word.data, kTypes[i].name, word.size) != 0))
        i++;
    if (i == sizeof kTypes / sizeof *kTypes || !allows(f, kTypes[i].kind))
        return tsr_fail(err, TSR_E_UNSUPPORTED, "%s/" TSR_CONFIG_NAME ": layer_types[%zu] is '%.*s'",
                        f->side->checkpoint->path, layer, (int)tsr_min_u64(word.size, 64), word.data);
    if (layer < f->layers)
        f->kinds[layer] = kTypes[i].kind;
    return TSR_OK;
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

/* Sets has_rope by no_rope_layers, a list with 0 for a layer without RoPE, else by no_rope_layer_interval. */
static tsr_status read_listed_rope(const tsr_forward *f, tsr_err *err)
{
    const tsr_checkpoint *const c = f->side->checkpoint;
    const size_t interval = (size_t)tsr_max_u64(number(f, "no_rope_layer_interval", 4), 1);
    tsr_json_text list;
    uint64_t flag;
    size_t layer = 0;
    for (size_t i = 0; i < f->layers; i++)
        f->has_rope[i] = (i + 1) % interval != 0;
    if (!tsr_config_find_model(c, "no_rope_layers", &list) || tsr_json_is(list, "null"))
        return TSR_OK;
    tsr_json_reader r = tsr_json_open(c->path, list.data, list.size);
    bool more = tsr_json_enter_array(&r, NULL) == TSR_OK;
    for (; more && tsr_json_next_element(&r, &more, NULL) == TSR_OK && more; layer++) {
        if (tsr_json_read_u64(&r, &flag, NULL) != TSR_OK)
            break;
        if (layer < f->layers)
            f->has_rope[layer] = flag != 0;
    }
    return layer == f->layers
               ? TSR_OK
               : tsr_fail(err, TSR_E_FORMAT, "%s/" TSR_CONFIG_NAME ": no_rope_layers must have %zu numbers", c->path,
                          f->layers);
}

static tsr_status read_ropes(const tsr_forward *f, tsr_err *err)
{
    for (size_t i = 0; i < f->layers; i++)
        f->has_rope[i] = (f->traits & TSR_WINDOW_ROPE) == 0 || f->window == SIZE_MAX || f->kinds[i] == TSR_LAYER_WINDOW;
    return (f->traits & TSR_LISTED_ROPE) != 0 ? read_listed_rope(f, err) : TSR_OK;
}

tsr_status tsr_layer_kinds_read(tsr_forward *f, tsr_err *err)
{
    const tsr_checkpoint *const c = f->side->checkpoint;
    tsr_json_text types;
    f->window = tsr_forward_is(f, "use_sliding_window", "false") ? SIZE_MAX : number(f, "sliding_window", SIZE_MAX);
    f->window = f->window == 0 ? SIZE_MAX : f->window;
    f->kinds = tsr_arena_alloc(&f->arena, f->layers * sizeof *f->kinds);
    f->has_rope = tsr_arena_alloc(&f->arena, f->layers * sizeof *f->has_rope);
    if (f->kinds == NULL || f->has_rope == NULL)
        return tsr_out_of_memory(err, NULL);
    for (size_t i = 0; i < f->layers; i++)
        f->kinds[i] = kind_by_rule(f, i);
    const bool listed = tsr_config_find_model(c, "layer_types", &types) && !tsr_json_is(types, "null");
    if (listed)
        TSR_TRY(read_types(f, types, err));
    else if (f->family->layers == TSR_WINDOW_LISTED && f->window != SIZE_MAX)
        return tsr_fail(err, TSR_E_FORMAT, "%s/" TSR_CONFIG_NAME ": sliding_window without layer_types", c->path);
    return read_ropes(f, err);
}
