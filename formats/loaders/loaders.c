/* The table of loaders, and the function that runs the rules of each. Sources of the rules: vLLM's and SGLang's fp8.py
 * and compressed_tensors.py, transformers' finegrained_fp8.py, DeepSeek-V3's inference/convert.py and model.py,
 * TensorRT-LLM's modeling_deepseekv3.py. tests/peers/loaders compares the rules of the first three with the loaders'
 * own code. */
#include "formats/loaders/loaders.h"

#include "formats/checkpoint/config.h"
#include "formats/loaders/class_rules.h"
#include "formats/loaders/load_query.h"

#include <string.h>
#include <strings.h>

/* The versions that the rules were checked against. tests/peers/loaders, docs/families.md and `inspect` print these. */
#define VLLM_VERSION         "0.33.0"
#define SGLANG_VERSION       "0.5.23"
#define TRANSFORMERS_VERSION "5.24.0"
#define DEEPSEEK_VERSION     "9b4e978"
#define TRTLLM_VERSION       "21156a7"

#define VLLM         "vLLM " VLLM_VERSION ", load_weights run on the CPU"
#define SGLANG       "SGLang " SGLANG_VERSION ", load_weights run on the CPU"
#define TRANSFORMERS "transformers " TRANSFORMERS_VERSION ", from_pretrained run on the CPU"
#define DEEPSEEK     "DeepSeek-V3 " DEEPSEEK_VERSION ", convert.py run, model.py read"
#define TRTLLM       "TensorRT-LLM " TRTLLM_VERSION ", source read; modeling_deepseekv3.py of 2025"

/* Sources of rules about kinds that tests/peers/loaders has not loaded yet. */
#define VLLM_READ         "vLLM " VLLM_VERSION ", source read"
#define SGLANG_READ       "SGLang " SGLANG_VERSION ", source read"
#define TRANSFORMERS_READ "transformers " TRANSFORMERS_VERSION ", source read"

static const tsr_consumer kConsumers[TSR_LOADER_COUNT] = {
    [TSR_LOADER_VLLM] = {.name = "vllm",
                         .version = VLLM_VERSION,
                         .checked = VLLM,
                         .compressed_tensors = true,
                         .any_e8m0 = true,
                         .lists = true,
                         .fuses = true,
                         .trusts_ue8m0 = true,
                         .any_case = true,
                         .skips_empty = true,
                         .keys = {"ignored_layers", "modules_to_not_convert"},
                         .matching = TSR_MATCH_EXACT},
    [TSR_LOADER_SGLANG] = {.name = "sglang",
                           .version = SGLANG_VERSION,
                           .checked = SGLANG,
                           .compressed_tensors = true,
                           .any_e8m0 = true,
                           .lists = true,
                           .fuses = true,
                           .trusts_ue8m0 = true,
                           .keys = {"ignored_layers", "modules_to_not_convert"},
                           .matching = TSR_MATCH_PATH},
    [TSR_LOADER_TRANSFORMERS] = {.name = "transformers",
                                 .version = TRANSFORMERS_VERSION,
                                 .checked = TRANSFORMERS,
                                 .compressed_tensors = true,
                                 .stated_e8m0 = true,
                                 .lists = true,
                                 .trusts_ue8m0 = true,
                                 .keys = {"modules_to_not_convert", "ignored_layers"},
                                 .matching = TSR_MATCH_ENDS},
    [TSR_LOADER_DEEPSEEK] = {.name = "deepseek", .version = DEEPSEEK_VERSION, .checked = DEEPSEEK},
    [TSR_LOADER_TRTLLM] = {.name = "trtllm",
                           .version = TRTLLM_VERSION,
                           .checked = TRTLLM,
                           .compressed_tensors = true,
                           .lists = true,
                           .fuses = true,
                           .trusts_ue8m0 = true,
                           .keys = {"modules_to_not_convert", "ignored_layers"},
                           .matching = TSR_MATCH_GLOB},
};

