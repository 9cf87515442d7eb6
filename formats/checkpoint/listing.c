/* Lists the files of a directory, following links. */
#include "formats/checkpoint/listing.h"

#include "common/glob.h"
#include "common/grow.h"
#include "common/text.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define INDEX_SUFFIX ".safetensors.index.json"

enum { MAX_TREE_DEPTH = 8 };

void tsr_listing_free(tsr_listing *l)
{
    for (size_t i = 0; i < l->count; i++)
        free(l->names[i]);
    free(l->names);
}

static bool is_top(const char *name)
{
    return strchr(name, '/') == NULL;
}

bool tsr_listing_is_shard(const char *name)
{
    return is_top(name) && (tsr_ends_with(name, TSR_SHARD_SUFFIX) || tsr_ends_with(name, TSR_PACKED_SUFFIX)) &&
           strcmp(name, TSR_AZP_NAME) != 0;
}

bool tsr_listing_is_index(const char *name)
{
    return is_top(name) && tsr_ends_with(name, INDEX_SUFFIX);
}

/* Returns true only for known endings. With a looser rule, weights could be left unnoticed beside a model: loaders read
 * every file that ends in .safetensors, however it begins. */
bool tsr_listing_is_manifest(const char *name)
{
    static const char *const kSignatures[] = {"",     ".sig", ".minisig",  ".asc",
                                              ".gpg", ".p7s", ".sigstore", ".sigstore.json"};
    const size_t n = strlen(TSR_MANIFEST_NAME);
    bool known = false;
    for (size_t i = 0; i < sizeof kSignatures / sizeof *kSignatures && strncmp(name, TSR_MANIFEST_NAME, n) == 0; i++)
        known = known || strcmp(name + n, kSignatures[i]) == 0;
    return known;
}

bool tsr_listing_is_other_weights(const char *name)
{
    static const char *const kEndings[] = {".bin", ".bin.index.json", ".pth",     ".ckpt", ".gguf",
                                           ".h5",  ".h5.index.json",  ".msgpack", ".onnx", ".onnx_data"};
    static const char *const kFolders[] = {"original/", "onnx/", "metal/"};
    bool other = false;
    for (size_t i = 0; i < sizeof kEndings / sizeof *kEndings; i++)
        other = other || (is_top(name) && tsr_ends_with(name, kEndings[i]));
    for (size_t i = 0; i < sizeof kFolders / sizeof *kFolders; i++)
        other = other || strncmp(name, kFolders[i], strlen(kFolders[i])) == 0;
    return other;
}

static bool ignored(const tsr_listing *l, const char *name)
{
    bool any = false;
    for (size_t i = 0; i < l->n_ignore; i++) {
        const bool fits = (!any || l->fits != NULL) && tsr_glob_match(l->ignore[i], name);
        any = any || fits;
        if (fits && l->fits != NULL)
            l->fits[i] = true;
    }
    return any;
}

static tsr_status listing_add(tsr_listing *l, char *name, tsr_err *err)
{
    if (!tsr_grow(&l->names, l->count, &l->capacity, sizeof *l->names)) {
        free(name);
        return tsr_out_of_memory(err, "while listing files");
    }
    l->names[l->count++] = name;
    return TSR_OK;
}

tsr_status tsr_join_path(char *path, const char *dir, const char *name, tsr_err *err)
{
    return snprintf(path, PATH_MAX, "%s/%s", dir, name) < PATH_MAX
               ? TSR_OK
               : tsr_fail(err, TSR_E_IO, "%s/%s: the path is too long for the system", dir, name);
}

/* A folder that is being listed, and its parent. */
typedef struct folder {
    dev_t dev;
    ino_t ino;
    int depth;
    const struct folder *up;
} folder;

/* Returns true if a folder is one of its own ancestors: following a link back to it would never end. */
static bool is_among(const folder *up, const struct stat *st)
{
    for (; up != NULL; up = up->up) {
        if (up->dev == st->st_dev && up->ino == st->st_ino)
            return true;
    }
    return false;
}

/* Rejects names with control characters, because the journal and lists hold one name per line. */
static tsr_status check_name(const char *root, const char *name, tsr_err *err)
{
    return tsr_is_printable(name)
               ? TSR_OK
               : tsr_fail(err, TSR_E_FORMAT,
                          "%s/%s: the file name contains a control character; rename the file, or exclude it with "
                          "--ignore-file",
                          root, name);
}

/* Returns the error for a directory entry whose stat() failed. A file that was removed in the meantime is not a broken
 * link. */
static tsr_status cannot_look(const char *path, tsr_err *err)
{
    const int why = errno;
    struct stat link;
    const bool is_link = lstat(path, &link) == 0 && S_ISLNK(link.st_mode);
    errno = why;
    if (is_link && (why == ENOENT || why == ENOTDIR || why == ELOOP))
        return tsr_fail(err, TSR_E_FORMAT, "%s: dangling symlink: %s", path, strerror(why));
    return tsr_fail_errno(err, "%s: cannot access it", path);
}

