/* Connects to a server, fetches documents, and builds the list of files. */
#include "formats/remote/remote_open.h"

#ifdef TSR_HAVE_CURL
#include "common/grow.h"

#include <string.h>

tsr_status tsr_remote_connect(tsr_remote *remote, tsr_err *err)
{
    char origin[512];
    tsr_url_origin(remote->base, origin, sizeof origin);
    remote->access.origin = tsr_arena_dup(&remote->arena, origin, strlen(origin));
    if (remote->access.origin == NULL)
        return tsr_out_of_memory(err, "for an address");
    return tsr_transfers_begin(&remote->transfers, &remote->access, err);
}

tsr_status tsr_remote_fetch(tsr_remote *remote, const char *url, const char *shown, size_t limit, const char **text,
                            size_t *size, tsr_err *err)
{
    tsr_transfer t = {.kind = TSR_TRANSFER_DOCUMENT, .url = url, .shown = shown, .limit = limit};
    tsr_transfers_add(remote->transfers, &t);
    tsr_status status = tsr_transfers_wait(remote->transfers, &t, err);
    if (status == TSR_OK) {
        *size = t.text.size;
        *text = tsr_arena_dup(&remote->arena, t.text.size == 0 ? "" : t.text.data, t.text.size);
        status = *text == NULL ? tsr_out_of_memory(err, "for a list of files") : TSR_OK;
    }
    tsr_text_free(&t.text);
    return status;
}

/* Rejects names that could leave the folder, or that lists of files cannot hold. */
static tsr_status check_name(const tsr_remote *remote, const char *name, tsr_err *err)
{
    bool fine = *name != '\0' && *name != '/';
    for (const char *p = name; *p != '\0'; p++)
        fine = fine && (unsigned char)*p >= 0x20 && *p != 0x7F && *p != '\\';
    for (const char *p = name; p != NULL && fine; p = strchr(p, '/')) {
        p += *p == '/';
        const size_t n = strcspn(p, "/");
        fine = n > 0 && !(n == 1 && *p == '.') && !(n == 2 && memcmp(p, "..", 2) == 0);
    }
    return fine ? TSR_OK
                : tsr_fail(err, TSR_E_FORMAT, "%s: the server lists a file with an invalid name, '%s'", remote->address,
                           name);
}

tsr_status tsr_remote_add(tsr_remote *remote, const char *name, uint64_t size, const char *etag, const char *modified,
                          tsr_err *err)
{
    tsr_arena *const arena = &remote->arena;
    tsr_text url = {0};
    TSR_TRY(check_name(remote, name, err));
    tsr_text_append(&url, remote->base, strlen(remote->base));
    if (!remote->is_file)
        tsr_url_escape(&url, name, "/");
    if (url.failed || !tsr_grow(&remote->files, remote->n_files, &remote->files_capacity, sizeof *remote->files)) {
        tsr_text_free(&url);
        return tsr_out_of_memory(err, "for a list of files");
    }
    remote->files[remote->n_files++] = (tsr_remote_file){
        .name = tsr_arena_dup(arena, name, strlen(name)),
        .path = remote->is_file ? remote->address : tsr_arena_printf(arena, "%s/%s", remote->address, name),
        .size = size,
        .etag = etag == NULL ? NULL : tsr_arena_dup(arena, etag, strlen(etag)),
        .modified = modified == NULL ? NULL : tsr_arena_dup(arena, modified, strlen(modified)),
        .remote = remote,
        .url = tsr_arena_dup(arena, url.data, url.size),
        .commit = remote->commit,
    };
    tsr_text_free(&url);
    return tsr_arena_status(arena, TSR_OK, err);
}
#endif
