/* Which files of a run are read and written past the page cache, and why. */
#ifndef TSR_CONVERT_ENGINE_IO_CHOICE_H
#define TSR_CONVERT_ENGINE_IO_CHOICE_H

#include "convert/engine/io.h"
#include "convert/engine/plan.h"

/* With TSR_IO_AUTO, smaller files go through the page cache: they may fit there and be wanted again. */
#define TSR_IO_WORTH ((uint64_t)16 << 20)

/* The size from which on a file may go past the page cache. */
static inline uint64_t tsr_io_large(tsr_io_mode mode)
{
    return mode == TSR_IO_DIRECT ? TSR_IO_LEAST : TSR_IO_WORTH;
}

/* What came of it, for the result. */
typedef struct tsr_io_told {
    bool reads, writes; /* most of the source, all large files of the output: past the page cache */
    bool ring;          /* by io_uring */
    char why[192];
} tsr_io_told;

/* All zeroes: nothing is chosen yet. */
typedef struct tsr_io_choice {
    tsr_io_mode mode; /* as the user asks */
    tsr_io_told told;
    size_t *first; /* [plan->n_sources]: the number of each source's first file, over all sources */
    int *sources;  /* of each file, opened with O_DIRECT; -1: none */
    size_t n;      /* of them */
} tsr_io_choice;

/* Opens those source files that are to be read directly, and finds out whether `dst`, a directory, takes direct writes. What
 * cannot be done is not done: it never fails. */
void tsr_io_choose(tsr_io_choice *choice, const tsr_plan *plan, const char *dst);

/* Each half of it, with its reason where it was chosen against. The second one may be left out, or follow later. */
void tsr_io_choose_reads(tsr_io_choice *choice, const tsr_plan *plan, char *why, size_t size);
void tsr_io_choose_writes(tsr_io_choice *choice, const tsr_plan *plan, const char *dst, char *why, size_t size);

/* The descriptor past the page cache for the file that a source tensor lies in; -1: none. */
int tsr_io_source(const tsr_io_choice *choice, const tsr_tensor *t);

/* Opens the file at `path`, open already as `fd`, for direct reads, if the mode and the file are for it; -1: they are not, and
 * `why` says so. */
int tsr_io_open_read(tsr_io_mode mode, const char *path, int fd, char *why, size_t size);

/* The same for direct writes of a file that will have `bytes`: makes room for them. *direct is -1 where it is written through the
 * page cache. TSR_E_NOSPACE: there is no room. */
tsr_status tsr_io_open_write(const tsr_io_choice *choice, const char *path, int fd, uint64_t bytes, int *direct,
                             tsr_err *err) TSR_WARN_UNUSED;

/* Closes what was opened. */
void tsr_io_choice_end(tsr_io_choice *choice);

#endif
