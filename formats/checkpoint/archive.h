/* A file kept compressed, so that any part of it can be read alone: NAME.safetensors.zst.
 *
 * Independent zstd frames, each of one tensor's bytes (or the header's), at most 16 MiB of them; then two skippable
 * frames, together the tail. docs/archive.md has the layout. The last is the seek table of zstd's seekable format
 * (facebook/zstd, contrib/seekable_format), so that its tools read an archive as well; the other, of Tessera, holds an
 * XXH64 per frame and how its bytes were arranged. `zstd -d` restores the plain file, unless bytes were sorted into
 * planes (formats/checkpoint/byte_planes.h), which only Tessera can undo.
 *
 * Every byte that is read was checked: the tail against its own hash and the size of the file, a frame's bytes against
 * theirs. */
#ifndef TSR_FORMATS_CHECKPOINT_ARCHIVE_H
#define TSR_FORMATS_CHECKPOINT_ARCHIVE_H

#include "common/status.h"

#include <stddef.h>
#include <stdint.h>

#define TSR_ARCHIVE_SUFFIX ".zst"
/* The most plain bytes that a reader takes in one frame. */
#define TSR_ARCHIVE_MAX_FRAME (16u << 20)

/* ---- reading ---- */

typedef struct tsr_archive tsr_archive;

/* A few unpacked frames, shared by all archives of a checkpoint and all threads, in bounded memory. */
typedef struct tsr_archive_cache tsr_archive_cache;

/* NULL when memory is exhausted. */
tsr_archive_cache *tsr_archive_cache_new(void);

/* Frees the cache; `cache` may be NULL. Close all of its archives first. */
void tsr_archive_cache_free(tsr_archive_cache *cache);

/* The most that the cache will hold, in bytes, for the archives opened so far. 0 for NULL. */
size_t tsr_archive_cache_memory(const tsr_archive_cache *cache);

/* Reads and checks the tail of an open file of `size` bytes. `fd`, `path` and `cache` are borrowed until close.
 * TSR_E_FORMAT: damaged, or no archive of Tessera; TSR_E_UNSUPPORTED: larger frames than TSR_ARCHIVE_MAX_FRAME. */
tsr_status tsr_archive_open(tsr_archive **archive, int fd, const char *path, uint64_t size, tsr_archive_cache *cache,
                            tsr_err *err) TSR_WARN_UNUSED;

/* `archive` may be NULL. */
void tsr_archive_close(tsr_archive *archive);

/* Bytes of the plain file. */
uint64_t tsr_archive_size(const tsr_archive *archive);

/* Bytes held for the table of frames. */
size_t tsr_archive_memory(const tsr_archive *archive);

/* Reads bytes [offset, offset + size) of the plain file. TSR_E_FORMAT names the frame and its offset in the file.
 * Thread-safe. */
tsr_status tsr_archive_read(tsr_archive *archive, void *data, size_t size, uint64_t offset,
                            tsr_err *err) TSR_WARN_UNUSED;

/* Tells the system that these plain bytes will be wanted soon. Thread-safe; cannot fail. */
void tsr_archive_prefetch(const tsr_archive *archive, uint64_t offset, uint64_t size);

/* Bytes to read at any offset: a plain file's, or those that an archive holds. */
typedef struct tsr_input {
    int fd;
    const char *path; /* for messages */
    uint64_t size;    /* plain */
    tsr_archive *archive;
} tsr_input;

tsr_status tsr_input_read(const tsr_input *input, void *data, size_t size, uint64_t offset,
                          tsr_err *err) TSR_WARN_UNUSED;

/* ---- writing ---- */

/* A frame of `size` plain bytes is never larger than this. */
size_t tsr_archive_frame_bound(size_t size);

/* Returns the bytes that libzstd allocates for one frame of `size` plain bytes, measured by compressing zeros. */
size_t tsr_archive_context_bytes(size_t size, int level);

/* Compresses `size` bytes into `out` (of tsr_archive_frame_bound), in planes of `width` (1: as they are; else `scratch`
 * has `size` bytes). Level 1 to 19. The same bytes for the same input and version of libzstd. Thread-safe. */
tsr_status tsr_archive_pack(const void *plain, size_t size, unsigned width, int level, void *scratch, void *out,
                            size_t *packed, tsr_err *err) TSR_WARN_UNUSED;

/* Bytes of the tail of an archive that has `frames` frames. */
uint64_t tsr_archive_tail_bytes(uint64_t frames);

/* Enters a frame into a tail (zeroed at first). Thread-safe for different frames. */
void tsr_archive_note(void *tail, uint64_t frames, uint64_t frame, const void *plain, size_t size, unsigned width,
                      size_t packed);

/* Makes a tail valid once all its frames are noted. */
void tsr_archive_seal(void *tail, uint64_t frames);

#endif
