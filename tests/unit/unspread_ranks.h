/* Functions of a device that do not spread ranks over GPUs, and faults of sums over ranks. */
#pragma once

#include "verify/evidence/device.h"

#include <math.h>
#include <string.h>

static tsr_status stay(tsr_device *of, size_t ranks, char *how, size_t size, tsr_err *e)
{
    (void)of, (void)ranks, (void)how, (void)size;
    return tsr_fail(e, TSR_E_NOT_APPLICABLE, "no second one");
}

static tsr_status fail_to_connect(tsr_device *of, size_t ranks, char *how, size_t size, tsr_err *e)
{
    (void)of, (void)ranks, (void)how, (void)size;
    return tsr_fail(e, TSR_E_DEVICE, "no answer");
}

static tsr_device_sum_fn *sound_sum; /* the test sets it */

static tsr_status lose_a_rank(tsr_device *of, size_t ranks, tsr_out out, float *parts, size_t n, double *seconds,
                              tsr_err *e)
{
    memset(parts + n, 0, n * sizeof *parts);
    return sound_sum(of, ranks, out, parts, n, seconds, e);
}

static tsr_status forget_to_send(tsr_device *of, size_t ranks, tsr_out out, float *parts, size_t n, double *seconds,
                                 tsr_err *e)
{
    const tsr_status status = sound_sum(of, ranks, out, parts, n, seconds, e);
    parts[2 * n - 1] = nextafterf(parts[2 * n - 1], 9);
    return status;
}
