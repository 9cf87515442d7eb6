/* The failure that ends the common work of several threads: the first one, not those that follow from it. */
#pragma once

#include "common/status.h"

#include <pthread.h>

/* `{0}` means that nothing has failed. It is guarded by a lock of its owner, which usually also guards related data. */
typedef struct tsr_first_failure {
    tsr_status status;
    tsr_err err;
} tsr_first_failure;

/* Records a failure, unless there has been one before or `status` is TSR_OK. Called with the lock held. */
void tsr_note_failure(tsr_first_failure *first, tsr_status status, const tsr_err *err);

/* The same, taking the lock. */
void tsr_note_failure_locking(tsr_first_failure *first, pthread_mutex_t *lock, tsr_status status, const tsr_err *err);

/* Returns the failure. `err` may be NULL, and stays unchanged if nothing has failed. */
tsr_status tsr_return_failure(const tsr_first_failure *first, tsr_err *err);
