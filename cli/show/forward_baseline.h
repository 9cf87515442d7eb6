/* Compares a model with a baseline: another checkpoint of the same source, on the same tokens. */
#pragma once

#include "common/text.h"
#include "verify/forward/check_forward.h"

/* A pass of the baseline, and what the model gains over it. A gain of a layer is 10 log10 of the error that the
 * baseline's layer adds by itself, divided by that of the model's layer. */
typedef struct tsr_forward_baseline {
    const char *path; /* the checkpoint, or its description; NULL: there is none */
    tsr_evidence evidence;
    tsr_forward_figures figures;
    double kl[2];           /* mean divergences from the source in nats: of the baseline, and of the model */
    double agreement;       /* share of positions where source and baseline have the same most likely token */
    double least_db;        /* smallest gain of a layer */
    double most_db;         /* largest gain */
    const char *least_at;   /* the layer with the smallest gain; NULL: no layer differs from the source */
    size_t layers, n_worse; /* layers with a gain, and those whose gain is negative */
} tsr_forward_baseline;

/* Runs the baseline as `request` runs the model, and compares it with the evidence of the model, whose judgement of the
 * logits becomes a fault if the baseline's divergence is smaller. `path` has been set. */
tsr_status tsr_forward_baseline_run(tsr_forward_baseline *baseline, const tsr_forward_request *request,
                                    const tsr_side *side, tsr_evidence *model, tsr_err *err);

/* Returns true if the model's divergence is larger than the baseline's, or not a number. */
bool tsr_forward_baseline_is_better(const tsr_forward_baseline *baseline);

void tsr_forward_baseline_print(const tsr_forward_baseline *baseline);

/* Appends "; KL divergence ..." and the gain of layers; nothing without a baseline. */
void tsr_forward_baseline_summarize(tsr_text *text, const tsr_forward_baseline *baseline);

/* Appends the member `baseline`; null without one. */
void tsr_forward_baseline_json(tsr_text *text, const tsr_forward_baseline *baseline);

void tsr_forward_baseline_free(tsr_forward_baseline *baseline);
