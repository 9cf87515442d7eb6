/* Finds and loads the MPI module: beside the program, then in the installation directory. */
#include "common/cluster/transport.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#ifndef TSR_MODULE_DIR
#define TSR_MODULE_DIR "."
#endif
#define MODULE "tessera_mpi.so"

/* Loads a module with global symbols, because libraries that MPI loads need them. */
static void *load(const char *folder, const char *where)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s/" MODULE, folder, where);
    return access(path, R_OK) == 0 ? dlopen(path, RTLD_NOW | RTLD_GLOBAL) : NULL;
}

tsr_status tsr_transport_open(const tsr_transport **transport, tsr_err *err)
{
    char program[PATH_MAX] = "", why[256] = "";
    const ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    *strrchr(n > 0 ? program : strcpy(program, "./tessera"), '/') = '\0';
    void *module = load(program, ".");
    if (module == NULL)
        module = load(program, TSR_MODULE_DIR);
    if (module == NULL) {
        const char *const said = dlerror();
        return tsr_fail(err, TSR_E_UNSUPPORTED,
                        "--mpi: cannot load " MODULE " beside %s/tessera%s%s; build Tessera where MPI is installed "
                        "(Debian: libopenmpi-dev), or use --shard, which needs no MPI",
                        program, said == NULL ? "" : ": ", said == NULL ? "" : said);
    }
    /* ISO C cannot cast an object pointer to a function pointer. */
    tsr_transport_begin_fn *begin = NULL;
    void *const symbol = dlsym(module, TSR_TRANSPORT_BEGIN);
    memcpy(&begin, &symbol, sizeof begin);
    *transport = begin == NULL ? NULL : begin(why, sizeof why);
    return *transport == NULL
               ? tsr_fail(err, TSR_E_UNSUPPORTED, "--mpi: %s", begin == NULL ? "a module of another version" : why)
               : TSR_OK;
}
