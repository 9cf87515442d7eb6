/* Decodes rows of the base, and adds their update for the largest merged value. */
#include "convert/ops/merge/merge_rows.h"

#include "common/float_bits.h"
#include "convert/ops/rows/rows.h"
#include "formats/names/fused.h"

#include <math.h>
#include <string.h>

/* ---- the weight ---- */

/* Copies a weight, with the shape of its matrix if it is plain. The values of codes are copied too, because the
 * caller's weights no longer exist when the plan runs. */
static tsr_weight shaped(tsr_plan *plan, const tsr_weight *weight)
{
    tsr_weight w = *weight;
    const tsr_tensor *const t = weight->data;
    if (w.kind != NULL) {
        tsr_tensor *const values = tsr_plan_tensor(plan, weight->values);
        if (values != NULL)
            values->name = tsr_arena_dup(&plan->arena, weight->values->name, strlen(weight->values->name));
        w.values = values == NULL || values->name == NULL ? NULL : values;
        return w;
    }
    w.values = t;
    w.matrices = t->rank == 3 ? t->shape[0] : 1;
    w.rows = t->shape[t->rank - 2];
    w.cols = t->shape[t->rank - 1];
    return w;
}

tsr_merge_source *tsr_merge_source_make(tsr_plan *plan, const tsr_weight *weight, const tsr_update *updates, uint32_t n)
{
    tsr_merge_source *const s = tsr_arena_alloc(&plan->arena, sizeof *s);
    const tsr_tensor *in[TSR_DECODED_INPUTS];
    if (s == NULL)
        return NULL;
    *s = (tsr_merge_source){.weight = shaped(plan, weight), .n_base = 1, .n_updates = n};
    if (s->weight.values == NULL)
        return NULL;
    s->values = *s->weight.values;
    s->values.dtype = TSR_F32;
    s->values.source = TSR_SOURCE_DECODED;
    s->view = tsr_view_whole(&s->weight);
    if (weight->kind != NULL) {
        s->decoder = tsr_row_decoder_of(&s->weight);
        s->n_base = tsr_row_decoder_inputs(&s->weight, in);
    }
    for (uint32_t i = 0; i < n; i++)
        s->updates[i] = updates[i];
    return s;
}

uint32_t tsr_merge_source_inputs(const tsr_merge_source *s, const tsr_tensor *in[TSR_MAX_INPUTS])
{
    in[0] = s->weight.data;
    uint32_t n = s->decoder == NULL ? 1 : tsr_row_decoder_inputs(&s->weight, in);
    for (uint32_t i = 0; i < s->n_updates; i++) {
        in[n++] = s->updates[i].a;
        in[n++] = s->updates[i].b;
    }
    return n;
}

void tsr_merge_base_windows(const tsr_merge_source *s, uint64_t row, uint64_t rows, tsr_window *in)
{
    if (s->decoder != NULL)
        s->decoder->windows(&s->view, row, rows, in);
    else
        in[0] = tsr_view_window(&s->view, s->weight.data, row, rows);
}

void tsr_merge_source_windows(const tsr_merge_source *s, uint64_t row, uint64_t rows, tsr_window *in)
{
    tsr_merge_base_windows(s, row, rows, in);
    for (uint32_t i = 0; i < s->n_updates; i++)
        tsr_update_windows(&s->updates[i], row, rows, in + s->n_base + 2 * i);
}

/* ---- updates ---- */

static uint64_t factors_of(const tsr_update *update, uint64_t rows)
{
    return tsr_round_up(tsr_update_scratch(update, rows), 64);
}

uint64_t tsr_merge_factors_scratch(const tsr_merge_source *s, uint64_t rows)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < s->n_updates; i++)
        bytes += factors_of(&s->updates[i], rows);
    return bytes;
}

tsr_status tsr_merge_make_factors(const tsr_merge_source *s, uint64_t row, uint64_t rows, void *const *in,
                                  const tsr_cpu_kernels *kernels, void *scratch,
                                  tsr_update_factors factors[TSR_MERGE_ADAPTERS], tsr_err *err)
{
    char *at = scratch;
    for (uint32_t i = 0; i < s->n_updates; i++) {
        TSR_TRY(
            tsr_update_make_factors(&s->updates[i], row, rows, in + s->n_base + 2 * i, kernels, at, &factors[i], err));
        at += factors_of(&s->updates[i], rows);
    }
    return TSR_OK;
}

void tsr_merge_compute(const tsr_merge_source *s, const tsr_update_factors *factors, uint64_t skip, uint64_t rows,
                       const tsr_cpu_kernels *kernels, float *out, float *one)
{
    const uint64_t n = rows * s->weight.cols;
    if (s->n_updates == 0)
        memset(out, 0, n * sizeof *out);
    for (uint32_t i = 0; i < s->n_updates; i++) {
        tsr_update_compute(&s->updates[i], &factors[i], skip, rows, kernels, i == 0 ? out : one);
        if (i > 0)
            tsr_update_add(out, one, n, out);
    }
}

