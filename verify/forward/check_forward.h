/* Measures how errors grow through a model (`verify forward`).
 *
 * It runs the source in double, and the model made from it as it is served. Each layer gets two figures: the
 * difference of the hidden states after it when each model runs on its own, and the error of the layer alone, when
 * the model's layer runs on the source's input. The logits get SQNR, Kullback-Leibler divergence, the share of
 * positions with the same likeliest token, and both perplexities. With a reference, the layers of another
 * implementation are compared with those of the source. See docs/verify-forward.md. */
#pragma once

#include "common/parallel/threads.h"
#include "verify/evidence/device.h"
#include "verify/evidence/evidence.h"
#include "verify/forward/forward.h"

/* Limits. SQNR: the least in dB of a layer alone, of the stream and of the logits (NaN: the expected loss,
 * verify/forward/check_parts.h). Logits: the largest divergence in nats, and the least share of positions with the
 * same likeliest token (NaN: no limit). */
typedef struct tsr_forward_limits {
    double min_sqnr, min_stream, max_kl, min_top1;
} tsr_forward_limits;

tsr_forward_limits tsr_forward_limits_defaults(void);

/* Names of the judgements of a layer, and of those after the last one. */
#define TSR_FORWARD_STREAM "stream of hidden states"
#define TSR_FORWARD_LAYER  "layer alone"
#define TSR_FORWARD_LOGITS "logits"

enum { TSR_FORWARD_DEVICES = 16 };

typedef struct tsr_forward_request {
    const tsr_side *source;
    const tsr_side *model;           /* model with the same sizes; NULL with a reference */
    const tsr_checkpoint *reference; /* NULL, or optional tensors input_ids [sequences, length], logits
                                        [.., vocabulary], hidden_states.N [.., hidden] before layer N */
    const char *tokens;              /* file for tsr_tokens_read_file; NULL: random by the seed */
    size_t sequences, length;        /* most sequences, and most tokens per sequence */
    size_t first, last;              /* layers (SIZE_MAX: the last); the first one gets the embeddings */
    uint64_t seed;
    bool kl_by_layer;        /* with `model`: apply the final norm and head of each model after every layer */
    bool exact;              /* compute the model's pass in double, too, so that only weights differ */
    tsr_input_choice inputs; /* without `exact`: quantization of the inputs of quantized layers */
    tsr_precision precision; /* products and attention */
    tsr_device_kind device;  /* AUTO: a GPU if there is one, else the CPU */
    size_t devices; /* GPUs, at most TSR_FORWARD_DEVICES: half of them for each model, which share its products; on the
                     * CPU they are simulated */
    tsr_forward_limits limits;
    tsr_run_options run; /* reports progress after each layer; memory 0: no limit */
} tsr_forward_request;

enum { TSR_KL_PERCENTILES = 4 }; /* 50, 90, 99, 99.9 */

/* Predictions of the text by both models; NaN: unknown. The standard error of a perplexity follows from that of the
 * mean of log p. A percentile is the smallest value that at least this share of the positions does not exceed. */
typedef struct tsr_forward_predictions {
    double perplexity[2], perplexity_error[2]; /* source and model, on tokens of a file */
    double kl_percentile[TSR_KL_PERCENTILES];  /* percentiles of KL(source || model) in nats over all positions */
} tsr_forward_predictions;

/* Returns predictions that are all unknown. */
tsr_forward_predictions tsr_forward_predictions_unknown(void);

/* Sizes and settings of the run. */
typedef struct tsr_forward_figures {
    size_t sequences, tokens;
    uint64_t weight_bytes, activation_bytes; /* bytes of weights read from both models; largest memory of activations */
    uint64_t bytes_between_devices;          /* activations that one device copied from another */
    uint64_t bytes_of_host;                  /* weights as doubles, and activations, copied between host and GPUs */
    tsr_forward_predictions predictions;
    tsr_input_coding inputs; /* inputs of the model's last quantized layer */
    size_t devices;
    char device[256];
} tsr_forward_figures;

/* Checks that a forward pass is implemented for both models. TSR_E_NOT_APPLICABLE: it is not, with the reason.
 * TSR_E_USAGE: the requested layers do not exist. Does not read weights or tokens. */
tsr_status tsr_forward_applies(const tsr_forward_request *request, tsr_err *err);

/* Checks what can be checked before a run: the devices exist, the forward passes are implemented, the tokens can be
 * read, are below the vocabulary and fit into run.memory. Reads no weights: the model may be a checkpoint without data.
 * Errors are those of tsr_check_forward. */
tsr_status tsr_forward_check_request(const tsr_forward_request *request, tsr_err *err);

/* Runs the check. Errors are those of verify/forward/forward.h and verify/forward/tokens/token_file.h, and:
 * TSR_E_USAGE: the layers do not exist. TSR_E_NOT_APPLICABLE: it needs more than run.memory. TSR_E_MISMATCH: the
 * models have different sizes. TSR_E_SHAPE: a tensor of the reference has another shape. */
tsr_status tsr_check_forward(const tsr_forward_request *request, tsr_evidence *evidence, tsr_forward_figures *figures,
                             tsr_err *err);
