/* The plan that turns a checkpoint of any codes into one of any other, with no BF16 copy in between.
 *
 * The plan of the scheme is made for a view of the source in which every weight of codes is a matrix of FP32
 * (convert/plans/views/decoded_view.h), and then each of its steps is given what makes that matrix: where a relation loses nothing
 * the codes are moved (convert/ops/move/move_op.h), elsewhere they are decoded in memory and made anew. What was codes
 * becomes codes, all else stays. */
#ifndef TSR_CONVERT_PLANS_TRANSCODE_PLAN_H
#define TSR_CONVERT_PLANS_TRANSCODE_PLAN_H

#include "convert/plan/plan.h"
#include "convert/plans/ct_plan.h"
#include "convert/plans/mx_plan.h"
#include "convert/plans/quantize_plan.h"
#include "convert/plans/views/decoded_view.h"

typedef struct tsr_transcode_options {
    /* The scheme: one of them. */
    const tsr_quantize_options *blocks;
    const tsr_ct_options *rows;
    const tsr_mx_options *groups;
    const char *const *exclude; /* globs: these weights become BF16 */
    size_t n_exclude;
    tsr_block source_block; /* 0 x 0: as config.json states */
    bool lossy;             /* what has no code where codes are moved is rounded, and counted */
    tsr_split split;        /* of stacks of experts: none, codes or all */
    bool anew;              /* compute all codes again */
    bool group_as_source;   /* packed integers: in the groups that those of the source have, not rows->scheme's */
    tsr_weights *paired;    /* the source's, which are taken over; NULL: they are paired here */
} tsr_transcode_options;

/* Makes the plan for *source. *view, which it makes, and *source and *options outlive it. On failure *plan is empty, and
 * there is nothing to free. */
tsr_status tsr_transcode_plan(tsr_plan *plan, tsr_decoded_view *view, const tsr_checkpoint *source,
                              const tsr_transcode_options *options, tsr_err *err) TSR_WARN_UNUSED;

#endif
