/* Reads values in pieces with their scales. */
#include "verify/values/weight_reader.h"

#include "common/checked.h"
#include "verify/values/reader_parts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WORD_BITS = 32, CHUNK = 256 };

tsr_weight tsr_plain_weight(const tsr_tensor *tensor)
{
    return (tsr_weight){.data = tensor, .values = tensor};
}

tsr_status tsr_view_init(tsr_view *view, const tsr_checkpoint *checkpoint, const tsr_weight *weight, tsr_err *err)
{
    const tsr_tensor *const t = weight->values;
    if (weight->coding == TSR_UNREAD)
        return tsr_fail(err, TSR_E_UNSUPPORTED,
                        "%s: '%s' is %s with an unknown meaning, so its values cannot be read (see 'tessera inspect')",
                        checkpoint->files[t->file].path, t->name, tsr_dtype_name((tsr_dtype)t->dtype));
    if (weight->scale == NULL && (t->dtype == TSR_C64 || tsr_dtype_bits((tsr_dtype)t->dtype) % 8 != 0))
        return tsr_fail(err, TSR_E_UNSUPPORTED, "%s: '%s' is %s; comparing its values is not supported",
                        checkpoint->files[t->file].path, t->name, tsr_dtype_name((tsr_dtype)t->dtype));
    *view = (tsr_view){.checkpoint = checkpoint, .weight = *weight, .matrices = 1, .rows = 1, .cols = 1};
    if (t->rank > 0)
        view->cols = t->shape[t->rank - 1];
    if (t->rank > 1)
        view->rows = t->shape[t->rank - 2];
    for (unsigned i = 0; i + 2 < t->rank; i++)
        view->matrices *= t->shape[i];
    view->block = weight->transposed ? tsr_block_transposed(weight->block) : weight->block;
    return TSR_OK;
}

tsr_status tsr_view_of_codes(tsr_view *view, const tsr_checkpoint *checkpoint, const tsr_weight *weight, tsr_err *err)
{
    TSR_TRY(tsr_view_init(view, checkpoint, weight, err));
    view->weight.transposed = false;
    view->matrices = weight->matrices;
    view->rows = weight->rows;
    view->cols = weight->cols;
    view->block = weight->block;
    return TSR_OK;
}

/* ---- positions of elements ---- */

/* Bits of an element. */
static uint64_t element_bits(const tsr_view *v)
{
    return v->weight.scale != NULL ? v->weight.bits : 8 * tsr_dtype_bytes((tsr_dtype)v->weight.data->dtype);
}

uint64_t tsr_view_width(const tsr_view *view)
{
    if (view->derived != NULL)
        return sizeof(double);
    return tsr_ceil_div(element_bits(view), 8);
}

/* Lines of the file: each is a row of the values or, in a transposed view, `per_line` columns of them. */
typedef struct layout {
    bool across;
    uint64_t bits, unit; /* bits of an element of a line, and of the smallest unit that can be read */
    uint64_t per_line;
} layout;

static layout layout_of(const tsr_view *v)
{
    const bool gptq = v->weight.coding == TSR_CODED_GPTQ;
    const bool words = gptq || v->weight.coding == TSR_CODED_AWQ || v->weight.coding == TSR_CODED_PACKED ||
                       v->weight.coding == TSR_CODED_NIBBLES;
    const bool six = v->weight.scale != NULL && v->weight.bits == 6; /* four codes fill three bytes */
    return (layout){.across = tsr_view_lies_across(v),
                    .bits = gptq ? WORD_BITS : element_bits(v),
                    .unit = words                 ? WORD_BITS
                            : six                 ? 24
                            : element_bits(v) < 8 ? 8
                                                  : element_bits(v),
                    .per_line = gptq ? WORD_BITS / v->weight.bits : 1};
}

/* A piece as it is stored in the file. */
typedef struct stored {
    uint64_t line, lines; /* index of the first line, counted through all matrices; number of lines */
    uint64_t pitch;       /* distance of lines in bytes */
    tsr_span span;        /* span of each line */
} stored;

