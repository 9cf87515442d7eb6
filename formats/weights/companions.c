/* Finds the tensors that belong to codes, only by the names and dtypes in the table of kinds. */
#include "formats/names/absorbed.h"
#include "formats/weights/pairing.h"

#include <stdlib.h>
#include <string.h>

/* ---- the scale, which determines the kind ---- */

static tsr_status refuse_second_scale(const tsr_pairing *p, const tsr_weight *x, const tsr_values_name *name,
                                      const tsr_tensor *second)
{
    return tsr_fail(p->err, TSR_E_FORMAT, "%s: '%.*s%s' has two scales, '%s' and '%s'; remove the wrong one",
                    tsr_pairing_path(p, x->data), (int)name->length, name->stem, name->ending, x->scale->name,
                    second->name);
}

/* Finds the scale of codes of this kind under any of its names. */
static tsr_status look_for_scale(const tsr_pairing *p, tsr_weight *x, const tsr_weight_kind *kind,
                                 const tsr_values_name *name)
{
    for (size_t i = 0; i < TSR_KIND_SCALES && kind->scales[i] != NULL; i++) {
        const tsr_tensor *const t = tsr_kind_find_of(p->c, name, kind->scales[i]);
        if (t == NULL || t == x->scale)
            continue;
        if (x->scale != NULL)
            return refuse_second_scale(p, x, name, t);
        x->scale = t;
    }
    return TSR_OK;
}

static tsr_status refuse_without_scale(const tsr_pairing *p, const tsr_weight *x, const tsr_values_name *name)
{
    const char *const dtype = tsr_dtype_name((tsr_dtype)x->data->dtype);
    if (x->scale == NULL)
        return tsr_fail_as(p->err, TSR_ERROR_NO_SCALE, TSR_E_FORMAT,
                           "%s: '%s' is %s without a scale (looked for '%.*s%s_scale_inv' and its other spellings in "
                           "all %zu file%s): its values cannot be decoded",
                           tsr_pairing_path(p, x->data), x->data->name, dtype, (int)name->length, name->stem,
                           name->ending, p->c->n_files, p->c->n_files == 1 ? "" : "s");
    return tsr_fail(p->err, TSR_E_UNSUPPORTED, "%s: unsupported combination: '%s' is %s, and its scale '%s' is %s",
                    tsr_pairing_path(p, x->data), x->data->name, dtype, x->scale->name,
                    tsr_dtype_name((tsr_dtype)x->scale->dtype));
}

/* Finds the first kind with these codes and this scale. Shapes decide later between kinds with the same tensors. */
static tsr_status find_kind(const tsr_pairing *p, tsr_weight *x, tsr_values_name *name)
{
    tsr_values_name values;
    *name = (tsr_values_name){x->data->name, 0, ""};
    for (const tsr_weight_kind *k = tsr_weight_kinds; k->name != NULL; k++) {
        if ((k->code_dtypes & TSR_DTYPE_BIT(x->data->dtype)) == 0 || !tsr_kind_values_name(k, x->data->name, &values))
            continue;
        TSR_TRY(look_for_scale(p, x, k, &values));
        if (x->kind == NULL && (name->length == 0 || x->scale != NULL))
            *name = values;
        if (x->kind == NULL && x->scale != NULL && tsr_kind_has(k, x->data, x->scale))
            x->kind = k;
    }
    return x->kind == NULL ? refuse_without_scale(p, x, name) : TSR_OK;
}

/* Finds the scale of a part of an absorbed kv_b_proj: its own, or one for both parts. */
static tsr_status find_part_scale(const tsr_pairing *p, tsr_weight *x)
{
    const char *const names[] = {x->part->scale, x->part->one_scale};
    const tsr_tensor *found[2] = {NULL, NULL};
    const tsr_values_name own = {x->data->name, strlen(x->data->name), ""};
    for (size_t i = 0; i < 2 && names[i] != NULL; i++) {
        char *const text = malloc(own.length + strlen(names[i]) + 1);
        if (text == NULL)
            return tsr_out_of_memory(p->err, "while pairing");
        if (tsr_absorbed_sibling(x->data->name, x->part->name, names[i], text, own.length + strlen(names[i]) + 1))
            found[i] = tsr_checkpoint_find(p->c, text);
        free(text);
    }
    x->scale = found[0] != NULL ? found[0] : found[1];
    x->one_scale = found[0] == NULL;
    if (found[0] != NULL && found[1] != NULL)
        return refuse_second_scale(p, x, &own, found[1]);
    if (x->scale == NULL)
        return tsr_fail_as(p->err, TSR_ERROR_NO_SCALE, TSR_E_FORMAT,
                           "%s: '%s', a part of an absorbed kv_b_proj, is F8_E4M3 without a scale (looked for '%s' and "
                           "'%s' beside it): its values cannot be decoded",
                           tsr_pairing_path(p, x->data), x->data->name, names[0] == NULL ? "-" : names[0],
                           names[1] == NULL ? "-" : names[1]);
    for (const tsr_weight_kind *k = tsr_weight_kinds; k->name != NULL && x->kind == NULL; k++) {
        if (k->family == TSR_FAMILY_FP8 && (k->scale_dtypes & TSR_DTYPE_BIT(x->scale->dtype)) != 0)
            x->kind = k;
    }
    return x->kind == NULL ? refuse_without_scale(p, x, &own) : TSR_OK;
}

