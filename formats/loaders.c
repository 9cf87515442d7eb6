/* The consumers, and asking each. Where their rules were read: vLLM's and SGLang's fp8.py and compressed_tensors.py,
 * transformers' finegrained_fp8.py, DeepSeek-V3's inference/convert.py and model.py, TensorRT-LLM's
 * modeling_deepseekv3.py. */
#include "formats/loaders.h"

#include "formats/load_query.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define COUNT(table) (sizeof(table) / sizeof *(table))

static const tsr_consumer kConsumers[TSR_LOADER_COUNT] = {
    [TSR_LOADER_VLLM] = {.name = "vllm",
                         .compressed_tensors = true,
                         .lists = true,
                         .fuses = true,
                         .trusts_ue8m0 = true,
                         .matching = TSR_MATCH_EXACT},
    [TSR_LOADER_SGLANG] = {.name = "sglang",
                           .compressed_tensors = true,
                           .lists = true,
                           .fuses = true,
                           .trusts_ue8m0 = true,
                           .matching = TSR_MATCH_SUBSTRING},
    [TSR_LOADER_TRANSFORMERS] = {.name = "transformers",
                                 .compressed_tensors = true,
                                 .e8m0 = true,
                                 .lists = true,
                                 .stacks = true,
                                 .trusts_ue8m0 = true,
                                 .matching = TSR_MATCH_ENDS},
    [TSR_LOADER_DEEPSEEK] = {.name = "deepseek"},
    [TSR_LOADER_TRTLLM] =
        {.name = "trtllm", .lists = true, .fuses = true, .trusts_ue8m0 = true, .matching = TSR_MATCH_GLOB},
};

const char *tsr_loader_name(tsr_loader loader)
{
    return kConsumers[loader].name;
}

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
                             .tp = q->tp,
                             .tensor = tensor,
                             .rule = rule,
                             .detail = detail,
                             .advice = advice};
    tsr_issues_add(q->issues, &issue);
}

bool tsr_query_reads(const tsr_load_query *q, const tsr_linear *l)
{
    return !l->mtp || (q->loader != TSR_LOADER_TRANSFORMERS && q->loader != TSR_LOADER_DEEPSEEK);
}

bool tsr_query_compressed_tensors(const tsr_load_query *q)
{
    return q->s->weights->method != NULL && strcmp(q->s->weights->method, "compressed-tensors") == 0;
}

static void ask(tsr_load_query *q, tsr_load_table *table, size_t row)
{
    static void (*const kRules[])(const tsr_load_query *) = {
        tsr_rule_config,   tsr_rule_scales,       tsr_rule_dtypes,      tsr_rule_lists,
        tsr_rule_presence, tsr_rule_transformers, tsr_rule_head_scales, tsr_rule_deepseek};
    q->tp = 0;
    for (size_t i = 0; i < COUNT(kRules); i++)
        kRules[i](q);
    for (size_t k = 0; k < table->n_tp; k++) {
        q->tp = table->tp[k];
        tsr_rule_shapes(q);
        table->ok[row][k] = !q->s->unsound && q->issues->omitted == 0;
        for (size_t i = 0; i < q->issues->count; i++) {
            const tsr_issue *const f = &q->issues->items[i];
            if (f->fatal && f->loader == q->who->name && (f->tp == 0 || f->tp == q->tp))
                table->ok[row][k] = false;
        }
    }
}

static bool any_block(const tsr_linears *linears)
{
    for (size_t i = 0; i < linears->count; i++) {
        if (linears->items[i].block_rows != 0 && !tsr_linear_is_integers(&linears->items[i]))
            return true;
    }
    return false;
}

tsr_status tsr_loaders_check(tsr_load_table *table, const tsr_load_subject *subject, tsr_issues *issues, tsr_err *err)
{
    static const char *const kLists[] = {"modules_to_not_convert", "ignored_layers"}, *const kIgnore[] = {"ignore"};
    const tsr_checkpoint *const c = subject->checkpoint;
    const bool ct = subject->weights->method != NULL && strcmp(subject->weights->method, "compressed-tensors") == 0;
    const char *const path = tsr_quantization_path(c);
    tsr_ignore_list ignored = {0};
    tsr_linears linears;
    tsr_load_query q = {.s = subject, .linears = &linears, .ignored = &ignored, .issues = issues};
    TSR_TRY(tsr_linears_collect(&linears, c, subject->weights, subject->model, subject->planned, err));
    q.block = any_block(&linears);
    tsr_status status = TSR_OK;
    if (path != NULL && tsr_json_find(c->config, c->config_size, path, &q.config) &&
        !tsr_ignore_list_read(&ignored, q.config, ct ? kIgnore : kLists, ct ? 1 : 2))
        status = tsr_fail(err, TSR_E_NOMEM, "out of memory for the list of ignored modules");
    for (size_t i = 0; status == TSR_OK && i < table->n_loaders; i++) {
        q.loader = table->loaders[i];
        q.who = &kConsumers[q.loader];
        ask(&q, table, i);
    }
    tsr_ignore_list_free(&ignored);
    tsr_linears_free(&linears);
    if (status == TSR_OK && issues->failed)
        status = tsr_fail(err, TSR_E_NOMEM, "out of memory for the issues");
    return status;
}
