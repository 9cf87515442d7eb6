/* Tests byte planes against their definition, reading of archives, and rejection of archives with any changed byte. */
#include "formats/checkpoint/archive.h"
#include "formats/checkpoint/byte_planes.h"
#include "tests/unit/random_bits.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <criterion/criterion.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

Test(planes, split_is_its_definition_and_join_its_inverse)
{
    enum { MOST = 300 };
    static const unsigned kWidths[] = {1, 2, 4};
    uint8_t from[MOST], to[MOST + 1], back[MOST + 1];
    for (size_t w = 0; w < 3; w++) {
        for (size_t size = 0; size <= MOST; size++) {
            const unsigned width = kWidths[w];
            const size_t n = size / width;
            for (size_t i = 0; i < size; i++)
                from[i] = (uint8_t)random_bits();
            to[size] = back[size] = 0xA5;
            tsr_byte_planes_split(from, size, width, to);
            for (size_t i = 0; i < size; i++)
                cr_assert_eq(from[i], to[i < n * width ? i % width * n + i / width : i], "width %u size %zu", width,
                             size);
            tsr_byte_planes_join(to, size, width, back);
            cr_assert_arr_eq(back, from, size);
            cr_assert(to[size] == 0xA5 && back[size] == 0xA5, "written behind the end");
        }
    }
}

/* Makes an uncompressed file in pieces, and its archive. */
typedef struct packed {
    uint8_t *plain, *bytes;
    size_t plain_size, size;
} packed;

/* Makes elements like weights: few exponents, any mantissa. */
static packed pack(const size_t *sizes, const unsigned *widths, size_t n)
{
    packed p = {0};
    for (size_t i = 0; i < n; i++)
        p.plain_size += sizes[i];
    p.plain = malloc(p.plain_size);
    for (size_t i = 0; i < p.plain_size; i++)
        p.plain[i] = (uint8_t)(i % 2 == 0 ? random_bits() : 0x3C + random_bits() % 4);
    const size_t tail_bytes = tsr_archive_tail_bytes(n);
    uint8_t *const tail = calloc(1, tail_bytes);
    p.bytes = malloc(tsr_archive_frame_bound(p.plain_size) + n * 1024 + tail_bytes);
    for (size_t i = 0, at = 0; i < n; at += sizes[i], i++) {
        uint8_t scratch[1 << 16];
        size_t size;
        cr_assert(sizes[i] <= sizeof scratch);
        cr_assert_eq(tsr_archive_pack(p.plain + at, sizes[i], widths[i], 3, scratch, p.bytes + p.size, &size, NULL),
                     TSR_OK);
        tsr_archive_note(tail, n, i, p.plain + at, sizes[i], widths[i], size);
        p.size += size;
    }
    tsr_archive_seal(tail, n);
    memcpy(p.bytes + p.size, tail, tail_bytes);
    p.size += tail_bytes;
    free(tail);
    return p;
}

static packed pack_some(void)
{
    return pack((const size_t[]){40, 4096, 1, 700, 1000}, (const unsigned[]){1, 2, 2, 4, 1}, 5);
}

static void discard(packed *p)
{
    free(p->plain);
    free(p->bytes);
}

/* Returns the whole uncompressed file from these bytes; NULL and the message if they are rejected. */
static uint8_t *unpack(const uint8_t *bytes, size_t size, size_t *plain_size, tsr_err *err)
{
    const int fd = memfd_create("archive", 0);
    cr_assert(fd >= 0 && write(fd, bytes, size) == (ssize_t)size);
    tsr_archive_cache *const cache = tsr_archive_cache_new();
    tsr_archive *archive;
    uint8_t *plain = NULL;
    if (tsr_archive_open(&archive, &(tsr_input){.fd = fd, .path = "test.zst", .size = size}, cache, err) == TSR_OK) {
        *plain_size = tsr_archive_size(archive);
        plain = malloc(*plain_size);
        if (tsr_archive_read(archive, plain, *plain_size, 0, err) != TSR_OK) {
            free(plain);
            plain = NULL;
        }
    }
    tsr_archive_close(archive);
    tsr_archive_cache_free(cache);
    close(fd);
    return plain;
}