/* ---- other companions ---- */

/* Sets the name of the values: codes of X.weight may have another name. Rejects tensors under both names, because they
 * contradict each other. */
static tsr_status name_values(const tsr_pairing *p, tsr_weight *x, const tsr_values_name *name)
{
    x->values = x->data;
    if (x->kind->codes[0] == '\0')
        return TSR_OK;
    tsr_tensor *const values = tsr_arena_alloc(&p->w->arena, sizeof *values);
    if (values == NULL)
        return tsr_out_of_memory(p->err, "while pairing");
    *values = *x->data;
    values->name = tsr_arena_printf(&p->w->arena, "%.*s%s", (int)name->length, name->stem, name->ending);
    if (values->name == NULL)
        return tsr_out_of_memory(p->err, "while pairing");
    x->values = values;
    if (tsr_checkpoint_find(p->c, values->name) != NULL)
        return tsr_fail(p->err, TSR_E_FORMAT, "%s: both '%s' and '%s' exist; remove the wrong one",
                        tsr_pairing_path(p, x->data), values->name, x->data->name);
    return TSR_OK;
}

static tsr_status find_global(const tsr_pairing *p, tsr_weight *x)
{
    if (x->kind->global == NULL)
        return TSR_OK;
    x->global_scale = tsr_kind_find(p->c, x->values->name, x->kind->global);
    x->global_divides = x->kind->global_divides;
    if (x->global_scale == NULL)
        return tsr_fail(p->err, TSR_E_FORMAT,
                        "%s: '%s' is %s without a global scale, '%s%s': its values cannot be decoded",
                        tsr_pairing_path(p, x->data), x->data->name, x->kind->title, x->values->name, x->kind->global);
    if (x->global_scale->dtype == TSR_F32)
        return TSR_OK;
    return tsr_fail(p->err, TSR_E_UNSUPPORTED, "%s: '%s' is %s; a global scale must be F32",
                    tsr_pairing_path(p, x->global_scale), x->global_scale->name,
                    tsr_dtype_name((tsr_dtype)x->global_scale->dtype));
}

/* Finds the scale and zero point of the layer's input, which have no meaning without the codes. */
static void find_inputs(const tsr_pairing *p, tsr_weight *x)
{
    static const char *const kScales[] = {".input_scale", ".activation_scale", ".input_global_scale"};
    const char *const name = x->values->name;
    for (size_t i = 0; i < sizeof kScales / sizeof *kScales && x->input_scale == NULL; i++)
        x->input_scale = tsr_kind_find(p->c, name, kScales[i]);
    if (x->kind->family == TSR_FAMILY_INTEGERS)
        x->input_zero_point = tsr_kind_find(p->c, name, ".input_zero_point");
}

static void find_others(const tsr_pairing *p, tsr_weight *x)
{
    const char *const name = x->values->name;
    switch ((tsr_family)x->kind->family) {
    case TSR_FAMILY_INTEGERS:
        x->zero_point = tsr_kind_find(p->c, name, "_zero_point");
        x->group_index = tsr_kind_find(p->c, name, "_g_idx");
        if (x->coding == TSR_CODED_PACKED)
            x->shape = tsr_kind_find(p->c, name, "_shape");
        break;
    case TSR_FAMILY_GPTQ:
        x->zero_point = tsr_kind_find(p->c, name, ".qzeros");
        x->group_index = tsr_kind_find(p->c, name, ".g_idx");
        break;
    case TSR_FAMILY_FP8:
    case TSR_FAMILY_MX:
    case TSR_FAMILY_MXFP6:
        break;
    }
}

tsr_status tsr_find_companions(const tsr_pairing *p, tsr_weight *x)
{
    tsr_values_name name;
    if (x->part != NULL) {
        x->values = x->data;
        TSR_TRY(find_part_scale(p, x));
    } else {
        TSR_TRY(find_kind(p, x, &name));
        TSR_TRY(name_values(p, x, &name));
        TSR_TRY(find_global(p, x));
        find_inputs(p, x);
        find_others(p, x);
    }
    x->bits = x->kind->bits;
    x->scale_dtype = x->scale->dtype == TSR_U8 ? TSR_F8_E8M0 : x->scale->dtype;
    const tsr_tensor *companions[TSR_MAX_COMPANIONS];
    const size_t n = tsr_weight_companions(x, companions, NULL);
    for (size_t i = 0; i < n; i++)
        tsr_pairing_claim(p, companions[i]);
    return TSR_OK;
}
