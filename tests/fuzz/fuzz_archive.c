/* libFuzzer target: whatever stands in an archive, and in a table with a right hash, it is read or refused. */
#include "formats/checkpoint/archive.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { FRAMES = 3 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_all(const uint8_t *data, size_t size)
{
    const int fd = memfd_create("fuzz", 0);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size)
        abort();
    tsr_archive_cache *const cache = tsr_archive_cache_new();
    tsr_archive *archive;
    if (tsr_archive_open(&archive, fd, "fuzz", size, cache, NULL) == TSR_OK) {
        static uint8_t plain[4096];
        const uint64_t all = tsr_archive_size(archive);
        for (uint64_t at = 0; at < all && at < 64 * sizeof plain; at += sizeof plain) {
            const size_t n = all - at < sizeof plain ? (size_t)(all - at) : sizeof plain;
            if (tsr_archive_read(archive, plain, n, at, NULL) != TSR_OK)
                break;
        }
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
