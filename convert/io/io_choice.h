/* Chooses the files of a run that are read and written directly, bypassing the page cache. */
#ifndef TSR_CONVERT_IO_IO_CHOICE_H
#define TSR_CONVERT_IO_IO_CHOICE_H

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
    bool reads, writes; /* most of the source, all large files of the output: direct */
    bool ring;          /* by io_uring */
    char why[192];
} tsr_io_summary;

/* All zeroes: nothing is chosen yet. */
typedef struct tsr_io_choice {
    tsr_io_mode mode; /* as the user asks */
    tsr_io_summary summary;
    size_t *first; /* [plan->n_sources]: the number of each source's first file, over all sources */
    int *sources;  /* of each file, opened with O_DIRECT; -1: none */
    size_t n;      /* of them */
} tsr_io_choice;

/* Opens the source files that are read directly, and tests whether the directory `dst` accepts direct writes. Never
 * fails: what does not work goes through the page cache. */
void tsr_io_choose(tsr_io_choice *choice, const tsr_plan *plan, const char *dst);

/* Choose for reads or for writes only. `why`: the reason against direct I/O. */
void tsr_io_choose_reads(tsr_io_choice *choice, const tsr_plan *plan, char *why, size_t size);
void tsr_io_choose_writes(tsr_io_choice *choice, const tsr_plan *plan, const char *dst, char *why, size_t size);

/* Returns the O_DIRECT descriptor of the file of a source tensor; -1: none. */
int tsr_io_source(const tsr_io_choice *choice, const tsr_tensor *t);

/* Opens the file at `path`, which is open as `fd`, for direct reads. Returns -1 if the mode or the file is against
 * it; `why` has the reason. */
int tsr_io_open_read(tsr_io_mode mode, const char *path, int fd, char *why, size_t size);

/* Opens the file at `path`, which is open as `fd`, for direct writes, and allocates `bytes`. *direct is -1 if it is
 * written through the page cache. TSR_E_NOSPACE: there is no room. */
tsr_status tsr_io_open_write(const tsr_io_choice *choice, const char *path, int fd, uint64_t bytes, int *direct,
                             tsr_err *err) TSR_WARN_UNUSED;

/* Closes the descriptors. */
void tsr_io_choice_end(tsr_io_choice *choice);

#endif
