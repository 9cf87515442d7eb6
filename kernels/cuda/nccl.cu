/* Calls NCCL, loaded by dlopen. The few functions are declared here, because nccl.h is not part of the Toolkit. */
#include "kernels/cuda/nccl.h"

#include <cuda_runtime.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>

namespace
{

/* As in nccl.h of every version from 2.14 on. */
typedef struct ncclComm *comm;
constexpr int kSuccess = 0, kInProgress = 7, kSum = 0, kOldest = 21400;
constexpr int kTypes[] = {9, 6, 7}; /* ncclBfloat16, ncclFloat16, ncclFloat32, by tsr_gemm_out */

struct unique_id {
    char bytes[128];
};

/* ncclConfig_t as in 2.14. Later versions take the members that follow from their defaults. */
struct config {
    size_t size;
    unsigned magic, version;
    int blocking;
};

#define TSR_NCCL_FUNCTIONS(X)                                                                          \
    X(int, ncclGetVersion, (int *version))                                                             \
    X(const char *, ncclGetErrorString, (int code))                                                    \
    X(int, ncclGetUniqueId, (unique_id * id))                                                          \
    X(int, ncclCommInitRankConfig, (comm * to, int ranks, unique_id id, int rank, const config *with)) \
    X(int, ncclCommGetAsyncError, (comm of, int *code))                                                \
    X(int, ncclCommAbort, (comm of))                                                                   \
    X(int, ncclGroupStart, ())                                                                         \
    X(int, ncclGroupEnd, ())                                                                           \
    X(int, ncclAllReduce, (const void *from, void *to, size_t n, int type, int op, comm of, cudaStream_t stream))

} // namespace

struct tsr_nccl {
#define TSR_DECLARE(type, name, arguments) type(*name) arguments;
    TSR_NCCL_FUNCTIONS(TSR_DECLARE)
    comm comms[TSR_NCCL_RANKS];
    int ranks, version, seconds; /* seconds: of the deadline */
};

static tsr_status cuda(cudaError_t code, tsr_err *err)
{
    return code == cudaSuccess ? TSR_OK : tsr_fail(err, TSR_E_DEVICE, "NCCL: %s", cudaGetErrorString(code));
}

static bool is_fine(int code)
{
    return code == kSuccess || code == kInProgress;
}

static tsr_status check(const tsr_nccl *nccl, int code, tsr_err *err)
{
    return is_fine(code) ? TSR_OK
                         : tsr_fail(err, TSR_E_DEVICE, "NCCL: %s (run with NCCL_DEBUG=INFO for details)",
                                    nccl->ncclGetErrorString(code));
}

/* Frees all communicators. One that is at work is aborted, so this does not wait for a rank that has failed. */
static void abort_all(tsr_nccl *nccl)
{
    bool any = false;
    for (int r = 0; r < TSR_NCCL_RANKS; ++r) {
        any = any || nccl->comms[r];
    }
    if (!any) {
        return;
    }
    (void)nccl->ncclGroupStart();
    for (int r = 0; r < TSR_NCCL_RANKS; ++r) {
        if (nccl->comms[r]) {
            (void)nccl->ncclCommAbort(nccl->comms[r]);
        }
        nccl->comms[r] = nullptr;
    }
    (void)nccl->ncclGroupEnd();
}

extern "C" void tsr_nccl_close(tsr_nccl *nccl)
{
    if (!nccl) {
        return;
    }
    abort_all(nccl);
    free(nccl); /* the library stays loaded, because its threads may outlive its communicators */
}

/* ---- waiting ---- */

