/* Checks where outputs may be written, and writes and removes config.json and the index in the right order. */
#include "convert/records/destination.h"

#include "common/file.h"
#include "common/text.h"
#include "convert/records/manifest_file.h"
#include "formats/blocks/block_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *base_of(const char *name)
{
    const char *const slash = strrchr(name, '/');
    return slash == NULL ? name : slash + 1;
}

static bool same_folder(const char *a, const char *b)
{
    const size_t n = (size_t)(base_of(a) - a);
    return n == (size_t)(base_of(b) - b) && memcmp(a, b, n) == 0;
}

bool tsr_is_config_path(const char *name)
{
    return strcmp(base_of(name), TSR_CONFIG_NAME) == 0;
}

bool tsr_is_index_path(const char *name)
{
    return tsr_ends_with(name, ".safetensors.index.json");
}

const char *tsr_output_path(const char *dst, const char *name, char path[PATH_MAX])
{
    snprintf(path, PATH_MAX, "%s/%s", dst, name);
    return path;
}

const char *tsr_part_path(const char *dst, size_t index, char path[PATH_MAX])
{
    if (index == SIZE_MAX)
        snprintf(path, PATH_MAX, "%s/" TSR_STATE_DIR "/text" TSR_PART_SUFFIX, dst);
    else
        snprintf(path, PATH_MAX, "%s/" TSR_STATE_DIR "/%zu" TSR_PART_SUFFIX, dst, index);
    return path;
}

tsr_status tsr_make_parent(const char *path, tsr_err *err)
{
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%s", path);
    *strrchr(folder, '/') = '\0';
    return tsr_make_dirs(folder, err);
}

/* ---- removing ---- */

void tsr_remove_state_files(const char *dst, const char *suffix)
{
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%s/" TSR_STATE_DIR, dst);
    DIR *const dir = opendir(folder);
    const struct dirent *entry;
    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        if (tsr_ends_with(entry->d_name, suffix))
            (void)unlinkat(dirfd(dir), entry->d_name, 0);
    }
    if (dir != NULL)
        closedir(dir);
}

static tsr_status withdraw(const char *dst, const tsr_names *names, bool (*one_of)(const char *name), tsr_err *err)
{
    char path[PATH_MAX];
    const char *last = NULL; /* the last removed name, whose folder still has to be synced */
    for (size_t i = 0; i < names->count; i++) {
        const char *const name = names->items[i];
        if (!one_of(name))
            continue;
        if (unlink(tsr_output_path(dst, name, path)) == 0) {
            if (last != NULL && !same_folder(last, name))
                TSR_TRY(tsr_sync_parent(tsr_output_path(dst, last, path), err));
            last = name;
        } else if (errno != ENOENT && errno != ENOTDIR) {
            return tsr_fail_errno(err, "%s: cannot remove it; loaders would read it as part of the unfinished model",
                                  path);
        }
    }
    return last == NULL ? TSR_OK : tsr_sync_parent(tsr_output_path(dst, last, path), err);
}

tsr_status tsr_withdraw(const char *dst, const tsr_names *names, tsr_err *err)
{
    TSR_TRY(withdraw(dst, names, tsr_is_config_path, err));
    return withdraw(dst, names, tsr_is_index_path, err);
}

void tsr_remove_empty_folders(const char *dst, const tsr_names *names)
{
    char folder[PATH_MAX], path[PATH_MAX];
    for (size_t i = 0; i < names->count; i++) {
        if (i + 1 < names->count && same_folder(names->items[i], names->items[i + 1]))
            continue;
        snprintf(folder, sizeof folder, "%s", names->items[i]);
        for (char *end = strrchr(folder, '/'); end != NULL; end = strrchr(folder, '/')) {
            *end = '\0';
            if (rmdir(tsr_output_path(dst, folder, path)) != 0 && errno != ENOENT)
                break; /* the folder is not empty */
        }
    }
}

tsr_status tsr_remove_output(const char *dst, tsr_err *err)
{
    DIR *const dir = opendir(dst);
    if (dir == NULL)
        return errno == ENOENT ? TSR_OK : tsr_fail_errno(err, "%s: cannot list the directory", dst);
    tsr_status status = TSR_OK;
    const struct dirent *entry;
    while (status == TSR_OK && (status = tsr_next_entry(dir, dst, &entry, err)) == TSR_OK && entry != NULL) {
        char path[PATH_MAX];
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0 &&
            strcmp(entry->d_name, TSR_STATE_DIR) != 0)
            status = tsr_remove_tree(tsr_output_path(dst, entry->d_name, path), err);
    }
    closedir(dir);
    return status == TSR_OK ? tsr_remove_tree(dst, err) : status;
}

