/* The files of a checkpoint's directory, by name. */
#pragma once

#include "common/status.h"
#include "formats/checkpoint/archive.h"

#include <stdbool.h>
#include <stddef.h>

#define TSR_SHARD_SUFFIX  ".safetensors"
#define TSR_PACKED_SUFFIX TSR_SHARD_SUFFIX TSR_ARCHIVE_SUFFIX

/* The file with the row sums of int8 weights (X.azp_adj, X.azp_with_adj). It is beside a model, not part of it. */
#define TSR_AZP_NAME "tessera-azp.safetensors"

/* The manifest of an output with digests of its files. It describes only that output, so neither it nor its signatures
 * are copied. */
#define TSR_MANIFEST_NAME "tessera.manifest.json"

/* The names of all regular files below a directory: "model.safetensors", "folder/file". The caller sets the last four
 * members, which are borrowed, and begins with the others zero. */
typedef struct tsr_listing {
    char **names; /* sorted */
    size_t count, capacity;
    const char *const *ignore; /* [n_ignore]: globs of files to leave out */
    size_t n_ignore;
    bool *fits;       /* [n_ignore]: set for each glob that matches a file or folder; may be NULL */
    const char *only; /* leave out all shards except this one; NULL: keep all */
} tsr_listing;

/* Lists the files of an address instead of a folder on disk, by the same rules. */
tsr_status tsr_listing_take(tsr_listing *l, const tsr_remote *remote, tsr_err *err);

/* Lists the files of `root` without those in hidden folders, which are not part of a model. TSR_E_FORMAT: a name with a
 * control character, or a broken link. Free the listing whatever the result. */
tsr_status tsr_listing_read(tsr_listing *l, const char *root, tsr_err *err);
void tsr_listing_free(tsr_listing *l);

/* Return true if a file of a listing holds tensors, plain or packed, or is an index. */
bool tsr_listing_is_shard(const char *name);
bool tsr_listing_is_index(const char *name);

/* Returns true for the manifest of an output and its signatures (.sig, .minisig, .asc, .gpg, .p7s, .sigstore,
 * .sigstore.json). */
bool tsr_listing_is_manifest(const char *name);

/* Returns true for a file beside safetensors that may hold the same weights for another program: pytorch_model.bin,
 * model.gguf, and all in the folders original, onnx and metal. */
bool tsr_listing_is_other_weights(const char *name);

/* Writes DIR/NAME to `path`, which has PATH_MAX bytes. TSR_E_IO: it is longer than the system allows. */
tsr_status tsr_join_path(char *path, const char *dir, const char *name, tsr_err *err);

/* TSR_E_FORMAT if `path` is a link that leaves `dir`. It may point inside, or from snapshots/<revision>/ of a hub cache
 * to its blobs/. */
tsr_status tsr_check_inside(const char *dir, const char *path, tsr_err *err);
