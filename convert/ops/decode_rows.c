/* Windows and decoding of rows, a family of kinds each. */
#include "convert/ops/decode_rows.h"

#include "common/checked.h"
#include "convert/ops/rows.h"
#include "convert/ops/scale_op.h"
#include "quantize/awq_gptq_decode.h"
#include "quantize/int_decode.h"
#include "quantize/mx_decode.h"

#include <string.h>

typedef struct params {
    tsr_row_view view;
    tsr_weight weight;
} params;

static const params *params_of(const tsr_decoded *d)
{
    return d->params;
}

tsr_window tsr_view_window(const tsr_row_view *view, const tsr_tensor *t, uint64_t row, uint64_t rows)
{
    const uint64_t bytes = t->bytes / (view->weight->matrices * view->weight->rows);
    const uint64_t offset = (view->first + row * view->step) * bytes;
    return view->step == 1
               ? tsr_run_window(offset, rows * bytes)
               : (tsr_window){.offset = offset, .rows = rows, .row_bytes = bytes, .pitch = view->step * bytes};
}

tsr_window tsr_view_global_window(const tsr_row_view *view, uint64_t row)
{
    const tsr_weight *const w = view->weight;
    const bool one = tsr_tensor_elements(w->global_scale) == 1;
    return tsr_run_window(one ? 0 : (view->first + row * view->step) / w->rows * sizeof(float), sizeof(float));
}

/* What rows have to be decoded, so that a decoder is given whole words and tiles: from *row down to a multiple of
 * `begin`, and up to one of `end`, but no further than there are. */
static void align(const tsr_decoded *d, uint64_t *row, uint64_t *rows, uint64_t *skipped)
{
    const params *const p = params_of(d);
    const tsr_family family = (tsr_family)p->weight.kind->family;
    const uint64_t begin = family == TSR_FAMILY_GPTQ ? TSR_GPTQ_TILE : family == TSR_FAMILY_INTEGERS ? 8 : 1;
    const uint64_t first = *row / begin * begin;
    const uint64_t end = tsr_min_u64(tsr_round_up(*row + *rows, begin == 1 ? 1 : 8), p->view.rows);
    *skipped = *row - first;
    *row = first;
    *rows = end - first;
}

/* Most rows that decoding `rows` of them may take. */
static uint64_t most_rows(uint64_t rows)
{
    return rows + TSR_GPTQ_TILE + 8;
}

static uint64_t memory_with(const tsr_decoded *d, uint64_t rows, uint64_t scratch)
{
    return tsr_round_up(most_rows(rows) * params_of(d)->weight.cols * sizeof(float), 64) + scratch;
}

static void *scratch_behind(const tsr_decoded *d, uint64_t rows, void *memory)
{
    return (char *)memory + memory_with(d, rows, 0);
}

/* ---- groups of columns ---- */

static void mx_windows(const tsr_decoded *d, uint64_t row, uint64_t rows, tsr_window *in)
{
    const params *const p = params_of(d);
    in[0] = tsr_view_window(&p->view, p->weight.data, row, rows);
    in[1] = tsr_view_window(&p->view, p->weight.scale, row, rows);
    if (p->weight.global_scale != NULL)
        in[2] = tsr_view_global_window(&p->view, row);
}

static uint64_t mx_memory(const tsr_decoded *d, uint64_t rows)
{
    return memory_with(d, rows, tsr_mx_decode_scratch(params_of(d)->weight.cols));
}

static tsr_status mx_rows(const tsr_decoded *d, uint64_t row, uint64_t rows, void *const *in, void *memory,
                          const tsr_cpu_kernels *kernels, const float **x, tsr_err *err)
{
    const tsr_weight *const w = &params_of(d)->weight;
    tsr_mx_span span = {.codes_of = w->data,
                        .scales_of = w->scale,
                        .row = params_of(d)->view.first + row * params_of(d)->view.step,
                        .rows = rows,
                        .cols = w->cols,
                        .group = w->block.cols,
                        .element = w->coding == TSR_CODED_E2M1 ? TSR_MX_E2M1 : TSR_MX_E4M3,
                        .scale = w->scale_dtype == TSR_F8_E8M0 ? TSR_MX_E8M0
                                 : w->global_divides           ? TSR_MX_E4M3_DIVIDED
                                                               : TSR_MX_E4M3_TIMES,
                        .codes = in[0],
                        .scales = in[1]};
    if (w->global_scale != NULL)
        memcpy(&span.global, in[2], sizeof span.global);
    *x = memory;
    return tsr_mx_decode(kernels, &span, TSR_F32, memory, scratch_behind(d, rows, memory), err);
}

