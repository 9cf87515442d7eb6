/* Tests shared reads: windows of any form get the bytes of the file for any memory size, and each byte is read once
 * if the memory suffices. */
#include "convert/io/shared_reads.h"

#include "tests/unit/fixture.h"
#include "tests/unit/random_bits.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

enum { ROWS = 2400, COLS = 1500, WINDOWS = 400, THREADS = 4 }; /* BF16: 7.2 MB, in four chunks */

static const fixture_tensor kTensors[] = {{"small", {3}, NULL}, {"a", {ROWS, COLS}, NULL}};
static tsr_checkpoint *source;
static unsigned char *bytes; /* contents of the file */
static tsr_window windows[WINDOWS];
static tsr_shared_reads *shared;
static tsr_err err;

static const tsr_tensor *matrix(void)
{
    return tsr_checkpoint_find(source, "a");
}

/* Windows of whole rows, of columns, of single bytes, and of nothing. */
static void make_windows(void)
{
    const uint64_t row = 2 * COLS;
    for (size_t i = 0; i < WINDOWS; i++) {
        const uint64_t first = random_bits() % ROWS, rows = random_bits() % (ROWS - first + 1),
                       col = random_bits() % row;
        windows[i] = (tsr_window){.offset = first * row, .rows = rows, .row_bytes = row, .pitch = row};
        if (i % 3 == 1)
            windows[i] = (tsr_window){.offset = first * row + col, .rows = rows, .row_bytes = row - col, .pitch = row};
        if (i % 3 == 2)
            windows[i] = (tsr_window){.offset = first * row + col, .rows = 1, .row_bytes = row - col, .pitch = 0};
    }
}

static void begin(void)
{
    fixture_make();
    fixture_shard("source.safetensors", kTensors, 2);
    const char *const path = fixture_path("source.safetensors");
    struct stat st;
    cr_assert_eq(stat(path, &st), 0);
    bytes = malloc((size_t)st.st_size);
    FILE *const file = fopen(path, "r+b");
    cr_assert(bytes != NULL && file != NULL && fread(bytes, 1, (size_t)st.st_size, file) == (size_t)st.st_size);
    for (uint64_t i = (uint64_t)st.st_size - 2 * ROWS * COLS; i < (uint64_t)st.st_size; i++)
        bytes[i] = (unsigned char)random_bits();
    rewind(file);
    cr_assert_eq(fwrite(bytes, 1, (size_t)st.st_size, file), (size_t)st.st_size);
    cr_assert_eq(fclose(file), 0);
    cr_assert_eq(tsr_checkpoint_open(&source, path, NULL, 0, &err), TSR_OK, "%s", err.msg);
    make_windows();
}

static void end(void)
{
    tsr_shared_end(shared);
    tsr_checkpoint_close(source);
    free(bytes);
    fixture_remove();
}

TestSuite(shared_reads, .init = begin, .fini = end);

static void announce(uint64_t capacity, unsigned times)
{
    shared = tsr_shared_begin(capacity);
    cr_assert_not_null(shared);
    for (unsigned k = 0; k < times; k++) {
        for (size_t i = 0; i < WINDOWS; i++)
            cr_assert_eq(tsr_shared_announce(shared, source, matrix(), &windows[i], &err), TSR_OK, "%s", err.msg);
    }
}

/* Returns true if a window, once read, is what the file holds. */
static bool is_right(const tsr_window *w, const unsigned char *data)
{
    for (uint64_t row = 0; row < w->rows; row++) {
        if (memcmp(data + row * w->row_bytes, bytes + matrix()->offset + w->offset + row * w->pitch, w->row_bytes) != 0)
            return false;
    }
    return true;
}

static void *read_all(void *wrong)
{
    unsigned char *const data = malloc(2 * ROWS * COLS);
    for (size_t i = 0; i < WINDOWS; i++) {
        memset(data, 0xEE, tsr_window_bytes(&windows[i]));
        if (tsr_shared_read(shared, source, matrix(), &windows[i], data, NULL) != TSR_OK ||
            !is_right(&windows[i], data))
            *(unsigned *)wrong += 1;
    }
    free(data);
    return NULL;
}

Test(shared_reads, each_byte_is_read_once_where_there_is_room)
{
    unsigned wrong = 0;
    announce(64 << 20, 1);
    const uint64_t all = tsr_shared_announced(shared);
    cr_assert(all > ROWS * COLS && all <= 2 * ROWS * COLS);
    read_all(&wrong);
    cr_expect_eq(wrong, 0);
    cr_expect_eq(tsr_shared_bytes(shared), all);
}

