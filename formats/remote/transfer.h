/* Requests to HTTP servers, carried out in parallel by a thread, with retries.
 *
 * A range of a file is accepted only if the reply has exactly these bytes of a file of the known size and ETag. A
 * failure that may pass (429, 503, a timeout, a connection that breaks) is repeated after a delay that grows, or that
 * the server asked for. Bytes that have arrived are kept. A redirect is followed without credentials, except on the
 * same origin. */
#pragma once

#include "common/text.h"
#include "formats/remote/remote.h"
#include "formats/remote/reply.h"
#include "formats/remote/settings/access.h"

/* A request is for a whole document, for the head of a reply about a file, or for bytes of a file; or it sends bytes,
 * and its reply is a document. */
typedef enum tsr_transfer_kind {
    TSR_TRANSFER_DOCUMENT,
    TSR_TRANSFER_PROBE,
    TSR_TRANSFER_RANGE,
    TSR_TRANSFER_SEND
} tsr_transfer_kind;

typedef struct tsr_transfer {
    /* Set by the caller; all is borrowed until the end. */
    tsr_transfer_kind kind;
    const char *url, *shown; /* not for a range; `shown` is the name in messages */
    tsr_remote_file *file;   /* only for a range */
    char *data;              /* [size]: only for a range, or the bytes to send */
    uint64_t offset, size;
    size_t limit;        /* the most bytes of a document */
    const char *method;  /* only of TSR_TRANSFER_SEND: "PUT" */
    const char *sha256;  /* digest of the bytes to send */
    const char *element; /* the XML that a reply must have completely; NULL: any reply will do */

    /* Results. */
    tsr_status status;
    tsr_err err;
    tsr_text text; /* a document; the caller frees it */
    tsr_reply reply;

    /* private */
    uint64_t done;  /* bytes that have arrived */
    unsigned tries; /* failures since the last byte */
    double not_before;
    unsigned hops;
    char *target;           /* where a redirect led to; NULL: nowhere */
    bool at_target;         /* the request under way is to the target */
    bool over, heard, fits; /* ended; the head of the reply was judged; its body is wanted */
    const char *fault;      /* why the body is not wanted */
    void *easy, *headers;
    char problem[256];
    struct tsr_transfer *next;
} tsr_transfer;

typedef struct tsr_transfers tsr_transfers;

/* Loads libcurl and prepares requests with these credentials, which are borrowed. The thread starts with the first
 * request. TSR_E_UNSUPPORTED: there is no libcurl. */
tsr_status tsr_transfers_begin(tsr_transfers **transfers, const tsr_access *access, tsr_err *err);

/* Begins a request. Thread-safe. */
void tsr_transfers_add(tsr_transfers *transfers, tsr_transfer *t);

/* Waits for the end of a request and returns its status. Thread-safe. */
tsr_status tsr_transfers_wait(tsr_transfers *transfers, tsr_transfer *t, tsr_err *err);

/* Waits for the end of a request for 0.1 s at most. Returns true if it has ended. Thread-safe. */
bool tsr_transfers_wait_a_while(tsr_transfers *transfers, const tsr_transfer *t);

/* Returns true if the request has ended. Thread-safe. */
bool tsr_transfers_is_over(tsr_transfers *transfers, const tsr_transfer *t);

/* Abandons requests under way, ends the thread and frees everything. NULL is fine. */
void tsr_transfers_end(tsr_transfers *transfers);
