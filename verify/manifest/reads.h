/* What a manifest says of the sources that an output was made of: names and sizes of their files, and digests of what was read of them
 * (docs/formats.md). It shares no code with what writes it. */
#ifndef TSR_VERIFY_MANIFEST_READS_H
#define TSR_VERIFY_MANIFEST_READS_H

#include "verify/manifest/said.h"

/* Bytes of a file that were digested together: `rows` runs of `row_bytes`, `pitch` apart, the first at `offset`. */
typedef struct tsr_said_window {
    uint64_t offset, rows, row_bytes, pitch;
} tsr_said_window;

/* One tensor, or other part of a file, that a step has read. */
typedef struct tsr_said_input {
    uint64_t number, source;
    const char *file, *name;
    size_t first_window, n_windows;
} tsr_said_input;

/* All that a step has read, which has one digest. */
typedef struct tsr_said_step {
    tsr_said_digest sum;
    size_t first_input, n_inputs;
} tsr_said_step;

typedef struct tsr_said_origin {
    const char *name;
    uint64_t bytes;
    uint64_t header; /* the XXH3-64 of its header, where it has tensors */
    bool has_header;
} tsr_said_origin;

typedef struct tsr_said_reads {
    tsr_said_step *reads;
    size_t n_reads, reads_capacity;
    tsr_said_input *inputs;
    size_t n_inputs, inputs_capacity;
    tsr_said_window *windows;
    size_t n_windows, windows_capacity;
    tsr_said_origin *files; /* of the first source */
    size_t n_files, files_capacity;
    tsr_said_digest config; /* of the first source's config.json */
    bool has_config;
    bool any; /* the manifest has digests of what was read */
    tsr_arena arena;
} tsr_said_reads;

/* Reads them of a manifest that tsr_said_read has taken. TSR_E_FORMAT, TSR_E_UNSUPPORTED. Free it whatever the outcome. */
tsr_status tsr_said_reads_read(tsr_said_reads *reads, const char *path, tsr_err *err) TSR_WARN_UNUSED;
void tsr_said_reads_free(tsr_said_reads *reads);

#endif
