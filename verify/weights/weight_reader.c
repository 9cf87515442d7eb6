/* The pieces that values are read in, with the scales that belong to them. */
#include "verify/weights/weight_reader.h"

#include "common/checked.h"
#include "verify/weights/lanes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

tsr_weight tsr_plain_weight(const tsr_tensor *tensor)
{
    return (tsr_weight){.data = tensor, .values = tensor};
}

tsr_status tsr_view_init(tsr_view *view, const tsr_checkpoint *checkpoint, const tsr_weight *weight, tsr_err *err)
{
    const tsr_tensor *const t = weight->values;
    if (weight->coding == TSR_UNREAD)
        return tsr_fail(err, TSR_E_UNSUPPORTED,
                        "%s: '%s' is %s of a meaning that Tessera does not know ('tessera inspect' says more): it has "
                        "no values to look at",
                        checkpoint->files[t->file].path, t->name, tsr_dtype_name((tsr_dtype)t->dtype));
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

/* Bits of an element, and of the smallest unit that can be read. */
static uint64_t element_bits(const tsr_view *v)
{
    return v->weight.coding == TSR_CODED_PACKED ? v->weight.bits
                                                : 8 * tsr_dtype_bytes((tsr_dtype)v->weight.data->dtype);
}

static uint64_t unit_bits(const tsr_view *v)
{
    return 8 * tsr_dtype_bytes((tsr_dtype)v->weight.data->dtype);
}

uint64_t tsr_view_width(const tsr_view *view)
{
    if (view->derived != NULL)
        return sizeof(double);
    return tsr_ceil_div(element_bits(view), 8);
}

/* The bytes of a row that columns [col, col + cols) lie in: from *first, so many. */
static uint64_t row_bytes(const tsr_view *v, uint64_t col, uint64_t cols, uint64_t *first)
{
    const uint64_t bits = element_bits(v), unit = unit_bits(v), from = col * bits / unit;
    *first = from * unit / 8;
    return (tsr_ceil_div((col + cols) * bits, unit) - from) * unit / 8;
}

static uint64_t piece_row_bytes(const tsr_weight_reader *r)
{
    uint64_t first;
    return row_bytes(r->view, r->piece.col, r->piece.cols, &first);
}

/* The blocks that a piece touches. */
static void scale_window(const tsr_view *v, const tsr_piece *p, tsr_weight_reader *r)
{
    const tsr_weight *const w = &v->weight;
    r->first_row = p->row / w->block_rows;
    r->first_col = p->col / w->block_cols;
    r->scale_rows = (p->row + p->rows - 1) / w->block_rows - r->first_row + 1;
    r->scale_cols = (p->col + p->cols - 1) / w->block_cols - r->first_col + 1;
}

uint64_t tsr_weight_reader_memory(const tsr_view *view, const tsr_piece *piece)
{
    if (view->derived != NULL)
        return view->derived->memory(view, piece);
    const tsr_weight *const w = &view->weight;
    uint64_t scales = 0;
    if (w->scale != NULL) /* wherever the piece stands */
        scales = (piece->rows / w->block_rows + 2) * (piece->cols / w->block_cols + 2);
    return piece->rows * (piece->cols * tsr_view_width(view) + sizeof(uint64_t)) +
           scales * (2 * sizeof(double) + sizeof(float));
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

static tsr_status make_room(tsr_weight_reader *r, uint64_t n, tsr_err *err)
{
    if (n <= r->scales_capacity)
        return TSR_OK;
    free(r->scales);
    free(r->zero_points);
    free(r->raw_scales);
    r->scales = malloc(n * sizeof *r->scales);
    r->zero_points = calloc(n, sizeof *r->zero_points);
    r->raw_scales = malloc(n * sizeof(float));
    r->scales_capacity = r->scales != NULL && r->zero_points != NULL && r->raw_scales != NULL ? n : 0;
    return r->scales_capacity > 0
               ? TSR_OK
               : tsr_fail(err, TSR_E_NOMEM, "out of memory for the scales of '%s'", r->view->weight.data->name);
}

/* Zero points of packed codes are packed along the rows: a row of words has those of 32 / bits rows. */
static tsr_status load_zero_points(tsr_weight_reader *r, tsr_err *err)
{
    const tsr_weight *const w = &r->view->weight;
    const uint64_t n = r->scale_rows * r->scale_cols, per_word = w->coding == TSR_CODED_PACKED ? 32 / w->bits : 1;
    const size_t width = tsr_dtype_bytes((tsr_dtype)w->zero_point->dtype);
    if (w->coding != TSR_CODED_PACKED) {
        TSR_TRY(read_rows(r->view, w->zero_point, (r->first_row * w->grid_cols + r->first_col) * width, r->scale_rows,
                          r->scale_cols * width, w->grid_cols * width, r->raw_scales, err));
        tsr_decode(w->zero_point->dtype, r->raw_scales, n, r->zero_points);
        return TSR_OK;
    }
    for (uint64_t i = 0; i < r->scale_rows; i++) {
        const uint64_t row = r->first_row + i, shift = row % per_word * w->bits;
        if (i == 0 || row % per_word == 0)
            TSR_TRY(tsr_checkpoint_read(r->view->checkpoint, w->zero_point,
                                        (row / per_word * w->grid_cols + r->first_col) * width, r->raw_scales,
                                        r->scale_cols * width, err));
        for (uint64_t k = 0; k < r->scale_cols; k++) {
            uint32_t word;
            memcpy(&word, r->raw_scales + k * sizeof word, sizeof word);
            const uint32_t code = word >> shift & ((1u << w->bits) - 1);
            r->zero_points[i * r->scale_cols + k] = (double)code - (double)(1u << (w->bits - 1));
        }
    }
    return TSR_OK;
}

static tsr_status load_scales(tsr_weight_reader *r, tsr_err *err)
{
    const tsr_weight *const w = &r->view->weight;
    const size_t width = tsr_dtype_bytes((tsr_dtype)w->scale->dtype);
    scale_window(r->view, &r->piece, r);
    const uint64_t n = r->scale_rows * r->scale_cols;
    TSR_TRY(make_room(r, n, err));
    const uint64_t grid = w->one_scale ? 0 : r->piece.matrix;
    const uint64_t first = (grid * w->grid_rows + r->first_row) * w->grid_cols + r->first_col;
    TSR_TRY(read_rows(r->view, w->scale, first * width, r->scale_rows, r->scale_cols * width, w->grid_cols * width,
                      r->raw_scales, err));
    tsr_decode(w->scale->dtype, r->raw_scales, n, r->scales);
    if (w->zero_point != NULL)
        return load_zero_points(r, err);
    memset(r->zero_points, 0, n * sizeof *r->zero_points);
    return TSR_OK;
}

static tsr_status load_derived(tsr_weight_reader *r, const tsr_view *view, const tsr_piece *piece, tsr_err *err)
{
    const uint64_t n = piece->rows * piece->cols;
    r->view = view;
    r->piece = *piece;
    if (n > r->derived_capacity) {
        free(r->derived);
        r->derived = malloc(n * sizeof *r->derived);
        r->derived_capacity = r->derived == NULL ? 0 : n;
        if (r->derived == NULL)
            return tsr_fail(err, TSR_E_NOMEM, "out of memory for '%s'", view->weight.values->name);
    }
    return view->derived->values(view, piece, r->derived, err);
}

tsr_status tsr_weight_reader_load(tsr_weight_reader *reader, const tsr_view *view, const tsr_piece *piece, tsr_err *err)
{
    if (view->derived != NULL)
        return load_derived(reader, view, piece, err);
    uint64_t first, start;
    const uint64_t wide = row_bytes(view, piece->col, piece->cols, &first),
                   pitch = row_bytes(view, 0, view->cols, &start);
    const uint64_t bytes = piece->rows * wide;
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
    TSR_TRY(read_rows(view, view->weight.data, (piece->matrix * view->rows + piece->row) * pitch + first, piece->rows,
                      wide, pitch, reader->bytes, err));
    return view->weight.scale == NULL ? TSR_OK : load_scales(reader, err);
}

/* Part of a row that shares one scale: elements [at, at + n), counted from where the reading began. */
typedef struct scale_run {
    size_t at, n;
    double scale, zero_point;
} scale_run;

static bool next_run(const tsr_weight_reader *r, uint64_t row, uint64_t col, size_t n, scale_run *run)
{
    const tsr_weight *const w = &r->view->weight;
    run->at += run->n;
    if (run->at >= n)
        return false;
    const uint64_t at = r->piece.col + col + run->at, block = at / w->block_cols;
    const uint64_t scale_row = (r->piece.row + row) / w->block_rows - r->first_row;
    run->n = (size_t)tsr_min_u64((block + 1) * w->block_cols - at, n - run->at);
    run->scale = r->scales[scale_row * r->scale_cols + block - r->first_col];
    run->zero_point = r->zero_points[scale_row * r->scale_cols + block - r->first_col];
    return true;
}

void tsr_weight_reader_row(const tsr_weight_reader *r, uint64_t row, uint64_t col, size_t n, double *out)
{
    const tsr_weight *const w = &r->view->weight;
    if (r->view->derived != NULL) {
        memcpy(out, r->derived + row * r->piece.cols + col, n * sizeof *out);
        return;
    }
    const unsigned char *const line = r->bytes + row * piece_row_bytes(r);
    if (w->scale == NULL) {
        tsr_decode_scaled((tsr_dtype)w->data->dtype, line + col * tsr_view_width(r->view), n, 1, out);
        return;
    }
    /* Of packed codes the piece may begin within a word. */
    const uint64_t skipped = r->piece.col * element_bits(r->view) % unit_bits(r->view) / element_bits(r->view);
    for (scale_run run = {0}; next_run(r, row, col, n, &run);) {
        const uint64_t at = skipped + col + run.at;
        if (w->coding == TSR_CODED_E4M3)
            tsr_decode_scaled(TSR_F8_E4M3, line + at, run.n, run.scale, out + run.at);
        else if (w->bits == 4)
            tsr_decode_int4(line, at, run.n, run.zero_point, run.scale, out + run.at);
        else
            tsr_decode_int8(line + at, w->coding == TSR_CODED_PACKED ? 0x80 : 0, run.n, run.zero_point, run.scale,
                            out + run.at);
    }
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

/* The same of integers; `lowest` and `highest` are the values of the outermost codes. */
static ALWAYS_INLINE void find_misrounded_integers(const double *x, const double *y, size_t n, double lowest,
                                                   double highest, double inverse, int64_t *found)
{
    int64_t far = 0;
    for (size_t i = 0; i < n; i++) {
        const int beyond = fabs(x[i] - y[i]) * inverse > 0.5 + fabs(x[i]) * inverse * 0x1p-9;
        const int clipped = ((y[i] == lowest) & (x[i] < y[i])) | ((y[i] == highest) & (x[i] > y[i]));
        far += beyond & !clipped;
    }
    *found += far;
}

FOR_EVERY_ISA(find_misrounded_integers,
              (const double *x, const double *y, size_t n, double lowest, double highest, double inverse,
               int64_t *found),
              (x, y, n, lowest, highest, inverse, found))

static void count_misrounded(const tsr_weight *w, const scale_run *run, const double *x, const double *y, size_t n,
                             int64_t *found)
{
    if (w->coding == TSR_CODED_E4M3) {
        find_misrounded_best(x, y, n, 1 / run->scale, found);
    } else {
        const double top = (double)(1u << (w->bits - 1));
        find_misrounded_integers_best(x, y, n, (-top - run->zero_point) * run->scale,
                                      (top - 1 - run->zero_point) * run->scale, 1 / run->scale, found);
    }
}

uint64_t tsr_weight_reader_misrounded(const tsr_weight_reader *r, uint64_t row, uint64_t col, size_t n, const double *x,
                                      const double *y, size_t *first)
{
    int64_t found = 0;
    for (scale_run run = {0}; next_run(r, row, col, n, &run);) {
        const int64_t before = found;
        if (!(run.scale > 0) || isinf(run.scale))
            continue;
        count_misrounded(&r->view->weight, &run, x + run.at, y + run.at, run.n, &found);
        for (size_t i = run.at; before == 0 && found > 0; i++) {
            int64_t one = 0;
            count_misrounded(&r->view->weight, &run, x + i, y + i, 1, &one);
            *first = i;
            if (one > 0)
                break;
        }
    }
    return (uint64_t)found;
}

static bool same_scales(const tsr_weight_reader *a, const tsr_weight_reader *b)
{
    const tsr_weight *const x = &a->view->weight, *const y = &b->view->weight;
    if (x->scale == NULL || y->scale == NULL)
        return x->scale == y->scale;
    const size_t bytes = a->scale_rows * a->scale_cols * sizeof *a->scales;
    return x->coding == y->coding && x->block_rows == y->block_rows && x->block_cols == y->block_cols &&
           memcmp(a->scales, b->scales, bytes) == 0 && memcmp(a->zero_points, b->zero_points, bytes) == 0;
}

bool tsr_weight_reader_same(const tsr_weight_reader *a, const tsr_weight_reader *b)
{
    if (a->view->derived != NULL || b->view->derived != NULL)
        return false;
    return a->view->weight.data->dtype == b->view->weight.data->dtype && same_scales(a, b) &&
           memcmp(a->bytes, b->bytes, a->piece.rows * piece_row_bytes(a)) == 0;
}

void tsr_weight_reader_free(tsr_weight_reader *reader)
{
    free(reader->bytes);
    free(reader->derived);
    free(reader->scales);
    free(reader->zero_points);
    free(reader->raw_scales);
    *reader = (tsr_weight_reader){0};
}
