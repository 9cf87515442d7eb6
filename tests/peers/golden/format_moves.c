/* Conversions that lose nothing: codes moved from one format to another. */
#include "common/checked.h"
#include "common/float_bits.h"
#include "quantize/moves/int4_moves.h"
#include "quantize/moves/mx_moves.h"
#include "tests/peers/golden/format_cases.h"

#include <string.h>

static tsr_status copy_tensor(tensor_set *out, const set_tensor *from, size_t length, const char *suffix,
                              tsr_dtype dtype, tsr_err *err)
{
    set_tensor *to;
    TSR_TRY(add_tensor(out, from->t.name, length, suffix, dtype, from->t.rank, from->t.shape, &to, err));
    memcpy(to->bytes, from->bytes, from->t.bytes);
    return TSR_OK;
}

/* ---- MXFP4 of DeepSeek-V4 ---- */

static tsr_status find_v4(const tensor_set *in, const set_tensor **codes, tsr_mxfp4_rows *rows, size_t *length,
                          tsr_err *err)
{
    const set_tensor *scales;
    TSR_TRY(find_tensor(in, ".weight", TSR_I8, codes, err));
    TSR_TRY(find_tensor(in, ".scale", TSR_F8_E8M0, &scales, err));
    *length = strlen((*codes)->t.name) - strlen(".weight");
    *rows = (tsr_mxfp4_rows){.tensor = &(*codes)->t,
                             .rows = (*codes)->t.shape[0],
                             .cols = (*codes)->t.shape[1] * 2,
                             .codes = (*codes)->bytes,
                             .scales = scales->bytes};
    return scales->t.shape[0] == rows->rows && scales->t.shape[1] * 32 == rows->cols
               ? TSR_OK
               : tsr_fail(err, TSR_E_FORMAT, "'%s' does not fit its codes", scales->t.name);
}

static tsr_status v4_to_fp8(const tsr_cpu_kernels *k, const tensor_set *in, tensor_set *out, tsr_err *err)
{
    enum { BLOCK = 128 };
    const set_tensor *codes;
    set_tensor *to, *tiles;
    tsr_mxfp4_rows all;
    size_t length;
    (void)k;
    TSR_TRY(find_v4(in, &codes, &all, &length, err));
    const uint64_t grid[2] = {tsr_ceil_div(all.rows, BLOCK), tsr_ceil_div(all.cols, BLOCK)};
    TSR_TRY(add_tensor(out, codes->t.name, length, ".weight", TSR_F8_E4M3, 2, (const uint64_t[]){all.rows, all.cols},
                       &to, err));
    TSR_TRY(add_tensor(out, codes->t.name, length, ".scale", TSR_F8_E8M0, 2, grid, &tiles, err));
    for (uint64_t i = 0; i < grid[0]; i++) {
        tsr_mxfp4_rows band = all;
        band.row = i * BLOCK;
        band.rows = tsr_min_u64(BLOCK, all.rows - band.row);
        band.codes += band.row * all.cols / 2;
        band.scales += band.row * all.cols / TSR_MXFP4_GROUP;
        TSR_TRY(tsr_mxfp4_to_fp8(&band, BLOCK, (uint8_t *)to->bytes + band.row * all.cols,
                                 (uint8_t *)tiles->bytes + i * grid[1], err));
    }
    return TSR_OK;
}

/* Returns the largest scale of the groups that are not all zeros, or the one with the global factor 1. */
static uint8_t largest_scale(const tsr_mxfp4_rows *rows)
{
    uint8_t largest = 0;
    for (size_t i = 0; i < rows->rows * rows->cols / 2; i++) {
        const uint8_t scale = rows->scales[i * 2 / TSR_MXFP4_GROUP];
        largest = (rows->codes[i] & 0x77) != 0 && scale > largest ? scale : largest;
    }
    return largest != 0 ? largest : 127 + 8;
}

