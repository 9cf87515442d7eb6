/* Reads weights as numbers: widens plain tensors, and decodes codes with the row decoders of convert/ops. */
#include "lib/api.h"

#include "common/checked.h"
#include "convert/io/chunks.h"
#include "convert/ops/rows/row_decoder.h"
#include "quantize/fp8_decode.h"

#include <stdlib.h>
#include <string.h>

enum {
    CHUNK_BYTES = 1 << 20,
    TILE = 64
}; /* bytes of values per chunk; rows per tile, at whose multiples every decoder can begin and end */

/* A request: rows [first, end) of the values, into `out`. */
typedef struct asked {
    const tsr_checkpoint *c;
    const tsr_weight *w;
    tsr_dtype dtype;
    uint64_t first, end;
    size_t row_bytes; /* bytes per row of values */
    char *out;
    tsr_cpu_kernels kernels;
} asked;

static uint64_t row_length(const tsr_tensor *t)
{
    return t->rank == 0 ? 1 : t->shape[t->rank - 1];
}

/* ---- plain ---- */

static tsr_status read_plain(const asked *a, tsr_err *err)
{
    const tsr_tensor *const t = a->w->data;
    const tsr_dtype stored = (tsr_dtype)t->dtype;
    const uint64_t cols = row_length(t), n = (a->end - a->first) * cols, value = tsr_dtype_bits(stored) / 8;
    if (stored == a->dtype)
        return tsr_checkpoint_read(a->c, t, a->first * cols * value, a->out, n * value, err);
    /* Narrow values are read into the end of `out`, then widened in place from the front. */
    char *const end = a->out + n * (sizeof(float) - value);
    TSR_TRY(tsr_checkpoint_read(a->c, t, a->first * cols * value, end, n * value, err));
    enum { PIECE = 4096 };
    uint16_t piece[PIECE];
    float wide[PIECE];
    for (uint64_t i = 0; i < n; i += PIECE) {
        const size_t k = tsr_min_u64(PIECE, n - i);
        memcpy(piece, end + i * value, k * value);
        tsr_widen_to_f32(&a->kernels, stored, piece, k, wide);
        memcpy(a->out + i * sizeof *wide, wide, k * sizeof *wide);
    }
    return TSR_OK;
}

/* ---- codes ---- */

/* Decodes rows [row, row + rows) of the codes, counted over all matrices, into `out`. */
static tsr_status decode(const asked *a, uint64_t row, uint64_t rows, void *out, tsr_err *err)
{
    const tsr_row_view view = tsr_view_whole(a->w);
    const tsr_row_decoder *const decoder = tsr_row_decoder_of(a->w);
    const tsr_tensor *tensor[TSR_DECODED_INPUTS];
    tsr_window window[TSR_DECODED_INPUTS] = {{0}};
    void *in[TSR_DECODED_INPUTS] = {NULL};
    const uint32_t n = tsr_row_decoder_inputs(a->w, tensor);
    uint64_t bytes = tsr_round_up(decoder->scratch(a->w), 64);
    const uint64_t scratch = bytes;
    decoder->windows(&view, row, rows, window);
    for (uint32_t i = 0; i < n; i++)
        bytes += tsr_round_up(tsr_window_bytes(&window[i]), 64);
    char *const memory = aligned_alloc(64, bytes + 64);
    if (memory == NULL)
        return tsr_out_of_memory(err, a->w->values->name);
    char *at = memory + scratch;
    tsr_status status = TSR_OK;
    for (uint32_t i = 0; i < n && status == TSR_OK; i++) {
        in[i] = at;
        at += tsr_round_up(tsr_window_bytes(&window[i]), 64);
        if (window[i].rows > 0)
            status = tsr_read_window(a->c, tensor[i], &window[i], in[i], err);
    }
    const tsr_coded_rows coded = {.view = &view, .row = row, .rows = rows, .in = in};
    if (status == TSR_OK)
        status = decoder->decode(&coded, &a->kernels, a->dtype, out, memory, err);
    free(memory);
    return status == TSR_OK ? status
                            : tsr_prepend(err, status, "%s",
                                          a->c->files[tsr_tensor_of_error(err, tensor, n, a->w->data)->file].path);
}

/* Copies the requested part of decoded rows [row, row + rows) to the output. */
static void place(const asked *a, uint64_t row, uint64_t rows, const char *values)
{
    const uint64_t from = tsr_max_u64(row, a->first), to = tsr_min_u64(row + rows, a->end);
    memcpy(a->out + (from - a->first) * a->row_bytes, values + (from - row) * a->row_bytes, (to - from) * a->row_bytes);
}

/* Like place(), for values that are the transpose of the codes: rows of codes are columns of values. */
static void place_turned(const asked *a, uint64_t row, uint64_t rows, const char *values)
{
    const tsr_weight *const w = a->w;
    const size_t value = tsr_dtype_bytes(a->dtype);
    const uint64_t matrix = row / w->rows;
    for (uint64_t c = 0; c < w->cols; c++) {
        const uint64_t line = matrix * w->cols + c;
        if (line < a->first || line >= a->end)
            continue;
        char *const to = a->out + (line - a->first) * a->row_bytes + row % w->rows * value;
        for (uint64_t r = 0; r < rows; r++)
            memcpy(to + r * value, values + (r * w->cols + c) * value, value);
    }
}

