/* Replaces allocations and thread creation: makes them fail, and logs memory that is not freed at the end of main. */
#undef _FORTIFY_SOURCE
#include "faults.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *old, size_t size);
void *__libc_memalign(size_t align, size_t size);
void __libc_free(void *block);

/* Blocks that are there: a table with open addressing, of which only the pages that are used take memory. */
enum { SLOTS = 1 << 18 };
typedef struct block {
    void *at;
    const void *site;
    size_t bytes;
} block;
static block *blocks;
static size_t n_blocks;
static atomic_flag busy = ATOMIC_FLAG_INIT;

static size_t slot_of(const void *at)
{
    return (size_t)(((uintptr_t)at >> 4) * 0x9E3779B97F4A7C15u >> 32) % SLOTS;
}

static void lock(void)
{
    while (atomic_flag_test_and_set(&busy))
        ;
}

/* Memory that the dynamic loader keeps, such as the text of its last error, is not the program's to free. */
static __thread int in_loader;

static void add(void *at, size_t bytes, const void *site)
{
    if (at == NULL || in_loader > 0 || !faults_in_main())
        return;
    lock();
    if (blocks == NULL)
        blocks = mmap(NULL, SLOTS * sizeof *blocks, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (n_blocks < SLOTS / 2) {
        size_t i = slot_of(at);
        while (blocks[i].at != NULL)
            i = (i + 1) % SLOTS;
        blocks[i] = (block){at, site, bytes};
        n_blocks++;
    }
    atomic_flag_clear(&busy);
}

static void drop(const void *at)
{
    if (at == NULL || blocks == NULL)
        return;
    lock();
    size_t i = slot_of(at);
    while (blocks[i].at != NULL && blocks[i].at != at)
        i = (i + 1) % SLOTS;
    if (blocks[i].at != NULL) {
        n_blocks--;
        /* Moves later entries of the same run up, unless they are before their own slot then. */
        for (size_t j = (i + 1) % SLOTS; blocks[j].at != NULL; j = (j + 1) % SLOTS) {
            const size_t home = slot_of(blocks[j].at);
            if ((i < j) ? (home <= i || home > j) : (home <= i && home > j)) {
                blocks[i] = blocks[j];
                i = j;
            }
        }
        blocks[i].at = NULL;
    }
    atomic_flag_clear(&busy);
}

void faults_tell_blocks(void)
{
    for (size_t i = 0; blocks != NULL && i < SLOTS; i++) {
        Dl_info of;
        if (blocks[i].at == NULL)
            continue;
        const bool known = dladdr(blocks[i].site, &of) != 0 && of.dli_fname != NULL;
        const char *const slash = known ? strrchr(of.dli_fname, '/') : NULL;
        faults_tell("block %s+%#lx %zu\n",
                    !known          ? "?"
                    : slash == NULL ? of.dli_fname
                                    : slash + 1,
                    (unsigned long)((const char *)blocks[i].site - (known ? (const char *)of.dli_fbase : NULL)),
                    blocks[i].bytes);
    }
}

static bool refused(void)
{
    return faults_strike(FAULT_malloc, -1, "") != FAULTS_PASS;
}

void *malloc(size_t size)
{
    void *const at = refused() ? NULL : __libc_malloc(size);
    add(at, size, __builtin_return_address(0));
    return at;
}

void *calloc(size_t count, size_t size)
{
    void *const at = refused() ? NULL : __libc_calloc(count, size);
    add(at, count * size, __builtin_return_address(0));
    return at;
}

void *realloc(void *old, size_t size)
{
    if (refused())
        return NULL;
    drop(old); /* before another thread can be given its place */
    void *const at = __libc_realloc(old, size);
    add(at, size, __builtin_return_address(0));
    return at;
}

void *aligned_alloc(size_t align, size_t size)
{
    void *const at = refused() ? NULL : __libc_memalign(align, size);
    add(at, size, __builtin_return_address(0));
    return at;
}

int posix_memalign(void **to, size_t align, size_t size)
{
    if (refused())
        return ENOMEM;
    *to = __libc_memalign(align, size);
    add(*to, size, __builtin_return_address(0));
    return *to == NULL ? ENOMEM : 0;
}

void free(void *at)
{
    const int code = errno;
    drop(at);
    __libc_free(at);
    errno = code;
}

void *dlopen(const char *name, int mode)
{
    in_loader++;
    void *const library = FAULTS_REAL(dlopen)(name, mode);
    in_loader--;
    return library;
}

/* ---- threads ---- */

typedef struct start {
    void *(*work)(void *argument);
    void *argument;
} start;

static void *begin(void *argument)
{
    const start s = *(start *)argument;
    __libc_free(argument);
    faults_set_float();
    return s.work(s.argument);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*work)(void *), void *argument)
{
    if (faults_is_program((void (*)(void))work) && faults_strike(FAULT_thread, -1, "") != FAULTS_PASS)
        return errno;
    start *const s = __libc_malloc(sizeof *s);
    if (s == NULL)
        return EAGAIN;
    *s = (start){work, argument};
    return FAULTS_REAL(pthread_create)(thread, attributes, begin, s);
}

int pthread_mutex_init(pthread_mutex_t *mutex, const pthread_mutexattr_t *attributes)
{
    if (faults_strike(FAULT_lock, -1, "") != FAULTS_PASS)
        return errno;
    return FAULTS_REAL(pthread_mutex_init)(mutex, attributes);
}

int pthread_cond_init(pthread_cond_t *condition, const pthread_condattr_t *attributes)
{
    if (faults_strike(FAULT_lock, -1, "") != FAULTS_PASS)
        return errno;
    return FAULTS_REAL(pthread_cond_init)(condition, attributes);
}

int sem_init(sem_t *semaphore, int shared, unsigned value)
{
    return faults_strike(FAULT_lock, -1, "") != FAULTS_PASS ? -1 : FAULTS_REAL(sem_init)(semaphore, shared, value);
}

int sem_wait(sem_t *semaphore)
{
    return faults_strike(FAULT_semaphore, -1, "") != FAULTS_PASS ? -1 : FAULTS_REAL(sem_wait)(semaphore);
}
