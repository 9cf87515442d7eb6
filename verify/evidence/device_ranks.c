/* Spreads ranks over GPUs, and compares their sums. */
#include "verify/evidence/device_ranks.h"

#include <stdio.h>
#include <string.h>

static bool is_listed(const tsr_evidence *evidence, const char *subject, const char *why)
{
    for (size_t i = 0; i < evidence->n_skipped; i++) {
        if (strcmp(evidence->skipped[i].subject, subject) == 0 && strcmp(evidence->skipped[i].why, why) == 0)
            return true;
    }
    return false;
}

tsr_status tsr_device_ranks_spread(const tsr_device_ranks *ranks, const tsr_kernel_options *options,
                                   const char *subject, char how[TSR_RANKS_HOW], tsr_evidence *evidence, tsr_err *err)
{
    tsr_err why = {0};
    tsr_status status = TSR_OK;
    snprintf(how, TSR_RANKS_HOW, TSR_RANKS_IN_TURN);
    if (ranks->spread != NULL)
        status = ranks->spread(options->device, (size_t)options->ranks, how, TSR_RANKS_HOW, &why);
    if (status == TSR_OK)
        return TSR_OK;
    if (status != TSR_E_NOT_APPLICABLE)
        return tsr_fail_with(err, status, &why);
    if (options->gpu_per_rank)
        return tsr_fail(err, TSR_E_DEVICE, "--devices: %s; without --devices, the ranks run one after another",
                        why.msg);
    (void)tsr_prepend(&why, status, "the ranks run one after another on one GPU");
    return is_listed(evidence, subject, why.msg) ? TSR_OK : tsr_evidence_skip(evidence, subject, why.msg, err);
}

bool tsr_device_ranks_agree(const float *sums, size_t ranks, size_t n)
{
    for (size_t r = 1; r < ranks; r++) {
        if (memcmp(sums, sums + r * n, n * sizeof *sums) != 0)
            return false;
    }
    return true;
}
