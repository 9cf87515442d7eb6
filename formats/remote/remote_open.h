/* An open address: its files, credentials, and ranges that were read ahead. */
#pragma once

#include "common/arena.h"
#include "common/atomics.h"
#include "formats/remote/address.h"
#include "formats/remote/remote.h"
#include "formats/remote/settings/access.h"
#include "formats/remote/transfer.h"

#include <pthread.h>

/* Bytes that were read ahead. */
typedef struct tsr_extent {
    const tsr_remote_file *file; /* NULL: the slot is free */
    uint64_t offset, size;
    char *data;
    tsr_transfer transfer;
    unsigned users; /* reads that copy from it */
    bool read;      /* a read has used it */
    uint64_t at;    /* value of the clock when it was begun or last used */
} tsr_extent;

/* Reads of a file that follow one another. */
typedef struct tsr_stream {
    const tsr_remote_file *file; /* NULL: the slot is free */
    uint64_t next;               /* end of the last read */
    uint64_t run;                /* bytes read one after another */
    uint64_t ahead;              /* end of the bytes that were read ahead */
    uint64_t at;                 /* value of the clock at the last read */
} tsr_stream;

enum { TSR_EXTENTS = 256, TSR_STREAMS = 16 };

struct tsr_remote {
    const char *address;     /* as it appears in messages */
    const char *base;        /* the URL of the folder, which ends in '/', or of the only file */
    const char *commit;      /* NULL: not on the Hub */
    const char *bucket;      /* the URL of the bucket of s3://, which ends in '/'; NULL: not there */
    const char *prefix;      /* the beginning of its keys, not escaped */
    bool is_file, is_output; /* is_output: it may have no objects yet */
    tsr_access access;
    tsr_transfers *transfers;
    tsr_remote_file *files; /* [n_files] */
    size_t n_files, files_capacity;
    tsr_arena arena;

    atomic_bool kept_headers; /* the cache of headers may have grown */
    pthread_mutex_t lock;     /* guards the streams and extents, except their data and transfers */
    tsr_extent *extents;      /* [TSR_EXTENTS] */
    tsr_stream streams[TSR_STREAMS];
    uint64_t ahead, clock; /* bytes in extents */
};

/* Add a file. `name` is copied; etag and modified may be NULL. */
tsr_status tsr_remote_add(tsr_remote *remote, const char *name, uint64_t size, const char *etag, const char *modified,
                          tsr_err *err);

/* Fetches a document of at most `limit` bytes into the arena, NUL-terminated. `shown` names it in messages. */
tsr_status tsr_remote_fetch(tsr_remote *remote, const char *url, const char *shown, size_t limit, const char **text,
                            size_t *size, tsr_err *err);

/* List the files of an address of each kind, and set its base, credentials and commit. `address` is as the user gave
 * it. */
tsr_status tsr_remote_list_url(tsr_remote *remote, const char *address, tsr_err *err);
tsr_status tsr_remote_list_hub(tsr_remote *remote, const char *address, tsr_err *err);
tsr_status tsr_remote_list_s3(tsr_remote *remote, const char *address, tsr_err *err);

/* A part of a document of XML. */
typedef struct tsr_xml_span {
    const char *begin, *end;
} tsr_xml_span;

/* Finds the content of the next element of this name in `in`. Returns false if there is none. */
bool tsr_xml_find(tsr_xml_span in, const char *name, tsr_xml_span *content);

/* Returns the text of the element with entities replaced; NULL: no such element, an unknown entity, or no memory. */
const char *tsr_xml_text(tsr_xml_span in, const char *name, tsr_arena *arena);

/* Opens an address of s3:// for writing. It may have no objects yet. */
tsr_status tsr_remote_open_output(tsr_remote **remote, const char *address, tsr_err *err);

/* Begins requests with the credentials of `remote`. */
tsr_status tsr_remote_connect(tsr_remote *remote, tsr_err *err);
