/* Chooses the files of a run that are read and written directly, bypassing the page cache. */
#pragma once

#include "convert/io/io.h"
#include "convert/plan/plan.h"

/* With TSR_IO_AUTO, smaller files go through the page cache: they may fit there and be used again. */
#define TSR_IO_WORTH ((uint64_t)16 << 20)

/* Returns the size from which on a file may bypass the page cache. */
static inline uint64_t tsr_io_large(tsr_io_mode mode)
{
    return mode == TSR_IO_DIRECT ? TSR_IO_LEAST : TSR_IO_WORTH;
}

/* The choice, for the result. */
typedef struct tsr_io_summary {
    bool reads, writes; /* true if most source bytes, or all large output files, are direct */
    bool ring;          /* by io_uring */
    char why[192];
} tsr_io_summary;

/* Zero-initialized: nothing is chosen yet. */
typedef struct tsr_io_choice {
    tsr_io_mode mode; /* as requested by --io */
    tsr_io_summary summary;
    size_t *first; /* [plan->n_sources]: global index of each source's first file */
    int *sources;  /* an O_DIRECT descriptor per file; -1: none */
    size_t n;      /* number of files */
} tsr_io_choice;

/* Opens the source files that are read directly, and tests whether the directory `dst` accepts direct writes. Never
 * fails: if direct I/O is not possible, the page cache is used. */
void tsr_io_choose(tsr_io_choice *choice, const tsr_plan *plan, const char *dst);

/* Returns the O_DIRECT descriptor of the file of a source tensor; -1: none. */
int tsr_io_source(const tsr_io_choice *choice, const tsr_tensor *t);

/* Opens the file at `path`, which is also open as `fd`, for direct reads. Returns -1 if the mode or the file does not
 * allow it; `why` has the reason. */
int tsr_io_open_read(tsr_io_mode mode, const char *path, int fd, char *why, size_t size);

/* Opens the file at `path`, which is also open as `fd`, for direct writes, and allocates `bytes`. *direct is -1 if the
 * file is written through the page cache. TSR_E_NOSPACE: the disk is full. */
tsr_status tsr_io_open_write(const tsr_io_choice *choice, const char *path, int fd, uint64_t bytes, int *direct,
                             tsr_err *err);

/* Closes the descriptors. */
void tsr_io_choice_end(tsr_io_choice *choice);
