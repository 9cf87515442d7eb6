/* What the files of this room share: objects, and the way in and out of a call. */
#ifndef TSR_LIB_ROOM_H
#define TSR_LIB_ROOM_H

#define TESSERA_API __attribute__((visibility("default")))

#include "common/options.h"
#include "common/threads.h"
#include "formats/model/weights.h"
#include "lib/tessera.h"

#include <fenv.h>

/* A call that is under way: where it fails, and the floating-point mode that the caller has. */
typedef struct tsr_call {
    tsr_err err;
    fenv_t mode;
} tsr_call;

/* Sets the mode in which the arithmetic is defined. */
void tsr_call_begin(tsr_call *call);

/* Sets the caller's mode again, tells *error what failed, if anything did, and says so. */
tessera_status tsr_call_end(tsr_call *call, tsr_status status, tessera_error *error);

/* A file in memory, which stands for the file of a checkpoint. */
typedef struct tsr_memory {
    int fd;
    char *map;
    size_t size;
    tsr_file file;
    tsr_checkpoint base; /* of this file, without a tensor */
} tsr_memory;

struct tessera_checkpoint {
    const tsr_checkpoint *of;
    tsr_weights weights;
    tsr_checkpoint *opened; /* a path's; NULL: what is seen lies in `memory` */
    tsr_checkpoint seen;
    tsr_memory memory;
    tsr_arena arena; /* names and configuration of what lies in memory */
};

/* All zeros, to be closed whatever happens; NULL: out of memory. */
tessera_checkpoint *tsr_checkpoint_new(void);

/* Makes room for `size` bytes of tensors. */
tsr_status tsr_memory_make(tsr_memory *memory, size_t size, tsr_err *err) TSR_WARN_UNUSED;

/* Has *checkpoint see these tensors of its memory, whose offsets are places in the map, and pairs them. Takes tensors->items; names
 * and `config` (NULL: none) are in checkpoint->arena. */
tsr_status tsr_memory_see(tessera_checkpoint *checkpoint, tsr_tensors *tensors, const char *config, tsr_block block,
                          tsr_err *err) TSR_WARN_UNUSED;

/* The same of arrays, which are copied. */
tsr_status tsr_memory_take(tessera_checkpoint *checkpoint, const tessera_array *arrays, size_t n, const char *config,
                           tsr_block block, tsr_err *err) TSR_WARN_UNUSED;

/* Reads words into the places that a table names; no word stands alone. */
tsr_status tsr_words_parse(const char *const *words, const tsr_option *options, uint64_t *given,
                           tsr_err *err) TSR_WARN_UNUSED;

/* A caller that watches a job: its progress becomes the caller's, and the caller's answer a wish to stop. */
typedef struct tsr_watch {
    tessera_progress_fn *tell;
    void *data;
    atomic_bool cancel;
} tsr_watch;

/* Run options for a job that *watch, which outlives it, is told of. */
tsr_run_options tsr_watch_options(tsr_watch *watch, uint64_t threads, uint64_t memory);

#endif
