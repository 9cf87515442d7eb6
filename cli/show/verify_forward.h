/* The job of `tessera verify forward`: runs tokens through two models, or compares one with another implementation. */
#pragma once

#include "cli/command.h"
#include "cli/show/forward_baseline.h"
#include "report/model/result.h"
#include "verify/forward/check_forward.h"

typedef struct tsr_verify_forward {
    const char *sides[3];        /* SRC, DST, and the baseline or NULL; with a reference only the first */
    const tsr_list *ignore;      /* globs of files of SRC that are ignored; NULL: none */
    const char *reference;       /* NULL: none */
    uint64_t memory;             /* 0: no limit */
    tsr_forward_request request; /* except for the opened inputs and `run` */

    /* After opening. */
    tsr_checkpoint *checkpoints[3], *opened_reference;
    tsr_weights weights[3];
    tsr_side opened[3];
    tsr_evidence evidence;
    tsr_result result; /* a row for each judgement */
    tsr_forward_figures figures;
    tsr_forward_baseline baseline;
} tsr_verify_forward;

/* Opens the sides and the reference that are named and not open yet, and enters them in the request. */
tsr_status tsr_verify_forward_open(tsr_verify_forward *job, tsr_err *err);

/* Runs the model, and the baseline if there is one. */
tsr_status tsr_verify_forward_run(tsr_verify_forward *job, tsr_err *err);

/* Prints the figures of the logits and how the passes were run, and appends them to the open JSON object. */
void tsr_verify_forward_print_figures(const tsr_verify_forward *job);
void tsr_verify_forward_figures_json(const tsr_verify_forward *job, tsr_text *text);

void tsr_verify_forward_free(tsr_verify_forward *job);

/* Functions of a tsr_command whose job is a tsr_verify_forward. */
tsr_status tsr_verify_forward_print(tsr_command_context *context, tsr_err *err);
void tsr_verify_forward_json(const tsr_command_context *context, tsr_text *text);

/* Options that `verify forward` and `verify all` share, as given. */
typedef struct tsr_forward_texts {
    const char *baseline, *layers, *tokens, *min_stream, *max_kl, *min_top1;
    uint64_t sequences, length, devices;
    bool kl_by_layer, exact;
} tsr_forward_texts;

/* Returns the defaults. */
tsr_forward_texts tsr_forward_texts_defaults(void);

/* Appends the options that fill them. */
void tsr_forward_options(tsr_option *options, tsr_forward_texts *texts);

/* Parses their values into *request. */
tsr_status tsr_forward_texts_parse(tsr_forward_request *request, const tsr_forward_texts *texts, tsr_err *err);
