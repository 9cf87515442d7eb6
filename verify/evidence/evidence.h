/* Results of kernel checks: one judgement per kernel, result type and tensor, with figures and the position of the
 * largest error. Quantization error and kernel error are separate judgements. */
#pragma once

#include "common/arena.h"
#include "verify/compare/metrics.h"

#include <stdbool.h>

typedef enum tsr_error_kind {
    TSR_ERROR_QUANTIZATION, /* error of the format: x is the original, y the product of the quantized operands, in
                             * double */
    TSR_ERROR_ABSORPTION,   /* error of another order of the same products: both in double */
    TSR_ERROR_KERNEL,       /* error of the kernel: x in double, y by the kernel, over the same operands */
    TSR_ERROR_CHECKPOINT,   /* an impossible statement of the checkpoint: a NaN scale, sums that are not those of its
                             * codes */
} tsr_error_kind;

typedef struct tsr_judgement {
    const char *subject; /* tensor or set of experts */
    const char *what;    /* for kernel errors the kernel with its arguments; otherwise what was quantized */
    tsr_error_kind kind;
    tsr_metrics metrics;
    char worst_at[64];  /* "token 3, output 1029": position of the largest error; empty: none */
    double of_bound;    /* largest error / bound of the accumulation; negative: no bound */
    double of_expected; /* RMS of errors / expected RMS; negative: unknown */
    struct {
        bool known;
        double slope, offset; /* relative to the values, and to the expected error: verify/evidence/kernel_tally.h */
        double sigmas;        /* excess over a correct kernel, in standard errors */
    } bias;                   /* direction of a kernel's errors */
    uint64_t choices, agreed; /* for a router or a head: number of choices, and of equal ones; choices 0: none */
    uint64_t tokens, tokens_agreed; /* for an indexer: number of tokens chosen, and of equal ones; tokens 0: none */
    struct {
        bool known;
        double mean, max; /* mean and maximum over positions, in nats */
    } kl;                 /* divergence of the distributions whose logits are x and y */
    double limit;         /* for a forward pass: least SQNR in dB that passes; NaN or 0: none */
    const char *fault;    /* NULL: within the limits, or no limits */
    double seconds;       /* time of one run of the kernel; 0: not measured */
} tsr_judgement;

/* The parts of a check whose times are summed. */
typedef enum tsr_phase {
    TSR_PHASE_READ,
    TSR_PHASE_QUANTIZE, /* activations and decoding of operands */
    TSR_PHASE_ORACLE,
    TSR_PHASE_KERNELS,
    TSR_PHASE_JUDGE,
    TSR_N_PHASES,
} tsr_phase;

typedef struct tsr_skipped {
    const char *subject, *why;
} tsr_skipped;

/* A zero-initialized one is empty. Results are in the order of the jobs, not in the order in which they ended. */
typedef struct tsr_evidence {
    tsr_judgement *items;
    size_t count, capacity, failed;
    tsr_skipped *skipped;
    size_t n_skipped, skipped_capacity;
    double phases[TSR_N_PHASES]; /* summed over threads */
    double seconds;
    uint64_t bytes_read;
    size_t subjects, candidates; /* number of checked tensors or sets, and of those that could be checked */
    tsr_arena arena;             /* memory of the texts */
} tsr_evidence;

/* Returns the name: "quantization", "absorption", "kernel" or "checkpoint". Static storage. */
const char *tsr_error_kind_name(tsr_error_kind kind);

/* Returns the name: "read", ... Static storage. */
const char *tsr_phase_name(tsr_phase phase);

tsr_status tsr_evidence_add(tsr_evidence *evidence, const tsr_judgement *judgement, tsr_err *err);
tsr_status tsr_evidence_skip(tsr_evidence *evidence, const char *subject, const char *why, tsr_err *err);

/* Appends everything in `more` to `evidence` and empties `more`. */
tsr_status tsr_evidence_join(tsr_evidence *evidence, tsr_evidence *more, tsr_err *err);

/* Fails if nothing was judged, or, with `kernels`, if no kernel was judged and no fault was found, because a check that
 * compared nothing must not pass. TSR_E_UNSUPPORTED. `path` is the checkpoint, for the message. */
tsr_status tsr_evidence_require(const tsr_evidence *evidence, bool kernels, const char *path, tsr_err *err);

void tsr_evidence_free(tsr_evidence *evidence);
