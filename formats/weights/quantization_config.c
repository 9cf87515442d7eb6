/* Reads the quantization of a checkpoint from config.json and ModelOpt's hf_quant_config.json. */
#include "common/checked.h"
#include "formats/checkpoint/config.h"
#include "formats/weights/foreign.h"
#include "formats/weights/quantization_members.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

/* ---- values ---- */

static uint64_t find_u64(tsr_json_text object, const char *path, uint64_t otherwise)
{
    uint64_t x;
    return tsr_json_find_u64(object.data, object.size, path, &x) ? x : otherwise;
}

/* The value of a member in two parts, for printf; "" if it is absent. For messages. */
#define TEXT(value) (int)tsr_min_u64((value).size, 64), (value).data

enum { MAX_BLOCK = 1 << 20 }; /* rows or columns: more than any weight has, and their product fits 64 bits */

/* Reads [128, 128], or "128x128" as older compressed-tensors wrote it. Leaves *block unchanged for anything else. */
static bool read_block(tsr_json_text value, tsr_block *block)
{
    tsr_json_reader r = tsr_json_open("", value.data, value.size);
    uint64_t sizes[2] = {0, 0};
    bool more;
    if (value.size > 0 && value.data[0] == '"') {
        char text[32] = "";
        if (value.size < 2 || value.size - 2 >= sizeof text)
            return false;
        memcpy(text, value.data + 1, value.size - 2);
        return tsr_read_block(text, MAX_BLOCK, block);
    }
    if (tsr_json_enter_array(&r, NULL) != TSR_OK)
        return false;
    for (size_t i = 0; i < 2; i++) {
        if (tsr_json_next_element(&r, &more, NULL) != TSR_OK || !more ||
            tsr_json_read_u64(&r, &sizes[i], NULL) != TSR_OK)
            return false;
    }
    if (tsr_json_next_element(&r, &more, NULL) != TSR_OK || more || sizes[0] == 0 || sizes[1] == 0 ||
        sizes[0] > MAX_BLOCK || sizes[1] > MAX_BLOCK)
        return false;
    *block = (tsr_block){sizes[0], sizes[1]};
    return true;
}

/* ---- codings ---- */

static const tsr_stated_coding kMxfp4 = {.bits = 4, .block = {1, 32}}, kNvfp4 = {.bits = 4, .block = {1, 16}},
                               kMxfp8 = {.bits = 8, .block = {1, 32}}, kFp8 = {.bits = 8},
                               kFp8Block = {.bits = 8, .block = {128, 128}};

static bool same_word(const char *a, const char *b)
{
    return a == b || (a != NULL && b != NULL && strcmp(a, b) == 0);
}

static void state(tsr_pairing *p, tsr_stated_coding coding)
{
    for (size_t i = 0; i < p->n_stated; i++) {
        const tsr_stated_coding *const s = &p->stated[i];
        if (s->integer == coding.integer && s->bits == coding.bits && tsr_block_equal(s->block, coding.block) &&
            same_word(s->strategy, coding.strategy) && same_word(s->format, coding.format) &&
            same_word(s->symmetric, coding.symmetric) && s->element == coding.element && s->ordered == coding.ordered)
            return;
    }
    if (p->n_stated < TSR_MAX_STATED)
        p->stated[p->n_stated++] = coding;
}

/* Records integers with `group` columns per scale; -1, null or absent: none. */
static void state_integers(tsr_pairing *p, uint64_t bits, uint64_t group, bool ordered)
{
    state(p, (tsr_stated_coding){.integer = true, .bits = bits, .block = {group > 0, group}, .ordered = ordered});
}

/* Returns a member as written; NULL: it is absent. */
static const char *find_word(tsr_pairing *p, tsr_json_text object, const char *path)
{
    tsr_json_text value;
    return tsr_json_get(object, path, &value) && !tsr_json_is(value, "null")
               ? tsr_arena_dup(&p->w->arena, value.data, value.size)
               : NULL;
}

