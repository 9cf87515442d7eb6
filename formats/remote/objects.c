/* Opens a prefix of a bucket for writing; writes, checks and removes objects. */
#include "formats/remote/objects.h"

#ifdef TSR_HAVE_CURL
#include "common/file.h"
#include "common/parallel/threads.h"
#include "common/sha256.h"
#include "formats/remote/objects_open.h"

#include <stdlib.h>
#include <string.h>

enum { LARGEST_ANSWER = 1 << 20 };

/* ---- requests ---- */

tsr_status tsr_object_request_begin(tsr_object_request *q, const tsr_objects *o, const char *name, const char *method,
                                    const char *query, tsr_err *err)
{
    *q = (tsr_object_request){.t = {.kind = TSR_TRANSFER_SEND, .method = method, .limit = LARGEST_ANSWER}};
    tsr_text_append(&q->url, o->remote->base, strlen(o->remote->base));
    tsr_url_escape(&q->url, name, "/");
    tsr_text_printf(&q->url, "%s%s", *query == '\0' ? "" : "?", query);
    tsr_text_printf(&q->shown, "%s/%s", o->remote->address, name);
    q->t.url = q->url.data;
    q->t.shown = q->shown.data;
    TSR_TRY(tsr_text_status(&q->url, err));
    return tsr_text_status(&q->shown, err);
}

void tsr_object_request_send(tsr_object_request *q, char *data, size_t size)
{
    q->t.data = data;
    q->t.size = size;
    q->t.sha256 = tsr_sha256_text(data, size, q->sha256);
}

void tsr_object_request_add(tsr_objects *o, tsr_object_request *q)
{
    if (!o->ended)
        tsr_transfers_add(o->remote->transfers, &q->t);
}

tsr_status tsr_object_request_wait(tsr_objects *o, tsr_object_request *q, tsr_err *err)
{
    while (!o->ended && !tsr_transfers_wait_a_while(o->remote->transfers, &q->t)) {
        if (!tsr_is_cancelled(o->cancel))
            continue;
        tsr_transfers_end(o->remote->transfers);
        o->remote->transfers = NULL;
        o->ended = true;
    }
    if (o->ended)
        return tsr_fail(err, TSR_E_CANCELLED, "interrupted");
    return q->t.status == TSR_OK ? TSR_OK : tsr_fail_with(err, q->t.status, &q->t.err);
}

void tsr_object_request_free(tsr_object_request *q)
{
    tsr_text_free(&q->t.text);
    tsr_text_free(&q->url);
    tsr_text_free(&q->shown);
}

tsr_status tsr_etag_take(char to[TSR_ETAG_TEXT], const char *etag, const char *shown, tsr_err *err)
{
    const size_t n = etag == NULL ? 0 : strlen(etag);
    bool plain = n > 0 && n < TSR_ETAG_TEXT - 1;
    for (size_t i = 0; plain && i < n; i++)
        plain = etag[i] > ' ' && etag[i] < 0x7F && strchr("<>&", etag[i]) == NULL;
    if (!plain)
        return tsr_fail(err, TSR_E_FORMAT, "%s: the store returned no valid ETag", shown);
    memcpy(to, etag, n + 1);
    return TSR_OK;
}

static tsr_status carry_out(tsr_objects *o, tsr_object_request *q, tsr_err *err)
{
    tsr_object_request_add(o, q);
    return tsr_object_request_wait(o, q, err);
}

/* ---- the address ---- */

tsr_status tsr_objects_open(tsr_objects **objects, const char *address, const atomic_bool *cancel, tsr_err *err)
{
    *objects = NULL;
    tsr_objects *const o = calloc(1, sizeof *o);
    if (o == NULL)
        return tsr_out_of_memory(err, "for an address");
    o->cancel = cancel;
    o->memory = malloc(TSR_OBJECTS_MEMORY);
    tsr_status status = o->memory == NULL ? tsr_out_of_memory(err, "for an address") : TSR_OK;
    if (status == TSR_OK && tsr_address_kind_of(address) != TSR_ADDRESS_S3)
        status =
            tsr_fail(err, TSR_E_USAGE, "%s: outputs are written to directories and to s3://BUCKET/PREFIX", address);
    if (status == TSR_OK)
        status = tsr_remote_open_output(&o->remote, address, err);
    if (status == TSR_OK && o->remote->is_file)
        status = tsr_fail(err, TSR_E_USAGE, "%s: an output is a prefix, s3://BUCKET/PREFIX, not a file", address);
    if (status == TSR_OK && o->remote->access.user == NULL)
        status = tsr_fail(err, TSR_E_USAGE,
                          "%s: writing needs credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or "
                          "AWS_PROFILE",
                          address);
    if (status != TSR_OK)
        tsr_objects_close(o);
    else
        *objects = o;
    return status;
}

void tsr_objects_close(tsr_objects *o)
{
    if (o == NULL)
        return;
    tsr_remote_close(o->remote);
    free(o->memory);
    free(o);
}

const tsr_remote *tsr_objects_there(const tsr_objects *o)
{
    return o->remote;
}

