/* Tests tables, and microscaled codes in both directions. */
#include "common/float_bits.h"
#include "quantize/int_weight.h"
#include "quantize/mx_decode.h"
#include "tests/peers/golden/format_cases.h"

#include <string.h>

/* ---- tables ---- */

static tsr_status table_to_e2m1(const tensor_set *in, tensor_set *out, tsr_err *err)
{
    const set_tensor *values;
    set_tensor *codes;
    TSR_TRY(find_tensor(in, "values", TSR_F32, &values, err));
    TSR_TRY(add_tensor(out, "codes", 5, "", TSR_U8, values->t.rank, values->t.shape, &codes, err));
    for (size_t i = 0; i < tsr_tensor_elements(&values->t); i++)
        ((uint8_t *)codes->bytes)[i] = tsr_e2m1_from_f32(((const float *)values->bytes)[i]);
    return TSR_OK;
}

tsr_status make_table(const tsr_cpu_kernels *k, const char *kind, const tensor_set *in, const tensor_set *expected,
                      tensor_set *out, tsr_err *err)
{
    (void)k;
    (void)expected;
    const set_tensor *codes;
    set_tensor *values;
    if (strcmp(kind, "to-e2m1") == 0)
        return table_to_e2m1(in, out, err);
    const bool e2m1 = strcmp(kind, "e2m1") == 0, e8m0 = strcmp(kind, "e8m0") == 0;
    if (!e2m1 && !e8m0 && strcmp(kind, "e4m3") != 0)
        return tsr_fail(err, TSR_E_UNSUPPORTED, "table '%s' is not known", kind);
    TSR_TRY(find_tensor(in, "codes", TSR_U8, &codes, err));
    const uint64_t n = tsr_tensor_elements(&codes->t) * (e2m1 ? 2 : 1);
    TSR_TRY(add_tensor(out, "values", 6, "", TSR_F32, 1, &n, &values, err));
    for (uint64_t i = 0; i < n; i++) {
        const uint8_t byte = ((const uint8_t *)codes->bytes)[e2m1 ? i / 2 : i];
        ((float *)values->bytes)[i] = e2m1   ? tsr_e2m1_to_f32(byte >> i % 2 * 4)
                                      : e8m0 ? tsr_f32_from_e8m0(byte)
                                             : tsr_e4m3_to_f32(byte);
    }
    return TSR_OK;
}

/* ---- encode ---- */

/* Returns the rows of a tensor: the product of all dimensions except the last. */
static uint64_t rows_of(const tsr_tensor *t)
{
    const uint64_t cols = t->shape[t->rank - 1];
    return cols == 0 ? 0 : tsr_tensor_elements(t) / cols;
}

static tsr_status encode_module(const tsr_cpu_kernels *k, const mx_names *names, const tsr_mx_scheme *scheme,
                                const set_tensor *w, float global, tensor_set *out, tsr_err *err)
{
    const char *const name = w->t.name;
    const uint64_t cols = w->t.shape[w->t.rank - 1], one = 1;
    const size_t length = strlen(name) - strlen(".weight");
    set_tensor *codes, *scales, *factor;
    uint64_t shape[TSR_MAX_RANK];
    memcpy(shape, w->t.shape, sizeof shape);
    shape[w->t.rank - 1] = tsr_mx_code_bytes(scheme->element, cols);
    TSR_TRY(add_tensor(out, name, length, names->codes, names->codes_dtype, w->t.rank, shape, &codes, err));
    shape[w->t.rank - 1] = cols / scheme->group;
    TSR_TRY(add_tensor(out, name, length, names->scales, names->scales_dtype, w->t.rank, shape, &scales, err));
    if (names->global != NULL) {
        TSR_TRY(add_tensor(out, name, length, names->global, TSR_F32, names->global_rank, &one, &factor, err));
        *(float *)factor->bytes = global;
    }
    tsr_mx_rows rows = {.tensor = &w->t,
                        .rows = rows_of(&w->t),
                        .x = w->bytes,
                        .global = global,
                        .codes = codes->bytes,
                        .scales = scales->bytes};
    TSR_TRY(get_scratch(out, tsr_mx_scratch(scheme, cols), &rows.scratch, err));
    return tsr_mx_quantize(scheme, k, &rows, NULL, err);
}

