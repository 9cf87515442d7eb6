/* Declares links (--link) in place of copies, for output files that are byte-for-byte equal to source files.
 *
 * A reflink shares the source's blocks until one of the two files is written to, so it behaves like a copy. A hard link
 * is a second name of the source file, so a write to one is a write to both. The file is read and digested in any case,
 * so the journal, the manifest and a rerun are the same. No run writes into a finished file: it removes the name and
 * creates another file. If a link fails, the file is copied. */
#pragma once

#include "convert/plan/plan.h"

/* The mode of --link. */
typedef enum tsr_link_mode { TSR_LINK_NONE, TSR_LINK_REFLINK, TSR_LINK_HARD } tsr_link_mode;

/* Counts of links, for the result. */
typedef struct tsr_links_summary {
    uint64_t linked, copied; /* files that are whole source files: linked, and copied after all */
    char why[256];           /* the first file that was copied, and the reason */
} tsr_links_summary;

/* Finds the files of the plan that are whole source files: whole[n_files]. The first step of such a file reads its
 * source. */
tsr_status tsr_links_find(const tsr_plan *plan, bool *whole, tsr_err *err);

/* Returns the source file that file `index` is a copy of. */
const tsr_file *tsr_links_source(const tsr_plan *plan, size_t index);

/* Makes the empty file `fd` a reflink of the source. Returns false with errno set if that fails. */
bool tsr_links_share(int fd, const tsr_file *source);

/* Makes `path`, which must not exist, a hard link to the source, and opens it for reading. Returns -1 with errno
 * set if that fails; then `path` does not exist. */
int tsr_links_name(const char *path, const tsr_file *source);

/* Notes that a file was linked, or copied because of `code`, an errno. */
void tsr_links_note(tsr_links_summary *summary, const char *name, int code);