/* A check, its subject (NULL: it is a table, whose rows are listed), and the version of each loader that it was checked
 * against, in the order of tsr_loader; NULL: it does not apply to that loader. The check of shapes runs at each TP
 * size, the others once. */
typedef struct load_rule {
    void (*ask)(const tsr_load_query *q);
    const char *subject;
    const char *checked[TSR_LOADER_COUNT];
} load_rule;

static const load_rule kRules[] = {
    {tsr_rule_kinds,
     "formats of weights that the loader reads under each quant_method",
     {VLLM_READ, SGLANG_READ, TRANSFORMERS_READ, DEEPSEEK, TRTLLM}},
    {tsr_rule_small_groups,
     "arguments, groups and zero points of NVFP4, MXFP4, MXFP8, AWQ and GPTQ",
     {VLLM_READ, SGLANG_READ, TRANSFORMERS_READ, NULL, TRTLLM}},
    {tsr_rule_targets,
     "targets in config_groups of compressed-tensors that name each quantized layer",
     {VLLM, SGLANG, NULL, NULL, TRTLLM}},
    {tsr_rule_deepseek_v4,
     "DeepSeek-V4: names, dtypes of experts and scales",
     {VLLM_READ, SGLANG, TRANSFORMERS_READ, NULL, NULL}},
    {tsr_rule_modelopt, "ModelOpt's exclude_modules and algorithms", {VLLM_READ, SGLANG_READ, NULL, NULL, TRTLLM}},
    {tsr_rule_mixed, "quantized_layers of ModelOpt's MIXED_PRECISION", {VLLM, SGLANG, NULL, NULL, NULL}},
    {tsr_rule_globals, "equal global scales of fused layers", {VLLM_READ, SGLANG_READ, NULL, NULL, TRTLLM}},
    {tsr_rule_config,
     "members of config.json and of the quantization in it",
     {VLLM, SGLANG, TRANSFORMERS, DEEPSEEK, TRTLLM}},
    {tsr_rule_scales, "names and values of scales", {VLLM, SGLANG, TRANSFORMERS, DEEPSEEK, TRTLLM}},
    {tsr_rule_dtypes, "dtypes of scales", {VLLM, SGLANG, TRANSFORMERS, DEEPSEEK, TRTLLM}},
    {tsr_rule_lists,
     "the list of unquantized modules covers the plain layers and no quantized one",
     {VLLM, SGLANG, TRANSFORMERS, DEEPSEEK, TRTLLM}},
    {tsr_rule_experts, "one format for all experts of a layer", {VLLM, SGLANG, TRANSFORMERS, NULL, TRTLLM}},
    {tsr_rule_classes, NULL, {VLLM, SGLANG, TRANSFORMERS, DEEPSEEK, TRTLLM}},
    {tsr_rule_gpu, NULL, {VLLM_READ, SGLANG_READ, NULL, NULL, NULL}},
    {tsr_rule_router,
     "qwen3_moe and lfm2_moe: the router is in the list of unquantized modules",
     {VLLM, NULL, NULL, NULL, NULL}},
    {tsr_rule_linear_attention,
     "in_proj_ba, in_proj_a and in_proj_b of linear attention: parts end on block boundaries",
     {VLLM, SGLANG, NULL, NULL, NULL}},
    {tsr_rule_presence,
     "all layers, experts, embeddings and norms are present",
     {VLLM, SGLANG, TRANSFORMERS, DEEPSEEK, TRTLLM}},
    {tsr_rule_transformers,
     "index metadata; rows and columns that are not a multiple of the block",
     {NULL, NULL, TRANSFORMERS, NULL, NULL}},
    {tsr_rule_head_scales, "scales of kv_b_proj divide by heads", {NULL, NULL, NULL, NULL, TRTLLM}},
    {tsr_rule_deepseek, "names that convert.py accepts", {NULL, NULL, NULL, DEEPSEEK, NULL}},
};
static const load_rule kShapes = {tsr_rule_shapes,
                                  "at each TP size: blocks, words, heads and experts divide by the ranks",
                                  {VLLM, SGLANG, NULL, DEEPSEEK, TRTLLM}};