/* compressed-tensors' int4 with one scale for each group. */
static tsr_status encode_int4(const tsr_cpu_kernels *k, const tensor_set *in, const tensor_set *expected,
                              tensor_set *out, tsr_err *err)
{
    const set_tensor *w, *given;
    set_tensor *packed, *scale, *shape_of;
    TSR_TRY(find_tensor(in, ".weight", TSR_BF16, &w, err));
    TSR_TRY(find_tensor(expected, ".weight_scale", TSR_BF16, &given, err));
    const size_t length = strlen(w->t.name) - strlen(".weight");
    const uint64_t rows = w->t.shape[0], cols = w->t.shape[1], groups = given->t.shape[1], two = 2;
    const tsr_int_scheme scheme = {
        .bits = 4, .group = cols / groups, .divisor = 7.5f, .scale_dtype = TSR_BF16, .in_bf16 = true};
    void *codes, *scales;
    tsr_int_rows all = {.tensor = &w->t, .rows = rows, .x = w->bytes};
    TSR_TRY(add_tensor(out, w->t.name, length, ".weight_packed", TSR_I32, 2, (const uint64_t[]){rows, cols / 8},
                       &packed, err));
    TSR_TRY(add_tensor(out, w->t.name, length, ".weight_scale", TSR_BF16, 2, (const uint64_t[]){rows, groups}, &scale,
                       err));
    TSR_TRY(add_tensor(out, w->t.name, length, ".weight_shape", TSR_I64, 1, &two, &shape_of, err));
    memcpy(shape_of->bytes, w->t.shape, 2 * sizeof(int64_t));
    TSR_TRY(get_scratch(out, rows * cols, &codes, err));
    TSR_TRY(get_scratch(out, rows * groups * sizeof(float), &scales, err));
    TSR_TRY(get_scratch(out, tsr_int_scratch(&scheme, cols), &all.scratch, err));
    all.codes = codes;
    all.scales = scales;
    TSR_TRY(tsr_int_quantize(&scheme, k, &all, NULL, err));
    k->pack_int4(all.codes, rows * cols, packed->bytes);
    for (uint64_t i = 0; i < rows * groups; i++)
        ((uint16_t *)scale->bytes)[i] = tsr_bf16_from_f32(all.scales[i]);
    return TSR_OK;
}

/* Computes one global scale of all weights of a file, as for a fused layer. */
tsr_status encode_kind(const tsr_cpu_kernels *k, const char *kind, const tensor_set *in, const tensor_set *expected,
                       tensor_set *out, tsr_err *err)
{
    const mx_names *const names = find_mx_names(kind);
    if (strcmp(kind, "int4-ct") == 0)
        return encode_int4(k, in, expected, out, err);
    if (names == NULL)
        return tsr_fail(err, TSR_E_UNSUPPORTED, "kind '%s' is not known", kind);
    const tsr_mx_scheme scheme = scheme_of_names(names);
    float amax[MOST_TENSORS] = {0};
    for (size_t i = 0; i < in->count; i++) {
        const tsr_tensor *const t = &in->items[i].t;
        tsr_mx_rows rows = {.tensor = t, .rows = rows_of(t), .x = in->items[i].bytes};
        if (!ends_in(t->name, ".weight", NULL) || !tsr_dtype_is_weight_float((tsr_dtype)t->dtype) || t->rank < 2)
            return tsr_fail(err, TSR_E_FORMAT, "'%s' is no weight", t->name);
        TSR_TRY(get_scratch(out, tsr_mx_scratch(&scheme, t->shape[t->rank - 1]), &rows.scratch, err));
        TSR_TRY(tsr_mx_amax(k, &rows, &amax[i], err));
    }
    const float global =
        in->count == 0 ? 1 : tsr_nvfp4_global(&scheme, (tsr_dtype)in->items[0].t.dtype, amax, in->count);
    for (size_t i = 0; i < in->count; i++)
        TSR_TRY(encode_module(k, names, &scheme, &in->items[i], global, out, err));
    return TSR_OK;
}

