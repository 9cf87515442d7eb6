/* Checked file I/O: whole reads at an offset, and outputs that appear whole or not at all. */
#ifndef TSR_COMMON_FILE_H
#define TSR_COMMON_FILE_H

#include "common/arena.h"
#include "common/status.h"

#include <dirent.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* As open with mode 0666, close-on-exec, fsync, fdatasync, ftruncate and flock, and once more whenever a signal came in
 * between: file systems of a network or of a program let them be interrupted, too. */
int tsr_open(const char *path, int flags);
int tsr_sync(int fd);
int tsr_sync_data(int fd);
int tsr_resize(int fd, uint64_t size);
int tsr_lock(int fd, int how);

/* Reads exactly `size` bytes at `offset`. A file that ends early is TSR_E_IO ("shrank while being read"). Thread-safe.
 * `path` is for messages. */
tsr_status tsr_read_at(int fd, const char *path, void *data, size_t size, uint64_t offset,
                       tsr_err *err) TSR_WARN_UNUSED;

/* Writes exactly `size` bytes at `offset`. Thread-safe. */
tsr_status tsr_write_at(int fd, const char *path, const void *data, size_t size, uint64_t offset,
                        tsr_err *err) TSR_WARN_UNUSED;

/* The state of a file when it was opened, kept to find out later whether it was changed or replaced. */
typedef struct tsr_stamp {
    uint64_t device, inode, size, names; /* names: hard links */
    int64_t mtime_ns, ctime_ns;
} tsr_stamp;

/* Returns true for the values of errno by which a path leads to no file. */
bool tsr_is_absent(int code);

/* Opens a regular file for reading; *size is its length, *stamp (may be NULL) its state. TSR_E_FORMAT: there is no such file. */
tsr_status tsr_open_input(const char *path, int *fd, uint64_t *size, tsr_stamp *stamp, tsr_err *err) TSR_WARN_UNUSED;

/* TSR_E_IO: the file that was opened as `path` has changed since, or its name leads to another one. Hard links that were made or
 * removed since are no change, where their number says so or, if `linked`, in any case. Thread-safe. */
tsr_status tsr_check_stamp(int fd, const char *path, const tsr_stamp *stamp, bool linked, tsr_err *err) TSR_WARN_UNUSED;

/* A whole small file (at most `limit` bytes) into the arena, NUL-terminated. */
tsr_status tsr_read_file(const char *path, uint64_t limit, tsr_arena *arena, const char **data, size_t *size,
                         tsr_err *err) TSR_WARN_UNUSED;

/* Writes a whole file under the name `temporary`, which must be free, then commits it as `path`. On failure nothing
 * stays behind. */
tsr_status tsr_replace_file(const char *path, const char *temporary, const void *data, size_t size,
                            tsr_err *err) TSR_WARN_UNUSED;

/* The same, with a temporary name of its own making beside `path`. */
tsr_status tsr_write_file(const char *path, const void *data, size_t size, tsr_err *err) TSR_WARN_UNUSED;

/* fsync of `fd`, then rename `from` to `to`, then fsync of the folder of `to`: after TSR_OK the file survives a power
 * cut under its new name. */
tsr_status tsr_commit_file(int fd, const char *from, const char *to, tsr_err *err) TSR_WARN_UNUSED;

/* fsync of a directory, which makes renames in it durable. */
tsr_status tsr_sync_dir(const char *path, tsr_err *err) TSR_WARN_UNUSED;

/* Syncs the directory that holds `path`. A directory without read permission cannot be synced and is passed over. */
tsr_status tsr_sync_parent(const char *path, tsr_err *err) TSR_WARN_UNUSED;

/* The next entry of a directory that is open, NULL behind the last one; one that cannot be read is no end. `path` is for
 * messages. */
tsr_status tsr_next_entry(DIR *dir, const char *path, const struct dirent **entry, tsr_err *err) TSR_WARN_UNUSED;

/* Removes a file; one that is not there is fine. */
tsr_status tsr_remove_file(const char *path, tsr_err *err) TSR_WARN_UNUSED;

/* Makes a directory and its parents, durably; one that exists is fine. */
tsr_status tsr_make_dirs(const char *path, tsr_err *err) TSR_WARN_UNUSED;

/* Bytes that an ordinary user may still write on the file system of `path`; UINT64_MAX where it states none. */
tsr_status tsr_free_space(const char *path, uint64_t *bytes, tsr_err *err) TSR_WARN_UNUSED;

/* Files that may still be created on the file system of `path`; UINT64_MAX where it sets no limit. */
tsr_status tsr_free_files(const char *path, uint64_t *files, tsr_err *err) TSR_WARN_UNUSED;

/* Sets *exists if `path` exists. Missing permission to find out is an error. */
tsr_status tsr_exists(const char *path, bool *exists, tsr_err *err) TSR_WARN_UNUSED;

#endif
