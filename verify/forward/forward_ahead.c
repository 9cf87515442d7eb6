/* Reads weights into the page cache before the pass needs them.
 *
 * A thread asks the kernel for the tensors of the layers, in nearly the order in which the pass reads them. It stays a
 * limited number of bytes ahead of the pass. Experts are asked for when the router has chosen them, or before if there
 * are so many tokens that all of them will be chosen. Nothing depends on it but time. */
#include "verify/forward/forward_parts.h"

#include "common/checked.h"
#include "common/grow.h"
#include "formats/names/coding.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    PIECE = 4 << 20,
    MOST_AHEAD = 1 << 30,
    CHOICES_OF_ALL = 8, /* choices for each expert: at random, e^-8 of the experts would not be chosen */
    MOST_EXPERTS = 1 << 12
};

/* Bytes of a layer: a tensor, or the matrix of an expert in a stack. */
typedef struct part {
    const tsr_tensor *tensor;
    uint64_t offset, bytes; /* in the tensor */
    size_t layer;
    size_t expert; /* from 1; 0: none */
} part;

struct tsr_ahead {
    const tsr_checkpoint *checkpoint;
    part *parts; /* sorted by layer and expert */
    size_t n, capacity;
    uint64_t most; /* bytes to be ahead */
    pthread_t thread;
    pthread_mutex_t lock; /* for the following members */
    pthread_cond_t changed;
    bool over;
    size_t layer;    /* that runs */
    size_t next;     /* the first part that was not asked for */
    uint64_t asked;  /* bytes of this layer and of later ones that were asked for */
    uint64_t read;   /* bytes of this layer that the pass has read */
    uint64_t before; /* bytes that it had read before */
    size_t experts;  /* number in the last layer that has any */
    bool *chosen;    /* [experts] of this layer, if `known` */
    bool known, all; /* all: the tokens are so many that all experts will be chosen */
};

/* ---- parts ---- */

static bool add(tsr_ahead *a, const part *p)
{
    if (!tsr_grow(&a->parts, a->n, &a->capacity, sizeof *a->parts))
        return false;
    a->parts[a->n++] = *p;
    return true;
}

/* Adds a tensor of a layer. */
static bool add_tensor(tsr_ahead *a, const tsr_tensor *t, size_t layer)
{
    size_t digits;
    const size_t experts = tsr_experts_length(t->name, &digits);
    part p = {.tensor = t, .bytes = t->bytes, .layer = layer};
    if (experts > 0 && digits > 0)
        p.expert = (size_t)strtoul(t->name + experts, NULL, 10) + 1;
    if (experts == 0 || p.expert > 0 || t->rank < 2 || t->shape[0] == 0 || t->shape[0] > MOST_EXPERTS)
        return add(a, &p);
    p.bytes = t->bytes / t->shape[0];
    for (p.expert = 1; p.expert <= t->shape[0]; p.expert++, p.offset += p.bytes)
        if (!add(a, &p))
            return false;
    return true;
}

static int compare(const void *x, const void *y)
{
    const part *const a = x, *const b = y;
    const uint64_t of_a[] = {a->layer, a->expert, a->tensor->file, a->tensor->offset},
                   of_b[] = {b->layer, b->expert, b->tensor->file, b->tensor->offset};
    for (size_t i = 0; i < sizeof of_a / sizeof *of_a; i++)
        if (of_a[i] != of_b[i])
            return of_a[i] < of_b[i] ? -1 : 1;
    return 0;
}

/* Lists the tensors of all layers that are on disk. Returns false if there is none, or no memory. */
static bool list_parts(tsr_ahead *a, const tsr_forward *f)
{
    char prefix[TSR_MAX_NAME];
    const int length = snprintf(prefix, sizeof prefix, "%slayers.", f->root);
    for (size_t i = 0; i < a->checkpoint->tensors.count; i++) {
        const tsr_tensor *const t = &a->checkpoint->tensors.items[i];
        char *end;
        if (strncmp(t->name, prefix, (size_t)length) != 0 || a->checkpoint->files[t->file].remote != NULL)
            continue;
        const unsigned long layer = strtoul(t->name + length, &end, 10);
        if (*end == '.' && layer < f->layers && !add_tensor(a, t, layer))
            return false;
    }
    if (a->n > 0) /* qsort takes no NULL */
        qsort(a->parts, a->n, sizeof *a->parts, compare);
    return a->n > 0;
}

/* ---- the thread ---- */

