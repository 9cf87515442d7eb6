/* Computes maxima per cell and counts of codes. */
#include "quantize/block_cells.h"

#include "common/checked.h"
#include "common/float_bits.h"

#include <stdlib.h>

/* Counting all codes would take a quarter of the time of all other work on a weight. So in a large tensor only every
 * 32nd row is counted, half a million codes of a weight of usual size. */
enum { COUNTED_WHOLE = 1 << 18, COUNTED_ROWS = 32 /* a power of two */ };

/* ---- cells ---- */

uint64_t tsr_block_cells_bytes(const tsr_block_map *map)
{
    return tsr_block_map_cells(map) * TSR_BLOCK_PLANES * sizeof(uint32_t);
}

bool tsr_block_cells_begin(tsr_block_cells *cells, const tsr_block_map *map, tsr_code_bins bins)
{
    const uint64_t n = tsr_block_map_cells(map);
    const bool whole = map->shape[0] * map->shape[1] * map->shape[2] <= COUNTED_WHOLE;
    *cells = (tsr_block_cells){.map = *map, .bins = bins, .n = n, .counted_rows = whole ? 1 : COUNTED_ROWS};
    uint32_t *const memory = calloc(1, tsr_block_cells_bytes(map));
    pthread_mutex_init(&cells->lock, NULL);
    for (unsigned p = 0; memory != NULL && p < TSR_BLOCK_PLANES; p++)
        cells->planes[p] = memory + p * n;
    return memory != NULL;
}

void tsr_block_cells_free(tsr_block_cells *cells)
{
    free(cells->planes[0]);
    pthread_mutex_destroy(&cells->lock);
    *cells = (tsr_block_cells){0};
}

/* ---- peaks ---- */

static bool comes_before(const tsr_block_error_at *a, const tsr_block_error_at *b)
{
    return a->error != b->error ? a->error > b->error : a->peak.at < b->peak.at;
}

static void insert(tsr_block_peaks *peaks, const tsr_block_error_at *peak)
{
    unsigned at = peaks->n;
    while (at > 0 && comes_before(peak, &peaks->items[at - 1]))
        at--;
    if (at == TSR_BLOCK_PEAKS)
        return;
    peaks->n += peaks->n < TSR_BLOCK_PEAKS;
    for (unsigned i = peaks->n - 1; i > at; i--)
        peaks->items[i] = peaks->items[i - 1];
    peaks->items[at] = *peak;
}

void tsr_block_note_peak(tsr_block_notes *notes, double error, uint64_t at, float x, float y)
{
    insert(&notes->peaks, &(tsr_block_error_at){.error = error, .peak = {.at = at, .x = x, .y = y}});
}

void tsr_block_notes_begin(tsr_block_notes *notes, tsr_block_cells *cells)
{
    *notes = (tsr_block_notes){.cells = cells};
    pthread_mutex_lock(&cells->lock);
    if (cells->peaks.n == TSR_BLOCK_PEAKS)
        notes->least = cells->peaks.items[TSR_BLOCK_PEAKS - 1].error;
    pthread_mutex_unlock(&cells->lock);
}

void tsr_block_cells_add(tsr_block_cells *cells, const tsr_block_notes *notes)
{
    const unsigned mask = tsr_code_bins_count(cells->bins) - 1;
    pthread_mutex_lock(&cells->lock);
    for (unsigned byte = 0; byte < 256; byte++) {
        uint64_t found = 0;
        for (unsigned i = 0; i < TSR_BLOCK_TABLES; i++)
            found += notes->counts[i][byte];
        cells->counts[byte & mask] += found;
        cells->counts[byte >> 4] += notes->pairs ? found : 0;
    }
    for (unsigned i = 0; i < notes->peaks.n; i++)
        insert(&cells->peaks, &notes->peaks.items[i]);
    pthread_mutex_unlock(&cells->lock);
}

/* ---- noting ---- */

tsr_block_line tsr_block_line_of(const tsr_block_notes *notes, uint64_t row)
{
    if (notes == NULL)
        return (tsr_block_line){0};
    const tsr_block_map *const m = &notes->cells->map;
    const uint64_t matrix = row / m->shape[1], band = row % m->shape[1] / m->block[1];
    const uint64_t rows = tsr_block_map_extent(m, 1), cols = tsr_block_map_extent(m, 2);
    return (tsr_block_line){.first = ((matrix >> m->fold[0]) * rows + (band >> m->fold[1])) * cols, .fold = m->fold[2]};
}

static uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

static void raise(tsr_block_cells *cells, uint64_t cell, uint32_t error, uint32_t scale, uint32_t amax)
{
    uint32_t *const *const planes = cells->planes;
    planes[TSR_BLOCK_ERROR][cell] = larger(planes[TSR_BLOCK_ERROR][cell], error);
    planes[TSR_BLOCK_SCALE][cell] = larger(planes[TSR_BLOCK_SCALE][cell], scale);
    planes[TSR_BLOCK_AMAX][cell] = larger(planes[TSR_BLOCK_AMAX][cell], amax);
}

