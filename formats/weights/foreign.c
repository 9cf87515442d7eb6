/* The table of unsupported formats, by the tensors of a module, and the rules for plain data. */
#include "formats/weights/foreign.h"

#include "common/checked.h"
#include "common/glob.h"
#include "formats/weights/kinds.h"

#include <stdint.h>
#include <string.h>

#define BIT TSR_DTYPE_BIT

enum { MAX_OTHERS = 6 };

static const uint32_t kFloats = BIT(TSR_F16) | BIT(TSR_BF16) | BIT(TSR_F32) | BIT(TSR_F64);
static const uint32_t kBytes = BIT(TSR_U8) | BIT(TSR_I8);
static const uint32_t kInts =
    BIT(TSR_U8) | BIT(TSR_I8) | BIT(TSR_I16) | BIT(TSR_U16) | BIT(TSR_I32) | BIT(TSR_U32) | BIT(TSR_I64) | BIT(TSR_U64);
static const uint32_t kAny = ~UINT32_C(0);

/* A tensor named X and this suffix, for a module X, with one of these dtypes. */
typedef struct member {
    const char *suffix;
    uint32_t dtypes;
} member;

/* Codes and their scales identify a format; the other tensors belong to it if these two exist. */
typedef struct format {
    const char *name;
    member codes, scale;
    const char *others[MAX_OTHERS];
} format;

/* The first match is used. */
static const format kFormats[] = {
    {"ModelOpt's NVFP4_AWQ or NVFP4_SVD, whose pre_quant_scale is not folded into the weights",
     {".weight", BIT(TSR_I8) | BIT(TSR_U8) | BIT(TSR_F4) | BIT(TSR_F8_E4M3)},
     {".pre_quant_scale", kAny},
     {0}},
    {"MLX's quantization by groups", {".weight", BIT(TSR_U32)}, {".scales", kAny}, {".biases"}},
    {"bitsandbytes' NF4 or FP4",
     {".weight", BIT(TSR_U8)},
     {".weight.quant_map", kAny},
     {".weight.absmax", ".weight.nested_absmax", ".weight.nested_quant_map", ".weight.quant_state.bitsandbytes__nf4",
      ".weight.quant_state.bitsandbytes__fp4"}},
    {"bitsandbytes' LLM.int8", {".weight", BIT(TSR_I8)}, {".SCB", kAny}, {".weight_format"}},
    {"HQQ", {".W_q", kInts}, {".scale", kAny}, {".zero", ".meta"}},
    {"AQLM", {".codes", kInts}, {".codebooks", kAny}, {".scales"}},
    {"ExLlamaV2",
     {".q_weight", BIT(TSR_I32)},
     {".q_scale", kAny},
     {".q_scale_max", ".q_groups", ".q_invperm", ".q_perm"}},
    {"ExLlamaV3", {".trellis", kInts}, {".suh", kAny}, {".svh", ".mcg", ".mul1"}},
    {"QuIP#", {".Qidxs", kInts}, {".SU", kAny}, {".SV", ".Wscale", ".codebook_id"}},
    {"torchao's integers", {"_weight_qdata", kInts}, {"_weight_scale", kAny}, {"_weight_zero_point"}},
    {"Quanto", {".weight._data", kAny}, {".weight._scale", kAny}, {".input_scale", ".output_scale"}},
    /* X is the module or, in older versions, its weight. */
    {"a sparse format of compressed-tensors", {".compressed", kAny}, {".bitmask", kAny}, {".shape", ".row_offsets"}},
    {"a sparse format of compressed-tensors", {".compressed", kAny}, {".bytemask", kAny}, {".shape"}},
    {"a sparse format of compressed-tensors without its mask",
     {".compressed", kAny},
     {".shape", kAny},
     {".row_offsets"}},
    {"Marlin's 2:4 sparse format of compressed-tensors", {".weight_packed", kInts}, {".scale_packed", kAny}, {".meta"}},
    {"an interleaved layout of TensorRT-LLM",
     {".weight", BIT(TSR_I8) | BIT(TSR_F16) | BIT(TSR_F32) | BIT(TSR_U8)},
     {".weights_scaling_factor", kFloats},
     {".zero", ".prequant_scaling_factor", ".alpha"}},
    {"an interleaved layout of TensorRT-LLM", {".weight", kBytes}, {".per_channel_scale", kFloats}, {0}},
};

