/* Decodes AWQ and GPTQ, TILE outputs at a time. In-order int4 is transposed while packed, then decoded like rows of any
 * packed int4. If columns have a group order, or codes have 8 bits, the values are transposed: BF16 of int4 in
 * registers, anything else in memory. */
#include "quantize/awq_gptq_decode.h"

#include "common/checked.h"
#include "common/float_bits.h"
#include "quantize/fp8_decode.h"
#include "quantize/integer_decode.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* Outputs of a tile, so that whole cache lines of AWQ's codes are used; inputs of a tile, for values and
 * (approximately) for in-order int4. */
enum { TILE = 128, CHUNK = 128, PACKED_CHUNK = 1024, PER_WORD = 8, LINE = 16 };

/* Distance of the groups of a tile's scales: an odd number of cache lines, because otherwise groups evict each other
 * from the cache. */
enum { GROUPS_APART = TILE + LINE };

/* Scratch: scales and zero points of a tile's outputs, [groups, GROUPS_APART] each; the same as [TILE, groups], or the
 * offsets that zero points add to sums, [groups, GROUPS_APART]; the group of each input; values of CHUNK inputs,
 * [CHUNK, TILE], and the same in 16 bits; partly transposed words of AWQ codes of CHUNK inputs; words of packed
 * rows. */
typedef struct room {
    float *scales, *zero_points, *row_scales, *row_zeros, *offsets, *columns;
    uint32_t *order;
    const uint32_t *group;
    uint16_t *narrowed;
    uint32_t *words, *turned;
} room;

/* Returns the inputs of a tile of in-order int4: whole groups and whole words. */
static uint64_t packed_chunk(const tsr_weight *w)
{
    const uint64_t group = w->block.cols;
    return group >= w->cols || group % PER_WORD != 0 ? w->cols : group * tsr_max_u64(1, PACKED_CHUNK / group);
}

/* Returns the distance of rows of such a tile's codes in words: an odd number of cache lines, because otherwise rows
 * evict each other from the cache. */
static uint64_t words_apart(const tsr_weight *w)
{
    return (tsr_ceil_div(packed_chunk(w), PER_WORD * LINE) | 1) * LINE;
}

static room divide(const tsr_weight *w, void *scratch)
{
    const uint64_t grid = w->grid_cols * GROUPS_APART;
    room r = {.scales = scratch};
    r.zero_points = r.scales + grid;
    r.row_scales = r.zero_points + grid;
    r.row_zeros = r.row_scales + grid;
    r.offsets = r.row_zeros;
    r.order = (uint32_t *)(r.row_zeros + grid);
    r.columns = (float *)(r.order + w->cols);
    r.narrowed = (uint16_t *)(r.columns + CHUNK * TILE);
    r.turned = (uint32_t *)(r.narrowed + CHUNK * TILE);
    r.words = r.turned + CHUNK * TILE / PER_WORD;
    return r;
}

size_t tsr_gptq_decode_scratch(const tsr_weight *w)
{
    return (CHUNK * TILE + 4 * w->grid_cols * GROUPS_APART) * sizeof(float) + CHUNK * TILE * sizeof(uint16_t) +
           (w->cols + CHUNK * TILE / PER_WORD + words_apart(w) * TILE) * sizeof(uint32_t);
}

uint64_t tsr_gptq_zero_words(const tsr_weight *w, uint64_t rows)
{
    return tsr_ceil_div(rows * w->bits, 32);
}

/* Shifts in AWQ's words for the code of output 8j + p. */
static const uint8_t kAwqShifts[PER_WORD] = {0, 16, 4, 20, 8, 24, 12, 28};

/* ---- prefetching codes ---- */

/* Codes to prefetch, in rows of `cols` words, and the number of rows to prefetch at a time. */
typedef struct wanted {
    const uint32_t *at;
    uint64_t rows, cols, ld, each;
} wanted;