static tsr_status read_codes(const asked *a, tsr_err *err)
{
    const tsr_weight *const w = a->w;
    const size_t coded_row = w->cols * tsr_dtype_bytes(a->dtype);
    const uint64_t step = tsr_max_u64(1, CHUNK_BYTES / tsr_max_u64(1, TILE * coded_row)) * TILE;
    char *const memory = malloc(tsr_min_u64(step, w->rows) * coded_row + 1);
    tsr_status status = memory == NULL ? tsr_out_of_memory(err, w->values->name) : TSR_OK;
    for (uint64_t i = 0; i < w->matrices && status == TSR_OK; i++) {
        const uint64_t lines = w->transposed ? w->cols : w->rows; /* rows of values per matrix */
        if ((i + 1) * lines <= a->first || i * lines >= a->end)
            continue;
        for (uint64_t r = 0; r < w->rows && status == TSR_OK; r += step) {
            const uint64_t row = i * w->rows + r, rows = tsr_min_u64(step, w->rows - r);
            if (!w->transposed && (row + rows <= a->first || row >= a->end))
                continue;
            status = decode(a, row, rows, memory, err);
            if (status == TSR_OK)
                (w->transposed ? place_turned : place)(a, row, rows, memory);
        }
    }
    free(memory);
    return status;
}

/* ---- the call ---- */

static tsr_status check_dtype(const asked *a, const char *dtype, tsr_err *err)
{
    const tsr_dtype stored = (tsr_dtype)a->w->data->dtype;
    const bool fits = a->w->kind != NULL
                          ? tsr_dtype_is_weight_float(a->dtype)
                          : a->dtype == stored || (a->dtype == TSR_F32 && tsr_dtype_is_weight_float(stored));
    if (!fits)
        return tsr_fail(err, TSR_E_UNSUPPORTED, "'%s' is %s and cannot be read as %s, only as %s", a->w->values->name,
                        a->w->kind != NULL ? a->w->kind->title : tsr_dtype_name(stored), dtype,
                        a->w->kind != NULL                  ? "F32, BF16 or F16"
                        : tsr_dtype_is_weight_float(stored) ? "it is stored, or F32"
                                                            : "it is stored");
    if (tsr_dtype_bits(a->dtype) % 8 != 0)
        return tsr_fail(err, TSR_E_UNSUPPORTED, "'%s' is %s, whose elements share bytes; read it as stored",
                        a->w->values->name, dtype);
    return TSR_OK;
}

static tsr_status read_values(const tessera_checkpoint *c, size_t index, const char *dtype, uint64_t first,
                              uint64_t rows, void *out, size_t size, tsr_err *err)
{
    asked a = {.c = c->of, .first = first, .end = first + rows, .out = out};
    if (index >= c->weights.count)
        return tsr_fail(err, TSR_E_USAGE, "%s: no weight %zu: it has %zu", c->of->path, index, c->weights.count);
    a.w = &c->weights.items[index];
    if (!tsr_dtype_from_name(dtype, strlen(dtype), &a.dtype))
        return tsr_fail(err, TSR_E_USAGE, "'%s' is not one of F32, BF16 and F16", dtype);
    TSR_TRY(check_dtype(&a, dtype, err));
    const tsr_tensor *const values = a.w->values;
    const uint64_t cols = row_length(values), all = cols == 0 ? 0 : tsr_tensor_elements(values) / cols;
    a.row_bytes = cols * tsr_dtype_bytes(a.dtype);
    if (first > all || rows > all - first)
        return tsr_fail(err, TSR_E_USAGE, "'%s' has %llu rows, so %llu rows from row %llu are outside it", values->name,
                        U64(all), U64(rows), U64(first));
    if (size != rows * a.row_bytes)
        return tsr_fail(err, TSR_E_USAGE, "'%s': %llu rows as %s need %llu bytes, but the buffer has %zu", values->name,
                        U64(rows), dtype, U64(rows * a.row_bytes), size);
    tsr_cpu_kernels_init(&a.kernels, tsr_cpu_flags());
    if (size == 0)
        return TSR_OK;
    if (a.w->part != NULL)
        return tsr_fail(err, TSR_E_UNSUPPORTED, "'%s' is part of an absorbed kv_b_proj; read it as stored",
                        values->name);
    return a.w->kind == NULL ? read_plain(&a, err) : read_codes(&a, err);
}

tessera_status tessera_read(const tessera_checkpoint *c, size_t index, const char *dtype, uint64_t first, uint64_t rows,
                            void *out, size_t size, tessera_error *error)
{
    tsr_call call;
    tsr_call_begin(&call);
    return tsr_call_end(&call, read_values(c, index, dtype, first, rows, out, size, &call.err), error);
}
