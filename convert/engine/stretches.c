/* Windows cut at the ends of stretches. */
#include "convert/engine/stretches.h"

#include "common/checked.h"

static uint64_t window_end(const tsr_tensor *t, const tsr_window *w)
{
    return tsr_window_begin(t, w) + (w->rows - 1) * w->pitch + w->row_bytes;
}

/* The part of [low, high) of the file that the window needs; false: nothing. */
static bool cut(const tsr_tensor *t, const tsr_window *w, uint64_t low, uint64_t high, tsr_piece *p)
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

tsr_piece tsr_piece_first(const tsr_tensor *t, const tsr_window *w)
{
    return (tsr_piece){.index = (size_t)(tsr_window_begin(t, w) / TSR_STRETCH_BYTES)};
}

bool tsr_piece_next(const tsr_tensor *t, const tsr_window *w, tsr_piece *p)
{
    for (; p->index * TSR_STRETCH_BYTES < window_end(t, w); p->index++) {
        if (cut(t, w, p->index * TSR_STRETCH_BYTES, (p->index + 1) * TSR_STRETCH_BYTES, p))
            return true;
    }
    return false;
}
