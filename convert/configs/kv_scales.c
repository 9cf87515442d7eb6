/* Names KV-cache scales and writes the KV-cache entries of configurations. */
#include "convert/configs/kv_scales.h"

#include "common/float_bits.h"
#include "convert/ops/constant_op.h"
#include "formats/json/json.h"
#include "formats/json/json_edit.h"
#include "formats/names/model.h"
#include "formats/weights/kv_names.h"
#include "kernels/cpu/block_fp8.h"

#include <math.h>
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

/* Rejects a scale that is not a positive finite number. Other dtypes than floating point are left to readers. */
static tsr_status check_value(const tsr_checkpoint *c, const tsr_tensor *t, tsr_err *err)
{
    uint32_t bits = 0;
    char at[48];
    if (t->dtype != TSR_F32 && t->dtype != TSR_BF16 && t->dtype != TSR_F16)
        return TSR_OK;
    TSR_TRY(tsr_checkpoint_read(c, t, 0, &bits, t->bytes, err));
    const uint32_t sign = t->dtype == TSR_F32 ? 0x80000000u : 0x8000u;
    const uint32_t infinite = t->dtype == TSR_F32 ? 0x7F800000u : t->dtype == TSR_BF16 ? 0x7F80u : 0x7C00u;
    if ((bits & sign) == 0 && bits != 0 && bits < infinite)
        return TSR_OK;
    return tsr_fail_as(
        err, TSR_ERROR_DAMAGED, TSR_E_VALUE,
        "%s: '%s' is %s%s, but a scale of the KV cache must be positive: leave it out (--ignore-file) or "
        "calibrate the cache again",
        c->files[t->file].path, t->name,
        (bits & ~sign) > infinite    ? "NaN"
        : (bits & ~sign) == infinite ? "infinite"
        : (bits & ~sign) == 0        ? "zero"
                                     : "negative",
        tsr_offset_text(t, 0, at, sizeof at));
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
    TSR_TRY(check_value(c, t, err));
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

/* Sets a nested JSON member in the plan's text `name`: keys[n - 1] in the object keys[n - 2], and so on, becomes
 * `value` (JSON). Does nothing if the text or the object does not exist. */
static tsr_status edit_text(tsr_plan *plan, const char *name, const char *const *keys, size_t n, const char *value,
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

/* States an FP8 KV cache in the configuration of the dialect. */
static tsr_status state_fp8(tsr_plan *plan, bool modelopt, tsr_err *err)
{
    static const char *const kScheme[] = {"text_config", "quantization_config", "kv_cache_scheme"};
    static const char *const kAlgorithm[] = {"quantization", "kv_cache_quant_algo"};
    const char *const scheme = modelopt ? "{\"dynamic\": false, \"num_bits\": 8, \"type\": \"float\"}"
                                        : "{\"num_bits\": 8, \"type\": \"float\", \"strategy\": \"tensor\", "
                                          "\"dynamic\": false, \"symmetric\": true}";
    TSR_TRY(edit_text(plan, TSR_CONFIG_NAME, kScheme + 1, 2, scheme, err));
    TSR_TRY(edit_text(plan, TSR_CONFIG_NAME, kScheme, 3, scheme, err));
    return edit_text(plan, TSR_HF_QUANT_CONFIG_NAME, kAlgorithm, 2, "\"FP8\"", err);
}

tsr_status tsr_plan_kv_cache(tsr_plan *plan, const tsr_weights *weights, tsr_dialect dialect, tsr_err *err)
{
    const bool modelopt = dialect == TSR_DIALECT_MODELOPT;
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
    return state_fp8(plan, modelopt, err);
}

/* ---- scales that are made ---- */

/* Returns the length of the attention's name if the tensor is its projection of keys (separate, or joined with others),
 * in a layer of the language model; else 0. Nemotron-H calls its attention a mixer. */
static int attention_of(const tsr_model *model, const tsr_tensor *t)
{
    static const char *const kEndings[] = {".self_attn.k_proj.weight", ".self_attn.qkv_proj.weight",
                                           ".mixer.k_proj.weight"};
    static const char *const kOthers[] = {"vision", "visual", "audio", "image", "video", "encoder"};
    uint64_t layer;
    for (size_t i = 0; i < sizeof kOthers / sizeof *kOthers; i++) {
        if (strstr(t->name, kOthers[i]) != NULL)
            return 0;
    }
    for (size_t i = 0; i < sizeof kEndings / sizeof *kEndings; i++) {
        const char *const leaf = strchr(kEndings[i] + 1, '.');
        if (tsr_ends_with(t->name, kEndings[i]) && tsr_layer_of(t->name, &layer) && !tsr_model_is_mtp(model, t->name))
            return (int)(strlen(t->name) - strlen(leaf));
    }
    return 0;
}

/* Finds the scale of keys (kind 'k') or values. A computed scale below 1 becomes 1 in
 * ModelOpt's form; a given one is kept. */
static tsr_status find_scale(tsr_plan *plan, const tsr_kv_origin *origin, const tsr_tensor *t, int length, char kind,
                             bool modelopt, float *scale, tsr_err *err)
{
    *scale = origin->scale;
    if (origin->ranges == NULL)
        return TSR_OK;
    const char *const name = tsr_arena_printf(&plan->arena, "%.*s.%c_cache.weight", length, t->name, kind);
    if (name == NULL)
        return tsr_out_of_memory(err, "while planning");
    const tsr_calibrated *const known = tsr_calibration_find(origin->ranges, name);
    if (known == NULL || known->scaled)
        return tsr_fail(err, TSR_E_MISMATCH,
                        "%s: no min and max for '%.*s.%c_cache': calibrate it, or use "
                        "--kv-scale",
                        origin->ranges->path, length, t->name, kind);
    const float amax = fmaxf(-known->least, known->largest);
    if (!(amax > 0))
        return tsr_fail(err, TSR_E_VALUE, "%s: the range of '%.*s.%c_cache' is zero: calibrate it again",
                        origin->ranges->path, length, t->name, kind);
    *scale = tsr_e4m3_scale(tsr_f32_bits(amax), false);
    *scale = modelopt ? fmaxf(*scale, 1) : *scale;
    return TSR_OK;
}

static bool is_given(const tsr_kv_origin *origin)
{
    return origin->scale != 0 || origin->ranges != NULL;
}

tsr_status tsr_plan_kv_scales(tsr_plan *plan, const tsr_kv_origin *origin, tsr_dialect dialect, tsr_err *err)
{
    const tsr_checkpoint *const c = plan->sources[0];
    const tsr_model model = tsr_model_read(c);
    const bool modelopt = dialect == TSR_DIALECT_MODELOPT;
    size_t made = 0;
    if (!is_given(origin))
        return TSR_OK;
    if (!has_kv_names(dialect))
        return tsr_fail(err, TSR_E_USAGE,
                        "--kv-scale: this dialect has no scales of the KV cache; use --dialect "
                        "compressed-tensors or modelopt");
    for (size_t i = 0; i < c->tensors.count; i++) {
        const tsr_tensor *const t = &c->tensors.items[i];
        const int length = attention_of(&model, t);
        const bool joined = tsr_ends_with(t->name, ".qkv_proj.weight");
        for (unsigned k = 0; k < 2 && length > 0; k++) {
            float scale;
            TSR_TRY(find_scale(plan, origin, t, length, "kv"[k], modelopt, &scale, err));
            const char *const name =
                !modelopt ? tsr_arena_printf(&plan->arena, "%.*s.%c_scale", length, t->name, "kv"[k])
                : joined  ? tsr_arena_printf(&plan->arena, "%.*s.qkv_proj.%c_scale", length, t->name, "kv"[k])
                          : tsr_arena_printf(&plan->arena, "%.*s.%c_proj.%c_scale", length, t->name, "kv"[k], "kv"[k]);
            TSR_TRY(tsr_plan_constant(plan, t, name, modelopt ? 0 : 1, scale, err));
            made++;
        }
    }
    if (made == 0)
        return tsr_fail(err, TSR_E_UNSUPPORTED,
                        "%s: --kv-scale: no layer has self_attn.k_proj or self_attn.qkv_proj; "
                        "scales of other caches, such as MLA's, are not made",
                        c->path);
    if (origin->ranges != NULL)
        return TSR_OK;
    return tsr_plan_warn(plan, err,
                         "the scale %g of the FP8 KV cache is not calibrated: keys and values beyond %g are "
                         "clamped",
                         (double)origin->scale, 448 * (double)origin->scale);
}

tsr_status tsr_plan_state_kv_scales(tsr_plan *plan, const tsr_kv_origin *origin, tsr_dialect dialect, tsr_err *err)
{
    return is_given(origin) ? state_fp8(plan, dialect == TSR_DIALECT_MODELOPT, err) : TSR_OK;
}

void tsr_spell_kv_scales(tsr_text *out, const tsr_kv_origin *origin)
{
    if (origin->ranges != NULL)
        tsr_text_printf(out, " --kv-ranges %016llx", U64(origin->ranges->hash));
    else if (origin->scale != 0)
        tsr_text_printf(out, " --kv-scale %.9g", (double)origin->scale);
}
