/* Reads the settings of the Hub's programs from the environment. */
#include "formats/remote/settings/hub_access.h"

#include "common/file.h"
#include "formats/remote/settings/access.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { LONGEST_TOKEN = 4096 };

const char *tsr_hub_endpoint(tsr_arena *arena)
{
    const char *const given = tsr_setting("HF_ENDPOINT"), *const endpoint =
                                                              given == NULL ? "https://huggingface.co" : given;
    size_t n = strlen(endpoint);
    while (n > 0 && endpoint[n - 1] == '/')
        n--;
    return tsr_arena_dup(arena, endpoint, n);
}

/* Writes the folder of the Hub's programs to `path`. Returns path; NULL: no HOME. */
static const char *hub_home(char path[PATH_MAX])
{
    const char *const given = tsr_setting("HF_HOME"), *const cache = tsr_setting("XDG_CACHE_HOME"),
                      *const home = tsr_setting("HOME");
    int n = -1;
    if (given != NULL)
        n = snprintf(path, PATH_MAX, "%s", given);
    else if (cache != NULL)
        n = snprintf(path, PATH_MAX, "%s/huggingface", cache);
    else if (home != NULL)
        n = snprintf(path, PATH_MAX, "%s/.cache/huggingface", home);
    return n > 0 && n < PATH_MAX ? path : NULL;
}

const char *tsr_hub_token_path(char path[PATH_MAX])
{
    const char *const given = tsr_setting("HF_TOKEN_PATH");
    char home[PATH_MAX];
    if (given != NULL)
        return snprintf(path, PATH_MAX, "%s", given) < PATH_MAX ? path : NULL;
    return hub_home(home) != NULL && snprintf(path, PATH_MAX, "%s/token", home) < PATH_MAX ? path : NULL;
}

tsr_status tsr_hub_token(const char **token, tsr_arena *arena, tsr_err *err)
{
    char path[PATH_MAX];
    const char *from = "HF_TOKEN", *text = tsr_setting("HF_TOKEN");
    size_t size = text == NULL ? 0 : strlen(text);
    bool exists = false;
    *token = NULL;
    if (text == NULL && tsr_hub_token_path(path) != NULL) {
        TSR_TRY(tsr_exists(path, &exists, err));
        from = path;
    }
    if (exists)
        TSR_TRY(tsr_read_file(path, LONGEST_TOKEN, arena, &text, &size, err));
    while (size > 0 && strchr(" \r\n\t", text[size - 1]) != NULL)
        size--;
    if (size == 0)
        return TSR_OK;
    for (size_t i = 0; i < size; i++) {
        if (text[i] <= ' ' || text[i] >= 0x7F)
            return tsr_fail(err, TSR_E_FORMAT, "%s: not a token: it has blanks or control characters", from);
    }
    *token = tsr_arena_dup(arena, text, size);
    return *token == NULL ? tsr_out_of_memory(err, "for a token") : TSR_OK;
}

/* ---- the cache ---- */

bool tsr_is_hub_name(const char *path)
{
    static const char kWord[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    const size_t org = strspn(path, kWord);
    char parent[128];
    struct stat st;
    if (org == 0 || org >= sizeof parent || *path == '.' || path[org] != '/' || path[org + 1] == '.' ||
        path[org + 1] == '\0' || path[org + 1 + strspn(path + org + 1, kWord)] != '\0')
        return false;
    snprintf(parent, sizeof parent, "%.*s", (int)org, path);
    return stat(parent, &st) != 0 && errno == ENOENT;
}

/* Writes the folder of the cache to `path`. Returns path; NULL: no HOME. */
static const char *hub_cache(char path[PATH_MAX])
{
    const char *const given =
        tsr_setting("HF_HUB_CACHE") != NULL ? tsr_setting("HF_HUB_CACHE") : tsr_setting("HUGGINGFACE_HUB_CACHE");
    char home[PATH_MAX];
    if (given != NULL)
        return snprintf(path, PATH_MAX, "%s", given) < PATH_MAX ? path : NULL;
    return hub_home(home) != NULL && snprintf(path, PATH_MAX, "%s/hub", home) < PATH_MAX ? path : NULL;
}

bool tsr_hub_cached(const char *name, char path[PATH_MAX])
{
    char cache[PATH_MAX], refs[2 * PATH_MAX], snapshot[2 * PATH_MAX];
    const char *commit;
    size_t size;
    struct stat st;
    tsr_arena scratch = {0};
    if (!tsr_is_hub_name(name) || hub_cache(cache) == NULL)
        return false;
    const int org = (int)strcspn(name, "/");
    snprintf(refs, sizeof refs, "%s/models--%.*s--%s/refs/main", cache, org, name, name + org + 1);
    bool found = tsr_read_file(refs, 128, &scratch, &commit, &size, NULL) == TSR_OK;
    if (found) {
        snprintf(snapshot, sizeof snapshot, "%s/models--%.*s--%s/snapshots/%.*s", cache, org, name, name + org + 1,
                 (int)strspn(commit, "0123456789abcdef"), commit);
        found = strlen(snapshot) < PATH_MAX && stat(snapshot, &st) == 0 && S_ISDIR(st.st_mode);
    }
    if (found)
        strcpy(path, snapshot);
    tsr_arena_free(&scratch);
    return found;
}
