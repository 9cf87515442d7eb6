/* Opens a checkpoint: sorts its files, reads their headers and the configuration. */
#include "formats/checkpoint/checkpoint.h"

#include "common/checked.h"
#include "common/file.h"
#include "common/options.h"
#include "common/text.h"
#include "formats/json/json.h"
#include "formats/remote/address.h"
#include "formats/remote/settings/hub_access.h"

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

enum {
    MOST_NAMES = 1 << 16, /* total bytes of the names of other files beside a missing path */
    HEADERS_AHEAD = 32,   /* files of a server whose headers are read at a time */
};

static tsr_input input_of(const tsr_file *f)
{
    return (tsr_input){.fd = f->fd, .path = f->path, .size = f->size, .remote = f->remote, .archive = f->archive};
}

/* If the open file is an archive, presents it as the plain file that it holds. */
static tsr_status unwrap(tsr_checkpoint *c, tsr_file *f, tsr_err *err)
{
    if (!tsr_ends_with(f->name, TSR_PACKED_SUFFIX))
        return TSR_OK;
    if (c->cache == NULL)
        c->cache = tsr_archive_cache_new();
    f->name = tsr_arena_dup(&c->arena, f->name, strlen(f->name) - strlen(TSR_ARCHIVE_SUFFIX));
    if (c->cache == NULL || f->name == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "%s: out of memory", f->path);
    const tsr_input in = input_of(f);
    TSR_TRY(tsr_archive_open(&f->archive, &in, c->cache, err));
    f->size = tsr_archive_size(f->archive);
    return TSR_OK;
}

static tsr_status read_headers(tsr_checkpoint *c, tsr_err *err)
{
    for (size_t i = 0; i < c->n_files; i++) {
        tsr_file *const f = &c->files[i];
        const tsr_input in = input_of(f);
        for (size_t k = i == 0 ? 0 : i + HEADERS_AHEAD - 1; k < i + HEADERS_AHEAD && k < c->n_files; k++)
            if (c->files[k].remote != NULL && c->files[k].archive == NULL)
                tsr_remote_prefetch_header(c->files[k].remote);
        TSR_TRY(tsr_safetensors_read(&in, (uint32_t)i, &c->arena, &c->tensors, &f->header_hash, err));
    }
    return TSR_OK;
}

/* Rejects a folder that is no checkpoint but looks like one of those that users mistake for it. */
static tsr_status name_folder(const tsr_checkpoint *c, tsr_err *err)
{
    if (c->remote == NULL)
        return tsr_checkpoint_name_folder(c->dir, err);
    return tsr_remote_find(c->remote, "adapter_config.json") == NULL ? TSR_OK : tsr_checkpoint_is_adapter(c->dir, err);
}

static tsr_status read_config(tsr_checkpoint *c, tsr_err *err)
{
    char path[PATH_MAX];
    bool exists;
    TSR_TRY(tsr_join_path(path, c->dir, TSR_CONFIG_NAME, err));
    TSR_TRY(tsr_checkpoint_has(c, TSR_CONFIG_NAME, &exists, err));
    if (!exists)
        TSR_TRY(name_folder(c, err));
    if (!exists)
        return tsr_fail_as(err, TSR_ERROR_NO_CONFIGURATION, TSR_E_FORMAT,
                           "%s: missing: a checkpoint directory needs its configuration (or name a single "
                           ".safetensors file instead of the directory)",
                           path);
    TSR_TRY(tsr_checkpoint_text(c, TSR_CONFIG_NAME, TSR_MAX_CONFIG_BYTES, &c->arena, &c->config, &c->config_size, err));
    c->config_file = (tsr_json_text){.data = c->config, .size = c->config_size};
    c->mistyped = tsr_arena_alloc(&c->arena, sizeof *c->mistyped);
    if (c->mistyped == NULL)
        return tsr_out_of_memory(err, c->path);
    *c->mistyped = (tsr_json_text){.size = 0};
    return tsr_json_index_read(&c->config_index, path, c->config, c->config_size, err);
}