/* Returns the ranges that take_rows reads for the same inputs and outputs, in `times` parts. */
static wanted want_rows(const tsr_gptq_span *span, uint64_t first, uint64_t rows, uint64_t col, uint64_t cols,
                        uint64_t times)
{
    const uint32_t *const codes = span->codes;
    wanted w;
    if (span->weight->coding == TSR_CODED_AWQ) {
        const uint64_t ld = span->rows / PER_WORD;
        w = (wanted){codes + col * ld + first / PER_WORD, cols, rows / PER_WORD, ld, 0};
    } else {
        w = (wanted){codes + col / PER_WORD * span->rows + first, cols / PER_WORD, rows, span->rows, 0};
    }
    w.each = tsr_ceil_div(w.rows, times);
    return w;
}

/* Prefetches one part: the rows are too far apart for the hardware prefetcher. */
static void ask_for_some(wanted *w)
{
    const uint64_t n = tsr_min_u64(w->each, w->rows);
    for (uint64_t r = 0; r < n; r++, w->at += w->ld) {
        for (uint64_t c = 0; c < w->cols; c += LINE)
            __builtin_prefetch(w->at + c, 0, 2);
    }
    w->rows -= n;
}

/* ---- scales and zero points of outputs [first, first + n) of the span ---- */

static tsr_status report_scale(const tsr_weight *w, uint64_t group, uint64_t row, float scale, tsr_err *err)
{
    const uint64_t at = (group * w->rows + row) * tsr_dtype_bytes((tsr_dtype)w->scale_dtype);
    return tsr_fail_tensor(
        err, TSR_ERROR_DAMAGED, TSR_E_VALUE, w->scale->name,
        "the scale at [%llu, %llu] is %g, file offset %llu: not a valid scale; the checkpoint is damaged", U64(group),
        U64(row), (double)scale, U64(w->scale->offset + at));
}

/* Reorders the nibbles of an AWQ word to the order of the outputs: interleaves its lower and upper halves. */
static uint32_t in_order_of_outputs(uint32_t word)
{
    const uint32_t bytes = (word ^ word >> 8) & 0x0000FF00;
    word ^= bytes ^ bytes << 8;
    const uint32_t nibbles = (word ^ word >> 4) & 0x00F000F0;
    return word ^ nibbles ^ nibbles << 4;
}

/* Widens the stored zero points of n outputs and adds `more`. */
static void take_zeros(const tsr_cpu_kernels *k, const tsr_weight *w, const uint32_t *words, uint64_t n, int more,
                       float *zeros)
{
    int8_t codes[TILE]; /* minus the middle of their range */
    uint32_t ordered[TILE / 4];
    const uint64_t some = tsr_gptq_zero_words(w, n);
    for (uint64_t i = 0; i < some; i++)
        ordered[i] = w->coding == TSR_CODED_AWQ ? in_order_of_outputs(words[i]) : words[i];
    (w->bits == 4 ? k->unpack_int4 : k->unpack_int8)((const uint8_t *)ordered, n, codes);
    k->decode_int_f32(codes, n, (float)(-(1 << (w->bits - 1)) - more), 1, zeros);
}

/* Reads scales and zero points of all groups. `more` is added to the stored zero points; `largest` receives the largest
 * magnitude of the scales. Prefetches the codes of the first inputs meanwhile. */
