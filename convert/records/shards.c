/* Divides files among shards, and finds, locks and removes the journals of shards. */
#include "convert/records/shards.h"

#include "common/file.h"
#include "convert/records/destination.h"
#include "convert/records/journal_records.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

static const char kToStartOver[] = "another directory";

/* ---- dividing files ---- */

typedef struct piece {
    uint64_t work; /* bytes to read and to write */
    size_t file;
} piece;

static int by_work(const void *a, const void *b)
{
    const piece *const x = a, *const y = b;
    if (x->work != y->work)
        return x->work < y->work ? 1 : -1;
    return x->file < y->file ? -1 : x->file > y->file;
}

static uint64_t bytes_in(const tsr_plan *plan, size_t file)
{
    const tsr_out_file *const f = &plan->files[file];
    uint64_t bytes = 0;
    for (size_t s = f->first_step; s < f->first_step + f->n_steps; s++)
        bytes += tsr_step_input(&plan->steps[s]);
    return bytes;
}

tsr_status tsr_shards_divide(const tsr_plan *plan, unsigned count, uint32_t *owner, tsr_err *err)
{
    piece *const pieces = calloc(plan->n_files + 1, sizeof *pieces);
    uint64_t *const load = calloc(count, sizeof *load);
    const bool ok = pieces != NULL && load != NULL;
    for (size_t i = 0; ok && i < plan->n_files; i++)
        pieces[i] = (piece){.work = bytes_in(plan, i) + plan->files[i].bytes, .file = i};
    if (ok)
        qsort(pieces, plan->n_files, sizeof *pieces, by_work);
    for (size_t i = 0; ok && i < plan->n_files; i++) {
        unsigned least = 0;
        for (unsigned k = 1; k < count; k++)
            least = load[k] < load[least] ? k : least;
        owner[pieces[i].file] = least;
        load[least] += pieces[i].work;
    }
    free(pieces);
    free(load);
    return ok ? TSR_OK : tsr_out_of_memory(err, "for the shards");
}

tsr_shard_size tsr_shard_size_of(const tsr_plan *plan, const uint32_t *owner, uint32_t shard)
{
    tsr_shard_size size = {0};
    for (size_t i = 0; i < plan->n_files; i++) {
        if (owner[i] != shard)
            continue;
        size.files++;
        size.bytes_in += bytes_in(plan, i);
        size.bytes_out += plan->files[i].bytes;
    }
    return size;
}

/* ---- their journals ---- */

const char *tsr_shard_journal(const char *dst, unsigned index, unsigned count, char path[PATH_MAX])
{
    snprintf(path, PATH_MAX, "%s/" TSR_STATE_DIR "/journal-%u-of-%u", dst, index, count);
    return path;
}

/* Returns true if a name in .tessera is that of a shard's journal. */
static bool is_journal(const char *name, unsigned *index, unsigned *count)
{
    char again[64];
    if (sscanf(name, "journal-%u-of-%u", index, count) != 2 || *index >= *count || *count > TSR_MAX_SHARDS)
        return false;
    snprintf(again, sizeof again, "journal-%u-of-%u", *index, *count);
    return strcmp(name, again) == 0;
}

static int by_number(const void *a, const void *b)
{
    const unsigned x = *(const unsigned *)a, y = *(const unsigned *)b;
    return x < y ? -1 : x > y;
}

tsr_status tsr_shards_find(const char *dst, tsr_arena *arena, tsr_shards *found, tsr_err *err)
{
    char folder[PATH_MAX];
    *found = (tsr_shards){0};
    DIR *const dir = opendir(tsr_output_path(dst, TSR_STATE_DIR, folder));
    if (dir == NULL)
        return errno == ENOENT || errno == ENOTDIR ? TSR_OK : tsr_fail_errno(err, "%s: cannot list it", folder);
    tsr_status status = TSR_OK;
    const struct dirent *entry;
    while (status == TSR_OK && (status = tsr_next_entry(dir, folder, &entry, err)) == TSR_OK && entry != NULL) {
        unsigned index, count;
        if (!is_journal(entry->d_name, &index, &count))
            continue;
        if (found->present == NULL)
            found->present = tsr_arena_alloc(arena, count * sizeof *found->present);
        if (found->present == NULL)
            status = tsr_out_of_memory(err, "for the shards");
        else if (found->count != 0 && (found->count != count || found->n_present == count))
            status =
                tsr_fail(err, TSR_E_EXISTS,
                         "%s: contains parts of a run with %u shards and of one with %u; remove the directory, or "
                         "write into another one",
                         dst, found->count < count ? found->count : count, found->count < count ? count : found->count);
        else
            found->present[found->n_present++] = index;
        found->count = count;
    }
    closedir(dir);
    if (found->n_present > 0)
        qsort(found->present, found->n_present, sizeof *found->present, by_number);
    return status;
}

tsr_status tsr_shard_words(const char *dst, unsigned index, unsigned count, tsr_arena *arena, const char *const **words,
                           size_t *n_words, tsr_err *err)
{
    char path[PATH_MAX];
    const char *text;
    size_t size;
    tsr_names names;
    TSR_TRY(tsr_read_file(tsr_shard_journal(dst, index, count, path), TSR_MAX_JOURNAL_BYTES, arena, &text, &size, err));
    TSR_TRY(tsr_records_list(text, size, TSR_WORD_RECORD, arena, &names, err));
    *words = names.items;
    *n_words = names.count;
    return TSR_OK;
}