/* ---- e4m3 with floating-point scales ---- */

static tsr_fp8_rect rect_of(const params *p, uint64_t row, uint64_t rows)
{
    const uint64_t at = p->view.first + row, matrix = at / p->weight.rows;
    return (tsr_fp8_rect){.weight = &p->weight,
                          .matrix = matrix,
                          .row = at - matrix * p->weight.rows,
                          .rows = rows,
                          .cols = p->weight.cols,
                          .ld_codes = p->weight.cols};
}

static void fp8_windows(const tsr_decoded *d, uint64_t row, uint64_t rows, tsr_window *in)
{
    const params *const p = params_of(d);
    const tsr_fp8_rect rect = rect_of(p, row, rows);
    in[0] = tsr_view_window(&p->view, p->weight.data, row, rows);
    in[1] = tsr_scale_window(&rect);
}

static uint64_t fp8_memory(const tsr_decoded *d, uint64_t rows)
{
    return memory_with(d, rows, tsr_fp8_decode_scratch(&params_of(d)->weight));
}

static tsr_status fp8_rows(const tsr_decoded *d, uint64_t row, uint64_t rows, void *const *in, void *memory,
                           const tsr_cpu_kernels *kernels, const float **x, tsr_err *err)
{
    tsr_fp8_rect rect = rect_of(params_of(d), row, rows);
    rect.codes = in[0];
    rect.scales = in[1];
    *x = memory;
    return tsr_fp8_decode(kernels, &rect, TSR_F32, memory, rect.cols, scratch_behind(d, rows, memory), err);
}

/* ---- integers ---- */

static void int_windows(const tsr_decoded *d, uint64_t row, uint64_t rows, tsr_window *in)
{
    const tsr_weight *const w = &params_of(d)->weight;
    const bool by_row = w->grid_rows == w->rows;
    uint64_t skipped;
    align(d, &row, &rows, &skipped);
    in[0] = tsr_rows_window(w->data, row, rows);
    in[1] = by_row ? tsr_rows_window(w->scale, row, rows) : tsr_whole_window(w->scale);
    if (w->zero_point == NULL)
        return;
    const uint64_t per_word = w->coding == TSR_CODED_PACKED ? 32u / w->bits : 1;
    in[2] = by_row ? tsr_rows_window(w->zero_point, row / per_word, tsr_ceil_div(rows, per_word))
                   : tsr_whole_window(w->zero_point);
}

static uint64_t int_memory(const tsr_decoded *d, uint64_t rows)
{
    return memory_with(d, rows, tsr_int_decode_scratch(&params_of(d)->weight));
}

static tsr_status int_rows(const tsr_decoded *d, uint64_t row, uint64_t rows, void *const *in, void *memory,
                           const tsr_cpu_kernels *kernels, const float **x, tsr_err *err)
{
    const tsr_weight *const w = &params_of(d)->weight;
    void *const scratch = scratch_behind(d, rows, memory);
    uint64_t skipped;
    align(d, &row, &rows, &skipped);
    const tsr_int_span span = {.weight = w,
                               .row = row,
                               .rows = rows,
                               .codes = in[0],
                               .scales = in[1],
                               .zero_points = w->zero_point == NULL ? NULL : in[2]};
    *x = (const float *)memory + skipped * w->cols;
    return tsr_int_decode(kernels, &span, TSR_F32, memory, scratch, err);
}

/* ---- AWQ and GPTQ ---- */

/* `bytes` bytes from `first` on of each row of a matrix. */
static tsr_window columns_window(const tsr_tensor *t, uint64_t first, uint64_t bytes)
{
    return (tsr_window){.offset = first, .rows = t->shape[0], .row_bytes = bytes, .pitch = t->bytes / t->shape[0]};
}

static void gptq_windows(const tsr_decoded *d, uint64_t row, uint64_t rows, tsr_window *in)
{
    const tsr_weight *const w = &params_of(d)->weight;
    uint64_t skipped;
    align(d, &row, &rows, &skipped);
    const uint64_t words = sizeof(uint32_t), scale = tsr_dtype_bytes((tsr_dtype)w->scale_dtype);
    const uint64_t packed = w->coding == TSR_CODED_AWQ ? 8 : 1; /* outputs in a word of codes */
    in[0] = columns_window(w->data, row / packed * words, rows / packed * words);
    in[1] = columns_window(w->scale, row * scale, rows * scale);
    in[2] = columns_window(w->zero_point, tsr_gptq_zero_words(w, row) * words, tsr_gptq_zero_words(w, rows) * words);
    if (w->reordered)
        in[3] = tsr_whole_window(w->group_index);
}

