/* The table of kinds of quantized weights, and the search for the tensors of a kind by their names. */
#include "formats/weights/kinds.h"

#include "common/text.h"

#include <string.h>

#define BIT     TSR_DTYPE_BIT
#define FLOATS  (BIT(TSR_F32) | BIT(TSR_BF16) | BIT(TSR_F16))
#define NIBBLES (BIT(TSR_U8) | BIT(TSR_I8) | BIT(TSR_F4)) /* two e2m1 codes per byte */
#define E8M0    BIT(TSR_F8_E8M0)
#define POWERS  (BIT(TSR_U8) | E8M0) /* bytes that encode powers of two */
#define E4M3    BIT(TSR_F8_E4M3)
#define I8      BIT(TSR_I8)
#define I32     BIT(TSR_I32) /* several codes each */

/* Suffixes of the scale of e4m3 codes. A stack of experts has no ".weight" in its name. */
#define ANY_SCALE "_scale_inv", "_scales_inv", "_scale", ".scale", ".scale_weight"

/* Family, coding, bits of a code, and arrangement of the scales. */
#define AS(f, c, b, g)        .family = TSR_FAMILY_##f, .coding = TSR_CODED_##c, .bits = b, .grid = TSR_GRID_##g
#define MXFP4                 AS(MX, E2M1, 4, GROUPS), .group = 32
#define MXFP6(element)        AS(MXFP6, element, 6, GROUPS), .group = 32
#define NVFP4(scale, divides) AS(MX, E2M1, 4, GROUPS), .group = 16, .global = scale, .global_divides = divides

/* Name, title, suffix and dtypes of the codes, suffixes and dtypes of the scale, then the rest. */
const tsr_weight_kind tsr_weight_kinds[] = {
    {"mxfp4-v4", "MXFP4 of DeepSeek-V4", "", NIBBLES, {".scale"}, POWERS, MXFP4},
    {"mxfp4-ct", "MXFP4 of compressed-tensors", "_packed", NIBBLES, {"_scale"}, POWERS, MXFP4},
    {"mxfp4-modelopt", "MXFP4 of ModelOpt or Quark", "", NIBBLES, {"_scale"}, POWERS, MXFP4},
    {"mxfp4-gptoss", "MXFP4 of gpt-oss", "_blocks", BIT(TSR_U8), {"_scales"}, POWERS, MXFP4, .transposed = true},
    /* with the names and dtypes of MXFP4, but 3 bytes for 4 columns: tsr_check_e2m1 selects these rows */
    {"mxfp6-ct", "MXFP6 of compressed-tensors", "_packed", BIT(TSR_U8), {"_scale"}, POWERS, MXFP6(E2M3)},
    {"mxfp6-e2m3-quark", "MXFP6 E2M3 of Quark", "", BIT(TSR_U8), {"_scale"}, POWERS, MXFP6(E2M3)},
    {"mxfp6-e3m2-quark", "MXFP6 E3M2 of Quark", "", BIT(TSR_U8), {"_scale"}, POWERS, MXFP6(E3M2)},
    {"nvfp4-ct", "NVFP4 of compressed-tensors", "_packed", NIBBLES, {"_scale"}, E4M3, NVFP4("_global_scale", true)},
    {"nvfp4-modelopt", "NVFP4 of ModelOpt", "", NIBBLES, {"_scale"}, E4M3, NVFP4("_scale_2", false)},
    {"mxfp8", "MXFP8", "", E4M3, {ANY_SCALE}, POWERS, AS(MX, E4M3, 8, GROUPS), .group = 32},
    {"fp8-block", "FP8 in blocks", "", E4M3, {ANY_SCALE}, FLOATS | POWERS, AS(FP8, E4M3, 8, BLOCKS)},
    {"fp8-channel", "FP8 with a scale a channel", "", E4M3, {ANY_SCALE}, FLOATS | E8M0, AS(FP8, E4M3, 8, ROWS)},
    {"fp8-tensor", "FP8 with a scale a tensor", "", E4M3, {ANY_SCALE}, FLOATS | E8M0, AS(FP8, E4M3, 8, WHOLE)},
    {"int8-ct", "int8 of compressed-tensors", "", I8, {"_scale"}, FLOATS, AS(INTEGERS, INT8, 8, GROUPS)},
    {"int4-sglang", "int4 of SGLang", "", I8, {"_scale_inv"}, FLOATS, AS(INTEGERS, NIBBLES, 4, GROUPS)},
    {"int4-ct",
     "packed integers of compressed-tensors",
     "_packed",
     I32,
     {"_scale"},
     FLOATS,
     AS(INTEGERS, PACKED, 0, GROUPS)},
    {"awq", "AWQ", ".qweight", I32, {".scales"}, FLOATS, AS(GPTQ, AWQ, 4, GROUPS)},
    {"gptq", "GPTQ", ".qweight", I32, {".scales"}, FLOATS, AS(GPTQ, GPTQ, 0, GROUPS)},
    {0},
};