static stored stored_of(const tsr_view *v, const tsr_piece *p)
{
    const layout l = layout_of(v);
    const uint64_t col = p->col / l.per_line;
    if (l.across)
        return (stored){.line = p->matrix * tsr_ceil_div(v->cols, l.per_line) + col,
                        .lines = (p->col + p->cols - 1) / l.per_line - col + 1,
                        .pitch = tsr_span_of(0, v->rows, l.bits, l.unit).bytes,
                        .span = tsr_span_of(p->row, p->rows, l.bits, l.unit)};
    return (stored){.line = p->matrix * v->rows + p->row,
                    .lines = p->rows,
                    .pitch = tsr_span_of(0, v->cols, l.bits, l.unit).bytes,
                    .span = tsr_span_of(p->col, p->cols, l.bits, l.unit)};
}

uint64_t tsr_weight_reader_memory(const tsr_view *view, const tsr_piece *piece)
{
    if (view->derived != NULL)
        return view->derived->memory(view, piece);
    const uint64_t values = piece->rows * piece->cols, scales = tsr_reader_scales_memory(view, piece);
    if (!tsr_view_lies_across(view))
        return values * tsr_view_width(view) + piece->rows * sizeof(uint64_t) + scales;
    /* The codes, and the lines: of GPTQ's first and last line possibly only one column is needed. */
    const uint64_t line = tsr_ceil_div(piece->rows * view->weight.bits, 8) + sizeof(uint64_t);
    return values + (piece->cols + 2 * WORD_BITS) * line + scales;
}

/* ---- loading ---- */

static tsr_status load_derived(tsr_weight_reader *r, tsr_err *err)
{
    const uint64_t n = r->piece.rows * r->piece.cols;
    TSR_TRY(tsr_reader_room((void **)&r->derived, &r->derived_capacity, n, sizeof *r->derived, r->view, err));
    return r->view->derived->values(r->view, &r->piece, r->derived, err);
}

/* Unpacks transposed codes, row by row. */
static tsr_status unpack(tsr_weight_reader *r, const stored *s, tsr_err *err)
{
    const tsr_view *const v = r->view;
    const layout l = layout_of(v);
    TSR_TRY(tsr_reader_room((void **)&r->codes, &r->codes_capacity, r->piece.rows * r->piece.cols, 1, v, err));
    const tsr_lines lines = {.order = tsr_view_code_order(v),
                             .bits = v->weight.bits,
                             .bytes = r->bytes,
                             .pitch = (size_t)s->span.bytes,
                             .row = (size_t)(r->piece.row % (l.unit / l.bits)),
                             .col = (size_t)(r->piece.col % l.per_line)};
    tsr_unpack(&lines, (size_t)r->piece.rows, (size_t)r->piece.cols, r->codes);
    return TSR_OK;
}

tsr_status tsr_weight_reader_load(tsr_weight_reader *r, const tsr_view *view, const tsr_piece *piece, tsr_err *err)
{
    r->view = view;
    r->piece = *piece;
    if (view->derived != NULL)
        return load_derived(r, err);
    const stored s = stored_of(view, piece);
    const uint64_t bytes = s.lines * s.span.bytes;
    TSR_TRY(tsr_reader_room((void **)&r->bytes, &r->bytes_capacity, bytes, 1, view, err));
    TSR_TRY(tsr_read_runs(view, view->weight.data, s.line * s.pitch + s.span.first, s.lines, s.span.bytes, s.pitch,
                          r->bytes, err));
    if (view->weight.scale == NULL)
        return TSR_OK;
    for (uint64_t i = 0; view->misreading == TSR_NIBBLES_SWAPPED && i < bytes; i++)
        r->bytes[i] = (unsigned char)(r->bytes[i] >> 4 | r->bytes[i] << 4);
    for (uint64_t i = 0; view->weight.coding == TSR_CODED_NIBBLES && i < bytes; i++)
        r->bytes[i] ^= 0x88; /* from two's complement to codes plus 8, in the order of packed words */
    if (tsr_view_lies_across(view))
        TSR_TRY(unpack(r, &s, err));
    return tsr_reader_load_scales(r, err);
}

