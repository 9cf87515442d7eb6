/* Records the first failure of several threads, and returns it to their caller. */
#include "common/parallel/first_failure.h"

void tsr_note_failure(tsr_first_failure *first, tsr_status status, const tsr_err *err)
{
    if (first->status == TSR_OK && status != TSR_OK)
        *first = (tsr_first_failure){.status = status, .err = *err};
}

void tsr_note_failure_locking(tsr_first_failure *first, pthread_mutex_t *lock, tsr_status status, const tsr_err *err)
{
    pthread_mutex_lock(lock);
    tsr_note_failure(first, status, err);
    pthread_mutex_unlock(lock);
}

tsr_status tsr_return_failure(const tsr_first_failure *first, tsr_err *err)
{
    if (first->status != TSR_OK && err != NULL)
        *err = first->err;
    return first->status;
}
