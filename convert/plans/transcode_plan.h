/* Declares the plan that converts a checkpoint of any codes to any other codes without a BF16 intermediate.
 *
 * The plan of the scheme is made for a view of the source in which every weight of codes is an FP32 matrix
 * (convert/plans/views/decoded_view.h). Then each step gets a reader for its matrix. If an exact relation exists, the
 * codes are moved (convert/ops/move/move_op.h); otherwise they are decoded in memory and quantized again. Codes become
 * codes, all other tensors stay. */
#pragma once

#include "convert/plan/plan.h"
#include "convert/plans/ct_plan.h"
#include "convert/plans/layouts/w4afp8_plan.h"
#include "convert/plans/mx_plan.h"
#include "convert/plans/quantize_plan.h"
#include "convert/plans/views/decoded_view.h"

typedef struct tsr_transcode_options {
    /* The scheme: exactly one of these is set. */
    const tsr_quantize_options *blocks;
    const tsr_ct_options *rows;
    const tsr_mx_options *groups;
    const tsr_w4afp8_options *experts;
    const char *const *exclude; /* globs: these weights become BF16 */
    size_t n_exclude;
    tsr_block source_block; /* 0 x 0: as in config.json */
    bool lossy;             /* moved values that have no code are rounded and counted */
    tsr_split split;        /* stacks of experts to split: none, codes or all */
    bool anew;              /* compute all codes again */
    bool group_as_source;   /* packed integers: use the group size of the source instead of rows->scheme's */
    tsr_weights *paired;    /* the source's weights, which are taken over; NULL: they are paired here */
} tsr_transcode_options;

/* Makes the plan for *source. *view, which it fills, *source and *options must outlive the plan. On failure *plan is
 * empty and there is nothing to free. */
tsr_status tsr_transcode_plan(tsr_plan *plan, tsr_decoded_view *view, const tsr_checkpoint *source,
                              const tsr_transcode_options *options, tsr_err *err);
