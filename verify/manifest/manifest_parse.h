/* A parsed manifest (tessera.manifest.json, docs/formats.md). Everything in it has been checked for consistency. Shares
 * no code with the writer. */
#pragma once

#include "common/arena.h"
#include "common/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TSR_MAX_MANIFEST_BYTES ((uint64_t)4 << 30)

typedef struct tsr_manifest_digest {
    uint64_t high, low;
} tsr_manifest_digest;

/* Bytes of a file with one digest. */
typedef struct tsr_manifest_piece {
    uint64_t offset, bytes;
    tsr_manifest_digest digest;
    uint32_t file;
    const char *tensor; /* NULL: the header, or a file that is not divided into tensors */
} tsr_manifest_piece;

typedef struct tsr_manifest_file {
    const char *name;
    uint64_t bytes;
    size_t first_piece, n_pieces; /* pieces that cover it in order, without gaps */
} tsr_manifest_file;

typedef struct tsr_manifest {
    const char *version, *command;
    tsr_manifest_file *files;
    size_t n_files, files_capacity;
    tsr_manifest_piece *pieces;
    size_t n_pieces, pieces_capacity;
    uint64_t bytes;             /* bytes of all files */
    tsr_manifest_digest digest; /* digest of the manifest file itself */
    tsr_arena arena;
} tsr_manifest;

/* Reads a manifest. TSR_E_FORMAT: it is damaged by its own digest, contradicts itself, or names files outside of the
 * output. TSR_E_UNSUPPORTED: another version. It must be freed even after a failure. */
tsr_status tsr_manifest_read(tsr_manifest *manifest, const char *path, tsr_err *err);
void tsr_manifest_free(tsr_manifest *manifest);

tsr_manifest_digest tsr_manifest_digest_of(const void *data, size_t size);

/* ---- for manifest_sources.c, which reads another part of the same file ---- */

/* Parses 32 hex digits. Returns false if they are invalid. */
bool tsr_manifest_digest_parse(const char *hex, size_t size, tsr_manifest_digest *digest);
