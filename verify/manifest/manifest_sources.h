/* Parses the sources of a manifest: names and sizes of their files, and digests of the bytes that were read
 * (docs/formats.md). Shares no code with the writer. */
#pragma once

#include "verify/manifest/manifest_parse.h"

/* Bytes of a file with one digest: `rows` runs of `row_bytes`, `pitch` apart, the first at `offset`. */
typedef struct tsr_manifest_window {
    uint64_t offset, rows, row_bytes, pitch;
} tsr_manifest_window;

/* One tensor, or another part of a file, that a step has read. */
typedef struct tsr_manifest_input {
    uint64_t number, source;
    const char *file, *name;
    size_t first_window, n_windows;
} tsr_manifest_input;

/* Everything that a step has read, which has one digest. */
typedef struct tsr_manifest_step {
    tsr_manifest_digest sum;
    size_t first_input, n_inputs;
} tsr_manifest_step;

typedef struct tsr_manifest_origin {
    const char *name;
    uint64_t bytes;
    uint64_t header; /* XXH3-64 of its header, if it has tensors */
    bool has_header;
} tsr_manifest_origin;

typedef struct tsr_manifest_sources {
    tsr_manifest_step *reads;
    size_t n_reads, reads_capacity;
    tsr_manifest_input *inputs;
    size_t n_inputs, inputs_capacity;
    tsr_manifest_window *windows;
    size_t n_windows, windows_capacity;
    tsr_manifest_origin *files; /* files of the first source */
    size_t n_files, files_capacity;
    tsr_manifest_digest config; /* digest of the first source's config.json */
    bool has_config;
    bool any; /* the manifest has digests of the data that was read */
    tsr_arena arena;
} tsr_manifest_sources;

/* Reads the sources of a manifest that tsr_manifest_read has accepted. TSR_E_FORMAT, TSR_E_UNSUPPORTED. They must be
 * freed even after a failure. */
tsr_status tsr_manifest_sources_read(tsr_manifest_sources *reads, const char *path, tsr_err *err);
void tsr_manifest_sources_free(tsr_manifest_sources *reads);
