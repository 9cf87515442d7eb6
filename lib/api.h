/* Objects of the library, and the entry and exit of its calls. Private to lib/. */
#pragma once

#define TESSERA_API __attribute__((visibility("default")))

#include "common/options.h"
#include "common/parallel/threads.h"
#include "formats/weights/weights.h"
#include "lib/tessera.h"

#include <fenv.h>

/* The state of a call: its failure, and the floating-point mode of the caller. */
typedef struct tsr_call {
    tsr_err err;
    fenv_t mode;
} tsr_call;

/* Saves the floating-point mode and sets the mode that the arithmetic requires. */
void tsr_call_begin(tsr_call *call);

/* Restores the caller's floating-point mode, writes a failure to *error and returns the status. */
tessera_status tsr_call_end(tsr_call *call, tsr_status status, tessera_error *error);

/* An in-memory file that replaces a checkpoint's file. */
typedef struct tsr_memory {
    int fd;
    char *map;
    size_t size;
    tsr_file file;
    tsr_checkpoint base; /* a checkpoint that consists of this file and has no tensors */
} tsr_memory;

struct tessera_checkpoint {
    const tsr_checkpoint *of;
    tsr_weights weights;
    tsr_checkpoint *opened; /* the checkpoint of a path; NULL: `seen`, in `memory` */
    tsr_checkpoint seen;
    tsr_memory memory;
    tsr_arena arena; /* names and configuration of arrays */
};

/* Returns an empty checkpoint, to be freed with tessera_close; NULL: out of memory. */
tessera_checkpoint *tsr_checkpoint_new(void);

/* Allocates `size` bytes for tensors. */
tsr_status tsr_memory_make(tsr_memory *memory, size_t size, tsr_err *err);

/* Makes `tensors`, whose offsets are positions in the map, the tensors of *checkpoint, and pairs them. Takes
 * tensors->items. Names and `config` (NULL: none) are in checkpoint->arena. */
tsr_status tsr_memory_see(tessera_checkpoint *checkpoint, tsr_tensors *tensors, const char *config, tsr_block block,
                          tsr_err *err);

/* Copies arrays into memory and calls tsr_memory_see. */
tsr_status tsr_memory_take(tessera_checkpoint *checkpoint, const tessera_array *arrays, size_t n, const char *config,
                           tsr_block block, tsr_err *err);

/* Parses option words into the fields of an option table. Positional words are rejected. */
tsr_status tsr_words_parse(const char *const *words, const tsr_option *options, uint64_t *given, tsr_err *err);

/* The caller's progress callback and its request to stop. */
typedef struct tsr_api_watch {
    tessera_progress_fn *tell;
    void *data;
    atomic_bool cancel;
} tsr_api_watch;

/* Returns run options that report progress to *watch, which must outlive the job. */
tsr_run_options tsr_watch_options(tsr_api_watch *watch, uint64_t threads, uint64_t memory);
