/* Keeps chunks of source files in memory until the last announced window has been read. */
#include "convert/io/shared_reads.h"

#include "common/checked.h"
#include "convert/io/chunks.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    READERS = 4, /* concurrent read requests: enough to keep a fast disk busy */
    AHEAD = 16,  /* most chunks read ahead; also limited to an eighth of the chunks that are kept */
    PAGE = 4096, /* alignment of direct reads */
};

/* A chunk of a file. Windows need only bytes [low, high) of it. */
typedef struct chunk {
    uint32_t wanted; /* windows that have not been read yet */
    uint32_t low, high;
    uint32_t kept; /* 1 + index in `kept`; 0: not in memory */
} chunk;

typedef struct shared_file {
    uint64_t device, inode;
    uint64_t first; /* position of its first byte in the order of all files */
    int direct;     /* the file, opened with O_DIRECT; -1: use the page cache */
    size_t n;
    chunk *chunks;
} shared_file;

/* A chunk that is in memory or is being read. */
typedef struct kept {
    chunk *of;      /* NULL: the slot is free */
    char *data;     /* buffer for the whole chunk; only [low, high) is filled */
    uint64_t used;  /* value of the use counter at its last use */
    unsigned users; /* threads that copy from it or read into it */
    bool ready;
    bool ahead; /* read ahead and not used yet */
} kept;

/* Position of the threads that read ahead. */
typedef struct reading_ahead {
    pthread_t threads[READERS];
    unsigned n_threads;
    bool over;
    size_t file, index; /* the next chunk */
    size_t n, most;     /* chunks that were read ahead and not used yet, and the limit */
} reading_ahead;

struct tsr_shared_reads {
    size_t capacity; /* chunks in memory */
    shared_file *files;
    size_t n_files;

    pthread_mutex_t lock; /* guards the following members, and `wanted` and `kept` of chunks */
    pthread_cond_t changed;
    kept *kept;   /* [capacity] */
    char **spare; /* [n_spare]: chunk buffers for reuse */
    size_t n_spare, n_kept;
    uint64_t bytes_read, uses;
    reading_ahead ahead;
};

static void end_reading_ahead(tsr_shared_reads *s)
{
    pthread_mutex_lock(&s->lock);
    s->ahead.over = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    for (unsigned i = 0; i < s->ahead.n_threads; i++)
        pthread_join(s->ahead.threads[i], NULL);
}

