/* Source files as stretches of equal size, and what a window of a tensor has in each. */
#ifndef TSR_CONVERT_ENGINE_STRETCHES_H
#define TSR_CONVERT_ENGINE_STRETCHES_H

#include "convert/engine/plan.h"

#define TSR_STRETCH_BYTES ((uint64_t)2 << 20)

/* What a window has in one stretch: some of its rows, the first and last of which may be cut. */
typedef struct tsr_piece {
    size_t index;       /* of the stretch */
    uint64_t low, high; /* of the file, from the first byte to the end of the last */
} tsr_piece;

/* Of a single row it means nothing, and may be 0. */
static inline uint64_t tsr_window_pitch(const tsr_window *w)
{
    return w->rows == 1 ? w->row_bytes : w->pitch;
}

static inline uint64_t tsr_window_begin(const tsr_tensor *t, const tsr_window *w)
{
    return t->offset + w->offset;
}

static inline bool tsr_window_is_empty(const tsr_window *w)
{
    return w->rows == 0 || w->row_bytes == 0;
}

/* Where to begin with tsr_piece_next. */
tsr_piece tsr_piece_first(const tsr_tensor *t, const tsr_window *w);

/* The first piece at or behind stretch p->index; false: none is left. */
bool tsr_piece_next(const tsr_tensor *t, const tsr_window *w, tsr_piece *p);

#endif