/* Adds the files of root/sub ("" or "folder/"). Hidden folders (.git, .cache, Tessera's own) are not part of a
 * model. */
static tsr_status list_files(tsr_listing *l, const char *root, const char *sub, const folder *up, tsr_err *err)
{
    struct stat st;
    char path[PATH_MAX];
    TSR_TRY(tsr_join_path(path, root, sub, err));
    DIR *const dir = opendir(path);
    if (dir == NULL || fstat(dirfd(dir), &st) != 0) {
        const tsr_status failed = tsr_fail_errno(err, "%s: cannot list the directory", path);
        if (dir != NULL)
            closedir(dir);
        return failed;
    }
    const folder here = {.dev = st.st_dev, .ino = st.st_ino, .depth = up == NULL ? 0 : up->depth + 1, .up = up};
    tsr_status status = TSR_OK;
    while (status == TSR_OK) {
        errno = 0;
        const struct dirent *const entry = readdir(dir);
        if (entry == NULL) {
            if (errno != 0)
                status = tsr_fail_errno(err, "%s: cannot list the directory", path);
            break;
        }
        const char *const base = entry->d_name;
        if (strcmp(base, ".") == 0 || strcmp(base, "..") == 0)
            continue;
        char *name;
        if (asprintf(&name, "%s%s", sub, base) < 0) {
            status = tsr_fail(err, TSR_E_NOMEM, "%s: out of memory", path);
            break;
        }
        status = tsr_join_path(path, root, name, err);
        if (status != TSR_OK || ignored(l, name) ||
            (l->only != NULL && tsr_listing_is_shard(name) && strcmp(name, l->only) != 0)) {
            free(name);
        } else if ((status = check_name(root, name, err)) != TSR_OK) {
            free(name);
        } else if (stat(path, &st) != 0) {
            status = cannot_look(path, err);
            free(name);
        } else if (S_ISREG(st.st_mode)) {
            status = listing_add(l, name, err);
        } else {
            if (S_ISDIR(st.st_mode) && base[0] != '.' && here.depth < MAX_TREE_DEPTH && !is_among(&here, &st)) {
                char below[PATH_MAX]; /* shorter than path */
                snprintf(below, sizeof below, "%s/", name);
                status = list_files(l, root, below, &here, err);
            }
            free(name);
        }
    }
    closedir(dir);
    return status;
}

tsr_status tsr_listing_read(tsr_listing *l, const char *root, tsr_err *err)
{
    TSR_TRY(list_files(l, root, "", NULL, err));
    if (l->count > 0)
        qsort(l->names, l->count, sizeof *l->names, tsr_by_text);
    return TSR_OK;
}

/* Returns true if a file of an address is in a folder that is hidden, too deep or left out. */
static bool is_in_hidden(const tsr_listing *l, const char *name)
{
    char above[PATH_MAX];
    bool hidden = false;
    int depth = 0;
    for (const char *p = name, *slash; (slash = strchr(p, '/')) != NULL && !hidden; p = slash + 1) {
        snprintf(above, sizeof above, "%.*s", (int)(slash - name), name);
        hidden = ignored(l, above) || *p == '.' || ++depth > MAX_TREE_DEPTH;
    }
    return hidden;
}

tsr_status tsr_listing_take(tsr_listing *l, const tsr_remote *remote, tsr_err *err)
{
    size_t n;
    const tsr_remote_file *const files = tsr_remote_files(remote, &n);
    for (size_t i = 0; i < n; i++) {
        const char *const name = files[i].name;
        if (is_in_hidden(l, name) || ignored(l, name) ||
            (l->only != NULL && tsr_listing_is_shard(name) && strcmp(name, l->only) != 0))
            continue;
        char *const copy = strdup(name);
        if (copy == NULL)
            return tsr_out_of_memory(err, "while listing files");
        TSR_TRY(listing_add(l, copy, err));
    }
    return TSR_OK;
}

tsr_status tsr_check_inside(const char *dir, const char *path, tsr_err *err)
{
    char root[PATH_MAX], real[PATH_MAX];
    if (realpath(dir, root) == NULL || realpath(path, real) == NULL)
        return tsr_fail_errno(err, "%s: cannot resolve", path);
    const size_t n = strlen(root);
    if (strncmp(real, root, n) == 0 && (real[n] == '/' || n == 1))
        return TSR_OK;
    char *const revision = strrchr(root, '/');
    if (revision != NULL) {
        *revision = '\0';
        if (tsr_ends_with(root, "/snapshots")) {
            snprintf(strrchr(root, '/'), 8, "/blobs/");
            if (strncmp(real, root, strlen(root)) == 0)
                return TSR_OK;
        }
    }
    return tsr_fail_as(err, TSR_ERROR_LINK_OUTSIDE, TSR_E_FORMAT,
                       "%s: a symlink out of the checkpoint's directory, to %s; copy the files (cp -rL), or name the "
                       "directory that contains them",
                       path, real);
}