/* Returns the length of X if the name is X and the suffix, else 0. */
static size_t base_of(const char *name, const char *suffix)
{
    const size_t n = strlen(name), m = strlen(suffix);
    return n > m && strcmp(name + n - m, suffix) == 0 ? n - m : 0;
}

/* Returns the module's tensor whose name begins with the first `base` characters of t's name, if it has one of the
 * dtypes. */
static const tsr_tensor *find(const tsr_checkpoint *c, const tsr_tensor *t, size_t base, const member *m)
{
    const tsr_tensor *const found =
        strcmp(t->name + base, m->suffix) == 0 ? t : tsr_find_sibling(c, t->name, base, m->suffix);
    return found != NULL && (m->dtypes & BIT(found->dtype)) != 0 ? found : NULL;
}

static size_t base_in(const format *f, const char *name)
{
    size_t base = base_of(name, f->codes.suffix);
    if (base == 0)
        base = base_of(name, f->scale.suffix);
    for (size_t k = 0; base == 0 && k < MAX_OTHERS && f->others[k] != NULL; k++)
        base = base_of(name, f->others[k]);
    return base;
}

const char *tsr_foreign_format(const tsr_checkpoint *c, const tsr_tensor *t)
{
    for (size_t i = 0; i < sizeof kFormats / sizeof *kFormats; i++) {
        const format *const f = &kFormats[i];
        const size_t base = base_in(f, t->name);
        const tsr_tensor *const codes = base == 0 ? NULL : find(c, t, base, &f->codes);
        if (codes != NULL && find(c, t, base, &f->scale) != NULL)
            return f->name;
    }
    return NULL;
}

/* ---- plain data ---- */

/* Integer data that models store besides their weights. */
static const struct {
    const char *pattern, *rule;
} kTables[] = {
    {"*position_ids", "a table of positions"},
    {"*positions", "a table of positions"},
    {"*relative_position*", "a table of positions"},
    {"*token_type_ids", "a table of token ids"},
    {"*token_ids", "a table of token ids"},
    {"*tid2eid", "a table from token to expert"},
    {"*mask", "a mask"},
    {"*masked_bias", "a mask"},
    {"*.attn.bias", "a mask"},
    {"*.attention.bias", "a mask"},
    {"*_index", "a table of indices"},
    {"*_indices", "a table of indices"},
    {"*_idx", "a table of indices"},
    {"*.d2t", "a table of token ids"},
    {"*.t2d", "a table of token ids"},
    {"d2t", "a table of token ids"},
    {"t2d", "a table of token ids"},
    {"*num_batches_tracked", "a count"},
    {"*spiece_model", "a tokenizer's file"},
    {"*tekken_model", "a tokenizer's file"},
};

bool tsr_is_scale_of_attention(const char *name)
{
    static const char *const kSuffixes[] = {".k_scale", ".v_scale", ".q_scale", ".prob_scale", ".kv_scale"};
    for (size_t i = 0; i < sizeof kSuffixes / sizeof *kSuffixes; i++) {
        if (base_of(name, kSuffixes[i]) != 0)
            return true;
    }
    return false;
}

const char *tsr_plain_rule(const tsr_tensor *t)
{
    if ((kFloats & BIT(t->dtype)) != 0)
        return tsr_is_scale_of_attention(t->name) ? "a scale of the KV cache or of attention" : "floating point";
    switch (t->dtype) {
    case TSR_C64:
        return "complex numbers";
    case TSR_BOOL:
        return "booleans";
    case TSR_I64:
    case TSR_U64:
        return "64-bit integers";
    default:
        break;
    }
    if ((kInts & BIT(t->dtype)) == 0)
        return NULL;
    for (size_t i = 0; i < sizeof kTables / sizeof *kTables; i++) {
        if (tsr_glob_match(kTables[i].pattern, t->name))
            return kTables[i].rule;
    }
    if (t->bytes == 0)
        return "empty";
    if (t->rank == 0)
        return "a single number";
    return t->rank == 1 && t->dtype != TSR_I8 && t->dtype != TSR_U8 ? "a list of integers" : NULL;
}