static uint64_t gptq_memory(const tsr_decoded *d, uint64_t rows)
{
    return memory_with(d, rows, tsr_gptq_decode_scratch(&params_of(d)->weight));
}

static tsr_status gptq_rows(const tsr_decoded *d, uint64_t row, uint64_t rows, void *const *in, void *memory,
                            const tsr_cpu_kernels *kernels, const float **x, tsr_err *err)
{
    const tsr_weight *const w = &params_of(d)->weight;
    void *const scratch = scratch_behind(d, rows, memory);
    uint64_t skipped;
    align(d, &row, &rows, &skipped);
    const tsr_gptq_span span = {.weight = w,
                                .row = row,
                                .rows = rows,
                                .codes = in[0],
                                .scales = in[1],
                                .zero_points = in[2],
                                .group_index = w->reordered ? in[3] : NULL};
    *x = (const float *)memory + skipped * w->cols;
    return tsr_gptq_decode(kernels, &span, TSR_F32, memory, scratch, err);
}

/* ---- the values of scales ---- */

static void powers_windows(const tsr_decoded *d, uint64_t row, uint64_t rows, tsr_window *in)
{
    in[0] = tsr_view_window(&params_of(d)->view, params_of(d)->weight.scale, row, rows);
}

static uint64_t powers_memory(const tsr_decoded *d, uint64_t rows)
{
    return rows * params_of(d)->weight.grid_cols * sizeof(float);
}

static tsr_status powers_rows(const tsr_decoded *d, uint64_t row, uint64_t rows, void *const *in, void *memory,
                              const tsr_cpu_kernels *kernels, const float **x, tsr_err *err)
{
    (void)row, (void)err;
    tsr_widen_to_f32(kernels, TSR_F8_E8M0, in[0], rows * params_of(d)->weight.grid_cols, memory);
    *x = memory;
    return TSR_OK;
}

/* ---- choosing ---- */

static tsr_decoded *make(tsr_plan *plan, const tsr_row_view *view)
{
    params *const p = tsr_arena_alloc(&plan->arena, sizeof *p);
    tsr_decoded *const d = tsr_arena_alloc(&plan->arena, sizeof *d);
    if (p == NULL || d == NULL)
        return NULL;
    *p = (params){.view = *view, .weight = *view->weight};
    p->view.weight = &p->weight;
    *d = (tsr_decoded){.params = p};
    return d;
}

const tsr_decoded *tsr_decode_powers(tsr_plan *plan, const tsr_row_view *view)
{
    tsr_decoded *const d = make(plan, view);
    if (d == NULL)
        return NULL;
    d->in[d->n_in++] = view->weight->scale;
    d->windows = powers_windows;
    d->memory = powers_memory;
    d->decode = powers_rows;
    return d;
}

const tsr_decoded *tsr_decode_rows(tsr_plan *plan, const tsr_row_view *view)
{
    static const struct {
        unsigned family;
        tsr_decoded how;
    } kFamilies[] = {
        {TSR_FAMILY_MX, {.windows = mx_windows, .memory = mx_memory, .decode = mx_rows}},
        {TSR_FAMILY_FP8, {.windows = fp8_windows, .memory = fp8_memory, .decode = fp8_rows}},
        {TSR_FAMILY_INTEGERS, {.windows = int_windows, .memory = int_memory, .decode = int_rows}},
        {TSR_FAMILY_GPTQ, {.windows = gptq_windows, .memory = gptq_memory, .decode = gptq_rows}},
    };
    const tsr_weight *const w = view->weight;
    tsr_decoded *const d = make(plan, view);
    if (d == NULL)
        return NULL;
    for (size_t i = 0; i < sizeof kFamilies / sizeof *kFamilies; i++) {
        if (kFamilies[i].family == w->kind->family) {
            d->windows = kFamilies[i].how.windows;
            d->memory = kFamilies[i].how.memory;
            d->decode = kFamilies[i].how.decode;
        }
    }
    const tsr_tensor *const in[] = {w->data, w->scale, w->zero_point, w->global_scale,
                                    w->reordered ? w->group_index : NULL};
    for (size_t i = 0; i < sizeof in / sizeof *in; i++) {
        if (in[i] != NULL)
            d->in[d->n_in++] = in[i];
    }
    return d;
}
