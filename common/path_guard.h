/* The set of a command's input paths, used to refuse outputs that overlap them.
 *
 * Compares files and folders by device and inode, so symlinks, "..", bind mounts and hard links make no difference.
 * A refusal is TSR_E_USAGE; its message names the output and the source. */
#pragma once

#include "common/status.h"

#include <limits.h>
#include <stddef.h>
#include <sys/stat.h>

typedef struct tsr_identity {
    dev_t dev;
    ino_t ino;
    const char *source; /* the path as the user gave it; borrowed */
} tsr_identity;

typedef struct tsr_identities {
    tsr_identity *items;
    size_t count, capacity;
} tsr_identities;

/* An empty set is zero-initialised. */
typedef struct tsr_path_guard {
    tsr_identities files, folders; /* identities of sources and their contents; tsr_path_guard_read sorts `files` */
    tsr_identities above;          /* the folders that the sources lie in */
} tsr_path_guard;

/* Adds `n` sources: files and folders, which need not exist. Skips NULL. The caller frees *guard after an error,
 * too. */
tsr_status tsr_path_guard_read(tsr_path_guard *guard, const char *const *sources, size_t n, tsr_err *err);

/* Adds one folder without its contents. */
tsr_status tsr_path_guard_add_folder(tsr_path_guard *guard, const char *folder, const struct stat *st, tsr_err *err);

/* Refuses an output directory that lies in a source, contains one, or links into one. The directory need not exist. If
 * it contains the directory `own`, an earlier run made it; existing hard links there are then allowed. */
tsr_status tsr_path_guard_check_directory(const tsr_path_guard *guard, const char *dst, const char *own, tsr_err *err);

/* Refuses `output` if `folder`, its existing parent, or a folder above that belongs to a source. */
tsr_status tsr_path_guard_check_outside(const tsr_path_guard *guard, const char *output, const char *folder,
                                        tsr_err *err);

/* Refuses `output` if the file *st belongs to a source. */
tsr_status tsr_path_guard_check_file(const tsr_path_guard *guard, const char *output, const struct stat *st,
                                     tsr_err *err);

/* Finds the deepest existing folder on the way to `path`, and the number of folders to create below it. ".." removes a
 * folder to create, as in mkdir. */
tsr_status tsr_path_guard_resolve(const char *path, char existing[PATH_MAX], size_t *missing, tsr_err *err);

void tsr_path_guard_free(tsr_path_guard *guard);
