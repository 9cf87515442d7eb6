/* Proves an output of `quantize` on held-out text (--prove): runs it, its source and its rounded counterpart.
 *
 * The counterpart is the plan of the same command with the nearest codes under scales that follow from the largest
 * values. It is made in the folder DST.rounded, like any output, and removed afterwards. A killed run leaves it behind,
 * and the same command resumes it. DST is only read. */
#pragma once

#include "cli/command.h"
#include "cli/show/pass_options.h"
#include "cli/show/verify_forward.h"
#include "convert/jobs/quantize_job.h"

typedef struct tsr_proof {
    const tsr_quantize_job *of; /* set by the command: the job whose output is proven */

    /* Set from the command line. */
    tsr_pass_options pass; /* `tokens` NULL: no proof. `memory` is not used */
    bool exact;

    /* Set by tsr_proof_open. */
    tsr_quantize_job plain;
    tsr_plan plan;       /* the counterpart's; without steps if the job rounds plainly */
    const char *rounded; /* folder of the counterpart; NULL: unknown */

    tsr_verify_forward forward;
    bool made; /* the passes were run */
} tsr_proof;

/* Returns no proof of a job. */
tsr_proof tsr_proof_defaults(const tsr_quantize_job *of);

/* Appends the options that fill *proof, which must not move. */
void tsr_proof_options(tsr_proof *proof, tsr_option *options);

/* The context of these functions is that of a command whose job begins with a tsr_plan_job; they do nothing without a
 * proof. */

/* Rejects options that cannot be combined with --prove, or need it. */
tsr_status tsr_proof_check(const tsr_command_context *context, tsr_err *err);

/* Plans the counterpart, and checks everything that can fail before the output is begun: the family, the tokens, the
 * device, the memory, the folder of the counterpart and the free space. The plan of the output has been made. */
tsr_status tsr_proof_open(tsr_command_context *context, tsr_err *err);

/* Makes the counterpart, runs the passes, and removes the counterpart. The output is complete. Adds the check "proof"
 * to the judged checks of the job, with a finding if the counterpart is nearer to the source. */
tsr_status tsr_proof_run(tsr_command_context *context, tsr_terminal *terminal, tsr_err *err);

/* Print what a dry run plans, and the figures of a proof. */
void tsr_proof_print_plan(const tsr_proof *proof);
void tsr_proof_print(const tsr_proof *proof);

/* Appends the member `proof`, if the passes were run. */
void tsr_proof_json(tsr_text *text, const tsr_proof *proof);

void tsr_proof_free(tsr_proof *proof);
