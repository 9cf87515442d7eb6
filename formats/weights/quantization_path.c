/* Finds the objects of config.json that state a quantization. */
#include "formats/checkpoint/config.h"
#include "formats/weights/weights.h"

size_t tsr_quantization_paths(const tsr_checkpoint *c, const char *paths[TSR_QUANTIZATION_PATHS])
{
    static const char *const kPaths[TSR_QUANTIZATION_PATHS] = {"quantization_config", "compression_config",
                                                               "text_config.quantization_config"};
    size_t n = 0;
    for (size_t i = 0; i < TSR_QUANTIZATION_PATHS; i++) {
        tsr_json_text value;
        if (tsr_config_find(c, kPaths[i], &value) && !tsr_json_is(value, "null"))
            paths[n++] = kPaths[i];
    }
    return n;
}

const char *tsr_quantization_path(const tsr_checkpoint *c)
{
    const char *paths[TSR_QUANTIZATION_PATHS];
    return tsr_quantization_paths(c, paths) == 0 ? NULL : paths[0];
}
