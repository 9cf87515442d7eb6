/* Checks the scales of activations that a checkpoint stores: of inputs of layers, of keys and values in the cache, of queries. */
#include "verify/survey/contents.h"

#include "formats/weights/foreign.h"
#include "verify/values/decode.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Notes the first value of a scale that is not a positive number. */
static tsr_status check_scale(tsr_issues *issues, const tsr_checkpoint *c, const tsr_tensor *t, const char *of,
                              const char *advice, tsr_err *err)
{
    const uint64_t n = tsr_tensor_elements(t);
    double *const values = malloc((size_t)(n + 1) * sizeof *values);
    tsr_status status =
        values == NULL ? tsr_out_of_memory(err, "for scales of activations") : tsr_decode_tensor(c, t, values, err);
    uint64_t i = 0;
    while (status == TSR_OK && i < n && values[i] > 0 && isfinite(values[i]))
        i++;
    if (status == TSR_OK && i < n) {
        char detail[160];
        snprintf(detail, sizeof detail, "value %llu of this scale of %s is %.6g", (unsigned long long)i, of, values[i]);
        tsr_issues_add(
            issues,
            &(tsr_issue){.fatal = true, .tensor = t->name, .rule = "scale values", .detail = detail, .advice = advice});
    }
    free(values);
    return status;
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