/* Reads the weights of one group of compressed-tensors or ModelOpt. */
static void read_group(tsr_pairing *p, tsr_json_text group)
{
    tsr_json_text value;
    const bool integer = tsr_json_says(group, "weights.type", "\"int\"");
    const uint64_t bits = find_u64(group, "weights.num_bits", 8);
    const char *const format = find_word(p, group, "format");
    tsr_stated_coding coding = {.integer = integer,
                                .bits = bits,
                                .strategy = find_word(p, group, "weights.strategy"),
                                .symmetric = find_word(p, group, "weights.symmetric"),
                                .format = format == NULL ? p->format : format};
    if (!integer && bits == 6 && p->w->dialect == TSR_DIALECT_COMPRESSED_TENSORS)
        coding.element = TSR_CODED_E2M3; /* its only element of 6 bits (compressors/mxfp6/base.py) */
    if (!tsr_json_get(group, "weights", &value))
        return;
    if (integer || !tsr_json_get(group, "weights.block_structure", &value) || !read_block(value, &coding.block)) {
        const uint64_t columns = find_u64(group, "weights.group_size", 0);
        coding.block = (tsr_block){columns > 0, columns};
    }
    state(p, coding);
}

typedef void each_fn(tsr_pairing *p, tsr_json_text value);

/* Calls fn for the values of the members of the object at `path`, if there is one. */
static void for_each(tsr_pairing *p, tsr_json_text object, const char *path, each_fn *fn)
{
    tsr_json_text members, name, value;
    if (!tsr_json_get(object, path, &members))
        return;
    tsr_json_reader r = tsr_json_members(members);
    while (tsr_json_member(&r, &name, &value))
        fn(p, value);
}

/* ---- each quant_method; `q` is its object ---- */

static tsr_status read_compressed_tensors(tsr_pairing *p, tsr_json_text q, const char *where)
{
    tsr_json_text value;
    p->w->dialect = TSR_DIALECT_COMPRESSED_TENSORS;
    if (tsr_json_get(q, "transform_config.config_groups", &value) && !tsr_json_is(value, "{}"))
        return tsr_fail(p->err, TSR_E_UNSUPPORTED,
                        "%s.transform_config: rotated weights are not supported, since they need rotated layer inputs",
                        where);
    TSR_TRY(tsr_refuse_sparsity(q, where, p->err));
    p->format = find_word(p, q, "format");
    for_each(p, q, "config_groups", read_group);
    TSR_TRY(tsr_refuse_format(p, p->format, where));
    for (size_t i = 0; i < p->n_stated; i++)
        TSR_TRY(tsr_refuse_format(p, p->stated[i].format, where));
    return TSR_OK;
}

/* Reads quant_method fp8. DeepSeek from V3 to V4.1: experts may be MXFP4, n-gram tables MXFP8. NVIDIA's V4 has experts
 * in NVFP4, which members of ModelOpt describe. */
static tsr_status read_fp8(tsr_pairing *p, tsr_json_text q, const char *where)
{
    (void)where;
    if (p->n_stated == 0)
        state(p, kFp8);
    state(p, kMxfp4);
    /* expert_dtype exists since DeepSeek-V4, whose n-gram tables are always MXFP8 */
    if (p->w->ue8m0 || p->expert_bits != 0)
        state(p, kMxfp8);
    if (tsr_json_says(q, "moe_quant_algo", "\"NVFP4\"")) {
        state(p, kNvfp4);
        p->members = TSR_MEMBERS_FP8 " " TSR_MEMBERS_MODELOPT;
    }
    return TSR_OK;
}

static tsr_status read_quark_weight(tsr_pairing *p, tsr_json_text config, const char *where)
{
    tsr_stated_coding coding;
    TSR_TRY(tsr_quark_coding(p, config, where, &coding));
    if (coding.bits > 0)
        state(p, coding);
    return TSR_OK;
}

static tsr_status read_quark(tsr_pairing *p, tsr_json_text q, const char *where)
{
    static const char *const kLayers[] = {"layer_quant_config", "layer_type_quant_config"};
    tsr_json_text value, members, name;
    p->quark = q;
    if (tsr_json_get(q, "global_quant_config", &value))
        TSR_TRY(read_quark_weight(p, value, where));
    for (size_t i = 0; i < sizeof kLayers / sizeof *kLayers; i++) {
        if (!tsr_json_get(q, kLayers[i], &members))
            continue;
        tsr_json_reader r = tsr_json_members(members);
        while (tsr_json_member(&r, &name, &value))
            TSR_TRY(read_quark_weight(p, value, where));
    }
    return TSR_OK;
}

