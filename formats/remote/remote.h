/* Files on servers, which are read like files on disk: https://, hf:// and s3://.
 *
 * Opening lists the files of an address. Each has a size and an ETag from then on, and every read fails if the server
 * has another state of the file. Reads are ranges, in parallel; what was announced by tsr_remote_prefetch is read ahead
 * into limited memory. docs/remote.md describes the addresses. */
#pragma once

#include "common/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The most memory that an open address takes for connections and for bytes that were read ahead. */
#define TSR_REMOTE_MEMORY ((uint64_t)64 << 20)

typedef struct tsr_remote tsr_remote;

typedef struct tsr_remote_file {
    const char *name; /* relative to the address: "model.safetensors", "folder/file" */
    const char *path; /* the address and the name, for messages; without secrets */
    uint64_t size;
    const char *etag;     /* the state of the file; NULL: only `modified` is known */
    const char *modified; /* Last-Modified of a server that sends no ETag */
    /* private */
    tsr_remote *remote;
    const char *url, *commit; /* commit: of a file on the Hub, whose ETag is a digest without quotes; NULL: not there */
    char *target, *target_etag; /* where the server redirects to, and the ETag there; used by the thread of transfers */
} tsr_remote_file;

/* A read that is under way. */
typedef struct tsr_remote_reading tsr_remote_reading;

/* Loads what reading from servers needs, before the process is restricted to certain files. */
tsr_status tsr_remote_prepare(tsr_err *err);

/* Opens an address and lists its files. TSR_E_FORMAT: there is no such place. TSR_E_IO: the server cannot be reached
 * or refuses access. TSR_E_UNSUPPORTED: the build or the server cannot do it. */
tsr_status tsr_remote_open(tsr_remote **remote, const char *address, tsr_err *err);

/* Ends all requests and frees everything. NULL is fine. */
void tsr_remote_close(tsr_remote *remote);

/* Returns the address, with the revision as given; the commit of that revision, or NULL. */
const char *tsr_remote_address(const tsr_remote *remote);
const char *tsr_remote_commit(const tsr_remote *remote);

/* Returns true if the address is that of a single file. */
bool tsr_remote_is_file(const tsr_remote *remote);

/* Returns the files, sorted by name, and their number. They live until close. */
const tsr_remote_file *tsr_remote_files(const tsr_remote *remote, size_t *count);

/* Returns the file of this name, or NULL. */
const tsr_remote_file *tsr_remote_find(const tsr_remote *remote, const char *name);

/* Begins to read bytes [offset, offset + size) into `data`. Returns NULL without memory. Thread-safe. */
tsr_remote_reading *tsr_remote_begin(const tsr_remote_file *file, void *data, size_t size, uint64_t offset);

/* Waits for a read and frees it; NULL is TSR_E_NOMEM. TSR_E_IO: the file has changed, or the server does not deliver.
 * Thread-safe. */
tsr_status tsr_remote_end(tsr_remote_reading *reading, tsr_err *err);

/* Reads and waits. Thread-safe. */
tsr_status tsr_remote_read(const tsr_remote_file *file, void *data, size_t size, uint64_t offset, tsr_err *err);

/* Begins to read the beginning of a safetensors file, where its header is: from the cache of headers, or from the
 * server. Thread-safe; cannot fail. */
void tsr_remote_prefetch_header(const tsr_remote_file *file);

/* Stores the first bytes of a file in the cache of headers. */
void tsr_remote_keep_header(const tsr_remote_file *file, const void *data, size_t size);

/* Begins to read bytes that will be needed soon, if there is memory for them. Thread-safe; cannot fail. */
void tsr_remote_prefetch(const tsr_remote_file *file, uint64_t offset, uint64_t size);
