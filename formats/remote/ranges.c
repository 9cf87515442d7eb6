/* Reads ranges of remote files: from memory if they were read ahead, else by requests in parallel. */
#include "formats/remote/remote.h"

#ifdef TSR_HAVE_CURL
#include "common/checked.h"
#include "formats/remote/header_cache.h"
#include "formats/remote/remote_open.h"

#include <stdlib.h>
#include <string.h>

/* Uses of other extents after which one that was read ahead is not expected to be needed. */
enum { LONG_UNUSED = 64 };

/* The largest range of one request: long enough that its delay does not matter. */
static const uint64_t kPiece = (uint64_t)4 << 20;
/* The most bytes that are read ahead. */
static const uint64_t kMostAhead = (uint64_t)48 << 20;

/* Reads that follow one another are read ahead after kLeastRun bytes, by at most kMostFollowing. */
static const uint64_t kLeastRun = (uint64_t)1 << 20, kMostFollowing = (uint64_t)8 << 20;

/* Most headers are not larger. */
static const uint64_t kUsualHeader = 128 << 10;

/* A part of a read: from an extent, or by a request of its own. */
typedef struct piece {
    tsr_extent *extent; /* NULL: `transfer` reads into the caller's memory */
    char *data;
    uint64_t offset, size;
    tsr_transfer transfer;
} piece;

struct tsr_remote_reading {
    const tsr_remote_file *file;
    size_t n;
    piece pieces[];
};

/* ---- extents ---- */

/* Returns the extent with byte `offset` of the file, or NULL. Otherwise sets *next to the beginning of the next extent
 * before it. Called with the lock held. */
static tsr_extent *find_extent(const tsr_remote *r, const tsr_remote_file *f, uint64_t offset, uint64_t *next)
{
    for (size_t i = 0; i < TSR_EXTENTS; i++) {
        tsr_extent *const e = &r->extents[i];
        if (e->file != f)
            continue;
        if (offset >= e->offset && offset - e->offset < e->size)
            return e;
        if (e->offset > offset && e->offset < *next)
            *next = e->offset;
    }
    return NULL;
}

/* Frees an extent without users. Called with the lock held. */
static void drop(tsr_remote *r, tsr_extent *e)
{
    free(e->data);
    r->ahead -= e->size;
    *e = (tsr_extent){.file = NULL};
}

/* Returns true if an extent can be dropped: nothing reads it, and it was used, or not used for long. */
static bool is_idle(const tsr_remote *r, const tsr_extent *e)
{
    return e->users == 0 && (e->read || r->clock - e->at > LONG_UNUSED) &&
           tsr_transfers_is_over(r->transfers, &e->transfer);
}

/* Returns a free slot with room for `size` bytes; drops idle extents, the oldest first. NULL: all are in use. Called
 * with the lock held. */
static tsr_extent *take_slot(tsr_remote *r, uint64_t size)
{
    for (;;) {
        tsr_extent *oldest = NULL, *empty = NULL;
        for (size_t i = 0; i < TSR_EXTENTS; i++) {
            tsr_extent *const e = &r->extents[i];
            if (e->file == NULL)
                empty = e;
            else if ((oldest == NULL || e->at < oldest->at) && is_idle(r, e))
                oldest = e;
        }
        if (empty != NULL && r->ahead + size <= kMostAhead)
            return empty;
        if (oldest == NULL)
            return NULL;
        drop(r, oldest);
    }
}

/* Begins to read a range of at most kPiece bytes ahead, unless its first byte was read ahead. Returns the end of the
 * extent with that byte; 0: there is no memory for it. */