/* ---- strays ---- */

static bool has(const tsr_names *names, const char *name)
{
    for (size_t i = 0; i < names->count; i++) {
        if (strcmp(names->items[i], name) == 0)
            return true;
    }
    return false;
}

/* Looks for files that the plan does not write in the folder of `name`. */
static tsr_status check_folder(const char *dst, const char *name, const tsr_names *planned, const tsr_names *old,
                               tsr_err *err)
{
    char path[PATH_MAX];
    const int folder = (int)(base_of(name) - name);
    snprintf(path, sizeof path, "%s/%.*s", dst, folder, name);
    DIR *const dir = opendir(path);
    if (dir == NULL)
        return errno == ENOENT ? TSR_OK : tsr_fail_errno(err, "%s: cannot list the directory", path);
    tsr_status status = TSR_OK;
    const struct dirent *entry;
    char folder_path[PATH_MAX];
    memcpy(folder_path, path, sizeof path);
    while (status == TSR_OK && (status = tsr_next_entry(dir, folder_path, &entry, err)) == TSR_OK && entry != NULL) {
        const char *const file = entry->d_name;
        const bool weights =
            tsr_ends_with(file, ".safetensors") || tsr_ends_with(file, ".safetensors" TSR_ARCHIVE_SUFFIX);
        const char *const what = weights                                       ? "weights"
                                 : tsr_is_index_path(file)                     ? "an index"
                                 : strcmp(file, TSR_HF_QUANT_CONFIG_NAME) == 0 ? "a configuration"
                                                                               : NULL;
        snprintf(path, sizeof path, "%.*s%s", folder, name, file);
        if (what != NULL && !has(planned, path) && !has(old, path))
            status = tsr_fail_as(err, TSR_ERROR_FOREIGN_FILES, TSR_E_EXISTS,
                                 "%s/%s: %s that this command does not write; loaders would read %s as part of the "
                                 "model; move %s away first",
                                 dst, path, what, weights ? "them" : "it", weights ? "them" : "it");
    }
    closedir(dir);
    return status;
}

/* Does the same in every folder below `dst` that holds one of these names. */
static tsr_status check_folders(const char *dst, const tsr_names *names, const tsr_names *planned, const tsr_names *old,
                                tsr_err *err)
{
    const char *last = "";
    for (size_t i = 0; i < names->count; i++) {
        if (!same_folder(last, names->items[i]))
            TSR_TRY(check_folder(dst, names->items[i], planned, old, err));
        last = names->items[i];
    }
    return TSR_OK;
}

tsr_status tsr_check_strays(const char *dst, const tsr_names *planned, const tsr_names *old, tsr_err *err)
{
    static const tsr_names kNone = {0};
    old = old == NULL ? &kNone : old;
    TSR_TRY(check_folder(dst, "", planned, old, err));
    TSR_TRY(check_folders(dst, planned, planned, old, err));
    /* An earlier output may have had more ranks, so its folders are searched too. */
    return check_folders(dst, old, planned, old, err);
}

/* ---- space ---- */

uint64_t tsr_space_needed(const tsr_plan *plan, const bool *finished)
{
    uint64_t need = 0;
    for (size_t i = 0; i < plan->n_files; i++) /* block statistics are stored in two places */
        need += finished[i] || plan->files[i].appended ? 0 : plan->files[i].bytes + 2 * tsr_plan_block_bytes(plan, i);
    for (size_t i = 0; i < plan->n_texts; i++)
        need += plan->texts[i].size;
    return need;
}

/* Returns the most bytes of appended files that are not finished. */
static uint64_t space_at_most(const tsr_plan *plan, const bool *finished)
{
    uint64_t most = 0;
    for (size_t i = 0; i < plan->n_files; i++)
        most += finished[i] || !plan->files[i].appended ? 0 : plan->files[i].bytes;
    return most;
}

static uint64_t missing_bytes(const char *dst, uint64_t need)
{
    const uint64_t have = tsr_free_bytes(dst);
    return need <= have ? 0 : need - have;
}

/* Returns how many files cannot be created in `dst` for lack of inodes. Each file with block statistics has another one
 * in .tessera, and .tessera has one for all. */
static uint64_t missing_files(const tsr_plan *plan, const char *dst, const bool *finished)
{
    uint64_t need = plan->n_texts + 1 /* the manifest */ + (plan->report != NULL) + (plan->card.write != NULL);
    bool any_blocks = false;
    for (size_t i = 0; i < plan->n_files; i++) {
        const bool blocks = tsr_plan_block_bytes(plan, i) > 0;
        need += finished[i] ? 0 : 1 + (uint64_t)blocks;
        any_blocks = any_blocks || blocks;
    }
    need += any_blocks;
    const uint64_t have = tsr_free_files(dst);
    return need <= have ? 0 : need - have;
}

