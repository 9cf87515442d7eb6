/* Stores merged rows in the dtype or format of the base. */
#include "convert/ops/merge/merge_format.h"

#include "common/checked.h"
#include "common/float_bits.h"
#include "convert/ops/rows/buffered_scales.h"
#include "quantize/fp8_block.h"
#include "quantize/int_weight.h"
#include "quantize/integer_decode.h"
#include "quantize/mx_weight.h"

#include <string.h>

static uint64_t one_row(const tsr_weight *w)
{
    (void)w;
    return 1;
}

/* ---- floating point ---- */

static uint64_t no_scratch(const tsr_weight *w)
{
    (void)w;
    return 0;
}

static tsr_status store_floats(const tsr_merged_rows *m, const tsr_cpu_kernels *kernels, tsr_err *err)
{
    (void)err;
    const uint64_t n = m->rows * m->weight->cols;
    if (m->weight->data->dtype == TSR_BF16)
        kernels->narrow_bf16(m->x, n, m->data);
    else if (m->weight->data->dtype == TSR_F16)
        kernels->narrow_f16(m->x, n, m->data);
    else
        memcpy(m->data, m->x, n * sizeof(float));
    return TSR_OK;
}

/* ---- e4m3 with floating-point scales ---- */

static tsr_fp8_block fp8_scheme(const tsr_weight *w, bool powers)
{
    return (tsr_fp8_block){.block_rows = (uint32_t)w->block.rows,
                           .block_cols = (uint32_t)w->block.cols,
                           .scale_fmt = powers || w->scale_dtype == TSR_F8_E8M0 ? TSR_SCALE_UE8M0
                                        : w->scale_dtype == TSR_BF16            ? TSR_SCALE_BF16
                                                                                : TSR_SCALE_F32};
}

static bool is_whole(const tsr_weight *w)
{
    return w->kind->grid == TSR_GRID_WHOLE;
}

/* Returns the rows of a block; 1 if the tensor has one scale. */
static uint64_t fp8_rows(const tsr_weight *w)
{
    return is_whole(w) ? 1 : tsr_min_u64(w->block.rows, w->rows);
}

static uint64_t fp8_scratch(const tsr_weight *w)
{
    const tsr_fp8_block scheme = fp8_scheme(w, false);
    return tsr_round_up(tsr_fp8_block_scratch(&scheme, TSR_F32), 64) +
           tsr_ceil_div(w->cols, w->block.cols) * sizeof(float);
}

/* Returns the stored scale, unless a value is beyond it. */
static float fp8_shared(const tsr_weight *w, bool powers, float stored, float amax, const tsr_cpu_kernels *kernels)
{
    const tsr_fp8_block scheme = fp8_scheme(w, powers);
    return amax <= TSR_E4M3_MAX * stored ? stored : tsr_fp8_scale(&scheme, kernels, amax);
}

/* Stores scales of a row of blocks from element `first` of the grid on. */
static void store_scales(const tsr_weight *w, const float *scales, uint64_t n, uint64_t first, void *to)
{
    if (w->scale_dtype != TSR_F8_E8M0) {
        tsr_buffered_scales_store((tsr_dtype)w->scale_dtype, scales, n, to, first);
        return;
    }
    for (uint64_t i = 0; i < n; i++)
        ((uint8_t *)to)[first + i] = (uint8_t)(tsr_f32_bits(scales[i]) >> 23);
}

static tsr_status store_fp8(const tsr_merged_rows *m, const tsr_cpu_kernels *kernels, tsr_err *err)
{
    const tsr_weight *const w = m->weight;
    tsr_fp8_block scheme = fp8_scheme(w, m->powers);
    const uint64_t step = is_whole(w) ? m->rows : w->block.rows, across = tsr_ceil_div(w->cols, w->block.cols);
    float *const scales = (float *)((char *)m->scratch + tsr_round_up(tsr_fp8_block_scratch(&scheme, TSR_F32), 64));
    const float amax = m->shared * TSR_E4M3_MAX;
    scheme.block_rows = (uint32_t)step;
    for (uint64_t at = 0; at < m->rows; at += step) {
        tsr_quant_stats unused = {0};
        const uint64_t row = (m->row + at) % w->rows, matrix = (m->row + at) / w->rows;
        const tsr_fp8_band band = {.tensor = m->values,
                                   .first = (m->row + at) * w->cols,
                                   .x = m->x + at * w->cols,
                                   .rows = tsr_min_u64(step, m->rows - at),
                                   .cols = w->cols,
                                   .ld = w->cols,
                                   .codes = (uint8_t *)m->data + at * w->cols,
                                   .ld_codes = w->cols,
                                   .scales = scales,
                                   .amax = is_whole(w) ? &amax : NULL,
                                   .scratch = m->scratch};
        TSR_TRY(tsr_fp8_block_quantize(&scheme, kernels, &band, &unused, err));
        if (!is_whole(w))
            store_scales(w, scales, across, (matrix * w->grid_rows + row / w->block.rows) * w->grid_cols, m->others[0]);
    }
    if (is_whole(w) && m->row == 0)
        store_scales(w, &m->shared, 1, 0, m->others[0]);
    return TSR_OK;
}