static uint64_t read_ahead(tsr_remote *r, const tsr_remote_file *f, uint64_t offset, uint64_t size)
{
    uint64_t next = offset + size;
    pthread_mutex_lock(&r->lock);
    const tsr_extent *const there = find_extent(r, f, offset, &next);
    if (there != NULL)
        next = there->offset + there->size;
    tsr_extent *const e = there != NULL ? NULL : take_slot(r, next - offset);
    char *const data = e == NULL ? NULL : malloc(next - offset);
    if (data != NULL) {
        *e = (tsr_extent){.file = f, .offset = offset, .size = next - offset, .data = data, .at = ++r->clock};
        e->transfer = (tsr_transfer){
            .kind = TSR_TRANSFER_RANGE, .file = (tsr_remote_file *)f, .data = data, .offset = offset, .size = e->size};
        r->ahead += e->size;
        tsr_transfers_add(r->transfers, &e->transfer);
    }
    pthread_mutex_unlock(&r->lock);
    return there != NULL || data != NULL ? next : 0;
}

void tsr_remote_prefetch(const tsr_remote_file *f, uint64_t offset, uint64_t size)
{
    const uint64_t end = offset >= f->size ? offset : offset + tsr_min_u64(size, f->size - offset);
    for (uint64_t next; offset < end; offset = next) {
        next = read_ahead(f->remote, f, offset, tsr_min_u64(kPiece, end - offset));
        if (next == 0)
            break;
    }
}

/* Adds bytes that were read already. Frees them if there is no room. */
static void add_extent(tsr_remote *r, const tsr_remote_file *f, char *data, uint64_t size)
{
    uint64_t next = size;
    pthread_mutex_lock(&r->lock);
    tsr_extent *const e = find_extent(r, f, 0, &next) != NULL || next < size ? NULL : take_slot(r, size);
    if (e != NULL) {
        *e = (tsr_extent){.file = f, .size = size, .data = data, .at = ++r->clock, .transfer.over = true};
        r->ahead += size;
    }
    pthread_mutex_unlock(&r->lock);
    if (e == NULL)
        free(data);
}

void tsr_remote_prefetch_header(const tsr_remote_file *f)
{
    size_t size;
    char *const data = tsr_header_cache_find(f, &size);
    if (data != NULL)
        add_extent(f->remote, f, data, size);
    else
        tsr_remote_prefetch(f, 0, kUsualHeader);
}

void tsr_remote_keep_header(const tsr_remote_file *f, const void *data, size_t size)
{
    tsr_header_cache_store(f, data, size);
    atomic_store(&f->remote->kept_headers, true);
}

/* ---- reads ---- */

static void request(const tsr_remote_file *f, piece *p)
{
    p->transfer = (tsr_transfer){.kind = TSR_TRANSFER_RANGE,
                                 .file = (tsr_remote_file *)f,
                                 .data = p->data,
                                 .offset = p->offset,
                                 .size = p->size};
    tsr_transfers_add(f->remote->transfers, &p->transfer);
}

/* Returns a read with memory for all of its pieces. Called with the lock held. */
static tsr_remote_reading *make_reading(const tsr_remote_file *f, uint64_t size)
{
    size_t extents = 0;
    for (size_t i = 0; i < TSR_EXTENTS; i++)
        extents += f->remote->extents[i].file == f;
    tsr_remote_reading *const reading =
        malloc(sizeof *reading + (size_t)(size / kPiece + 2 + 2 * extents) * sizeof *reading->pieces);
    if (reading != NULL)
        *reading = (tsr_remote_reading){.file = f};
    return reading;
}

tsr_remote_reading *tsr_remote_begin(const tsr_remote_file *f, void *data, size_t size, uint64_t offset)
{
    tsr_remote *const r = f->remote;
    pthread_mutex_lock(&r->lock);
    tsr_remote_reading *const reading = make_reading(f, size);
    for (uint64_t done = 0; reading != NULL && done < size;) {
        piece *const p = &reading->pieces[reading->n++];
        uint64_t next = offset + size;
        *p = (piece){.data = (char *)data + done, .offset = offset + done};
        p->extent = find_extent(r, f, p->offset, &next);
        if (p->extent != NULL) {
            p->extent->users++;
            p->extent->read = true;
            p->extent->at = ++r->clock;
            next = tsr_min_u64(next, p->extent->offset + p->extent->size);
        }
        p->size = p->extent != NULL ? next - p->offset : tsr_min_u64(next - p->offset, kPiece);
        done += p->size;
    }
    pthread_mutex_unlock(&r->lock);
    for (size_t i = 0; reading != NULL && i < reading->n; i++) {
        if (reading->pieces[i].extent == NULL)
            request(f, &reading->pieces[i]);
    }
    return reading;
}

