/* Generates activations with a counter-based generator, or reads and converts those of a file. */
#include "verify/evidence/activations.h"

#include "common/checked.h"
#include "common/float_bits.h"
#include "verify/values/weight_reader.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

uint64_t tsr_mix_bits(uint64_t x)
{
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

uint64_t tsr_seed_of(uint64_t seed, const char *name)
{
    uint64_t state = tsr_mix_bits(seed);
    for (const char *p = name; *p != '\0'; p++)
        state = tsr_mix_bits(state ^ (unsigned char)*p);
    return state;
}

/* Returns the sum of 12 uniform 16-bit numbers from three 64-bit words, which is nearly normal. */
static float draw_normal(uint64_t state)
{
    int32_t sum = 0;
    for (uint64_t i = 0; i < 3; i++) {
        const uint64_t bits = tsr_mix_bits(state + i * 0xD1342543DE82EF95u);
        for (unsigned part = 0; part < 64; part += 16)
            sum += (int32_t)(bits >> part & 0xFFFF);
    }
    return (float)(sum - 6 * 0xFFFF) * 0x1p-16f;
}

void tsr_activations_draw(uint64_t seed, size_t m, size_t k, uint16_t *x)
{
    for (size_t j = 0; j < k; j++) {
        const bool outlier = tsr_mix_bits(seed ^ tsr_mix_bits(j)) % TSR_OUTLIER_ONE_IN == 0;
        for (size_t i = 0; i < m; i++)
            x[i * k + j] = tsr_bf16_from_f32(draw_normal(seed + tsr_mix_bits(i * k + j)) *
                                             (outlier ? (float)TSR_OUTLIER_FACTOR : 1.0f));
    }
}

const tsr_tensor *tsr_activations_find(const tsr_checkpoint *file, const char *weight)
{
    char name[1024];
    const int module = (int)tsr_module_length(weight);
    const tsr_tensor *found = tsr_checkpoint_find(file, weight);
    if (found == NULL && snprintf(name, sizeof name, "%.*s", module, weight) < (int)sizeof name)
        found = tsr_checkpoint_find(file, name);
    if (found == NULL && snprintf(name, sizeof name, "%.*s.input", module, weight) < (int)sizeof name)
        found = tsr_checkpoint_find(file, name);
    return found;
}

static tsr_status convert(const tsr_tensor *t, const unsigned char *bytes, size_t n, uint16_t *x, tsr_err *err)
{
    const size_t width = tsr_dtype_bytes((tsr_dtype)t->dtype);
    for (size_t i = 0; i < n; i++) {
        double value;
        tsr_decode(t->dtype, bytes + i * width, 1, &value);
        if (!isfinite(value) || fabs(value) > 0x1.FEp127)
            return tsr_fail(err, TSR_E_VALUE, "activations: '%s' holds %g at element %zu", t->name, value, i);
        x[i] = tsr_bf16_from_f64(value);
    }
    return TSR_OK;
}

tsr_status tsr_activations_read(const tsr_checkpoint *file, const tsr_tensor *t, size_t *m, size_t k, uint16_t *x,
                                tsr_err *err)
{
    char shape[192];
    if (!tsr_dtype_is_weight_float((tsr_dtype)t->dtype))
        return tsr_fail(err, TSR_E_UNSUPPORTED, "activations: '%s' is %s; BF16, F16 or F32 is needed", t->name,
                        tsr_dtype_name((tsr_dtype)t->dtype));
    if (t->rank == 0 || t->shape[t->rank - 1] != k || t->bytes == 0)
        return tsr_fail(err, TSR_E_SHAPE, "activations: '%s' is %s; the weight needs rows of %zu", t->name,
                        tsr_shape_text(t, shape, sizeof shape), k);
    const size_t width = tsr_dtype_bytes((tsr_dtype)t->dtype);
    *m = (size_t)tsr_min_u64(*m, tsr_tensor_elements(t) / k);
    unsigned char *const bytes = malloc(*m * k * width);
    tsr_status status = bytes == NULL ? tsr_out_of_memory(err, "for activations") : TSR_OK;
    if (status == TSR_OK)
        status = tsr_checkpoint_read(file, t, 0, bytes, *m * k * width, err);
    if (status == TSR_OK)
        status = convert(t, bytes, *m * k, x, err);
    free(bytes);
    return status;
}

bool tsr_activations_are_zero(const uint16_t *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if ((x[i] & 0x7FFF) != 0)
            return false;
    }
    return true;
}
