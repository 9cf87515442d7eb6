/* Running tokens through two models, or through one beside another implementation: a job for cli/verify_kinds.h. */
#ifndef TSR_CLI_VERIFY_FORWARD_H
#define TSR_CLI_VERIFY_FORWARD_H

#include "cli/verify_kinds.h"
#include "verify/forward/check_forward.h"

typedef struct tsr_verify_forward {
    const char *sides[2];        /* SRC and DST; with a reference only the first */
    const char *reference;       /* NULL: none */
    uint64_t threads, memory;    /* memory 0: no limit */
    tsr_forward_request request; /* but for what is opened */

    /* After it was opened. */
    tsr_checkpoint *checkpoints[2], *opened_reference;
    tsr_weights weights[2];
    tsr_side opened[2];
    tsr_evidence evidence;
    tsr_forward_figures figures;
} tsr_verify_forward;

/* Whose jobs are tsr_verify_forward. */
extern const tsr_verify_kind tsr_kind_forward;

/* Options of `verify forward` that `verify all` has, too, as the command line gives them. */
typedef struct tsr_forward_texts {
    const char *layers, *tokens, *min_stream, *max_kl, *min_top1;
    uint64_t sequences, length, devices;
    bool kl_by_layer, exact;
} tsr_forward_texts;

/* With the defaults of this machine. */
tsr_verify_forward tsr_verify_forward_defaults(void);
tsr_forward_texts tsr_forward_texts_defaults(void);

/* The entries of a table of options that fill them. */
void tsr_forward_options(tsr_option *options, tsr_forward_texts *texts);

tsr_status tsr_forward_texts_parse(tsr_forward_request *request, const tsr_forward_texts *texts,
                                   tsr_err *err) TSR_WARN_UNUSED;

#endif
