/* Declares a view of a checkpoint in which codes appear as FP32 matrices and stacked experts as separate tensors.
 *
 * Each weight of codes is an FP32 matrix in the view, under the name of its values, that no file holds
 * (TSR_SOURCE_DECODED). A stack of experts may appear as a matrix for each expert and projection; those of plain
 * weights keep their dtype (TSR_SOURCE_GATHERED). */
#pragma once

#include "common/block.h"
#include "convert/configs/kv_scales.h"
#include "convert/ops/rows/decode_rows.h"
#include "convert/ops/rows/gather_rows.h"
#include "formats/weights/weights.h"

/* The origin of a tensor of the view. Its .offset is the index in tsr_decoded_view.parts. */
typedef struct tsr_decoded_part {
    tsr_row_view view; /* codes; .weight is NULL for plain data */
    tsr_gather gather; /* plain data; .cols is 0 for the bias of an expert: elements first, first + step, ... */
    bool powers;       /* block FP8: every scale is a power of two that E8M0 can represent */
    bool cache;        /* a KV-cache scale, under its name in the target's dialect */
} tsr_decoded_part;

/* The stacks of experts that are split. */
typedef enum tsr_split {
    TSR_SPLIT_NONE,
    TSR_SPLIT_TURN,  /* none, but plain stacks stored as [experts, in, out] appear as [experts, out, in] */
    TSR_SPLIT_CODES, /* stacks of codes only */
    TSR_SPLIT_KNOWN, /* plain weights of any known family */
    TSR_SPLIT_ALL,   /* codes and plain weights; a stack that cannot be split is rejected */
} tsr_split;

typedef struct tsr_decoded_view {
    const tsr_checkpoint *source;
    const tsr_checkpoint *sources[1]; /* the view, in the form that plans take */
    tsr_checkpoint seen;
    tsr_weights weights; /* weights of the source */
    tsr_decoded_part *parts;
    size_t n_parts, parts_capacity;
    bool has_stacks; /* some stacks are split */
    tsr_text config;
    tsr_arena arena;
} tsr_decoded_view;

/* Returns true if a quantized weight is passed through as stored. */
typedef bool tsr_stays(const tsr_weight *weight);

typedef struct tsr_decoding_options {
    tsr_block block; /* block size of the source; 0 x 0: as in config.json */
    tsr_split split;
    tsr_stays *stays;  /* NULL: nothing does */
    tsr_dialect cache; /* the dialect that names KV-cache scales */
} tsr_decoding_options;

/* Pairs the source, or takes over `paired` if it is not NULL, and makes the view, which must outlive all plans for it.
 * TSR_E_UNSUPPORTED: there are no codes, or a stack to be split has its experts in the last dimension. On failure there
 * is nothing to free. */
tsr_status tsr_decoded_view_open(tsr_decoded_view *view, const tsr_checkpoint *source, tsr_weights *paired,
                                 const tsr_decoding_options *how, tsr_err *err);

/* Makes the view of a source without codes, whose configuration stays. Sets view->has_stacks if a tensor appears in
 * another form than stored. */
tsr_status tsr_decoded_view_open_plain(tsr_decoded_view *view, const tsr_checkpoint *source, tsr_split split,
                                       tsr_err *err);

/* Returns the origin of a tensor of the view, or NULL if it is the source's own. */
const tsr_decoded_part *tsr_decoded_part_of(const tsr_decoded_view *view, const tsr_tensor *tensor);

/* Changes a weight of the view to BF16, the dtype in which it is written if it does not become codes. */
void tsr_decoded_view_keep(tsr_decoded_view *view, const tsr_tensor *tensor);

/* Frees a view. A zero-initialized one is allowed. */
void tsr_decoded_view_free(tsr_decoded_view *view);

/* Returns the bytes of memory that the view takes, source included. */
uint64_t tsr_decoded_view_memory(const tsr_decoded_view *view);
