/* What is read, so that nothing is written in, over, or as a part of it, whatever the paths look like.
 *
 * Files and folders are told apart by device and inode, so symlinks, "..", bind mounts and hard links make no difference.
 * Refusals are TSR_E_USAGE, and name the output and the source. */
#ifndef TSR_COMMON_APART_H
#define TSR_COMMON_APART_H

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

/* Zero-initialised is empty. */
typedef struct tsr_apart {
    tsr_identities files, folders; /* of the sources themselves; files are sorted once complete */
    tsr_identities above;          /* the folders that the sources lie in */
} tsr_apart;

/* Notes `n` sources, files and folders (NULL: none), which need not exist. Whatever it returns, *apart is to be freed. */
tsr_status tsr_apart_read(tsr_apart *apart, const char *const *sources, size_t n, tsr_err *err) TSR_WARN_UNUSED;

/* Notes one folder without what it holds. */
tsr_status tsr_apart_add_folder(tsr_apart *apart, const char *folder, const struct stat *st,
                                tsr_err *err) TSR_WARN_UNUSED;

/* Refuses an output directory, made or not, that lies in a source, holds one, or leads into one by a link. Where it has the folder
 * `own`, it is one that was made before: hard links beside that folder were made on purpose, and nobody writes through them. */
tsr_status tsr_apart_check_directory(const tsr_apart *apart, const char *dst, const char *own,
                                     tsr_err *err) TSR_WARN_UNUSED;

/* Refuses `output` if its folder, which exists, or one above that belongs to a source. */
tsr_status tsr_apart_check_outside(const tsr_apart *apart, const char *output, const char *folder,
                                   tsr_err *err) TSR_WARN_UNUSED;

/* Refuses `output` if the file *st is one of a source. */
tsr_status tsr_apart_check_file(const tsr_apart *apart, const char *output, const struct stat *st,
                                tsr_err *err) TSR_WARN_UNUSED;

/* Finds the deepest existing folder on the way to `path`, and how many folders have to be made below it. ".." undoes a
 * folder that has to be made, as it does for mkdir. */
tsr_status tsr_apart_resolve(const char *path, char existing[PATH_MAX], size_t *missing, tsr_err *err) TSR_WARN_UNUSED;

void tsr_apart_free(tsr_apart *apart);

#endif