Test(archive, any_range_of_it_reads_as_in_the_plain_file)
{
    packed p = pack_some();
    const int fd = memfd_create("archive", 0);
    cr_assert_eq(write(fd, p.bytes, p.size), (ssize_t)p.size);
    tsr_archive_cache *const cache = tsr_archive_cache_new();
    tsr_archive *archive;
    tsr_err err;
    cr_assert_eq(tsr_archive_open(&archive, &(tsr_input){.fd = fd, .path = "test.zst", .size = p.size}, cache, &err),
                 TSR_OK, "%s", err.msg);
    cr_assert_eq(tsr_archive_size(archive), p.plain_size);
    const tsr_input plain = {.fd = fd, .path = "test.zst", .size = p.plain_size, .archive = archive};
    uint8_t *const got = malloc(p.plain_size);
    for (int trial = 0; trial < 5000; trial++) {
        const size_t offset = random_bits() % (p.plain_size + 1), size = random_bits() % (p.plain_size - offset + 1);
        tsr_input_prefetch(&plain, offset, size);
        cr_assert_eq(tsr_archive_read(archive, got, size, offset, &err), TSR_OK, "%s", err.msg);
        cr_assert_arr_eq(got, p.plain + offset, size);
    }
    cr_assert_eq(tsr_archive_read(archive, got, 2, p.plain_size - 1, NULL), TSR_E_FORMAT);
    cr_assert_eq(tsr_archive_read(archive, got, 1, UINT64_MAX, NULL), TSR_E_FORMAT);
    free(got);
    tsr_archive_close(archive);
    tsr_archive_cache_free(cache);
    close(fd);
    discard(&p);
}

enum { MANY = 100, THREADS = 6 };

typedef struct reader {
    tsr_archive *archive;
    const packed *packed;
    uint64_t random;
    bool ok;
} reader;

static void *read_randomly(void *argument)
{
    reader *const r = argument;
    uint8_t got[3000];
    r->ok = true;
    for (int trial = 0; trial < 3000 && r->ok; trial++) {
        r->random = r->random * 6364136223846793005u + 1442695040888963407u;
        const size_t offset = (r->random >> 33) % (r->packed->plain_size - sizeof got);
        r->ok = tsr_archive_read(r->archive, got, sizeof got, offset, NULL) == TSR_OK &&
                memcmp(got, r->packed->plain + offset, sizeof got) == 0;
    }
    return NULL;
}

/* Uses more frames than the cache can hold, and more threads than the machine has cores. */
Test(archive, threads_share_the_cache)
{
    size_t sizes[MANY];
    unsigned widths[MANY];
    for (size_t i = 0; i < MANY; i++) {
        sizes[i] = 500 + random_bits() % 3000;
        widths[i] = 1u << i % 3;
    }
    packed p = pack(sizes, widths, MANY);
    const int fd = memfd_create("archive", 0);
    cr_assert_eq(write(fd, p.bytes, p.size), (ssize_t)p.size);
    tsr_archive_cache *const cache = tsr_archive_cache_new();
    tsr_archive *archive;
    cr_assert_eq(tsr_archive_open(&archive, &(tsr_input){.fd = fd, .path = "test.zst", .size = p.size}, cache, NULL),
                 TSR_OK);
    pthread_t threads[THREADS];
    reader readers[THREADS];
    for (size_t i = 0; i < THREADS; i++) {
        readers[i] = (reader){.archive = archive, .packed = &p, .random = i};
        cr_assert_eq(pthread_create(&threads[i], NULL, read_randomly, &readers[i]), 0);
    }
    for (size_t i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        cr_expect(readers[i].ok, "thread %zu", i);
    }
    tsr_archive_close(archive);
    tsr_archive_cache_free(cache);
    close(fd);
    discard(&p);
}

/* Changes every byte in several ways. A change that cannot be detected (an unused bit) must not change the content. */
Test(archive, no_damaged_byte_is_believed)
{
    packed p = pack_some();
    size_t refused = 0, tried = 0;
    for (size_t at = 0; at < p.size; at++) {
        static const uint8_t kFlips[] = {0x01, 0x80, 0xFF};
        for (size_t k = 0; k < sizeof kFlips; k++, tried++) {
            p.bytes[at] ^= kFlips[k];
            tsr_err err = {0};
            size_t size = 0;
            uint8_t *const got = unpack(p.bytes, p.size, &size, &err);
            refused += got == NULL;
            if (got == NULL)
                cr_assert(strstr(err.msg, "test.zst") != NULL, "byte %zu: '%s'", at, err.msg);
            else
                cr_assert(size == p.plain_size && memcmp(got, p.plain, size) == 0, "byte %zu: wrong data", at);
            free(got);
            p.bytes[at] ^= kFlips[k];
        }
    }
    cr_expect(refused > tried - tried / 100, "%zu of %zu refused", refused, tried);
    discard(&p);
}

