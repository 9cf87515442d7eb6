/* Writes and parses records: little-endian members without gaps. */
#include "formats/blocks/block_record.h"

#include "common/checked.h"
#include "common/float_bits.h"

#include <math.h>
#include <string.h>

enum { FIXED_BYTES = 2 + 1 + 6 * 8 + 3 + 3 * 2 + 8 + 8 + 1, PEAK_BYTES = 16, LONGEST_COUNT = 10 };

unsigned tsr_code_bins_count(tsr_code_bins bins)
{
    return bins == TSR_BINS_E4M3 || bins == TSR_BINS_INT8 ? 256 : 16;
}

uint64_t tsr_block_record_bound(size_t name_size, uint64_t cells, tsr_code_bins bins)
{
    return FIXED_BYTES + name_size + TSR_BLOCK_PLANES * cells + LONGEST_COUNT * tsr_code_bins_count(bins) +
           TSR_BLOCK_PEAKS * PEAK_BYTES;
}

/* ---- writing ---- */

static void put(tsr_text *to, uint64_t value, unsigned bytes)
{
    uint8_t data[8];
    for (unsigned i = 0; i < bytes; i++)
        data[i] = (uint8_t)(value >> 8 * i);
    tsr_text_append(to, data, bytes);
}

/* Writes an integer with seven bits per byte, the lowest first. All bytes except the last have their top bit set. */
static void put_count(tsr_text *to, uint64_t value)
{
    for (; value >= 0x80; value >>= 7)
        put(to, (value & 0x7F) | 0x80, 1);
    put(to, value, 1);
}