/* Returns true if the next part may be asked for. Passes over experts that were not chosen. */
static bool has_next(tsr_ahead *a)
{
    for (; a->next < a->n; a->next++) {
        const part *const p = &a->parts[a->next];
        if (p->expert == 0 || (p->layer != a->layer && a->all))
            break;
        if (p->layer != a->layer || (!a->known && !a->all))
            return false;
        if (!a->known || p->expert > a->experts || a->chosen[p->expert - 1])
            break;
    }
    return a->next < a->n && a->asked < a->read + a->most;
}

static void *ask(void *context)
{
    tsr_ahead *const a = context;
    pthread_mutex_lock(&a->lock);
    while (!a->over) {
        if (!has_next(a)) {
            pthread_cond_wait(&a->changed, &a->lock);
            continue;
        }
        const part *const p = &a->parts[a->next++];
        a->asked += p->bytes;
        pthread_mutex_unlock(&a->lock);
        for (uint64_t at = 0; at < p->bytes; at += PIECE)
            tsr_checkpoint_prefetch(a->checkpoint, p->tensor, p->offset + at,
                                    (size_t)tsr_min_u64(PIECE, p->bytes - at));
        pthread_mutex_lock(&a->lock);
    }
    pthread_mutex_unlock(&a->lock);
    return NULL;
}

static void free_ahead(tsr_ahead *a)
{
    free(a->parts);
    free(a->chosen);
    free(a);
}

/* Starts the thread. Returns NULL if that fails. */
static tsr_ahead *start(const tsr_forward *f)
{
    tsr_ahead *const a = calloc(1, sizeof *a);
    if (a == NULL)
        return NULL;
    a->checkpoint = f->side->checkpoint;
    a->most = f->ops->room == 0 ? MOST_AHEAD : tsr_min_u64(MOST_AHEAD, f->ops->room);
    a->layer = SIZE_MAX;
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->changed, NULL);
    if (list_parts(a, f) && pthread_create(&a->thread, NULL, ask, a) == 0)
        return a;
    free_ahead(a);
    return NULL;
}

/* ---- the pass ---- */

/* Moves to the parts of a layer, unless the thread is ahead of it. */
static void move(tsr_ahead *a, size_t layer)
{
    size_t first = 0;
    while (first < a->n && a->parts[first].layer < layer)
        first++;
    if (layer != a->layer + 1)
        a->next = first;
    a->asked = 0;
    for (size_t i = first; i < a->next; i++)
        a->asked += a->parts[i].bytes;
    a->next = (size_t)tsr_max_u64(a->next, first);
    a->layer = layer;
}

void tsr_ahead_begin(tsr_forward *f, size_t layer, size_t tokens)
{
    tsr_ahead *const a = f->ahead = f->ahead == NULL ? start(f) : f->ahead;
    if (a == NULL)
        return;
    pthread_mutex_lock(&a->lock);
    if (layer != a->layer)
        move(a, layer);
    a->before = f->bytes_read;
    a->read = 0;
    a->known = false;
    a->all = tokens * f->router.chosen >= CHOICES_OF_ALL * a->experts && a->experts > 0;
    pthread_cond_signal(&a->changed);
    pthread_mutex_unlock(&a->lock);
}

void tsr_ahead_choose(tsr_forward *f, size_t experts, const uint32_t *choices, size_t n)
{
    tsr_ahead *const a = f->ahead;
    if (a == NULL)
        return;
    pthread_mutex_lock(&a->lock);
    free(a->chosen);
    a->chosen = calloc(experts + 1, sizeof *a->chosen);
    a->known = a->chosen != NULL;
    a->experts = experts;
    for (size_t i = 0; a->known && i < n; i++)
        a->chosen[choices[i]] = true;
    pthread_cond_signal(&a->changed);
    pthread_mutex_unlock(&a->lock);
}

void tsr_ahead_move(tsr_forward *f)
{
    tsr_ahead *const a = f->ahead;
    if (a == NULL)
        return;
    pthread_mutex_lock(&a->lock);
    a->read = f->bytes_read - a->before;
    pthread_cond_signal(&a->changed);
    pthread_mutex_unlock(&a->lock);
}

void tsr_ahead_end(tsr_forward *f)
{
    tsr_ahead *const a = f->ahead;
    if (a == NULL)
        return;
    pthread_mutex_lock(&a->lock);
    a->over = true;
    pthread_cond_signal(&a->changed);
    pthread_mutex_unlock(&a->lock);
    (void)pthread_join(a->thread, NULL);
    free_ahead(a);
    f->ahead = NULL;
}
