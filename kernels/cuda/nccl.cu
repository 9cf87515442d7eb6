/* Calls NCCL, loaded by dlopen. The few functions are declared here, because nccl.h is not part of the Toolkit. */
#include "kernels/cuda/nccl.h"

#include <cuda_runtime.h>
#include <dlfcn.h>
#include <stdlib.h>

namespace
{

/* As in nccl.h of every version 2. */
typedef struct ncclComm *comm;
constexpr int kSuccess = 0, kFloat32 = 7, kSum = 0;

struct functions {
    int (*ncclGetVersion)(int *version);
    const char *(*ncclGetErrorString)(int code);
    int (*ncclCommInitAll)(comm *comms, int n, const int *devices);
    int (*ncclCommDestroy)(comm c);
    int (*ncclGroupStart)();
    int (*ncclGroupEnd)();
    int (*ncclAllReduce)(const void *from, void *to, size_t n, int type, int op, comm c, cudaStream_t stream);
};

} // namespace

struct tsr_nccl {
    functions call;
    comm comms[TSR_NCCL_RANKS];
    int ranks, version;
};

static tsr_status cuda(cudaError_t code, tsr_err *err)
{
    return code == cudaSuccess ? TSR_OK : tsr_fail(err, TSR_E_DEVICE, "NCCL: %s", cudaGetErrorString(code));
}

static tsr_status check(const tsr_nccl *nccl, int code, tsr_err *err)
{
    return code == kSuccess ? TSR_OK
                            : tsr_fail(err, TSR_E_DEVICE, "NCCL: %s (run with NCCL_DEBUG=INFO for details)",
                                       nccl->call.ncclGetErrorString(code));
}

extern "C" void tsr_nccl_close(tsr_nccl *nccl)
{
    if (!nccl) {
        return;
    }
    for (int r = 0; r < nccl->ranks; ++r) {
        if (nccl->comms[r]) {
            nccl->call.ncclCommDestroy(nccl->comms[r]);
        }
    }
    free(nccl); /* the library stays loaded, because its threads may outlive its communicators */
}

template <typename T> static bool find(void *library, const char *name, T *function)
{
    *function = reinterpret_cast<T>(dlsym(library, name));
    return *function != nullptr;
}

static tsr_status load(tsr_nccl *nccl, tsr_err *err)
{
    functions *const f = &nccl->call;
    void *const from = dlopen("libnccl.so.2", RTLD_NOW);
    if (!from || !find(from, "ncclGetVersion", &f->ncclGetVersion) ||
        !find(from, "ncclGetErrorString", &f->ncclGetErrorString) ||
        !find(from, "ncclCommInitAll", &f->ncclCommInitAll) || !find(from, "ncclCommDestroy", &f->ncclCommDestroy) ||
        !find(from, "ncclGroupStart", &f->ncclGroupStart) || !find(from, "ncclGroupEnd", &f->ncclGroupEnd) ||
        !find(from, "ncclAllReduce", &f->ncclAllReduce)) {
        return tsr_fail(err, TSR_E_DEVICE, "no NCCL: %s", dlerror());
    }
    return check(nccl, f->ncclGetVersion(&nccl->version), err);
}

static tsr_status join(tsr_nccl *nccl, size_t ranks, tsr_err *err)
{
    int gpus = 0, devices[TSR_NCCL_RANKS];
    TSR_TRY(cuda(cudaGetDeviceCount(&gpus), err));
    if (ranks > (size_t)gpus || ranks > TSR_NCCL_RANKS) {
        return tsr_fail(err, TSR_E_DEVICE, "NCCL: %zu ranks need as many GPUs, but there %s %d", ranks,
                        gpus == 1 ? "is" : "are", gpus);
    }
    TSR_TRY(load(nccl, err));
    for (int r = 0; r < (int)ranks; ++r) {
        devices[r] = r;
    }
    setenv("NCCL_NVLS_ENABLE", "0", 0);
    TSR_TRY(check(nccl, nccl->call.ncclCommInitAll(nccl->comms, (int)ranks, devices), err));
    nccl->ranks = (int)ranks;
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

extern "C" tsr_status tsr_nccl_sum(tsr_nccl *nccl, const float *const *parts, float *const *sums, size_t n,
                                   tsr_err *err)
{
    int code = nccl->call.ncclGroupStart();
    for (int r = 0; r < nccl->ranks && code == kSuccess; ++r) {
        code = nccl->call.ncclAllReduce(parts[r], sums[r], n, kFloat32, kSum, nccl->comms[r], nullptr);
    }
    const int end = nccl->call.ncclGroupEnd();
    TSR_TRY(check(nccl, code != kSuccess ? code : end, err));
    for (int r = 0; r < nccl->ranks; ++r) {
        TSR_TRY(cuda(cudaSetDevice(r), err));
        TSR_TRY(cuda(cudaDeviceSynchronize(), err));
    }
    return cuda(cudaSetDevice(0), err);
}