const char *tsr_loader_name(tsr_loader loader)
{
    return kConsumers[loader].name;
}

const char *tsr_loader_checked(tsr_loader loader)
{
    return kConsumers[loader].checked;
}

const char *tsr_loader_version(tsr_loader loader)
{
    return kConsumers[loader].version;
}

/* Lists the rules about classes, in the place of their check. */
static void list_class_rules(tsr_loader loader, const char *model_type, tsr_list_rule_fn *list, void *context)
{
    size_t count;
    const tsr_class_rule *const rules = tsr_class_rules(&count);
    for (size_t i = 0; i < count; i++) {
        if (tsr_class_rule_applies(&rules[i], loader, model_type) && rules[i].why != NULL)
            list(context, &(tsr_rule_text){.rule = rules[i].rule,
                                           .what = rules[i].what,
                                           .why = rules[i].why,
                                           .advice = rules[i].advice,
                                           .of_class = rules[i].families != NULL});
    }
}

void tsr_loader_list_rules(tsr_loader loader, const char *model_type, tsr_list_rule_fn *list, void *context)
{
    for (size_t i = 0; i <= COUNT(kRules); i++) {
        const load_rule *const r = i < COUNT(kRules) ? &kRules[i] : &kShapes;
        if (r->checked[loader] != NULL && r->ask == tsr_rule_classes)
            list_class_rules(loader, model_type, list, context);
        else if (r->checked[loader] != NULL && r->ask == tsr_rule_gpu)
            tsr_gpu_rules_list(loader, list, context);
        else if (r->checked[loader] != NULL)
            list(context, &(tsr_rule_text){.what = r->subject});
    }
}

static void ask_rule(tsr_load_query *q, const load_rule *which)
{
    q->checked = which->checked[q->loader];
    if (q->checked != NULL)
        which->ask(q);
}

static void ask(tsr_load_query *q, tsr_load_table *table, size_t row)
{
    q->tp = 0;
    for (size_t i = 0; i < COUNT(kRules); i++)
        ask_rule(q, &kRules[i]);
    for (size_t k = 0; k < table->n_tp; k++) {
        q->tp = table->tp[k];
        ask_rule(q, &kShapes);
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
        if (linears->items[i].block.rows != 0 && tsr_linear_is_fp8(&linears->items[i]))
            return true;
    }
    return false;
}

/* Reads the first existing list in `object` under one of the n keys. Returns false when memory is exhausted. */
static bool read_first(tsr_ignore_list *list, tsr_json_text object, const char *const *keys, size_t n)
{
    *list = (tsr_ignore_list){0};
    for (size_t i = 0; i < n; i++) {
        tsr_json_text array;
        if (tsr_json_find(object.data, object.size, keys[i], &array) && array.data[0] == '[')
            return tsr_ignore_list_read(list, keys[i], array);
    }
    return true;
}

/* Reads the ignore list under the key that this loader uses. Returns false when memory is exhausted. */
static bool read_list(tsr_ignore_list *list, const tsr_load_query *q)
{
    static const char *const kIgnore[] = {"ignore"}, *const kModelopt[] = {"ignore", "exclude_modules"};
    if (q->config.data == NULL || !q->who->lists)
        return true;
    if (tsr_query_compressed_tensors(q))
        return read_first(list, q->config, kIgnore, 1);
    if (tsr_query_method(q, "modelopt"))
        return read_first(list, q->config, kModelopt, 2);
    if (!read_first(list, q->config, q->who->keys, 2))
        return false;
    if (list->count > 0 || list->odd != NULL || !q->who->skips_empty)
        return true;
    tsr_ignore_list_free(list);
    return read_first(list, q->config, q->who->keys + 1, 1);
}

