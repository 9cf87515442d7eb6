/* A checkpoint seen as what plans that quantize can read: codes as their values, and stacks of experts one by one.
 *
 * Each weight of codes is one matrix of FP32 there, under the name of its values, that no file holds
 * (TSR_SOURCE_DECODED); a stack of experts may be seen as a matrix for each expert and projection, of codes likewise, of
 * plain weights in their own dtype (TSR_SOURCE_GATHERED). */
#ifndef TSR_CONVERT_PLANS_ANY_VIEW_H
#define TSR_CONVERT_PLANS_ANY_VIEW_H

#include "common/block.h"
#include "convert/ops/decode_rows.h"
#include "convert/ops/gather_rows.h"
#include "convert/plans/kv_scales.h"
#include "formats/model/weights.h"

/* What a tensor of the view is made of; its .offset is the place in tsr_any_view.parts. */
typedef struct tsr_any_part {
    tsr_row_view view; /* of codes; .weight is NULL: of plain data */
    tsr_gather gather; /* of plain data; .cols is 0: elements first, first + step, ... of all, the bias of an expert */
    bool cache;        /* it is a scale of the KV cache, under its name in the target's dialect */
} tsr_any_part;

/* Which stacks of experts are seen one by one. */
typedef enum tsr_split {
    TSR_SPLIT_NONE,
    TSR_SPLIT_TURN,   /* none, but a family's [experts, in, out] of plain weights is seen [experts, out, in] */
    TSR_SPLIT_CODES,  /* of codes */
    TSR_SPLIT_TURNED, /* of plain weights that no format has a place for: a family's [experts, in, out], or Granite's */
    TSR_SPLIT_KNOWN,  /* of plain weights of any known family */
    TSR_SPLIT_ALL,    /* of codes and of plain weights; a stack that cannot be taken apart is refused */
} tsr_split;

typedef struct tsr_any_view {
    const tsr_checkpoint *source;
    const tsr_checkpoint *sources[1]; /* the view, as plans take it */
    tsr_checkpoint seen;
    tsr_weights weights; /* of the source */
    tsr_any_part *parts;
    size_t n_parts, parts_capacity;
    bool has_stacks; /* some were taken apart */
    tsr_text config;
    tsr_arena arena;
} tsr_any_view;

/* Whether a weight of codes is seen as it is stored. */
typedef bool tsr_stays(const tsr_weight *weight);

typedef struct tsr_any_seeing {
    tsr_block block; /* of the source; 0 x 0: as config.json states */
    tsr_split split;
    tsr_stays *stays;     /* NULL: nothing does */
    tsr_kv_dialect cache; /* how scales of the KV cache are called */
} tsr_any_seeing;

/* Pairs the source, unless it takes over `paired` (may be NULL), and makes the view, which outlives all plans for it.
 * TSR_E_UNSUPPORTED: there are no codes; a stack is to be split whose experts lie the other way round. On failure there is
 * nothing to free. */
tsr_status tsr_any_see(tsr_any_view *view, const tsr_checkpoint *source, tsr_weights *paired, const tsr_any_seeing *how,
                       tsr_err *err) TSR_WARN_UNUSED;

/* The same for a source without codes, whose configuration stays. view->has_stacks says whether anything is seen
 * otherwise than it is stored. */
tsr_status tsr_any_see_plain(tsr_any_view *view, const tsr_checkpoint *source, tsr_split split,
                             tsr_err *err) TSR_WARN_UNUSED;

/* What a tensor of the view is made of; NULL: it is the source's own. */
const tsr_any_part *tsr_any_part_of(const tsr_any_view *view, const tsr_tensor *tensor);

/* Makes a weight of the view BF16, as it is to be written where it does not become codes. */
void tsr_any_keep(tsr_any_view *view, const tsr_tensor *tensor);

/* A zeroed one is fine. */
void tsr_any_free(tsr_any_view *view);

#endif
