/* Checks the scales of activations that a checkpoint stores: of inputs of layers, of keys and values in the cache, of
 * queries. */
#include "verify/survey/contents.h"

#include "formats/weights/foreign.h"
#include "verify/values/decode.h"

#include <stdio.h>

/* Notes the first value of a scale that is not a positive number. */
static tsr_status check_scale(tsr_issues *issues, const tsr_checkpoint *c, const tsr_tensor *t, const char *of,
                              const char *advice, tsr_err *err)
{
    uint64_t at;
    double value;
    char detail[160];
    TSR_TRY(tsr_find_bad_scale(c, t, &at, &value, err));
    if (at == tsr_tensor_elements(t))
        return TSR_OK;
    snprintf(detail, sizeof detail, "value %llu of this scale of %s is %.6g", (unsigned long long)at, of, value);
    tsr_issues_add(
        issues,
        &(tsr_issue){.fatal = true, .tensor = t->name, .rule = "scale values", .detail = detail, .advice = advice});
    return TSR_OK;
}

tsr_status tsr_check_activation_scales(tsr_contents *survey, const tsr_checkpoint *c, tsr_err *err)
{
    for (size_t i = 0; i < c->tensors.count; i++) {
        const tsr_tensor *const t = &c->tensors.items[i];
        if (tsr_dtype_is_weight_float((tsr_dtype)t->dtype) && tsr_is_scale_of_attention(t->name))
            TSR_TRY(check_scale(&survey->issues, c, t, "the KV cache or of attention",
                                "quantize the original again with --kv-ranges or --kv-scale, or remove the tensor",
                                err));
    }
    for (size_t i = 0; i < survey->weights.count; i++) {
        const tsr_tensor *const t = survey->weights.items[i].input_scale;
        if (t != NULL && tsr_dtype_is_weight_float((tsr_dtype)t->dtype))
            TSR_TRY(check_scale(&survey->issues, c, t, "a layer's input",
                                "quantize the original again with --activations or --input-scale", err));
    }
    return TSR_OK;
}
