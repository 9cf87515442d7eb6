/* Opens an address, and keeps its list of files. */
#include "formats/remote/remote.h"

#ifdef TSR_HAVE_CURL
#include "common/grow.h"
#include "formats/remote/header_cache.h"
#include "formats/remote/remote_open.h"
#include "formats/remote/request.h"

#include <stdlib.h>
#include <string.h>

tsr_status tsr_remote_prepare(tsr_err *err)
{
    tsr_curl curl;
    TSR_TRY(tsr_curl_load(&curl, err));
    (void)curl.global_init(CURL_GLOBAL_DEFAULT);
    return TSR_OK;
}

static int by_name(const void *a, const void *b)
{
    const tsr_remote_file *const x = a, *const y = b;
    return strcmp(x->name, y->name);
}

static tsr_status check_list(tsr_remote *remote, tsr_err *err)
{
    if (remote->n_files > 1)
        qsort(remote->files, remote->n_files, sizeof *remote->files, by_name);
    for (size_t i = 0; i < remote->n_files; i++) {
        const tsr_remote_file *const f = &remote->files[i];
        if (i > 0 && strcmp(f->name, f[-1].name) == 0)
            return tsr_fail(err, TSR_E_FORMAT, "%s: the server lists this file twice", f->path);
        if (f->etag == NULL && f->modified == NULL && f->size > 0)
            return tsr_fail(err, TSR_E_UNSUPPORTED,
                            "%s: the server sends neither ETag nor Last-Modified, so that a change of the file would "
                            "not be noticed; download the model first",
                            f->path);
    }
    return TSR_OK;
}

static tsr_status open_address(tsr_remote **remote, const char *address, bool is_output, tsr_err *err)
{
    *remote = NULL;
    tsr_remote *const r = calloc(1, sizeof *r);
    if (r == NULL)
        return tsr_out_of_memory(err, "for an address");
    r->is_output = is_output;
    pthread_mutex_init(&r->lock, NULL);
    r->extents = calloc(TSR_EXTENTS, sizeof *r->extents);
    tsr_status status = r->extents == NULL ? tsr_out_of_memory(err, "for an address") : TSR_OK;
    const tsr_address_kind kind = tsr_address_kind_of(address);
    if (status == TSR_OK)
        status = kind == TSR_ADDRESS_HUB  ? tsr_remote_list_hub(r, address, err)
                 : kind == TSR_ADDRESS_S3 ? tsr_remote_list_s3(r, address, err)
                                          : tsr_remote_list_url(r, address, err);
    if (status == TSR_OK)
        status = check_list(r, err);
    if (status != TSR_OK)
        tsr_remote_close(r);
    else
        *remote = r;
    return status;
}

tsr_status tsr_remote_open(tsr_remote **remote, const char *address, tsr_err *err)
{
    return open_address(remote, address, false, err);
}

tsr_status tsr_remote_open_output(tsr_remote **remote, const char *address, tsr_err *err)
{
    return open_address(remote, address, true, err);
}

void tsr_remote_close(tsr_remote *remote)
{
    if (remote == NULL)
        return;
    tsr_transfers_end(remote->transfers);
    if (atomic_load(&remote->kept_headers))
        tsr_header_cache_trim();
    for (size_t i = 0; remote->extents != NULL && i < TSR_EXTENTS; i++)
        free(remote->extents[i].data);
    for (size_t i = 0; i < remote->n_files; i++) {
        free(remote->files[i].target);
        free(remote->files[i].target_etag);
    }
    free(remote->extents);
    free(remote->files);
    pthread_mutex_destroy(&remote->lock);
    tsr_arena_free(&remote->arena);
    free(remote);
}

const char *tsr_remote_address(const tsr_remote *remote)
{
    return remote->address;
}

const char *tsr_remote_commit(const tsr_remote *remote)
{
    return remote->commit;
}

bool tsr_remote_is_file(const tsr_remote *remote)
{
    return remote->is_file;
}

const tsr_remote_file *tsr_remote_files(const tsr_remote *remote, size_t *count)
{
    *count = remote->n_files;
    return remote->files;
}

const tsr_remote_file *tsr_remote_find(const tsr_remote *remote, const char *name)
{
    const tsr_remote_file key = {.name = name};
    return remote->n_files == 0 ? NULL : bsearch(&key, remote->files, remote->n_files, sizeof *remote->files, by_name);
}
#endif