/* ---- small groups ---- */

static tsr_mx_scheme mx_scheme(const tsr_weight *w)
{
    const tsr_mx_kind kind = w->global_scale != NULL ? TSR_NVFP4 : w->coding == TSR_CODED_E2M1 ? TSR_MXFP4 : TSR_MXFP8;
    tsr_mx_scheme scheme = tsr_mx_scheme_of(kind, !w->global_divides);
    scheme.rule = TSR_MX_RCEIL;
    scheme.ties_down = false;
    return scheme;
}

static uint64_t mx_scratch(const tsr_weight *w)
{
    const tsr_mx_scheme scheme = mx_scheme(w);
    return tsr_mx_scratch(&scheme, w->cols);
}

/* The largest scale of a group that rounds to 448 in e4m3, and the largest element. */
static const float kMostScale = 464, kMostElement = 6;

/* Returns the stored global scale, unless the scale of a group would be beyond e4m3. */
static float mx_shared(const tsr_weight *w, bool powers, float stored, float amax, const tsr_cpu_kernels *kernels)
{
    (void)powers, (void)kernels;
    const tsr_mx_scheme scheme = mx_scheme(w);
    const float unit = w->global_divides ? 1 / stored : stored;
    return amax <= kMostScale * kMostElement * unit ? stored : tsr_nvfp4_global(&scheme, TSR_F32, &amax, 1);
}

static tsr_status store_mx(const tsr_merged_rows *m, const tsr_cpu_kernels *kernels, tsr_err *err)
{
    const tsr_weight *const w = m->weight;
    const tsr_mx_scheme scheme = mx_scheme(w);
    const tsr_mx_rows rows = {.tensor = m->values,
                              .row = m->row,
                              .rows = m->rows,
                              .x = m->x,
                              .global = w->global_scale == NULL ? 1 : m->shared,
                              .codes = m->data,
                              .scales = (uint8_t *)m->others[0] + m->row * (w->cols / scheme.group),
                              .scratch = m->scratch};
    TSR_TRY(tsr_mx_quantize(&scheme, kernels, &rows, NULL, err));
    if (w->global_scale != NULL && m->row == 0)
        memcpy(m->others[1], &m->shared, sizeof m->shared);
    return TSR_OK;
}

/* ---- integers ---- */

static tsr_int_scheme int_scheme(const tsr_weight *w)
{
    return (tsr_int_scheme){.bits = w->bits,
                            .group = w->block.cols >= w->cols ? 0 : w->block.cols,
                            .asymmetric = w->zero_point != NULL,
                            .divisor = w->bits == 8 ? 127.5f : 7.5f,
                            .scale_dtype = (tsr_dtype)w->scale_dtype};
}

/* Returns 8: rows of different eights share no word of packed zero points. */
static uint64_t int_rows(const tsr_weight *w)
{
    return tsr_min_u64(8, w->rows);
}

/* Parts of the scratch, in bytes, for one row: quantizing, codes, scales, zero points. */
typedef struct int_parts {
    uint64_t quantizing, codes, scales, zeros;
} int_parts;

static int_parts int_parts_of(const tsr_weight *w)
{
    const tsr_int_scheme scheme = int_scheme(w);
    const uint64_t groups = tsr_int_groups(&scheme, w->cols);
    return (int_parts){.quantizing = tsr_round_up(tsr_int_scratch(&scheme, w->cols), 64),
                       .codes = tsr_round_up(w->cols, 64),
                       .scales = tsr_round_up(groups * sizeof(float), 64),
                       .zeros = tsr_round_up(groups, 64)};
}

static uint64_t int_scratch(const tsr_weight *w)
{
    const int_parts p = int_parts_of(w);
    return p.quantizing + p.codes + p.scales + p.zeros;
}

