/* Keeps headers on disk: a file for each, with a hash of its contents. */
#include "formats/remote/header_cache.h"

#ifdef TSR_HAVE_CURL
#include "common/file.h"
#include "common/grow.h"
#include "formats/remote/settings/places.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LARGEST = 16 << 20, LIMIT = 512 << 20 /* bytes of all headers */, NAME = 32 };

static const char kMagic[8] = "TSRHEAD1";

/* The beginning of a cached file. */
typedef struct head {
    char magic[8];
    uint64_t hash; /* XXH3-64 of the bytes that follow */
} head;

/* Writes the path of the cached header of a file to `path`. Returns false without a folder for it, or if the file has
 * no ETag. */
static bool place_of(const tsr_remote_file *f, char path[PATH_MAX])
{
    char folder[PATH_MAX];
    XXH3_state_t state;
    if (f->etag == NULL || tsr_place_of_headers(folder) == NULL)
        return false;
    (void)XXH3_128bits_reset(&state);
    (void)XXH3_128bits_update(&state, f->path, strlen(f->path) + 1);
    (void)XXH3_128bits_update(&state, f->etag, strlen(f->etag) + 1);
    (void)XXH3_128bits_update(&state, &f->size, sizeof f->size);
    const XXH128_hash_t name = XXH3_128bits_digest(&state);
    return snprintf(path, PATH_MAX, "%s/%016llx%016llx", folder, U64(name.high64), U64(name.low64)) < PATH_MAX;
}

char *tsr_header_cache_find(const tsr_remote_file *f, size_t *size)
{
    char path[PATH_MAX];
    int fd;
    uint64_t bytes;
    head h;
    if (!place_of(f, path) || tsr_open_input(path, &fd, &bytes, NULL, NULL) != TSR_OK)
        return NULL;
    const bool fits = bytes > sizeof h && bytes - sizeof h <= LARGEST && bytes - sizeof h <= f->size;
    char *data = fits ? malloc((size_t)bytes - sizeof h) : NULL;
    *size = (size_t)bytes - sizeof h;
    if (data != NULL && (tsr_read_at(fd, path, &h, sizeof h, 0, NULL) != TSR_OK ||
                         tsr_read_at(fd, path, data, *size, sizeof h, NULL) != TSR_OK ||
                         memcmp(h.magic, kMagic, sizeof kMagic) != 0 || XXH3_64bits(data, *size) != h.hash)) {
        free(data);
        data = NULL;
    }
    close(fd);
    return data;
}

void tsr_header_cache_store(const tsr_remote_file *f, const void *data, size_t size)
{
    char path[PATH_MAX], part[PATH_MAX + 32], folder[PATH_MAX];
    head h = {.hash = XXH3_64bits(data, size)};
    if (size > LARGEST || !place_of(f, path) || access(path, F_OK) == 0)
        return;
    /* The tool's sandbox allows no new folder here, and made it before. */
    if (tsr_place_of_headers(folder) != NULL && access(folder, F_OK) != 0)
        (void)!tsr_make_dirs(folder, NULL);
    memcpy(h.magic, kMagic, sizeof kMagic);
    snprintf(part, sizeof part, "%s.%ld", path, (long)getpid());
    const int fd = open(part, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return;
    /* Not synced: a file that a power failure damages does not have its hash. */
    const bool written = tsr_write_at(fd, part, &h, sizeof h, 0, NULL) == TSR_OK &&
                         tsr_write_at(fd, part, data, size, sizeof h, NULL) == TSR_OK;
    if (close(fd) != 0 || !written || rename(part, path) != 0)
        unlink(part);
}

/* ---- the limit ---- */

/* A cached file. */
typedef struct cached {
    char name[NAME_MAX + 1];
    struct timespec stored;
    uint64_t bytes;
} cached;

static int by_time(const void *a, const void *b)
{
    const struct timespec x = ((const cached *)a)->stored, y = ((const cached *)b)->stored;
    if (x.tv_sec != y.tv_sec)
        return x.tv_sec < y.tv_sec ? -1 : 1;
    return (x.tv_nsec > y.tv_nsec) - (x.tv_nsec < y.tv_nsec);
}

/* Lists the files that this module has made. Returns their bytes; 0 also without memory. */
static uint64_t list_cached(DIR *dir, cached **files, size_t *n)
{
    uint64_t bytes = 0;
    size_t capacity = 0;
    for (const struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        struct stat st;
        if (strspn(entry->d_name, "0123456789abcdef") != NAME ||
            fstatat(dirfd(dir), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(st.st_mode))
            continue;
        if (!tsr_grow(files, *n, &capacity, sizeof **files))
            return 0;
        cached *const f = &(*files)[(*n)++];
        *f = (cached){.stored = st.st_mtim, .bytes = (uint64_t)st.st_size};
        snprintf(f->name, sizeof f->name, "%s", entry->d_name);
        bytes += f->bytes;
    }
    return bytes;
}

void tsr_header_cache_trim(void)
{
    char folder[PATH_MAX];
    cached *files = NULL;
    size_t n = 0;
    DIR *const dir = tsr_place_of_headers(folder) == NULL ? NULL : opendir(folder);
    if (dir == NULL)
        return;
    uint64_t bytes = list_cached(dir, &files, &n);
    if (bytes > LIMIT) {
        qsort(files, n, sizeof *files, by_time);
        for (size_t i = 0; i < n && bytes > LIMIT / 2; i++)
            bytes -= unlinkat(dirfd(dir), files[i].name, 0) == 0 ? files[i].bytes : 0;
    }
    free(files);
    closedir(dir);
}
#endif
