/* Lists the names of a plan's outputs, and rejects those that cannot be written. */
#include "common/text.h"
#include "convert/records/destination.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* Room for "/.tessera/", a number and TSR_PART_SUFFIX. */
enum { LONGEST_OWN_NAME = 48 };

tsr_status tsr_plan_names(const tsr_plan *plan, tsr_arena *arena, tsr_names *names, tsr_err *err)
{
    *names = (tsr_names){.items = tsr_arena_alloc(arena, (plan->n_files + plan->n_texts + 2) * sizeof *names->items)};
    if (names->items == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "out of memory for the names of %zu files", plan->n_files);
    for (size_t i = 0; i < plan->n_files; i++)
        names->items[names->count++] = plan->files[i].name;
    for (size_t i = 0; i < plan->n_texts; i++)
        names->items[names->count++] = plan->texts[i].name;
    if (plan->card.write != NULL)
        names->items[names->count++] = TSR_CARD_NAME;
    return TSR_OK;
}

/* Returns what is wrong with a name in any directory, or NULL. */
static const char *fault_of(const char *name, size_t dst_size)
{
    if (name[0] == '\0' || name[0] == '/')
        return "not a path below the directory";
    if (!tsr_is_printable(name))
        return "it contains a control character";
    bool first = true;
    for (const char *at = name;; first = false) {
        const size_t n = strcspn(at, "/");
        if (n == 0 || (n == 1 && at[0] == '.') || (n == 2 && memcmp(at, "..", 2) == 0))
            return "not a path below the directory";
        if (first && n == strlen(TSR_STATE_DIR) && memcmp(at, TSR_STATE_DIR, n) == 0)
            return "a name reserved for Tessera";
        if (at[n] == '\0')
            break;
        at += n + 1;
    }
    return dst_size + strlen(name) + LONGEST_OWN_NAME < PATH_MAX ? NULL : "too long a path";
}

/* Returns true if every folder on the way to DST/NAME is missing or a real folder, not a link. */
static bool goes_through_folders(const char *dst, const char *name)
{
    char path[PATH_MAX];
    for (const char *slash = strchr(name, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        struct stat st;
        snprintf(path, sizeof path, "%s/%.*s", dst, (int)(slash - name), name);
        if (lstat(path, &st) == 0 && !S_ISDIR(st.st_mode))
            return false;
    }
    return true;
}

tsr_status tsr_check_names(const char *dst, const tsr_names *names, const char *origin, tsr_status status, tsr_err *err)
{
    for (size_t i = 0; i < names->count; i++) {
        const char *const name = names->items[i];
        const char *fault = fault_of(name, strlen(dst));
        if (fault == NULL && !goes_through_folders(dst, name))
            fault = "a link or a file exists where its directory is needed";
        if (fault != NULL) {
            char shown[256];
            size_t n = 0;
            for (const char *c = name; *c != '\0' && n < sizeof shown - 1; c++)
                shown[n++] = (unsigned char)*c < 0x20 || *c == 0x7F ? '?' : *c;
            shown[n] = '\0';
            const size_t longest = 256, n_dst = strlen(dst); /* leaves room in the message */
            return tsr_fail(err, status, "%s: %s names the output '%s', which cannot be written: %s",
                            dst + (n_dst > longest ? n_dst - longest : 0), origin, shown, fault);
        }
    }
    return TSR_OK;
}
