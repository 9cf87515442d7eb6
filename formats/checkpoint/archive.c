/* Reads archives: the trailer, and the cache of unpacked frames. */
#include "formats/checkpoint/archive.h"

#include "common/checked.h"
#include "common/file.h"
#include "formats/checkpoint/archive_tail.h"
#include "formats/checkpoint/byte_planes.h"

#define XXH_INLINE_ALL
#include <xxhash.h>
#include <zstd.h>

#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* ---- the cache ---- */

enum { SLOTS = 8 };
/* Memory of a ZSTD_DCtx of libzstd 1.5, rounded up. */
static const size_t kContextBytes = 256 * 1024;

typedef struct slot {
    const tsr_archive *archive; /* NULL: the slot is empty */
    uint64_t frame;
    bool loading;
    unsigned users;
    uint64_t used;   /* value of the cache's clock at the last use */
    uint8_t *memory; /* the plain bytes, followed by the work buffers of decompression */
    size_t capacity;
    ZSTD_DCtx *context;
} slot;

struct tsr_archive_cache {
    size_t slot_bytes;    /* size for the largest frame of any archive; changes only when an archive is opened */
    pthread_mutex_t lock; /* guards all following members, except the memory and context of a slot that is being
                           * loaded */
    pthread_cond_t changed;
    uint64_t clock;
    slot slots[SLOTS];
};

typedef struct frame {
    uint64_t at, plain_at; /* offsets in the archive and in the plain file; a frame ends where the next begins */
    uint64_t hash;
    uint64_t width;
} frame;

struct tsr_archive {
    tsr_input file; /* the packed bytes */
    const char *path;
    tsr_archive_cache *cache;
    uint64_t n_frames;
    frame *frames; /* [n_frames + 1]: the last entry holds the ends of both files */
};

tsr_archive_cache *tsr_archive_cache_new(void)
{
    tsr_archive_cache *const cache = calloc(1, sizeof *cache);
    if (cache != NULL) {
        pthread_mutex_init(&cache->lock, NULL);
        pthread_cond_init(&cache->changed, NULL);
    }
    return cache;
}

void tsr_archive_cache_free(tsr_archive_cache *cache)
{
    if (cache == NULL)
        return;
    for (size_t i = 0; i < SLOTS; i++) {
        free(cache->slots[i].memory);
        ZSTD_freeDCtx(cache->slots[i].context);
    }
    pthread_cond_destroy(&cache->changed);
    pthread_mutex_destroy(&cache->lock);
    free(cache);
}

size_t tsr_archive_cache_memory(const tsr_archive_cache *cache)
{
    return cache == NULL ? 0 : SLOTS * (cache->slot_bytes + kContextBytes);
}

static size_t frame_bytes(const frame *f)
{
    return (size_t)(f[1].plain_at - f->plain_at);
}

static size_t packed_bytes(const frame *f)
{
    return (size_t)(f[1].at - f->at);
}

/* Returns the memory for loading a frame: its plain bytes, the same bytes in planes if it has any, and its packed
 * bytes. */
static size_t load_bytes(const frame *f)
{
    return frame_bytes(f) * (f->width > 1 ? 2 : 1) + packed_bytes(f);
}

static tsr_status load(const tsr_archive *a, const frame *f, slot *s, tsr_err *err)
{
    const size_t size = frame_bytes(f), packed = packed_bytes(f), need = load_bytes(f);
    if (s->context == NULL)
        s->context = ZSTD_createDCtx();
    if (s->capacity < need) {
        free(s->memory);
        s->memory = malloc(need);
        s->capacity = s->memory == NULL ? 0 : need;
    }
    if (s->context == NULL || s->memory == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "%s: out of memory for a frame of %zu bytes", a->path, size);
    uint8_t *const from = s->memory + need - packed, *const unpacked = f->width > 1 ? s->memory + size : s->memory;
    TSR_TRY(tsr_input_read(&a->file, from, packed, f->at, err));
    const size_t got = ZSTD_decompressDCtx(s->context, unpacked, size, from, packed);
    if (ZSTD_isError(got) || got != size)
        return tsr_fail(err, TSR_E_FORMAT, "%s: damaged: the frame at offset %llu does not unpack to %zu bytes: %s",
                        a->path, U64(f->at), size, ZSTD_isError(got) ? ZSTD_getErrorName(got) : "too few");
    if (f->width > 1)
        tsr_byte_planes_join(unpacked, size, (unsigned)f->width, s->memory);
    if (XXH64(s->memory, size, 0) != f->hash)
        return tsr_fail(err, TSR_E_FORMAT,
                        "%s: damaged: the frame at offset %llu unpacks to bytes whose XXH64 is not the table's",
                        a->path, U64(f->at));
    return TSR_OK;
}

