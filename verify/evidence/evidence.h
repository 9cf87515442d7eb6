/* Results of kernel checks: one judgement per kernel, result type and tensor, with figures and the position of the largest
 * error. Quantization error and kernel error are separate judgements. */
#ifndef TSR_VERIFY_EVIDENCE_EVIDENCE_H
#define TSR_VERIFY_EVIDENCE_EVIDENCE_H

#include "common/arena.h"
#include "verify/compare/metrics.h"

#include <stdbool.h>

typedef enum tsr_error_kind {
    TSR_ERROR_QUANTIZATION, /* what the format costs: x the original, y the quantized operands' product, in double */
    TSR_ERROR_ABSORPTION,   /* what another order of the same products costs: both in double */
    TSR_ERROR_KERNEL,       /* what the kernel costs: x in double, y the kernel's, over the same operands */
    TSR_ERROR_CHECKPOINT,   /* what the checkpoint states, and cannot be: a NaN scale, sums that are not its codes' */
} tsr_error_kind;

typedef struct tsr_judgement {
    const char *subject; /* tensor, or set of experts */
    const char *what;    /* of kernel errors the kernel, with its arguments; else what was quantized */
    tsr_error_kind kind;
    tsr_metrics metrics;
    char worst_at[64];  /* "token 3, output 1029": where the largest error is; empty when there is none */
    double of_bound;    /* largest error / what the accumulation may do; negative: not judged by a bound */
    double of_expected; /* RMS of errors / what is to be expected of each; negative: not known */
    struct {
        bool known;
        double slope, offset; /* of the values; of what is to be expected of each: verify/evidence/kernel_tally.h */
        double sigmas;        /* what is beyond a sound kernel's, in standard errors */
    } bias;                   /* of a kernel's errors, which side they lean to */
    uint64_t choices, agreed; /* of a router or a head: how many, and how many alike; choices 0: none */
    struct {
        bool known;
        double mean, max; /* of positions: nats */
    } kl;                 /* divergence of the distributions that x and y are logits of */
    double limit;         /* of a forward pass: the least SQNR in dB that passes; NaN or 0: none */
    const char *fault;    /* NULL: within the limits, or without any */
    double seconds;       /* of one run of the kernel; 0: not timed */
} tsr_judgement;

/* The parts of a check, whose seconds are summed. */
typedef enum tsr_phase {
    TSR_PHASE_READ,
    TSR_PHASE_QUANTIZE, /* activations, and decoding operands */
    TSR_PHASE_ORACLE,
    TSR_PHASE_KERNELS,
    TSR_PHASE_JUDGE,
    TSR_N_PHASES,
} tsr_phase;

typedef struct tsr_skipped {
    const char *subject, *why;
} tsr_skipped;

/* Zero-initialised is empty. Results are in the order of the jobs, whichever ended first. */
typedef struct tsr_evidence {
    tsr_judgement *items;
    size_t count, capacity, failed;
    tsr_skipped *skipped;
    size_t n_skipped, skipped_capacity;
    double phases[TSR_N_PHASES]; /* summed over threads */
    double seconds;
    uint64_t bytes_read;
    size_t subjects, candidates; /* tensors or sets: how many were checked, of how many that could be */
    tsr_arena arena;             /* of the texts */
} tsr_evidence;

/* "quantization", "absorption", "kernel" or "checkpoint". Static storage. */
const char *tsr_error_kind_name(tsr_error_kind kind);

/* "read", ... Static storage. */
const char *tsr_phase_name(tsr_phase phase);

tsr_status tsr_evidence_add(tsr_evidence *evidence, const tsr_judgement *judgement, tsr_err *err) TSR_WARN_UNUSED;
tsr_status tsr_evidence_skip(tsr_evidence *evidence, const char *subject, const char *why,
                             tsr_err *err) TSR_WARN_UNUSED;

/* Appends everything in `more` to `evidence`; `more` is empty afterwards. */
tsr_status tsr_evidence_join(tsr_evidence *evidence, tsr_evidence *more, tsr_err *err) TSR_WARN_UNUSED;

/* TSR_E_UNSUPPORTED when nothing was judged, or, with `kernels`, when no kernel was judged and no fault was found: a
 * check that compared nothing must not pass. `path` is the checkpoint, for the message. */
tsr_status tsr_evidence_require(const tsr_evidence *evidence, bool kernels, const char *path,
                                tsr_err *err) TSR_WARN_UNUSED;

void tsr_evidence_free(tsr_evidence *evidence);

#endif
