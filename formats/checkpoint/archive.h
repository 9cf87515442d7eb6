/* Compressed files of which any part can be read alone: NAME.safetensors.zst.
 *
 * An archive consists of independent zstd frames, each with at most 16 MiB of one tensor (or of the header), followed
 * by the tail: two skippable frames. docs/archive.md has the layout. The last frame is the seek table of zstd's
 * seekable format (facebook/zstd, contrib/seekable_format), so its tools can read an archive too. The other one is
 * Tessera's own: an XXH64 per frame and the arrangement of its bytes. `zstd -d` restores the plain file, unless bytes
 * were sorted into planes (formats/checkpoint/byte_planes.h), which only Tessera can undo.
 *
 * Everything is checked when it is read: the tail against its hash and the file size, and each frame against its
 * hash. */
#pragma once

#include "common/status.h"
#include "formats/remote/remote.h"

#include <stddef.h>
#include <stdint.h>

#define TSR_ARCHIVE_SUFFIX ".zst"
/* The largest plain size of a frame that a reader accepts. */
#define TSR_ARCHIVE_MAX_FRAME (16u << 20)

/* ---- reading ---- */

typedef struct tsr_archive tsr_archive;

/* Bytes that can be read at any offset: those of a file on disk or on a server, or of an archive. */
typedef struct tsr_input {
    int fd;
    const char *path;              /* for messages */
    uint64_t size;                 /* plain */
    const tsr_remote_file *remote; /* NULL: on disk */
    tsr_archive *archive;
} tsr_input;

tsr_status tsr_input_read(const tsr_input *input, void *data, size_t size, uint64_t offset, tsr_err *err);

/* Begins to read these bytes ahead. Thread-safe; cannot fail. */
void tsr_input_prefetch(const tsr_input *input, uint64_t offset, uint64_t size);

/* A few unpacked frames, shared by all archives of a checkpoint and all threads, in limited memory. */
typedef struct tsr_archive_cache tsr_archive_cache;

/* Returns NULL when memory is exhausted. */
tsr_archive_cache *tsr_archive_cache_new(void);

/* Frees the cache; `cache` may be NULL. Close all of its archives first. */
void tsr_archive_cache_free(tsr_archive_cache *cache);

/* Returns the largest size in bytes that the cache can reach for the archives opened so far. 0 for NULL. */
size_t tsr_archive_cache_memory(const tsr_archive_cache *cache);

/* Reads and checks the tail of `file`, which is not an archive itself. Its members and `cache` are borrowed until
 * close. TSR_E_FORMAT: the file is damaged or not an archive of Tessera. TSR_E_UNSUPPORTED: frames are larger than
 * TSR_ARCHIVE_MAX_FRAME. */
tsr_status tsr_archive_open(tsr_archive **archive, const tsr_input *file, tsr_archive_cache *cache, tsr_err *err);

/* Closes an archive; `archive` may be NULL. */
void tsr_archive_close(tsr_archive *archive);

/* Returns the size of the plain file. */
uint64_t tsr_archive_size(const tsr_archive *archive);

/* Returns the bytes of memory that the frame table takes. */
size_t tsr_archive_memory(const tsr_archive *archive);

/* Reads bytes [offset, offset + size) of the plain file. TSR_E_FORMAT: the message has the frame and its offset in the
 * file. Thread-safe. */
tsr_status tsr_archive_read(tsr_archive *archive, void *data, size_t size, uint64_t offset, tsr_err *err);

/* ---- writing ---- */

/* Returns the largest packed size of a frame of `size` plain bytes. */
size_t tsr_archive_frame_bound(size_t size);

/* Returns the bytes that libzstd allocates for one frame of `size` plain bytes, measured by compressing zeros. */
size_t tsr_archive_context_bytes(size_t size, int level);

/* Compresses `size` bytes into `out`, of tsr_archive_frame_bound bytes, in planes of `width` (1: unchanged; otherwise
 * `scratch` has `size` bytes). `level` is 1 to 19. The same input and version of libzstd give the same bytes.
 * Thread-safe. */
tsr_status tsr_archive_pack(const void *plain, size_t size, unsigned width, int level, void *scratch, void *out,
                            size_t *packed, tsr_err *err);

/* Returns the size of the tail of an archive with `frames` frames. */
uint64_t tsr_archive_tail_bytes(uint64_t frames);

/* Enters a frame into a tail, which was zeroed before the first call. Thread-safe for different frames. */
void tsr_archive_note(void *tail, uint64_t frames, uint64_t frame, const void *plain, size_t size, unsigned width,
                      size_t packed);

/* Completes a tail after all its frames have been entered. */
void tsr_archive_seal(void *tail, uint64_t frames);
