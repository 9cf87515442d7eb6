/* Estimates the disk space of an output, and compares it with the free space. */
#include "cli/io/space.h"

#include "cli/io/output.h"
#include "common/file.h"
#include "convert/records/destination.h"
#include "convert/uploads/uploads.h"
#include "formats/json/json_write.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The most bytes to write, and the part for which only an upper bound is known. */
typedef struct sizes {
    uint64_t most, bounded;
} sizes;

static sizes all_of(const tsr_plan *plan)
{
    return (sizes){plan->bytes_out, tsr_plan_bounded_bytes(plan)};
}

/* Returns the sizes without the files that an earlier run has finished. */
static sizes left_of(const tsr_plan *plan, const char *dst)
{
    sizes left = all_of(plan);
    for (size_t i = 0; i < plan->n_files; i++) {
        const tsr_out_file *const f = &plan->files[i];
        char path[PATH_MAX];
        if (snprintf(path, sizeof path, "%s/%s", dst, f->name) >= (int)sizeof path || access(path, F_OK) != 0)
            continue;
        left.most -= f->bytes;
        left.bounded -= f->appended ? f->bytes : 0;
    }
    return left;
}

/* Estimates the total in bytes. Returns false if no part is an upper bound, or there are no samples. */
static bool expected(const tsr_plan *plan, sizes s, uint64_t *bytes)
{
    double share;
    if (s.bounded == 0 || plan->estimate == NULL || plan->estimate(plan, &share, NULL) != TSR_OK)
        return false;
    *bytes = s.most - s.bounded + (uint64_t)((double)s.bounded * share);
    return true;
}

/* Writes the nearest existing parent folder of `dst`, or itself, to `path`. Returns false if there is none. */
static bool find_folder(const char *dst, char path[PATH_MAX])
{
    if (snprintf(path, PATH_MAX, "%s", dst) >= PATH_MAX)
        return false;
    while (access(path, F_OK) != 0) {
        char *const slash = strrchr(path, '/');
        if (strcmp(path, "/") == 0 || strcmp(path, ".") == 0)
            return false;
        if (slash == NULL)
            strcpy(path, ".");
        else
            slash[slash == path] = '\0';
    }
    return true;
}

/* Finds the free bytes at `dst`. */
static bool find_free(const char *dst, uint64_t *bytes)
{
    char path[PATH_MAX];
    return find_folder(dst, path) && (*bytes = tsr_free_bytes(path)) != UINT64_MAX;
}

void tsr_space_print(const tsr_plan *plan, const char *dst)
{
    char most[32], about[32], space[32];
    uint64_t bytes;
    tsr_bytes_text((double)plan->bytes_out, most);
    if (expected(plan, all_of(plan), &bytes))
        tsr_print("disk: about %s needed, estimated from samples; %s at most", tsr_bytes_text((double)bytes, about),
                  most);
    else
        tsr_print("disk: %s needed", most);
    if (dst != NULL && find_free(dst, &bytes))
        tsr_print(", %s free there", tsr_bytes_text((double)bytes, space));
    tsr_print("\n");
}

void tsr_space_print_spool(const tsr_plan *plan, const char *spool)
{
    char most[32], space[32];
    uint64_t bytes;
    bool *const settled = calloc(plan->n_files + 1, sizeof *settled);
    if (settled == NULL)
        return;
    tsr_uploads_settle(plan, settled);
    uint64_t need = tsr_space_needed(plan, settled);
    for (size_t i = 0; i < plan->n_files; i++) /* archives, which may be smaller */
        need += settled[i] || !plan->files[i].appended ? 0 : plan->files[i].bytes;
    tsr_print("disk: %s at most needed in the spool %s", tsr_bytes_text((double)need, most), spool);
    if (find_free(spool, &bytes))
        tsr_print(", %s free there", tsr_bytes_text((double)bytes, space));
    tsr_print("\n");
    free(settled);
}

void tsr_space_json(tsr_text *t, const tsr_plan *plan, bool dry_run)
{
    uint64_t bytes;
    if (dry_run && expected(plan, all_of(plan), &bytes))
        tsr_json_member_u64(t, "bytes_out_expected", bytes);
}

/* Returns true if two outputs are on one file system, or will be. */
static bool share_disk(const char *a, const char *b)
{
    char path[PATH_MAX];
    struct stat x, y;
    return find_folder(a, path) && stat(path, &x) == 0 && find_folder(b, path) && stat(path, &y) == 0 &&
           x.st_dev == y.st_dev;
}

tsr_status tsr_space_check_both(const tsr_plan *plan, const char *dst, const tsr_plan *next, const char *later,
                                tsr_err *err)
{
    const uint64_t need = left_of(next, later).most + (share_disk(dst, later) ? left_of(plan, dst).most : 0);
    uint64_t free_bytes;
    if (!find_free(later, &free_bytes) || need <= free_bytes)
        return TSR_OK;
    return tsr_fail_as(err, TSR_ERROR_DISK_FULL, TSR_E_NOSPACE,
                       "%s: disk full: %llu more bytes (%.1f MB) are needed for this copy and the output; free the "
                       "space and repeat the command",
                       later, U64(need - free_bytes), (double)(need - free_bytes) / 1e6);
}

bool tsr_space_warning(const tsr_plan *plan, const char *dst, char *text, size_t size)
{
    char have[32], about[32], most[32];
    const sizes left = left_of(plan, dst);
    uint64_t bytes, free_bytes;
    if (!find_free(dst, &free_bytes) || left.most <= free_bytes || !expected(plan, left, &bytes))
        return false;
    snprintf(text, size, "%s: %s free for about %s, estimated from samples, and %s at most: %s", dst,
             tsr_bytes_text((double)free_bytes, have), tsr_bytes_text((double)bytes, about),
             tsr_bytes_text((double)left.most, most),
             bytes > free_bytes ? "the disk will probably be full before the end; then free space and repeat the "
                                  "command to resume"
                                : "the space is probably enough; if it is not, free space and repeat the command to "
                                  "resume");
    return true;
}