static tsr_status lacks_bytes(const char *dst, uint64_t missing, tsr_err *err)
{
    return tsr_fail(err, TSR_E_NOSPACE,
                    "%s: disk full: %llu more bytes (%.1f MB) are needed; free the space and repeat the command: "
                    "finished files are kept",
                    dst, U64(missing), (double)missing / 1e6);
}

/* Reports missing space if only an upper bound is known for some files; about `about` bytes are missing. */
static tsr_status lacks_bytes_at_most(const char *dst, uint64_t missing, double about, tsr_err *err)
{
    return tsr_fail(err, TSR_E_NOSPACE,
                    "%s: disk full: about %.1f MB more are needed, %llu bytes at most; free the space and repeat the "
                    "command: finished files are kept",
                    dst, about / 1e6, U64(missing));
}

static tsr_status lacks_files(const char *dst, uint64_t missing, tsr_err *err)
{
    return tsr_fail(err, TSR_E_NOSPACE,
                    "%s: the file system has no inodes left for %llu more files; remove files there, or name a "
                    "directory on another one, and repeat the command: finished files are kept",
                    dst, U64(missing));
}

static bool all_finished(const tsr_plan *plan, const bool *finished)
{
    for (size_t i = 0; i < plan->n_files; i++) {
        if (!finished[i])
            return false;
    }
    return true;
}

tsr_status tsr_check_space(const tsr_plan *plan, const char *dst, const bool *finished, uint64_t promised, tsr_err *err)
{
    const uint64_t bytes = missing_bytes(dst, promised + tsr_space_needed(plan, finished)),
                   files = missing_files(plan, dst, finished);
    if (all_finished(plan, finished))
        return TSR_OK;
    if (bytes > 0)
        return lacks_bytes(dst, bytes, err);
    return files == 0 ? TSR_OK : lacks_files(dst, files, err);
}

tsr_status tsr_explain_no_space(const tsr_plan *plan, const char *dst, const bool *finished, tsr_err *err)
{
    const uint64_t need = tsr_space_needed(plan, finished), most = space_at_most(plan, finished);
    const uint64_t bytes = missing_bytes(dst, need), bound = missing_bytes(dst, need + most),
                   files = missing_files(plan, dst, finished);
    double share = 1;
    if (most > 0 && bound > 0) {
        if (plan->estimate == NULL || plan->estimate(plan, &share, NULL) != TSR_OK)
            share = 1;
        return lacks_bytes_at_most(dst, bound, fmax((double)bound - (1 - share) * (double)most, 1), err);
    }
    if (bytes > 0)
        return lacks_bytes(dst, bytes, err);
    if (files > 0)
        return lacks_files(dst, files, err);
    /* A quota or a limit of the file system: keep the system's message, which names the file. */
    const tsr_err cause = err == NULL ? (tsr_err){0} : *err;
    return tsr_fail_as(err, TSR_ERROR_DISK_FULL, TSR_E_NOSPACE,
                       "%s; free space there, or raise the quota, and repeat the command: finished files are kept",
                       cause.msg);
}

/* ---- texts ---- */

static tsr_status write_text(const char *dst, const tsr_plan_text *text, tsr_err *err)
{
    char path[PATH_MAX], part[PATH_MAX];
    tsr_output_path(dst, text->name, path);
    TSR_TRY(tsr_make_parent(path, err));
    tsr_arena scratch = {0};
    const char *old;
    size_t size;
    const bool same = access(path, F_OK) == 0 &&
                      tsr_read_file(path, text->size, &scratch, &old, &size, NULL) == TSR_OK && size == text->size &&
                      memcmp(old, text->data, size) == 0;
    tsr_arena_free(&scratch);
    return same ? TSR_OK : tsr_replace_file(path, tsr_part_path(dst, SIZE_MAX, part), text->data, text->size, err);
}

static tsr_written written(const tsr_plan_text *text)
{
    return (tsr_written){.name = text->name, .bytes = text->size, .digest = XXH3_128bits(text->data, text->size)};
}

/* Writes a text that was just composed, and frees it. */
static tsr_status write_made(const char *dst, const char *name, tsr_text *made, tsr_written *to, tsr_err *err)
{
    const tsr_plan_text text = {.name = name, .data = made->data, .size = made->size};
    tsr_status status = tsr_text_status(made, err);
    if (status == TSR_OK)
        status = write_text(dst, &text, err);
    if (status == TSR_OK)
        *to = written(&text);
    tsr_text_free(made);
    return status;
}