static tsr_status take_groups(const tsr_cpu_kernels *k, const tsr_gptq_span *span, uint64_t first, uint64_t n, int more,
                              const room *r, float *largest, tsr_err *err)
{
    const tsr_weight *const w = span->weight;
    wanted soon = want_rows(span, first, n, 0, tsr_min_u64(packed_chunk(w), w->cols), w->grid_cols);
    const uint64_t words = tsr_gptq_zero_words(w, span->rows);
    const size_t width = tsr_dtype_bytes((tsr_dtype)w->scale_dtype);
    const unsigned per_word = 32u / w->bits;
    uint32_t most = 0;
    for (uint64_t g = 0; g < w->grid_cols; g++) {
        const char *const from = (const char *)span->scales + (g * span->rows + first) * width;
        ask_for_some(&soon);
        const uint32_t *const zeros = (const uint32_t *)span->zero_points + g * words + first / per_word;
        float *const s = r->scales + g * GROUPS_APART, *const z = r->zero_points + g * GROUPS_APART;
        tsr_widen_to_f32(k, (tsr_dtype)w->scale_dtype, from, n, s);
        uint32_t amax;
        k->amax_f32(s, 1, n, n, n, &amax);
        for (uint64_t i = 0; amax >= TSR_FP32_INF_BITS; i++) {
            if (!(fabsf(s[i]) <= FLT_MAX))
                return report_scale(w, g, span->row + first + i, s[i], err);
        }
        most = amax > most ? amax : most;
        take_zeros(k, w, zeros, n, more, z);
    }
    memcpy(largest, &most, sizeof *largest);
    return TSR_OK;
}

/* ---- in-order int4 ---- */

/* Converts `cols` inputs from `col` on of rows [first, first + rows) to packed rows of int4 in r->words, [rows, cols /
 * 8], padded. */
static void take_rows(const tsr_cpu_kernels *k, const tsr_gptq_span *span, uint64_t first, uint64_t rows, uint64_t col,
                      uint64_t cols, const room *r)
{
    const tsr_weight *const w = span->weight;
    const uint32_t *const codes = span->codes;
    const uint64_t words = cols / PER_WORD, pitch = words_apart(w);
    if (w->coding == TSR_CODED_GPTQ) {
        k->transpose32(codes + col / PER_WORD * span->rows + first, words, rows, span->rows, r->words, pitch);
        return;
    }
    /* Nibble q of 8 inputs becomes a word of one output. Afterwards the words of outputs p of all groups of eight are
     * adjacent. */
    const uint64_t eights = rows / PER_WORD, ld = span->rows / PER_WORD;
    for (uint64_t c = 0; c < cols; c += CHUNK) {
        const uint64_t some = tsr_min_u64(CHUNK, cols - c);
        k->transpose_nibbles(codes + (col + c) * ld + first / PER_WORD, some, eights, ld, r->turned);
        for (unsigned p = 0; p < PER_WORD; p++)
            k->transpose32(r->turned + kAwqShifts[p] / 4 * eights, some / PER_WORD, eights, PER_WORD * eights,
                           r->words + p * pitch + c / PER_WORD, PER_WORD * pitch);
    }
}

/* The zero points were read with 8 subtracted, because packed rows have 8 added to their codes. */
static void decode_rows(const tsr_cpu_kernels *k, const tsr_gptq_span *span, uint64_t first, uint64_t rows,
                        tsr_dtype dtype, const room *r, char *out)
{
    const tsr_weight *const w = span->weight;
    const uint64_t groups = w->grid_cols, group = w->block.cols, chunk = packed_chunk(w);
    const uint64_t pitch = words_apart(w);
    k->transpose32((const uint32_t *)r->scales, groups, rows, GROUPS_APART, (uint32_t *)r->row_scales, groups);
    k->transpose32((const uint32_t *)r->zero_points, groups, rows, GROUPS_APART, (uint32_t *)r->row_zeros, groups);
    for (uint64_t col = 0; col < w->cols; col += chunk) {
        const uint64_t cols = tsr_min_u64(chunk, w->cols - col);
        const uint64_t next = col + cols, first_group = col / group;
        wanted soon = want_rows(span, first, rows, next, tsr_min_u64(chunk, w->cols - next), rows);
        take_rows(k, span, first, rows, col, cols, r);
        for (uint64_t i = 0; i < rows; i++) {
            const uint64_t grid = i * groups + first_group;
            ask_for_some(&soon);
            tsr_int4_values(k, (const uint8_t *)(r->words + i * pitch), cols, group, r->row_scales + grid,
                            r->row_zeros + grid, dtype, out + (i * w->cols + col) * tsr_dtype_bytes(dtype));
        }
    }
}