void tsr_block_note(tsr_block_notes *notes, tsr_block_line line, uint64_t block, double rms, float scale,
                    uint32_t amax_bits)
{
    tsr_block_cells *const cells = notes->cells;
    if (amax_bits == 0)
        return;
    pthread_mutex_lock(&cells->lock);
    raise(cells, line.first + (block >> line.fold), tsr_f32_bits((float)rms), tsr_f32_bits(scale), amax_bits);
    pthread_mutex_unlock(&cells->lock);
}

tsr_block_band tsr_block_band_of(void *memory, uint64_t n, float each)
{
    uint32_t *const tops = memory;
    return (tsr_block_band){.tops = {.error = tops, .scale = tops + n, .amax = tops + 2 * n}, .n = n, .each = each};
}

void tsr_block_band_end(tsr_block_notes *notes, tsr_block_band *band)
{
    const tsr_group_max *const tops = &band->tops;
    if (!band->begun)
        return;
    pthread_mutex_lock(&notes->cells->lock);
    for (uint64_t g = 0; g < band->n; g++) {
        const float rms = tsr_f32_from_bits(tops->error[g]) * band->each;
        raise(notes->cells, band->line.first + (g >> band->line.fold), tsr_f32_bits(rms), tops->scale[g],
              tops->amax[g]);
    }
    pthread_mutex_unlock(&notes->cells->lock);
    band->begun = false;
}

void tsr_block_band_add(tsr_block_notes *notes, tsr_block_band *band, const tsr_cpu_kernels *kernels, uint64_t row,
                        const float *e2, const float *t, const uint32_t *amax)
{
    const tsr_block_line line = tsr_block_line_of(notes, row);
    if (band->begun && line.first != band->line.first)
        tsr_block_band_end(notes, band);
    if (!band->begun)
        memset(band->tops.error, 0, TSR_BLOCK_BAND_BYTES(band->n));
    band->begun = true;
    band->line = line;
    kernels->raise_groups(e2, t, amax, band->n, &band->tops);
}

void tsr_block_count(tsr_block_notes *notes, uint64_t row, const void *codes, size_t n, bool pairs)
{
    const uint8_t *const from = codes;
    if ((row & (notes->cells->counted_rows - 1)) != 0)
        return;
    notes->pairs = pairs;
    uint32_t *const a = notes->counts[0], *const b = notes->counts[1], *const c = notes->counts[2];
    uint32_t *const d = notes->counts[3];
    size_t i = 0;
    for (uint32_t four; i + sizeof four <= n; i += sizeof four) {
        memcpy(&four, from + i, sizeof four);
        a[four & 0xFF]++;
        b[four >> 8 & 0xFF]++;
        c[four >> 16 & 0xFF]++;
        d[four >> 24]++;
    }
    for (; i < n; i++)
        a[from[i]]++;
}

/* ---- writing the record ---- */

/* Converts a plane to numbers in units of `unit`, which is positive if any of them is. Positive numbers stay
 * positive. */
static void values_of(const uint32_t *bits, uint64_t n, double unit, float *to)
{
    for (uint64_t i = 0; i < n; i++) {
        const float x = tsr_f32_from_bits(bits[i]);
        const float over = (float)((double)x / unit);
        to[i] = x > 0 && over < 0x1p-149f ? 0x1p-149f : over;
    }
}

tsr_status tsr_block_cells_write(const tsr_block_cells *cells, const char *name, const tsr_quant_stats *stats,
                                 tsr_text *to, tsr_err *err)
{
    const uint64_t kept = stats->blocks - stats->zero_blocks, n = cells->n;
    float *const values = malloc(n * (sizeof(float) + TSR_BLOCK_PLANES));
    if (values == NULL)
        return tsr_out_of_memory(err, "for the figures of blocks");
    uint8_t *const codes = (uint8_t *)(values + n);
    tsr_block_record r = {.name = name,
                          .name_size = tsr_min_u64(strlen(name), TSR_BLOCK_LONGEST_NAME),
                          .map = cells->map,
                          .bins = cells->bins,
                          .mean_rms = kept > 0 ? stats->sum_rms / (double)kept : 0,
                          .counted_rows = cells->counted_rows,
                          .n_peaks = cells->peaks.n};
    for (unsigned p = 0; p < TSR_BLOCK_PLANES; p++) {
        values_of(cells->planes[p], n, p == TSR_BLOCK_ERROR && r.mean_rms > 0 ? r.mean_rms : 1, values);
        r.planes[p] = codes + p * n;
        r.base[p] = tsr_block_encode(values, n, codes + p * n);
    }
    memcpy(r.counts, cells->counts, sizeof r.counts);
    for (unsigned i = 0; i < r.n_peaks; i++)
        r.peaks[i] = cells->peaks.items[i].peak;
    tsr_block_record_write(to, &r);
    free(values);
    return tsr_text_status(to, err);
}