static tsr_status v4_to_nvfp4(const tsr_cpu_kernels *k, const tensor_set *in, tensor_set *out, tsr_err *err)
{
    const set_tensor *codes;
    set_tensor *scales, *global;
    tsr_mxfp4_rows all;
    size_t length;
    (void)k;
    TSR_TRY(find_v4(in, &codes, &all, &length, err));
    const uint8_t largest = largest_scale(&all);
    TSR_TRY(copy_tensor(out, codes, length, ".weight", TSR_U8, err));
    TSR_TRY(add_tensor(out, codes->t.name, length, ".weight_scale", TSR_F8_E4M3, 2,
                       (const uint64_t[]){all.rows, all.cols / 16}, &scales, err));
    TSR_TRY(add_tensor(out, codes->t.name, length, ".weight_scale_2", TSR_F32, 0, NULL, &global, err));
    const float factor = tsr_mxfp4_global(largest);
    memcpy(global->bytes, &factor, sizeof factor);
    return tsr_mxfp4_to_nvfp4(&all, largest, scales->bytes, err);
}

/* ---- others ---- */

static tsr_status fp8_to_mxfp8(const tsr_cpu_kernels *k, const tensor_set *in, tensor_set *out, tsr_err *err)
{
    const set_tensor *codes, *scales;
    set_tensor *bytes;
    TSR_TRY(find_tensor(in, ".weight", TSR_F8_E4M3, &codes, err));
    TSR_TRY(find_any(in, has_tensor(in, ".weight_scale_inv") ? ".weight_scale_inv" : ".scale", &scales, err));
    if (scales->t.dtype != TSR_F8_E8M0 && !tsr_dtype_is_weight_float((tsr_dtype)scales->t.dtype))
        return tsr_fail(err, TSR_E_FORMAT, "'%s' is no scale", scales->t.name);
    const uint64_t rows = codes->t.shape[0], cols = codes->t.shape[1];
    const uint64_t block = cols / scales->t.shape[1] >= 128 ? 128 : 32;
    const tsr_weight weight = {.data = &codes->t,
                               .scale = &scales->t,
                               .scale_dtype = scales->t.dtype,
                               .rows = rows,
                               .cols = cols,
                               .block = {block, block},
                               .grid_rows = scales->t.shape[0],
                               .grid_cols = scales->t.shape[1]};
    const tsr_fp8_rect rect = {.weight = &weight, .rows = rows, .cols = cols, .scales = scales->bytes};
    const size_t length = strlen(codes->t.name) - strlen(".weight");
    TSR_TRY(copy_tensor(out, codes, length, ".weight", TSR_F8_E4M3, err));
    TSR_TRY(add_tensor(out, codes->t.name, length, ".weight_scale", TSR_U8, 2, (const uint64_t[]){rows, cols / 32},
                       &bytes, err));
    return tsr_fp8_to_mxfp8(k, &rect, bytes->bytes, err);
}

static tsr_status turn_global(const tensor_set *in, const char *from, const char *to, tensor_set *out, tsr_err *err)
{
    const set_tensor *scale;
    set_tensor *other;
    bool exact;
    TSR_TRY(find_tensor(in, from, TSR_F32, &scale, err));
    TSR_TRY(add_tensor(out, scale->t.name, strlen(scale->t.name) - strlen(from), to, TSR_F32, 0, NULL, &other, err));
    return tsr_nvfp4_other_global(&scale->t, *(const float *)scale->bytes, other->bytes, &exact, err);
}

