/* Checks scales as numbers: each scale tensor row by row, as stored. */
#include "common/checked.h"
#include "formats/names/fused.h"
#include "formats/weights/kv_names.h"
#include "verify/compare/check_weights_values.h"
#include "verify/values/decode.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *bad_scale(double scale, double smallest_normal, bool ue8m0)
{
    int exponent;
    if (!isfinite(scale))
        return isnan(scale) ? "NaN" : "infinite";
    if (scale == 0)
        return "zero";
    if (scale < 0)
        return "negative";
    if (scale < smallest_normal)
        return "subnormal";
    return ue8m0 && frexp(scale, &exponent) != 0.5 ? "not a power of two, although scale_fmt is ue8m0" : NULL;
}

/* Returns true if a row of scales belongs to a group (AWQ and GPTQ); otherwise it belongs to a row of blocks. */
static bool is_by_group(const tsr_weight *w)
{
    return w->coding == TSR_CODED_AWQ || w->coding == TSR_CODED_GPTQ;
}

/* Returns the smallest plausible scale. e4m3 scales are multiplied by a global one, and AWQ and GPTQ have small F16
 * scales, so both use their whole range. */
static double smallest_scale(const tsr_weight *w)
{
    return w->scale_dtype == TSR_F8_E4M3 ? 0x1p-9
           : w->scale_dtype != TSR_F16   ? FLT_MIN
           : is_by_group(w)              ? 0x1p-24
                                         : 0x1p-14;
}

typedef struct scale_count {
    uint64_t found, matrix, row, col; /* position of the first */
    double value;
    const char *what;
} scale_count;

/* Sets *within if no value of the source's block exceeds `limit`. */
static tsr_status is_source_within(const tsr_weights_checking *k, const tsr_pair *p, const tsr_piece *block,
                                   double limit, bool *within)
{
    tsr_weight_reader r = {0};
    tsr_view view;
    double x;
    *within = false;
    if (p->state > TSR_PAIR_DIFFERS)
        return TSR_OK;
    TSR_TRY(tsr_pair_view(&view, k->src, p, 0, k->err));
    const tsr_status status = tsr_weight_reader_load(&r, &view, block, k->err);
    *within = status == TSR_OK;
    for (uint64_t i = 0; *within && i < block->rows * block->cols; i++) {
        tsr_weight_reader_row(&r, i / block->cols, i % block->cols, 1, &x);
        *within = fabs(x) <= limit;
    }
    tsr_weight_reader_free(&r);
    return status;
}

/* Checks whether an implausible scale is right: for values so small that amax / 448 is subnormal, or for groups of
 * zeros, whose e4m3 scale may be 0. */
static tsr_status is_fine_there(const tsr_weights_checking *k, const tsr_pair *p, uint64_t matrix, uint64_t row,
                                uint64_t col, double scale, bool *fine)
{
    const tsr_weight *const w = p->b;
    tsr_piece block = {.matrix = matrix, .row = row * w->block.rows, .col = col * w->block.cols};
    *fine = false;
    if (w->reordered || scale < 0 || scale >= smallest_scale(w) || (scale == 0 && w->scale_dtype != TSR_F8_E4M3))
        return TSR_OK;
    block.rows = tsr_min_u64(w->block.rows, w->rows - block.row);
    block.cols = tsr_min_u64(w->block.cols, w->cols - block.col);
    if (w->transposed)
        block = (tsr_piece){matrix, block.col, block.row, block.cols, block.rows};
    return is_source_within(k, p, &block, scale == 0 ? 0 : 448 * (double)FLT_MIN, fine);
}

/* Checks one stored row of the part of the grid that the weight uses. */
static tsr_status check_scale_row(const tsr_weights_checking *k, const tsr_pair *p, const tsr_piece *at,
                                  const double *scales, scale_count *count)
{
    const tsr_weight *const w = p->b;
    const bool ue8m0 = k->dst->weights->ue8m0 && w->coding == TSR_CODED_E4M3;
    for (uint64_t i = 0; i < at->cols; i++) {
        const char *const what = bad_scale(scales[i], smallest_scale(w), ue8m0);
        if (what == NULL)
            continue;
        const uint64_t row = is_by_group(w) ? i : at->row, col = is_by_group(w) ? at->row : i;
        bool fine;
        TSR_TRY(is_fine_there(k, p, at->matrix, row, col, scales[i], &fine));
        if (fine || count->found++ > 0)
            continue;
        *count = (scale_count){1, at->matrix, row, col, scales[i], what};
    }
    return TSR_OK;
}

static tsr_status check_scales_of(const tsr_weights_checking *k, const tsr_pair *p)
{
    const tsr_weight *const w = p->b;
    tsr_tensor tensor = *w->scale;
    tensor.dtype = w->scale_dtype;
    const tsr_weight plain = tsr_plain_weight(&tensor);
    const uint64_t down = tsr_ceil_div(w->rows, w->block.rows), across = tsr_ceil_div(w->cols, w->block.cols),
                   rows = is_by_group(w) ? across : down, cols = is_by_group(w) ? down : across;
    scale_count count = {0};
    tsr_weight_reader r = {0};
    tsr_view view;
    TSR_TRY(tsr_view_init(&view, k->dst->checkpoint, &plain, k->err));
    /* For any shape, scales are stored as M x grid_rows x grid_cols or as M x grid_cols x grid_rows. */
    view.matrices = w->one_scale ? 1 : w->matrices;
    view.rows = is_by_group(w) ? w->grid_cols : w->grid_rows;
    view.cols = is_by_group(w) ? w->grid_rows : w->grid_cols;
    double *const scales = calloc(cols + 1, sizeof *scales);
    tsr_status status = scales == NULL ? tsr_out_of_memory(k->err, NULL) : TSR_OK;
    for (uint64_t i = 0; status == TSR_OK && cols > 0 && i < view.matrices * rows; i++) {
        const tsr_piece at = {.matrix = i / rows, .row = i % rows, .rows = 1, .cols = cols};
        status = tsr_weight_reader_load(&r, &view, &at, k->err);
        if (status == TSR_OK) {
            tsr_weight_reader_row(&r, 0, 0, cols, scales);
            status = check_scale_row(k, p, &at, scales, &count);
        }
    }
    free(scales);
    tsr_weight_reader_free(&r);
    if (status == TSR_OK && count.found > 0)
        status = tsr_add_finding(
            k, TSR_CHECK_SCALES, w->scale->name,
            "%llu of %llu scales are out of range; the first, of block [%llu, %llu] of matrix %llu, is %s (%g)",
            U64(count.found), U64(view.matrices * rows * cols), U64(count.row), U64(count.col), U64(count.matrix),
            count.what, count.value);
    return status;
}

