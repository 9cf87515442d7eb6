/* One kind of verify by itself. */
#include "cli/verify_kinds.h"

#include "cli/places.h"
#include "cli/results.h"

tsr_status tsr_verify_one(const tsr_verify_kind *kind, void *job, const tsr_check_options *last, tsr_err *err)
{
    tsr_terminal terminal;
    TSR_TRY(kind->open(job, err));
    TSR_TRY(tsr_terminal_open(&terminal, last->quiet, &last->progress, err));
    tsr_status status = kind->run(job, &terminal, err);
    tsr_terminal_close(&terminal);
    TSR_TRY(status);
    if (!last->quiet && !tsr_is_stdout(last->json) && !tsr_is_stdout(last->junit))
        kind->print(job);
    if (last->json == NULL && last->junit == NULL)
        return TSR_OK;
    tsr_text json = {0};
    kind->write_json(&json, job);
    status = tsr_results_write(last->json, last->junit, &json, err);
    tsr_text_free(&json);
    return status;
}
