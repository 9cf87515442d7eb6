/* Decides which tensors are quantized, with a reason. Rules map a name pattern to a treatment; the first matching rule
 * wins.
 *
 * The rules for each model_type are tables in policy_rules.c, which are meant to be read. After that, policy_groups.c
 * makes common decisions for layers that loaders fuse. */
#pragma once

#include "common/arena.h"
#include "common/status.h"
#include "formats/checkpoint/checkpoint.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum tsr_treatment {
    TSR_KEEP,           /* copied unchanged */
    TSR_KEEP_EMBEDDING, /* copied; a lookup table, which no loader treats as a linear layer */
    TSR_QUANTIZE,
} tsr_treatment;

typedef struct tsr_decision {
    tsr_treatment treatment;
    const char *reason; /* a phrase; static or in the caller's arena */
} tsr_decision;

typedef struct tsr_policy_options {
    const char *const *include; /* globs: quantize matching tensors, overriding the tables */
    const char *const *exclude; /* globs: keep matching tensors, overriding include */
    size_t n_include, n_exclude;
    uint32_t block_rows; /* members of a fused layer, except the last, must end on a multiple of this */
    uint32_t group;      /* a row must be a multiple of this many columns; 0: any row */
    bool not_fp8;        /* codes are int8, int4 or FP4, which no loader reads for some layers */
    /* Weights that are codes in the source (TSR_SOURCE_DECODED) become codes again, all others stay; tables are not
     * used. */
    bool as_source;
    bool four_bits; /* use the families' tables for 4 bits where they differ from those for 8 */
} tsr_policy_options;

/* Decides for every tensor of the checkpoint: decisions[i] belongs to checkpoint->tensors.items[i] (caller's array).
 *
 * Members that loaders fuse (q/k/v, gate/up, q_a/kv_a, ...: formats/names/fused.c) get one decision. All are kept if
 * --exclude names one of them. All are also kept if a member other than the last ends inside a block, because the fused
 * grid of scales would be wrong (block FP8 in vLLM and SGLang); --include overrides this. All experts of a layer get
 * one decision, and so do the three matrices of a shared expert: loaders run a layer's experts with one scheme, and
 * some load a mixture without an error. Of tensors of rank 3, only stacks of experts stored as [experts, out, in] are
 * quantized. Composed reasons go into `arena`. `model_type` may be NULL. */
tsr_status tsr_policy_decide(const tsr_checkpoint *checkpoint, const char *model_type,
                             const tsr_policy_options *options, tsr_arena *arena, tsr_decision *decisions,
                             tsr_err *err);

/* Returns the model_type that selects the tables, in `arena`; for a multimodal model it may be that of its language
 * part. NULL: config.json has none. */
const char *tsr_policy_model_type(const tsr_checkpoint *checkpoint, tsr_arena *arena);

/* Returns true if the tables have this model_type. An unknown one uses the general rules. */
bool tsr_policy_knows(const char *model_type);

/* Returns true if the tables have only the parent of this model_type: no official quantized release is known. */
bool tsr_policy_is_unseen(const char *model_type);

/* Returns true if a tensor of this name is an embedding table, which no loader treats as a linear layer. */
bool tsr_policy_is_embedding(const char *name);