bool tsr_is_left_over(const char *name)
{
    static const char *const kSuffixes[] = {
        ".weight_scale_2",
        ".weight_global_scale",
        ".input_global_scale",
        ".weight_zero_point",
        ".weight_shape",
        ".weight_g_idx",
        ".qzeros",
        ".g_idx",
        ".absmax",
        ".quant_map",
        ".per_channel_scale",
        ".pre_quant_scale",
        ".weights_scaling_factor",
        ".codebooks",
        ".Qidxs",
        ".SCB",
        ".qweight",
        ".prequant_scaling_factor",
    };
    for (size_t i = 0; i < sizeof kSuffixes / sizeof *kSuffixes; i++) {
        if (base_of(name, kSuffixes[i]) != 0)
            return true;
    }
    return false;
}

/* ---- refusing ---- */

static const tsr_tensor *find_beside(const tsr_checkpoint *c, const tsr_tensor *t, size_t base, const char *suffix)
{
    const member any = {suffix, kAny};
    return find(c, t, base, &any);
}

static const char kWeight[] = ".weight", kPacked[] = ".weight_packed";

/* Rejects a tensor whose name says that it scales something, but that no weight uses. */
static tsr_status check_orphan(const tsr_checkpoint *c, const tsr_tensor *t, tsr_err *err)
{
    static const struct {
        const char *suffix, *weight; /* X.suffix scales X.weight */
        bool needs_weight;           /* the name alone is ambiguous */
    } kSpellings[] = {
        {"_scale_inv", "", false},         {"_scales_inv", "", false}, {".weight_scale", kWeight, false},
        {".scale_weight", kWeight, false}, {"_scale", "", true},       {"_scales", "", true},
        {".scale", kWeight, true},         {".scales", kWeight, true},
    };
    for (size_t i = 0; i < sizeof kSpellings / sizeof *kSpellings; i++) {
        if (base_of(t->name, kSpellings[i].suffix) == 0)
            continue;
        const size_t length = strlen(t->name) - strlen(kSpellings[i].suffix);
        const tsr_tensor *const weight = find_beside(c, t, length, kSpellings[i].weight);
        const tsr_tensor *const packed = kSpellings[i].weight == kWeight ? find_beside(c, t, length, kPacked) : NULL;
        /* in an unquantized model, such a name may be the model's own: a vector that multiplies a layer's output */
        if (kSpellings[i].needs_weight &&
            (weight == NULL || (tsr_dtype_is_weight_float((tsr_dtype)weight->dtype) && t->rank < 2)))
            continue;
        if (weight == NULL && packed == NULL)
            return tsr_fail(err, TSR_E_FORMAT, "%s: '%s' is a scale, but its weight is in none of the %zu file%s",
                            c->files[t->file].path, t->name, c->n_files, c->n_files == 1 ? "" : "s");
        if (weight != NULL && tsr_coding_of(c, weight) != TSR_PLAIN)
            return tsr_fail(err, TSR_E_FORMAT, "%s: '%s' does not match its weight '%s' (%s)", c->files[t->file].path,
                            t->name, weight->name, tsr_dtype_name((tsr_dtype)weight->dtype));
        if (weight == NULL || !tsr_dtype_is_weight_float((tsr_dtype)weight->dtype))
            return tsr_fail(err, TSR_E_UNSUPPORTED, "%s: '%s' is %s with a scale, a combination that is not supported",
                            c->files[t->file].path, weight == NULL ? packed->name : weight->name,
                            tsr_dtype_name((tsr_dtype)(weight == NULL ? packed : weight)->dtype));
        return tsr_fail_as(err, TSR_ERROR_SCALE_LEFT_OVER, TSR_E_FORMAT,
                           "%s: '%s' is a left-over scale: its weight '%s' is %s, which is not quantized; was the "
                           "weight dequantized without removing the scale?",
                           c->files[t->file].path, t->name, weight->name, tsr_dtype_name((tsr_dtype)weight->dtype));
    }
    if (tsr_is_left_over(t->name))
        return tsr_fail(
            err, TSR_E_UNSUPPORTED,
            "%s: '%s' (%s) belongs to a quantized weight that is in none of the %zu files, or in an unsupported format",
            c->files[t->file].path, t->name, tsr_dtype_name((tsr_dtype)t->dtype), c->n_files);
    return TSR_OK;
}

