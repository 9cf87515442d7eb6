/* Tests outputs that are written in pieces or at the end: digest, bytes and errors, with direct and buffered I/O. */
#include "convert/io/outgoing.h"

#include "tests/unit/fixture.h"
#include "tests/unit/random_bits.h"

#include <fcntl.h>

enum { MOST = 1 << 20, PLACE = 4096 * 3, BEFORE = 300000 };

static char *memory, *back;
static tsr_cpu_kernels kernels;
static tsr_io *io;
static tsr_err err;

static void begin(void)
{
    fixture_make();
    memory = aligned_alloc(4096, MOST + 2 * PLACE);
    back = malloc(MOST);
    tsr_cpu_kernels_init(&kernels, tsr_cpu_flags());
    io = tsr_io_begin(false, NULL, 0);
}

static void end(void)
{
    tsr_io_end(io);
    free(memory);
    free(back);
    fixture_remove();
}

TestSuite(outgoing, .init = begin, .fini = end);

/* Makes the bytes in stretches of `step` bytes, and reports each; with a step of 0 it reports nothing. */
static void make(tsr_outgoing *o, uint64_t step)
{
    for (uint64_t at = 0; at < o->size; at++) {
        if (step > 0 && at % step == 0)
            o->sink.accept(&o->sink, at);
        o->data[at] = (char)random_bits();
    }
    if (step > 0)
        o->sink.accept(&o->sink, o->size);
}

static void check(const tsr_io_file *f, uint64_t size, uint64_t offset, uint64_t step)
{
    char *place = memory;
    tsr_io_batch batch = {.n = 0};
    tsr_outgoing o;
    tsr_digest digest = {0};
    tsr_outgoing_begin(&o, &kernels, f, tsr_io_place(f, offset, size, &place), size, offset);
    make(&o, step);
    cr_assert_eq(tsr_outgoing_end(&o, io, &batch, &digest, &err), TSR_OK, "%s", err.msg);
    cr_assert_eq(tsr_io_wait(io, &batch, &err), TSR_OK, "%s", err.msg);
    const tsr_digest want = XXH3_128bits(o.data, size), whole = tsr_digest_of(&kernels, o.data, size);
    cr_assert(XXH128_isEqual(digest, want), "%zu bytes at %zu by %zu", (size_t)size, (size_t)offset, (size_t)step);
    cr_assert(XXH128_isEqual(whole, want), "%zu bytes", (size_t)size);
    cr_assert_eq(pread(f->fd, back, size, (off_t)offset), (ssize_t)size);
    cr_assert_arr_eq(back, o.data, size, "%zu bytes at %zu by %zu", (size_t)size, (size_t)offset, (size_t)step);
}

Test(outgoing, bytes_and_digest_are_those_of_the_whole)
{
    const char *const path = fixture_path("out");
    tsr_io_file f = {.fd = open(path, O_RDWR | O_CREAT, 0600), .direct = -1, .name = "out"};
    const int direct = open(path, O_WRONLY | O_DIRECT); /* -1 if the file system of /tmp does not support it */
    for (unsigned i = 0; i < 40; i++) {
        const uint64_t size = random_bits() % (i % 2 ? 5000 : MOST), offset = random_bits() % 600000 / 8 * 8;
        const uint64_t step = i % 4 == 0 ? 0 : 1 + random_bits() % BEFORE;
        f.direct = i % 3 == 0 ? direct : -1;
        check(&f, size, offset, step);
    }
    close(f.fd);
    if (direct >= 0)
        close(direct);
}

Test(outgoing, a_failure_is_told_in_the_end)
{
    const tsr_io_file f = {.fd = open(fixture_path("out"), O_RDONLY | O_CREAT, 0600), .direct = -1, .name = "out"};
    tsr_io_batch batch = {.n = 0};
    tsr_outgoing o;
    tsr_digest digest;
    tsr_outgoing_begin(&o, &kernels, &f, memory, MOST, 0);
    make(&o, BEFORE);
    cr_assert_eq(tsr_outgoing_end(&o, io, &batch, &digest, &err), TSR_E_IO);
    cr_assert_str_eq(err.msg, "out: cannot write 262144 bytes at offset 0: Bad file descriptor");
    close(f.fd);
}
