/* Queries of a checkpoint for loader rules, and reporting of their findings. */
#include "formats/loaders/load_query.h"

#include "common/options.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

void tsr_query_note(const tsr_load_query *q, bool fatal, const char *tensor, const char *rule, const char *advice,
                    const char *fmt, ...)
{
    char detail[800];
    va_list args;
    va_start(args, fmt);
    vsnprintf(detail, sizeof detail, fmt, args);
    va_end(args);
    const tsr_issue issue = {.fatal = fatal,
                             .loader = q->who->name,
                             .checked = q->checked,
                             .tp = q->tp,
                             .tensor = tensor,
                             .rule = rule,
                             .detail = detail,
                             .advice = advice};
    tsr_issues_add(q->issues, &issue);
}

size_t tsr_query_experts_length(const tsr_linear *l)
{
    size_t digits;
    return l->part == TSR_PART_ROUTED_EXPERTS ? tsr_experts_length(l->module, &digits) : 0;
}

bool tsr_query_reads(const tsr_load_query *q, const tsr_linear *l)
{
    return !l->mtp || (q->loader != TSR_LOADER_TRANSFORMERS && q->loader != TSR_LOADER_DEEPSEEK);
}

bool tsr_query_compressed_tensors(const tsr_load_query *q)
{
    return q->s->weights->method != NULL && strcmp(q->s->weights->method, "compressed-tensors") == 0;
}

bool tsr_query_method(const tsr_load_query *q, const char *method)
{
    return q->s->weights->method != NULL && strcasecmp(q->s->weights->method, method) == 0;
}

bool tsr_query_deepseek_v4(const tsr_load_query *q)
{
    return tsr_query_family(q, " deepseek_v4 deepseek_v4_text deepseek_v41 deepseek_v41_text ");
}

bool tsr_query_fp8(const tsr_load_query *q)
{
    const char *const method = q->s->weights->method;
    return method != NULL && (strcmp(method, "fp8") == 0 || (q->who->any_case && strcasecmp(method, "fp8") == 0));
}

bool tsr_query_family(const tsr_load_query *q, const char *families)
{
    return tsr_is_listed(families, q->family);
}

bool tsr_query_w4afp8(const tsr_load_query *q, const tsr_weight *w)
{
    tsr_json_text groups, name, group, inputs;
    bool quantized = false;
    if (w->bits != 4 || !tsr_json_get(q->config, "config_groups", &groups))
        return false;
    tsr_json_reader r = tsr_json_members(groups);
    while (tsr_json_member(&r, &name, &group)) {
        if (!tsr_json_get(group, "input_activations", &inputs) || tsr_json_is(inputs, "null"))
            return false;
        quantized = true;
    }
    return quantized;
}

bool tsr_query_quantized_head(const tsr_load_query *q)
{
    const tsr_weights *const all = q->s->weights;
    for (size_t i = 0; i < all->count; i++) {
        if (all->items[i].scale != NULL && tsr_part_of(all->items[i].values->name) == TSR_PART_HEAD)
            return true;
    }
    return false;
}

/* vLLM's and SGLang's parameters are uninitialized or -3.4e38 before loading, and neither checks that all were
 * loaded. */
void tsr_query_need_input_scale(const tsr_load_query *q, const tsr_linear *l)
{
    if (l->weight->input_scale == NULL)
        tsr_query_note(q, true, l->tensor->name, "input scale",
                       "quantize the original again with --activations or --input-scale",
                       "config.json says that inputs have a static scale, but it has none: the loader computes with an "
                       "uninitialized one");
}