static uint64_t bits_of(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

void tsr_block_record_write(tsr_text *to, const tsr_block_record *r)
{
    const uint64_t cells = tsr_block_map_cells(&r->map);
    put(to, r->name_size, 2);
    tsr_text_append(to, r->name, r->name_size);
    put(to, r->bins, 1);
    for (unsigned axis = 0; axis < TSR_BLOCK_AXES; axis++)
        put(to, r->map.shape[axis], 8);
    for (unsigned axis = 0; axis < TSR_BLOCK_AXES; axis++)
        put(to, r->map.block[axis], 8);
    for (unsigned axis = 0; axis < TSR_BLOCK_AXES; axis++)
        put(to, r->map.fold[axis], 1);
    put(to, bits_of(r->mean_rms), 8);
    for (unsigned p = 0; p < TSR_BLOCK_PLANES; p++)
        put(to, r->base[p], 2);
    for (unsigned p = 0; p < TSR_BLOCK_PLANES; p++)
        tsr_text_append(to, r->planes[p], cells);
    put(to, r->counted_rows, 8);
    for (unsigned i = 0; i < tsr_code_bins_count(r->bins); i++)
        put_count(to, r->counts[i]);
    put(to, r->n_peaks, 1);
    for (unsigned i = 0; i < r->n_peaks; i++) {
        put(to, r->peaks[i].at, 8);
        put(to, tsr_f32_bits(r->peaks[i].x), 4);
        put(to, tsr_f32_bits(r->peaks[i].y), 4);
    }
}

/* ---- reading ---- */

/* The unread rest of a record. `fault` describes what is wrong with the member before `at`; NULL: nothing. */
typedef struct reader {
    const uint8_t *data;
    size_t size, at;
    const char *fault;
} reader;

static const uint8_t *take(reader *r, uint64_t bytes)
{
    if (r->fault == NULL && bytes > r->size - r->at)
        r->fault = "the record is truncated";
    if (r->fault != NULL)
        return NULL;
    r->at += bytes;
    return r->data + r->at - bytes;
}

static uint64_t get(reader *r, unsigned bytes)
{
    const uint8_t *const data = take(r, bytes);
    uint64_t value = 0;
    for (unsigned i = 0; data != NULL && i < bytes; i++)
        value |= (uint64_t)data[i] << 8 * i;
    return value;
}

static uint64_t get_count(reader *r)
{
    uint64_t value = 0;
    for (unsigned shift = 0;; shift += 7) {
        const uint64_t byte = get(r, 1);
        value |= (byte & 0x7F) << shift;
        if (r->fault != NULL || byte < 0x80)
            return value;
        if (shift >= 63 - 7) {
            r->fault = "a count is beyond 63 bits";
            return 0;
        }
    }
}

static float get_f32(reader *r)
{
    return tsr_f32_from_bits((uint32_t)get(r, 4));
}

static double get_f64(reader *r)
{
    const uint64_t bits = get(r, 8);
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Records a fault of the member that was just read, unless there has been one before. */
static void expect(reader *r, bool holds, const char *fault)
{
    if (r->fault == NULL && !holds)
        r->fault = fault;
}

static void read_map(reader *r, tsr_block_record *to)
{
    for (unsigned axis = 0; axis < TSR_BLOCK_AXES; axis++)
        to->map.shape[axis] = get(r, 8);
    for (unsigned axis = 0; axis < TSR_BLOCK_AXES; axis++)
        to->map.block[axis] = get(r, 8);
    for (unsigned axis = 0; axis < TSR_BLOCK_AXES; axis++)
        to->map.fold[axis] = (uint8_t)get(r, 1);
    expect(r, tsr_block_map_check(&to->map), "the shape, block or fold is invalid");
    expect(r, r->fault != NULL || tsr_block_map_cells(&to->map) <= TSR_BLOCK_MOST_CELLS, "too many cells");
}

static void read_counts(reader *r, tsr_block_record *to)
{
    const uint64_t elements = to->map.shape[0] * to->map.shape[1] * to->map.shape[2];
    uint64_t all = 0;
    to->counted_rows = get(r, 8);
    expect(r, to->counted_rows > 0, "the row interval of the code counts is 0");
    for (unsigned i = 0; r->fault == NULL && i < tsr_code_bins_count(to->bins); i++) {
        to->counts[i] = get_count(r);
        expect(r, tsr_add_u64(all, to->counts[i], &all) && all <= elements,
               "the code counts exceed the number of elements");
    }
}

static void read_peaks(reader *r, tsr_block_record *to)
{
    const uint64_t elements = to->map.shape[0] * to->map.shape[1] * to->map.shape[2];
    to->n_peaks = (unsigned)get(r, 1);
    expect(r, to->n_peaks <= TSR_BLOCK_PEAKS, "too many peaks");
    for (unsigned i = 0; r->fault == NULL && i < to->n_peaks; i++) {
        tsr_block_peak *const peak = &to->peaks[i];
        peak->at = get(r, 8);
        peak->x = get_f32(r);
        peak->y = get_f32(r);
        expect(r, peak->at < elements && isfinite(peak->x) && isfinite(peak->y),
               "a peak has an invalid index or value");
    }
}

tsr_status tsr_block_record_read(const uint8_t *data, size_t size, tsr_block_record *to, tsr_err *err)
{
    reader r = {.data = data, .size = size};
    *to = (tsr_block_record){0};
    to->name_size = (size_t)get(&r, 2);
    to->name = (const char *)take(&r, to->name_size);
    expect(&r, to->name_size > 0, "the name is empty");
    to->bins = (tsr_code_bins)get(&r, 1);
    expect(&r, to->bins >= TSR_BINS_E4M3 && to->bins <= TSR_BINS_INT4, "the kind of code counts is unknown");
    read_map(&r, to);
    to->mean_rms = get_f64(&r);
    expect(&r, isfinite(to->mean_rms) && to->mean_rms >= 0, "the mean RMS is negative or not finite");
    for (unsigned p = 0; p < TSR_BLOCK_PLANES; p++) {
        to->base[p] = (uint16_t)get(&r, 2);
        expect(&r, to->base[p] <= TSR_BLOCK_LAST_STEP - TSR_BLOCK_TOP, "a base is beyond FP32");
    }
    for (unsigned p = 0; r.fault == NULL && p < TSR_BLOCK_PLANES; p++)
        to->planes[p] = take(&r, tsr_block_map_cells(&to->map));
    if (r.fault == NULL)
        read_counts(&r, to);
    if (r.fault == NULL)
        read_peaks(&r, to);
    expect(&r, r.at == size, "bytes follow the record");
    return r.fault == NULL
               ? TSR_OK
               : tsr_fail(err, TSR_E_FORMAT, "invalid record of a tensor, at its byte %zu: %s", r.at, r.fault);
}
