/* Finds which objects of an output are there, and rejects those of other programs. */
#include "convert/uploads/uploads_state.h"

#include "common/file.h"
#include "formats/checkpoint/checkpoint.h"
#include "formats/remote/reply.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define VERSION "tessera uploads 1\n"

/* ---- the head ---- */

static const char *head_path(const char *dst, char path[PATH_MAX])
{
    snprintf(path, PATH_MAX, "%s/" TSR_STATE_DIR "/uploads", dst);
    return path;
}

tsr_status tsr_uploads_read_head(const char *dst, tsr_arena *arena, const char **address, bool *complete, tsr_err *err)
{
    enum { LARGEST = 16 << 10 };
    static const char kAddress[] = VERSION "address ", kComplete[] = "complete\n";
    char path[PATH_MAX];
    const char *text;
    size_t size;
    bool there;
    *address = NULL;
    *complete = false;
    TSR_TRY(tsr_exists(head_path(dst, path), &there, err));
    if (!there)
        return TSR_OK;
    TSR_TRY(tsr_read_file(path, LARGEST, arena, &text, &size, err));
    const char *const begin = text + strlen(kAddress), *const end =
                                                           size < strlen(kAddress) ? NULL : strchr(begin, '\n');
    if (end == NULL || strncmp(text, kAddress, strlen(kAddress)) != 0 ||
        (end[1] != '\0' && strcmp(end + 1, kComplete) != 0))
        return tsr_fail(err, TSR_E_FORMAT, "%s: damaged; remove the spool, and start over with --force", path);
    *complete = end[1] != '\0';
    *address = tsr_arena_dup(arena, begin, (size_t)(end - begin));
    return tsr_arena_status(arena, TSR_OK, err);
}

tsr_status tsr_uploads_write_head(const tsr_uploads *u, bool complete, tsr_err *err)
{
    char path[PATH_MAX];
    tsr_text t = {0};
    tsr_text_printf(&t, VERSION "address %s\n%s", u->address, complete ? "complete\n" : "");
    tsr_status status = tsr_text_status(&t, err);
    if (status == TSR_OK)
        status = tsr_write_file(head_path(u->dst, path), t.data, t.size, err);
    tsr_text_free(&t);
    return status;
}

tsr_status tsr_uploads_refuse_spool(const char *dst, tsr_err *err)
{
    tsr_arena scratch = {0};
    const char *address;
    bool complete;
    tsr_status status = tsr_uploads_read_head(dst, &scratch, &address, &complete, err);
    if (status == TSR_OK && address != NULL)
        status =
            tsr_fail(err, TSR_E_EXISTS,
                     "%s: the spool of %s, without the files that were sent; repeat the command with -o %s --spool "
                     "%s, or name another directory",
                     dst, address, address, dst);
    tsr_arena_free(&scratch);
    return status;
}

void tsr_uploads_settle(const tsr_plan *plan, bool *settled)
{
    bool *const kept = calloc(plan->n_files + 1, sizeof *kept);
    const size_t most = tsr_plan_sequences(plan) + TSR_FILES_IN_SPOOL;
    for (size_t k = 0; kept != NULL && k < most; k++) {
        size_t found = plan->n_files; /* none */
        for (size_t i = 0; i < plan->n_files; i++) {
            const bool larger = found == plan->n_files || plan->files[i].bytes > plan->files[found].bytes;
            found = !settled[i] && !kept[i] && larger ? i : found;
        }
        kept[found] = true;
    }
    for (size_t i = 0; kept != NULL && i < plan->n_files; i++)
        settled[i] = settled[i] || !kept[i];
    free(kept);
}

/* ---- objects of other programs ---- */

static size_t folder_size(const char *name)
{
    const char *const slash = strrchr(name, '/');
    return slash == NULL ? 0 : (size_t)(slash + 1 - name);
}

/* Rejects weights and indexes beside planned names, because loaders would take them for part of the model. */
static tsr_status check_strays(const tsr_uploads *u, const tsr_names *planned, tsr_err *err)
{
    size_t n;
    const tsr_remote_file *const there = tsr_remote_files(tsr_objects_there(u->objects), &n);
    for (size_t i = 0; i < n; i++) {
        const char *const name = there[i].name;
        const size_t folder = folder_size(name);
        const bool weights = tsr_ends_with(name, ".safetensors") || tsr_ends_with(name, ".safetensors.zst");
        bool beside = folder == 0, own = false;
        for (size_t k = 0; k < planned->count && (weights || tsr_is_index_path(name)); k++) {
            const char *const other = planned->items[k];
            beside = beside || (folder_size(other) == folder && memcmp(other, name, folder) == 0);
            own = own || strcmp(other, name) == 0;
        }
        if ((weights || tsr_is_index_path(name)) && beside && !own)
            return tsr_fail_as(err, TSR_ERROR_FOREIGN_FILES, TSR_E_EXISTS,
                               "%s: %s that this command does not write; loaders would read it as part of the model; "
                               "move it away first",
                               there[i].path, weights ? "weights" : "an index");
    }
    return TSR_OK;
}

