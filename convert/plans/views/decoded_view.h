/* A checkpoint seen as what plans that quantize can read: codes as their values, and stacks of experts one by one.
 *
 * Each weight of codes is one matrix of FP32 there, under the name of its values, that no file holds
 * (TSR_SOURCE_DECODED); a stack of experts may be seen as a matrix for each expert and projection, of codes likewise, of
 * plain weights in their own dtype (TSR_SOURCE_GATHERED). */
#ifndef TSR_CONVERT_PLANS_VIEWS_DECODED_VIEW_H
#define TSR_CONVERT_PLANS_VIEWS_DECODED_VIEW_H

#include "common/block.h"
#include "convert/configs/kv_scales.h"
#include "convert/ops/rows/decode_rows.h"
#include "convert/ops/rows/gather_rows.h"
#include "formats/weights/weights.h"

/* The origin of a tensor of the view. Its .offset is the index in tsr_decoded_view.parts. */
typedef struct tsr_decoded_part {
    tsr_row_view view; /* of codes; .weight is NULL: of plain data */
    tsr_gather gather; /* of plain data; .cols is 0: elements first, first + step, ... of all, the bias of an expert */
    bool powers;       /* of block FP8: every scale is a power of two that E8M0 has */
    bool cache;        /* it is a scale of the KV cache, under its name in the target's dialect */
} tsr_decoded_part;

/* Which stacks of experts are seen one by one. */
typedef enum tsr_split {
    TSR_SPLIT_NONE,
    TSR_SPLIT_TURN,  /* none, but a family's [experts, in, out] of plain weights is seen [experts, out, in] */
    TSR_SPLIT_CODES, /* of codes */
    TSR_SPLIT_KNOWN, /* of plain weights of any known family */
    TSR_SPLIT_ALL,   /* of codes and of plain weights; a stack that cannot be taken apart is refused */
} tsr_split;

typedef struct tsr_decoded_view {
    const tsr_checkpoint *source;
    const tsr_checkpoint *sources[1]; /* the view, as plans take it */
    tsr_checkpoint seen;
    tsr_weights weights; /* of the source */
    tsr_decoded_part *parts;
    size_t n_parts, parts_capacity;
    bool has_stacks; /* some stacks are split */
    tsr_text config;
    tsr_arena arena;
} tsr_decoded_view;

/* Returns true if a quantized weight is seen as it is stored. */
typedef bool tsr_stays(const tsr_weight *weight);

typedef struct tsr_decoding_options {
    tsr_block block; /* of the source; 0 x 0: as config.json states */
    tsr_split split;
    tsr_stays *stays;  /* NULL: nothing does */
    tsr_dialect cache; /* how scales of the KV cache are called */
} tsr_decoding_options;

/* Pairs the source, unless it takes over `paired` (may be NULL), and makes the view, which outlives all plans for it.
 * TSR_E_UNSUPPORTED: there are no codes, or a stack to be split has its experts in the last dimension. On failure
 * there is nothing to free. */
tsr_status tsr_decoded_view_open(tsr_decoded_view *view, const tsr_checkpoint *source, tsr_weights *paired,
                                 const tsr_decoding_options *how, tsr_err *err) TSR_WARN_UNUSED;

/* Makes the view of a source without codes, whose configuration stays. view->has_stacks is true if a tensor is seen
 * other than it is stored. */
tsr_status tsr_decoded_view_open_plain(tsr_decoded_view *view, const tsr_checkpoint *source, tsr_split split,
                                       tsr_err *err) TSR_WARN_UNUSED;

/* Returns the origin of a tensor of the view, or NULL if it is the source's own. */
const tsr_decoded_part *tsr_decoded_part_of(const tsr_decoded_view *view, const tsr_tensor *tensor);

/* Makes a weight of the view BF16, as it is to be written where it does not become codes. */
void tsr_decoded_view_keep(tsr_decoded_view *view, const tsr_tensor *tensor);

/* A zeroed one is fine. */
void tsr_decoded_view_free(tsr_decoded_view *view);

/* Returns the bytes of memory that the view takes, source included. */
uint64_t tsr_decoded_view_memory(const tsr_decoded_view *view);

#endif
