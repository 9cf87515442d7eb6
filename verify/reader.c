/* Decoding of every dtype, and the pieces that it is done in. */
#include "verify/reader.h"

#include "formats/checked.h"
#include "verify/lanes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- one row of one dtype ---- */

/* A float of fewer bits than FP32's. */
typedef struct small_float {
    uint32_t magnitude;       /* all bits but the sign */
    uint32_t smallest_normal; /* magnitudes below it are subnormal */
    uint32_t special;         /* magnitudes from here on are Inf or NaN */
    unsigned mantissa_shift, sign_shift;
    uint32_t rebase; /* 127 less the bias */
} small_float;

/* The one special code of e4m3 has mantissa bits, so that in FP32, too, it is NaN and not Inf. */
static const small_float kE4m3 = {0x7F, 8, 0x7F, 20, 24, 120};
static const small_float kF16 = {0x7FFF, 0x400, 0x7C00, 13, 16, 112};

/* Puts sign, exponent and mantissa in FP32's places. A subnormal reads there as 2^e * (1 + f), and 2^e is taken off
 * again: exact, and without a subnormal operand on the way, which processors are slow at. */
static ALWAYS_INLINE void widen(const u32_lanes *bits, small_float format, f32_lanes *value)
{
    const u32_lanes magnitude = *bits & format.magnitude, sign = *bits & (format.magnitude + 1);
    const u32_lanes subnormal = (u32_lanes)(magnitude < format.smallest_normal);
    const u32_lanes special = (u32_lanes)(magnitude >= format.special) & 0x7F800000u;
    const u32_lanes placed = (magnitude << format.mantissa_shift) + (format.rebase << 23) + (subnormal & (1u << 23));
    const f32_lanes number = (f32_lanes)placed - (f32_lanes)(subnormal & ((format.rebase + 1) << 23));
    *value = (f32_lanes)((u32_lanes)number | special | sign << format.sign_shift);
}

static ALWAYS_INLINE void decode_e4m3(const unsigned char *codes, size_t n, double scale, double *out)
{
    for (size_t i = 0; i < n; i += LANES) {
        u8_lanes c = {0};
        f32_lanes value;
        LOAD(c, codes + i, n - i);
        const u32_lanes bits = __builtin_convertvector(c, u32_lanes);
        widen(&bits, kE4m3, &value);
        const f64_lanes product = __builtin_convertvector(value, f64_lanes) * scale;
        STORE(out + i, product, n - i);
    }
}

static ALWAYS_INLINE void decode_bf16(const unsigned char *bytes, size_t n, double *out)
{
    for (size_t i = 0; i < n; i += LANES) {
        u16_lanes x = {0};
        LOAD(x, bytes + 2 * i, n - i);
        const f32_lanes value = (f32_lanes)(__builtin_convertvector(x, u32_lanes) << 16);
        const f64_lanes wide = __builtin_convertvector(value, f64_lanes);
        STORE(out + i, wide, n - i);
    }
}

static ALWAYS_INLINE void decode_f16(const unsigned char *bytes, size_t n, double *out)
{
    for (size_t i = 0; i < n; i += LANES) {
        u16_lanes h = {0};
        LOAD(h, bytes + 2 * i, n - i);
        const u32_lanes bits = __builtin_convertvector(h, u32_lanes);
        f32_lanes value;
        widen(&bits, kF16, &value);
        const f64_lanes wide = __builtin_convertvector(value, f64_lanes);
        STORE(out + i, wide, n - i);
    }
}

static ALWAYS_INLINE void decode_f32(const unsigned char *bytes, size_t n, double *out)
{
    for (size_t i = 0; i < n; i += LANES) {
        f32_lanes x = {0};
        LOAD(x, bytes + 4 * i, n - i);
        const f64_lanes wide = __builtin_convertvector(x, f64_lanes);
        STORE(out + i, wide, n - i);
    }
}

