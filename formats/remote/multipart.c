/* Writes an object by one request or, if it is large, in parts, several at a time. */
#include "formats/remote/objects.h"

#include "common/checked.h"

#include <stdlib.h>

/* The limit of stores. */
enum { MOST_PARTS = 10000 };

void tsr_multipart_free(tsr_multipart *u)
{
    for (size_t i = 0; u->etags != NULL && i < u->n_parts; i++)
        free(u->etags[i]);
    free(u->etags);
    free(u->id);
    u->etags = NULL;
    u->id = NULL;
}

tsr_status tsr_multipart_begin(tsr_multipart *u, const tsr_object *object, tsr_err *err)
{
    uint64_t part = TSR_PART_BYTES;
    *u = (tsr_multipart){.note = NULL};
    while (part < TSR_OBJECTS_MEMORY && tsr_ceil_div(object->size, part) > MOST_PARTS)
        part *= 2;
    if (tsr_ceil_div(object->size, part) > MOST_PARTS)
        return tsr_fail(err, TSR_E_UNSUPPORTED,
                        "%s: %llu bytes are too many for a multipart upload (at most %llu); use a smaller "
                        "--max-shard-size",
                        object->name, U64(object->size), U64(MOST_PARTS * part));
    u->part_bytes = part;
    u->n_parts = object->size <= TSR_PART_BYTES ? 0 : (size_t)tsr_ceil_div(object->size, part);
    u->etags = calloc(u->n_parts + 1, sizeof *u->etags);
    return u->etags == NULL ? tsr_out_of_memory(err, "for the parts of an upload") : TSR_OK;
}

#ifdef TSR_HAVE_CURL
#include "common/file.h"
#include "formats/remote/objects_open.h"

#include <string.h>

enum { MOST_SLOTS = TSR_OBJECTS_MEMORY / TSR_PART_BYTES, MOST_RESTARTS = 3 };

/* Parts under way, the oldest first. */
typedef struct sending {
    tsr_objects *objects;
    const tsr_object *object;
    tsr_multipart *upload;
    tsr_object_request requests[MOST_SLOTS];
    size_t parts[MOST_SLOTS]; /* the part of each request */
    size_t n_slots, first, n;
    unsigned restarts;
    bool lost; /* the store does not know the upload, or lacks a part */
} sending;

static bool is_lost(const tsr_object_request *q)
{
    const bool missing = q->t.reply.code == 404 && strstr(q->t.reply.said, "NoSuchBucket") == NULL;
    return missing || strstr(q->t.reply.said, "InvalidPart") != NULL;
}

/* Begins an upload, or ends it with a list of its parts. `element` is what the reply must have. */
static tsr_status post(tsr_objects *o, const char *name, const char *query, tsr_text *body, const char *closing,
                       const char *element, char **value, bool *lost, tsr_err *err)
{
    tsr_object_request q;
    tsr_arena scratch = {0};
    tsr_status status = tsr_object_request_begin(&q, o, name, "POST", query, err);
    q.t.element = closing;
    tsr_object_request_send(&q, body->data, body->size);
    if (status == TSR_OK) {
        tsr_object_request_add(o, &q);
        status = tsr_object_request_wait(o, &q, err);
    }
    *lost = status != TSR_OK && is_lost(&q);
    if (status == TSR_OK) {
        const tsr_xml_span answer = {q.t.text.data, q.t.text.data + q.t.text.size};
        const char *const text = tsr_xml_text(answer, element, &scratch);
        *value = text == NULL ? NULL : strdup(text);
        if (*value == NULL)
            status = tsr_fail(err, TSR_E_FORMAT, "%s: the store's answer to an upload has no %s", q.t.shown, element);
    }
    tsr_arena_free(&scratch);
    tsr_object_request_free(&q);
    return status;
}

static tsr_status begin_upload(sending *s, tsr_err *err)
{
    tsr_text nothing = {0};
    bool lost;
    TSR_TRY(post(s->objects, s->object->name, "uploads=", &nothing, "</InitiateMultipartUploadResult>", "UploadId",
                 &s->upload->id, &lost, err));
    if (strpbrk(s->upload->id, " \t\r\n") != NULL)
        return tsr_fail(err, TSR_E_FORMAT, "%s: the store gave an upload an id with blanks", s->object->name);
    return s->upload->note == NULL ? TSR_OK : s->upload->note(s->upload, s->upload->n_parts, err);
}

/* Ends the upload: the object appears. */
static tsr_status complete(sending *s, char etag[TSR_ETAG_TEXT], tsr_err *err)
{
    tsr_text body = {0}, query = {0};
    char *value = NULL;
    tsr_text_printf(&body, "<CompleteMultipartUpload>");
    for (size_t i = 0; i < s->upload->n_parts; i++)
        tsr_text_printf(&body, "<Part><PartNumber>%zu</PartNumber><ETag>%s</ETag></Part>", i + 1, s->upload->etags[i]);
    tsr_text_printf(&body, "</CompleteMultipartUpload>");
    tsr_text_printf(&query, "uploadId=");
    tsr_url_escape(&query, s->upload->id, "");
    tsr_status status = tsr_text_status(&body, err);
    if (status == TSR_OK)
        status = tsr_text_status(&query, err);
    if (status == TSR_OK)
        status = post(s->objects, s->object->name, query.data, &body, "</CompleteMultipartUploadResult>", "ETag",
                      &value, &s->lost, err);
    if (status == TSR_OK)
        status = tsr_etag_take(etag, value, s->object->name, err);
    free(value);
    tsr_text_free(&body);
    tsr_text_free(&query);
    return status;
}