static tsr_status modelopt_to_ct(const tsr_cpu_kernels *k, const tensor_set *in, tensor_set *out, tsr_err *err)
{
    const set_tensor *codes, *scales;
    (void)k;
    TSR_TRY(find_tensor(in, ".weight", TSR_U8, &codes, err));
    TSR_TRY(find_tensor(in, ".weight_scale", TSR_F8_E4M3, &scales, err));
    const size_t length = strlen(codes->t.name) - strlen(".weight");
    TSR_TRY(copy_tensor(out, codes, length, ".weight_packed", TSR_U8, err));
    TSR_TRY(copy_tensor(out, scales, length, ".weight_scale", TSR_F8_E4M3, err));
    TSR_TRY(turn_global(in, ".weight_scale_2", ".weight_global_scale", out, err));
    return turn_global(in, ".input_scale", ".input_global_scale", out, err);
}

/* Converts to BF16 and back with the same scales. */
static tsr_status int4_again(const tsr_cpu_kernels *k, const tensor_set *in, tensor_set *out, tsr_err *err)
{
    const set_tensor *packed, *scales, *shape, *values;
    set_tensor *words;
    tensor_set decoded = {.arena = out->arena};
    void *wide;
    TSR_TRY(find_tensor(in, ".weight_packed", TSR_I32, &packed, err));
    TSR_TRY(find_tensor(in, ".weight_scale", TSR_BF16, &scales, err));
    TSR_TRY(find_any(in, ".weight_shape", &shape, err));
    TSR_TRY(decode_kind(k, "int4-ct", in, NULL, &decoded, err));
    TSR_TRY(find_tensor(&decoded, ".weight", TSR_BF16, &values, err));
    TSR_TRY(copy_tensor(out, scales, strlen(scales->t.name), "", TSR_BF16, err));
    TSR_TRY(copy_tensor(out, shape, strlen(shape->t.name), "", (tsr_dtype)shape->t.dtype, err));
    TSR_TRY(add_tensor(out, packed->t.name, strlen(packed->t.name), "", TSR_I32, 2, packed->t.shape, &words, err));
    const uint64_t n = tsr_tensor_elements(&scales->t);
    TSR_TRY(get_scratch(out, n * sizeof(float), &wide, err));
    k->widen_bf16(scales->bytes, n, wide);
    const tsr_int4_restoring all = {.tensor = &values->t,
                                    .rows = values->t.shape[0],
                                    .cols = values->t.shape[1],
                                    .group = values->t.shape[1] / scales->t.shape[1],
                                    .values = values->bytes,
                                    .scales = wide,
                                    .words = words->bytes};
    return tsr_int4_restore_codes(&all, err);
}

/* ---- AWQ, GPTQ ---- */

typedef struct packing {
    const set_tensor *codes, *zeros, *scales;
    tsr_int4_shape shape;
    size_t length; /* length of the module's name */
} packing;

/* `per_word`: the number of inputs in a row of qweight. */
static tsr_status find_packing(const tensor_set *in, uint64_t per_word, packing *p, tsr_err *err)
{
    TSR_TRY(find_tensor(in, ".qweight", TSR_I32, &p->codes, err));
    TSR_TRY(find_tensor(in, ".qzeros", TSR_I32, &p->zeros, err));
    TSR_TRY(find_tensor(in, ".scales", TSR_F16, &p->scales, err));
    p->shape.inputs = p->codes->t.shape[0] * per_word;
    p->shape.outputs = p->scales->t.shape[1];
    p->shape.group = p->shape.inputs / p->scales->t.shape[0];
    p->shape.bits = 4;
    p->length = strlen(p->codes->t.name) - strlen(".qweight");
    return TSR_OK;
}

