/* A cache of stretches that knows how often each is still needed. */
#include "convert/engine/shared_reads.h"

#include "common/checked.h"
#include "convert/engine/stretches.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* A stretch of a file. What windows need of it lies in [low, high). */
typedef struct stretch {
    uint32_t wanted; /* by how many windows that are still to be read */
    uint32_t low, high;
    uint32_t kept; /* 1 + its place among `kept`; 0: not in memory */
} stretch;

typedef struct shared_file {
    uint64_t device, inode;
    uint64_t first; /* of its bytes, in the order of all files */
    size_t n;
    stretch *stretches;
} shared_file;

/* A stretch that is in memory, or is being read. */
typedef struct kept {
    stretch *of;    /* NULL: the place is free */
    char *data;     /* of [low, high) */
    uint64_t used;  /* when it was used last, as a count of uses */
    unsigned users; /* threads that copy from it, or read it */
    bool ready;
} kept;

struct tsr_shared_reads {
    size_t capacity; /* stretches in memory */
    shared_file *files;
    size_t n_files;

    pthread_mutex_t lock; /* guards all that follows, and wanted and kept of stretches */
    pthread_cond_t changed;
    kept *kept;   /* [capacity] */
    char **spare; /* [n_spare]: memory for a stretch each, that is used again */
    size_t n_spare, n_kept;
    uint64_t bytes_read, uses;
};

tsr_shared_reads *tsr_shared_begin(uint64_t capacity)
{
    tsr_shared_reads *const s = calloc(1, sizeof *s);
    const size_t n = (size_t)(capacity / TSR_STRETCH_BYTES);
    if (s == NULL)
        return NULL;
    *s = (tsr_shared_reads){.capacity = n,
                            .lock = PTHREAD_MUTEX_INITIALIZER,
                            .changed = PTHREAD_COND_INITIALIZER,
                            .kept = calloc(n + 1, sizeof *s->kept),
                            .spare = calloc(n + 1, sizeof *s->spare)};
    if (s->kept != NULL && s->spare != NULL)
        return s;
    tsr_shared_end(s);
    return NULL;
}

void tsr_shared_end(tsr_shared_reads *s)
{
    if (s == NULL)
        return;
    for (size_t i = 0; s->kept != NULL && i < s->capacity; i++)
        free(s->kept[i].data);
    for (size_t i = 0; i < s->n_spare; i++)
        free(s->spare[i]);
    for (size_t i = 0; i < s->n_files; i++)
        free(s->files[i].stretches);
    free(s->kept);
    free(s->spare);
    free(s->files);
    free(s);
}

static size_t stretches_of(uint64_t bytes)
{
    return (size_t)((bytes + TSR_STRETCH_BYTES - 1) / TSR_STRETCH_BYTES);
}

uint64_t tsr_shared_tables(const tsr_plan *plan)
{
    uint64_t bytes = 0;
    for (size_t k = 0; k < plan->n_sources; k++) {
        const tsr_checkpoint *const c = plan->sources[k];
        for (size_t i = 0; i < c->n_files + c->n_side_files; i++)
            bytes += sizeof(shared_file) + stretches_of(c->files[i].size) * sizeof(stretch);
    }
    return bytes;
}

/* ---- files ---- */

static shared_file *find_file(const tsr_shared_reads *s, const tsr_file *f)
{
    for (size_t i = 0; i < s->n_files; i++) {
        if (s->files[i].inode == f->stamp.inode && s->files[i].device == f->stamp.device)
            return &s->files[i];
    }
    return NULL;
}

static shared_file *add_file(tsr_shared_reads *s, const tsr_file *f)
{
    shared_file *const files = realloc(s->files, (s->n_files + 1) * sizeof *files);
    if (files == NULL)
        return NULL;
    s->files = files;
    shared_file *const made = &files[s->n_files];
    const shared_file *const last = s->n_files == 0 ? NULL : made - 1;
    *made = (shared_file){.device = f->stamp.device,
                          .inode = f->stamp.inode,
                          .first = last == NULL ? 0 : last->first + last->n * TSR_STRETCH_BYTES,
                          .n = stretches_of(f->size)};
    made->stretches = calloc(made->n + 1, sizeof *made->stretches);
    if (made->stretches == NULL)
        return NULL;
    s->n_files++;
    return made;
}