bool tsr_kind_has_small_groups(const tsr_weight_kind *kind)
{
    return kind->family == TSR_FAMILY_MX || kind->family == TSR_FAMILY_MXFP6;
}

bool tsr_kind_values_name(const tsr_weight_kind *kind, const char *codes, tsr_values_name *name)
{
    const size_t ending = strlen(kind->codes);
    if (ending > 0 && !tsr_ends_with(codes, kind->codes))
        return false;
    *name = (tsr_values_name){codes, strlen(codes) - ending, kind->codes[0] == '.' ? ".weight" : ""};
    return true;
}

const tsr_tensor *tsr_kind_find_of(const tsr_checkpoint *c, const tsr_values_name *values, const char *suffix)
{
    static const char kWeight[] = ".weight";
    const size_t ending = sizeof kWeight - 1, n = values->length;
    if (suffix[0] != '.')
        return tsr_find_joined(c, values->stem, n, values->ending, suffix);
    if (values->ending[0] != '\0')
        return tsr_find_sibling(c, values->stem, n, suffix);
    const bool is_weight = n >= ending && memcmp(values->stem + n - ending, kWeight, ending) == 0;
    return is_weight ? tsr_find_sibling(c, values->stem, n - ending, suffix) : NULL;
}

const tsr_tensor *tsr_kind_find(const tsr_checkpoint *c, const char *values, const char *suffix)
{
    const tsr_values_name name = {values, strlen(values), ""};
    return tsr_kind_find_of(c, &name, suffix);
}

bool tsr_kind_has(const tsr_weight_kind *kind, const tsr_tensor *codes, const tsr_tensor *scale)
{
    if ((kind->code_dtypes & TSR_DTYPE_BIT(codes->dtype)) == 0 ||
        (kind->scale_dtypes & TSR_DTYPE_BIT(scale->dtype)) == 0)
        return false;
    for (size_t i = 0; i < TSR_KIND_SCALES && kind->scales[i] != NULL; i++) {
        if (tsr_ends_with(scale->name, kind->scales[i]))
            return true;
    }
    return false;
}

/* ---- classifying tensors ---- */

/* Returns true if a scale for codes of this kind exists. */
static bool has_scale(const tsr_checkpoint *c, const tsr_tensor *t, const tsr_weight_kind *kind,
                      const tsr_values_name *values)
{
    for (size_t i = 0; i < TSR_KIND_SCALES && kind->scales[i] != NULL; i++) {
        const tsr_tensor *const scale = tsr_kind_find_of(c, values, kind->scales[i]);
        if (scale != NULL && tsr_kind_has(kind, t, scale))
            return true;
    }
    return false;
}

/* NVFP4 scales have dtype e4m3 too. */
static bool is_scale(const tsr_checkpoint *c, const tsr_tensor *t)
{
    for (const tsr_weight_kind *k = tsr_weight_kinds; k->name != NULL; k++) {
        if ((k->scale_dtypes & TSR_DTYPE_BIT(t->dtype)) == 0 || !tsr_ends_with(t->name, k->scales[0]))
            continue;
        const tsr_values_name values = {t->name, strlen(t->name) - strlen(k->scales[0]), ""};
        const tsr_tensor *const codes = tsr_kind_find_of(c, &values, k->codes);
        if (codes != NULL && tsr_kind_has(k, codes, t))
            return true;
    }
    return false;
}

tsr_coding tsr_coding_of(const tsr_checkpoint *c, const tsr_tensor *t)
{
    tsr_values_name values;
    if (t->dtype == TSR_F8_E4M3 && is_scale(c, t))
        return TSR_PLAIN;
    for (const tsr_weight_kind *k = tsr_weight_kinds; k->name != NULL; k++) {
        if ((k->code_dtypes & TSR_DTYPE_BIT(t->dtype)) == 0 || !tsr_kind_values_name(k, t->name, &values))
            continue;
        /* these dtypes are always codes; bytes and words are codes only if a scale exists */
        const bool alone = k->coding == TSR_CODED_E4M3 || k->coding == TSR_CODED_PACKED;
        const bool bytes = k->coding == TSR_CODED_INT8 || k->coding == TSR_CODED_NIBBLES;
        const bool linear = !bytes || (t->rank == 2 && tsr_ends_with(t->name, ".weight"));
        if (alone || (linear && has_scale(c, t, k, &values)))
            return (tsr_coding)k->coding;
    }
    return TSR_PLAIN;
}
