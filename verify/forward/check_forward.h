/* How errors grow through a model: a forward pass of the source in double, and beside it one of the model made from it,
 * as it is served.
 *
 * Each layer gets two figures: how far the hidden states of the two models are apart behind it, when each model runs on
 * its own; and the error that the layer adds by itself, when the model's layer runs on the source's input. The logits
 * at the end get SQNR, Kullback-Leibler divergence, the share of positions with the same likeliest token, and both
 * perplexities. With a reference, the layers of another implementation are compared with those of the source instead.
 * docs/verify.md. */
#ifndef TSR_VERIFY_FORWARD_CHECK_FORWARD_H
#define TSR_VERIFY_FORWARD_CHECK_FORWARD_H

#include "common/threads.h"
#include "verify/evidence/device.h"
#include "verify/evidence/evidence.h"
#include "verify/forward/forward.h"

/* The least SQNR in dB of a layer alone, and of the stream and the logits (NaN: by what the layers are expected to lose,
 * verify/forward/check_parts.h); the largest divergence in nats, and the least share of positions whose likeliest token is the
 * same (NaN: no limit). */
typedef struct tsr_forward_limits {
    double min_sqnr, min_stream, max_kl, min_top1;
} tsr_forward_limits;

tsr_forward_limits tsr_forward_limits_defaults(void);

/* What the judgements of a layer, and those behind the last one, are called. */
#define TSR_FORWARD_STREAM "stream of hidden states"
#define TSR_FORWARD_LAYER  "layer alone"
#define TSR_FORWARD_LOGITS "logits"

enum { TSR_FORWARD_DEVICES = 16 };

typedef struct tsr_forward_request {
    const tsr_side *source;
    const tsr_side *model;           /* of the same sizes; NULL with a reference */
    const tsr_checkpoint *reference; /* input_ids [sequences, length], hidden_states.N [.., hidden] before layer N,
                                        logits [.., vocabulary]; what is not there is not held to anything. Or NULL */
    const char *tokens;              /* a file as tsr_tokens_read_file takes it; NULL: drawn by the seed */
    size_t sequences, length;        /* of tokens: so many at most */
    size_t first, last;              /* layers (SIZE_MAX: the last); embeddings go straight to the first */
    uint64_t seed;
    bool
        kl_by_layer; /* with `model`: both streams after every layer go through their model's final norm and head, too */
    bool exact;      /* the model's pass is in double, too: nothing but its weights differs from the source's */
    tsr_input_choice inputs; /* without `exact`: how inputs of quantized layers are quantized */
    tsr_device_kind device;  /* AUTO: a GPU where there is one, else the CPU */
    size_t devices; /* GPUs that share each product, at most TSR_FORWARD_DEVICES; on the CPU, stand-ins for them */
    tsr_forward_limits limits;
    tsr_run_options run; /* progress is told after each layer; memory 0: no limit */
} tsr_forward_request;

/* What was run. */
typedef struct tsr_forward_figures {
    size_t sequences, tokens;
    uint64_t weight_bytes, activation_bytes; /* read of both models; held at most, weights being read in bands */
    double perplexity[2];                    /* of the source and the model, of the tokens of a file; NaN: not known */
    tsr_input_coding inputs;                 /* of the model's last quantized layer */
    size_t devices;
    char device[256];
} tsr_forward_figures;

/* Whether both models are of a family and kind that a pass is known for. TSR_E_NOT_APPLICABLE: why not. TSR_E_USAGE: no
 * such layers. Weights and tokens are not looked at. */
tsr_status tsr_forward_applies(const tsr_forward_request *request, tsr_err *err) TSR_WARN_UNUSED;

/* Errors: as the functions of verify/forward/forward.h and verify/forward/token_file.h; TSR_E_USAGE: no such layers.
 * TSR_E_NOT_APPLICABLE: it would take more than run.memory.
 * TSR_E_MISMATCH: the models have other sizes. TSR_E_SHAPE: a tensor of the reference does not fit. */
tsr_status tsr_check_forward(const tsr_forward_request *request, tsr_evidence *evidence, tsr_forward_figures *figures,
                             tsr_err *err) TSR_WARN_UNUSED;

#endif