/* ---- decode ---- */

/* gpt-oss: blocks [experts, rows, groups, 16]; transformers' parameter is transposed, [experts, columns, rows]. */
static tsr_status transpose_experts(const set_tensor *codes, const uint16_t *y, size_t length, tensor_set *out,
                                    tsr_err *err)
{
    const uint64_t experts = codes->t.shape[0], rows = codes->t.shape[1], cols = codes->t.shape[2] * 32;
    set_tensor *w;
    TSR_TRY(add_tensor(out, codes->t.name, length, "", TSR_BF16, 3, (const uint64_t[]){experts, cols, rows}, &w, err));
    for (uint64_t e = 0; e < experts; e++) {
        for (uint64_t i = 0; i < rows * cols; i++)
            ((uint16_t *)w->bytes)[e * rows * cols + i % cols * rows + i / cols] = y[e * rows * cols + i];
    }
    return TSR_OK;
}

tsr_status decode_kind(const tsr_cpu_kernels *k, const char *kind, const tensor_set *in, const tensor_set *expected,
                       tensor_set *out, tsr_err *err)
{
    const mx_names *const names = find_mx_names(kind);
    const set_tensor *codes, *scales, *global = NULL;
    set_tensor *w;
    void *y, *scratch;
    size_t length = 0;
    if (names == NULL)
        return decode_other(k, kind, in, expected, out, err);
    const tsr_mx_scheme scheme = scheme_of_names(names);
    TSR_TRY(find_tensor(in, names->codes, names->codes_dtype, &codes, err));
    TSR_TRY(find_tensor(in, names->scales, names->scales_dtype, &scales, err));
    if (names->global != NULL)
        TSR_TRY(find_tensor(in, names->global, TSR_F32, &global, err));
    const uint64_t groups = tsr_tensor_elements(&scales->t), wide = scales->t.shape[scales->t.rank - 1];
    const tsr_mx_span span = {.codes_of = &codes->t,
                              .scales_of = &scales->t,
                              .rows = groups / wide,
                              .cols = wide * scheme.group,
                              .group = scheme.group,
                              .element = scheme.element,
                              .scale = scheme.scale,
                              .global = global == NULL ? 0 : *(const float *)global->bytes,
                              .codes = codes->bytes,
                              .scales = scales->bytes};
    if (codes->t.bytes != span.rows * tsr_mx_code_bytes(scheme.element, span.cols))
        return tsr_fail(err, TSR_E_FORMAT, "'%s' does not fit its scales", codes->t.name);
    TSR_TRY(get_scratch(out, span.rows * span.cols * sizeof(uint16_t), &y, err));
    TSR_TRY(get_scratch(out, tsr_mx_decode_scratch(span.cols), &scratch, err));
    TSR_TRY(tsr_mx_decode(k, &span, TSR_BF16, y, scratch, err));
    ends_in(codes->t.name, names->codes, &length);
    if (codes->t.rank == 4)
        return transpose_experts(codes, y, length, out, err);
    uint64_t shape[TSR_MAX_RANK];
    memcpy(shape, codes->t.shape, sizeof shape);
    shape[codes->t.rank - 1] = span.cols;
    TSR_TRY(add_tensor(out, codes->t.name, length, ".weight", TSR_BF16, codes->t.rank, shape, &w, err));
    memcpy(w->bytes, y, w->t.bytes);
    return TSR_OK;
}
