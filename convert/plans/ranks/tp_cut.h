/* Cuts one weight with its scales over tensor-parallel ranks, for the conversions to DeepSeek's code and to HF
 * names. */
#pragma once

#include "convert/plan/plan.h"
#include "formats/names/tensor_parallel.h"
#include "formats/weights/weights.h"

#include <stdint.h>

enum { TSR_MAX_RANKS = 256 };

/* The cut of a tensor: `rows` as in convert/ops/slice_op.h; 0: every rank has the whole tensor. */
typedef struct tsr_tp_cut {
    uint64_t data_rows, scale_rows;
    uint32_t parts;               /* n, or fewer: then n / parts neighbouring ranks have the same part */
    uint64_t data_dim, scale_dim; /* the dimension that is cut; unused if there is no cut */
} tsr_tp_cut;

/* Rejects a stack of experts that is stored as [experts, in, out] (TSR_E_UNSUPPORTED): rules are for [experts, out,
 * in]. */
tsr_status tsr_refuse_turned_stack(const tsr_checkpoint *c, const tsr_tensor *t, tsr_err *err);

/* Returns the rule for a tensor. A bias without a rule is divided with its weight if that is divided along the outputs;
 * otherwise every rank has it. A single number is the same on every rank. Names are made in `arena`. */
tsr_tp_rule tsr_tp_rule_of(const tsr_tensor *t, tsr_arena *arena);

/* Cuts `weight` over n ranks. `heads` is the number of heads that are cut together with the dimension, 0 when there are
 * none. With `share`, n may also be a multiple of `heads`: several ranks then have the same head, as loaders do with
 * key and value heads.
 * TSR_E_SHAPE: the dimension, the heads or the blocks are not a multiple of what n needs; the message has the
 * arithmetic and the numbers of ranks that would work. */
tsr_status tsr_shard_weight(const tsr_checkpoint *checkpoint, const tsr_weight *weight, tsr_tp_split how,
                            uint64_t heads, bool share, uint32_t n, tsr_tp_cut *shard, tsr_err *err);

/* Cuts a part of an absorbed kv_b_proj, [heads, ..., ...], with its scales, between heads. TSR_E_SHAPE: the ranks do
 * not divide the heads. */
tsr_status tsr_shard_part(const tsr_checkpoint *checkpoint, const tsr_weight *weight, uint32_t n, tsr_tp_cut *shard,
                          tsr_err *err);

/* Adds the steps that write rank k's part of `weight` as `name`, and that of its scale as `scale_name`. */
tsr_status tsr_plan_shard(tsr_plan *plan, const tsr_weight *weight, const tsr_tp_cut *shard, const char *name,
                          const char *scale_name, uint32_t n, uint32_t k, tsr_err *err);
