/* Checked file I/O: complete reads at an offset, and outputs that appear complete or not at all. */
#pragma once

#include "common/arena.h"
#include "common/status.h"

#include <dirent.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Like open with mode 0666, close-on-exec, fsync, fdatasync, ftruncate and flock, but repeated after interruption by a
 * signal, which network file systems and FUSE allow. */
int tsr_open(const char *path, int flags);
int tsr_sync(int fd);
int tsr_sync_data(int fd);
int tsr_resize(int fd, uint64_t size);
int tsr_lock(int fd, int how);

/* Reads exactly `size` bytes at `offset`. A file that ends early is TSR_E_IO ("shrank while being read"). Thread-safe.
 * `path` is for messages. */
tsr_status tsr_read_at(int fd, const char *path, void *data, size_t size, uint64_t offset, tsr_err *err);

/* Writes exactly `size` bytes at `offset`. Thread-safe. */
tsr_status tsr_write_at(int fd, const char *path, const void *data, size_t size, uint64_t offset, tsr_err *err);

/* The state of a file when it was opened, to detect changes and replacement. */
typedef struct tsr_stamp {
    uint64_t device, inode, size, names; /* names: hard links */
    int64_t mtime_ns, ctime_ns;
} tsr_stamp;

/* Returns true for the values of errno that mean that a path does not exist. */
bool tsr_is_absent(int code);

/* Opens a regular file for reading. *size receives its length, *stamp (may be NULL) its state. TSR_E_FORMAT: there is
 * no such file. */
tsr_status tsr_open_input(const char *path, int *fd, uint64_t *size, tsr_stamp *stamp, tsr_err *err);

/* Checks that the file opened as `path` has not changed and that its name still refers to it. TSR_E_IO otherwise. A
 * changed number of hard links is not a change if the rest of the state agrees or, if `linked`, in any case.
 * Thread-safe. */
tsr_status tsr_check_stamp(int fd, const char *path, const tsr_stamp *stamp, bool linked, tsr_err *err);

/* Reads a whole small file (at most `limit` bytes) into the arena, NUL-terminated. */
tsr_status tsr_read_file(const char *path, uint64_t limit, tsr_arena *arena, const char **data, size_t *size,
                         tsr_err *err);

/* Writes a whole file as `temporary`, which must not exist, then commits it as `path`. On failure nothing is left
 * behind. */
tsr_status tsr_replace_file(const char *path, const char *temporary, const void *data, size_t size, tsr_err *err);

/* The same, with an automatic temporary name beside `path`. */
tsr_status tsr_write_file(const char *path, const void *data, size_t size, tsr_err *err);

/* The same for a file that ends with the first `size` bytes of another one, which is open for reading as `fd`. */
typedef struct tsr_file_end {
    int fd;
    uint64_t size;
} tsr_file_end;

tsr_status tsr_write_long_file(const char *path, const void *data, size_t size, const tsr_file_end *end, tsr_err *err);

/* Syncs `fd`, renames `from` to `to`, then syncs the folder of `to`: after TSR_OK the file survives a power failure
 * under its new name. */
tsr_status tsr_commit_file(int fd, const char *from, const char *to, tsr_err *err);

/* Syncs a directory, which makes renames in it durable. */
tsr_status tsr_sync_dir(const char *path, tsr_err *err);

/* Syncs the directory of `path`. A directory without read permission cannot be synced and is skipped. */
tsr_status tsr_sync_parent(const char *path, tsr_err *err);

/* Reads the next entry of an open directory; NULL after the last one. A read error is not the end. `path` is for
 * messages. */
tsr_status tsr_next_entry(DIR *dir, const char *path, const struct dirent **entry, tsr_err *err);

/* Removes a file. A missing file is not an error. */
tsr_status tsr_remove_file(const char *path, tsr_err *err);

/* Removes a file, or a directory and all below it; links are not followed. A missing path is not an error. */
tsr_status tsr_remove_tree(const char *path, tsr_err *err);

/* Creates a directory and its parents, durably. An existing directory is not an error. */
tsr_status tsr_make_dirs(const char *path, tsr_err *err);

/* Return the bytes that an ordinary user may still write on the file system of `path`, and the number of files that may
 * still be created; UINT64_MAX: it has no limit, or does not report one. */
uint64_t tsr_free_bytes(const char *path);
uint64_t tsr_free_files(const char *path);

/* Sets *exists if `path` exists. Missing permission to find out is an error. */
tsr_status tsr_exists(const char *path, bool *exists, tsr_err *err);