static double power_of_two(unsigned char exponent)
{
    const uint64_t bits = exponent == 0xFF ? 0x7FF8000000000000u : (uint64_t)(exponent + 1023 - 127) << 52;
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

#define DECODE_PLAIN(type)                          \
    for (size_t i = 0; i < n; i++) {                \
        type x;                                     \
        memcpy(&x, bytes + i * sizeof x, sizeof x); \
        out[i] = (double)x;                         \
    }                                               \
    break

static void decode_rare(tsr_dtype dtype, const unsigned char *bytes, size_t n, double *out)
{
    switch (dtype) {
    case TSR_F8_E8M0:
        for (size_t i = 0; i < n; i++)
            out[i] = power_of_two(bytes[i]);
        break;
    case TSR_F64:
        memcpy(out, bytes, n * sizeof *out);
        break;
    case TSR_I8:
        DECODE_PLAIN(int8_t);
    case TSR_I16:
        DECODE_PLAIN(int16_t);
    case TSR_U16:
        DECODE_PLAIN(uint16_t);
    case TSR_I32:
        DECODE_PLAIN(int32_t);
    case TSR_U32:
        DECODE_PLAIN(uint32_t);
    case TSR_I64:
        DECODE_PLAIN(int64_t);
    case TSR_U64:
        DECODE_PLAIN(uint64_t);
    default: /* U8, BOOL */
        DECODE_PLAIN(uint8_t);
    }
}

static ALWAYS_INLINE void decode(tsr_dtype dtype, const unsigned char *bytes, size_t n, double scale, double *out)
{
    if (dtype == TSR_F8_E4M3)
        decode_e4m3(bytes, n, scale, out);
    else if (dtype == TSR_BF16)
        decode_bf16(bytes, n, out);
    else if (dtype == TSR_F16)
        decode_f16(bytes, n, out);
    else if (dtype == TSR_F32)
        decode_f32(bytes, n, out);
    else
        decode_rare(dtype, bytes, n, out);
}

FOR_EVERY_ISA(decode, (tsr_dtype dtype, const unsigned char *bytes, size_t n, double scale, double *out),
              (dtype, bytes, n, scale, out))

void tsr_decode(unsigned char dtype, const unsigned char *bytes, size_t n, double *out)
{
    decode_best((tsr_dtype)dtype, bytes, n, 1, out);
}

/* ---- views and pieces ---- */

tsr_weight tsr_plain_weight(const tsr_tensor *tensor)
{
    return (tsr_weight){.data = tensor};
}

tsr_status tsr_view_init(tsr_view *view, const tsr_checkpoint *checkpoint, const tsr_weight *weight, tsr_err *err)
{
    const tsr_tensor *const t = weight->data;
    if (t->dtype == TSR_C64 || tsr_dtype_bits((tsr_dtype)t->dtype) % 8 != 0)
        return tsr_fail(err, TSR_E_UNSUPPORTED, "%s: '%s' is %s, whose values Tessera does not compare",
                        checkpoint->files[t->file].path, t->name, tsr_dtype_name((tsr_dtype)t->dtype));
    *view = (tsr_view){.checkpoint = checkpoint, .weight = *weight, .matrices = 1, .rows = 1, .cols = 1};
    if (t->rank > 0)
        view->cols = t->shape[t->rank - 1];
    if (t->rank > 1)
        view->rows = t->shape[t->rank - 2];
    for (unsigned i = 0; i + 2 < t->rank; i++)
        view->matrices *= t->shape[i];
    return TSR_OK;
}

static size_t element_bytes(const tsr_view *v)
{
    return tsr_dtype_bytes((tsr_dtype)v->weight.data->dtype);
}

/* The blocks that a piece touches. */
static void scale_window(const tsr_view *v, const tsr_piece *p, tsr_reader *r)
{
    const tsr_weight *const w = &v->weight;
    r->first_row = p->row / w->block_rows;
    r->first_col = p->col / w->block_cols;
    r->scale_rows = (p->row + p->rows - 1) / w->block_rows - r->first_row + 1;
    r->scale_cols = (p->col + p->cols - 1) / w->block_cols - r->first_col + 1;
}

uint64_t tsr_reader_memory(const tsr_view *view, const tsr_piece *piece)
{
    const tsr_weight *const w = &view->weight;
    uint64_t scales = 0;
    if (w->scale != NULL) /* wherever the piece stands */
        scales = (piece->rows / w->block_rows + 2) * (piece->cols / w->block_cols + 2);
    return piece->rows * piece->cols * element_bytes(view) + scales * (sizeof(double) + sizeof(float));
}

/* Rows of `row_bytes`, `pitch` apart in the file, gapless in memory. */
static tsr_status read_rows(const tsr_view *v, const tsr_tensor *t, uint64_t offset, uint64_t rows, uint64_t row_bytes,
                            uint64_t pitch, unsigned char *to, tsr_err *err)
{
    if (row_bytes == pitch)
        return tsr_checkpoint_read(v->checkpoint, t, offset, to, rows * row_bytes, err);
    for (uint64_t row = 0; row < rows; row++)
        TSR_TRY(tsr_checkpoint_read(v->checkpoint, t, offset + row * pitch, to + row * row_bytes, row_bytes, err));
    return TSR_OK;
}

static tsr_status load_scales(tsr_reader *r, tsr_err *err)
{
    const tsr_weight *const w = &r->view->weight;
    const size_t width = tsr_dtype_bytes((tsr_dtype)w->scale->dtype);
    scale_window(r->view, &r->piece, r);
    const uint64_t n = r->scale_rows * r->scale_cols;
    if (n > r->scales_capacity) {
        free(r->scales);
        free(r->raw_scales);
        r->scales = malloc(n * sizeof *r->scales);
        r->raw_scales = malloc(n * sizeof(float));
        r->scales_capacity = r->scales != NULL && r->raw_scales != NULL ? n : 0;
        if (r->scales_capacity == 0)
            return tsr_fail(err, TSR_E_NOMEM, "out of memory for the scales of '%s'", w->data->name);
    }
    const uint64_t first = (r->piece.matrix * w->grid_rows + r->first_row) * w->grid_cols + r->first_col;
    TSR_TRY(read_rows(r->view, w->scale, first * width, r->scale_rows, r->scale_cols * width, w->grid_cols * width,
                      r->raw_scales, err));
    tsr_decode(w->scale->dtype, r->raw_scales, n, r->scales);
    return TSR_OK;
}

tsr_status tsr_reader_load(tsr_reader *reader, const tsr_view *view, const tsr_piece *piece, tsr_err *err)
{
    const size_t width = element_bytes(view);
    const uint64_t bytes = piece->rows * piece->cols * width;
    reader->view = view;
    reader->piece = *piece;
    if (bytes > reader->bytes_capacity) {
        free(reader->bytes);
        reader->bytes = malloc(bytes);
        reader->bytes_capacity = reader->bytes == NULL ? 0 : bytes;
        if (reader->bytes == NULL)
            return tsr_fail(err, TSR_E_NOMEM, "out of memory for %llu bytes of '%s'", (unsigned long long)bytes,
                            view->weight.data->name);
    }
    const uint64_t first = (piece->matrix * view->rows + piece->row) * view->cols + piece->col;
    TSR_TRY(read_rows(view, view->weight.data, first * width, piece->rows, piece->cols * width, view->cols * width,
                      reader->bytes, err));
    return view->weight.scale == NULL ? TSR_OK : load_scales(reader, err);
}

/* Part of a row that shares one scale: elements [at, at + n), counted from where the reading began. */
typedef struct scale_run {
    size_t at, n;
    double scale;
} scale_run;

static bool next_run(const tsr_reader *r, uint64_t row, uint64_t col, size_t n, scale_run *run)
{
    const tsr_weight *const w = &r->view->weight;
    run->at += run->n;
    if (run->at >= n)
        return false;
    const uint64_t at = r->piece.col + col + run->at, block = at / w->block_cols;
    const uint64_t scale_row = (r->piece.row + row) / w->block_rows - r->first_row;
    run->n = (size_t)tsr_min_u64((block + 1) * w->block_cols - at, n - run->at);
    run->scale = r->scales[scale_row * r->scale_cols + block - r->first_col];
    return true;
}

void tsr_reader_row(const tsr_reader *r, uint64_t row, uint64_t col, size_t n, double *out)
{
    const tsr_weight *const w = &r->view->weight;
    const unsigned char *const bytes = r->bytes + (row * r->piece.cols + col) * element_bytes(r->view);
    if (w->scale == NULL) {
        decode_best((tsr_dtype)w->data->dtype, bytes, n, 1, out);
        return;
    }
    for (scale_run run = {0}; next_run(r, row, col, n, &run);)
        decode_best(TSR_F8_E4M3, bytes + run.at, run.n, run.scale, out + run.at);
}

/* A plain loop over counts, which compilers turn into vectors by themselves. */
static ALWAYS_INLINE void find_misrounded(const double *x, const double *y, size_t n, double inverse, int64_t *found)
{
    int64_t far = 0;
    for (size_t i = 0; i < n; i++) {
        const double d = fabs(x[i] - y[i]) * inverse, q = fabs(x[i]) * inverse, code = fabs(y[i]) * inverse;
        uint64_t bits;
        double binade;
        /* The exponent alone is the binade's start; its steps are an eighth of it. */
        memcpy(&bits, &q, sizeof bits);
        bits &= 0x7FF0000000000000u;
        memcpy(&binade, &bits, sizeof binade);
        /* The start of x's binade is a code itself: nothing below it is nearer. */
        const int beyond = (d > binade * (0x1p-4 * 1.04)) | (code < binade * 0.99);
        far += beyond & (d > 0x1p-10 * 1.04) & !((q > 448) & (code > 447));
    }
    *found += far;
}

FOR_EVERY_ISA(find_misrounded, (const double *x, const double *y, size_t n, double inverse, int64_t *found),
              (x, y, n, inverse, found))

uint64_t tsr_reader_misrounded(const tsr_reader *r, uint64_t row, uint64_t col, size_t n, const double *x,
                               const double *y, size_t *first)
{
    int64_t found = 0;
    for (scale_run run = {0}; next_run(r, row, col, n, &run);) {
        const int64_t before = found;
        if (!(run.scale > 0) || isinf(run.scale))
            continue;
        find_misrounded_best(x + run.at, y + run.at, run.n, 1 / run.scale, &found);
        for (size_t i = run.at; before == 0 && found > 0; i++) {
            int64_t one = 0;
            find_misrounded_best(x + i, y + i, 1, 1 / run.scale, &one);
            *first = i;
            if (one > 0)
                break;
        }
    }
    return (uint64_t)found;
}

static bool same_scales(const tsr_reader *a, const tsr_reader *b)
{
    const tsr_weight *const x = &a->view->weight, *const y = &b->view->weight;
    if (x->scale == NULL || y->scale == NULL)
        return x->scale == y->scale;
    return x->block_rows == y->block_rows && x->block_cols == y->block_cols &&
           memcmp(a->scales, b->scales, a->scale_rows * a->scale_cols * sizeof *a->scales) == 0;
}

bool tsr_reader_same(const tsr_reader *a, const tsr_reader *b)
{
    return a->view->weight.data->dtype == b->view->weight.data->dtype && same_scales(a, b) &&
           memcmp(a->bytes, b->bytes, a->piece.rows * a->piece.cols * element_bytes(a->view)) == 0;
}

void tsr_reader_free(tsr_reader *reader)
{
    free(reader->bytes);
    free(reader->scales);
    free(reader->raw_scales);
    *reader = (tsr_reader){0};
}
