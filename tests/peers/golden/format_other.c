/* Block FP8, MXFP6, and integers in the packings of compressed-tensors, AWQ and GPTQ, to BF16. */
#include "common/checked.h"
#include "quantize/awq_gptq_decode.h"
#include "quantize/fp6_decode.h"
#include "quantize/fp8_decode.h"
#include "quantize/integer_decode.h"
#include "tests/common/int4_weight.h"
#include "tests/peers/golden/format_cases.h"

#include <string.h>

/* Returns the size of square blocks, which the file does not have: the one for which the grid fits the shape. */
static tsr_status block_of(const tsr_tensor *codes, const tsr_tensor *grid, uint64_t *block, tsr_err *err)
{
    for (*block = 128; *block >= 32; *block /= 2) {
        if (tsr_ceil_div(codes->shape[0], *block) == grid->shape[0] &&
            tsr_ceil_div(codes->shape[1], *block) == grid->shape[1])
            return TSR_OK;
    }
    return tsr_fail(err, TSR_E_FORMAT, "'%s' fits no block of 128, 64 or 32", grid->name);
}

static tsr_status find_fp8(const tensor_set *in, const set_tensor **codes, const set_tensor **scales, tsr_err *err)
{
    TSR_TRY(find_tensor(in, ".weight", TSR_F8_E4M3, codes, err));
    return find_tensor(in, ".scale", TSR_F8_E8M0, scales, err);
}

static tsr_status decode_fp8(const tsr_cpu_kernels *k, const tensor_set *in, tensor_set *out, tsr_err *err)
{
    const set_tensor *codes, *scales;
    set_tensor *w;
    uint64_t block;
    TSR_TRY(find_fp8(in, &codes, &scales, err));
    TSR_TRY(block_of(&codes->t, &scales->t, &block, err));
    TSR_TRY(add_tensor(out, codes->t.name, strlen(codes->t.name), "", TSR_BF16, 2, codes->t.shape, &w, err));
    const tsr_weight weight = {.data = &codes->t,
                               .values = &codes->t,
                               .scale = &scales->t,
                               .scale_dtype = scales->t.dtype,
                               .coding = TSR_CODED_E4M3,
                               .bits = 8,
                               .matrices = 1,
                               .rows = codes->t.shape[0],
                               .cols = codes->t.shape[1],
                               .block.rows = block,
                               .block.cols = block,
                               .grid_rows = scales->t.shape[0],
                               .grid_cols = scales->t.shape[1]};
    const tsr_fp8_rect rect = {.weight = &weight,
                               .rows = weight.rows,
                               .cols = weight.cols,
                               .codes = codes->bytes,
                               .ld_codes = weight.cols,
                               .scales = scales->bytes};
    void *scratch;
    TSR_TRY(get_scratch(out, tsr_fp8_decode_scratch(&weight), &scratch, err));
    return tsr_fp8_decode(k, &rect, TSR_BF16, w->bytes, weight.cols, scratch, err);
}

/* compressed-tensors' own, with zero points or without. */
static tsr_status decode_packed(const tsr_cpu_kernels *k, const tensor_set *in, tensor_set *out, tsr_err *err)
{
    const set_tensor *packed, *scales, *shape, *zeros = NULL;
    set_tensor *w;
    TSR_TRY(find_tensor(in, ".weight_packed", TSR_I32, &packed, err));
    TSR_TRY(find_tensor(in, ".weight_scale", TSR_BF16, &scales, err));
    TSR_TRY(find_any(in, ".weight_shape", &shape, err));
    if (in->count == 4)
        TSR_TRY(find_tensor(in, ".weight_zero_point", TSR_I32, &zeros, err));
    if (tsr_tensor_elements(&shape->t) != 2 || (shape->t.dtype != TSR_I64 && shape->t.dtype != TSR_I32))
        return tsr_fail(err, TSR_E_FORMAT, "'%s' is not two integers", shape->t.name);
    const bool wide = shape->t.dtype == TSR_I64;
    const uint64_t stated[2] = {wide ? ((const uint64_t *)shape->bytes)[0] : ((const uint32_t *)shape->bytes)[0],
                                wide ? ((const uint64_t *)shape->bytes)[1] : ((const uint32_t *)shape->bytes)[1]};
    TSR_TRY(
        add_tensor(out, packed->t.name, strlen(packed->t.name) - strlen("_packed"), "", TSR_BF16, 2, stated, &w, err));
    if (packed->t.shape[1] != tsr_ceil_div(stated[1], 8) || packed->t.shape[0] != stated[0])
        return tsr_fail(err, TSR_E_FORMAT, "'%s' does not fit its shape", packed->t.name);
    tsr_weight weight = int4_weight(TSR_CODED_PACKED, stated[0], stated[1], scales->t.shape[1], &packed->t, &scales->t);
    weight.values = &w->t;
    weight.zero_point = zeros == NULL ? NULL : &zeros->t;
    const tsr_int_span span = {.weight = &weight,
                               .rows = stated[0],
                               .codes = packed->bytes,
                               .scales = scales->bytes,
                               .zero_points = zeros == NULL ? NULL : zeros->bytes};
    void *scratch;
    TSR_TRY(get_scratch(out, tsr_int_decode_scratch(&weight), &scratch, err));
    return tsr_int_decode(k, &span, TSR_BF16, w->bytes, scratch, err);
}

