/* Edits expert_dtype in a config.json that is already in the plan. */
#include "convert/configs/deepseek_v4_config.h"

#include "convert/ops/mx_op.h"
#include "formats/json/json.h"
#include "formats/json/json_edit.h"
#include "quantize/policy/policy.h"

#include <string.h>

static bool begins(const tsr_checkpoint *c, const char *beginning)
{
    tsr_arena arena = {0};
    const char *const type = tsr_policy_model_type(c, &arena);
    const bool same = type != NULL && strncmp(type, beginning, strlen(beginning)) == 0;
    tsr_arena_free(&arena);
    return same;
}

bool tsr_has_deepseek_v4_names(const tsr_checkpoint *checkpoint)
{
    return begins(checkpoint, "deepseek_v4");
}

/* Sets expert_dtype in `object`, which lies in the text or is the whole text. */
static tsr_status set(tsr_text *out, const tsr_text *text, tsr_json_text object, const char *value, tsr_err *err)
{
    const char *const end = object.data + object.size;
    tsr_text_append(out, text->data, (size_t)(object.data - text->data));
    TSR_TRY(tsr_json_edit_set(out, object.data, object.size, "expert_dtype", value, err));
    tsr_text_append(out, end, (size_t)(text->data + text->size - end));
    return tsr_text_status(out, err);
}

static tsr_status set_everywhere(tsr_text *config, bool inside, const char *value, tsr_err *err)
{
    tsr_json_text object = {.data = config->data, .size = config->size};
    tsr_text edited = {0};
    tsr_status status = set(&edited, config, object, value, err);
    if (status == TSR_OK && inside && tsr_json_find(edited.data, edited.size, "quantization_config", &object)) {
        tsr_text again = {0};
        status = set(&again, &edited, object, value, err);
        tsr_text_free(&edited);
        edited = again;
    }
    tsr_text_free(config);
    *config = edited;
    return status;
}

tsr_status tsr_plan_expert_dtype(tsr_plan *plan, const char *dtype, tsr_err *err)
{
    const char *const value = tsr_arena_printf(&plan->arena, "\"%s\"", dtype);
    for (size_t i = 0; value != NULL && i < plan->n_texts; i++) {
        tsr_plan_text *const t = &plan->texts[i];
        if (strcmp(t->name, TSR_CONFIG_NAME) != 0)
            continue;
        tsr_text config = {0};
        tsr_text_append(&config, t->data, t->size);
        tsr_status status = tsr_text_status(&config, err);
        if (status == TSR_OK)
            status = set_everywhere(&config, begins(plan->sources[0], "deepseek_v41"), value, err);
        t->size = config.size;
        t->data = status == TSR_OK ? tsr_arena_dup(&plan->arena, config.data, config.size) : NULL;
        tsr_text_free(&config);
        TSR_TRY(status);
        if (t->data == NULL)
            return tsr_out_of_memory(err, "while planning");
    }
    return value == NULL ? tsr_out_of_memory(err, "while planning") : TSR_OK;
}

bool tsr_is_plain_table(const tsr_tensor *t)
{
    return tsr_dtype_is_weight_float((tsr_dtype)t->dtype) && strstr(t->name, ".engram.embed.") != NULL;
}

tsr_status tsr_plan_deepseek_v4_table(tsr_plan *plan, const tsr_tensor *table, tsr_err *err)
{
    static const tsr_mx_names kNames = {
        .codes = ".weight", .scales = ".scale", .global = "", .input = "", .power = TSR_F8_E8M0};
    /* scales are powers of two, large enough to avoid saturation */
    const tsr_mx_scheme scheme = tsr_mx_scheme_of(TSR_MXFP8, true);
    if (table->rank != 2 || table->shape[1] % scheme.group != 0)
        return tsr_fail(err, TSR_E_SHAPE, "the rows of '%s' are not a multiple of the group size %u", table->name,
                        scheme.group);
    TSR_TRY(tsr_plan_mx(plan, table, &scheme, &kNames, NULL, 0, err));
    return tsr_plan_add_note(plan, table, "quantize", "n-gram table: e4m3 with a scale for 32 columns", err);
}