/* Reads w4afp8 of SGLang (srt/layers/quantization/w4afp8.py): experts are int4 in groups, other layers block FP8. */
static tsr_status read_w4afp8(tsr_pairing *p, tsr_json_text q, const char *where)
{
    (void)where;
    if (p->n_stated == 0)
        state(p, kFp8Block);
    state_integers(p, 4, find_u64(q, "group_size", 128), false);
    return TSR_OK;
}

/* Returns true if settings of single layers in the member `name` have this key. */
static bool varies(tsr_json_text q, const char *name, const char *key)
{
    tsr_json_text layers;
    return tsr_json_get(q, name, &layers) && memmem(layers.data, layers.size, key, strlen(key)) != NULL;
}

/* Records the codings of AWQ and GPTQ: one for all modules, and those of some modules in the member `layers`. What a
 * module does not state is as for all; 16 bits are not quantized. */
static void state_bits(tsr_pairing *p, tsr_json_text q, const char *layers)
{
    const bool ordered = tsr_json_says(q, "desc_act", "true");
    const uint64_t bits = find_u64(q, "bits", 4), group = find_u64(q, "group_size", 0);
    tsr_json_text modules, name, module, own;
    state_integers(p, bits, group, ordered);
    if (!tsr_json_get(q, layers, &modules))
        return;
    tsr_json_reader r = tsr_json_members(modules);
    while (tsr_json_member(&r, &name, &module)) {
        const uint64_t width = find_u64(module, "bits", bits);
        if (width <= 8)
            state_integers(p, width,
                           tsr_json_get(module, "group_size", &own) ? find_u64(module, "group_size", 0) : group,
                           ordered);
    }
}

static tsr_status read_awq(tsr_pairing *p, tsr_json_text q, const char *where)
{
    static const char *const kLayouts[] = {"version", "format", "checkpoint_format"}; /* AutoAWQ's, and GPTQModel's */
    tsr_json_text value;
    if (find_u64(q, "bits", 4) != 4)
        return tsr_fail(p->err, TSR_E_UNSUPPORTED, "%s.bits: AWQ is supported with 4 bits only", where);
    for (size_t i = 0; i < 3; i++) {
        if (tsr_json_get(q, kLayouts[i], &value) && !tsr_json_is(value, "\"gemm\"") && !tsr_json_is(value, "\"GEMM\""))
            return tsr_fail(p->err, TSR_E_UNSUPPORTED, "%s.%s is %.*s; the only supported AWQ layout is \"gemm\"",
                            where, kLayouts[i], TEXT(value));
    }
    p->w->symmetric = tsr_json_says(q, "zero_point", "false");
    state_bits(p, q, "dynamic");
    return TSR_OK;
}

static tsr_status read_gptq(tsr_pairing *p, tsr_json_text q, const char *where)
{
    tsr_json_text value;
    const uint64_t bits = find_u64(q, "bits", 4);
    if (bits != 4 && bits != 8)
        return tsr_fail(p->err, TSR_E_UNSUPPORTED, "%s.bits is %llu; GPTQ is supported with 4 and 8 bits", where,
                        U64(bits));
    p->zeros = TSR_ZEROS_LESS_ONE;
    p->w->symmetric = tsr_json_says(q, "sym", "true");
    p->all_middle = p->w->symmetric && !varies(q, "dynamic", "\"sym\"") && !varies(q, "extra_config", "\"sym\"");
    if (tsr_json_says(q, "checkpoint_format", "\"gptq_v2\""))
        p->zeros = TSR_ZEROS_AS_THEY_ARE;
    else if (tsr_json_get(q, "checkpoint_format", &value) && !tsr_json_is(value, "\"gptq\""))
        return tsr_fail(p->err, TSR_E_UNSUPPORTED, "%s.checkpoint_format is %.*s; supported: \"gptq\" and \"gptq_v2\"",
                        where, TEXT(value));
    state_bits(p, q, "dynamic");
    return TSR_OK;
}