/* Returns the slot that holds or is loading the frame, or NULL. */
static slot *find_slot(tsr_archive_cache *c, const tsr_archive *a, uint64_t index)
{
    for (size_t i = 0; i < SLOTS; i++) {
        if (c->slots[i].archive == a && c->slots[i].frame == index)
            return &c->slots[i];
    }
    return NULL;
}

/* Returns the least recently used slot that no thread is reading, or NULL. */
static slot *find_idle_slot(tsr_archive_cache *c)
{
    slot *idle = NULL;
    for (size_t i = 0; i < SLOTS; i++) {
        slot *const s = &c->slots[i];
        if (s->users == 0 && (idle == NULL || s->used < idle->used))
            idle = s;
    }
    return idle;
}

/* Loads the frame and keeps it in memory until release(). A thread holds at most one frame, so threads cannot
 * deadlock. */
static tsr_status acquire(const tsr_archive *a, uint64_t index, slot **held, tsr_err *err)
{
    tsr_archive_cache *const c = a->cache;
    pthread_mutex_lock(&c->lock);
    slot *s;
    for (;;) {
        s = find_slot(c, a, index);
        const bool missing = s == NULL;
        if (missing)
            s = find_idle_slot(c);
        if (s != NULL && !s->loading) {
            s->loading = missing;
            break;
        }
        pthread_cond_wait(&c->changed, &c->lock);
    }
    s->archive = a;
    s->frame = index;
    s->users++;
    s->used = ++c->clock;
    const bool mine = s->loading;
    pthread_mutex_unlock(&c->lock);
    *held = s;
    if (!mine)
        return TSR_OK;
    const tsr_status status = load(a, &a->frames[index], s, err);
    pthread_mutex_lock(&c->lock);
    s->loading = false;
    if (status != TSR_OK) {
        s->archive = NULL;
        s->users = 0;
    }
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
    return status;
}

static void release(const tsr_archive *a, slot *s)
{
    pthread_mutex_lock(&a->cache->lock);
    if (--s->users == 0)
        pthread_cond_broadcast(&a->cache->changed);
    pthread_mutex_unlock(&a->cache->lock);
}

/* ---- opening ---- */

/* Reads the number of frames from the seek table. It determines where the trailer begins. */
static tsr_status read_footer(const tsr_input *file, uint64_t *frames, tsr_err *err)
{
    const char *const path = file->path;
    const uint64_t size = file->size;
    uint8_t footer[TSR_FOOTER_BYTES] = {0};
    if (size >= TSR_TAIL_FIXED)
        TSR_TRY(tsr_input_read(file, footer, sizeof footer, size - TSR_FOOTER_BYTES, err));
    if (tsr_get_32(footer + 5) != TSR_FOOTER_MAGIC)
        return tsr_fail(err, TSR_E_FORMAT,
                        "%s: no seek table at the end of its %llu bytes: cut off, or not made by 'tessera convert --to "
                        "archive'; 'zstd -d' may restore the plain file",
                        path, U64(size));
    *frames = (uint64_t)tsr_get_32(footer) - 1;
    if (footer[4] != 0 || *frames == 0 || *frames > TSR_MAX_FRAMES)
        return tsr_fail(err, TSR_E_FORMAT,
                        "%s: a seek table of %llu frames, flags 0x%x: damaged, or made by another program", path,
                        U64(*frames), footer[4]);
    if (tsr_archive_lay_out(*frames).bytes > size)
        return tsr_fail(err, TSR_E_FORMAT, "%s: a seek table of %llu frames needs more than the file's %llu bytes",
                        path, U64(*frames), U64(size));
    return TSR_OK;
}

