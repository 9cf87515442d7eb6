/* Computes windows and decodes rows, with one entry per family of formats. */
#include "convert/ops/rows/row_decoder.h"

#include "convert/ops/rows/rows.h"
#include "convert/ops/rows/scale_op.h"
#include "quantize/awq_gptq_decode.h"
#include "quantize/fp6_decode.h"
#include "quantize/integer_decode.h"
#include "quantize/mx_decode.h"

#include <string.h>

tsr_row_view tsr_view_whole(const tsr_weight *weight)
{
    return (tsr_row_view){.weight = weight, .step = 1, .rows = weight->matrices * weight->rows};
}

tsr_window tsr_view_window(const tsr_row_view *view, const tsr_tensor *t, uint64_t row, uint64_t rows)
{
    const uint64_t bytes = t->bytes / (view->weight->matrices * view->weight->rows);
    const uint64_t offset = (view->first + row * view->step) * bytes;
    return view->step == 1
               ? tsr_run_window(offset, rows * bytes)
               : (tsr_window){.offset = offset, .rows = rows, .row_bytes = bytes, .pitch = view->step * bytes};
}

/* ---- groups of columns ---- */

static void mx_windows(const tsr_row_view *view, uint64_t row, uint64_t rows, tsr_window *in)
{
    const tsr_weight *const w = view->weight;
    in[0] = tsr_view_window(view, w->data, row, rows);
    in[1] = tsr_view_window(view, w->scale, row, rows);
    if (w->global_scale == NULL)
        return;
    const bool one = tsr_tensor_elements(w->global_scale) == 1;
    in[2] = tsr_run_window(one ? 0 : (view->first + row * view->step) / w->rows * sizeof(float), sizeof(float));
}

static size_t mx_scratch(const tsr_weight *w)
{
    return tsr_mx_decode_scratch(w->cols);
}

static tsr_mx_span mx_span(const tsr_coded_rows *rows)
{
    const tsr_weight *const w = rows->view->weight;
    tsr_mx_span span = {.codes_of = w->data,
                        .scales_of = w->scale,
                        .row = rows->view->first + rows->row * rows->view->step,
                        .rows = rows->rows,
                        .cols = w->cols,
                        .group = w->block.cols,
                        .element = w->coding == TSR_CODED_E2M1 ? TSR_MX_E2M1 : TSR_MX_E4M3,
                        .scale = w->scale_dtype == TSR_F8_E8M0 ? TSR_MX_E8M0
                                 : w->global_divides           ? TSR_MX_E4M3_DIVIDED
                                                               : TSR_MX_E4M3_TIMES,
                        .codes = rows->in[0],
                        .scales = rows->in[1]};
    if (w->global_scale != NULL)
        memcpy(&span.global, rows->in[2], sizeof span.global);
    return span;
}

static tsr_status mx_decode(const tsr_coded_rows *rows, const tsr_cpu_kernels *kernels, tsr_dtype dtype, void *out,
                            void *scratch, tsr_err *err)
{
    const tsr_mx_span span = mx_span(rows);
    return tsr_mx_decode(kernels, &span, dtype, out, scratch, err);
}

static size_t fp6_scratch(const tsr_weight *w)
{
    return tsr_fp6_decode_scratch(w->cols);
}

static tsr_status fp6_decode(const tsr_coded_rows *rows, const tsr_cpu_kernels *kernels, tsr_dtype dtype, void *out,
                             void *scratch, tsr_err *err)
{
    const tsr_mx_span span = mx_span(rows);
    const bool e3m2 = rows->view->weight->coding == TSR_CODED_E3M2;
    return tsr_fp6_decode(kernels, &span, e3m2, dtype, out, scratch, err);
}

/* ---- e4m3 with floating-point scales ---- */

tsr_fp8_rect tsr_view_rect(const tsr_row_view *view, uint64_t row, uint64_t rows)
{
    const tsr_weight *const w = view->weight;
    const uint64_t at = view->first + row;
    return (tsr_fp8_rect){
        .weight = w, .matrix = at / w->rows, .row = at % w->rows, .rows = rows, .cols = w->cols, .ld_codes = w->cols};
}

static void fp8_windows(const tsr_row_view *view, uint64_t row, uint64_t rows, tsr_window *in)
{
    const tsr_fp8_rect rect = tsr_view_rect(view, row, rows);
    in[0] = tsr_view_window(view, view->weight->data, row, rows);
    in[1] = tsr_scale_window(&rect);
}

static tsr_status fp8_decode(const tsr_coded_rows *rows, const tsr_cpu_kernels *kernels, tsr_dtype dtype, void *out,
                             void *scratch, tsr_err *err)
{
    tsr_fp8_rect rect = tsr_view_rect(rows->view, rows->row, rows->rows);
    rect.codes = rows->in[0];
    rect.scales = rows->in[1];
    return tsr_fp8_decode(kernels, &rect, dtype, out, rect.cols, scratch, err);
}

/* ---- integers ---- */