/* ---- GPTQ's int4 with a group order, to BF16 ---- */

/* Returns the group of each column: the stored array, or one computed in the room. */
static const uint32_t *take_order(const tsr_gptq_span *span, const room *r)
{
    const tsr_weight *const w = span->weight;
    const uint64_t *const wide = span->group_index;
    if (wide != NULL && w->group_index->dtype == TSR_I32)
        return span->group_index;
    for (uint64_t col = 0; col < w->cols; col++)
        r->order[col] = (uint32_t)(wide == NULL ? col / w->block.cols : wide[col]);
    return r->order;
}

/* Computes the offsets of a tile's zero points. Returns true if products with its scales are then exact. */
static bool fold_zeros(const tsr_cpu_kernels *k, const tsr_weight *w, uint64_t rows, const room *r)
{
    bool exact = w->scale_dtype != TSR_F32;
    for (uint64_t at = 0; exact && at < w->grid_cols * GROUPS_APART; at += GROUPS_APART)
        exact = k->fold_zeros(r->scales + at, r->zero_points + at, rows, r->offsets + at);
    return exact;
}

static void decode_in_any_order(const tsr_cpu_kernels *k, const tsr_gptq_span *span, uint64_t first, uint64_t rows,
                                const room *r, uint16_t *out)
{
    const tsr_weight *const w = span->weight;
    for (uint64_t col = 0; col < w->cols; col += PACKED_CHUNK) {
        const uint64_t cols = tsr_min_u64(PACKED_CHUNK, w->cols - col), next = col + cols;
        const wanted soon = want_rows(span, first, rows, next, tsr_min_u64(PACKED_CHUNK, w->cols - next), 1);
        tsr_words_ahead ahead = {.at = soon.at, .rows = soon.rows, .cols = soon.cols, .ld = soon.ld};
        for (uint64_t row = 0; row < rows; row += LINE) { /* the scales of all groups stay in the L1 cache */
            const tsr_int4_columns x = {.words =
                                            (const uint32_t *)span->codes + col / PER_WORD * span->rows + first + row,
                                        .rows = tsr_min_u64(LINE, rows - row),
                                        .cols = cols,
                                        .ld_words = span->rows,
                                        .group = r->group + col,
                                        .scale = r->scales + row,
                                        .offset = r->offsets + row,
                                        .ld_groups = GROUPS_APART,
                                        .ahead = &ahead};
            k->decode_int4_columns_bf16(&x, out + row * w->cols + col, w->cols);
        }
    }
}

/* ---- any codes in any order ---- */

/* Decodes one input for `rows` outputs from `first` on. */
static void decode_column(const tsr_cpu_kernels *k, const tsr_gptq_span *span, uint64_t first, uint64_t rows,
                          uint64_t col, const room *r, float *y)
{
    const tsr_weight *const w = span->weight;
    const uint64_t g = r->group[col];
    const float *const s = r->scales + g * GROUPS_APART, *const z = r->zero_points + g * GROUPS_APART;
    const unsigned per_word = 32u / w->bits, mask = (1u << w->bits) - 1;
    if (w->coding == TSR_CODED_GPTQ) {
        k->decode_column_f32((const uint32_t *)span->codes + col / per_word * span->rows + first, rows,
                             (unsigned)(col % per_word) * w->bits, mask, s, z, y);
        return;
    }
    const uint32_t *const words = (const uint32_t *)span->codes + col * (span->rows / PER_WORD) + first / PER_WORD;
    for (uint64_t i = 0; i < rows; i++)
        y[i] = ((float)(words[i / PER_WORD] >> kAwqShifts[i % PER_WORD] & mask) - z[i]) * s[i];
}