tsr_status tsr_refuse_foreign(const tsr_checkpoint *c, const tsr_tensor *t, tsr_err *err)
{
    const char *const seems = tsr_foreign_format(c, t);
    char shape[192];
    if (seems == NULL)
        return TSR_OK;
    return tsr_fail_as(err, TSR_ERROR_UNREAD, TSR_E_UNSUPPORTED,
                       "%s: '%s', %s %s, seems to be part of %s, which is not supported; start from a checkpoint that "
                       "is not quantized, or from FP8",
                       c->files[t->file].path, t->name, tsr_dtype_name((tsr_dtype)t->dtype),
                       tsr_shape_text(t, shape, sizeof shape), seems);
}

tsr_status tsr_find_plain_rule(const tsr_checkpoint *c, const tsr_tensor *t, const char **rule, tsr_err *err)
{
    char shape[192];
    TSR_TRY(check_orphan(c, t, err));
    *rule = tsr_plain_rule(t);
    if (*rule != NULL)
        return TSR_OK;
    if (t->dtype == TSR_F8_E8M0)
        return tsr_fail(err, TSR_E_UNSUPPORTED, "%s: '%s' holds F8_E8M0 scales, but no supported weight uses them",
                        c->files[t->file].path, t->name);
    if (tsr_dtype_bits((tsr_dtype)t->dtype) < 8 || t->dtype == TSR_F8_E5M2 || t->dtype == TSR_F8_E4M3FNUZ ||
        t->dtype == TSR_F8_E5M2FNUZ)
        return tsr_fail(err, TSR_E_UNSUPPORTED, "%s: '%s' is %s, which Tessera does not read", c->files[t->file].path,
                        t->name, tsr_dtype_name((tsr_dtype)t->dtype));
    return tsr_fail(err, TSR_E_UNSUPPORTED,
                    "%s: '%s': unrecognised integer tensor (%s %s); its quantization format is not supported (plain "
                    "integer data has 64 bits, is a list, or has a name of masks, positions or indices)",
                    c->files[t->file].path, t->name, tsr_dtype_name((tsr_dtype)t->dtype),
                    tsr_shape_text(t, shape, sizeof shape));
}

/* ---- sparse weights ---- */

tsr_status tsr_refuse_sparsity(tsr_json_text q, const char *where, tsr_err *err)
{
    tsr_json_text sparsity, value, name;
    if (!tsr_json_get(q, "sparsity_config", &sparsity) || tsr_json_says(sparsity, "format", "\"dense\""))
        return TSR_OK;
    tsr_json_reader r = tsr_json_members(sparsity);
    if (sparsity.data[0] == '{' && !tsr_json_member(&r, &name, &value))
        return TSR_OK;
    if (!tsr_json_get(sparsity, "format", &value))
        return tsr_fail(err, TSR_E_UNSUPPORTED,
                        "%s.sparsity_config has no format; only dense models are supported, so save the model dense",
                        where);
    return tsr_fail(
        err, TSR_E_UNSUPPORTED,
        "%s.sparsity_config: unsupported format %.*s, which packs the non-zero elements; save the model dense", where,
        (int)value.size, value.data);
}

/* ---- Tessera's own raw files ---- */

const char *tsr_layout_target(const tsr_checkpoint *c)
{
    tsr_tensor file;
    char head[256] = {0};
    if (!tsr_checkpoint_find_side_file(c, TSR_LAYOUT_NAME, &file))
        return NULL;
    if (tsr_checkpoint_read(c, &file, 0, head, tsr_min_u64(file.bytes, sizeof head - 1), NULL) != TSR_OK)
        return "fastertransformer";
    const char *const target = strstr(head, "\"target\"");
    const char *const trtllm = target == NULL ? NULL : strstr(target, "\"trtllm\"");
    return trtllm != NULL && trtllm - target < 16 ? "trtllm" : "fastertransformer";
}
