/* Finding a checkpoint's files, reading their headers, and holding the index to them. */
#include "formats/checkpoint/checkpoint.h"

#include "common/checked.h"
#include "common/file.h"
#include "common/glob.h"
#include "common/text.h"
#include "formats/json/json.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SUFFIX        ".safetensors"
#define INDEX_SUFFIX  ".safetensors.index.json"
#define PACKED_SUFFIX SUFFIX TSR_ARCHIVE_SUFFIX

enum { MAX_TREE_DEPTH = 8 };
static const uint64_t kMaxIndexBytes = 256u << 20, kMaxConfigBytes = 16u << 20;

/* The names of all regular files below a directory. */
typedef struct listing {
    char **names;
    size_t count, capacity;
    const char *const *ignore;
    size_t n_ignore;
    const char *only; /* of the shards only this one; NULL: all */
} listing;

static void listing_free(listing *l)
{
    for (size_t i = 0; i < l->count; i++)
        free(l->names[i]);
    free(l->names);
}

static bool is_top(const char *name)
{
    return strchr(name, '/') == NULL;
}

static bool is_shard(const char *name)
{
    return is_top(name) && (tsr_ends_with(name, SUFFIX) || tsr_ends_with(name, PACKED_SUFFIX)) &&
           strcmp(name, TSR_AZP_NAME) != 0;
}

static bool ignored(const listing *l, const char *name)
{
    for (size_t i = 0; i < l->n_ignore; i++) {
        if (tsr_glob_match(l->ignore[i], name))
            return true;
    }
    return false;
}

static tsr_status listing_add(listing *l, char *name, tsr_err *err)
{
    if (l->count == l->capacity) {
        const size_t capacity = l->capacity == 0 ? 64 : l->capacity * 2;
        char **const names = realloc(l->names, capacity * sizeof *names);
        if (names == NULL) {
            free(name);
            return tsr_out_of_memory(err, "while listing files");
        }
        l->names = names;
        l->capacity = capacity;
    }
    l->names[l->count++] = name;
    return TSR_OK;
}

/* DIR/NAME, whole or not at all. */
static tsr_status join(char path[PATH_MAX], const char *dir, const char *name, tsr_err *err)
{
    return snprintf(path, PATH_MAX, "%s/%s", dir, name) < PATH_MAX
               ? TSR_OK
               : tsr_fail(err, TSR_E_IO, "%s/%s: a longer path than the system takes", dir, name);
}

/* A folder being listed, and the one that it was found in. */
typedef struct folder {
    dev_t dev;
    ino_t ino;
    int depth;
    const struct folder *up;
} folder;

/* A link to a folder that it lies in leads nowhere new; followed, a few of them would take for ever. */
static bool is_among(const folder *up, const struct stat *st)
{
    for (; up != NULL; up = up->up) {
        if (up->dev == st->st_dev && up->ino == st->st_ino)
            return true;
    }
    return false;
}

/* Names go into the journal and into lists, a line each. */
static tsr_status check_name(const char *root, const char *name, tsr_err *err)
{
    for (const char *p = name; *p != '\0'; p++) {
        if ((unsigned char)*p < 0x20 || *p == 0x7F)
            return tsr_fail(
                err, TSR_E_FORMAT,
                "%s/%s: a file name with a control character: rename it, or leave it out with --ignore-file", root,
                name);
    }
    return TSR_OK;
}

/* Adds the files of root/sub ("" or "folder/"). Hidden folders (.git, .cache, Tessera's own) are not part of a model.
 */