Test(archive, no_cut_or_extended_file_is_believed)
{
    packed p = pack_some();
    size_t unused;
    for (size_t size = 0; size < p.size; size++)
        cr_assert_null(unpack(p.bytes, size, &unused, NULL), "the first %zu bytes", size);
    uint8_t *const longer = calloc(1, p.size + 1);
    memcpy(longer, p.bytes, p.size);
    cr_expect_null(unpack(longer, p.size + 1, &unused, NULL), "a byte behind");
    memcpy(longer + 1, p.bytes, p.size);
    cr_expect_null(unpack(longer, p.size + 1, &unused, NULL), "a byte before");
    free(longer);
    discard(&p);
}

/* Makes invalid tables with correct hashes. */
Test(archive, no_lie_in_the_table_is_believed)
{
    packed p = pack_some();
    const size_t n = 5, tail = p.size - tsr_archive_tail_bytes(n), widths = tail + 24 + 8 * n, seek = widths + n;
    const struct {
        size_t at;
        uint8_t value;
        const char *what;
    } kLies[] = {
        {widths, 0, "width 0"},
        {widths, 3, "width 3"},
        {widths + 2, 8, "width 8, of one byte, which has the same bytes in planes of any width"},
        {widths, 2, "another width"},
        {seek + 8 + 3, 0xFF, "a packed size beyond the file"},
        {seek + 8, 1, "a packed size too small"},
        {seek + 8 + 4, 0, "no plain bytes"},
        {seek + 8 + 4, 41, "more plain bytes than there are"},
        {seek + 8 + 4, 39, "fewer plain bytes than there are"},
        {seek + 8 + 7, 0x02, "a frame beyond the limit"},
        {seek + 8 + 7, 0xFF, "a frame of 4 GB"},
        {tail + 24, (uint8_t)(p.bytes[tail + 24] ^ 1), "another hash"},
        {seek + 8 + 8 * n, 0, "another size of Tessera's frame"},
        {p.size - 5, 0x80, "a checksum flag"},
        {p.size - 9, 5, "one frame fewer"},
        {p.size - 9, 7, "one frame more"},
        {p.size - 9, 0, "no frame"},
    };
    for (size_t i = 0; i < sizeof kLies / sizeof *kLies; i++) {
        uint8_t *const lie = malloc(p.size);
        size_t unused;
        memcpy(lie, p.bytes, p.size);
        lie[kLies[i].at] = kLies[i].value;
        const uint64_t hash = XXH64(lie + tail + 24, p.size - tail - 24, 0);
        memcpy(lie + tail + 16, &hash, sizeof hash);
        cr_expect_null(unpack(lie, p.size, &unused, NULL), "%s", kLies[i].what);
        free(lie);
    }
    discard(&p);
}

/* No hash covers the length of Tessera's own frame, which readers of zstd skip. */
Test(archive, a_wrong_length_of_the_info_frame_is_refused)
{
    packed p = pack_some();
    const size_t tail = p.size - tsr_archive_tail_bytes(5);
    for (size_t i = 4; i < 8; i++) {
        size_t unused;
        p.bytes[tail + i] ^= 1;
        cr_expect_null(unpack(p.bytes, p.size, &unused, NULL), "byte %zu of its length", i - 4);
        p.bytes[tail + i] ^= 1;
    }
    discard(&p);
}

/* Bit 2 of the byte behind the magic says that a frame ends in its checksum, which zstd checks. */
Test(archive, every_frame_has_a_checksum)
{
    packed p = pack_some();
    const uint8_t magic[] = {0x28, 0xB5, 0x2F, 0xFD};
    cr_assert_arr_eq(p.bytes, magic, sizeof magic);
    cr_expect(p.bytes[4] & 4);
    discard(&p);
}
