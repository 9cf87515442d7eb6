/* Writes the output of `tessera --version --json`. */
#include "cli/help/help.h"

#include "cli/build.h"
#include "cli/commit.h"
#include "cli/io/io_paths.h"
#include "cli/io/sandbox.h"
#include "formats/json/json_write.h"
#include "kernels/cpu/cpu.h"

#include <stdio.h>
#include <string.h>
#include <xxhash.h>
#include <zstd.h>
#ifdef __GLIBC__
#include <gnu/libc-version.h>
#endif

typedef struct library {
    const char *name, *built_with;
    const char *running; /* NULL: linked statically, loaded only when needed, or unknown */
} library;

static void json_libraries(tsr_text *t, const library *all, size_t n)
{
    tsr_json_member_array(t, "libraries", false);
    for (size_t i = 0; i < n; i++) {
        if (*all[i].built_with == '\0')
            continue;
        tsr_json_begin_object(t, true);
        tsr_json_member_string(t, "name", all[i].name);
        tsr_json_member_string(t, "built_with", all[i].built_with);
        tsr_json_member_string(t, "running", all[i].running);
        tsr_json_end_object(t);
    }
    tsr_json_end_array(t);
}

static void json_features(tsr_text *t)
{
    tsr_json_member_object(t, "features", true);
    tsr_json_member_bool(t, "cuda", TSR_WITH_CUDA);
    tsr_json_member_bool(t, "mpi", TSR_WITH_MPI);
    tsr_json_member_bool(t, "liburing", TSR_WITH_LIBURING);
    tsr_json_member_bool(t, "html", TSR_WITH_HTML);
    tsr_json_member_bool(t, "remote", TSR_WITH_REMOTE);
    tsr_json_end_object(t);
}

/* Writes which sandbox mechanisms this machine supports (cli/io/sandbox.h). */
static void json_sandbox(tsr_text *t)
{
    const int landlock = tsr_sandbox_landlock();
    tsr_json_member_object(t, "sandbox", true);
    tsr_json_key(t, "landlock_abi");
    if (landlock == 0)
        tsr_json_null(t);
    else
        tsr_json_u64(t, (uint64_t)landlock);
    tsr_json_member_bool(t, "seccomp", tsr_sandbox_seccomp());
    tsr_json_end_object(t);
}

tsr_status tsr_version_json(const char *path, tsr_err *err)
{
    const unsigned xxhash = XXH_versionNumber();
    char xxhash_built[32], xxhash_running[32], libc_built[32] = "";
    const char *libc_running = NULL;
    snprintf(xxhash_built, sizeof xxhash_built, "%d.%d.%d", XXH_VERSION_MAJOR, XXH_VERSION_MINOR, XXH_VERSION_RELEASE);
    snprintf(xxhash_running, sizeof xxhash_running, "%u.%u.%u", xxhash / 10000, xxhash / 100 % 100, xxhash % 100);
#ifdef __GLIBC__
    snprintf(libc_built, sizeof libc_built, "%d.%d", __GLIBC__, __GLIBC_MINOR__);
    libc_running = gnu_get_libc_version();
#endif
    const library libraries[] = {{"glibc", libc_built, libc_running},
                                 {"libxxhash", xxhash_built, xxhash_running},
                                 {"libzstd", ZSTD_VERSION_STRING, ZSTD_versionString()},
                                 {"liburing", TSR_LIBURING_VERSION, NULL},
                                 {"MPI", TSR_MPI_VERSION, NULL},
                                 {"CUDA runtime", TSR_CUDA_VERSION, NULL}};
    tsr_text t = {0};
    tsr_json_begin_document(&t, "tessera-version/1");
    tsr_json_member_string(&t, "commit", strcmp(TSR_COMMIT, "none") == 0 ? NULL : TSR_COMMIT);
    tsr_json_member_string(&t, "compiler", TSR_BUILT_BY);
    tsr_json_member_string(&t, "machine", TSR_BUILT_FOR);
    tsr_json_member_string(&t, "isa", tsr_cpu_name(tsr_cpu_flags()));
    json_features(&t);
    json_sandbox(&t);
    json_libraries(&t, libraries, sizeof libraries / sizeof *libraries);
    tsr_json_end_document(&t);
    const tsr_status status = tsr_write_report(path, &t, err);
    tsr_text_free(&t);
    return status;
}
