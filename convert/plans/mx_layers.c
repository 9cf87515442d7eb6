/* Plans members of fused layers with shared scales. */
#include "convert/plans/mx_layers.h"

#include "common/float_bits.h"
#include "convert/ops/fp8_rows_op.h"
#include "formats/names/fused.h"
#include "kernels/cpu/block_fp8.h"

#include <math.h>
#include <stdlib.h>

bool tsr_mx_layers_make(tsr_mx_layers *layers, size_t tensors)
{
    layers->coded = calloc(tensors + 1, sizeof *layers->coded);
    layers->amaxes = calloc(tensors + 1, sizeof *layers->amaxes);
    return layers->coded != NULL && layers->amaxes != NULL;
}

void tsr_mx_layers_free(tsr_mx_layers *layers)
{
    free(layers->coded);
    free(layers->amaxes);
}

static const tsr_checkpoint *source_of(const tsr_mx_layers *l)
{
    return l->plan->sources[0];
}

static size_t index_of(const tsr_mx_layers *l, const tsr_tensor *t)
{
    return (size_t)(t - source_of(l)->tensors.items);
}

/* Lists the tensors that loaders run as one layer, including this one. */
static size_t members_of(const tsr_mx_layers *l, const tsr_tensor *t, const tsr_tensor *members[TSR_FUSED_MEMBERS])
{
    const size_t all = tsr_fused_members(source_of(l), t, members);
    size_t n = 0;
    for (size_t i = 0; i < all; i++) {
        if (l->coded[index_of(l, members[i])])
            members[n++] = members[i];
    }
    return n;
}

/* Finds or makes the amax that all members of a fused layer share. */
static tsr_status find_amax(const tsr_mx_layers *l, const tsr_tensor *t, const tsr_mx_step *step, const tsr_amax **amax,
                            tsr_err *err)
{
    const tsr_tensor *members[TSR_FUSED_MEMBERS];
    *amax = l->amaxes[index_of(l, t)];
    if (*amax != NULL || (step->scheme != NULL && step->scheme->scale == TSR_MX_E8M0))
        return TSR_OK;
    const size_t n = members_of(l, t, members);
    *amax = tsr_plan_amax(l->plan, members, n);
    for (size_t i = 0; i < n && *amax != NULL; i++)
        l->amaxes[index_of(l, members[i])] = *amax;
    return *amax == NULL ? tsr_out_of_memory(err, "while planning") : TSR_OK;
}

/* Returns the stored scale for inputs up to `amax`. */
static float input_scale_of(const tsr_mx_step *step, tsr_dtype dtype, float amax)
{
    if (step->scheme == NULL)
        return tsr_e4m3_scale(tsr_f32_bits(amax), false);
    tsr_mx_scheme inputs = *step->scheme;
    inputs.search = TSR_SCALES_AMAX;
    return tsr_nvfp4_global(&inputs, dtype, &amax, 1);
}

tsr_status tsr_mx_layers_input(const tsr_mx_layers *l, const tsr_tensor *t, const char *name, float *amax, tsr_err *err)
{
    const tsr_tensor *members[TSR_FUSED_MEMBERS];
    const size_t n = members_of(l, t, members);
    *amax = 0;
    for (size_t i = 0; i < n; i++) {
        const tsr_calibrated *const known = tsr_calibration_find(l->calibration, members[i]->name);
        if (known == NULL)
            return tsr_fail(err, TSR_E_MISMATCH,
                            "%s: no ranges for '%s', which is quantized; calibrate it, or use --exclude '%s'",
                            l->calibration->path, members[i]->name, members[i]->name);
        if (known->scaled)
            return tsr_fail(err, TSR_E_MISMATCH,
                            "%s: '%s' has an int8 input_scale; %s needs the range itself: input_min and input_max "
                            "(JSON: min and max)",
                            l->calibration->path, known->module, name);
        *amax = fmaxf(*amax, fmaxf(-known->least, known->largest));
    }
    return TSR_OK;
}

/* Finds the stored scale of a layer's input: the given one, or that of the largest value measured at the input of any
 * member. Sets *input to 0 if none is stored. */
static tsr_status find_input(const tsr_mx_layers *l, const tsr_tensor *t, const tsr_mx_step *step, float *input,
                             tsr_err *err)
{
    const tsr_tensor *members[TSR_FUSED_MEMBERS];
    float amax;
    const bool divides = step->scheme != NULL && step->scheme->scale == TSR_MX_E4M3_DIVIDED;
    *input = divides && l->input_scale != 0 ? 1 / l->input_scale : l->input_scale;
    if (*input != 0)
        return TSR_OK;
    if (l->calibration == NULL) {
        /* the source of moved codes has the input scale (convert/plans/transcode_plan.h) */
        *input = t->source == TSR_SOURCE_DECODED && step->inputs ? -1 : 0;
        return TSR_OK;
    }
    TSR_TRY(tsr_mx_layers_input(l, t, step->name, &amax, err));
    (void)members_of(l, t, members);
    *input = input_scale_of(step, (tsr_dtype)members[0]->dtype, amax);
    return TSR_OK;
}

tsr_status tsr_mx_layers_plan(const tsr_mx_layers *layers, const tsr_tensor *weight, const tsr_mx_step *step,
                              tsr_err *err)
{
    const tsr_amax *amax;
    float input;
    TSR_TRY(find_amax(layers, weight, step, &amax, err));
    TSR_TRY(find_input(layers, weight, step, &input, err));
    return step->scheme == NULL ? tsr_plan_fp8_tensor(layers->plan, weight, step->names, amax, input, err)
                                : tsr_plan_mx(layers->plan, weight, step->scheme, step->names, amax, input, err);
}