/* Reports the first value that exceeds the target's range. Rows and columns count from [row, col]. */
static tsr_status check_range(const tsr_gptq_span *span, uint64_t row, uint64_t rows, uint64_t col, uint64_t cols,
                              const float *columns, tsr_dtype dtype, float limit, tsr_err *err)
{
    for (uint64_t r = 0; r < rows; r++) {
        for (uint64_t c = 0; c < cols; c++) {
            if (fabsf(columns[c * TILE + r]) > limit)
                return tsr_fail_tensor(
                    err, TSR_ERROR_NONE, TSR_E_VALUE, span->weight->data->name,
                    "the value at [%llu, %llu] is beyond the range of %s: choose another --dtype, or "
                    "check its scale",
                    U64(span->row + row + r), U64(col + c), tsr_dtype_name(dtype));
        }
    }
    return TSR_OK;
}

/* Decodes inputs one by one. `limit` is the largest allowed value. */
static tsr_status decode_columns(const tsr_cpu_kernels *k, const tsr_gptq_span *span, uint64_t first, uint64_t rows,
                                 tsr_dtype dtype, float limit, const room *r, void *out, tsr_err *err)
{
    const tsr_weight *const w = span->weight;
    for (uint64_t col = 0; col < w->cols; col += CHUNK) {
        const uint64_t cols = tsr_min_u64(CHUNK, w->cols - col);
        for (uint64_t c = 0; c < cols; c++)
            decode_column(k, span, first, rows, col + c, r, r->columns + c * TILE);
        if (limit < INFINITY)
            TSR_TRY(check_range(span, first, rows, col, cols, r->columns, dtype, limit, err));
        if (dtype == TSR_F32) {
            k->transpose32((const uint32_t *)r->columns, cols, rows, TILE, (uint32_t *)out + col, w->cols);
            continue;
        }
        (dtype == TSR_BF16 ? k->narrow_bf16 : k->narrow_f16)(r->columns, cols * TILE, r->narrowed);
        k->transpose16(r->narrowed, cols, rows, TILE, (uint16_t *)out + col, w->cols);
    }
    return TSR_OK;
}

tsr_status tsr_gptq_decode(const tsr_cpu_kernels *kernels, const tsr_gptq_span *span, tsr_dtype dtype, void *out,
                           void *scratch, tsr_err *err)
{
    const tsr_weight *const w = span->weight;
    room r = divide(w, scratch);
    const float limit = dtype == TSR_F16 ? 65504 : dtype == TSR_BF16 ? 0x1.FEp127f : FLT_MAX;
    const bool in_order = w->bits == 4 && span->group_index == NULL && w->cols % PER_WORD == 0 &&
                          (w->block.cols % 2 == 0 || w->grid_cols == 1);
    const bool by_columns = w->bits == 4 && w->coding == TSR_CODED_GPTQ && dtype == TSR_BF16;
    for (uint64_t row = 0; row < span->rows; row += TILE) {
        const uint64_t rows = tsr_min_u64(TILE, span->rows - row);
        char *const y = (char *)out + row * w->cols * tsr_dtype_bytes(dtype);
        float largest;
        TSR_TRY(take_groups(kernels, span, row, rows, w->zeros_less_one - (in_order ? 8 : 0), &r, &largest, err));
        const bool safe = largest <= limit / 256; /* codes differ from their zero point by at most 256 */
        if (in_order && safe) {
            decode_rows(kernels, span, row, rows, dtype, &r, y);
            continue;
        }
        if (r.group == NULL)
            r.group = take_order(span, &r);
        if (in_order)
            TSR_TRY(take_groups(kernels, span, row, rows, w->zeros_less_one, &r, &largest, err));
        if (by_columns && safe && fold_zeros(kernels, w, rows, &r)) {
            decode_in_any_order(kernels, span, row, rows, &r, (uint16_t *)y);
            continue;
        }
        TSR_TRY(decode_columns(kernels, span, row, rows, dtype, safe ? INFINITY : limit, &r, y, err));
    }
    return TSR_OK;
}
