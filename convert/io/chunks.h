/* Declares chunks, the pieces of equal size of source files, and the parts of windows in them. */
#pragma once

#include "convert/plan/plan.h"

#define TSR_CHUNK_BYTES ((uint64_t)2 << 20)

/* The part of a window in one chunk: some of its rows, the first and last of which may be cut. */
typedef struct tsr_chunk_part {
    size_t index;       /* index of the chunk */
    uint64_t low, high; /* bytes of the file: the first, and the end of the last */
} tsr_chunk_part;

/* Returns the pitch of a window. That of a single row means nothing and may be 0. */
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

/* Reads a window of a source, rows without gaps, into `data`. */
tsr_status tsr_read_window(const tsr_checkpoint *source, const tsr_tensor *t, const tsr_window *w, void *data,
                           tsr_err *err);

/* Returns where tsr_chunk_part_next begins. */
tsr_chunk_part tsr_chunk_part_first(const tsr_tensor *t, const tsr_window *w);

/* Finds the first part in chunk p->index or a later one. Returns false if none is left. */
bool tsr_chunk_part_next(const tsr_tensor *t, const tsr_window *w, tsr_chunk_part *p);
