/* The plans that cut a checkpoint over tensor-parallel ranks under its own names, and that join the ranks again.
 *
 * Rank k gets the directory rank-k: a checkpoint with its part of every tensor, the source's config.json and side
 * files, and tessera-tp.json, which says what it is part of. That of rank 0 also keeps what joining needs to restore
 * the source's files byte for byte: their headers, the index, and how each tensor was cut. */
#ifndef TSR_CONVERT_PLANS_RANKS_TP_PLAN_H
#define TSR_CONVERT_PLANS_RANKS_TP_PLAN_H

#include "convert/plan/plan.h"

typedef struct tsr_tp_options {
    uint32_t ranks;
    uint64_t max_shard_bytes;
} tsr_tp_options;

/* Cuts *source as loaders do (formats/names/tensor_parallel.h): scales with their weights; the latent projections of
 * MLA go to every rank. TSR_E_SHAPE: the ranks do not divide a dimension, or a cut goes through a block; the message
 * has numbers that work. TSR_E_UNSUPPORTED: no rule for a tensor. On failure *plan is empty. */
tsr_status tsr_tp_plan(tsr_plan *plan, const tsr_checkpoint *const *source, const tsr_tp_options *options,
                       tsr_err *err) TSR_WARN_UNUSED;

/* Joins ranks[n], in their order. What every rank has all of is compared byte for byte on the way.
 * TSR_E_MISMATCH: the directories are not the ranks of one cut. On failure *plan is empty. */
tsr_status tsr_tp_merge_plan(tsr_plan *plan, const tsr_checkpoint *const *ranks, size_t n,
                             tsr_err *err) TSR_WARN_UNUSED;

#endif
