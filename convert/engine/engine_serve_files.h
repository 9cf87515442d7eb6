/* Output files as a rank but 0 has them open: by their names, while rank 0 begins and commits them. */
#ifndef TSR_CONVERT_ENGINE_ENGINE_SERVE_FILES_H
#define TSR_CONVERT_ENGINE_ENGINE_SERVE_FILES_H

#include "common/ranks.h"
#include "convert/engine/io_choice.h"

#include <pthread.h>

typedef struct tsr_served_files {
    const tsr_plan *plan;
    const char *dst;
    tsr_io_choice io; /* what it says of reads is chosen by the owner */
    pthread_mutex_t lock;
    bool tried_writes;  /* past the page cache */
    tsr_io_file *files; /* [n_files]; NULL until begun */
} tsr_served_files;

tsr_status tsr_served_begin(tsr_served_files *s, tsr_err *err) TSR_WARN_UNUSED;

/* Closes what is open, and ends the choice. */
void tsr_served_end(tsr_served_files *s);

/* A file to be written or, when verifying, to be read back; opened when it is asked for first. Thread-safe. */
tsr_status tsr_served_find(tsr_served_files *s, size_t file, bool verifying, tsr_io_file *found,
                           tsr_err *err) TSR_WARN_UNUSED;

/* TSR_ASKED_SETTLE: the last that is wanted of a file. Thread-safe. */
tsr_status tsr_served_settle(tsr_served_files *s, const tsr_request *q, tsr_err *err) TSR_WARN_UNUSED;

#endif