/* ---- values ---- */

static bool is_reordered(const tsr_weight_reader *r)
{
    return r->view->weight.reordered && r->view->misreading != TSR_GROUPS_IN_ORDER;
}

/* Part of a row that shares one scale: elements [at, at + n), counted from the start of the read. */
typedef struct scale_run {
    size_t at, n;
    double scale, zero_point;
} scale_run;

static bool next_run(const tsr_weight_reader *r, uint64_t row, uint64_t col, size_t n, scale_run *run)
{
    const tsr_view *const v = r->view;
    run->at += run->n;
    if (run->at >= n)
        return false;
    const uint64_t here = col + run->at, at = r->piece.col + here, block = at / v->block.cols;
    const uint64_t line = ((r->piece.row + row) / v->block.rows - r->first_row) * r->scale_cols;
    uint64_t index = block - r->first_col;
    run->n = (size_t)tsr_min_u64((block + 1) * v->block.cols - at, n - run->at);
    if (is_reordered(r)) {
        index = r->groups[here];
        run->n = 1;
    }
    run->scale = r->scales[line + index];
    run->zero_point = r->zero_points[line + index];
    return true;
}

double tsr_weight_reader_scale(const tsr_weight_reader *r, uint64_t row, uint64_t col)
{
    scale_run run = {0};
    next_run(r, row, col, 1, &run);
    return run.scale;
}

/* Returns the bytes of a loaded row of the piece, for a view that is not transposed. */
static uint64_t row_bytes(const tsr_weight_reader *r)
{
    return stored_of(r->view, &r->piece).span.bytes;
}

/* Scales and zero points of a row in which each column has its own. */
typedef struct own_scales {
    const double *scales, *zero_points; /* by group */
    const uint32_t *groups;             /* by column */
    double middle;
} own_scales;

static own_scales own_scales_of(const tsr_weight_reader *r, uint64_t row, uint64_t col)
{
    const uint64_t line = ((r->piece.row + row) / r->view->block.rows - r->first_row) * r->scale_cols;
    return (own_scales){r->scales + line, r->zero_points + line, r->groups + col,
                        (double)(1u << (r->view->weight.bits - 1))};
}

static void decode_reordered(const tsr_weight_reader *r, uint64_t row, uint64_t col, size_t n, double *out)
{
    const own_scales own = own_scales_of(r, row, col);
    const unsigned char *const codes = r->codes + row * r->piece.cols + col;
    for (size_t i = 0; i < n; i++)
        out[i] = (codes[i] - (own.middle + own.zero_points[own.groups[i]])) * own.scales[own.groups[i]];
}

/* Decodes codes of one byte each, unsigned if they are integers. */
static void decode_unpacked(const tsr_weight *w, const unsigned char *codes, const scale_run *run, double *out)
{
    if (w->coding == TSR_CODED_E2M1)
        tsr_decode_e2m1_codes(codes, run->n, run->scale, out);
    else
        tsr_decode_int8(codes, 0x80, run->n, run->zero_point + (double)(1u << (w->bits - 1)) - 0x80, run->scale, out);
}

