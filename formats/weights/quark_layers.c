/* Finds the element of a layer in a configuration of Quark that states both elements of 6 bits. */
#include "common/glob.h"
#include "formats/json/json.h"
#include "formats/weights/pairing.h"

#include <string.h>

/* Returns the element of 6 bits in a layer's configuration; TSR_PLAIN: none. */
static tsr_coding element_of(tsr_json_text config)
{
    return tsr_json_says(config, "weight.dtype", "\"fp6_e2m3\"")   ? TSR_CODED_E2M3
           : tsr_json_says(config, "weight.dtype", "\"fp6_e3m2\"") ? TSR_CODED_E3M2
                                                                   : TSR_PLAIN;
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