static bool is_rank_file(const char *name)
{
    unsigned rank, ranks;
    int end = 0;
    return sscanf(name, TSR_RANK_FILE "%n", &rank, &ranks, &end) == 2 && end > 0 && name[end] == '\0';
}

/* Rejects a directory with a model that is divided over ranks. It is not a checkpoint, but can be converted to one. */
static tsr_status refuse_ranks(const tsr_checkpoint *c, const tsr_listing *l, tsr_err *err)
{
    bool ranks = false;
    for (size_t i = 0; i < l->count; i++) {
        ranks = ranks || (strncmp(l->names[i], "rank-0/", 7) == 0 && tsr_ends_with(l->names[i], TSR_SHARD_SUFFIX));
        if (l->only == NULL && is_rank_file(l->names[i]))
            return tsr_fail(err, TSR_E_FORMAT,
                            "%s: files of the ranks of DeepSeek's inference code (%s); join them with 'tessera convert "
                            "%s -o DST --from deepseek-mp'",
                            c->path, l->names[i], c->path);
    }
    if (ranks && c->n_files == 0)
        return tsr_fail(err, TSR_E_FORMAT,
                        "%s: a directory of tensor-parallel ranks; name one of them, such as %s/rank-0, or join them "
                        "with 'tessera convert %s -o DST --merge'",
                        c->path, c->path, c->path);
    return TSR_OK;
}

/* Fails for a directory without safetensors; the message names the files that seem to hold the weights. */
static tsr_status no_safetensors(const tsr_checkpoint *c, const tsr_listing *l, tsr_err *err)
{
    static const struct {
        const char *suffix, *what;
    } kOthers[] = {{".gguf", "GGUF is not read"},
                   {".bin", "PyTorch pickles must be converted to safetensors first"},
                   {".pt", "PyTorch pickles must be converted to safetensors first"},
                   {".pth", "PyTorch pickles must be converted to safetensors first"},
                   {".ckpt", "PyTorch pickles must be converted to safetensors first"},
                   {"_index.json", "a diffusers pipeline; name the folder of one component, such as transformer"}};
    for (size_t i = 0; i < l->count; i++) {
        for (size_t k = 0; k < sizeof kOthers / sizeof *kOthers; k++) {
            if (tsr_ends_with(l->names[i], kOthers[k].suffix))
                return tsr_fail_as(err, TSR_ERROR_OTHER_FORMATS, TSR_E_FORMAT,
                                   "%s: no .safetensors file in this directory, but %s: %s", c->path, l->names[i],
                                   kOthers[k].what);
        }
    }
    TSR_TRY(name_folder(c, err));
    return tsr_fail(err, TSR_E_FORMAT, "%s: no .safetensors file in this directory", c->path);
}

