/* Recognizes folders that users mistake for a checkpoint. */
#include "formats/checkpoint/checkpoint.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>

static bool has(const char *folder, const char *name)
{
    char path[PATH_MAX];
    struct stat st;
    return tsr_join_path(path, folder, name, NULL) == TSR_OK && stat(path, &st) == 0;
}

/* Finds the first revision in the snapshots of a folder of the hub's cache, and writes it to `name`. */
static bool find_snapshot(const char *folder, char name[NAME_MAX + 1])
{
    char path[PATH_MAX];
    DIR *const dir = tsr_join_path(path, folder, "snapshots", NULL) == TSR_OK ? opendir(path) : NULL;
    bool found = false;
    for (const struct dirent *e = dir == NULL ? NULL : readdir(dir); e != NULL; e = readdir(dir)) {
        if (e->d_name[0] == '.')
            continue;
        snprintf(name, NAME_MAX + 1, "%s", e->d_name);
        found = true;
    }
    if (dir != NULL)
        closedir(dir);
    return found;
}

tsr_status tsr_checkpoint_is_adapter(const char *path, tsr_err *err)
{
    return tsr_fail_as(err, TSR_ERROR_ADAPTER, TSR_E_FORMAT,
                       "%s: a LoRA adapter (adapter_config.json); merge it into its base model first: tessera merge "
                       "BASE %s -o DST",
                       path, path);
}

tsr_status tsr_checkpoint_name_folder(const char *path, tsr_err *err)
{
    char snapshot[NAME_MAX + 1];
    if (has(path, TSR_STATE_DIR))
        return tsr_fail_as(err, TSR_ERROR_UNFINISHED, TSR_E_FORMAT,
                           "%s: an unfinished output of Tessera; rerun the original command to resume", path);
    if (has(path, "adapter_config.json"))
        return tsr_checkpoint_is_adapter(path, err);
    if (find_snapshot(path, snapshot))
        return tsr_fail_as(err, TSR_ERROR_HUB_CACHE, TSR_E_FORMAT,
                           "%s: a directory of the Hugging Face Hub's cache; name a revision, such as %s/snapshots/%s",
                           path, path, snapshot);
    return TSR_OK;
}
