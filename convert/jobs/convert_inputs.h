/* Declares the inputs of `tessera convert`: one checkpoint, an original to compare with, or the ranks of a model. */
#pragma once

#include "convert/jobs/job_source.h"
#include "convert/jobs/scheme_options.h"
#include "convert/plans/views/decoded_view.h"

enum { TSR_MAX_CONVERTED = 256 };

/* Inputs that stay open while a conversion runs. */
typedef struct tsr_convert_inputs {
    tsr_checkpoint *checkpoints[TSR_MAX_CONVERTED];
    const tsr_checkpoint *sources[TSR_MAX_CONVERTED]; /* the same */
    size_t n;
    tsr_decoded_view view;     /* view of the source, if the target is a scheme */
    tsr_scheme_options scheme; /* as above */
} tsr_convert_inputs;

tsr_status tsr_open_source(const tsr_job_source *from, const char *path, tsr_convert_inputs *in, tsr_err *err);

/* Opens SRC/rank-0, SRC/rank-1, ..., as many as exist. */
tsr_status tsr_open_ranks(const tsr_job_source *from, tsr_convert_inputs *in, tsr_err *err);

/* Opens SRC/model0-mpN.safetensors and the files of the other ranks. N is found from the file names. */
tsr_status tsr_open_rank_files(const tsr_job_source *from, tsr_convert_inputs *in, tsr_err *err);

/* Plans to join such ranks. `config` is the path of the model's config.json; NULL: that of SRC. */
tsr_status tsr_plan_rank_files(const tsr_job_source *from, const char *config, const tsr_convert_inputs *in,
                               tsr_plan *plan, tsr_err *err);

/* Warns about each --ignore-file glob that matches no file of the opened checkpoints, a NULL-terminated array. On
 * failure the plan is freed. */
tsr_status tsr_warn_of_ignored(tsr_plan *plan, const tsr_job_source *from, tsr_checkpoint *const *opened, size_t n,
                               tsr_err *err);

/* Closes all of them. */
void tsr_close_inputs(tsr_convert_inputs *in);