/* Reads the targets of each group of compressed-tensors' configuration. Returns false when memory is exhausted. */
static bool read_targets(tsr_ignore_list *targets, tsr_json_text *found, size_t limit, tsr_load_query *q)
{
    static const char *const kTargets[] = {"targets"};
    tsr_json_text groups, group, name;
    if (q->config.data == NULL || !tsr_query_compressed_tensors(q) ||
        !tsr_config_find_in(q->s->checkpoint, q->config, "config_groups", &groups))
        return true;
    tsr_json_reader r = tsr_json_members(groups);
    while (q->n_targets < limit && tsr_json_member(&r, &name, &group)) {
        found[q->n_targets] = group;
        if (!read_first(&targets[q->n_targets++], group, kTargets, 1))
            return false;
    }
    return true;
}

static void read_family(tsr_load_query *q, const tsr_checkpoint *c, tsr_arena *arena)
{
    const char *const whole = tsr_config_find_string(c, "model_type", arena);
    const char *const text = tsr_config_find_string(c, "text_config.model_type", arena);
    q->model = whole == NULL ? "" : whole;
    q->family = text == NULL ? q->model : text;
}

static bool states(const tsr_load_query *q, const char *key, const char *literal)
{
    tsr_json_text value;
    return q->config.data != NULL && tsr_json_find(q->config.data, q->config.size, key, &value) &&
           tsr_json_is(value, literal);
}

/* Finds the object of ModelOpt's side file, which loaders read if config.json has none. */
static tsr_status read_side(tsr_load_query *q, tsr_arena *arena, tsr_err *err)
{
    const char *text = NULL;
    size_t size = 0;
    TSR_TRY(tsr_checkpoint_side_text(q->s->checkpoint, TSR_HF_QUANT_CONFIG_NAME, arena, &text, &size, err));
    if (text != NULL && !tsr_json_find(text, size, "quantization", &q->side))
        q->side = (tsr_json_text){0};
    if (q->config.data == NULL)
        q->config = q->side;
    q->mixed = states(q, "quant_algo", "\"MIXED_PRECISION\"");
    q->nvfp4_experts = states(q, "moe_quant_algo", "\"NVFP4\"");
    return TSR_OK;
}

tsr_status tsr_loaders_check(tsr_load_table *table, const tsr_load_subject *subject, tsr_issues *issues, tsr_err *err)
{
    const tsr_checkpoint *const c = subject->checkpoint;
    const char *const path = tsr_quantization_path(c);
    tsr_ignore_list ignored = {0}, targets[TSR_LOAD_GROUPS] = {{0}};
    tsr_json_text found[TSR_LOAD_GROUPS];
    tsr_linears linears;
    tsr_load_query q = {.s = subject,
                        .linears = &linears,
                        .gpu = table->gpu,
                        .ignored = &ignored,
                        .targets = targets,
                        .groups = found,
                        .issues = issues};
    TSR_TRY(tsr_linears_collect(&linears, c, subject->weights, subject->model, err));
    q.block = any_block(&linears);
    read_family(&q, c, &linears.arena);
    if (path != NULL && !tsr_config_find(c, path, &q.config))
        q.config = (tsr_json_text){0};
    tsr_status status = read_side(&q, &linears.arena, err);
    if (status == TSR_OK && !c->without_data)
        status = tsr_globals_compare(&q, &linears.arena, err);
    bool enough = status == TSR_OK && read_targets(targets, found, TSR_LOAD_GROUPS, &q);
    for (size_t i = 0; enough && i < table->n_loaders; i++) {
        q.loader = table->loaders[i];
        q.who = &kConsumers[q.loader];
        enough = read_list(&ignored, &q);
        if (enough)
            ask(&q, table, i);
        tsr_ignore_list_free(&ignored);
    }
    for (size_t i = 0; i < q.n_targets; i++)
        tsr_ignore_list_free(&targets[i]);
    tsr_linears_free(&linears);
    TSR_TRY(status);
    if (!enough || issues->failed)
        return tsr_out_of_memory(err, "for what loaders ask");
    return TSR_OK;
}
