/* Reads the dtypes of layers in a configuration of Quark, and finds the element of a layer if it states both. */
#include "common/glob.h"
#include "formats/json/json.h"
#include "formats/weights/pairing.h"

#include <string.h>

typedef struct quark_dtype {
    const char *word;
    tsr_stated_coding coding; /* block: that of a configuration without group_size */
} quark_dtype;

/* Returns the dtype of the weights in a layer's configuration; NULL: none, or one that Tessera does not read. */
static const quark_dtype *dtype_of(tsr_json_text config)
{
    static const quark_dtype kDtypes[] = {{"\"fp4\"", {.bits = 4, .block = {1, 32}}},
                                          {"\"fp6_e2m3\"", {.bits = 6, .element = TSR_CODED_E2M3}},
                                          {"\"fp6_e3m2\"", {.bits = 6, .element = TSR_CODED_E3M2}},
                                          {"\"fp8_e4m3\"", {.bits = 8}},
                                          {"\"int8\"", {.integer = true, .bits = 8}}};
    for (size_t i = 0; i < sizeof kDtypes / sizeof *kDtypes; i++) {
        if (tsr_json_says(config, "weight.dtype", kDtypes[i].word))
            return &kDtypes[i];
    }
    return NULL;
}

tsr_status tsr_quark_coding(const tsr_pairing *p, tsr_json_text config, const char *where, tsr_stated_coding *coding)
{
    tsr_json_text value;
    uint64_t group;
    const quark_dtype *const dtype = dtype_of(config);
    *coding = (tsr_stated_coding){.bits = 0};
    if (dtype == NULL) {
        const bool stated = tsr_json_get(config, "weight.dtype", &value) || tsr_json_get(config, "weight", &value);
        return !stated || tsr_json_is(value, "null")
                   ? TSR_OK
                   : tsr_fail(p->err, TSR_E_UNSUPPORTED, "%s: unsupported weight.dtype of Quark: %.*s", where,
                              (int)(value.size < 64 ? value.size : 64), value.data);
    }
    *coding = dtype->coding;
    if (tsr_json_get(config, "weight.group_size", &value) && tsr_json_u64_of(value, &group))
        coding->block = (tsr_block){group > 0, group};
    return TSR_OK;
}

/* Returns the element of 6 bits in a layer's configuration; TSR_PLAIN: none. */
static tsr_coding element_of(tsr_json_text config)
{
    const quark_dtype *const dtype = dtype_of(config);
    return dtype == NULL ? TSR_PLAIN : dtype->coding.element;
}

/* Returns true if any type of layer has an element other than this one. The files do not have the type of a layer. */
static bool depends_on_type(tsr_json_text quark, tsr_coding element)
{
    tsr_json_text types, name, config;
    bool other = false;
    if (!tsr_json_get(quark, "layer_type_quant_config", &types))
        return false;
    tsr_json_reader r = tsr_json_members(types);
    while (tsr_json_member(&r, &name, &config))
        other = other || element_of(config) != element;
    return other;
}

/* vLLM takes the first pattern that matches, and Quark's own order is not known. So all that match must agree. */
tsr_coding tsr_quark_element(tsr_json_text quark, const char *module, tsr_arena *arena)
{
    tsr_json_text layers, name, config;
    tsr_coding found = TSR_PLAIN;
    bool any = false, agree = true;
    if (tsr_json_get(quark, "layer_quant_config", &layers)) {
        tsr_json_reader r = tsr_json_members(layers);
        while (tsr_json_member(&r, &name, &config)) {
            const char *const pattern = tsr_arena_dup(arena, name.data, name.size);
            if (pattern == NULL || memchr(name.data, '\\', name.size) != NULL)
                return TSR_PLAIN;
            if (!tsr_glob_match(pattern, module))
                continue;
            agree = agree && (!any || element_of(config) == found);
            found = element_of(config);
            any = true;
        }
    }
    if (any)
        return agree ? found : TSR_PLAIN;
    if (!tsr_json_get(quark, "global_quant_config", &config) || depends_on_type(quark, element_of(config)))
        return TSR_PLAIN;
    return element_of(config);
}
