/* Tensor-parallel ranks of the kernels under test, shared by the checks that sum over ranks.
 *
 * With enough GPUs and NCCL, each rank has a GPU of this process. Otherwise ranks run one after another on one device,
 * and their parts are added in the order of the ranks. */
#pragma once

#include "verify/evidence/device.h"
#include "verify/evidence/jobs.h"

enum { TSR_RANKS_HOW = 64 };

/* How ranks run that share a device. */
#define TSR_RANKS_IN_TURN "in turn"

/* The fault of a sum that differs between ranks. */
#define TSR_RANKS_DIFFER "ranks hold different sums"

/* Gives each of n ranks its own GPU if possible. Writes TSR_RANKS_IN_TURN to `how`, or how they are connected. If ranks
 * share a GPU, the reason is listed in `evidence` as skipped, once for each subject. TSR_E_DEVICE: connecting the GPUs
 * failed, or ranks would share a GPU although the options demand one for each. */
tsr_status tsr_device_ranks_spread(const tsr_device_ranks *ranks, const tsr_kernel_options *options,
                                   const char *subject, char how[TSR_RANKS_HOW], tsr_evidence *evidence, tsr_err *err);

/* Returns true if all ranks hold the same bits: sums [ranks][n]. */
bool tsr_device_ranks_agree(const float *sums, size_t ranks, size_t n);