void tsr_weight_reader_row(const tsr_weight_reader *r, uint64_t row, uint64_t col, size_t n, double *out)
{
    const tsr_view *const v = r->view;
    const tsr_weight *const w = &v->weight;
    if (v->derived != NULL) {
        memcpy(out, r->derived + row * r->piece.cols + col, n * sizeof *out);
        return;
    }
    if (is_reordered(r) && tsr_view_lies_across(v)) {
        decode_reordered(r, row, col, n, out);
        return;
    }
    if (tsr_view_lies_across(v)) {
        for (scale_run run = {0}; next_run(r, row, col, n, &run);)
            decode_unpacked(w, r->codes + row * r->piece.cols + col + run.at, &run, out + run.at);
        return;
    }
    const unsigned char *const line = r->bytes + row * row_bytes(r);
    if (w->scale == NULL) {
        tsr_decode_scaled((tsr_dtype)w->data->dtype, line + col * tsr_view_width(v), n, 1, out);
        return;
    }
    /* A piece of packed codes may begin within a byte or a word. */
    const layout l = layout_of(v);
    const uint64_t skipped = r->piece.col % (l.unit / l.bits);
    for (scale_run run = {0}; next_run(r, row, col, n, &run);) {
        const uint64_t at = skipped + col + run.at;
        if (w->coding == TSR_CODED_E4M3)
            tsr_decode_scaled(TSR_F8_E4M3, line + at, run.n, run.scale, out + run.at);
        else if (w->coding == TSR_CODED_E2M3 || w->coding == TSR_CODED_E3M2)
            tsr_decode_six_bits(line, at, run.n, w->coding == TSR_CODED_E3M2, run.scale, out + run.at);
        else if (w->coding == TSR_CODED_E2M1)
            tsr_decode_e2m1(line, at, run.n, run.scale, out + run.at);
        else if (w->bits == 4)
            tsr_decode_int4(line, at, run.n, run.zero_point, run.scale, out + run.at);
        else
            tsr_decode_int8(line + at, w->coding == TSR_CODED_PACKED ? 0x80 : 0, run.n, run.zero_point, run.scale,
                            out + run.at);
    }
}

tsr_status tsr_read_values(const tsr_checkpoint *checkpoint, const tsr_weight *weight, const tsr_piece *piece,
                           double *out, tsr_err *err)
{
    tsr_weight_reader reader = {0};
    tsr_view view;
    tsr_status status = tsr_view_init(&view, checkpoint, weight, err);
    if (status == TSR_OK)
        status = tsr_weight_reader_load(&reader, &view, piece, err);
    for (uint64_t row = 0; status == TSR_OK && row < piece->rows; row++)
        tsr_weight_reader_row(&reader, row, 0, (size_t)piece->cols, out + row * piece->cols);
    tsr_weight_reader_free(&reader);
    return status;
}

/* ---- judging ---- */

tsr_codes tsr_codes_of(const tsr_weight *w)
{
    switch (w->coding) {
    case TSR_CODED_E4M3:
        return TSR_CODES_E4M3;
    case TSR_CODED_E2M3:
        return TSR_CODES_E2M3;
    case TSR_CODED_E3M2:
        return TSR_CODES_E3M2;
    case TSR_CODED_E2M1:
        return TSR_CODES_E2M1;
    default:
        return TSR_CODES_INTEGERS;
    }
}

static tsr_rounding rounding_of(const tsr_weight *w, const scale_run *run)
{
    const double top = (double)(1u << (w->bits - 1));
    return (tsr_rounding){.kind = tsr_codes_of(w),
                          .scale = run->scale,
                          .lowest = (-top - run->zero_point) * run->scale,
                          .highest = (top - 1 - run->zero_point) * run->scale};
}

/* Tests up to CHUNK columns, each under the scale of its own group. Scales that are not positive numbers are
 * skipped. */
static uint64_t misrounded_reordered(const tsr_weight_reader *r, uint64_t row, uint64_t col, size_t n, const double *x,
                                     const double *y)
{
    const own_scales own = own_scales_of(r, row, col);
    double scale[CHUNK], lowest[CHUNK], highest[CHUNK];
    for (size_t i = 0; i < n; i++) {
        const double s = own.scales[own.groups[i]], zero = own.zero_points[own.groups[i]];
        const bool fine = s > 0 && !isinf(s);
        scale[i] = fine ? s : INFINITY;
        lowest[i] = fine ? (-own.middle - zero) * s : y[i];
        highest[i] = fine ? (own.middle - 1 - zero) * s : y[i];
    }
    return tsr_count_misrounded_each(scale, lowest, highest, x, y, n);
}

