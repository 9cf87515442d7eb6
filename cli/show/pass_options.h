/* The options of a command that runs tokens of a file through models: calibrate, sensitivities, quantize --prove. */
#pragma once

#include "common/options.h"
#include "verify/forward/check_forward.h"

typedef struct tsr_pass_options {
    const char *tokens; /* file; NULL: not given */
    uint64_t sequences; /* most sequences; 0: all */
    uint64_t length;    /* most tokens of a sequence */
    uint64_t memory, devices;
    int device, precision; /* a tsr_device_kind, a tsr_precision */
} tsr_pass_options;

/* Returns the defaults. */
tsr_pass_options tsr_pass_options_defaults(void);

/* Appends the options that fill *pass, which must not move. */
void tsr_pass_options_append(tsr_pass_options *pass, tsr_option *options);

/* Rejects numbers that are too large or 0. */
tsr_status tsr_pass_options_check(const tsr_pass_options *pass, tsr_err *err);

/* Returns the reason why such passes cannot be sandboxed (tsr_io_paths.unconfined). */
const char *tsr_pass_unconfined(const tsr_pass_options *pass);

/* Returns the request of an exact pass of `side`. */
tsr_forward_request tsr_pass_request(const tsr_pass_options *pass, const tsr_side *side, tsr_run_options run);