static tsr_status store_int_row(const tsr_merged_rows *m, uint64_t r, const tsr_cpu_kernels *kernels, tsr_err *err)
{
    const tsr_weight *const w = m->weight;
    const tsr_int_scheme scheme = int_scheme(w);
    const int_parts p = int_parts_of(w);
    const uint64_t groups = tsr_int_groups(&scheme, w->cols), row = m->row + r;
    const bool packed = w->coding == TSR_CODED_PACKED;
    char *const memory = m->scratch, *const data = (char *)m->data + r * (w->cols * w->bits / 8);
    int8_t *const zeros = (int8_t *)(memory + p.quantizing + p.codes + p.scales);
    const tsr_int_rows rows = {.tensor = m->values,
                               .row = row,
                               .rows = 1,
                               .x = m->x + r * w->cols,
                               .codes = packed ? (int8_t *)memory + p.quantizing : (int8_t *)data,
                               .scales = (float *)(memory + p.quantizing + p.codes),
                               .zero_points = scheme.asymmetric ? zeros : NULL,
                               .scratch = memory};
    TSR_TRY(tsr_int_quantize(&scheme, kernels, &rows, NULL, err));
    if (packed)
        tsr_int_pack(kernels, w->bits, rows.codes, w->cols, (uint8_t *)data);
    tsr_buffered_scales_store(scheme.scale_dtype, rows.scales, groups, m->others[0], row * groups);
    if (scheme.asymmetric && packed)
        tsr_buffered_zeros_pack(w->bits, zeros, row, 1, groups, m->others[1]);
    else if (scheme.asymmetric)
        memcpy((int8_t *)m->others[1] + row * groups, zeros, groups);
    return TSR_OK;
}

static tsr_status store_ints(const tsr_merged_rows *m, const tsr_cpu_kernels *kernels, tsr_err *err)
{
    for (uint64_t r = 0; r < m->rows; r++)
        TSR_TRY(store_int_row(m, r, kernels, err));
    return TSR_OK;
}

/* ---- the table ---- */

static const tsr_merge_format kFloats = {one_row, no_scratch, NULL, store_floats};
static const tsr_merge_format kFp8 = {fp8_rows, fp8_scratch, NULL, store_fp8};
static const tsr_merge_format kFp8Tensor = {fp8_rows, fp8_scratch, fp8_shared, store_fp8};
static const tsr_merge_format kMx = {one_row, mx_scratch, NULL, store_mx};
static const tsr_merge_format kNvfp4 = {one_row, mx_scratch, mx_shared, store_mx};
static const tsr_merge_format kIntegers = {int_rows, int_scratch, NULL, store_ints};

/* Returns why codes of a family that can be merged are an exception; NULL: they are none. */
static const char *exception(const tsr_weight *w)
{
    if (w->transposed)
        return "its codes are the transpose of its values";
    if (w->part != NULL)
        return "it is a part of an absorbed projection";
    if (w->reordered)
        return "its groups are not consecutive columns (actorder)";
    if (w->matrices > 1 && (w->global_scale != NULL || (w->kind->family == TSR_FAMILY_FP8 && is_whole(w))))
        return "it is a stack of experts with scales of whole matrices";
    if (w->kind->family == TSR_FAMILY_FP8 && w->scale_dtype == TSR_F16)
        return "its scales are F16";
    if (w->coding == TSR_CODED_NIBBLES)
        return "Tessera reads int4 of SGLang but does not write it";
    if (w->coding == TSR_CODED_PACKED && w->cols * w->bits % 32 != 0)
        return "its rows are not whole words of codes";
    return NULL;
}

const tsr_merge_format *tsr_merge_format_of(const tsr_weight *w, const char **why)
{
    if (w->kind == NULL) {
        *why = "it is no matrix of BF16, F16 or F32";
        return tsr_dtype_is_weight_float((tsr_dtype)w->data->dtype) && (w->data->rank == 2 || w->data->rank == 3)
                   ? &kFloats
                   : NULL;
    }
    *why = exception(w);
    if (*why != NULL)
        return NULL;
    switch (w->kind->family) {
    case TSR_FAMILY_FP8:
        return is_whole(w) ? &kFp8Tensor : &kFp8;
    case TSR_FAMILY_MX:
        return w->global_scale == NULL ? &kMx : &kNvfp4;
    case TSR_FAMILY_INTEGERS:
        return &kIntegers;
    case TSR_FAMILY_MXFP6:
        *why = "Tessera reads MXFP6 but does not write it";
        return NULL;
    default:
        *why = "codes of AWQ and GPTQ come from calibration and are not made again";
        return NULL;
    }
}