/* Reads auto-round, whose tensors are those of the format that packing_format names (auto_round/export). */
static tsr_status read_auto_round(tsr_pairing *p, tsr_json_text q, const char *where)
{
    tsr_json_text packing = {.data = "\"auto_round:auto_gptq\"", .size = 22};
    (void)tsr_json_get(q, "packing_format", &packing);
    if (tsr_json_says(q, "data_type", "\"fp8\"") || tsr_json_is(packing, "\"auto_round:fp8\"")) {
        state(p, kFp8);
        return TSR_OK;
    }
    if (tsr_json_is(packing, "\"auto_round:auto_awq\"") || tsr_json_is(packing, "\"auto_round:awq\""))
        TSR_TRY(read_awq(p, q, where));
    else if (tsr_json_is(packing, "\"auto_round:auto_gptq\"") || tsr_json_is(packing, "\"auto_round:gptq\""))
        TSR_TRY(read_gptq(p, q, where));
    else
        return tsr_fail(p->err, TSR_E_UNSUPPORTED,
                        "%s.packing_format is %.*s; supported: auto_round:auto_gptq, auto_round:auto_awq and :fp8",
                        where, TEXT(packing));
    p->w->symmetric = tsr_json_says(q, "sym", "true");
    state_bits(p, q, "extra_config");
    return TSR_OK;
}

/* ---- ModelOpt ---- */

static const struct {
    const char *name;
    const tsr_stated_coding *coding; /* NULL: each layer has its own */
} kAlgorithms[] = {
    {"\"NVFP4\"", &kNvfp4},
    {"\"W4A16_NVFP4\"", &kNvfp4},
    {"\"MXFP4\"", &kMxfp4},
    {"\"W4A16_MXFP4\"", &kMxfp4},
    {"\"W4A8_MXFP4_FP8\"", &kMxfp4},
    {"\"MXFP8\"", &kMxfp8},
    {"\"FP8\"", &kFp8},
    {"\"FP8_PER_CHANNEL_PER_TOKEN\"", &kFp8},
    {"\"FP8_PB_WO\"", &kFp8Block},
    {"\"FP8_BLOCK_SCALES\"", &kFp8Block},
    {"\"MIXED_PRECISION\"", NULL},
};

/* Records an algorithm's coding. Returns false if Tessera does not read it. */
static bool take_algorithm(tsr_pairing *p, tsr_json_text name)
{
    for (size_t i = 0; i < sizeof kAlgorithms / sizeof *kAlgorithms; i++) {
        if (!tsr_json_is(name, kAlgorithms[i].name))
            continue;
        if (kAlgorithms[i].coding != NULL)
            state(p, *kAlgorithms[i].coding);
        return true;
    }
    return false;
}

static tsr_status read_algorithm(tsr_pairing *p, tsr_json_text q, const char *where)
{
    tsr_json_text value, layers, name, layer;
    if (tsr_json_get(q, "quant_algo", &value) && !take_algorithm(p, value))
        return tsr_fail(p->err, TSR_E_UNSUPPORTED, "%s.quant_algo: unsupported algorithm %.*s", where, TEXT(value));
    if (!tsr_json_get(q, "quantized_layers", &layers))
        return TSR_OK;
    tsr_json_reader r = tsr_json_members(layers);
    while (tsr_json_member(&r, &name, &layer)) {
        if (tsr_json_get(layer, "quant_algo", &value) && !tsr_json_is(value, "null") && !take_algorithm(p, value))
            return tsr_fail(p->err, TSR_E_UNSUPPORTED, "%s.quantized_layers: unsupported algorithm %.*s of %.*s", where,
                            TEXT(value), (int)tsr_min_u64(name.size, 256), name.data);
    }
    return TSR_OK;
}

static tsr_status read_modelopt(tsr_pairing *p, tsr_json_text q, const char *where)
{
    TSR_TRY(read_algorithm(p, q, where));
    if (p->n_stated == 0)
        for_each(p, q, "config_groups", read_group);
    return TSR_OK;
}

/* Reads kv_cache_scheme of compressed-tensors, which ModelOpt writes too (version 0.31 as a string), and ModelOpt's
 * kv_cache_quant_algo. */
