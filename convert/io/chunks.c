/* Reads windows of a source, and cuts them at the ends of chunks. */
#include "convert/io/chunks.h"

#include "common/checked.h"

static uint64_t window_end(const tsr_tensor *t, const tsr_window *w)
{
    return tsr_window_begin(t, w) + (w->rows - 1) * w->pitch + w->row_bytes;
}

/* Finds the part of [low, high) of the file that the window needs. Returns false if there is none. */
static bool cut(const tsr_tensor *t, const tsr_window *w, uint64_t low, uint64_t high, tsr_chunk_part *p)
{
    const uint64_t begin = tsr_window_begin(t, w);
    low = tsr_max_u64(low, begin);
    high = tsr_min_u64(high, window_end(t, w));
    if (low >= high)
        return false;
    /* A gap between rows at either end is not needed. */
    const uint64_t pitch = tsr_window_pitch(w), row = (low - begin) / pitch, last = (high - 1 - begin) / pitch;
    if (low - begin - row * pitch >= w->row_bytes)
        low = begin + (row + 1) * pitch;
    high = tsr_min_u64(high, begin + last * pitch + w->row_bytes);
    p->low = low;
    p->high = high;
    return low < high;
}

tsr_status tsr_read_window(const tsr_checkpoint *source, const tsr_tensor *t, const tsr_window *w, void *data,
                           tsr_err *err)
{
    if (tsr_window_is_gapless(w))
        return tsr_checkpoint_read(source, t, w->offset, data, tsr_window_bytes(w), err);
    char *at = data;
    for (uint64_t row = 0; row < w->rows; row++, at += w->row_bytes)
        TSR_TRY(tsr_checkpoint_read(source, t, w->offset + row * w->pitch, at, w->row_bytes, err));
    return TSR_OK;
}

tsr_chunk_part tsr_chunk_part_first(const tsr_tensor *t, const tsr_window *w)
{
    return (tsr_chunk_part){.index = (size_t)(tsr_window_begin(t, w) / TSR_CHUNK_BYTES)};
}

bool tsr_chunk_part_next(const tsr_tensor *t, const tsr_window *w, tsr_chunk_part *p)
{
    for (; p->index * TSR_CHUNK_BYTES < window_end(t, w); p->index++) {
        if (cut(t, w, p->index * TSR_CHUNK_BYTES, (p->index + 1) * TSR_CHUNK_BYTES, p))
            return true;
    }
    return false;
}
