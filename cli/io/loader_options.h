/* Options that name loaders and a GPU. */
#pragma once

#include "common/options.h"
#include "convert/jobs/plan_preview.h"
#include "formats/loaders/loaders.h"

/* Choices of --gpu, in the order of tsr_gpu_model. */
#define TSR_GPU_WORDS "any|h100|b200|mi300"

/* The largest tensor-parallel size of --tp. */
enum { TSR_MOST_TP = 4096 };

/* The loaders, the TP size and the GPU that an output is for. */
typedef struct tsr_target_options {
    const char *loaders; /* names separated by commas; NULL: any */
    uint64_t tp;         /* the tensor-parallel size; 0 or 1 without loaders */
    int gpu;             /* a tsr_gpu_model */
} tsr_target_options;

/* Appends --for, --tp and --gpu, and sets the TP size to 1. */
void tsr_target_options_append(tsr_target_options *target, tsr_option *options);

/* Rejects --tp and --gpu without --for, too large sizes, and unknown loaders. */
tsr_status tsr_target_options_check(const tsr_target_options *target, tsr_err *err);

/* Adds the loaders in `text`, the value of the option `name`, to the table: "all", or names separated by commas. */
tsr_status tsr_parse_loaders(const char *name, const char *text, tsr_load_table *table, tsr_err *err);

/* Rejects an output that one of the loaders (not NULL) cannot load at the TP size on the GPU. TSR_E_UNSUPPORTED: the
 * message has the loader, the tensor, the reason and a remedy. `what` is the output in words: "--scheme nvfp4". */
tsr_status tsr_target_check(const tsr_target_options *target, const tsr_plan_preview *output, const char *what,
                            tsr_err *err);