/* ---- global scales ---- */

/* Lists the weights that loaders fuse with w, including w. */
static size_t find_joined(const tsr_side *side, const tsr_weight *w, const tsr_weight *members[TSR_FUSED_MEMBERS])
{
    static const char kWeight[] = ".weight";
    char name[1200];
    const size_t module = tsr_module_length(w->values->name);
    if (w->values->name[module] == '\0' || module >= sizeof name - 64)
        return 0;
    snprintf(name, sizeof name, "%.*s", (int)module, w->values->name);
    char *const dot = strrchr(name, '.'), *const leaf = dot == NULL ? name : dot + 1;
    const tsr_fused *const fused = tsr_fused_find(name);
    size_t n = 0;
    for (size_t i = 0; fused != NULL && i < TSR_FUSED_MEMBERS && fused->members[i] != NULL; i++) {
        snprintf(leaf, (size_t)(name + sizeof name - leaf), "%s%s", fused->members[i], kWeight);
        const tsr_weight *const member = tsr_weights_find(side->weights, side->checkpoint, name);
        if (member != NULL && member->global_scale != NULL)
            members[n++] = member;
    }
    return n;
}

static tsr_status read_global(const tsr_side *side, const tsr_weight *w, uint64_t matrix, double *value, tsr_err *err)
{
    float global;
    TSR_TRY(
        tsr_checkpoint_read(side->checkpoint, w->global_scale, matrix * sizeof global, &global, sizeof global, err));
    *value = (double)global;
    return TSR_OK;
}

static tsr_status check_global_of(const tsr_weights_checking *k, const tsr_pair *p)
{
    const tsr_weight *members[TSR_FUSED_MEMBERS];
    double mine, first;
    for (uint64_t i = 0; i < tsr_tensor_elements(p->b->global_scale); i++) {
        TSR_TRY(read_global(k->dst, p->b, i, &mine, k->err));
        const char *const what = bad_scale(mine, FLT_MIN, false);
        if (what != NULL)
            return tsr_add_finding(k, TSR_CHECK_SCALES, p->b->global_scale->name, "the global scale is %s (%g)", what,
                                   mine);
    }
    const size_t n = find_joined(k->dst, p->b, members);
    if (p->state != TSR_PAIR_DIFFERS || n < 2 || members[0] == p->b)
        return TSR_OK;
    TSR_TRY(read_global(k->dst, members[0], 0, &first, k->err));
    TSR_TRY(read_global(k->dst, p->b, 0, &mine, k->err));
    if (first == mine)
        return TSR_OK;
    return tsr_add_finding(
        k, TSR_CHECK_SCALES, p->b->global_scale->name,
        "%.9g, but '%s', which loaders join with it, has %.9g: vLLM and SGLang take the larger one for all of them",
        mine, members[0]->global_scale->name, first);
}

/* Checks a scale of activations: one number, or one for each head. */
static tsr_status check_activation_scale(const tsr_weights_checking *k, const tsr_tensor *scale, const char *of)
{
    uint64_t at;
    double value;
    TSR_TRY(tsr_find_bad_scale(k->dst->checkpoint, scale, &at, &value, k->err));
    return at == tsr_tensor_elements(scale)
               ? TSR_OK
               : tsr_add_finding(k, TSR_CHECK_SCALES, scale->name, "the scale of %s is %s (%g)", of,
                                 bad_scale(value, 0, false), value);
}

bool tsr_is_cache_scale(const tsr_weights_checking *k, const tsr_pair *p)
{
    tsr_kv_name kv;
    return k->dst->weights->kv_cache == TSR_KV_FP8 && p->b != NULL && tsr_kv_name_read(p->b->values->name, &kv);
}

tsr_status tsr_check_weight_scales(const tsr_weights_checking *k)
{
    for (size_t i = 0; i < k->c->count; i++) {
        const tsr_pair *const p = &k->c->pairs[i];
        const bool of_cache = tsr_is_cache_scale(k, p);
        if (p->b == NULL || (p->b->scale == NULL && !of_cache))
            continue;
        k->out->judged[TSR_CHECK_SCALES]++;
        if (of_cache) {
            tsr_view view; /* its values may be of a dtype that is not read */
            TSR_TRY(tsr_view_init(&view, k->dst->checkpoint, p->b, k->err));
            TSR_TRY(check_activation_scale(k, p->b->values, "the KV cache"));
            continue;
        }
        TSR_TRY(check_scales_of(k, p));
        if (p->b->global_scale != NULL)
            TSR_TRY(check_global_of(k, p));
        if (p->b->input_scale != NULL && tsr_dtype_is_weight_float((tsr_dtype)p->b->input_scale->dtype))
            TSR_TRY(check_activation_scale(k, p->b->input_scale, "the input"));
    }
    return TSR_OK;
}
