/* Mutates archives for libFuzzer: unpacks the content or the table, changes it, packs it, and corrects hashes and
 * sizes.
 *
 * So the mutants reach the code after these checks. One mutant in four has random changes. Input that is not an
 * archive is packed as the content of one. */
#include "formats/checkpoint/archive.h"
#include "formats/checkpoint/archive_tail.h"
#include "formats/checkpoint/byte_planes.h"

#define XXH_INLINE_ALL
#include <xxhash.h>
#include <zstd.h>

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed);

enum { MOST_FRAMES = 16, MOST_PLAIN = 1 << 16 };

typedef struct frame {
    uint8_t *packed; /* from malloc */
    size_t n_packed, n_plain;
    uint64_t hash;
    uint8_t width;
} frame;

typedef struct frames {
    frame items[MOST_FRAMES];
    size_t count;
} frames;

static unsigned chance(unsigned n)
{
    return (unsigned)rand() % n;
}

static uint8_t *copy_of(const uint8_t *data, size_t size)
{
    uint8_t *const copy = malloc(size + 1);
    if (copy == NULL)
        abort();
    memcpy(copy, data, size);
    return copy;
}

/* Returns true if the archive has a table that can be parsed, with any hash. */
static bool take_apart(frames *all, const uint8_t *data, size_t size)
{
    if (size < TSR_TAIL_FIXED || tsr_get_32(data + size - 4) != TSR_FOOTER_MAGIC)
        return false;
    const uint64_t count = (uint64_t)tsr_get_32(data + size - TSR_FOOTER_BYTES) - 1;
    const tsr_archive_layout l = tsr_archive_lay_out(count <= MOST_FRAMES ? count : 0);
    if (count == 0 || count > MOST_FRAMES || l.bytes > size)
        return false;
    const uint8_t *const tail = data + size - l.bytes;
    for (size_t i = 0, at = 0; i < count; i++) {
        const size_t n = tsr_get_32(tail + l.entries + TSR_SEEK_ENTRY * i);
        if (n > size - l.bytes - at)
            break;
        all->items[all->count++] =
            (frame){copy_of(data + at, n), n, tsr_get_32(tail + l.entries + TSR_SEEK_ENTRY * i + 4),
                    tsr_get_64(tail + l.hashes + 8 * i), tail[l.widths + i]};
        at += n;
    }
    return all->count > 0;
}

/* Unpacks a frame, in planes or not; NULL if that fails. */
static uint8_t *unpack(const frame *f, size_t *n)
{
    uint8_t *const plain = malloc(MOST_PLAIN);
    if (plain == NULL)
        abort();
    *n = ZSTD_decompress(plain, MOST_PLAIN, f->packed, f->n_packed);
    if (!ZSTD_isError(*n) && *n > 0)
        return plain;
    free(plain);
    return NULL;
}

static void pack(frame *f, const uint8_t *plain, size_t n, uint8_t width)
{
    uint8_t *const out = malloc(tsr_archive_frame_bound(n)), *const scratch = malloc(n + 1);
    size_t packed;
    if (out == NULL || scratch == NULL ||
        tsr_archive_pack(plain, n, width, 1 + (int)chance(3), scratch, out, &packed, NULL) != TSR_OK)
        abort();
    free(scratch);
    free(f->packed);
    *f = (frame){out, packed, n, XXH64(plain, n, 0), width};
}

static uint8_t any_width(void)
{
    return (uint8_t)(1u << chance(3));
}

/* Sets the table's entry of a frame to the properties of its content, if it can be decompressed. */
static void make_right(frame *f)
{
    size_t n;
    uint8_t *const planes = unpack(f, &n);
    if (planes == NULL)
        return;
    uint8_t *const plain = copy_of(planes, n);
    if (f->width == 2 || f->width == 4)
        tsr_byte_planes_join(planes, n, f->width, plain);
    f->n_plain = n;
    f->hash = XXH64(plain, n, 0);
    free(plain);
    free(planes);
}

static void change_plain(frame *f)
{
    size_t n;
    uint8_t *const plain = unpack(f, &n);
    if (plain == NULL)
        return;
    n = LLVMFuzzerMutate(plain, n, 4096 < n ? n : 4096);
    if (n > 0)
        pack(f, plain, n, any_width());
    free(plain);
}