/* ---- values ---- */

uint64_t tsr_merge_decode_scratch(const tsr_merge_source *s)
{
    return s->decoder == NULL ? 0 : tsr_round_up(s->decoder->scratch(&s->weight), 64);
}

tsr_status tsr_merge_decode(const tsr_merge_source *s, uint64_t row, uint64_t rows, void *const *in,
                            const tsr_cpu_kernels *kernels, float *out, void *scratch, tsr_err *err)
{
    if (s->decoder == NULL) {
        tsr_widen_to_f32(kernels, (tsr_dtype)s->weight.data->dtype, in[0], rows * s->weight.cols, out);
        return TSR_OK;
    }
    const tsr_coded_rows coded = {.view = &s->view, .row = row, .rows = rows, .in = in};
    return s->decoder->decode(&coded, kernels, TSR_F32, out, scratch, err);
}

tsr_status tsr_merge_check(const tsr_merge_source *s, uint64_t row, uint64_t rows, const float *x, const char *when,
                           const tsr_cpu_kernels *kernels, tsr_err *err)
{
    const tsr_weight *const w = &s->weight;
    uint32_t most = 0;
    kernels->amax_f32(x, rows, w->cols, w->cols, w->cols, &most);
    if (most < TSR_FP32_INF_BITS)
        return TSR_OK;
    uint64_t i = 0;
    while (isfinite(x[i]))
        i++;
    const uint64_t at = row + i / w->cols;
    return tsr_fail_tensor(err, TSR_ERROR_NONE, TSR_E_VALUE, s->values.name,
                           "the value at [%llu, %llu] of matrix %llu is NaN or infinite %s", U64(at % w->rows),
                           U64(i % w->cols), U64(at / w->rows), when);
}

/* ---- the largest merged value ---- */

static const tsr_merge_source *source_of(const tsr_decoded *d)
{
    return d->params;
}

static void merged_windows(const tsr_decoded *d, uint64_t row, uint64_t rows, tsr_window *in)
{
    tsr_merge_source_windows(source_of(d), row, rows, in);
}

/* Parts of the memory, in bytes: values, the update and one of its parts, each; decoding; factors. */
typedef struct parts {
    uint64_t values, decoding, factors;
} parts;

static parts parts_of(const tsr_merge_source *s, uint64_t rows)
{
    return (parts){.values = tsr_round_up(rows * s->weight.cols * sizeof(float), 64),
                   .decoding = tsr_merge_decode_scratch(s),
                   .factors = tsr_merge_factors_scratch(s, rows)};
}

static uint64_t merged_memory(const tsr_decoded *d, uint64_t rows)
{
    const parts p = parts_of(source_of(d), rows);
    return 3 * p.values + p.decoding + p.factors;
}

static tsr_status merged_decode(const tsr_decoded *d, uint64_t row, uint64_t rows, void *const *in, void *memory,
                                const tsr_cpu_kernels *kernels, const void **x, tsr_err *err)
{
    const tsr_merge_source *const s = source_of(d);
    const parts p = parts_of(s, rows);
    char *const scratch = (char *)memory + 3 * p.values;
    float *const values = memory, *const update = (float *)((char *)memory + p.values),
                 *const one = (float *)((char *)memory + 2 * p.values);
    tsr_update_factors factors[TSR_MERGE_ADAPTERS];
    *x = values;
    TSR_TRY(tsr_merge_decode(s, row, rows, in, kernels, values, scratch, err));
    if (s->n_updates == 0)
        return TSR_OK;
    TSR_TRY(tsr_merge_make_factors(s, row, rows, in, kernels, scratch + p.decoding, factors, err));
    tsr_merge_compute(s, factors, 0, rows, kernels, update, one);
    tsr_update_add(values, update, rows * s->weight.cols, values);
    return tsr_merge_check(s, row, rows, values, "after the merge", kernels, err);
}

const tsr_amax *tsr_merge_amax(tsr_plan *plan, tsr_merge_source *const *sources, size_t n)
{
    const tsr_tensor *of[TSR_FUSED_MEMBERS];
    const tsr_decoded *by[TSR_FUSED_MEMBERS];
    for (size_t i = 0; i < n; i++) {
        tsr_decoded *const d = tsr_arena_alloc(&plan->arena, sizeof *d);
        tsr_tensor *const t = tsr_plan_tensor(plan, &sources[i]->values);
        const tsr_tensor *in[TSR_MAX_INPUTS];
        if (d == NULL || t == NULL)
            return NULL;
        *d = (tsr_decoded){
            .params = sources[i], .windows = merged_windows, .memory = merged_memory, .decode = merged_decode};
        d->n_in = tsr_merge_source_inputs(sources[i], in);
        memcpy(d->in, in, d->n_in * sizeof *in);
        t->bytes = tsr_tensor_elements(t) * sizeof(float);
        of[i] = t;
        by[i] = d;
    }
    return tsr_plan_amax_decoded(plan, of, by, n);
}