uint64_t tsr_objects_sent(const tsr_objects *o)
{
    return atomic_load(&o->sent);
}

/* ---- objects ---- */

tsr_status tsr_object_put_whole(tsr_objects *o, const tsr_object *object, char etag[TSR_ETAG_TEXT], tsr_err *err)
{
    tsr_object_request q;
    tsr_status status = tsr_object_request_begin(&q, o, object->name, "PUT", "", err);
    if (status == TSR_OK)
        status = tsr_read_at(object->fd, object->path, o->memory, object->size, 0, err);
    tsr_object_request_send(&q, o->memory, object->size);
    if (status == TSR_OK)
        status = carry_out(o, &q, err);
    if (status == TSR_OK)
        status = tsr_etag_take(etag, q.t.reply.etag, q.t.shown, err);
    if (status == TSR_OK)
        atomic_fetch_add(&o->sent, object->size);
    tsr_object_request_free(&q);
    return status;
}

tsr_status tsr_object_check(tsr_objects *o, const tsr_object *object, const char *etag, tsr_err *err)
{
    tsr_object_request q;
    tsr_status status = tsr_object_request_begin(&q, o, object->name, "GET", "", err);
    q.t.kind = TSR_TRANSFER_PROBE;
    if (status == TSR_OK)
        status = carry_out(o, &q, err);
    const tsr_reply *const r = &q.t.reply;
    const uint64_t size = r->ranged || r->code == 416 ? r->total : r->length;
    const bool same_etag = tsr_etag_is_same(r->etag, etag) || (r->code == 416 && *r->etag == '\0');
    if (status == TSR_OK && (size != object->size || !same_etag))
        status = tsr_fail(err, TSR_E_IO,
                          "%s: written with %llu bytes and ETag %s, but the store has %llu bytes and ETag %s; is "
                          "another program writing there?",
                          q.t.shown, U64(object->size), etag, U64(size), *r->etag == '\0' ? "(none)" : r->etag);
    tsr_object_request_free(&q);
    return status;
}

/* Deletes an object, or gives up an upload. */
static tsr_status send_delete(tsr_objects *o, const char *name, const char *query, tsr_err *err)
{
    tsr_object_request q;
    tsr_status status = tsr_object_request_begin(&q, o, name, "DELETE", query, err);
    if (status == TSR_OK)
        status = carry_out(o, &q, err);
    if (status == TSR_E_IO && q.t.reply.code == 404 &&
        strstr(q.t.reply.said, "NoSuchBucket") == NULL) /* gone already */
        status = TSR_OK;
    tsr_object_request_free(&q);
    return status;
}

tsr_status tsr_objects_remove(tsr_objects *o, const char *name, tsr_err *err)
{
    return send_delete(o, name, "", err);
}

tsr_status tsr_objects_abandon(tsr_objects *o, const char *name, const char *id, tsr_err *err)
{
    tsr_text query = {0};
    tsr_text_printf(&query, "uploadId=");
    tsr_url_escape(&query, id, "");
    tsr_status status = tsr_text_status(&query, err);
    if (status == TSR_OK)
        status = send_delete(o, name, query.data, err);
    tsr_text_free(&query);
    return status;
}

/* ---- uploads without a record ---- */

/* Fetches the list of multipart uploads below the prefix. */
static tsr_status list_uploads(tsr_objects *o, tsr_xml_span *list, tsr_err *err)
{
    const tsr_remote *const remote = o->remote;
    tsr_text url = {0};
    size_t size = 0;
    tsr_text_printf(&url, "%s?prefix=", remote->bucket);
    tsr_url_escape(&url, remote->prefix, "");
    tsr_text_printf(&url, "&uploads=");
    tsr_status status = tsr_text_status(&url, err);
    if (status == TSR_OK)
        status = tsr_remote_fetch(o->remote, url.data, remote->address, LARGEST_ANSWER, &list->begin, &size, err);
    if (status == TSR_OK)
        list->end = list->begin + size;
    tsr_text_free(&url);
    return status;
}

tsr_status tsr_objects_sweep(tsr_objects *o, bool (*is_own)(const char *name, const void *data), const void *data,
                             tsr_err *err)
{
    const size_t before = strlen(o->remote->prefix);
    size_t found;
    /* A list has at most a thousand uploads; a new one lacks those that were given up. */
    do {
        tsr_xml_span list = {0}, upload;
        found = 0;
        TSR_TRY(list_uploads(o, &list, err));
        while (tsr_xml_find(list, "Upload", &upload)) {
            const char *const key = tsr_xml_text(upload, "Key", &o->remote->arena), *const id =
                                                                                        tsr_xml_text(upload, "UploadId",
                                                                                                     &o->remote->arena);
            list.begin = upload.end;
            if (key == NULL || id == NULL || strncmp(key, o->remote->prefix, before) != 0 ||
                !is_own(key + before, data))
                continue;
            TSR_TRY(tsr_objects_abandon(o, key + before, id, err));
            found++;
        }
    } while (found > 0);
    return TSR_OK;
}
#endif
