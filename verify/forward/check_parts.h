/* Functions shared by the files of the check of a forward pass, and private to them. */
#ifndef TSR_VERIFY_FORWARD_CHECK_PARTS_H
#define TSR_VERIFY_FORWARD_CHECK_PARTS_H

#include "verify/evidence/jobs.h"
#include "verify/forward/check_forward.h"
#include "verify/forward/token_file.h"

/* What sound layers may lose, in powers and in dB (docs/verify.md derives it). */
typedef struct tsr_forward_budget {
    double allowed;       /* power of the stream's error that is allowed so far */
    double error, power;  /* of the stream behind the layer before: what its error is, and the source's own power */
    double alone, stream; /* the limits of the last layer, in dB */
    bool crossed;         /* the stream has been below its limit: the layers behind are not to blame */
} tsr_forward_budget;

/* A layer: what tsr_forward notes of its weights, what its judgements measured, and the power of the error that the
 * source's own layer makes of the stream's error before it. */
typedef struct tsr_forward_layer_loss {
    double noise;
    bool served, latent;
    double carried;
    const tsr_judgement *stream, *alone;
} tsr_forward_layer_loss;
void tsr_forward_budget_add(tsr_forward_budget *budget, const tsr_forward_layer_loss *loss);

/* A layer alone that chooses a quarter of its experts or more unlike the source is at fault. */
void tsr_forward_limit_experts(tsr_judgement *alone);

typedef struct tsr_forward_check {
    const tsr_forward_request *request;
    tsr_evidence *evidence;
    tsr_ops *ops;
    tsr_forward source, model;
    tsr_tokens tokens, twice; /* twice: all sequences two times, for a layer that runs on two inputs at once */
    size_t n, hidden, last;   /* last: layer */
    double began;
    double *before;      /* on the host: [n][hidden] of the source before a layer */
    double *x, *y;       /* [2 n][hidden]: a model's own stream, and behind it what it makes of the other's */
    uint32_t *chosen[2]; /* experts, [2 n] likewise */
    tsr_forward_budget budget;
    double perplexity[2];
} tsr_forward_check;

tsr_judgement tsr_forward_blank(const char *subject, const char *what, tsr_error_kind kind);

/* A fault when the source's own values are NaN or Inf, since nothing can be compared with them; otherwise NULL. */
const char *tsr_forward_nonfinite(const tsr_metrics *metrics);

/* "sequence 1, token 12, channel 3". */
void tsr_forward_locate(const tsr_forward_check *check, uint64_t index, size_t width, const char *column, char *text,
                        size_t size);

/* Logits [n][vocabulary] of n rows of states on the host. */
tsr_status tsr_forward_logits_of(const tsr_forward_check *check, tsr_forward *forward, const double *x, size_t n,
                                 double *logits, tsr_err *err) TSR_WARN_UNUSED;

/* Puts both streams as they stand through the final norm and head of their models, and adds up how the logits differ. */
tsr_status tsr_forward_compare_heads(tsr_forward_check *check, tsr_judgement *total, tsr_err *err) TSR_WARN_UNUSED;

/* The last judgement: that of the logits. */
tsr_status tsr_forward_judge_logits(tsr_forward_check *check, tsr_err *err) TSR_WARN_UNUSED;

#endif