static void read_kv_cache(tsr_pairing *p, tsr_json_text q)
{
    tsr_json_text value;
    if (tsr_json_get(q, "kv_cache_scheme", &value) && !tsr_json_is(value, "null")) {
        const bool fp8 = tsr_json_is(value, "\"FP8\"") ||
                         (find_u64(value, "num_bits", 0) == 8 && tsr_json_says(value, "type", "\"float\""));
        p->w->kv_cache = fp8 ? TSR_KV_FP8 : TSR_KV_OTHER;
    }
    if (tsr_json_get(q, "kv_cache_quant_algo", &value) && !tsr_json_is(value, "null"))
        p->w->kv_cache = tsr_json_is(value, "\"FP8\"") ? TSR_KV_FP8 : TSR_KV_OTHER;
}

/* Reads hf_quant_config.json, which replaces or repeats config.json's object. */
static tsr_status read_side_file(tsr_pairing *p, tsr_json_text q)
{
    static const char kPath[] = "quantization.quant_algo";
    const tsr_checkpoint *const c = p->c;
    const char *text = NULL;
    size_t size = 0;
    tsr_json_text there, here;
    TSR_TRY(tsr_checkpoint_side_text(c, TSR_HF_QUANT_CONFIG_NAME, &p->w->arena, &text, &size, p->err));
    if (text == NULL || !tsr_json_find(text, size, kPath, &there) || tsr_json_is(there, "null"))
        return TSR_OK;
    if (q.size > 0 && tsr_json_get(q, "quant_algo", &here) &&
        (here.size != there.size || memcmp(here.data, there.data, here.size) != 0))
        return tsr_fail(p->err, TSR_E_FORMAT,
                        "%s: " TSR_CONFIG_NAME " says quant_algo %.*s, " TSR_HF_QUANT_CONFIG_NAME
                        " says %.*s; correct the wrong one",
                        c->path, TEXT(here), TEXT(there));
    if (q.size > 0 && strcasecmp(p->w->method, "modelopt") != 0)
        return TSR_OK;
    if (p->w->method == NULL)
        p->w->method = "modelopt";
    (void)tsr_json_find(text, size, "quantization", &there);
    read_kv_cache(p, there);
    return read_algorithm(p, there, TSR_HF_QUANT_CONFIG_NAME ": quantization");
}

/* ---- the whole configuration ---- */

static const struct {
    const char *name;
    tsr_status (*read)(tsr_pairing *p, tsr_json_text q, const char *where);
    const tsr_stated_coding *coding; /* the coding of all weights, for a method without a reader */
    const char *members;             /* those that are known; NULL: too many to list */
} kMethods[] = {
    {"fp8", read_fp8, NULL, TSR_MEMBERS_FP8},
    {"compressed-tensors", read_compressed_tensors, NULL, TSR_MEMBERS_COMPRESSED_TENSORS},
    {"modelopt", read_modelopt, NULL, TSR_MEMBERS_MODELOPT},
    {"mxfp4", NULL, &kMxfp4, TSR_MEMBERS_MXFP4},
    {"mxfp8", NULL, &kMxfp8, TSR_MEMBERS_MXFP8},
    {"quark", read_quark, NULL, NULL},
    {TSR_W4AFP8, read_w4afp8, NULL, TSR_MEMBERS_W4AFP8},
    {"awq", read_awq, NULL, TSR_MEMBERS_AWQ},
    {"gptq", read_gptq, NULL, TSR_MEMBERS_GPTQ},
    {"auto-round", read_auto_round, NULL, NULL},
    {"intel/auto-round", read_auto_round, NULL, NULL},
};

/* Reads "fp4" or "fp8": at the top level in DeepSeek-V4, in the quantization object in V4.1. */
static tsr_status read_expert_dtype(tsr_pairing *p, tsr_json_text q)
{
    tsr_json_text value;
    if (!tsr_json_get(q, "expert_dtype", &value) &&
        (!tsr_config_find_model(p->c, "expert_dtype", &value) || tsr_json_is(value, "null")))
        return TSR_OK;
    p->expert_bits = tsr_json_is(value, "\"fp4\"") ? 4 : tsr_json_is(value, "\"fp8\"") ? 8 : 0;
    if (p->expert_bits == 0)
        return tsr_fail(p->err, TSR_E_UNSUPPORTED, "%s/" TSR_CONFIG_NAME ": unsupported expert_dtype %.*s", p->c->path,
                        TEXT(value));
    return TSR_OK;
}

