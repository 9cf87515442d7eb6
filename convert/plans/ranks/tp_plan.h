/* Declares the plans that cut a checkpoint over tensor-parallel ranks with unchanged names, and that join the ranks
 * again.
 *
 * Rank k gets the directory rank-k: a checkpoint with its part of every tensor, the source's config.json and side
 * files, and tessera-tp.json, which states the rank and the number of ranks. That of rank 0 also has what joining needs
 * to restore the source's files byte for byte: their headers, the index, and how each tensor was cut. */
#pragma once

#include "convert/plan/plan.h"

typedef struct tsr_tp_options {
    uint32_t ranks;
    uint64_t max_shard_bytes;
} tsr_tp_options;

/* Cuts *source as loaders do (formats/names/tensor_parallel.h). Scales are cut with their weights; every rank gets the
 * latent projections of MLA. TSR_E_SHAPE: the ranks do not divide a dimension, or a cut goes through a block; the
 * message has numbers that work. TSR_E_UNSUPPORTED: no rule for a tensor. On failure *plan is empty. */
tsr_status tsr_tp_plan(tsr_plan *plan, const tsr_checkpoint *const *source, const tsr_tp_options *options,
                       tsr_err *err);

/* Joins ranks[n], in order. Tensors that every rank has in full are compared byte for byte. TSR_E_MISMATCH: the
 * directories are not the ranks of one cut. On failure *plan is empty. */
tsr_status tsr_tp_merge_plan(tsr_plan *plan, const tsr_checkpoint *const *ranks, size_t n, tsr_err *err);