static double now()
{
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Sets *more if some communicator has not finished its last call, or with `streams` some GPU its work. */
static tsr_status look(tsr_nccl *nccl, bool streams, bool *more, tsr_err *err)
{
    *more = false;
    for (int r = 0; r < nccl->ranks; ++r) {
        int code = kSuccess;
        TSR_TRY(check(nccl, nccl->ncclCommGetAsyncError(nccl->comms[r], &code), err));
        TSR_TRY(check(nccl, code, err));
        *more = *more || code == kInProgress;
        if (streams) {
            TSR_TRY(cuda(cudaSetDevice(r), err));
            const cudaError_t at_work = cudaStreamQuery(nullptr);
            *more = *more || at_work == cudaErrorNotReady;
            TSR_TRY(at_work == cudaErrorNotReady ? TSR_OK : cuda(at_work, err));
        }
    }
    return TSR_OK;
}

/* Waits for `what` on all ranks, at first without sleeping, so that short waits are measured exactly. */
static tsr_status wait(tsr_nccl *nccl, bool streams, const char *what, tsr_err *err)
{
    constexpr double kBusy = 2e-3;
    const double began = now();
    for (bool more = true;;) {
        TSR_TRY(look(nccl, streams, &more, err));
        const double waited = now() - began;
        if (!more) {
            return TSR_OK;
        }
        if (waited > nccl->seconds) {
            return tsr_fail(err, TSR_E_DEVICE,
                            "NCCL: %s over %d GPUs did not end within %d s, so a rank has failed; if it is only slow, "
                            "raise TESSERA_NCCL_TIMEOUT",
                            what, nccl->ranks, nccl->seconds);
        }
        if (waited > kBusy) {
            const timespec nap = {0, 100000};
            nanosleep(&nap, nullptr);
        }
    }
}

/* ---- connecting ---- */

static tsr_status read_deadline(tsr_nccl *nccl, tsr_err *err)
{
    constexpr long kLongest = 86400;
    const char *const text = getenv("TESSERA_NCCL_TIMEOUT");
    char *end = nullptr;
    const long seconds = text ? strtol(text, &end, 10) : TSR_NCCL_SECONDS;
    if (text && (end == text || *end != '\0' || seconds < 1 || seconds > kLongest)) {
        return tsr_fail(err, TSR_E_USAGE, "TESSERA_NCCL_TIMEOUT: '%s' is not a number of seconds from 1 to %ld", text,
                        kLongest);
    }
    nccl->seconds = (int)seconds;
    return TSR_OK;
}

static tsr_status load(tsr_nccl *nccl, tsr_err *err)
{
    void *const from = dlopen("libnccl.so.2", RTLD_NOW);
    if (!from) {
        return tsr_fail(err, TSR_E_NOT_APPLICABLE, "no NCCL: %s", dlerror());
    }
#define TSR_FIND(type, name, arguments)                                                                \
    nccl->name = reinterpret_cast<type(*) arguments>(dlsym(from, #name));                              \
    if (!nccl->name) {                                                                                 \
        return tsr_fail(err, TSR_E_NOT_APPLICABLE, "no NCCL of version 2.14 or later: %s", dlerror()); \
    }
    TSR_NCCL_FUNCTIONS(TSR_FIND)
    TSR_TRY(check(nccl, nccl->ncclGetVersion(&nccl->version), err));
    return nccl->version >= kOldest ? TSR_OK
                                    : tsr_fail(err, TSR_E_NOT_APPLICABLE,
                                               "no NCCL of version 2.14 or later: it has the number %d", nccl->version);
}

static tsr_status join(tsr_nccl *nccl, size_t ranks, tsr_err *err)
{
    const config with = {sizeof with, 0xcafebeef, kOldest, 0};
    unique_id id;
    int gpus = 0;
    TSR_TRY(cuda(cudaGetDeviceCount(&gpus), err));
    if (ranks > (size_t)gpus || ranks > TSR_NCCL_RANKS) {
        return tsr_fail(err, TSR_E_NOT_APPLICABLE, "NCCL: %zu ranks need as many GPUs, but there %s %d", ranks,
                        gpus == 1 ? "is" : "are", gpus);
    }
    TSR_TRY(read_deadline(nccl, err));
    TSR_TRY(load(nccl, err));
    for (int r = 0; r < (int)ranks; ++r) { /* NCCL's own errors do not name the GPU */
        const cudaError_t code = cudaSetDevice(r);
        const cudaError_t opened = code == cudaSuccess ? cudaFree(nullptr) : code;
        if (opened != cudaSuccess) {
            return tsr_fail(err, TSR_E_DEVICE, "opening GPU %d for a rank: %s", r, cudaGetErrorString(opened));
        }
    }
    setenv("NCCL_NVLS_ENABLE", "0", 0);
    TSR_TRY(check(nccl, nccl->ncclGetUniqueId(&id), err));
    nccl->ranks = (int)ranks;
    int code = nccl->ncclGroupStart();
    for (int r = 0; r < nccl->ranks && is_fine(code); ++r) {
        (void)cudaSetDevice(r); /* it exists */
        code = nccl->ncclCommInitRankConfig(&nccl->comms[r], nccl->ranks, id, r, &with);
    }
    const int end = nccl->ncclGroupEnd();
    TSR_TRY(check(nccl, is_fine(code) ? end : code, err));
    TSR_TRY(wait(nccl, false, "connecting", err));
    return cuda(cudaSetDevice(0), err);
}

extern "C" tsr_status tsr_nccl_open(tsr_nccl **out, size_t ranks, tsr_err *err)
{
    tsr_nccl *const nccl = static_cast<tsr_nccl *>(calloc(1, sizeof *nccl));
    *out = nccl;
    if (!nccl) {
        return tsr_fail(err, TSR_E_NOMEM, "out of memory");
    }
    const tsr_status status = join(nccl, ranks, err);
    if (status != TSR_OK) {
        tsr_nccl_close(nccl);
        *out = nullptr;
    }
    return status;
}

extern "C" int tsr_nccl_version(const tsr_nccl *nccl)
{
    return nccl->version;
}

/* ---- adding ---- */

static tsr_status add(tsr_nccl *nccl, const void *const *parts, void *const *sums, size_t n, int type, tsr_err *err)
{
    int code = nccl->ncclGroupStart();
    for (int r = 0; r < nccl->ranks && is_fine(code); ++r) {
        (void)cudaSetDevice(r); /* it exists */
        code = nccl->ncclAllReduce(parts[r], sums[r], n, type, kSum, nccl->comms[r], nullptr);
    }
    const int end = nccl->ncclGroupEnd();
    TSR_TRY(check(nccl, is_fine(code) ? end : code, err));
    TSR_TRY(wait(nccl, false, "starting a sum", err));
    return wait(nccl, true, "a sum", err);
}

extern "C" tsr_status tsr_nccl_sum(tsr_nccl *nccl, const void *const *parts, void *const *sums, size_t n,
                                   tsr_gemm_out out, tsr_err *err)
{
    if (!nccl->comms[0]) {
        return tsr_fail(err, TSR_E_DEVICE, "NCCL: an earlier sum failed");
    }
    tsr_status status = add(nccl, parts, sums, n, kTypes[out], err);
    if (status != TSR_OK) {
        abort_all(nccl);
    }
    const cudaError_t code = cudaSetDevice(0);
    return status != TSR_OK ? status : cuda(code, err);
}
