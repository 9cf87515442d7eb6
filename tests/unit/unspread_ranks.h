/* Functions of a device that do not spread ranks over GPUs. */
#pragma once

#include "verify/evidence/device.h"

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
