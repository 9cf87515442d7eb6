/* The table of kinds. */
#include "formats/weights/kinds.h"

#include "common/text.h"

#include <stdio.h>
#include <string.h>

#define BIT     TSR_DTYPE_BIT
#define FLOATS  (BIT(TSR_F32) | BIT(TSR_BF16) | BIT(TSR_F16))
#define NIBBLES (BIT(TSR_U8) | BIT(TSR_I8) | BIT(TSR_F4)) /* two e2m1 codes per byte */
#define POWERS  (BIT(TSR_U8) | BIT(TSR_F8_E8M0))          /* bytes that encode powers of two */
#define E4M3    BIT(TSR_F8_E4M3)

/* Suffixes of the scale of e4m3 codes. A stack of experts has no ".weight" in its name. */
#define ANY_SCALE "_scale_inv", "_scales_inv", "_scale", ".scale", ".scale_weight"

const tsr_weight_kind tsr_weight_kinds[] = {
    {.name = "mxfp4-v4",
     .title = "MXFP4 as DeepSeek-V4 has it",
     .codes = "",
     .code_dtypes = NIBBLES,
     .scales = {".scale"},
     .scale_dtypes = POWERS,
     .family = TSR_FAMILY_MX,
     .coding = TSR_CODED_E2M1,
     .bits = 4,
     .grid = TSR_GRID_GROUPS,
     .group = 32},
    {.name = "mxfp4-ct",
     .title = "MXFP4 of compressed-tensors",
     .codes = "_packed",
     .code_dtypes = NIBBLES,
     .scales = {"_scale"},
     .scale_dtypes = POWERS,
     .family = TSR_FAMILY_MX,
     .coding = TSR_CODED_E2M1,
     .bits = 4,
     .grid = TSR_GRID_GROUPS,
     .group = 32},
    {.name = "mxfp4-modelopt",
     .title = "MXFP4 of ModelOpt or Quark",
     .codes = "",
     .code_dtypes = NIBBLES,
     .scales = {"_scale"},
     .scale_dtypes = POWERS,
     .family = TSR_FAMILY_MX,
     .coding = TSR_CODED_E2M1,
     .bits = 4,
     .grid = TSR_GRID_GROUPS,
     .group = 32},
    {.name = "mxfp4-gptoss",
     .title = "MXFP4 of gpt-oss",
     .codes = "_blocks",
     .code_dtypes = BIT(TSR_U8),
     .scales = {"_scales"},
     .scale_dtypes = POWERS,
     .family = TSR_FAMILY_MX,
     .coding = TSR_CODED_E2M1,
     .bits = 4,
     .grid = TSR_GRID_GROUPS,
     .group = 32,
     .transposed = true},
    {.name = "nvfp4-ct",
     .title = "NVFP4 of compressed-tensors",
     .codes = "_packed",
     .code_dtypes = NIBBLES,
     .scales = {"_scale"},
     .scale_dtypes = E4M3,
     .global = "_global_scale",
     .global_divides = true,
     .family = TSR_FAMILY_MX,
     .coding = TSR_CODED_E2M1,
     .bits = 4,
     .grid = TSR_GRID_GROUPS,
     .group = 16},
    {.name = "nvfp4-modelopt",
     .title = "NVFP4 of ModelOpt",
     .codes = "",
     .code_dtypes = NIBBLES,
     .scales = {"_scale"},
     .scale_dtypes = E4M3,
     .global = "_scale_2",
     .family = TSR_FAMILY_MX,
     .coding = TSR_CODED_E2M1,
     .bits = 4,
     .grid = TSR_GRID_GROUPS,
     .group = 16},
    {.name = "mxfp8",
     .title = "MXFP8",
     .codes = "",
     .code_dtypes = E4M3,
     .scales = {ANY_SCALE},
     .scale_dtypes = POWERS,
     .family = TSR_FAMILY_MX,
     .coding = TSR_CODED_E4M3,
     .bits = 8,
     .grid = TSR_GRID_GROUPS,
     .group = 32},
    {.name = "fp8-block",
     .title = "FP8 in blocks",
     .codes = "",
     .code_dtypes = E4M3,
     .scales = {ANY_SCALE},
     .scale_dtypes = FLOATS | POWERS,
     .family = TSR_FAMILY_FP8,
     .coding = TSR_CODED_E4M3,
     .bits = 8,
     .grid = TSR_GRID_BLOCKS},
    {.name = "fp8-channel",
     .title = "FP8 with a scale a channel",
     .codes = "",
     .code_dtypes = E4M3,
     .scales = {ANY_SCALE},
     .scale_dtypes = FLOATS | BIT(TSR_F8_E8M0),
     .family = TSR_FAMILY_FP8,
     .coding = TSR_CODED_E4M3,
     .bits = 8,
     .grid = TSR_GRID_ROWS},
    {.name = "fp8-tensor",
     .title = "FP8 with a scale a tensor",
     .codes = "",
     .code_dtypes = E4M3,
     .scales = {ANY_SCALE},
     .scale_dtypes = FLOATS | BIT(TSR_F8_E8M0),
     .family = TSR_FAMILY_FP8,
     .coding = TSR_CODED_E4M3,
     .bits = 8,
     .grid = TSR_GRID_WHOLE},
    {.name = "int8-ct",
     .title = "int8 of compressed-tensors",
     .codes = "",
     .code_dtypes = BIT(TSR_I8),
     .scales = {"_scale"},
     .scale_dtypes = FLOATS,
     .family = TSR_FAMILY_INTEGERS,
     .coding = TSR_CODED_INT8,
     .bits = 8,
     .grid = TSR_GRID_GROUPS},
    {.name = "int4-ct",
     .title = "packed integers of compressed-tensors",
     .codes = "_packed",
     .code_dtypes = BIT(TSR_I32),
     .scales = {"_scale"},
     .scale_dtypes = FLOATS,
     .family = TSR_FAMILY_INTEGERS,
     .coding = TSR_CODED_PACKED,
     .grid = TSR_GRID_GROUPS},
    {.name = "awq",
     .title = "AWQ",
     .codes = ".qweight",
     .code_dtypes = BIT(TSR_I32),
     .scales = {".scales"},
     .scale_dtypes = FLOATS,
     .family = TSR_FAMILY_GPTQ,
     .coding = TSR_CODED_AWQ,
     .bits = 4,
     .grid = TSR_GRID_GROUPS},
    {.name = "gptq",
     .title = "GPTQ",
     .codes = ".qweight",
     .code_dtypes = BIT(TSR_I32),
     .scales = {".scales"},
     .scale_dtypes = FLOATS,
     .family = TSR_FAMILY_GPTQ,
     .coding = TSR_CODED_GPTQ,
     .grid = TSR_GRID_GROUPS},
    {0},
};

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
        const bool linear = k->coding != TSR_CODED_INT8 || (t->rank == 2 && tsr_ends_with(t->name, ".weight"));
        if (alone || (linear && has_scale(c, t, k, &values)))
            return (tsr_coding)k->coding;
    }
    return TSR_PLAIN;
}
