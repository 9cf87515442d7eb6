/* Stores merged rows in the dtype or format of the base. */
#include "convert/ops/merge/merge_format.h"

#include "common/float_bits.h"
#include "quantize/fp8_decode.h"

#include <math.h>
#include <string.h>

/* ---- floating point ---- */

static uint64_t one_row(const tsr_weight *w)
{
    (void)w;
    return 1;
}

static uint64_t no_scratch(const tsr_weight *w)
{
    (void)w;
    return 0;
}

/* Reports the first value that is NaN or infinite. Returns TSR_OK if there is none. */
static tsr_status check(const tsr_merged_rows *m, const float *x, const char *what, tsr_err *err)
{
    const uint64_t n = m->rows * m->weight->cols;
    uint32_t most = 0;
    for (uint64_t i = 0; i < n; i++) {
        const uint32_t bits = tsr_f32_bits(x[i]) & TSR_FP32_ABS_MASK;
        most = bits > most ? bits : most;
    }
    if (most < TSR_FP32_INF_BITS)
        return TSR_OK;
    uint64_t i = 0;
    while (isfinite(x[i]))
        i++;
    const uint64_t row = m->row + i / m->weight->cols;
    return tsr_fail_at(err,
                       tsr_fail(err, TSR_E_VALUE,
                                "'%s': the value at [%llu, %llu] of matrix %llu is NaN or infinite %s", m->values->name,
                                U64(row % m->weight->rows), U64(i % m->weight->cols), U64(row / m->weight->rows), what),
                       m->values->name);
}

static tsr_status store_floats(const tsr_merged_rows *m, const tsr_cpu_kernels *kernels, tsr_err *err)
{
    const uint64_t n = m->rows * m->weight->cols;
    const tsr_dtype dtype = (tsr_dtype)m->weight->data->dtype;
    TSR_TRY(check(m, m->x, "after the merge", err));
    if (dtype == TSR_BF16)
        kernels->narrow_bf16(m->x, n, m->data);
    else if (dtype == TSR_F16)
        kernels->narrow_f16(m->x, n, m->data);
    else
        memcpy(m->data, m->x, n * sizeof(float));
    tsr_widen_to_f32(kernels, dtype, m->data, n, m->after);
    return check(m, m->after, "once it is rounded", err);
}

static const tsr_merge_format kFloats = {one_row, no_scratch, store_floats};

/* ---- the table ---- */

const tsr_merge_format *tsr_merge_format_of(const tsr_weight *w, const char **why)
{
    if (w->kind == NULL) {
        *why = "it is no matrix of BF16, F16 or F32";
        return tsr_dtype_is_weight_float((tsr_dtype)w->data->dtype) && (w->data->rank == 2 || w->data->rank == 3)
                   ? &kFloats
                   : NULL;
    }
    *why = "it is quantized, and codes cannot be merged";
    return NULL;
}