/* The destination of the manifest: a file to compare with, or one to write. */
typedef struct manifest_file {
    const char *path;
    int fd;
    uint64_t at;
    bool differs;
} manifest_file;

static tsr_status compare_piece(void *to, const char *data, size_t size, tsr_err *err)
{
    manifest_file *const f = to;
    char *const there = f->differs ? NULL : malloc(size);
    if (there == NULL && !f->differs)
        return tsr_out_of_memory(err, "for the manifest");
    f->differs =
        f->differs || tsr_read_at(f->fd, f->path, there, size, f->at, NULL) != TSR_OK || memcmp(there, data, size) != 0;
    f->at += size;
    free(there);
    return TSR_OK;
}

static tsr_status write_piece(void *to, const char *data, size_t size, tsr_err *err)
{
    manifest_file *const f = to;
    TSR_TRY(tsr_write_at(f->fd, f->path, data, size, f->at, err));
    f->at += size;
    return TSR_OK;
}

static tsr_status write_manifest(const tsr_digests *digests, const char *dst, const tsr_step_rows *rows,
                                 const tsr_written *others, size_t n, tsr_err *err)
{
    char path[PATH_MAX], part[PATH_MAX];
    struct stat st;
    manifest_file there = {.path = tsr_output_path(dst, TSR_MANIFEST_NAME, path)};
    there.fd = tsr_open(path, O_RDONLY);
    if (there.fd >= 0) {
        const tsr_status compared = tsr_manifest_compose(digests, rows, others, n, compare_piece, &there, err);
        const bool same = !there.differs && fstat(there.fd, &st) == 0 && (uint64_t)st.st_size == there.at;
        close(there.fd);
        if (compared != TSR_OK || same)
            return compared;
    }
    manifest_file to = {.path = tsr_part_path(dst, SIZE_MAX, part)};
    to.fd = tsr_open(part, O_WRONLY | O_CREAT | O_EXCL);
    if (to.fd < 0)
        return tsr_fail_errno(err, "%s: cannot create", part);
    tsr_status status = tsr_manifest_compose(digests, rows, others, n, write_piece, &to, err);
    if (status == TSR_OK)
        status = tsr_commit_file(to.fd, part, path, err);
    close(to.fd); /* fsync has already reported any failure */
    if (status != TSR_OK)
        unlink(part);
    return status;
}

/* Every config.json, including those of ranks, is written last: a directory with one is a complete model. */
static tsr_status write_all(const tsr_digests *digests, const char *dst, const tsr_step_rows *rows,
                            const tsr_plan_blocks *blocks, tsr_written *others, tsr_err *err)
{
    const tsr_plan *const plan = digests->plan;
    size_t n = 0;
    if (blocks->tensors > 0)
        others[n++] = (tsr_written){.name = TSR_BLOCKS_NAME,
                                    .bytes = blocks->bytes,
                                    .digest = {.high64 = blocks->digest128[0], .low64 = blocks->digest128[1]}};
    tsr_text report = {0}, card = {0};
    if (plan->report != NULL) {
        plan->report(plan, rows->stats, blocks, &report);
        TSR_TRY(write_made(dst, TSR_REPORT_NAME, &report, &others[n++], err));
    }
    if (plan->card.write != NULL) {
        plan->card.write(plan, rows->stats, &card);
        TSR_TRY(write_made(dst, TSR_CARD_NAME, &card, &others[n++], err));
    }
    for (size_t i = 0; i < plan->n_texts; i++) {
        others[n++] = written(&plan->texts[i]);
        if (!tsr_is_config_path(plan->texts[i].name))
            TSR_TRY(write_text(dst, &plan->texts[i], err));
    }
    TSR_TRY(write_manifest(digests, dst, rows, others, n, err));
    for (size_t i = 0; i < plan->n_texts; i++) {
        if (tsr_is_config_path(plan->texts[i].name))
            TSR_TRY(write_text(dst, &plan->texts[i], err));
    }
    return TSR_OK;
}

tsr_status tsr_write_texts(const tsr_digests *digests, const char *dst, const tsr_step_rows *rows,
                           const tsr_plan_blocks *blocks, tsr_err *err)
{
    tsr_written *const others = malloc((digests->plan->n_texts + 3) * sizeof *others);
    const tsr_status status =
        others == NULL ? tsr_out_of_memory(err, "for the texts") : write_all(digests, dst, rows, blocks, others, err);
    free(others);
    return status;
}
