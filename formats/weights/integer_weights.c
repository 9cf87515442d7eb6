/* Checks integer codes and their scales against the codings in config.json. */
#include "common/checked.h"
#include "formats/weights/pairing.h"

#include <strings.h>

static bool is_integer(const tsr_tensor *t)
{
    switch (t->dtype) {
    case TSR_U8:
    case TSR_I8:
    case TSR_I16:
    case TSR_U16:
    case TSR_I32:
    case TSR_U32:
    case TSR_I64:
    case TSR_U64:
        return true;
    default:
        return false;
    }
}

/* Reads two integers of any width: llm-compressor writes I64, Kimi-K2 has I32. Values beyond int64 read as negative. */
static tsr_status read_pair(const tsr_pairing *p, const tsr_tensor *t, int64_t values[2])
{
    const bool sign = t->dtype == TSR_I8 || t->dtype == TSR_I16 || t->dtype == TSR_I32;
    const size_t width = tsr_dtype_bytes((tsr_dtype)t->dtype);
    unsigned char bytes[2 * sizeof(int64_t)];
    TSR_TRY(tsr_checkpoint_read(p->c, t, 0, bytes, 2 * width, p->err));
    for (size_t i = 0; i < 2; i++) {
        uint64_t bits = 0;
        for (size_t k = width; k-- > 0;)
            bits = bits << 8 | bytes[i * width + k];
        if (sign && (bits >> (8 * width - 1)) != 0)
            bits |= ~(uint64_t)0 << (8 * width - 1);
        values[i] = (int64_t)bits;
    }
    return TSR_OK;
}

/* Reads weight_shape. Without data it is computed from the codes and a stated coding that fits the scales. Then the
 * last word in a row counts as full. */
static tsr_status read_shape(const tsr_pairing *p, const tsr_weight *x, int64_t shape[2])
{
    const tsr_tensor *const t = x->data;
    if (!p->c->without_data)
        return read_pair(p, x->shape, shape);
    shape[0] = shape[1] = 0;
    for (size_t i = 0; i < p->n_stated && shape[1] == 0 && t->rank == 2 && x->scale->rank == 2; i++) {
        const tsr_stated_coding *const s = &p->stated[i];
        const uint64_t cols = !s->integer || s->bits == 0 ? 0 : t->shape[1] * (32 / s->bits);
        const uint64_t groups = s->block.cols == 0 ? 1 : tsr_ceil_div(cols, s->block.cols);
        if (cols != 0 && x->scale->shape[1] == groups) {
            shape[0] = (int64_t)t->shape[0];
            shape[1] = (int64_t)cols;
        }
    }
    return TSR_OK;
}

/* Computes the weight's shape from the stored weight_shape. */
static tsr_status unpacked(const tsr_pairing *p, tsr_weight *x)
{
    const tsr_tensor *const t = x->data, *const s = x->shape;
    int64_t shape[2];
    if (s == NULL || !is_integer(s) || tsr_tensor_elements(s) != 2)
        return tsr_fail(p->err, TSR_E_FORMAT, "%s: '%s' needs '%s_shape', a tensor of two integers",
                        tsr_pairing_path(p, t), t->name, x->values->name);
    TSR_TRY(read_shape(p, x, shape));
    if (t->rank != 2 || shape[0] < 0 || shape[1] < 0 || (uint64_t)shape[0] != t->shape[0])
        return tsr_fail(p->err, TSR_E_FORMAT, "%s: '%s' is [%lld, %lld], but '%s' has a different number of rows",
                        tsr_pairing_path(p, s), s->name, (long long)shape[0], (long long)shape[1], t->name);
    tsr_tensor *const values = tsr_arena_alloc(&p->w->arena, sizeof *values);
    if (values == NULL)
        return tsr_out_of_memory(p->err, "while pairing");
    *values = *x->values;
    values->shape[1] = (uint64_t)shape[1];
    x->values = values;
    return TSR_OK;
}

/* Computes the shape of the values of two codes per byte. Only SGLang's method gives these tensors a meaning. */
static tsr_status halved(const tsr_pairing *p, tsr_weight *x)
{
    const tsr_tensor *const t = x->data, *const odd = x->zero_point != NULL ? x->zero_point : x->group_index;
    if (p->w->method == NULL || strcasecmp(p->w->method, TSR_W4AFP8) != 0)
        return tsr_fail(p->err, TSR_E_UNSUPPORTED,
                        "%s: '%s' is I8 scaled by '%s', as in SGLang's " TSR_W4AFP8 ", but " TSR_CONFIG_NAME
                        " does not state that quant_method; if it is that format, add quantization_config with it",
                        tsr_pairing_path(p, t), t->name, x->scale->name);
    if (odd != NULL)
        return tsr_fail(p->err, TSR_E_UNSUPPORTED, "%s: '%s' is int4 of SGLang, which has no '%s'",
                        tsr_pairing_path(p, t), t->name, odd->name);
    tsr_tensor *const values = tsr_arena_alloc(&p->w->arena, sizeof *values);
    if (values == NULL)
        return tsr_out_of_memory(p->err, "while pairing");
    *values = *x->values;
    if (!tsr_mul_u64(t->shape[1], 2, &values->shape[1]) || values->shape[1] % 8 != 0)
        return tsr_fail(p->err, TSR_E_SHAPE, "%s: '%s' has rows of %llu bytes, which are no whole words of eight codes",
                        tsr_pairing_path(p, t), t->name, U64(t->shape[1]));
    x->values = values;
    return TSR_OK;
}

