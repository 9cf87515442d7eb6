/* A libnccl.so.2 that calls the real one (NCCL_REAL), and plants the fault that NCCL_FAULT names in rank 1:
 *
 *     join     it never joins the others
 *     sum N    it takes no part in the N-th sum and those after it
 *     error N  it reports an error of the connection in the N-th sum */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, REMOTE_ERROR = 6, IN_PROGRESS = 7 };

typedef struct unique_id {
    char bytes[128];
} unique_id;

static void *of_rank_1;
static char absent; /* its address is the communicator of a rank that does not connect */
static int sums;

static void *real(const char *name)
{
    static void *library;
    const char *const path = getenv("NCCL_REAL");
    if (library == NULL && path != NULL)
        library = dlopen(path, RTLD_NOW);
    void *const found = library == NULL ? NULL : dlsym(library, name);
    if (found == NULL) {
        fprintf(stderr, "nccl_faults: NCCL_REAL names no NCCL with %s\n", name);
        abort();
    }
    return found;
}

/* Returns true if the fault is `kind` and has begun. */
static int is_fault(const char *kind)
{
    const char *const fault = getenv("NCCL_FAULT");
    const size_t length = strlen(kind);
    return fault != NULL && strncmp(fault, kind, length) == 0 && sums >= atoi(fault + length);
}

#define CALL(type, name, ...) ((type)real(#name))(__VA_ARGS__)

int ncclGetVersion(int *version)
{
    return CALL(int (*)(int *), ncclGetVersion, version);
}

const char *ncclGetErrorString(int code)
{
    return CALL(const char *(*)(int), ncclGetErrorString, code);
}

int ncclGetUniqueId(unique_id *id)
{
    return CALL(int (*)(unique_id *), ncclGetUniqueId, id);
}

int ncclCommInitRankConfig(void **to, int ranks, unique_id id, int rank, void *config)
{
    int code = SUCCESS;
    if (rank == 1 && is_fault("join"))
        *to = &absent;
    else
        code = CALL(int (*)(void **, int, unique_id, int, void *), ncclCommInitRankConfig, to, ranks, id, rank, config);
    if (rank == 1)
        of_rank_1 = *to;
    return code;
}

int ncclCommGetAsyncError(void *of, int *code)
{
    *code = IN_PROGRESS;
    if (of == &absent)
        return SUCCESS;
    const int called = CALL(int (*)(void *, int *), ncclCommGetAsyncError, of, code);
    if (of == of_rank_1 && is_fault("error"))
        *code = REMOTE_ERROR;
    return called;
}

int ncclCommAbort(void *of)
{
    return of == &absent ? SUCCESS : CALL(int (*)(void *), ncclCommAbort, of);
}

int ncclGroupStart(void)
{
    return ((int (*)(void))real("ncclGroupStart"))();
}

int ncclGroupEnd(void)
{
    return ((int (*)(void))real("ncclGroupEnd"))();
}

int ncclAllReduce(const void *from, void *to, size_t n, int type, int op, void *of, void *stream)
{
    sums += of == of_rank_1;
    if (of == of_rank_1 && is_fault("sum"))
        return SUCCESS;
    return CALL(int (*)(const void *, void *, size_t, int, int, void *, void *), ncclAllReduce, from, to, n, type, op,
                of, stream);
}
