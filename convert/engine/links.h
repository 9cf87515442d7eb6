/* Files of an output that are a file of a source whole, byte for byte, and what --link makes of them.
 *
 * A reflink has the source's blocks until one of the two is written to, and then blocks of its own: a copy in every respect. A hard
 * link is the source's file under a second name: whoever writes to one has written to both. The file is read and digested all the
 * same, so the journal, the manifest and a rerun know no difference; and no run ever writes into a file that is finished, it
 * removes the name and makes another file. Where a link cannot be made, the file is copied. */
#ifndef TSR_CONVERT_ENGINE_LINKS_H
#define TSR_CONVERT_ENGINE_LINKS_H

#include "convert/engine/plan.h"

/* What a user asks for. */
typedef enum tsr_link_mode { TSR_LINK_NONE, TSR_LINK_REFLINK, TSR_LINK_HARD } tsr_link_mode;

/* What came of it, for the result. */
typedef struct tsr_links_told {
    uint64_t linked, copied; /* files that are a source's whole */
    char why[256];           /* the first that was copied, and why */
} tsr_links_told;

/* Says of each file of the plan whether it is a file of a source whole: whole[n_files]. Its first step then reads that file. */
tsr_status tsr_links_find(const tsr_plan *plan, bool *whole, tsr_err *err) TSR_WARN_UNUSED;

/* The source file that file `index`, which is one whole, equals. */
const tsr_file *tsr_links_source(const tsr_plan *plan, size_t index);

/* Has `fd`, an empty file, share the source's blocks. False: it cannot be, and errno says why. */
bool tsr_links_share(int fd, const tsr_file *source);

/* Makes `path`, which must be free, a second name of the source's file, and opens it for reading; -1: it cannot be, errno says why,
 * and there is nothing at `path`. */
int tsr_links_name(const char *path, const tsr_file *source);

/* Notes that a file was linked, or copied because of `code`, an errno. */
void tsr_links_note(tsr_links_told *told, const char *name, int code);

#endif