static tsr_status check_tail(const char *path, const uint8_t *tail, const tsr_archive_layout *l, tsr_err *err)
{
    const uint64_t frames = l->seek - l->widths;
    if (tsr_get_32(tail) != TSR_INFO_MAGIC ||
        memcmp(tail + TSR_SKIPPABLE_HEAD, TSR_ARCHIVE_SIGNATURE, TSR_SIGNATURE_BYTES) != 0)
        return tsr_fail(err, TSR_E_FORMAT,
                        "%s: a seekable zstd file, but Tessera's hashes before its seek table are missing; 'zstd -d' "
                        "restores the plain file",
                        path);
    if (tsr_get_32(tail + 4) != l->seek - TSR_SKIPPABLE_HEAD || tsr_get_32(tail + l->seek) != TSR_SEEK_MAGIC ||
        tsr_get_32(tail + l->seek + 4) != l->bytes - l->entries ||
        tsr_get_64(tail + TSR_INFO_FIXED - 8) != tsr_archive_tail_hash(tail, l) ||
        tsr_get_32(tail + l->entries + TSR_SEEK_ENTRY * frames) != l->seek ||
        tsr_get_32(tail + l->entries + TSR_SEEK_ENTRY * frames + 4) != 0)
        return tsr_fail(err, TSR_E_FORMAT, "%s: the seek table of %llu frames is damaged", path, U64(frames));
    return TSR_OK;
}

/* Checks the entries one by one, then their sums. */
static tsr_status read_frames(tsr_archive *a, const uint8_t *tail, const tsr_archive_layout *l, uint64_t end,
                              tsr_err *err)
{
    uint64_t at = 0, plain_at = 0;
    for (uint64_t i = 0; i < a->n_frames; i++) {
        const uint32_t packed = tsr_get_32(tail + l->entries + TSR_SEEK_ENTRY * i);
        const uint32_t plain = tsr_get_32(tail + l->entries + TSR_SEEK_ENTRY * i + 4);
        const uint8_t width = tail[l->widths + i];
        if (plain > TSR_ARCHIVE_MAX_FRAME)
            return tsr_fail(err, TSR_E_UNSUPPORTED, "%s: the frame at offset %llu holds %u bytes; the limit is %u",
                            a->path, U64(at), plain, TSR_ARCHIVE_MAX_FRAME);
        if (plain == 0 || packed == 0 || packed > ZSTD_compressBound(plain) || packed > end - at ||
            (width != 1 && width != 2 && width != 4))
            return tsr_fail(err, TSR_E_FORMAT,
                            "%s: the seek table states for frame %llu, at offset %llu, %u bytes for %u in planes of "
                            "%u",
                            a->path, U64(i), U64(at), packed, plain, width);
        a->frames[i] =
            (frame){.at = at, .plain_at = plain_at, .hash = tsr_get_64(tail + l->hashes + 8 * i), .width = width};
        at += packed;
        plain_at += plain;
    }
    a->frames[a->n_frames] = (frame){.at = at, .plain_at = plain_at};
    if (at != end)
        return tsr_fail(err, TSR_E_FORMAT, "%s: the seek table's frames end at offset %llu, the file's at %llu",
                        a->path, U64(at), U64(end));
    for (uint64_t i = 0; i < a->n_frames; i++) {
        const size_t need = load_bytes(&a->frames[i]);
        a->cache->slot_bytes = need > a->cache->slot_bytes ? need : a->cache->slot_bytes;
    }
    return TSR_OK;
}

static tsr_status read_tail(tsr_archive *a, tsr_err *err)
{
    const uint64_t size = a->file.size;
    const tsr_archive_layout l = tsr_archive_lay_out(a->n_frames);
    uint8_t *const tail = malloc(l.bytes);
    a->frames = calloc(a->n_frames + 1, sizeof *a->frames);
    tsr_status status = TSR_OK;
    if (tail == NULL || a->frames == NULL)
        status = tsr_fail(err, TSR_E_NOMEM, "%s: out of memory for %llu frames", a->path, U64(a->n_frames));
    if (status == TSR_OK)
        status = tsr_input_read(&a->file, tail, l.bytes, size - l.bytes, err);
    if (status == TSR_OK)
        status = check_tail(a->path, tail, &l, err);
    if (status == TSR_OK)
        status = read_frames(a, tail, &l, size - l.bytes, err);
    free(tail);
    return status;
}