Test(shared_reads, without_room_bytes_are_read_again_and_are_right)
{
    static const uint64_t kCapacities[] = {0, TSR_CHUNK_BYTES, 2 * TSR_CHUNK_BYTES};
    for (size_t i = 0; i < 3; i++) {
        unsigned wrong = 0;
        announce(kCapacities[i], 1);
        read_all(&wrong);
        cr_expect_eq(wrong, 0);
        cr_expect_gt(tsr_shared_bytes(shared), tsr_shared_announced(shared));
        tsr_shared_end(shared);
        shared = NULL;
    }
}

Test(shared_reads, threads_wait_for_one_another)
{
    static const uint64_t kCapacities[] = {64 << 20, 2 * TSR_CHUNK_BYTES};
    for (size_t i = 0; i < 2; i++) {
        pthread_t threads[THREADS];
        unsigned wrong[THREADS] = {0};
        announce(kCapacities[i], THREADS);
        for (size_t k = 0; k < THREADS; k++)
            cr_assert_eq(pthread_create(&threads[k], NULL, read_all, &wrong[k]), 0);
        for (size_t k = 0; k < THREADS; k++) {
            pthread_join(threads[k], NULL);
            cr_expect_eq(wrong[k], 0);
        }
        if (i == 0)
            cr_expect_eq(tsr_shared_bytes(shared), tsr_shared_announced(shared));
        tsr_shared_end(shared);
        shared = NULL;
    }
}

/* Without direct reads this is the same as the other tests. */
Test(shared_reads, what_is_read_directly_and_ahead_is_the_same)
{
    static const uint64_t kCapacities[] = {64 << 20, 17 * TSR_CHUNK_BYTES, 2 * TSR_CHUNK_BYTES};
    for (size_t i = 0; i < 3; i++) {
        pthread_t threads[THREADS];
        unsigned wrong[THREADS] = {0};
        const int direct = open(source->files[0].path, O_RDONLY | O_DIRECT | O_CLOEXEC);
        announce(kCapacities[i], THREADS);
        tsr_shared_read_directly(shared, &source->files[0], direct);
        for (size_t k = 0; k < THREADS; k++)
            cr_assert_eq(pthread_create(&threads[k], NULL, read_all, &wrong[k]), 0);
        for (size_t k = 0; k < THREADS; k++) {
            pthread_join(threads[k], NULL);
            cr_expect_eq(wrong[k], 0);
        }
        if (i < 2)
            cr_expect_eq(tsr_shared_bytes(shared), tsr_shared_announced(shared));
        tsr_shared_end(shared);
        shared = NULL;
        close(direct);
    }
}

Test(shared_reads, a_failure_is_told_to_each_who_wants_the_bytes)
{
    unsigned char *const data = malloc(2 * ROWS * COLS);
    const tsr_window whole = {.rows = ROWS, .row_bytes = 2 * COLS, .pitch = 2 * COLS};
    shared = tsr_shared_begin(64 << 20);
    for (int i = 0; i < 2; i++)
        cr_assert_eq(tsr_shared_announce(shared, source, matrix(), &whole, &err), TSR_OK);
    cr_assert_eq(truncate(source->files[0].path, 5 << 20), 0);
    for (int i = 0; i < 2; i++) {
        cr_expect_eq(tsr_shared_read(shared, source, matrix(), &whole, data, &err), TSR_E_IO);
        cr_expect_not_null(strstr(err.msg, "source.safetensors"));
    }
    free(data);
}

Test(shared_reads, places_follow_the_file)
{
    const tsr_window first = {.rows = 1, .row_bytes = 6, .pitch = 6},
                     later = {.offset = 4096, .rows = 1, .row_bytes = 2};
    shared = tsr_shared_begin(0);
    cr_assert_eq(tsr_shared_announce(shared, source, matrix(), &first, &err), TSR_OK);
    const tsr_tensor *const small = tsr_checkpoint_find(source, "small");
    cr_expect_lt(tsr_shared_place(shared, source, small, &first), tsr_shared_place(shared, source, matrix(), &first));
    cr_expect_lt(tsr_shared_place(shared, source, matrix(), &first),
                 tsr_shared_place(shared, source, matrix(), &later));
}
