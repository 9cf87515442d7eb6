/* The job of `tessera verify DST --against SRC`, and its result as text and JSON. */
#pragma once

#include "cli/show/compare_sides.h"
#include "verify/compare/limit_options.h"

typedef struct tsr_verify_weights {
    tsr_compare_job compared; /* path[0]: SRC, path[1]: DST */
    tsr_weight_limits limits;
    tsr_weight_limit_texts texts; /* the limits as given */
    tsr_findings findings;
    tsr_result result; /* checks, findings and the whole */
} tsr_verify_weights;

/* Fills the result when the findings are complete. */
tsr_status tsr_verify_weights_fill(tsr_verify_weights *verification, const char *schema, tsr_err *err);

/* Functions of a tsr_command whose job is a tsr_verify_weights. */
tsr_status tsr_verify_weights_print(tsr_command_context *context, tsr_err *err);
void tsr_verify_weights_json(const tsr_command_context *context, tsr_text *text);