/* AWQ, and GPTQ's first format, whose zero points are stored less one. */
static tsr_status decode_by_inputs(const tsr_cpu_kernels *k, bool awq, const tensor_set *in, tensor_set *out,
                                   tsr_err *err)
{
    const set_tensor *codes, *zeros, *scales;
    set_tensor *w;
    TSR_TRY(find_tensor(in, ".qweight", TSR_I32, &codes, err));
    TSR_TRY(find_tensor(in, ".qzeros", TSR_I32, &zeros, err));
    TSR_TRY(find_tensor(in, ".scales", TSR_F16, &scales, err));
    const uint64_t rows = scales->t.shape[1], cols = codes->t.shape[0] * (awq ? 1 : 8), groups = scales->t.shape[0];
    const size_t length = strlen(codes->t.name) - strlen(".qweight");
    TSR_TRY(add_tensor(out, codes->t.name, length, ".weight", TSR_BF16, 2, (const uint64_t[]){rows, cols}, &w, err));
    tsr_weight weight = int4_weight(awq ? TSR_CODED_AWQ : TSR_CODED_GPTQ, rows, cols, groups, &codes->t, &scales->t);
    weight.values = &w->t;
    weight.zero_point = &zeros->t;
    tsr_gptq_span span = {
        .weight = &weight, .rows = rows, .codes = codes->bytes, .scales = scales->bytes, .zero_points = zeros->bytes};
    if (!awq) {
        const set_tensor *order;
        TSR_TRY(find_tensor(in, ".g_idx", TSR_I32, &order, err));
        weight.group_index = &order->t;
        weight.reordered = true;
        span.group_index = order->bytes;
    }
    void *scratch;
    TSR_TRY(get_scratch(out, tsr_gptq_decode_scratch(&weight), &scratch, err));
    return tsr_gptq_decode(k, &span, TSR_BF16, w->bytes, scratch, err);
}

static tsr_status decode_mxfp6(const tsr_cpu_kernels *k, const char *kind, const tensor_set *in, tensor_set *out,
                               tsr_err *err)
{
    const set_tensor *codes, *scales;
    set_tensor *w;
    const char *const suffix = strcmp(kind, "mxfp6-ct") == 0 ? ".weight_packed" : ".weight";
    TSR_TRY(find_tensor(in, suffix, TSR_U8, &codes, err));
    TSR_TRY(find_tensor(in, ".weight_scale", TSR_U8, &scales, err));
    const uint64_t shape[2] = {scales->t.shape[0], scales->t.shape[1] * 32};
    if (codes->t.bytes != shape[0] * shape[1] / 4 * 3)
        return tsr_fail(err, TSR_E_FORMAT, "'%s' does not fit its scales", codes->t.name);
    const size_t length = strlen(codes->t.name) - strlen(suffix);
    TSR_TRY(add_tensor(out, codes->t.name, length, ".weight", TSR_BF16, 2, shape, &w, err));
    const tsr_mx_span span = {.codes_of = &codes->t,
                              .scales_of = &scales->t,
                              .rows = shape[0],
                              .cols = shape[1],
                              .group = 32,
                              .scale = TSR_MX_E8M0,
                              .codes = codes->bytes,
                              .scales = scales->bytes};
    void *scratch;
    TSR_TRY(get_scratch(out, tsr_fp6_decode_scratch(span.cols), &scratch, err));
    return tsr_fp6_decode(k, &span, strcmp(kind, "mxfp6-e3m2-quark") == 0, TSR_BF16, w->bytes, scratch, err);
}

tsr_status decode_other(const tsr_cpu_kernels *k, const char *kind, const tensor_set *in, const tensor_set *expected,
                        tensor_set *out, tsr_err *err)
{
    (void)expected;
    if (strcmp(kind, "fp8-block") == 0)
        return decode_fp8(k, in, out, err);
    if (strcmp(kind, "int4-ct") == 0)
        return decode_packed(k, in, out, err);
    if (strcmp(kind, "awq") == 0 || strcmp(kind, "gptq") == 0)
        return decode_by_inputs(k, strcmp(kind, "awq") == 0, in, out, err);
    if (strncmp(kind, "mxfp6-", 6) == 0)
        return decode_mxfp6(k, kind, in, out, err);
    return tsr_fail(err, TSR_E_UNSUPPORTED, "kind '%s' is not known", kind);
}
