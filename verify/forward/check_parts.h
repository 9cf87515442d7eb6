/* Functions shared by the files of the check of a forward pass, and private to them. */
#pragma once

#include "verify/evidence/jobs.h"
#include "verify/forward/check_forward.h"
#include "verify/forward/tokens/token_file.h"

/* Error budget of correct layers, as powers and in dB (docs/verify-forward.md derives it). */
typedef struct tsr_forward_budget {
    double allowed;       /* allowed power of the stream's error so far */
    double error, power;  /* after the previous layer: power of the stream's error, and of the source's stream */
    double alone, stream; /* limits of the last layer, in dB */
    bool crossed;         /* the stream was below its limit, so later layers are not at fault */
} tsr_forward_budget;

/* A layer: notes of tsr_forward on its weights, measurements of its judgements, and the power of the error that the
 * source's layer makes of the stream's earlier error. */
typedef struct tsr_forward_layer_loss {
    double noise;
    bool served, latent;
    double carried;
    const tsr_judgement *stream, *alone;
} tsr_forward_layer_loss;
void tsr_forward_budget_add(tsr_forward_budget *budget, const tsr_forward_layer_loss *loss);

/* Marks a layer alone as a fault if more than a quarter of its chosen experts or tokens differ from the source. */
void tsr_forward_limit_choices(tsr_judgement *alone);

/* The tables of all devices. Both models use all of them in turn, or each has its own, and they run at the same
 * time. */
typedef struct tsr_forward_devices {
    tsr_ops ops[TSR_FORWARD_DEVICES];
    size_t n;
    tsr_ops *of_source, *of_model; /* the first table of each */
    size_t passes;                 /* that run at the same time: 1 or 2 */
} tsr_forward_devices;

typedef struct tsr_forward_check {
    const tsr_forward_request *request;
    tsr_evidence *evidence;
    tsr_forward_devices devices;
    tsr_forward source, model;
    tsr_tokens tokens, twice; /* twice: all sequences two times, for a layer that runs on two inputs at once */
    size_t n, hidden, last;   /* last: layer */
    double began;
    double *x, *y;             /* on the host: [n][hidden], each model's own stream */
    double *before, *y_before; /* [n][hidden]: both streams before the last layer */
    double *other[2];          /* [n][hidden]: the last layer of each model on the other model's stream */
    uint32_t *chosen[2];       /* experts chosen for these rows, [2 n] */
    tsr_forward_budget budget;
    tsr_forward_predictions predictions;
} tsr_forward_check;

/* Opens the devices of a request. On the CPU they are simulated. TSR_E_DEVICE: there are fewer GPUs. */
tsr_status tsr_forward_open_devices(const tsr_forward_request *request, tsr_forward_devices *devices, tsr_err *err);
void tsr_forward_close_devices(tsr_forward_devices *devices);

/* A step of both passes: `run` is called for the source (i = 0) and for the model (1), at the same time if each has
 * its own devices. */
typedef struct tsr_forward_both {
    tsr_forward_check *check;
    tsr_status (*run)(const struct tsr_forward_both *both, tsr_forward *forward, size_t i, tsr_err *err);
    void *context;
} tsr_forward_both;
tsr_status tsr_forward_run_both(const tsr_forward_both *both, tsr_err *err);

/* Returns true if all tokens run at once through a layer: later layers and comparisons need an indexer's choice for all
 * of them, and products of the inputs of experts are finished expert by expert. */
bool tsr_forward_runs_whole(const tsr_forward *forward);

/* Rejects sequences that are too long for a model's windows (TSR_E_UNSUPPORTED), and tokens for which `passes` passes
 * at a time need more than `memory` bytes, even if they run sequence by sequence (TSR_E_NOT_APPLICABLE; 0: no limit).
 * Limits the room of the operations to what remains. */
tsr_status tsr_forward_check_tokens(const tsr_forward *forward, const tsr_tokens *tokens, uint64_t passes,
                                    uint64_t memory, tsr_err *err);

/* Computes the embeddings x [count][hidden], on the host. */
tsr_status tsr_forward_embed_states(tsr_forward *forward, const tsr_tokens *tokens, double *x, tsr_err *err);

/* A layer's inputs and outputs on the host, in `parts` of as many rows. An input may be an output. */
typedef struct tsr_forward_states {
    size_t parts;
    const double *in[2];
    double *out[2];
    tsr_activation *held; /* instead of these: input and output in memory of the operations; NULL: none */
} tsr_forward_states;

/* Runs layer `layer` of a model over states; `tokens` are those of all parts. Runs as many sequences at a time as the
 * memory of the operations has room for. */
tsr_status tsr_forward_run_layer(tsr_forward *forward, size_t layer, const tsr_tokens *tokens,
                                 const tsr_forward_states *states, uint32_t *choices, bool *routed, tsr_err *err);

tsr_judgement tsr_forward_blank(const char *subject, const char *what, tsr_error_kind kind);

/* Returns a fault if the source's values are NaN or Inf, because nothing can be compared with them; else NULL. */
const char *tsr_forward_nonfinite(const tsr_metrics *metrics);

/* Describes an index: "sequence 1, token 12, channel 3". */
void tsr_forward_locate(const tsr_forward_check *check, uint64_t index, size_t width, const char *column, char *text,
                        size_t size);

/* Returns log sum exp x[i], shifted to avoid overflow. */
double tsr_log_sum(const double *x, size_t n);

/* Returns the divergence KL(softmax x || softmax y) in nats, at least 0; zx and zy are tsr_log_sum of both. */
double tsr_divergence(const double *x, double zx, const double *y, double zy, size_t n);

/* Computes logits [n][vocabulary] of n rows of states on the host. */
tsr_status tsr_forward_logits_of(tsr_forward *forward, const double *x, size_t n, double *logits, tsr_err *err);

/* Applies the final norm and head of each model to its current stream, and sums up the differences of the logits. */
tsr_status tsr_forward_compare_heads(tsr_forward_check *check, tsr_judgement *total, tsr_err *err);

/* Adds the last judgement: that of the logits. */
tsr_status tsr_forward_judge_logits(tsr_forward_check *check, tsr_err *err);
