/* Checked file I/O: whole reads at an offset, and outputs that appear whole or not at all. */
#ifndef TSR_FORMATS_FILE_H
#define TSR_FORMATS_FILE_H

#include "formats/arena.h"
#include "formats/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Reads exactly `size` bytes at `offset`. A file that ends early is TSR_E_IO ("shrank while being read"). Thread-safe.
 * `path` is for messages. */
tsr_status tsr_read_at(int fd, const char *path, void *data, size_t size, uint64_t offset,
                       tsr_err *err) TSR_WARN_UNUSED;

/* Writes exactly `size` bytes at `offset`. Thread-safe. */
tsr_status tsr_write_at(int fd, const char *path, const void *data, size_t size, uint64_t offset,
                        tsr_err *err) TSR_WARN_UNUSED;

/* Opens a regular file for reading; *size is its length, *mtime_ns (may be NULL) its modification time. */
tsr_status tsr_open_input(const char *path, int *fd, uint64_t *size, int64_t *mtime_ns, tsr_err *err) TSR_WARN_UNUSED;

/* A whole small file (at most `limit` bytes) into the arena, NUL-terminated. */
tsr_status tsr_read_file(const char *path, uint64_t limit, tsr_arena *arena, const char **data, size_t *size,
                         tsr_err *err) TSR_WARN_UNUSED;

/* Writes a whole file: temporary name beside it, fsync, rename, fsync of the folder. On failure nothing stays behind.
 */
tsr_status tsr_write_file(const char *path, const void *data, size_t size, tsr_err *err) TSR_WARN_UNUSED;

/* fsync of `fd`, then rename `from` to `to`, then fsync of the folder of `to`: after TSR_OK the file survives a power
 * cut under its new name. */
tsr_status tsr_commit_file(int fd, const char *from, const char *to, tsr_err *err) TSR_WARN_UNUSED;

/* fsync of a directory, which makes renames in it durable. */
tsr_status tsr_sync_dir(const char *path, tsr_err *err) TSR_WARN_UNUSED;

/* Makes a directory and its parents; one that exists is fine. */
tsr_status tsr_make_dirs(const char *path, tsr_err *err) TSR_WARN_UNUSED;

/* Bytes that an ordinary user may still write on the file system of `path`. */
tsr_status tsr_free_space(const char *path, uint64_t *bytes, tsr_err *err) TSR_WARN_UNUSED;

#endif