tsr_shared_reads *tsr_shared_begin(uint64_t capacity)
{
    tsr_shared_reads *const s = calloc(1, sizeof *s);
    const size_t n = (size_t)(capacity / TSR_CHUNK_BYTES);
    if (s == NULL)
        return NULL;
    *s = (tsr_shared_reads){.capacity = n,
                            .ahead.most = n / 8 < AHEAD ? n / 8 : AHEAD,
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
    end_reading_ahead(s);
    for (size_t i = 0; s->kept != NULL && i < s->capacity; i++)
        free(s->kept[i].data);
    for (size_t i = 0; i < s->n_spare; i++)
        free(s->spare[i]);
    for (size_t i = 0; i < s->n_files; i++)
        free(s->files[i].chunks);
    free(s->kept);
    free(s->spare);
    free(s->files);
    free(s);
}

static size_t chunks_of(uint64_t bytes)
{
    return (size_t)((bytes + TSR_CHUNK_BYTES - 1) / TSR_CHUNK_BYTES);
}

uint64_t tsr_shared_tables(const tsr_plan *plan)
{
    uint64_t bytes = 0;
    for (size_t k = 0; k < plan->n_sources; k++) {
        const tsr_checkpoint *const c = plan->sources[k];
        for (size_t i = 0; i < c->n_files + c->n_side_files; i++)
            bytes += sizeof(shared_file) + chunks_of(c->files[i].size) * sizeof(chunk);
    }
    return bytes;
}

/* ---- files ---- */

static shared_file *find_file(const tsr_shared_reads *s, const tsr_file *f)
{
    for (size_t i = s->n_files; i-- > 0;) { /* most windows are of the file that was announced last */
        if (s->files[i].inode == f->stamp.inode && s->files[i].device == f->stamp.device)
            return &s->files[i];
    }
    return NULL;
}

static uint64_t end_of_places(const tsr_shared_reads *s)
{
    return s->n_files == 0 ? 0 : s->files[s->n_files - 1].first + s->files[s->n_files - 1].n * TSR_CHUNK_BYTES;
}

static shared_file *add_file(tsr_shared_reads *s, const tsr_file *f)
{
    shared_file *const files = realloc(s->files, (s->n_files + 1) * sizeof *files);
    if (files == NULL)
        return NULL;
    s->files = files;
    shared_file *const made = &files[s->n_files];
    *made = (shared_file){.device = f->stamp.device,
                          .inode = f->stamp.inode,
                          .direct = -1,
                          .first = end_of_places(s),
                          .n = chunks_of(f->size)};
    made->chunks = calloc(made->n + 1, sizeof *made->chunks);
    if (made->chunks == NULL)
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
        return tsr_out_of_memory(err, "for the chunks of a source file");
    for (tsr_chunk_part p = tsr_chunk_part_first(t, w); tsr_chunk_part_next(t, w, &p); p.index++) {
        if (p.index >= file->n)
            return tsr_fail(err, TSR_E_FORMAT, "%s: '%s' is beyond the end of the file", f->path, t->name);
        chunk *const at = &file->chunks[p.index];
        const uint64_t begin = p.index * TSR_CHUNK_BYTES;
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

/* ---- chunks in memory ---- */

/* Frees the slot of a chunk that has no users. Called with the lock held. */
static void drop(tsr_shared_reads *s, kept *k)
{
    s->ahead.n -= k->ahead;
    s->spare[s->n_spare++] = k->data;
    k->of->kept = 0;
    *k = (kept){.of = NULL};
    s->n_kept--;
}

/* Frees the slot of the least recently used chunk. Returns false if all are in use. */
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

/* Finds a slot into which the caller reads a chunk; NULL: there is no room. Called with the lock held. */
static kept *take_place(tsr_shared_reads *s, chunk *of)
{
    size_t i = 0;
    if (s->n_kept == s->capacity && !make_room(s))
        return NULL;
    while (s->kept[i].of != NULL)
        i++;
    char *const data = s->n_spare > 0 ? s->spare[--s->n_spare] : aligned_alloc(PAGE, TSR_CHUNK_BYTES);
    if (data == NULL)
        return NULL;
    s->kept[i] = (kept){.of = of, .data = data, .users = 1};
    s->n_kept++;
    of->kept = (uint32_t)i + 1;
    return &s->kept[i];
}

/* ---- reading ---- */

/* A read of a window: source and destination. */
typedef struct reading {
    const tsr_checkpoint *source;
    const tsr_tensor *tensor;
    const tsr_window *window;
    char *data;
} reading;

static tsr_status read_file(tsr_shared_reads *s, const reading *r, uint64_t low, uint64_t bytes, void *data,
                            tsr_err *err)
{
    tsr_tensor place = *r->tensor; /* named in messages */
    place.offset = low;
    TSR_TRY(tsr_checkpoint_read(r->source, &place, 0, data, bytes, err));
    pthread_mutex_lock(&s->lock);
    s->bytes_read += bytes;
    pthread_mutex_unlock(&s->lock);
    return TSR_OK;
}

/* Reads the needed pages of a chunk directly. Returns false if that fails. */
static bool read_direct(const shared_file *file, const chunk *at, uint64_t begin, char *data)
{
    const uint64_t from = at->low / PAGE * PAGE, to = tsr_round_up(at->high, PAGE);
    uint64_t done = from;
    while (file->direct >= 0 && done < at->high) {
        const ssize_t n = pread(file->direct, data + done, to - done, (off_t)(begin + done));
        if (n <= 0 && !(n < 0 && errno == EINTR))
            return false;
        done += n > 0 ? (uint64_t)n : 0;
        if (done < at->high && done % PAGE != 0)
            return false; /* the file is too short: it has changed, and the regular read will report that */
    }
    return file->direct >= 0;
}

/* Copies a part of a window by rows, from memory that holds the file from `at` on (NULL: reads the file). */
static tsr_status copy_piece(tsr_shared_reads *s, const reading *r, const tsr_chunk_part *p, const char *kept_data,
                             uint64_t at, tsr_err *err)
{
    const tsr_window *const w = r->window;
    const uint64_t begin = tsr_window_begin(r->tensor, w);
    const bool gapless = tsr_window_pitch(w) == w->row_bytes; /* the rows are contiguous */
    const uint64_t row_bytes = gapless ? tsr_window_bytes(w) : w->row_bytes, pitch = gapless ? row_bytes : w->pitch;
    for (uint64_t row = (p->low - begin) / pitch; begin + row * pitch < p->high; row++) {
        const uint64_t low = tsr_max_u64(begin + row * pitch, p->low),
                       high = tsr_min_u64(begin + row * pitch + row_bytes, p->high);
        if (low >= high)
            continue;
        char *const to = r->data + row * row_bytes + (low - begin - row * pitch);
        if (kept_data != NULL)
            memcpy(to, kept_data + (low - at), high - low);
        else
            TSR_TRY(read_file(s, r, low, high - low, to, err));
    }
    return TSR_OK;
}

/* Notes the first use of a chunk that was read ahead. Called with the lock held. */
static void count_as_used(tsr_shared_reads *s, kept *k)
{
    if (!k->ahead)
        return;
    k->ahead = false;
    s->ahead.n--;
    pthread_cond_broadcast(&s->changed);
}

/* Moves the read-ahead position past a chunk that was read without it. Called with the lock held. */
static void look_behind(tsr_shared_reads *s, const shared_file *file, const chunk *at)
{
    for (size_t i = 0; i < s->capacity; i++)
        s->kept[i].ahead = false;
    s->ahead.n = 0;
    s->ahead.file = (size_t)(file - s->files);
    s->ahead.index = (size_t)(at - file->chunks) + 1;
    pthread_cond_broadcast(&s->changed);
}

/* Asks the kernel to read ahead a chunk that will be needed soon, for a file that uses the page cache. */
static void ask_ahead(const reading *r, const shared_file *file, size_t number)
{
    const size_t soon = number + AHEAD / 2;
    tsr_tensor place = *r->tensor;
    place.offset = soon * TSR_CHUNK_BYTES;
    if (file->direct < 0 && soon < file->n)
        tsr_checkpoint_prefetch(r->source, &place, 0, TSR_CHUNK_BYTES);
}

/* Finds or reads a chunk. *k is NULL if there is no room. Called with the lock held, which is released for reads. */
static tsr_status take_chunk(tsr_shared_reads *s, const reading *r, const shared_file *file, size_t number,
                             size_t *index, bool *taken, tsr_err *err)
{
    chunk *const at = &file->chunks[number];
    const uint64_t begin = number * TSR_CHUNK_BYTES;
    while (at->kept != 0 && !s->kept[at->kept - 1].ready)
        pthread_cond_wait(&s->changed, &s->lock);
    *taken = true;
    if (at->kept != 0) {
        *index = at->kept - 1;
        s->kept[*index].users++;
        count_as_used(s, &s->kept[*index]);
        return TSR_OK;
    }
    look_behind(s, file, at);
    /* The last window that needs a chunk reads only its own bytes, and nothing is kept. */
    kept *const k = at->wanted <= 1 && file->direct < 0 ? NULL : take_place(s, at);
    *taken = k != NULL;
    if (k == NULL)
        return TSR_OK;
    *index = at->kept - 1;
    char *const data = k->data;
    const uint64_t bytes = at->high - at->low;
    pthread_mutex_unlock(&s->lock);
    ask_ahead(r, file, number);
    const bool direct = read_direct(file, at, begin, data);
    const tsr_status status = direct ? TSR_OK : read_file(s, r, begin + at->low, bytes, data + at->low, err);
    pthread_mutex_lock(&s->lock);
    s->bytes_read += direct ? bytes : 0;
    s->kept[*index].ready = true;
    if (status != TSR_OK)
        drop(s,
             &s->kept[*index]); /* threads that wait for the chunk read it themselves and report their own failures */
    pthread_cond_broadcast(&s->changed);
    return status;
}

static tsr_status read_piece(tsr_shared_reads *s, const reading *r, const shared_file *file, const tsr_chunk_part *p,
                             tsr_err *err)
{
    chunk *const at = &file->chunks[p->index];
    size_t index = 0;
    bool taken = false;
    pthread_mutex_lock(&s->lock);
    tsr_status status = take_chunk(s, r, file, p->index, &index, &taken, err);
    at->wanted -= at->wanted > 0;
    const char *const data = taken && status == TSR_OK ? s->kept[index].data : NULL;
    pthread_mutex_unlock(&s->lock);
    if (status != TSR_OK)
        return status;
    if (!taken)
        ask_ahead(r, file, p->index);
    status = copy_piece(s, r, p, data, p->index * TSR_CHUNK_BYTES, err);
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
    for (tsr_chunk_part p = tsr_chunk_part_first(t, w); tsr_chunk_part_next(t, w, &p); p.index++)
        TSR_TRY(read_piece(s, &r, file, &p, err));
    return TSR_OK;
}

/* ---- reading ahead ---- */

/* Finds the next needed chunk that is not in memory and whose file is read directly. Returns NULL if there is none.
 * Called with the lock held. */
static chunk *next_wanted(tsr_shared_reads *s)
{
    reading_ahead *const a = &s->ahead;
    for (; a->file < s->n_files; a->file++, a->index = 0) {
        const shared_file *const f = &s->files[a->file];
        for (; f->direct >= 0 && a->index < f->n; a->index++) {
            if (f->chunks[a->index].wanted > 0 && f->chunks[a->index].kept == 0)
                return &f->chunks[a->index];
        }
    }
    return NULL;
}

/* Thread function: reads chunks ahead, one at a time, until the end. `argument` is a tsr_shared_reads. */
static void *read_ahead(void *argument)
{
    tsr_shared_reads *const s = argument;
    reading_ahead *const a = &s->ahead;
    pthread_mutex_lock(&s->lock);
    while (!a->over) {
        chunk *const at = a->n < a->most ? next_wanted(s) : NULL;
        kept *const k = at == NULL ? NULL : take_place(s, at);
        if (k == NULL) {
            pthread_cond_wait(&s->changed, &s->lock);
            continue;
        }
        const shared_file *const f = &s->files[a->file];
        const uint64_t begin = a->index++ * TSR_CHUNK_BYTES;
        k->ahead = true;
        k->used = ++s->uses;
        a->n++;
        pthread_mutex_unlock(&s->lock);
        const bool done = read_direct(f, at, begin, k->data);
        pthread_mutex_lock(&s->lock);
        s->bytes_read += done ? at->high - at->low : 0;
        k->ready = true;
        k->users--;
        if (!done)
            drop(s, k); /* the thread that needs the chunk reads it and reports the failure */
        pthread_cond_broadcast(&s->changed);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

void tsr_shared_read_directly(tsr_shared_reads *s, const tsr_file *f, int direct)
{
    shared_file *const file = find_file(s, f);
    if (file == NULL || direct < 0)
        return;
    pthread_mutex_lock(&s->lock);
    file->direct = file->direct < 0 ? direct : file->direct;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    while (s->ahead.n_threads < READERS &&
           pthread_create(&s->ahead.threads[s->ahead.n_threads], NULL, read_ahead, s) == 0)
        s->ahead.n_threads++;
}

void tsr_shared_prefetch(tsr_shared_reads *s, const tsr_checkpoint *source, const tsr_tensor *t, const tsr_window *w)
{
    const shared_file *const file = tsr_window_is_empty(w) ? NULL : find_file(s, &source->files[t->file]);
    if (file == NULL || file->direct >= 0)
        return;
    for (tsr_chunk_part p = tsr_chunk_part_first(t, w); tsr_chunk_part_next(t, w, &p); p.index++) {
        pthread_mutex_lock(&s->lock);
        const bool here = file->chunks[p.index].kept != 0;
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
            bytes += s->files[i].chunks[k].high - s->files[i].chunks[k].low;
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