tsr_status tsr_archive_open(tsr_archive **archive, const tsr_input *file, tsr_archive_cache *cache, tsr_err *err)
{
    const char *const path = file->path;
    uint64_t frames = 0;
    *archive = NULL;
    TSR_TRY(read_footer(file, &frames, err));
    tsr_archive *const a = malloc(sizeof *a);
    if (a == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "%s: out of memory", path);
    *a = (tsr_archive){.file = *file, .path = path, .cache = cache, .n_frames = frames};
    const tsr_status status = read_tail(a, err);
    if (status != TSR_OK)
        tsr_archive_close(a);
    else
        *archive = a;
    return status;
}

void tsr_archive_close(tsr_archive *a)
{
    if (a == NULL)
        return;
    free(a->frames);
    free(a);
}

uint64_t tsr_archive_size(const tsr_archive *a)
{
    return a->frames[a->n_frames].plain_at;
}

size_t tsr_archive_memory(const tsr_archive *a)
{
    return sizeof *a + (size_t)(a->n_frames + 1) * sizeof *a->frames;
}

/* ---- reading ---- */

/* Returns the frame that holds the plain byte at `offset`, which must be inside the file. */
static uint64_t frame_at(const tsr_archive *a, uint64_t offset)
{
    uint64_t low = 0, high = a->n_frames;
    while (high - low > 1) {
        const uint64_t middle = low + (high - low) / 2;
        if (a->frames[middle].plain_at <= offset)
            low = middle;
        else
            high = middle;
    }
    return low;
}

tsr_status tsr_archive_read(tsr_archive *a, void *data, size_t size, uint64_t offset, tsr_err *err)
{
    char *to = data;
    if (offset > tsr_archive_size(a) || size > tsr_archive_size(a) - offset)
        return tsr_fail(err, TSR_E_FORMAT, "%s: holds %llu bytes; the range at offset %llu of %zu bytes is outside it",
                        a->path, U64(tsr_archive_size(a)), U64(offset), size);
    for (uint64_t i = frame_at(a, offset); size > 0; i++) {
        const frame *const f = &a->frames[i];
        const size_t skip = (size_t)(offset - f->plain_at);
        const size_t n = (size_t)tsr_min_u64(size, frame_bytes(f) - skip);
        slot *s;
        TSR_TRY(acquire(a, i, &s, err));
        memcpy(to, s->memory + skip, n);
        release(a, s);
        to += n;
        size -= n;
        offset += n;
    }
    return TSR_OK;
}

/* Returns the packed bytes of the frames that hold plain bytes [*offset, *offset + *size). */
static void find_packed(const tsr_archive *a, uint64_t *offset, uint64_t *size)
{
    const uint64_t first = a->frames[frame_at(a, *offset)].at;
    *size = a->frames[frame_at(a, tsr_min_u64(*offset + *size, tsr_archive_size(a)) - 1) + 1].at - first;
    *offset = first;
}

void tsr_input_prefetch(const tsr_input *in, uint64_t offset, uint64_t size)
{
    if (size == 0 || offset >= in->size)
        return;
    if (in->archive != NULL)
        find_packed(in->archive, &offset, &size);
    if (in->remote != NULL)
        tsr_remote_prefetch(in->remote, offset, size);
    else
        (void)posix_fadvise(in->fd, (off_t)offset, (off_t)size, POSIX_FADV_WILLNEED);
}

tsr_status tsr_input_read(const tsr_input *in, void *data, size_t size, uint64_t offset, tsr_err *err)
{
    if (in->archive != NULL)
        return tsr_archive_read(in->archive, data, size, offset, err);
    return in->remote != NULL ? tsr_remote_read(in->remote, data, size, offset, err)
                              : tsr_read_at(in->fd, in->path, data, size, offset, err);
}
