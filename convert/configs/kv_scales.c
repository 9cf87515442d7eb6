/* Names KV-cache scales and writes the KV-cache entries of configurations. */
#include "convert/configs/kv_scales.h"

#include "common/checked.h"
#include "formats/json/json.h"
#include "formats/json/json_edit.h"
#include "formats/weights/kv_names.h"

#include <string.h>

/* ---- names ---- */

/* "self_attn.k_proj", or "self_attn.qkv_proj" for a joined projection; NULL: the layer has neither */
static const char *projection(const tsr_weights *weights, const tsr_checkpoint *c, int length, const char *name,
                              char kind, tsr_arena *arena)
{
    const char *const one = tsr_arena_printf(arena, "%.*s.%c_proj.weight", length, name, kind);
    const char *const joined = tsr_arena_printf(arena, "%.*s.qkv_proj.weight", length, name);
    const char *const found = one == NULL || joined == NULL                  ? NULL
                              : tsr_weights_find(weights, c, one) != NULL    ? one
                              : tsr_weights_find(weights, c, joined) != NULL ? joined
                                                                             : NULL;
    return found == NULL ? NULL : tsr_arena_printf(arena, "%.*s", (int)tsr_module_length(found), found);
}

/* Returns true if the dialect has names of its own for scales of a KV cache. */
static bool has_kv_names(tsr_dialect dialect)
{
    return dialect == TSR_DIALECT_COMPRESSED_TENSORS || dialect == TSR_DIALECT_MODELOPT;
}

static const char *name_of(const tsr_weights *weights, const tsr_checkpoint *c, int length, const char *name, char kind,
                           tsr_dialect dialect, tsr_arena *arena)
{
    if (dialect == TSR_DIALECT_COMPRESSED_TENSORS)
        return tsr_arena_printf(arena, "%.*s.%c_scale", length, name, kind);
    const char *const module = projection(weights, c, length, name, kind, arena);
    return module == NULL ? NULL : tsr_arena_printf(arena, "%s.%c_scale", module, kind);
}

tsr_status tsr_kv_names(const tsr_weights *weights, const tsr_checkpoint *c, const tsr_tensor *t, tsr_dialect dialect,
                        tsr_arena *arena, const char *names[2], size_t *n, tsr_err *err)
{
    tsr_kv_name kv;
    *n = 0;
    if (!has_kv_names(dialect) || !tsr_kv_name_read(t->name, &kv))
        return TSR_OK;
    if (tsr_tensor_elements(t) != 1)
        return tsr_fail(err, TSR_E_UNSUPPORTED,
                        "%s: '%s', a scale of the KV cache, has %llu values, but the dialect stores one",
                        c->files[t->file].path, t->name, U64(tsr_tensor_elements(t)));
    for (unsigned i = 0; i < 2; i++) {
        if (!(i == 0 ? kv.keys : kv.values))
            continue;
        names[*n] = name_of(weights, c, kv.attention, t->name, "kv"[i], dialect, arena);
        *n += names[*n] != NULL;
    }
    if (arena->failed)
        return tsr_out_of_memory(err, "while planning");
    if (*n == 1 && strcmp(names[0], t->name) == 0)
        *n = 0;
    return TSR_OK;
}

/* ---- configuration ---- */

static tsr_status set_in(tsr_text *out, const char *text, size_t size, const char *const *keys, size_t n,
                         const char *value, tsr_err *err)
{
    if (n == 1)
        return tsr_json_edit_set(out, text, size, keys[0], value, err);
    tsr_json_text object;
    tsr_text inner = {0};
    if (!tsr_json_find(text, size, keys[0], &object) || object.data[0] != '{')
        return tsr_text_append(out, text, size), tsr_text_status(out, err);
    tsr_status status = set_in(&inner, object.data, object.size, keys + 1, n - 1, value, err);
    if (status == TSR_OK)
        status = tsr_json_edit_set(out, text, size, keys[0], inner.data, err);
    tsr_text_free(&inner);
    return status;
}

tsr_status tsr_plan_edit_text(tsr_plan *plan, const char *name, const char *const *keys, size_t n, const char *value,
                              tsr_err *err)
{
    for (size_t i = 0; i < plan->n_texts; i++) {
        tsr_plan_text *const t = &plan->texts[i];
        tsr_text edited = {0};
        if (strcmp(t->name, name) != 0)
            continue;
        tsr_status status = set_in(&edited, t->data, t->size, keys, n, value, err);
        const char *const data = status == TSR_OK ? tsr_arena_dup(&plan->arena, edited.data, edited.size) : NULL;
        if (status == TSR_OK && data == NULL)
            status = tsr_out_of_memory(err, "while planning");
        if (status == TSR_OK)
            *t = (tsr_plan_text){.name = t->name, .data = data, .size = edited.size};
        tsr_text_free(&edited);
        TSR_TRY(status);
    }
    return TSR_OK;
}

static bool has_scales(const tsr_plan *plan)
{
    tsr_kv_name kv;
    for (size_t i = 0; i < plan->n_steps; i++) {
        if (plan->steps[i].n_out > 0 && tsr_kv_name_read(plan->steps[i].out[0]->name, &kv))
            return true;
    }
    return false;
}

tsr_status tsr_plan_kv_cache(tsr_plan *plan, const tsr_weights *weights, tsr_dialect dialect, tsr_err *err)
{
    static const char *const kScheme[] = {"text_config", "quantization_config", "kv_cache_scheme"};
    static const char *const kAlgorithm[] = {"quantization", "kv_cache_quant_algo"};
    const bool modelopt = dialect == TSR_DIALECT_MODELOPT;
    const char *const scheme = modelopt ? "{\"dynamic\": false, \"num_bits\": 8, \"type\": \"float\"}"
                                        : "{\"num_bits\": 8, \"type\": \"float\", \"strategy\": \"tensor\", "
                                          "\"dynamic\": false, \"symmetric\": true}";
    if (!has_kv_names(dialect) || weights->kv_cache == TSR_KV_UNSTATED)
        return TSR_OK;
    if (weights->kv_cache == TSR_KV_OTHER)
        return tsr_plan_warn(plan, err,
                             "the source states a KV cache that is not FP8: the output states none, and its loaders "
                             "keep the cache in floating point");
    if (!modelopt && !has_scales(plan))
        return tsr_plan_warn(
            plan, err,
            "the source states an FP8 KV cache but has no scales for it, which this dialect requires: the output "
            "states none");
    TSR_TRY(tsr_plan_edit_text(plan, TSR_CONFIG_NAME, kScheme + 1, 2, scheme, err));
    TSR_TRY(tsr_plan_edit_text(plan, TSR_CONFIG_NAME, kScheme, 3, scheme, err));
    return tsr_plan_edit_text(plan, TSR_HF_QUANT_CONFIG_NAME, kAlgorithm, 2, "\"FP8\"", err);
}