static tsr_status list_files(listing *l, const char *root, const char *sub, const folder *up, tsr_err *err)
{
    struct stat st;
    char path[PATH_MAX];
    TSR_TRY(join(path, root, sub, err));
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
        status = join(path, root, name, err);
        if (status != TSR_OK || ignored(l, name) || (l->only != NULL && is_shard(name) && strcmp(name, l->only) != 0)) {
            free(name);
        } else if ((status = check_name(root, name, err)) != TSR_OK) {
            free(name);
        } else if (stat(path, &st) != 0) {
            status = tsr_fail(err, TSR_E_FORMAT, "%s: a link to nothing, or not readable: %s", path, strerror(errno));
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

static int by_string(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* A link may point inside the directory, or from a hub cache's snapshots/<revision>/ to its blobs/; nowhere else. */
static tsr_status check_inside(const char *dir, const char *path, tsr_err *err)
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
    return tsr_fail(err, TSR_E_FORMAT, "%s: a link that leaves the checkpoint's directory, to %s", path, real);
}

static tsr_input input_of(const tsr_file *f)
{
    return (tsr_input){.fd = f->fd, .path = f->path, .size = f->size, .archive = f->archive};
}

/* Makes of a file that is open the plain file that it holds, if it is an archive. */
static tsr_status unwrap(tsr_checkpoint *c, tsr_file *f, tsr_err *err)
{
    if (!tsr_ends_with(f->name, PACKED_SUFFIX))
        return TSR_OK;
    if (c->cache == NULL)
        c->cache = tsr_archive_cache_new();
    f->name = tsr_arena_dup(&c->arena, f->name, strlen(f->name) - strlen(TSR_ARCHIVE_SUFFIX));
    if (c->cache == NULL || f->name == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "%s: out of memory", f->path);
    TSR_TRY(tsr_archive_open(&f->archive, f->fd, f->path, f->size, c->cache, err));
    f->size = tsr_archive_size(f->archive);
    return TSR_OK;
}

static tsr_status describe(tsr_checkpoint *c, const char *name, tsr_file *file, tsr_err *err)
{
    *file = (tsr_file){.fd = -1, .name = tsr_arena_dup(&c->arena, name, strlen(name))};
    file->path = tsr_arena_printf(&c->arena, "%s/%s", c->dir, name);
    if (file->name == NULL || file->path == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "%s: out of memory", name);
    TSR_TRY(check_inside(c->dir, file->path, err));
    return tsr_open_input(file->path, &file->fd, &file->size, &file->stamp, err);
}

static tsr_status read_headers(tsr_checkpoint *c, tsr_err *err)
{
    for (size_t i = 0; i < c->n_files; i++) {
        tsr_file *const f = &c->files[i];
        const tsr_input in = input_of(f);
        TSR_TRY(tsr_safetensors_read(&in, (uint32_t)i, &c->arena, &c->tensors, &f->header_hash, err));
    }
    return TSR_OK;
}

static size_t slot_of(const tsr_checkpoint *c, const char *name)
{
    size_t slot = (size_t)XXH3_64bits(name, strlen(name)) & c->by_name_mask;
    while (c->by_name[slot] != 0 && strcmp(c->tensors.items[c->by_name[slot] - 1].name, name) != 0)
        slot = (slot + 1) & c->by_name_mask;
    return slot;
}

static tsr_status index_names(tsr_checkpoint *c, tsr_err *err)
{
    size_t slots = 16;
    while (slots < 2 * c->tensors.count)
        slots *= 2;
    c->by_name_mask = slots - 1;
    c->by_name = calloc(slots, sizeof *c->by_name);
    if (c->by_name == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "%s: out of memory for %zu tensor names", c->path, c->tensors.count);
    for (size_t i = 0; i < c->tensors.count; i++) {
        const tsr_tensor *const t = &c->tensors.items[i];
        const size_t slot = slot_of(c, t->name);
        if (c->by_name[slot] != 0) {
            const tsr_tensor *const other = &c->tensors.items[c->by_name[slot] - 1];
            return tsr_fail(err, TSR_E_FORMAT, "%s: '%s' stands twice: at file offset %llu, and in %s at %llu",
                            c->files[t->file].path, t->name, (unsigned long long)t->offset, c->files[other->file].name,
                            (unsigned long long)other->offset);
        }
        c->by_name[slot] = (uint32_t)i + 1;
    }
    return TSR_OK;
}

const tsr_tensor *tsr_checkpoint_find(const tsr_checkpoint *c, const char *name)
{
    const uint32_t entry = c->by_name[slot_of(c, name)];
    return entry == 0 ? NULL : &c->tensors.items[entry - 1];
}

/* One entry of weight_map: a plain file name of this directory that holds this tensor. */
static tsr_status check_entry(const tsr_checkpoint *c, const char *index, const char *tensor, const char *file,
                              bool *seen, tsr_err *err)
{
    if (strchr(file, '/') != NULL || strchr(file, '\\') != NULL || strcmp(file, "..") == 0)
        return tsr_fail(err, TSR_E_FORMAT,
                        "%s: '%s' is mapped to '%s', a path outside the directory: an index names "
                        "files beside it",
                        index, tensor, file);
    const tsr_tensor *const t = tsr_checkpoint_find(c, tensor);
    if (t != NULL && strcmp(c->files[t->file].name, file) == 0) {
        seen[t - c->tensors.items] = true;
        return TSR_OK;
    }
    for (size_t i = 0; i < c->n_files; i++) {
        if (strcmp(c->files[i].name, file) != 0)
            continue;
        if (t == NULL)
            return tsr_fail(err, TSR_E_FORMAT, "%s: '%s' is mapped to %s, which has no such tensor: the index is stale",
                            index, tensor, file);
        return tsr_fail(err, TSR_E_FORMAT, "%s: '%s' is mapped to %s, but stands in %s: the index is stale", index,
                        tensor, file, c->files[t->file].name);
    }
    return tsr_fail(err, TSR_E_FORMAT, "%s: '%s' is mapped to %s, and there is no such file: is the download complete?",
                    index, tensor, file);
}

static tsr_status check_index_text(const tsr_checkpoint *c, const char *path, const char *text, size_t size,
                                   tsr_arena *names, bool *seen, tsr_err *err)
{
    tsr_json_reader r = tsr_json_open(path, text, size);
    tsr_json_text key, value;
    bool more, has_map = false;
    TSR_TRY(tsr_json_enter_object(&r, err));
    for (;;) {
        TSR_TRY(tsr_json_next_member(&r, &key, &more, err));
        if (!more)
            break;
        if (!tsr_json_is(key, "weight_map")) {
            TSR_TRY(tsr_json_skip(&r, NULL, err));
            continue;
        }
        has_map = true;
        TSR_TRY(tsr_json_enter_object(&r, err));
        for (;;) {
            const char *tensor, *file;
            TSR_TRY(tsr_json_next_member(&r, &key, &more, err));
            if (!more)
                break;
            TSR_TRY(tsr_json_read_string(&r, &value, err));
            TSR_TRY(tsr_json_decode(&r, key, names, &tensor, err));
            TSR_TRY(tsr_json_decode(&r, value, names, &file, err));
            TSR_TRY(check_entry(c, path, tensor, file, seen, err));
        }
    }
    TSR_TRY(tsr_json_finish(&r, err));
    if (!has_map)
        return tsr_fail(err, TSR_E_FORMAT, "%s: no weight_map", path);
    for (size_t i = 0; i < c->tensors.count; i++) {
        if (!seen[i])
            return tsr_fail(err, TSR_E_FORMAT,
                            "%s: the index is stale: it leaves out '%s', which stands in %s (loaders "
                            "would drop it silently); --ignore-file %s leaves that file out",
                            path, c->tensors.items[i].name, c->files[c->tensors.items[i].file].name,
                            c->files[c->tensors.items[i].file].name);
    }
    return TSR_OK;
}

static tsr_status check_index(tsr_checkpoint *c, const char *name, tsr_err *err)
{
    tsr_arena scratch = {0};
    const char *text;
    size_t size;
    bool *const seen = calloc(c->tensors.count + 1, sizeof *seen);
    c->index_path = tsr_arena_printf(&c->arena, "%s/%s", c->dir, name);
    tsr_status status = TSR_OK;
    if (seen == NULL || c->index_path == NULL)
        status = tsr_fail(err, TSR_E_NOMEM, "%s: out of memory", c->path);
    if (status == TSR_OK)
        status = check_inside(c->dir, c->index_path, err);
    if (status == TSR_OK)
        status = tsr_checkpoint_index(c, &scratch, &text, &size, err);
    if (status == TSR_OK)
        status = check_index_text(c, c->index_path, text, size, &scratch, seen, err);
    free(seen);
    tsr_arena_free(&scratch);
    return status;
}

static tsr_status read_config(tsr_checkpoint *c, tsr_err *err)
{
    char path[PATH_MAX];
    bool exists;
    TSR_TRY(join(path, c->dir, TSR_CONFIG_NAME, err));
    TSR_TRY(tsr_exists(path, &exists, err));
    if (!exists)
        return tsr_fail(err, TSR_E_FORMAT,
                        "%s: missing: a checkpoint directory needs its configuration (or name a single "
                        ".safetensors file instead of the directory)",
                        path);
    TSR_TRY(check_inside(c->dir, path, err));
    TSR_TRY(tsr_read_file(path, kMaxConfigBytes, &c->arena, &c->config, &c->config_size, err));
    tsr_json_reader r = tsr_json_open(path, c->config, c->config_size);
    tsr_json_kind kind;
    TSR_TRY(tsr_json_peek(&r, &kind, err));
    if (kind != TSR_JSON_OBJECT)
        return tsr_fail(err, TSR_E_FORMAT, "%s: not a JSON object", path);
    TSR_TRY(tsr_json_skip(&r, NULL, err));
    return tsr_json_finish(&r, err);
}

static bool is_index(const char *name)
{
    return is_top(name) && tsr_ends_with(name, INDEX_SUFFIX);
}

static bool is_rank_file(const char *name)
{
    unsigned rank, ranks;
    int end = 0;
    return sscanf(name, TSR_RANK_FILE "%n", &rank, &ranks, &end) == 2 && end > 0 && name[end] == '\0';
}

/* Directories that hold a model cut over ranks: no checkpoint, but something that can be made one. */
static tsr_status refuse_ranks(const tsr_checkpoint *c, const listing *l, tsr_err *err)
{
    bool ranks = false;
    for (size_t i = 0; i < l->count; i++) {
        ranks = ranks || (strncmp(l->names[i], "rank-0/", 7) == 0 && tsr_ends_with(l->names[i], SUFFIX));
        if (l->only == NULL && is_rank_file(l->names[i]))
            return tsr_fail(
                err, TSR_E_FORMAT,
                "%s: the ranks of DeepSeek's inference code (%s): 'tessera convert %s -o DST --from deepseek-mp' "
                "makes a checkpoint of them again, which every command reads",
                c->path, l->names[i], c->path);
    }
    if (ranks && c->n_files == 0)
        return tsr_fail(err, TSR_E_FORMAT,
                        "%s: the ranks of a tensor-parallel cut: each of %s/rank-0, ... is a checkpoint, and 'tessera "
                        "convert %s -o DST --merge' joins them again",
                        c->path, c->path, c->path);
    return TSR_OK;
}

/* Says which other files hold the weights, if one can tell. */
static tsr_status no_safetensors(const tsr_checkpoint *c, const listing *l, tsr_err *err)
{
    static const struct {
        const char *suffix, *what;
    } kOthers[] = {{".gguf", "GGUF is not read"},
                   {".bin", "PyTorch's pickles have to be converted to safetensors first"},
                   {".pt", "PyTorch's pickles have to be converted to safetensors first"},
                   {".pth", "PyTorch's pickles have to be converted to safetensors first"},
                   {".ckpt", "PyTorch's pickles have to be converted to safetensors first"}};
    for (size_t i = 0; i < l->count; i++) {
        for (size_t k = 0; k < sizeof kOthers / sizeof *kOthers; k++) {
            if (tsr_ends_with(l->names[i], kOthers[k].suffix))
                return tsr_fail(err, TSR_E_FORMAT, "%s: no .safetensors file in this directory, but %s: %s", c->path,
                                l->names[i], kOthers[k].what);
        }
    }
    return tsr_fail(err, TSR_E_FORMAT, "%s: no .safetensors file in this directory", c->path);
}

/* Sorts the directory's files into safetensors, index, config and the rest. */
static tsr_status take_files(tsr_checkpoint *c, const listing *l, const char **index, tsr_err *err)
{
    c->files = tsr_arena_alloc(&c->arena, (l->count + 1) * sizeof *c->files);
    if (c->files == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "%s: out of memory for %zu files", c->path, l->count);
    for (size_t i = 0; i < l->count; i++) {
        const char *const name = l->names[i];
        if (is_index(name)) {
            if (*index != NULL)
                return tsr_fail(err, TSR_E_FORMAT,
                                "%s: two indexes, %s and %s: which one holds? --ignore-file leaves one "
                                "out",
                                c->path, *index, name);
            *index = name;
        } else if (is_shard(name)) {
            tsr_file *const f = &c->files[c->n_files];
            TSR_TRY(describe(c, name, f, err));
            c->n_files++;
            TSR_TRY(unwrap(c, f, err));
            if (c->n_files > 1 && strcmp(f[-1].name, f->name) == 0)
                return tsr_fail(err, TSR_E_FORMAT,
                                "%s: %s and %s are the same file, plain and packed: which one holds? --ignore-file "
                                "leaves one out",
                                c->path, f->name, name);
        }
    }
    bool blobs = false;
    for (size_t i = 0; i < l->count; i++)
        blobs = blobs || strcmp(l->names[i], TSR_LAYOUT_NAME) == 0;
    TSR_TRY(refuse_ranks(c, l, err));
    if (c->n_files == 0 && !blobs)
        return no_safetensors(c, l, err);
    if (c->n_files > 1 && *index == NULL)
        return tsr_fail(err, TSR_E_FORMAT,
                        "%s: %zu .safetensors files and no " TSR_INDEX_NAME " to say which belong "
                        "together",
                        c->path, c->n_files);
    for (size_t i = 0; i < l->count; i++) {
        const char *const name = l->names[i];
        if (is_index(name) || is_shard(name) || strcmp(name, TSR_CONFIG_NAME) == 0 ||
            strcmp(name, TSR_REPORT_NAME) == 0)
            continue;
        TSR_TRY(describe(c, name, &c->files[c->n_files + c->n_side_files], err));
        c->n_side_files++;
    }
    return TSR_OK;
}

static tsr_status open_directory(tsr_checkpoint *c, const char *const *ignore, size_t n_ignore, const char *only,
                                 tsr_err *err)
{
    listing l = {.ignore = ignore, .n_ignore = n_ignore, .only = only};
    const char *index = NULL;
    tsr_status status = list_files(&l, c->dir, "", NULL, err);
    if (status == TSR_OK && l.count > 0)
        qsort(l.names, l.count, sizeof *l.names, by_string);
    if (status == TSR_OK)
        status = take_files(c, &l, &index, err);
    if (status == TSR_OK && only == NULL)
        status = read_config(c, err);
    if (status == TSR_OK)
        status = read_headers(c, err);
    if (status == TSR_OK)
        status = index_names(c, err);
    if (status == TSR_OK && index != NULL)
        status = check_index(c, index, err);
    listing_free(&l);
    return status;
}

static tsr_status open_single(tsr_checkpoint *c, tsr_err *err)
{
    c->files = tsr_arena_alloc(&c->arena, sizeof *c->files);
    if (c->files == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "%s: out of memory", c->path);
    const char *const slash = strrchr(c->path, '/');
    *c->files = (tsr_file){.fd = -1, .path = c->path, .name = slash == NULL ? c->path : slash + 1};
    TSR_TRY(tsr_open_input(c->path, &c->files->fd, &c->files->size, &c->files->stamp, err));
    c->n_files = 1;
    TSR_TRY(unwrap(c, c->files, err));
    TSR_TRY(read_headers(c, err));
    return index_names(c, err);
}

/* Two words with a slash between, of which the first is no directory here: "org/model". */
static bool is_hub_id(const char *path)
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

static tsr_status open_any(tsr_checkpoint **checkpoint, const char *path, const char *const *ignore, size_t n_ignore,
                           const char *only, tsr_err *err)
{
    *checkpoint = NULL;
    struct stat st;
    if (stat(path, &st) != 0)
        return is_hub_id(path) ? tsr_fail(err, TSR_E_FORMAT,
                                          "%s: there is no such directory here; if it is a model of the Hugging Face "
                                          "hub, 'hf download %s --local-dir %s' fetches it",
                                          path, path, strchr(path, '/') + 1)
                               : tsr_fail(err, TSR_E_FORMAT, "%s: %s", path, strerror(errno));
    tsr_checkpoint *const c = calloc(1, sizeof *c);
    if (c == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "%s: out of memory", path);
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/')
        length--;
    c->path = tsr_arena_dup(&c->arena, path, length);
    tsr_status status = TSR_OK;
    if (c->path == NULL) {
        status = tsr_fail(err, TSR_E_NOMEM, "%s: out of memory", path);
    } else if (S_ISDIR(st.st_mode)) {
        c->dir = c->path;
        status = open_directory(c, ignore, n_ignore, only, err);
    } else {
        status = open_single(c, err);
    }
    status = tsr_arena_status(&c->arena, status, err);
    if (status != TSR_OK) {
        tsr_checkpoint_close(c);
        return status;
    }
    *checkpoint = c;
    return TSR_OK;
}

tsr_status tsr_checkpoint_open(tsr_checkpoint **checkpoint, const char *path, const char *const *ignore,
                               size_t n_ignore, tsr_err *err)
{
    return open_any(checkpoint, path, ignore, n_ignore, NULL, err);
}

tsr_status tsr_checkpoint_open_shard(tsr_checkpoint **checkpoint, const char *dir, const char *shard,
                                     const char *const *ignore, size_t n_ignore, tsr_err *err)
{
    return open_any(checkpoint, dir, ignore, n_ignore, shard, err);
}

void tsr_checkpoint_close(tsr_checkpoint *c)
{
    if (c == NULL)
        return;
    for (size_t i = 0; i < c->n_files + c->n_side_files; i++) {
        tsr_archive_close(c->files[i].archive);
        if (c->files[i].fd >= 0)
            close(c->files[i].fd);
    }
    tsr_archive_cache_free(c->cache);
    free(c->by_name);
    tsr_tensors_free(&c->tensors);
    tsr_arena_free(&c->arena);
    free(c);
}

tsr_status tsr_checkpoint_read(const tsr_checkpoint *c, const tsr_tensor *tensor, uint64_t offset, void *data,
                               size_t size, tsr_err *err)
{
    const tsr_input in = input_of(&c->files[tensor->file]);
    const tsr_status status = tsr_input_read(&in, data, size, tensor->offset + offset, err);
    /* An archive knows frames, not tensors. */
    return status == TSR_OK || in.archive == NULL ? status : tsr_prepend(err, status, "'%s'", tensor->name);
}

tsr_status tsr_checkpoint_unchanged(const tsr_checkpoint *c, size_t file, tsr_err *err)
{
    const tsr_file *const f = &c->files[file];
    return tsr_check_stamp(f->fd, f->path, &f->stamp, err);
}

void tsr_checkpoint_prefetch(const tsr_checkpoint *c, const tsr_tensor *tensor, uint64_t offset, size_t size)
{
    const tsr_file *const f = &c->files[tensor->file];
    if (f->archive != NULL)
        tsr_archive_prefetch(f->archive, tensor->offset + offset, size);
    else
        (void)posix_fadvise(f->fd, (off_t)(tensor->offset + offset), (off_t)size, POSIX_FADV_WILLNEED);
}

tsr_status tsr_checkpoint_index(const tsr_checkpoint *c, tsr_arena *arena, const char **text, size_t *size,
                                tsr_err *err)
{
    return tsr_read_file(c->index_path, kMaxIndexBytes, arena, text, size, err);
}

tsr_status tsr_checkpoint_header(const tsr_checkpoint *c, size_t file, tsr_arena *arena, const char **header,
                                 size_t *size, tsr_err *err)
{
    /* It ends where the first tensor begins; tensors stand in the order of their bytes, file by file. */
    uint64_t end = c->files[file].size;
    for (size_t i = 0; i < c->tensors.count; i++)
        end = c->tensors.items[i].file == file ? tsr_min_u64(end, c->tensors.items[i].offset) : end;
    const tsr_tensor place = {.name = c->files[file].name, .file = (uint32_t)file, .bytes = end};
    char *const text = tsr_arena_alloc(arena, end + 1);
    if (text == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "%s: out of memory for its header", c->files[file].path);
    *header = text;
    *size = end;
    return tsr_checkpoint_read(c, &place, 0, text, end, err);
}

tsr_tensor tsr_checkpoint_side_file(const tsr_checkpoint *c, size_t i)
{
    const size_t file = c->n_files + i;
    return (tsr_tensor){
        .name = c->files[file].name,
        .dtype = TSR_U8,
        .rank = 1,
        .shape = {c->files[file].size},
        .bytes = c->files[file].size,
        .file = (uint32_t)file,
    };
}

size_t tsr_checkpoint_memory(const tsr_checkpoint *c)
{
    size_t bytes = c->arena.bytes + c->tensors.capacity * sizeof *c->tensors.items +
                   (c->by_name_mask + 1) * sizeof *c->by_name + tsr_archive_cache_memory(c->cache);
    for (size_t i = 0; i < c->n_files; i++)
        bytes += c->files[i].archive == NULL ? 0 : tsr_archive_memory(c->files[i].archive);
    return bytes;
}