static void change_packed(frame *f)
{
    uint8_t *const larger = malloc(f->n_packed + 64);
    if (larger == NULL)
        abort();
    memcpy(larger, f->packed, f->n_packed);
    const size_t n = LLVMFuzzerMutate(larger, f->n_packed, f->n_packed + 64);
    free(f->packed);
    f->packed = larger;
    f->n_packed = n;
    make_right(f);
}

/* Splits one frame into two halves, or joins two frames. */
static void split(frames *all, size_t i)
{
    size_t n;
    if (all->count == MOST_FRAMES)
        return;
    uint8_t *const plain = unpack(&all->items[i], &n);
    if (plain != NULL && n > 1) {
        memmove(&all->items[i + 1], &all->items[i], (all->count - i) * sizeof *all->items);
        all->count++;
        all->items[i].packed = NULL;
        const size_t at = 1 + chance((unsigned)n - 1);
        pack(&all->items[i], plain, at, any_width());
        pack(&all->items[i + 1], plain + at, n - at, any_width());
    }
    free(plain);
}

static void take_out(frames *all, size_t i)
{
    free(all->items[i].packed);
    all->count--;
    memmove(&all->items[i], &all->items[i + 1], (all->count - i) * sizeof *all->items);
}

static void lie(frame *f)
{
    static const uint32_t kSizes[] = {0, 1, TSR_ARCHIVE_MAX_FRAME, TSR_ARCHIVE_MAX_FRAME + 1, UINT32_MAX};
    switch (chance(4)) {
    case 0:
        f->width = (uint8_t)chance(9);
        break;
    case 1:
        f->n_plain = kSizes[chance(5)];
        break;
    case 2:
        f->n_plain += chance(2) == 0 ? 1 : (size_t)-1;
        break;
    default:
        f->hash ^= 1;
        break;
    }
}

/* Writes the frames and their table. Returns 0 if they need more space. */
static size_t put_together(const frames *all, uint8_t *to, size_t max)
{
    const size_t tail = (size_t)tsr_archive_tail_bytes(all->count);
    size_t at = 0;
    for (size_t i = 0; i < all->count; at += all->items[i++].n_packed) {
        if (max < tail || all->items[i].n_packed > max - tail - at)
            return 0;
        memcpy(to + at, all->items[i].packed, all->items[i].n_packed);
    }
    memset(to + at, 0, tail);
    const tsr_archive_layout l = tsr_archive_lay_out(all->count);
    for (size_t i = 0; i < all->count; i++) {
        const frame *const f = &all->items[i];
        tsr_archive_note(to + at, all->count, i, "", 0, f->width, f->n_packed);
        tsr_put_32(to + at + l.entries + TSR_SEEK_ENTRY * i + 4, f->n_plain);
        tsr_put_64(to + at + l.hashes + 8 * i, f->hash);
    }
    tsr_archive_seal(to + at, all->count);
    return at + tail;
}

static void change(frames *all)
{
    const size_t i = chance((unsigned)all->count), k = chance((unsigned)all->count);
    const frame swapped = all->items[i];
    switch (chance(8)) {
    case 0:
    case 1:
    case 2:
        change_plain(&all->items[i]);
        break;
    case 3:
        change_packed(&all->items[i]);
        break;
    case 4:
        split(all, i);
        break;
    case 5:
        if (all->count > 1)
            take_out(all, i);
        break;
    case 6:
        all->items[i] = all->items[k];
        all->items[k] = swapped;
        break;
    default:
        lie(&all->items[i]);
        break;
    }
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed)
{
    srand(seed);
    frames all = {.count = 0};
    if (seed % 4 == 0)
        return LLVMFuzzerMutate(data, size, max);
    if (!take_apart(&all, data, size)) {
        all.count = 1;
        pack(&all.items[0], size == 0 ? (const uint8_t *)"{" : data, size == 0 ? 1 : size, any_width());
    }
    for (unsigned i = 0; i <= chance(3); i++)
        change(&all);
    const size_t made = put_together(&all, data, max);
    while (all.count > 0)
        take_out(&all, all.count - 1);
    return made > 0 ? made : LLVMFuzzerMutate(data, size, max);
}