tsr_status tsr_shared_announce(tsr_shared_reads *s, const tsr_checkpoint *source, const tsr_tensor *t,
                               const tsr_window *w, tsr_err *err)
{
    if (tsr_window_is_empty(w))
        return TSR_OK;
    const tsr_file *const f = &source->files[t->file];
    shared_file *file = find_file(s, f);
    if (file == NULL)
        file = add_file(s, f);
    if (file == NULL)
        return tsr_out_of_memory(err, "for the stretches of a source file");
    for (tsr_piece p = tsr_piece_first(t, w); tsr_piece_next(t, w, &p); p.index++) {
        if (p.index >= file->n)
            return tsr_fail(err, TSR_E_FORMAT, "%s: '%s' lies beyond the end of the file", f->path, t->name);
        stretch *const at = &file->stretches[p.index];
        const uint64_t begin = p.index * TSR_STRETCH_BYTES;
        at->low = at->wanted == 0 ? (uint32_t)(p.low - begin) : (uint32_t)tsr_min_u64(at->low, p.low - begin);
        at->high = (uint32_t)tsr_max_u64(at->high, p.high - begin);
        at->wanted++;
    }
    return TSR_OK;
}

uint64_t tsr_shared_place(const tsr_shared_reads *s, const tsr_checkpoint *source, const tsr_tensor *t,
                          const tsr_window *w)
{
    const shared_file *const file = find_file(s, &source->files[t->file]);
    return file == NULL ? 0 : file->first + tsr_window_begin(t, w);
}

/* ---- what is in memory ---- */

/* Lets go of a stretch. Called with the lock held; nobody uses it. */
static void drop(tsr_shared_reads *s, kept *k)
{
    s->spare[s->n_spare++] = k->data;
    k->of->kept = 0;
    *k = (kept){.of = NULL};
    s->n_kept--;
}

/* Lets go of the stretch that was not used for the longest time; false: all are in use. */
static bool make_room(tsr_shared_reads *s)
{
    kept *oldest = NULL;
    for (size_t i = 0; i < s->capacity; i++) {
        kept *const k = &s->kept[i];
        if (k->of != NULL && k->users == 0 && (oldest == NULL || k->used < oldest->used))
            oldest = k;
    }
    if (oldest != NULL)
        drop(s, oldest);
    return oldest != NULL;
}

/* A place for a stretch, which the caller then reads; NULL: there is no room. Called with the lock held. */
static kept *take_place(tsr_shared_reads *s, stretch *of)
{
    size_t i = 0;
    if (s->n_kept == s->capacity && !make_room(s))
        return NULL;
    while (s->kept[i].of != NULL)
        i++;
    char *const data = s->n_spare > 0 ? s->spare[--s->n_spare] : malloc(TSR_STRETCH_BYTES);
    if (data == NULL)
        return NULL;
    s->kept[i] = (kept){.of = of, .data = data, .users = 1};
    s->n_kept++;
    of->kept = (uint32_t)i + 1;
    return &s->kept[i];
}

/* ---- reading ---- */

/* Where a window's bytes lie, and where they go. */
typedef struct reading {
    const tsr_checkpoint *source;
    const tsr_tensor *tensor;
    const tsr_window *window;
    char *data;
} reading;

static tsr_status read_file(tsr_shared_reads *s, const reading *r, uint64_t low, uint64_t bytes, void *data,
                            tsr_err *err)
{
    tsr_tensor place = *r->tensor; /* for its name, in messages */
    place.offset = low;
    TSR_TRY(tsr_checkpoint_read(r->source, &place, 0, data, bytes, err));
    pthread_mutex_lock(&s->lock);
    s->bytes_read += bytes;
    pthread_mutex_unlock(&s->lock);
    return TSR_OK;
}

/* Copies a piece, row by row, out of bytes that are in memory: those of the file from `at` on. NULL: reads it from the file. */
static tsr_status copy_piece(tsr_shared_reads *s, const reading *r, const tsr_piece *p, const char *held, uint64_t at,
                             tsr_err *err)
{
    const tsr_window *const w = r->window;
    const uint64_t begin = tsr_window_begin(r->tensor, w);
    const bool gapless = tsr_window_pitch(w) == w->row_bytes; /* then all rows are one */
    const uint64_t row_bytes = gapless ? tsr_window_bytes(w) : w->row_bytes, pitch = gapless ? row_bytes : w->pitch;
    for (uint64_t row = (p->low - begin) / pitch; begin + row * pitch < p->high; row++) {
        const uint64_t low = tsr_max_u64(begin + row * pitch, p->low),
                       high = tsr_min_u64(begin + row * pitch + row_bytes, p->high);
        if (low >= high)
            continue;
        char *const to = r->data + row * row_bytes + (low - begin - row * pitch);
        if (held != NULL)
            memcpy(to, held + (low - at), high - low);
        else
            TSR_TRY(read_file(s, r, low, high - low, to, err));
    }
    return TSR_OK;
}