/* Waits for a piece that was read ahead, and copies it. */
static tsr_status take_extent(const tsr_remote_file *f, const piece *p, tsr_err *err)
{
    tsr_remote *const r = f->remote;
    tsr_extent *const e = p->extent;
    const tsr_status status = tsr_transfers_wait(r->transfers, &e->transfer, err);
    if (status == TSR_OK)
        memcpy(p->data, e->data + (p->offset - e->offset), p->size);
    pthread_mutex_lock(&r->lock);
    /* Weights are read forward, so the last bytes are used last. Headers, which are shorter, are read again. */
    const bool last = e->size > kUsualHeader && p->offset + p->size == e->offset + e->size;
    if (--e->users == 0 && (status != TSR_OK || last))
        drop(r, e);
    pthread_mutex_unlock(&r->lock);
    return status;
}

tsr_status tsr_remote_end(tsr_remote_reading *reading, tsr_err *err)
{
    tsr_status status = TSR_OK;
    if (reading == NULL)
        return tsr_out_of_memory(err, "for a request");
    /* All pieces are waited for, because the caller's memory is in use until then. */
    for (size_t i = 0; i < reading->n; i++) {
        piece *const p = &reading->pieces[i];
        tsr_err *const to = status == TSR_OK ? err : NULL;
        const tsr_status one = p->extent != NULL
                                   ? take_extent(reading->file, p, to)
                                   : tsr_transfers_wait(reading->file->remote->transfers, &p->transfer, to);
        status = status == TSR_OK ? one : status;
    }
    free(reading);
    return status;
}

/* Returns the stream that a read continues, or a new one instead of the oldest. Called with the lock held. */
static tsr_stream *find_stream(tsr_remote *r, const tsr_remote_file *f, uint64_t offset)
{
    tsr_stream *oldest = &r->streams[0];
    for (size_t i = 0; i < TSR_STREAMS; i++) {
        tsr_stream *const s = &r->streams[i];
        if (s->file == f && s->next == offset)
            return s;
        oldest = s->at < oldest->at ? s : oldest;
    }
    *oldest = (tsr_stream){.file = f, .next = offset};
    return oldest;
}

/* Reads ahead of reads that follow one another: as many bytes as they have read, at most kMostFollowing. */
static void follow(const tsr_remote_file *f, uint64_t offset, uint64_t size)
{
    tsr_remote *const r = f->remote;
    pthread_mutex_lock(&r->lock);
    tsr_stream *const s = find_stream(r, f, offset);
    s->next = offset + size;
    s->run += size;
    s->at = ++r->clock;
    const uint64_t wanted = s->run < kLeastRun ? 0 : tsr_min_u64(s->run, kMostFollowing);
    const uint64_t begin = tsr_max_u64(s->next, s->ahead), end = s->next + wanted;
    const bool due = wanted > 0 && begin < s->next + wanted / 2;
    if (due)
        s->ahead = end;
    pthread_mutex_unlock(&r->lock);
    if (due)
        tsr_remote_prefetch(f, begin, end - begin);
}

tsr_status tsr_remote_read(const tsr_remote_file *f, void *data, size_t size, uint64_t offset, tsr_err *err)
{
    if (offset > f->size || size > f->size - offset)
        return tsr_fail(err, TSR_E_IO, "%s: %zu bytes at offset %llu are beyond its %llu bytes", f->path, size,
                        U64(offset), U64(f->size));
    tsr_remote_reading *const reading = tsr_remote_begin(f, data, size, offset);
    follow(f, offset, size);
    return tsr_remote_end(reading, err);
}
#endif
