/* Writes objects to s3:// stores: whole, or as multipart uploads that can be resumed.
 *
 * Every request has the SHA-256 of its bytes, signed, so that the store refuses damaged bytes. An object appears
 * complete or not at all. After it is written, its size and ETag are read back. Functions of one tsr_objects must not
 * be called at the same time, except tsr_objects_sent. */
#pragma once

#include "common/atomics.h"
#include "formats/remote/remote.h"

/* The most bytes of memory that a tsr_objects takes for bytes under way. */
#define TSR_OBJECTS_MEMORY ((uint64_t)64 << 20)

/* Objects of at most this many bytes are written by one request. */
#define TSR_PART_BYTES ((uint64_t)8 << 20)

enum { TSR_ETAG_TEXT = 160 };

typedef struct tsr_objects tsr_objects;

/* An open file that becomes an object. All is borrowed. */
typedef struct tsr_object {
    const char *name; /* relative to the address */
    const char *path; /* the name of the file in messages */
    int fd;
    uint64_t size; /* bytes */
} tsr_object;

/* A multipart upload and the parts that the store has. tsr_multipart_free frees the members; `data` is borrowed. */
typedef struct tsr_multipart {
    uint64_t part_bytes;
    size_t n_parts;
    char *id;     /* NULL: not begun */
    char **etags; /* [n_parts]; NULL: the store does not have it */
    /* Records that the upload has begun (part == n_parts), or that the store has a part. May be NULL. */
    tsr_status (*note)(const struct tsr_multipart *upload, size_t part, tsr_err *err);
    void *data; /* for `note` */
} tsr_multipart;

/* Opens s3://BUCKET/PREFIX for writing and lists its objects. `cancel` may be NULL. TSR_E_USAGE: the address is not a
 * prefix, or there are no credentials. TSR_E_IO, TSR_E_UNSUPPORTED: as for tsr_remote_open. */
tsr_status tsr_objects_open(tsr_objects **objects, const char *address, const atomic_bool *cancel, tsr_err *err);

/* Ends all requests and frees everything. NULL is fine. */
void tsr_objects_close(tsr_objects *objects);

/* Returns the objects that existed when the address was opened. They live until close. */
const tsr_remote *tsr_objects_there(const tsr_objects *objects);

/* Returns the bytes that the store has accepted so far. Thread-safe. */
uint64_t tsr_objects_sent(const tsr_objects *objects);

/* Prepares a multipart upload of `size` bytes; a size of one request has no parts. TSR_E_UNSUPPORTED: too large for a
 * store. */
tsr_status tsr_multipart_begin(tsr_multipart *upload, const tsr_object *object, tsr_err *err);
void tsr_multipart_free(tsr_multipart *upload);

/* Writes an object, continues its upload if that has begun, and checks the size and ETag of the result. `etag` receives
 * the ETag. TSR_E_IO: the store does not accept it; `upload` then has what is needed to resume. */
tsr_status tsr_objects_put(tsr_objects *objects, const tsr_object *object, tsr_multipart *upload,
                           char etag[TSR_ETAG_TEXT], tsr_err *err);

/* Removes an object. A missing object is not an error. */
tsr_status tsr_objects_remove(tsr_objects *objects, const char *name, tsr_err *err);

/* Gives up a multipart upload, so that the store frees its parts. An upload that no longer exists is not an error. */
tsr_status tsr_objects_abandon(tsr_objects *objects, const char *name, const char *id, tsr_err *err);

/* Gives up all multipart uploads of objects for which is_own(name, data) is true. A kill may have left some whose ids
 * were not recorded. TSR_E_IO, TSR_E_FORMAT: the store does not list them. */
tsr_status tsr_objects_sweep(tsr_objects *objects, bool (*is_own)(const char *name, const void *data), const void *data,
                             tsr_err *err);
