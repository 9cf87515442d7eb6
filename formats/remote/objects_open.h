/* An address that is open for writing, and one request to it. */
#pragma once

#include "formats/remote/objects.h"
#include "formats/remote/remote_open.h"

struct tsr_objects {
    tsr_remote *remote;
    const atomic_bool *cancel;
    char *memory; /* TSR_OBJECTS_MEMORY bytes for parts under way */
    atomic_ullong sent;
    bool ended; /* the user interrupted: all requests were abandoned */
};

/* The texts of a request, which must live as long as the request. */
typedef struct tsr_object_request {
    tsr_transfer t;
    tsr_text url, shown;
    char sha256[65];
} tsr_object_request;

/* Prepares a request for the object NAME with a query ("partNumber=1&uploadId=x", in this order; "" for none). */
tsr_status tsr_object_request_begin(tsr_object_request *request, const tsr_objects *objects, const char *name,
                                    const char *method, const char *query, tsr_err *err);
void tsr_object_request_free(tsr_object_request *request);

/* Sets the bytes to send, which are borrowed. */
void tsr_object_request_send(tsr_object_request *request, char *data, size_t size);

/* Begins a request; waits for its end. TSR_E_CANCELLED: the user interrupted, and all requests have ended. */
void tsr_object_request_add(tsr_objects *objects, tsr_object_request *request);
tsr_status tsr_object_request_wait(tsr_objects *objects, tsr_object_request *request, tsr_err *err);

/* Writes an object by one request. */
tsr_status tsr_object_put_whole(tsr_objects *objects, const tsr_object *object, char etag[TSR_ETAG_TEXT], tsr_err *err);

/* Checks that the store has an object of this size with this ETag. TSR_E_IO otherwise. */
tsr_status tsr_object_check(tsr_objects *objects, const tsr_object *object, const char *etag, tsr_err *err);

/* Copies an ETag. TSR_E_FORMAT: it is missing or cannot be repeated in a request. */
tsr_status tsr_etag_take(char to[TSR_ETAG_TEXT], const char *etag, const char *shown, tsr_err *err);