static void int_windows(const tsr_row_view *view, uint64_t row, uint64_t rows, tsr_window *in)
{
    const tsr_weight *const w = view->weight;
    const bool by_row = w->grid_rows == w->rows;
    in[0] = tsr_rows_window(w->data, row, rows);
    in[1] = by_row ? tsr_rows_window(w->scale, row, rows) : tsr_whole_window(w->scale);
    if (w->reordered)
        in[w->zero_point == NULL ? 2 : 3] = tsr_whole_window(w->group_index);
    if (w->zero_point == NULL)
        return;
    const uint64_t per_word = w->coding == TSR_CODED_PACKED ? 32u / w->bits : 1;
    in[2] = by_row ? tsr_rows_window(w->zero_point, row / per_word, tsr_ceil_div(rows, per_word))
                   : tsr_whole_window(w->zero_point);
}

static tsr_status int_decode(const tsr_coded_rows *rows, const tsr_cpu_kernels *kernels, tsr_dtype dtype, void *out,
                             void *scratch, tsr_err *err)
{
    const tsr_weight *const w = rows->view->weight;
    const tsr_int_span span = {.weight = w,
                               .row = rows->row,
                               .rows = rows->rows,
                               .codes = rows->in[0],
                               .scales = rows->in[1],
                               .zero_points = w->zero_point == NULL ? NULL : rows->in[2],
                               .group_index = w->reordered ? rows->in[w->zero_point == NULL ? 2 : 3] : NULL};
    return tsr_int_decode(kernels, &span, dtype, out, scratch, err);
}

/* ---- AWQ and GPTQ store one row per input, so a unit reads a piece of every row ---- */

/* Returns the window of `bytes` bytes from `first` on of each row of a matrix. */
static tsr_window columns_window(const tsr_tensor *t, uint64_t first, uint64_t bytes)
{
    return (tsr_window){.offset = first, .rows = t->shape[0], .row_bytes = bytes, .pitch = t->bytes / t->shape[0]};
}

static void gptq_windows(const tsr_row_view *view, uint64_t row, uint64_t rows, tsr_window *in)
{
    const tsr_weight *const w = view->weight;
    const uint64_t words = sizeof(uint32_t), scale = tsr_dtype_bytes((tsr_dtype)w->scale_dtype);
    const uint64_t packed = w->coding == TSR_CODED_AWQ ? 8 : 1; /* outputs per word of codes */
    in[0] = columns_window(w->data, row / packed * words, rows / packed * words);
    in[1] = columns_window(w->scale, row * scale, rows * scale);
    in[2] = columns_window(w->zero_point, tsr_gptq_zero_words(w, row) * words, tsr_gptq_zero_words(w, rows) * words);
    if (w->reordered)
        in[3] = tsr_whole_window(w->group_index);
}

static tsr_status gptq_decode(const tsr_coded_rows *rows, const tsr_cpu_kernels *kernels, tsr_dtype dtype, void *out,
                              void *scratch, tsr_err *err)
{
    const tsr_weight *const w = rows->view->weight;
    const tsr_gptq_span span = {.weight = w,
                                .row = rows->row,
                                .rows = rows->rows,
                                .codes = rows->in[0],
                                .scales = rows->in[1],
                                .zero_points = rows->in[2],
                                .group_index = w->reordered ? rows->in[3] : NULL};
    return tsr_gptq_decode(kernels, &span, dtype, out, scratch, err);
}

/* ---- the table ---- */

const tsr_row_decoder *tsr_row_decoder_of(const tsr_weight *weight)
{
    static const struct {
        unsigned family;
        tsr_row_decoder decoder;
    } kFamilies[] = {
        {TSR_FAMILY_MX, {.begin = 1, .end = 1, mx_windows, mx_scratch, mx_decode}},
        {TSR_FAMILY_MXFP6, {.begin = 1, .end = 1, mx_windows, fp6_scratch, fp6_decode}},
        {TSR_FAMILY_FP8, {.begin = 1, .end = 1, fp8_windows, tsr_fp8_decode_scratch, fp8_decode}},
        /* rows that are 8 apart do not share a word of packed zero points */
        {TSR_FAMILY_INTEGERS, {.begin = 8, .end = 8, int_windows, tsr_int_decode_scratch, int_decode}},
        {TSR_FAMILY_GPTQ, {.begin = TSR_GPTQ_TILE, .end = 8, gptq_windows, tsr_gptq_decode_scratch, gptq_decode}},
    };
    size_t i = 0;
    while (kFamilies[i].family != weight->kind->family)
        i++;
    return &kFamilies[i].decoder;
}

uint32_t tsr_row_decoder_inputs(const tsr_weight *weight, const tsr_tensor *in[TSR_DECODED_INPUTS])
{
    const tsr_tensor *const all[] = {weight->data, weight->scale, weight->zero_point, weight->global_scale,
                                     weight->reordered ? weight->group_index : NULL};
    uint32_t n = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (all[i] != NULL)
            in[n++] = all[i];
    }
    return n;
}
