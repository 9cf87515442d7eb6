/* The failure that ends what several threads do together: the first one, and none that follows from it. */
#ifndef TSR_COMMON_PARALLEL_FIRST_FAILURE_H
#define TSR_COMMON_PARALLEL_FIRST_FAILURE_H

#include "common/status.h"

#include <pthread.h>

/* `{0}` says that nothing has failed. A lock of the owner's guards it, since the owner mostly looks at the status together
 * with other things under that lock. */
typedef struct tsr_first_failure {
    tsr_status status;
    tsr_err err;
} tsr_first_failure;

/* Notes a failure, unless there has been one before or `status` is TSR_OK. Called with the lock held. */
void tsr_note_failure(tsr_first_failure *first, tsr_status status, const tsr_err *err);

/* The same, taking the lock. */
void tsr_note_failure_locking(tsr_first_failure *first, pthread_mutex_t *lock, tsr_status status, const tsr_err *err);

/* Hands the failure to a caller, whose `err` may be NULL and stays as it is where nothing has failed. */
tsr_status tsr_return_failure(const tsr_first_failure *first, tsr_err *err) TSR_WARN_UNUSED;

#endif
