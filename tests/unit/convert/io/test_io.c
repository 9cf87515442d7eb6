/* Tests requests of any offset and length, direct and buffered, with and without io_uring: bytes and error messages. */
#include "convert/io/io.h"

#include "tests/unit/fixture.h"
#include "tests/unit/random_bits.h"

#include <fcntl.h>

enum { BYTES = 3000001, MOST = 600000, ROUNDS = 60 };

static unsigned char *bytes; /* contents of the file "in" */
static char *memory;
static size_t memory_bytes;
static tsr_err err;

/* Opens a second descriptor with direct I/O, if the file system of /tmp supports it. */
static tsr_io_file open_both(const char *name, int flags)
{
    const char *const path = fixture_path(name);
    const tsr_io_file f = {
        .fd = open(path, flags, 0600), .direct = open(path, (flags & O_ACCMODE) | O_DIRECT), .name = name};
    cr_assert_geq(f.fd, 0);
    return f;
}

static void close_both(const tsr_io_file *f)
{
    close(f->fd);
    if (f->direct >= 0)
        close(f->direct);
}

static void begin(void)
{
    fixture_make();
    bytes = malloc(BYTES);
    for (size_t i = 0; i < BYTES; i++)
        bytes[i] = (unsigned char)random_bits();
    fixture_bytes("in", bytes, BYTES);
    memory_bytes = 4 * (MOST + 4 * tsr_io_page());
    memory = aligned_alloc(tsr_io_page(), memory_bytes - memory_bytes % tsr_io_page());
}

TestSuite(io, .init = begin, .fini = fixture_remove);

/* Makes requests: one at the end of the file, one at an unaligned offset, small ones, and random ones. */
static void choose(unsigned round, uint64_t *offset, uint64_t *size)
{
    *size = round % 4 == 0 ? random_bits() % 2000 : TSR_IO_LEAST + random_bits() % (MOST - TSR_IO_LEAST);
    *offset = random_bits() % (BYTES - *size);
    *offset -= round % 8 == 1 ? 0 : *offset % 8;
    if (round % 8 == 3)
        *offset = BYTES - *size;
}

static void read_all(bool ring)
{
    const tsr_io_file f = open_both("in", O_RDONLY);
    tsr_io *const io = tsr_io_begin(ring, memory, memory_bytes - memory_bytes % tsr_io_page());
    for (unsigned round = 0; round < ROUNDS; round++) {
        tsr_io_batch batch = {.n = 0};
        char *at = memory;
        uint64_t offset[4], size[4];
        void *data[4];
        for (unsigned i = 0; i < 4; i++) {
            choose(4 * round + i, &offset[i], &size[i]);
            char *const before = at;
            data[i] = tsr_io_place(&f, offset[i], size[i], &at);
            cr_assert_leq((uint64_t)(at - before), tsr_io_room(size[i]), "%" PRIu64 " bytes", size[i]);
            tsr_io_read(io, &batch, &f, data[i], size[i], offset[i]);
        }
        tsr_io_submit(io);
        cr_assert_eq(tsr_io_wait(io, &batch, &err), TSR_OK, "%s", err.msg);
        for (unsigned i = 0; i < 4; i++)
            cr_assert_eq(memcmp(data[i], bytes + offset[i], size[i]), 0, "round %u, request %u", round, i);
    }
    tsr_io_end(io);
    close_both(&f);
}

Test(io, reads_with_a_ring)
{
    read_all(true);
}

Test(io, reads_without)
{
    read_all(false);
}

/* Writes the whole file in chunks of any size, so that most pages at an edge get their bytes from two of them. */
static void write_all(bool ring)
{
    tsr_io_file f = open_both("out", O_RDWR | O_CREAT | O_TRUNC);
    tsr_io *const io = tsr_io_begin(ring, memory, memory_bytes - memory_bytes % tsr_io_page());
    tsr_io_batch batch = {.n = 0};
    cr_assert_eq(ftruncate(f.fd, BYTES), 0);
    uint64_t size;
    for (uint64_t offset = 0, n = 0; offset < BYTES; offset += size, n++) {
        char *at = memory + (n % 4) * (memory_bytes / 4);
        size = n % 5 == 0 ? 8 * (1 + random_bits() % 500) : TSR_IO_LEAST + random_bits() % (MOST - TSR_IO_LEAST);
        size = size > BYTES - offset ? BYTES - offset : n % 7 == 6 ? size : size - size % 8;
        void *const data = tsr_io_place(&f, offset, size, &at);
        memcpy(data, bytes + offset, size);
        cr_assert_eq(tsr_io_write(io, &batch, &f, data, size, offset, &err), TSR_OK, "%s", err.msg);
        tsr_io_submit(io);
        if (n % 4 == 3)
            cr_assert_eq(tsr_io_wait(io, &batch, &err), TSR_OK, "%s", err.msg);
    }
    cr_assert_eq(tsr_io_wait(io, &batch, &err), TSR_OK, "%s", err.msg);
    tsr_io_end(io);
    close_both(&f);
    unsigned char *const back = malloc(BYTES);
    FILE *const file = fopen(fixture_path("out"), "rb");
    cr_assert_eq(fread(back, 1, BYTES, file), BYTES);
    cr_assert_eq(memcmp(back, bytes, BYTES), 0);
    fclose(file);
    free(back);
}

Test(io, writes_with_a_ring)
{
    write_all(true);
}

Test(io, writes_without)
{
    write_all(false);
}

/* A direct descriptor on which every request fails with this error. */
static tsr_status read_failing(bool ring, int direct, uint64_t size, uint64_t offset)
{
    tsr_io_file f = open_both("in", O_RDONLY);
    close(f.direct);
    f.direct = direct;
    tsr_io *const io = tsr_io_begin(ring, memory, memory_bytes - memory_bytes % tsr_io_page());
    tsr_io_batch batch = {.n = 0};
    char *at = memory;
    void *const data = tsr_io_place(&f, offset, size, &at);
    tsr_io_read(io, &batch, &f, data, size, offset);
    tsr_io_submit(io);
    const tsr_status status = tsr_io_wait(io, &batch, &err);
    if (status == TSR_OK)
        cr_assert_eq(memcmp(data, bytes + offset, size), 0);
    tsr_io_end(io);
    close_both(&f);
    return status;
}

Test(io, failures_are_named)
{
    for (int ring = 0; ring < 2; ring++) {
        /* Nothing may be read from it: an error of the file. */
        cr_assert_eq(read_failing(ring, open(fixture_path("in"), O_WRONLY), 200000, 8192), TSR_E_IO);
        cr_assert_str_eq(err.msg, "in: cannot read 200000 bytes at offset 8192: Bad file descriptor");
        /* The file ends before the last bytes. */
        cr_assert_eq(read_failing(ring, open(fixture_path("in"), O_RDONLY | O_DIRECT), 200000, BYTES - 100001),
                     TSR_E_IO);
        cr_assert_str_eq(err.msg,
                         "in: the file ends at byte 3000001, 99999 bytes short: it was truncated while being read");
    }
}