/* The tensors of pack-quantized, with their scales and shape. */
static tsr_status add_packed(const packing *p, tensor_set *out, uint32_t **words, uint32_t **zeros, tsr_err *err)
{
    const uint64_t rows = p->shape.outputs, cols = p->shape.inputs, groups = cols / p->shape.group, two = 2;
    const char *const name = p->codes->t.name;
    set_tensor *codes, *zero, *scale, *shape;
    TSR_TRY(add_tensor(out, name, p->length, ".weight_packed", TSR_I32, 2, (const uint64_t[]){rows, cols / 8}, &codes,
                       err));
    TSR_TRY(add_tensor(out, name, p->length, ".weight_zero_point", TSR_I32, 2, (const uint64_t[]){rows / 8, groups},
                       &zero, err));
    TSR_TRY(
        add_tensor(out, name, p->length, ".weight_scale", TSR_F16, 2, (const uint64_t[]){rows, groups}, &scale, err));
    TSR_TRY(add_tensor(out, name, p->length, ".weight_shape", TSR_I64, 1, &two, &shape, err));
    memcpy(shape->bytes, (const int64_t[]){(int64_t)rows, (int64_t)cols}, 2 * sizeof(int64_t));
    tsr_int4_scales(&p->shape, p->scales->bytes, scale->bytes);
    *words = codes->bytes;
    *zeros = zero->bytes;
    return TSR_OK;
}

static tsr_status awq_to_ct(const tsr_cpu_kernels *k, const tensor_set *in, tensor_set *out, tsr_err *err)
{
    packing p;
    uint32_t *words, *zeros;
    bool symmetric;
    (void)k;
    TSR_TRY(find_packing(in, 1, &p, err));
    TSR_TRY(add_packed(&p, out, &words, &zeros, err));
    tsr_awq_codes(&p.shape, p.codes->bytes, words);
    tsr_awq_zero_points(&p.shape, p.zeros->bytes, zeros, &symmetric);
    return TSR_OK;
}

/* Tests act-order: the group of an input does not follow from its position, and is kept. */
static bool is_in_order(const tsr_int4_shape *shape, const int32_t *g_idx)
{
    uint64_t i = 0;
    while (i < shape->inputs && g_idx[i] >= 0 && (uint64_t)g_idx[i] == i / shape->group)
        i++;
    return i == shape->inputs;
}

static tsr_status gptq_to_ct(const tsr_cpu_kernels *k, const tensor_set *in, tensor_set *out, tsr_err *err)
{
    const set_tensor *g_idx;
    packing p;
    uint32_t *words, *zeros;
    bool symmetric;
    (void)k;
    TSR_TRY(find_packing(in, 8, &p, err));
    TSR_TRY(find_tensor(in, ".g_idx", TSR_I32, &g_idx, err));
    TSR_TRY(add_packed(&p, out, &words, &zeros, err));
    if (!is_in_order(&p.shape, g_idx->bytes))
        TSR_TRY(copy_tensor(out, g_idx, p.length, ".weight_g_idx", TSR_I32, err));
    tsr_gptq_codes(&p.shape, p.codes->bytes, words);
    return tsr_gptq_zero_points(&p.shape, &p.zeros->t, 0, p.zeros->bytes, 1, zeros, &symmetric, err);
}

tsr_status convert_kind(const tsr_cpu_kernels *k, const char *kind, const tensor_set *in, const tensor_set *expected,
                        tensor_set *out, tsr_err *err)
{
    static const struct {
        const char *kind;
        tsr_status (*make)(const tsr_cpu_kernels *k, const tensor_set *in, tensor_set *out, tsr_err *err);
    } kConversions[] = {
        {"mxfp4-v4:fp8-block", v4_to_fp8}, {"mxfp4-v4:nvfp4-modelopt", v4_to_nvfp4},
        {"fp8-block:mxfp8", fp8_to_mxfp8}, {"nvfp4-modelopt:nvfp4-ct", modelopt_to_ct},
        {"int4-ct:int4-ct", int4_again},   {"awq:int4-ct", awq_to_ct},
        {"gptq:int4-ct", gptq_to_ct},
    };
    (void)expected;
    for (size_t i = 0; i < sizeof kConversions / sizeof *kConversions; i++) {
        if (strcmp(kind, kConversions[i].kind) == 0)
            return kConversions[i].make(k, in, out, err);
    }
    return tsr_fail(err, TSR_E_UNSUPPORTED, "conversion '%s' is not known", kind);
}
