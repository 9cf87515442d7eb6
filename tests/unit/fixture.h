/* Makes a folder of small files for a unit test: text files, and safetensors files. Criterion runs
 * each test in a process, so one folder is enough. */
#pragma once

#include <criterion/criterion.h>
#include <ftw.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct fixture_tensor {
    const char *name;
    uint64_t shape[4]; /* up to the first 0 */
    const char *dtype; /* NULL: BF16 */
} fixture_tensor;

static char fixture_folder[] = "/tmp/tessera-unit-XXXXXX";

static inline void fixture_make(void)
{
    cr_assert_not_null(mkdtemp(fixture_folder));
}

static inline int fixture_remove_entry(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    (void)st, (void)kind, (void)at;
    return remove(path);
}

static inline void fixture_remove(void)
{
    nftw(fixture_folder, fixture_remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

/* Returns the path of a file in the folder, in one of eight alternating buffers. */
static inline const char *fixture_path(const char *name)
{
    static char paths[8][512];
    static unsigned turn;
    char *const path = paths[turn++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", fixture_folder, name);
    return path;
}

static inline void fixture_bytes(const char *name, const void *data, size_t size)
{
    FILE *const file = fopen(fixture_path(name), "wb");
    cr_assert_not_null(file, "%s", name);
    cr_assert_eq(fwrite(data, 1, size, file), size);
    cr_assert_eq(fclose(file), 0);
}

static inline void fixture_text(const char *name, const char *text)
{
    fixture_bytes(name, text, strlen(text));
}

/* Begins a safetensors file of `n` tensors, one after another. The file has no data yet, and *bytes is their size. */
static inline FILE *fixture_header(const char *name, const fixture_tensor *tensors, size_t n, uint64_t *bytes)
{
    static char header[1 << 16];
    size_t size = 8; /* the place of the length */
    uint64_t at = 0;
    for (size_t i = 0; i < n; i++) {
        const char *const dtype = tensors[i].dtype != NULL ? tensors[i].dtype : "BF16";
        uint64_t size_of = strcmp(dtype, "F32") == 0 ? 4 : strchr(dtype, '8') != NULL ? 1 : 2;
        size += (size_t)sprintf(header + size, "%c\"%s\": {\"dtype\": \"%s\", \"shape\": [", i == 0 ? '{' : ',',
                                tensors[i].name, dtype);
        for (size_t d = 0; d < 4 && tensors[i].shape[d] != 0; size_of *= tensors[i].shape[d++])
            size += (size_t)sprintf(header + size, "%s%" PRIu64, d == 0 ? "" : ", ", tensors[i].shape[d]);
        size += (size_t)sprintf(header + size, "], \"data_offsets\": [%" PRIu64 ", %" PRIu64 "]}", at, at + size_of);
        at += size_of;
    }
    size += (size_t)sprintf(header + size, "%s}", n == 0 ? "{" : "");
    const uint64_t length = size - 8;
    memcpy(header, &length, sizeof length);
    FILE *const file = fopen(fixture_path(name), "wb");
    cr_assert_not_null(file, "%s", name);
    cr_assert_eq(fwrite(header, 1, size, file), size);
    *bytes = at;
    return file;
}

/* Writes a safetensors file of `n` tensors of zeros. */
static inline void fixture_shard(const char *name, const fixture_tensor *tensors, size_t n)
{
    uint64_t bytes;
    FILE *const file = fixture_header(name, tensors, n, &bytes);
    const off_t begin = ftello(file);
    cr_assert_eq(fclose(file), 0);
    cr_assert_eq(truncate(fixture_path(name), begin + (off_t)bytes), 0);
}