/* Reads a part and begins to send it. */
static tsr_status begin_part(sending *s, size_t part, tsr_err *err)
{
    const size_t slot = (s->first + s->n) % s->n_slots;
    const uint64_t bytes = s->upload->part_bytes, offset = part * bytes;
    tsr_object_request *const q = &s->requests[slot];
    char *const memory = s->objects->memory + slot * bytes;
    const size_t size = (size_t)tsr_min_u64(bytes, s->object->size - offset);
    tsr_text query = {0};
    tsr_text_printf(&query, "partNumber=%zu&uploadId=", part + 1);
    tsr_url_escape(&query, s->upload->id, "");
    tsr_status status = tsr_text_status(&query, err);
    if (status == TSR_OK)
        status = tsr_read_at(s->object->fd, s->object->path, memory, size, offset, err);
    if (status == TSR_OK) {
        status = tsr_object_request_begin(q, s->objects, s->object->name, "PUT", query.data, err);
        if (status != TSR_OK)
            tsr_object_request_free(q);
    }
    tsr_text_free(&query);
    if (status != TSR_OK)
        return status;
    tsr_object_request_send(q, memory, size);
    tsr_object_request_add(s->objects, q);
    s->parts[slot] = part;
    s->n++;
    return TSR_OK;
}

/* Waits for the oldest part. */
static tsr_status end_part(sending *s, tsr_err *err)
{
    char etag[TSR_ETAG_TEXT];
    tsr_object_request *const q = &s->requests[s->first];
    const size_t part = s->parts[s->first];
    tsr_status status = tsr_object_request_wait(s->objects, q, err);
    s->lost = s->lost || (status != TSR_OK && is_lost(q));
    if (status == TSR_OK)
        status = tsr_etag_take(etag, q->t.reply.etag, q->t.shown, err);
    if (status == TSR_OK) {
        s->upload->etags[part] = strdup(etag);
        status = s->upload->etags[part] == NULL ? tsr_out_of_memory(err, "for an upload") : TSR_OK;
        atomic_fetch_add(&s->objects->sent, q->t.size);
    }
    if (status == TSR_OK && s->upload->note != NULL)
        status = s->upload->note(s->upload, part, err);
    tsr_object_request_free(q);
    s->first = (s->first + 1) % s->n_slots;
    s->n--;
    return status;
}

/* Sends the parts that the store does not have. After a failure, waits for those under way. */
static tsr_status send_parts(sending *s, tsr_err *err)
{
    tsr_status status = TSR_OK;
    for (size_t part = 0; part < s->upload->n_parts && status == TSR_OK; part++) {
        if (s->upload->etags[part] != NULL)
            continue;
        if (s->n == s->n_slots)
            status = end_part(s, err);
        if (status == TSR_OK)
            status = begin_part(s, part, err);
    }
    while (s->n > 0) {
        const tsr_status one = end_part(s, status == TSR_OK ? err : NULL);
        status = status == TSR_OK ? one : status;
    }
    return status;
}

/* Forgets an upload that the store no longer has. */
static void forget(tsr_multipart *u)
{
    free(u->id);
    u->id = NULL;
    for (size_t i = 0; i < u->n_parts; i++) {
        free(u->etags[i]);
        u->etags[i] = NULL;
    }
}

/* Writes an object by a multipart upload. */
static tsr_status put_parts(tsr_objects *o, const tsr_object *object, tsr_multipart *upload, char etag[TSR_ETAG_TEXT],
                            tsr_err *err)
{
    tsr_status status = TSR_OK;
    sending *const s = calloc(1, sizeof *s);
    if (s == NULL)
        return tsr_out_of_memory(err, "for an upload");
    *s = (sending){
        .objects = o, .object = object, .upload = upload, .n_slots = (size_t)(TSR_OBJECTS_MEMORY / upload->part_bytes)};
    /* The store may have removed an upload that was begun long ago, or have completed it without an answer. */
    for (bool again = true; again;) {
        s->lost = false;
        status = upload->id == NULL ? begin_upload(s, err) : TSR_OK;
        if (status == TSR_OK)
            status = send_parts(s, err);
        if (status == TSR_OK)
            status = complete(s, etag, err);
        again = status != TSR_OK && s->lost && !o->ended && ++s->restarts < MOST_RESTARTS;
        if (again)
            forget(upload);
    }
    free(s);
    return status;
}

tsr_status tsr_objects_put(tsr_objects *o, const tsr_object *object, tsr_multipart *upload, char etag[TSR_ETAG_TEXT],
                           tsr_err *err)
{
    TSR_TRY(upload->n_parts == 0 ? tsr_object_put_whole(o, object, etag, err)
                                 : put_parts(o, object, upload, etag, err));
    return tsr_object_check(o, object, etag, err);
}
#endif