/* Checks that the spool and the address belong together, or that both are new, and begins the spool. */
static tsr_status check_head(const tsr_uploads *u, bool any_finished, bool force, tsr_err *err)
{
    tsr_arena scratch = {0};
    const char *address;
    size_t n;
    bool complete;
    const tsr_remote_file *const there = tsr_remote_files(tsr_objects_there(u->objects), &n);
    tsr_status status = tsr_uploads_read_head(u->dst, &scratch, &address, &complete, force ? NULL : err);
    if (force && status != TSR_OK) {
        status = TSR_OK;
        address = NULL;
    }
    if (status == TSR_OK && address == NULL && any_finished)
        status = tsr_fail(err, TSR_E_EXISTS, "%s: a local output, not the spool of %s; name another --spool", u->dst,
                          u->address);
    else if (status == TSR_OK && address == NULL && n > 0 && !force)
        status =
            tsr_fail(err, TSR_E_EXISTS,
                     "%s: objects exist there (%s), and %s has no record of them; name another prefix or the right "
                     "--spool, or overwrite them with --force",
                     u->address, there[0].name, u->dst);
    else if (status == TSR_OK && address != NULL && strcmp(address, u->address) != 0 && !force)
        status = tsr_fail(err, TSR_E_MISMATCH, "%s: the spool of %s, not of %s; name another --spool", u->dst, address,
                          u->address);
    if (status == TSR_OK && (address == NULL || strcmp(address, u->address) != 0))
        status = tsr_uploads_write_head(u, false, err);
    tsr_arena_free(&scratch);
    return status;
}

/* ---- objects of this output ---- */

bool tsr_uploads_has(const tsr_uploads *u, const tsr_sent *sent)
{
    const tsr_remote_file *const there = tsr_remote_find(tsr_objects_there(u->objects), sent->name);
    return there != NULL && there->size == sent->bytes && there->etag != NULL &&
           tsr_etag_is_same(there->etag, sent->etag);
}

/* Finds a file that is an object. The local file may still exist, after a kill before it was removed. */
static tsr_status find_file(tsr_uploads *u, size_t file, uint64_t digest, tsr_digests *digests, bool *found,
                            tsr_err *err)
{
    const char *const name = u->plan->files[file].name;
    char path[PATH_MAX];
    tsr_sent sent;
    tsr_digest all = {0};
    TSR_TRY(tsr_sent_read(u->dst, file, &sent, digests, found, err));
    if (!*found)
        return TSR_OK;
    TSR_TRY(tsr_digests_file(digests, file, &all, err));
    *found = strcmp(sent.name, name) == 0 && sent.digest == digest && all.low64 == digest && tsr_uploads_has(u, &sent);
    u->summary.kept += *found;
    if (!*found)
        tsr_digests_clear(digests, file);
    return *found ? tsr_remove_file(tsr_output_path(u->dst, name, path), err) : TSR_OK;
}

tsr_status tsr_uploads_find(tsr_uploads *u, const tsr_journal *journal, bool force, tsr_digests *digests, bool *sent,
                            tsr_err *err)
{
    tsr_arena scratch = {0};
    tsr_names names;
    bool any = false;
    for (size_t i = 0; i < u->plan->n_files; i++)
        any = any || journal->finished[i];
    TSR_TRY(check_head(u, any, force, err));
    tsr_status status = tsr_plan_names(u->plan, &scratch, &names, err);
    if (status == TSR_OK)
        status = check_strays(u, &names, err);
    tsr_arena_free(&scratch);
    for (size_t i = 0; i < u->plan->n_files && status == TSR_OK; i++) {
        if (journal->finished[i])
            status = find_file(u, i, journal->digests[i], digests, &sent[i], err);
    }
    return status;
}

/* Removes the texts of one kind that the store has. */
static tsr_status withdraw(tsr_uploads *u, bool (*one_of)(const char *name), tsr_err *err)
{
    for (size_t i = 0; i < u->plan->n_texts; i++) {
        const char *const name = u->plan->texts[i].name;
        if (one_of(name) && tsr_remote_find(tsr_objects_there(u->objects), name) != NULL)
            TSR_TRY(tsr_objects_remove(u->objects, name, err));
    }
    return TSR_OK;
}

tsr_status tsr_uploads_withdraw(tsr_uploads *u, tsr_err *err)
{
    u->withdrawn = true;
    TSR_TRY(withdraw(u, tsr_is_config_path, err));
    TSR_TRY(withdraw(u, tsr_is_index_path, err));
    return tsr_uploads_write_head(u, false, err);
}