static tsr_status check_neighbour(const tsr_plan *plan, const char *dst, unsigned index, unsigned count, tsr_err *err)
{
    tsr_arena scratch = {0};
    char path[PATH_MAX];
    const char *text;
    size_t size, good;
    const tsr_records_of of = {
        .path = tsr_shard_journal(dst, index, count, path), .dst = dst, .to_start_over = kToStartOver};
    tsr_status status = tsr_read_file(path, TSR_MAX_JOURNAL_BYTES, &scratch, &text, &size, err);
    if (status == TSR_OK)
        status = tsr_records_read(text, size, plan, &of, NULL, &good, err);
    else if (access(path, F_OK) != 0 && errno == ENOENT)
        status = TSR_OK; /* the other shard was rejected and has withdrawn */
    tsr_arena_free(&scratch);
    return status;
}

/* Returns true if another process holds the journal of the directory itself. */
static bool is_held(const char *dst)
{
    char path[PATH_MAX];
    const int fd = tsr_open(tsr_output_path(dst, TSR_STATE_DIR "/journal", path), O_RDONLY | O_NONBLOCK);
    const bool held = fd >= 0 && tsr_lock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    if (fd >= 0)
        close(fd);
    return held;
}

tsr_status tsr_shard_admit(const tsr_plan *plan, const char *dst, const tsr_shard *shard, tsr_err *err)
{
    tsr_arena scratch = {0};
    tsr_shards found;
    tsr_status status = tsr_shards_find(dst, &scratch, &found, err);
    if (status == TSR_OK && found.n_present > 0 && found.count != shard->count)
        status = tsr_fail(err, TSR_E_EXISTS,
                          "%s: begun as %u shards, but --shard is %u/%u; use --shard I/%u, or start over with %s", dst,
                          found.count, shard->index, shard->count, found.count, kToStartOver);
    for (size_t i = 0; status == TSR_OK && i < found.n_present; i++) {
        if (found.present[i] != shard->index)
            status = check_neighbour(plan, dst, found.present[i], found.count, err);
    }
    if (status == TSR_OK && is_held(dst))
        status =
            tsr_fail_as(err, TSR_ERROR_TWO_AT_ONCE, TSR_E_EXISTS, "%s: another process is writing this output", dst);
    tsr_arena_free(&scratch);
    return status;
}

void tsr_shard_remove_parts(const tsr_plan *plan, const char *dst, const tsr_shard *shard, const uint32_t *owner)
{
    char path[PATH_MAX];
    for (size_t i = 0; i < plan->n_files; i++) {
        if (owner[i] == shard->index)
            unlink(tsr_part_path(dst, i, path));
    }
    tsr_shard_journal(dst, shard->index, shard->count, path);
    if (strlen(path) + sizeof TSR_PART_SUFFIX <= sizeof path)
        unlink(strcat(path, TSR_PART_SUFFIX));
}

tsr_status tsr_shards_lock(const char *dst, const tsr_shards *found, int *fds, tsr_err *err)
{
    for (size_t i = 0; i < found->n_present; i++) {
        char path[PATH_MAX];
        fds[i] =
            tsr_open(tsr_shard_journal(dst, found->present[i], found->count, path), O_RDWR | O_NOFOLLOW | O_NONBLOCK);
        if (fds[i] < 0 && errno != ENOENT)
            return tsr_fail_errno(err, "%s: cannot open", path);
        if (fds[i] >= 0 && tsr_lock(fds[i], LOCK_EX | LOCK_NB) != 0)
            return errno == EWOULDBLOCK ? tsr_fail(err, TSR_E_NOTHING, "%s: shard %u/%u is still running; wait for it",
                                                   dst, found->present[i], found->count)
                                        : tsr_fail_errno(err, "%s: cannot lock it", path);
    }
    return TSR_OK;
}

tsr_status tsr_shards_begun(const char *path, bool *begun, tsr_err *err)
{
    tsr_arena scratch = {0};
    const char *text;
    size_t size;
    *begun = false;
    TSR_TRY(tsr_exists(path, begun, err));
    if (!*begun)
        return TSR_OK;
    const tsr_status status = tsr_read_file(path, TSR_MAX_JOURNAL_BYTES, &scratch, &text, &size, err);
    *begun = status == TSR_OK && tsr_records_begun(text, size);
    tsr_arena_free(&scratch);
    return status == TSR_E_FORMAT ? TSR_OK : status; /* an invalid journal has no records */
}

tsr_status tsr_shards_forget(const char *dst, const tsr_shards *found, tsr_err *err)
{
    char path[PATH_MAX];
    for (size_t i = 0; i < found->n_present; i++) {
        if (unlink(tsr_shard_journal(dst, found->present[i], found->count, path)) != 0 && errno != ENOENT)
            return tsr_fail_errno(err, "%s: cannot remove it", path);
    }
    return found->n_present == 0 ? TSR_OK : tsr_sync_parent(path, err);
}

tsr_status tsr_shards_check(const tsr_plan *plan, const char *dst, const tsr_shard *shard, const uint32_t *owner,
                            const bool *finished, tsr_err *err)
{
    tsr_text list = {0};
    unsigned lacking = 0;
    for (size_t i = 0; i < plan->n_files; i++)
        shard->lacking[owner[i]] = shard->lacking[owner[i]] || !finished[i];
    for (unsigned k = 0; k < shard->count; k++) {
        lacking += shard->lacking[k];
        if (shard->lacking[k] && lacking <= 20)
            tsr_text_printf(&list, "%s%u", lacking == 1 ? "" : ", ", k);
    }
    if (lacking == 0)
        return TSR_OK;
    const tsr_status status = tsr_fail(err, TSR_E_NOTHING,
                                       "%s: not complete: shard%s %s%s of %u missing or unfinished: run %s again, then "
                                       "'tessera finish'",
                                       dst, lacking == 1 ? "" : "s", list.failed ? "?" : list.data,
                                       lacking > 20 ? ", ..." : "", shard->count, lacking == 1 ? "it" : "them");
    tsr_text_free(&list);
    return status;
}