static tsr_status read_method(tsr_pairing *p, tsr_json_text q, const char *path)
{
    tsr_weights *const w = p->w;
    tsr_json_text value;
    tsr_block block;
    w->method = tsr_json_find_string(q.data, q.size, "quant_method", &w->arena);
    if (w->method == NULL && tsr_json_says(q, "producer.name", "\"modelopt\""))
        w->method = "modelopt"; /* ModelOpt 0.31 writes no quant_method; vLLM sets it */
    size_t i = 0, n = sizeof kMethods / sizeof *kMethods;
    while (w->method != NULL && i < n && strcasecmp(w->method, kMethods[i].name) != 0)
        i++;
    if (w->method == NULL || i == n) {
        const bool named = w->method != NULL && *w->method != '\0';
        char known[512];
        for (size_t k = 0, at = 0; k < n; k++)
            at += (size_t)snprintf(known + at, sizeof known - at, "%s%s", k == 0 ? "" : ", ", kMethods[k].name);
        return tsr_fail(p->err, TSR_E_UNSUPPORTED,
                        "%s/" TSR_CONFIG_NAME ": %s: %s%s%s; the methods that can be read: %s", p->c->path, path,
                        named ? "unsupported quant_method '" : "quant_method is ",
                        w->method == NULL ? "missing"
                        : named           ? w->method
                                          : "empty",
                        named ? "'" : "", known);
    }
    const char *const format = tsr_json_find_string(q.data, q.size, "scale_fmt", &w->arena);
    w->ue8m0 = format != NULL && strcmp(format, "ue8m0") == 0;
    if (tsr_json_get(q, "weight_block_size", &value) && kMethods[i].read != read_compressed_tensors) {
        if (!read_block(value, &block))
            return tsr_fail(p->err, TSR_E_FORMAT,
                            "%s/" TSR_CONFIG_NAME ": %s.weight_block_size is not two integers from 1 to 1048576",
                            p->c->path, path);
        state(p, (tsr_stated_coding){.bits = 8, .block = block});
    }
    char where[256];
    snprintf(where, sizeof where, "%.160s/" TSR_CONFIG_NAME ": %s", p->c->path, path);
    TSR_TRY(read_expert_dtype(p, q));
    p->members = kMethods[i].members;
    if (kMethods[i].read != NULL)
        return kMethods[i].read(p, q, where);
    state(p, *kMethods[i].coding);
    return TSR_OK;
}

/* Sets the block size for loaders and reports: the first stated one. */
static void take_block(tsr_pairing *p)
{
    for (size_t i = p->n_stated; i-- > 0;) {
        const tsr_stated_coding *const s = &p->stated[i];
        if (s->integer || s->bits != 8 || s->block.rows == 0 || tsr_block_equal(s->block, kMxfp8.block))
            continue;
        p->w->block = s->block;
    }
}

tsr_status tsr_read_quantization(tsr_pairing *p)
{
    const char *const path = tsr_quantization_path(p->c);
    tsr_json_text q = {0};
    if (p->c->config != NULL) {
        char where[256];
        snprintf(where, sizeof where, "%.160s/" TSR_CONFIG_NAME, p->c->path);
        TSR_TRY(tsr_refuse_sparsity((tsr_json_text){.data = p->c->config, .size = p->c->config_size}, where, p->err));
    }
    TSR_TRY(tsr_check_quantization_paths(p->c, p->err));
    if (path != NULL && tsr_config_find(p->c, path, &q)) {
        TSR_TRY(read_method(p, q, path));
        read_kv_cache(p, q);
    }
    TSR_TRY(read_side_file(p, q));
    take_block(p);
    p->holds = p->n_stated > 0;
    return q.size == 0 ? TSR_OK : tsr_check_members(p, q, path);
}

void tsr_state_block(tsr_pairing *p, tsr_block block)
{
    size_t kept = 0;
    for (size_t i = 0; i < p->n_stated; i++) {
        const tsr_stated_coding *const s = &p->stated[i];
        if (s->integer || s->bits != 8 || tsr_block_equal(s->block, kMxfp8.block))
            p->stated[kept++] = *s;
    }
    p->n_stated = kept;
    state(p, (tsr_stated_coding){.bits = 8, .block = block});
    p->w->block = block;
}
