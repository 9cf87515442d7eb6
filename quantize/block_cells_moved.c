/* Figures of blocks that a unit found in another process. */
#include "quantize/block_cells.h"

#include <string.h>

/* What stands before the planes of the cells [first, first + n). */
typedef struct moved {
    uint64_t first, n;
    uint64_t pairs;
    tsr_block_peaks peaks;
    uint32_t counts[256];
} moved;

static bool is_empty(const tsr_block_cells *cells, uint64_t cell)
{
    uint32_t any = 0;
    for (unsigned p = 0; p < TSR_BLOCK_PLANES; p++)
        any |= cells->planes[p][cell];
    return any == 0;
}

void tsr_block_cells_pack(tsr_block_cells *cells, const tsr_block_notes *notes, tsr_text *to)
{
    uint64_t first = 0, end = cells->n;
    while (first < end && is_empty(cells, first))
        first++;
    while (end > first && is_empty(cells, end - 1))
        end--;
    moved m;
    memset(&m, 0, sizeof m);
    m.first = first;
    m.n = end - first;
    m.pairs = notes->pairs;
    m.peaks = notes->peaks;
    for (unsigned byte = 0; byte < 256; byte++) {
        for (unsigned i = 0; i < TSR_BLOCK_TABLES; i++)
            m.counts[byte] += notes->counts[i][byte];
    }
    tsr_text_append(to, &m, sizeof m);
    for (unsigned p = 0; p < TSR_BLOCK_PLANES; p++) {
        tsr_text_append(to, cells->planes[p] + first, m.n * sizeof **cells->planes);
        memset(cells->planes[p] + first, 0, m.n * sizeof **cells->planes);
    }
}

bool tsr_block_cells_take(tsr_block_cells *cells, const char *data, size_t size)
{
    moved m;
    if (size < sizeof m)
        return false;
    memcpy(&m, data, sizeof m);
    if (m.first > cells->n || m.n > cells->n - m.first || m.peaks.n > TSR_BLOCK_PEAKS ||
        size - sizeof m != m.n * TSR_BLOCK_PLANES * sizeof **cells->planes)
        return false;
    pthread_mutex_lock(&cells->lock);
    for (unsigned p = 0; p < TSR_BLOCK_PLANES; p++) {
        for (uint64_t i = 0; i < m.n; i++) {
            uint32_t bits, *const cell = &cells->planes[p][m.first + i];
            memcpy(&bits, data + sizeof m + (p * m.n + i) * sizeof bits, sizeof bits);
            *cell = bits > *cell ? bits : *cell;
        }
    }
    pthread_mutex_unlock(&cells->lock);
    tsr_block_notes notes = {.cells = cells, .peaks = m.peaks, .pairs = m.pairs != 0};
    memcpy(notes.counts[0], m.counts, sizeof m.counts);
    tsr_block_cells_add(cells, &notes);
    return true;
}
