/* Locates, decodes and transposes one head of kv_b_proj: `nope` rows of keys, then `v` rows of values. */
#include "convert/ops/mla/mla_op_heads.h"

#include "common/checked.h"
#include "quantize/fp8_decode.h"

#include <string.h>

tsr_mla_params *tsr_mla_keep(tsr_plan *plan, const tsr_weight *kv_b, const tsr_mla_shape *mla)
{
    tsr_mla_params *const p = tsr_arena_alloc(&plan->arena, sizeof *p);
    if (p != NULL) {
        *p = (tsr_mla_params){.mla = *mla, .kv_b = *kv_b, .decoded = *kv_b->data};
        p->decoded.dtype = TSR_F32;
    }
    return p;
}

tsr_status tsr_mla_decode_heads(const tsr_cpu_kernels *k, const tsr_mla_piece *x, tsr_dtype dtype, void *out,
                                void *scratch, tsr_err *err)
{
    const tsr_weight *const w = x->weight;
    if (w->scale != NULL) {
        tsr_fp8_rect rect = {.weight = w, .row = x->row, .col = x->col, .rows = x->rows, .cols = x->cols};
        rect.codes = x->data;
        rect.ld_codes = x->ld;
        uint64_t first, rows;
        tsr_fp8_rect_grid(&rect, &first, &rows);
        rect.scales = (const char *)x->scales + first * w->grid_cols * tsr_dtype_bytes((tsr_dtype)w->scale_dtype);
        return tsr_fp8_decode(k, &rect, dtype, out, x->cols, scratch, err);
    }
    const size_t width = tsr_mla_width(w);
    for (uint64_t r = 0; r < x->rows; r++) /* any of the three float dtypes; scales are widened the same way */
        tsr_widen_to_f32(k, w->data->dtype, (const char *)x->data + r * x->ld * width, x->cols,
                         (float *)out + r * x->cols);
    return TSR_OK;
}

void tsr_mla_place(void *to, const void *from, uint64_t rows, uint64_t cols, size_t width, bool transposed)
{
    enum { TILE = 32 };
    if (!transposed) {
        memcpy(to, from, rows * cols * width);
        return;
    }
    for (uint64_t r0 = 0; r0 < rows; r0 += TILE) {
        for (uint64_t c0 = 0; c0 < cols; c0 += TILE) {
            const uint64_t r1 = tsr_min_u64(rows, r0 + TILE), c1 = tsr_min_u64(cols, c0 + TILE);
            for (uint64_t c = c0; c < c1; c++) {
                for (uint64_t r = r0; r < r1; r++)
                    memcpy((char *)to + (c * rows + r) * width, (const char *)from + (r * cols + c) * width, width);
            }
        }
    }
}

uint64_t tsr_mla_rows(const tsr_mla_params *p, bool values)
{
    return values ? p->mla.v : p->mla.nope;
}

uint64_t tsr_mla_first_row(const tsr_mla_params *p, uint64_t head, bool values)
{
    return head * (p->mla.nope + p->mla.v) + (values ? p->mla.nope : 0);
}

tsr_window tsr_mla_head_window(const tsr_mla_params *p, uint64_t head, bool values)
{
    const uint64_t row_bytes = p->mla.rank * tsr_mla_width(&p->kv_b);
    return tsr_run_window(tsr_mla_first_row(p, head, values) * row_bytes, tsr_mla_rows(p, values) * row_bytes);
}

tsr_mla_piece tsr_mla_head_piece(const tsr_mla_params *p, uint64_t head, bool values, const void *data,
                                 const void *scales)
{
    return (tsr_mla_piece){.weight = &p->kv_b,
                           .row = tsr_mla_first_row(p, head, values),
                           .rows = tsr_mla_rows(p, values),
                           .cols = p->mla.rank,
                           .ld = p->mla.rank,
                           .data = data,
                           .scales = scales};
}
