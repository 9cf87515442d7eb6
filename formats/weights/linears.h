/* The linear layers of a checkpoint as loaders see them: which of them are fused, and where they are cut for tensor
 * parallelism. */
#pragma once

#include "common/block.h"
#include "formats/names/fused.h"
#include "formats/names/model.h"
#include "formats/names/tensor_parallel.h"
#include "formats/weights/weights.h"

typedef struct tsr_linear {
    const tsr_tensor *tensor; /* name and shape of the values */
    const tsr_tensor *scale;  /* NULL: not quantized */
    const tsr_weight *weight; /* the stored weight */
    const char *module;       /* the tensor's name without ".weight" */
    const char *leaf;         /* last component of `module` */
    tsr_part part;
    bool mtp;
    tsr_coding coding;
    bool zero_points;
    const tsr_tp_rule *cut; /* how ranks divide it */
    uint64_t matrices, rows, cols;
    tsr_block block; /* 0 x 0 if not quantized in blocks */
    uint64_t grid_rows, grid_cols;
    const tsr_fused *fused;                              /* NULL: runs alone */
    const struct tsr_linear *members[TSR_FUSED_MEMBERS]; /* the existing members in order, including this one */
    size_t n_members;
} tsr_linear;

typedef struct tsr_linears {
    tsr_linear *items; /* in the order of the checkpoint; in the arena */
    size_t count;
    tsr_arena arena;
} tsr_linears;

/* Collects attention, feed-forward and expert matrices. Embeddings, output head, routers, norms and the other tensors
 * of MTP layers are left out. */
tsr_status tsr_linears_collect(tsr_linears *linears, const tsr_checkpoint *checkpoint, const tsr_weights *weights,
                               const tsr_model *model, tsr_err *err);

static inline bool tsr_linear_is_quantized(const tsr_linear *linear)
{
    return linear->scale != NULL;
}

bool tsr_linear_is_integers(const tsr_linear *linear);

/* Returns true if the layer has scales and is of the kind with this name (tsr_weight_kind.name). */
bool tsr_linear_is_kind(const tsr_linear *linear, const char *name);

/* Returns true for e4m3 with floating-point scales per block, row or matrix. */
bool tsr_linear_is_fp8(const tsr_linear *linear);

void tsr_linears_free(tsr_linears *linears);

/* Returns the number of ranks, of `tp`, among which the layer is divided: 1 if it is replicated or unknown; less than
 * tp if there are fewer key-value heads, since a rank needs a whole head; 0 if the heads cannot be divided. */
uint64_t tsr_linear_ranks(const tsr_linear *linear, const tsr_model *model, uint64_t tp);