/* Tests codes [at, at + n) of a row, which are the unit of one call. */
static uint64_t misrounded_run(const tsr_weight_reader *r, uint64_t row, uint64_t col, const scale_run *run, size_t at,
                               size_t n, const double *x, const double *y)
{
    if (is_reordered(r))
        return misrounded_reordered(r, row, col + at, n, x + at, y + at);
    if (!(run->scale > 0) || isinf(run->scale))
        return 0;
    const tsr_rounding rounding = rounding_of(&r->view->weight, run);
    return tsr_count_misrounded(&rounding, x + at, y + at, n);
}

uint64_t tsr_weight_reader_misrounded(const tsr_weight_reader *r, uint64_t row, uint64_t col, size_t n, const double *x,
                                      const double *y, size_t *first)
{
    uint64_t found = 0;
    for (scale_run run = {0}; next_run(r, row, col, n, &run);) {
        const uint64_t before = found;
        if (is_reordered(r))
            run.n = (size_t)tsr_min_u64(CHUNK, n - run.at);
        found += misrounded_run(r, row, col, &run, run.at, run.n, x, y);
        for (size_t i = run.at; before == 0 && found > 0; i++) {
            *first = i;
            if (misrounded_run(r, row, col, &run, i, 1, x, y) > 0)
                break;
        }
    }
    return found;
}

bool tsr_weight_reader_rule(const tsr_weight_reader *r, tsr_group_rule *rule)
{
    enum { MX_GROUP = 32 };
    const tsr_weight *const w = &r->view->weight;
    const bool powers = w->scale_dtype == TSR_F8_E8M0;
    if (r->view->derived != NULL || w->scale == NULL || w->block.rows != 1 || w->block.cols > MX_GROUP)
        return false;
    const tsr_codes kind = tsr_codes_of(w);
    if (kind == TSR_CODES_INTEGERS || (kind == TSR_CODES_E4M3 && !powers))
        return false;
    *rule = (tsr_group_rule){.kind = kind, .global = powers ? 0 : r->global};
    return powers || (r->global > 0 && isfinite(r->global));
}

static bool same_scales(const tsr_weight_reader *a, const tsr_weight_reader *b)
{
    const tsr_view *const x = a->view, *const y = b->view;
    if (x->weight.scale == NULL || y->weight.scale == NULL)
        return x->weight.scale == y->weight.scale;
    const size_t bytes = a->scale_rows * a->scale_cols * sizeof *a->scales;
    return x->block.rows == y->block.rows && x->block.cols == y->block.cols && a->scale_cols == b->scale_cols &&
           x->weight.reordered == y->weight.reordered && memcmp(a->scales, b->scales, bytes) == 0 &&
           memcmp(a->zero_points, b->zero_points, bytes) == 0 &&
           (!x->weight.reordered || memcmp(a->groups, b->groups, a->piece.cols * sizeof *a->groups) == 0);
}

bool tsr_weight_reader_same(const tsr_weight_reader *a, const tsr_weight_reader *b)
{
    const tsr_view *const x = a->view, *const y = b->view;
    if (x->derived != NULL || y->derived != NULL)
        return false;
    const stored s = stored_of(x, &a->piece);
    return x->weight.data->dtype == y->weight.data->dtype && x->weight.coding == y->weight.coding &&
           x->weight.bits == y->weight.bits && x->weight.transposed == y->weight.transposed && same_scales(a, b) &&
           memcmp(a->bytes, b->bytes, s.lines * s.span.bytes) == 0;
}

void tsr_weight_reader_free(tsr_weight_reader *reader)
{
    void *const buffers[] = {reader->bytes,  reader->codes,       reader->groups,    reader->derived,
                             reader->scales, reader->zero_points, reader->raw_scales};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        free(buffers[i]);
    *reader = (tsr_weight_reader){0};
}
