/* libFuzzer target: archives, their tables with correct hashes, and headers in archives are read or rejected.
 *
 * Checks that reading in pieces gives the same bytes as reading at once. mutate_archive.c writes valid archives. */
#include "formats/checkpoint/archive.h"
#include "formats/checkpoint/safetensors.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { FRAMES = 3 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MOST_READ = 1 << 16, PIECE = 1000 };

/* The first of the plain bytes, and once more in pieces, which frames divide otherwise. */
static void read_pieces(int fd, tsr_archive *archive)
{
    static uint8_t plain[MOST_READ], piece[PIECE];
    const uint64_t all = tsr_archive_size(archive);
    const size_t n = all < MOST_READ ? (size_t)all : MOST_READ;
    const tsr_input whole = {.fd = fd, .path = "fuzz", .size = all, .archive = archive};
    if (tsr_archive_read(archive, plain, n, 0, NULL) != TSR_OK)
        return;
    for (size_t end = n; end > 0;) {
        const size_t size = end < PIECE ? end : PIECE;
        end -= size;
        tsr_input_prefetch(&whole, end, size);
        if (tsr_archive_read(archive, piece, size, end, NULL) != TSR_OK || memcmp(piece, plain + end, size) != 0)
            abort();
    }
    if (tsr_archive_read(archive, piece, 2, all - 1, NULL) == TSR_OK)
        abort(); /* beyond the end */
}

static void read_header(int fd, tsr_archive *archive)
{
    tsr_arena arena = {0};
    tsr_tensors tensors = {0};
    uint64_t hash;
    const tsr_input in = {.fd = fd, .path = "fuzz", .size = tsr_archive_size(archive), .archive = archive};
    (void)!tsr_safetensors_read(&in, 0, &arena, &tensors, &hash, NULL);
    tsr_tensors_free(&tensors);
    tsr_arena_free(&arena);
}

static void read_all(const uint8_t *data, size_t size)
{
    const int fd = memfd_create("fuzz", 0);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size)
        abort();
    tsr_archive_cache *const cache = tsr_archive_cache_new();
    tsr_archive *archive;
    if (tsr_archive_open(&archive, &(tsr_input){.fd = fd, .path = "fuzz", .size = size}, cache, NULL) == TSR_OK) {
        read_pieces(fd, archive);
        read_header(fd, archive);
    }
    tsr_archive_close(archive);
    tsr_archive_cache_free(cache);
    close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    read_all(data, size);
    /* The input as sizes, widths and frames of a table that is otherwise right. */
    const size_t tail_bytes = (size_t)tsr_archive_tail_bytes(FRAMES);
    const size_t widths = 24 + 8 * FRAMES, entries = widths + FRAMES + 8, taken = 3 * FRAMES;
    if (size <= taken)
        return 0;
    uint8_t *const file = calloc(1, size + tail_bytes), *const tail = file + size - taken;
    if (file == NULL)
        return 0;
    memcpy(file, data + taken, size - taken);
    tsr_archive_seal(tail, FRAMES);
    for (size_t i = 0; i < FRAMES; i++) {
        tail[widths + i] = data[3 * i];
        tail[entries + 8 * i] = data[3 * i + 1];
        tail[entries + 8 * i + 4] = data[3 * i + 2];
    }
    const uint64_t hash = XXH64(tail + 24, tail_bytes - 24, 0);
    memcpy(tail + 16, &hash, sizeof hash);
    read_all(file, size - taken + tail_bytes);
    free(file);
    return 0;
}