/* Sorts the directory's files into safetensors, index, config and other files. */
static tsr_status take_files(tsr_checkpoint *c, const tsr_listing *l, const char **index, tsr_err *err)
{
    c->files = tsr_arena_alloc(&c->arena, (l->count + 1) * sizeof *c->files);
    if (c->files == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "%s: out of memory for %zu files", c->path, l->count);
    for (size_t i = 0; i < l->count; i++) {
        const char *const name = l->names[i];
        if (tsr_listing_is_index(name)) {
            if (*index != NULL)
                return tsr_fail(err, TSR_E_FORMAT, "%s: two indexes, %s and %s; exclude one with --ignore-file",
                                c->path, *index, name);
            *index = name;
        } else if (tsr_listing_is_shard(name)) {
            tsr_file *const f = &c->files[c->n_files];
            TSR_TRY(tsr_checkpoint_open_file(c, name, f, err));
            c->n_files++;
            TSR_TRY(unwrap(c, f, err));
            if (c->n_files > 1 && strcmp(f[-1].name, f->name) == 0)
                return tsr_fail(err, TSR_E_FORMAT,
                                "%s: %s and %s are the same file, plain and compressed; exclude one with "
                                "--ignore-file",
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
        return tsr_fail(err, TSR_E_FORMAT, "%s: %zu .safetensors files and no " TSR_INDEX_NAME ", which must list them",
                        c->path, c->n_files);
    for (size_t i = 0; i < l->count; i++) {
        const char *const name = l->names[i];
        if (tsr_listing_is_index(name) || tsr_listing_is_shard(name) || strcmp(name, TSR_CONFIG_NAME) == 0 ||
            strcmp(name, TSR_REPORT_NAME) == 0 || tsr_listing_is_manifest(name))
            continue;
        TSR_TRY(tsr_checkpoint_open_file(c, name, &c->files[c->n_files + c->n_side_files], err));
        c->n_side_files++;
    }
    return TSR_OK;
}

static tsr_status open_directory(tsr_checkpoint *c, const char *const *ignore, size_t n_ignore, bool *fits,
                                 const char *only, tsr_err *err)
{
    tsr_listing l = {.ignore = ignore, .n_ignore = n_ignore, .fits = fits, .only = only};
    const char *index = NULL;
    tsr_status status = tsr_checkpoint_list(c, &l, err);
    if (status == TSR_OK)
        status = take_files(c, &l, &index, err);
    if (status == TSR_OK && only == NULL)
        status = read_config(c, err);
    if (status == TSR_OK)
        status = read_headers(c, err);
    if (status == TSR_OK)
        status = tsr_checkpoint_index_names(c, err);
    if (status == TSR_OK && index != NULL)
        status = tsr_check_shard_index(c, index, err);
    tsr_listing_free(&l);
    return status;
}

static tsr_status open_single(tsr_checkpoint *c, tsr_err *err)
{
    c->files = tsr_arena_alloc(&c->arena, sizeof *c->files);
    if (c->files == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "%s: out of memory", c->path);
    const char *const slash = strrchr(c->path, '/');
    *c->files = (tsr_file){.fd = -1};
    c->n_files = 1;
    TSR_TRY(tsr_checkpoint_open_file(c, slash == NULL ? c->path : slash + 1, c->files, err));
    TSR_TRY(unwrap(c, c->files, err));
    TSR_TRY(read_headers(c, err));
    return tsr_checkpoint_index_names(c, err);
}

/* Returns true if `name` in a folder is a directory without files, as the output of the present job is at first. */
static bool is_empty_directory(int folder, const char *name)
{
    const int fd = openat(folder, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *const dir = fd < 0 ? NULL : fdopendir(fd);
    size_t n = 0;
    while (dir != NULL && n <= 2 && readdir(dir) != NULL)
        n++; /* "." and ".." are two */
    if (dir != NULL)
        closedir(dir);
    else if (fd >= 0)
        close(fd);
    return dir != NULL && n <= 2;
}

/* Writes " (did you mean 'Llama-3.1-8B'?)" to `text` and returns it. Looks for a directory or safetensors file beside
 * `path` with a similar name; returns "" if there is none. */
static const char *name_meant(const char *path, char text[80])
{
    char folder[PATH_MAX];
    const char *const slash = strrchr(path, '/'), *const name = slash == NULL ? path : slash + 1;
    tsr_text words = {0};
    text[0] = '\0';
    snprintf(folder, sizeof folder, "%.*s", slash == NULL ? 1 : (int)(name - path), slash == NULL ? "." : path);
    DIR *const dir = opendir(folder);
    if (dir == NULL)
        return text;
    for (const struct dirent *e; (e = readdir(dir)) != NULL && words.size < MOST_NAMES;) {
        const bool fits = e->d_type != DT_REG || tsr_ends_with(e->d_name, ".safetensors");
        if (fits && e->d_name[0] != '.' && strchr(e->d_name, '|') == NULL && !is_empty_directory(dirfd(dir), e->d_name))
            tsr_text_printf(&words, "%s%s", words.size == 0 ? "" : "|", e->d_name);
    }
    closedir(dir);
    if (words.size > 0 && !words.failed && name[0] != '\0')
        (void)tsr_did_you_mean(name, words.data, text);
    tsr_text_free(&words);
    return text;
}

/* Returns the error for a path that does not exist. */
static tsr_status no_such_path(const char *path, int code, tsr_err *err)
{
    char meant[80];
    if (tsr_address_is_foreign(path))
        return tsr_fail_as(err, TSR_ERROR_ADDRESSES, TSR_E_FORMAT,
                           "%s: remote addresses of this kind are not supported (https://, hf:// and s3:// are); "
                           "download the model first, and name its directory",
                           path);
    return tsr_is_hub_name(path)
               ? tsr_fail(err, TSR_E_FORMAT,
                          "%s: no such directory, and no such model in the cache of the Hugging Face Hub; to read "
                          "it there, name hf://%s",
                          path, path)
               : tsr_fail(err, TSR_E_FORMAT, "%s: %s%s", path, strerror(code), name_meant(path, meant));
}

/* Opens what `path` names, and sets c->path, and c->dir of a directory. */
static tsr_status open_place(tsr_checkpoint *c, const char *path, tsr_err *err)
{
    struct stat st;
    char cached[PATH_MAX];
    if (tsr_is_remote(path)) {
        TSR_TRY(tsr_remote_open(&c->remote, path, err));
        c->path = tsr_remote_address(c->remote);
        c->dir = tsr_remote_is_file(c->remote) ? NULL : c->path;
        return TSR_OK;
    }
    if (stat(path, &st) != 0 && tsr_is_absent(errno) && tsr_hub_cached(path, cached))
        path = cached;
    if (stat(path, &st) != 0)
        return tsr_is_absent(errno) ? no_such_path(path, errno, err)
                                    : tsr_fail_errno(err, "%s: cannot access it", path);
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/')
        length--;
    c->path = tsr_arena_dup(&c->arena, path, length);
    c->dir = S_ISDIR(st.st_mode) ? c->path : NULL;
    return c->path == NULL ? tsr_fail(err, TSR_E_NOMEM, "%s: out of memory", path) : TSR_OK;
}

static tsr_status open_any(tsr_checkpoint **checkpoint, const char *path, const char *const *ignore, size_t n_ignore,
                           const char *only, tsr_err *err)
{
    *checkpoint = NULL;
    tsr_checkpoint *const c = calloc(1, sizeof *c);
    if (c == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "%s: out of memory", path);
    bool *const fits = tsr_arena_alloc(&c->arena, n_ignore + 1);
    c->ignored = fits;
    tsr_status status = fits == NULL ? tsr_fail(err, TSR_E_NOMEM, "%s: out of memory", path) : TSR_OK;
    if (status == TSR_OK)
        status = open_place(c, path, err);
    if (status == TSR_OK)
        status = c->dir != NULL ? open_directory(c, ignore, n_ignore, fits, only, err) : open_single(c, err);
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

static bool is_named(const char *name, const char *const *names)
{
    while (*names != NULL && strcmp(*names, name) != 0)
        names++;
    return *names != NULL;
}

tsr_status tsr_checkpoint_see(tsr_checkpoint *view, const tsr_checkpoint *of, tsr_tensors *tensors, const char *config,
                              size_t config_size, const char *const *without, tsr_err *err)
{
    *view = *of;
    view->tensors = *tensors;
    *tensors = (tsr_tensors){0};
    view->config = config;
    view->config_size = config_size;
    view->config_index = (tsr_json_index){0};
    view->mistyped = NULL;
    view->by_name = NULL;
    view->arena = (tsr_arena){0};
    view->files = calloc(of->n_files + of->n_side_files + 1, sizeof *view->files);
    view->n_side_files = 0;
    tsr_status status = view->files == NULL ? tsr_out_of_memory(err, of->path) : TSR_OK;
    for (size_t i = 0; status == TSR_OK && i < of->n_files + of->n_side_files; i++) {
        if (i < of->n_files || !is_named(of->files[i].name, without))
            view->files[i < of->n_files ? i : of->n_files + view->n_side_files++] = of->files[i];
    }
    if (status == TSR_OK)
        status = tsr_checkpoint_index_names(view, err);
    if (status == TSR_OK && config != NULL)
        status = tsr_json_index_read(&view->config_index, TSR_CONFIG_NAME, config, config_size, err);
    if (status != TSR_OK)
        tsr_checkpoint_unsee(view);
    return status;
}

void tsr_checkpoint_unsee(tsr_checkpoint *view)
{
    tsr_json_index_free(&view->config_index);
    free(view->by_name);
    free(view->files);
    tsr_tensors_free(&view->tensors);
    *view = (tsr_checkpoint){0};
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
    tsr_remote_close(c->remote);
    tsr_json_index_free(&c->config_index);
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
    /* An archive's error names the frame only, so the tensor's name is added here. */
    return status == TSR_OK || in.archive == NULL ? status : tsr_prepend(err, status, "'%s'", tensor->name);
}

tsr_status tsr_checkpoint_unchanged(const tsr_checkpoint *c, size_t file, bool linked, tsr_err *err)
{
    const tsr_file *const f = &c->files[file];
    /* Each reply of a server was compared with the state that the file had when it was opened. */
    return f->remote != NULL ? TSR_OK : tsr_check_stamp(f->fd, f->path, &f->stamp, linked, err);
}

void tsr_checkpoint_prefetch(const tsr_checkpoint *c, const tsr_tensor *tensor, uint64_t offset, size_t size)
{
    const tsr_input in = input_of(&c->files[tensor->file]);
    tsr_input_prefetch(&in, tensor->offset + offset, size);
}

tsr_status tsr_checkpoint_header(const tsr_checkpoint *c, size_t file, tsr_arena *arena, const char **header,
                                 size_t *size, tsr_err *err)
{
    /* The header ends at the first tensor. Tensors are sorted by file and offset. */
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

uint64_t tsr_checkpoint_files_fingerprint(const tsr_checkpoint *c, uint64_t seed)
{
    uint64_t hash = seed;
    for (size_t i = 0; i < c->n_files + c->n_side_files; i++) {
        const tsr_file *const f = &c->files[i];
        const uint64_t facts[] = {f->size, (uint64_t)f->stamp.mtime_ns, f->header_hash};
        hash = XXH3_64bits_withSeed(f->name, strlen(f->name) + 1, hash);
        hash = XXH3_64bits_withSeed(facts, sizeof facts, hash);
    }
    return hash;
}

uint64_t tsr_checkpoint_fingerprint(const tsr_checkpoint *c, uint64_t seed)
{
    const uint64_t files =
        tsr_checkpoint_files_fingerprint(c, XXH3_64bits_withSeed(TSR_VERSION, sizeof TSR_VERSION, seed));
    return c->config == NULL ? files : XXH3_64bits_withSeed(c->config, c->config_size, files);
}

size_t tsr_checkpoint_memory(const tsr_checkpoint *c)
{
    size_t bytes = c->arena.bytes + tsr_json_index_memory(&c->config_index) +
                   c->tensors.capacity * sizeof *c->tensors.items + (c->by_name_mask + 1) * sizeof *c->by_name +
                   tsr_archive_cache_memory(c->cache) + (c->remote == NULL ? 0 : TSR_REMOTE_MEMORY);
    for (size_t i = 0; i < c->n_files; i++)
        bytes += c->files[i].archive == NULL ? 0 : tsr_archive_memory(c->files[i].archive);
    return bytes;
}