/* Takes a stretch that is in memory, or has it read. *k is NULL where there is no room for it. Called with the lock held,
 * which is free in between. */
static tsr_status take_stretch(tsr_shared_reads *s, const reading *r, stretch *at, uint64_t begin, size_t *index,
                               bool *taken, tsr_err *err)
{
    while (at->kept != 0 && !s->kept[at->kept - 1].ready)
        pthread_cond_wait(&s->changed, &s->lock);
    *taken = true;
    if (at->kept != 0) {
        *index = at->kept - 1;
        s->kept[*index].users++;
        return TSR_OK;
    }
    /* The last one who wants it reads what it needs, and nothing is kept. */
    kept *const k = at->wanted <= 1 ? NULL : take_place(s, at);
    *taken = k != NULL;
    if (k == NULL)
        return TSR_OK;
    *index = at->kept - 1;
    char *const data = k->data;
    const uint64_t bytes = at->high - at->low;
    pthread_mutex_unlock(&s->lock);
    const tsr_status status = read_file(s, r, begin + at->low, bytes, data, err);
    pthread_mutex_lock(&s->lock);
    s->kept[*index].ready = true;
    if (status != TSR_OK)
        drop(s, &s->kept[*index]); /* those who wait for it read it themselves, and fail by themselves */
    pthread_cond_broadcast(&s->changed);
    return status;
}

static tsr_status read_piece(tsr_shared_reads *s, const reading *r, stretch *at, const tsr_piece *p, tsr_err *err)
{
    const uint64_t begin = p->index * TSR_STRETCH_BYTES;
    size_t index = 0;
    bool taken = false;
    pthread_mutex_lock(&s->lock);
    tsr_status status = take_stretch(s, r, at, begin, &index, &taken, err);
    at->wanted -= at->wanted > 0;
    const char *const data = taken && status == TSR_OK ? s->kept[index].data : NULL;
    pthread_mutex_unlock(&s->lock);
    if (status != TSR_OK)
        return status;
    status = copy_piece(s, r, p, data, begin + at->low, err);
    if (!taken)
        return status;
    pthread_mutex_lock(&s->lock);
    kept *const k = &s->kept[index];
    k->users--;
    k->used = ++s->uses;
    if (k->users == 0 && at->wanted == 0)
        drop(s, k);
    pthread_mutex_unlock(&s->lock);
    return status;
}

tsr_status tsr_shared_read(tsr_shared_reads *s, const tsr_checkpoint *source, const tsr_tensor *t, const tsr_window *w,
                           void *data, tsr_err *err)
{
    const reading r = {.source = source, .tensor = t, .window = w, .data = data};
    if (tsr_window_is_empty(w))
        return TSR_OK;
    const shared_file *const file = find_file(s, &source->files[t->file]);
    for (tsr_piece p = tsr_piece_first(t, w); tsr_piece_next(t, w, &p); p.index++)
        TSR_TRY(read_piece(s, &r, &file->stretches[p.index], &p, err));
    return TSR_OK;
}

void tsr_shared_prefetch(tsr_shared_reads *s, const tsr_checkpoint *source, const tsr_tensor *t, const tsr_window *w)
{
    const shared_file *const file = tsr_window_is_empty(w) ? NULL : find_file(s, &source->files[t->file]);
    if (file == NULL)
        return;
    for (tsr_piece p = tsr_piece_first(t, w); tsr_piece_next(t, w, &p); p.index++) {
        pthread_mutex_lock(&s->lock);
        const bool here = file->stretches[p.index].kept != 0;
        pthread_mutex_unlock(&s->lock);
        tsr_tensor place = *t;
        place.offset = p.low;
        if (!here)
            tsr_checkpoint_prefetch(source, &place, 0, (size_t)(p.high - p.low));
    }
}

uint64_t tsr_shared_announced(const tsr_shared_reads *s)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < s->n_files; i++) {
        for (size_t k = 0; k < s->files[i].n; k++)
            bytes += s->files[i].stretches[k].high - s->files[i].stretches[k].low;
    }
    return bytes;
}

uint64_t tsr_shared_bytes(tsr_shared_reads *s)
{
    pthread_mutex_lock(&s->lock);
    const uint64_t bytes = s->bytes_read;
    pthread_mutex_unlock(&s->lock);
    return bytes;
}