/* Returns true if the weight has codes of this many bits and scales for this many columns. */
static bool is_coded(const tsr_weight *x, uint64_t bits, uint64_t group)
{
    const tsr_tensor *const t = x->data, *const s = x->scale;
    const uint64_t cols = x->values->shape[1];
    const uint64_t width = x->coding == TSR_CODED_PACKED    ? tsr_ceil_div(cols, 32 / bits)
                           : x->coding == TSR_CODED_NIBBLES ? cols / 2
                                                            : cols;
    if (t->shape[1] != width || (x->coding == TSR_CODED_INT8 && bits != 8) ||
        (x->coding == TSR_CODED_NIBBLES && (bits != 4 || group == 0 || group % 8 != 0)))
        return false;
    if (group == 0)
        return tsr_is_column(s, 2, 1, t->shape[0]) || tsr_is_column(s, 2, 1, 1);
    return cols % group == 0 && s->rank == 2 && s->shape[0] == t->shape[0] && s->shape[1] == cols / group;
}

static tsr_status check_zero_points(const tsr_pairing *p, const tsr_weight *x)
{
    const tsr_tensor *const z = x->zero_point;
    if (z == NULL)
        return TSR_OK;
    const bool packed = x->coding == TSR_CODED_PACKED;
    const uint64_t rows = packed ? tsr_ceil_div(x->grid_rows * x->bits, 32) : x->grid_rows;
    const bool fits =
        x->coarse ? tsr_is_column(z, 2, 1, rows) : z->rank == 2 && z->shape[0] == rows && z->shape[1] == x->grid_cols;
    if (z->dtype == (packed ? TSR_I32 : TSR_I8) && fits)
        return TSR_OK;
    char shape[192];
    return tsr_fail(p->err, TSR_E_FORMAT, "%s: '%s' is %s %s; the scales of '%s' require %s [%llu, %llu]",
                    tsr_pairing_path(p, z), z->name, tsr_dtype_name((tsr_dtype)z->dtype),
                    tsr_shape_text(z, shape, sizeof shape), x->data->name, packed ? "I32" : "I8", U64(rows),
                    U64(x->grid_cols));
}

/* Returns the first stated coding that matches; if none is stated, one scale per row or matrix. */
static const tsr_stated_coding *find_coding(const tsr_pairing *p, const tsr_weight *x)
{
    static const tsr_stated_coding kUnstated[] = {{.integer = true, .bits = 4}, {.integer = true, .bits = 8}};
    const tsr_stated_coding *const known = p->holds ? p->stated : kUnstated;
    const size_t n = p->holds ? p->n_stated : sizeof kUnstated / sizeof *kUnstated;
    for (size_t i = 0; i < n; i++) {
        if (known[i].integer && (known[i].bits == 4 || known[i].bits == 8) &&
            is_coded(x, known[i].bits, known[i].block.cols))
            return &known[i];
    }
    return NULL;
}

tsr_status tsr_check_integers(const tsr_pairing *p, tsr_weight *x)
{
    const tsr_tensor *const t = x->data, *const s = x->scale;
    char shape[192], grid[192];
    if (x->coding == TSR_CODED_PACKED)
        TSR_TRY(unpacked(p, x));
    if (x->coding == TSR_CODED_NIBBLES)
        TSR_TRY(halved(p, x));
    const tsr_stated_coding *const coding = find_coding(p, x);
    if (coding == NULL)
        return tsr_fail(p->err, TSR_E_FORMAT,
                        "%s: '%s' %s scaled by '%s' %s matches no integer coding in config.json (num_bits 4 or 8; one "
                        "scale per tensor, per channel, or per group of group_size)",
                        tsr_pairing_path(p, t), t->name, tsr_shape_text(t, shape, sizeof shape), s->name,
                        tsr_shape_text(s, grid, sizeof grid));
    x->bits = (uint8_t)coding->bits;
    x->matrices = 1;
    x->rows = t->shape[0];
    x->cols = x->values->shape[1];
    x->coarse = coding->block.cols == 0;
    x->grid_rows = x->coarse ? tsr_tensor_elements(s) : x->rows;
    x->grid_cols = x->coarse ? 1 : x->cols / coding->block.cols;
    x->block.rows = x->grid_rows == x->rows ? 1 : tsr_max_u64(1, x->rows);
    x->block.cols = x->coarse ? tsr_max_u64(1, x->cols) : coding->block.cols;
    TSR_TRY(tsr_read_order(p, x));
    return check_zero_points(p, x);
}
