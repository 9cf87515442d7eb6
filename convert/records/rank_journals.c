/* Begins, takes over and removes the journals of ranks. */
#include "convert/records/rank_journals.h"

#include "common/file.h"
#include "convert/records/destination.h"
#include "convert/records/journal_open.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#define PREFIX "journal-rank-"

tsr_status tsr_rank_journal_prepare(tsr_journal *j, const tsr_plan *plan, const char *dst, unsigned rank, tsr_err *err)
{
    char name[64], path[PATH_MAX];
    snprintf(name, sizeof name, TSR_STATE_DIR "/" PREFIX "%u", rank);
    *j = (tsr_journal){.fd = -1};
    return tsr_journal_prepare(j, plan, tsr_output_path(dst, name, path), dst, err);
}

tsr_status tsr_rank_journal_begin(tsr_journal *j, const tsr_plan *plan, const char *dst, const tsr_step_rows *rows,
                                  tsr_err *err)
{
    char folder[PATH_MAX];
    TSR_TRY(tsr_make_dirs(tsr_output_path(dst, TSR_STATE_DIR, folder), err));
    return tsr_journal_rewrite(j, plan, rows, err);
}

/* Calls visit with the path of each journal of a rank. */
static tsr_status for_each(const char *dst, tsr_status (*visit)(void *data, const char *path, tsr_err *err), void *data,
                           tsr_err *err)
{
    char folder[PATH_MAX], name[PATH_MAX], path[PATH_MAX];
    DIR *const dir = opendir(tsr_output_path(dst, TSR_STATE_DIR, folder));
    if (dir == NULL)
        return tsr_fail_errno(err, "%s: cannot list it", folder);
    tsr_status status = TSR_OK;
    const struct dirent *entry;
    while (status == TSR_OK && (status = tsr_next_entry(dir, folder, &entry, err)) == TSR_OK && entry != NULL) {
        if (strncmp(entry->d_name, PREFIX, sizeof PREFIX - 1) != 0 || tsr_ends_with(entry->d_name, TSR_PART_SUFFIX))
            continue;
        snprintf(name, sizeof name, TSR_STATE_DIR "/%s", entry->d_name);
        status = visit(data, tsr_output_path(dst, name, path), err);
    }
    closedir(dir);
    return status;
}

/* ---- taking over ---- */

typedef struct taking {
    tsr_journal *journal;
    const tsr_plan *plan;
    const char *dst;
    bool force;
    tsr_finished found; /* records of the journal that is being read */
    const tsr_step_rows *rows;
    size_t n; /* journals */
} taking;

/* Takes over the records of a journal. A damaged journal, or one of another plan, has none for this plan. */
static void take_records(taking *t, const char *path)
{
    const tsr_plan *const plan = t->plan;
    const tsr_records_of of = {.path = path, .dst = t->dst, .to_start_over = "--force"};
    if (tsr_finished_read(&t->found, plan, &of, NULL) != TSR_OK)
        return;
    for (size_t i = 0; i < plan->n_files; i++) {
        if (t->found.finished[i] && !t->journal->finished[i])
            tsr_journal_take(t->journal, plan, i, &t->found, t->rows);
    }
}

static tsr_status take_journal(void *data, const char *path, tsr_err *err)
{
    taking *const t = data;
    const int fd = tsr_open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return tsr_fail_errno(err, "%s: cannot open", path);
    const bool held = tsr_lock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    close(fd);
    if (held)
        return tsr_fail_as(err, TSR_ERROR_TWO_AT_ONCE, TSR_E_EXISTS, "%s: another process is writing this output",
                           t->dst);
    if (!t->force)
        take_records(t, path);
    t->n++;
    return TSR_OK;
}

tsr_status tsr_rank_journals_take(tsr_journal *j, const tsr_plan *plan, const char *dst, bool force,
                                  const tsr_step_rows *rows, tsr_err *err)
{
    taking t = {.journal = j, .plan = plan, .dst = dst, .force = force, .rows = rows};
    tsr_status status = tsr_finished_begin(&t.found, plan, dst, err);
    if (status == TSR_OK)
        status = for_each(dst, take_journal, &t, err);
    if (status == TSR_OK && t.n > 0 && !j->read_only)
        status = tsr_journal_rewrite(j, plan, rows, err);
    if (status == TSR_OK && t.n > 0 && !j->read_only)
        status = tsr_rank_journals_remove(dst, err);
    tsr_finished_free(&t.found);
    return status;
}

/* ---- removing ---- */

static tsr_status remove_journal(void *data, const char *path, tsr_err *err)
{
    bool *const removed = data;
    if (unlink(path) != 0 && errno != ENOENT)
        return tsr_fail_errno(err, "%s: cannot remove it", path);
    *removed = true;
    return TSR_OK;
}

tsr_status tsr_rank_journals_remove(const char *dst, tsr_err *err)
{
    char folder[PATH_MAX];
    bool removed = false;
    TSR_TRY(for_each(dst, remove_journal, &removed, err));
    return removed ? tsr_sync_dir(tsr_output_path(dst, TSR_STATE_DIR, folder), err) : TSR_OK;
}
