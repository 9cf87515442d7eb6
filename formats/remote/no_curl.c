/* Refuses addresses in a build without libcurl. */
#include "formats/remote/objects.h"

#ifndef TSR_HAVE_CURL
#include <stddef.h>

tsr_status tsr_remote_prepare(tsr_err *err)
{
    return tsr_fail(err, TSR_E_UNSUPPORTED,
                    "this build reads no addresses of servers: it was made without libcurl "
                    "(Debian: libcurl4-openssl-dev); download the model first");
}

tsr_status tsr_remote_open(tsr_remote **remote, const char *address, tsr_err *err)
{
    (void)address;
    *remote = NULL;
    return tsr_remote_prepare(err);
}

void tsr_remote_close(tsr_remote *remote)
{
    (void)remote;
}

const char *tsr_remote_address(const tsr_remote *remote)
{
    (void)remote;
    return "";
}

const char *tsr_remote_commit(const tsr_remote *remote)
{
    (void)remote;
    return NULL;
}

bool tsr_remote_is_file(const tsr_remote *remote)
{
    (void)remote;
    return false;
}

const tsr_remote_file *tsr_remote_files(const tsr_remote *remote, size_t *count)
{
    (void)remote;
    *count = 0;
    return NULL;
}

const tsr_remote_file *tsr_remote_find(const tsr_remote *remote, const char *name)
{
    (void)remote, (void)name;
    return NULL;
}

tsr_remote_reading *tsr_remote_begin(const tsr_remote_file *file, void *data, size_t size, uint64_t offset)
{
    (void)file, (void)data, (void)size, (void)offset;
    return NULL;
}

tsr_status tsr_remote_end(tsr_remote_reading *reading, tsr_err *err)
{
    (void)reading;
    return tsr_remote_prepare(err);
}

tsr_status tsr_remote_read(const tsr_remote_file *file, void *data, size_t size, uint64_t offset, tsr_err *err)
{
    (void)file, (void)data, (void)size, (void)offset;
    return tsr_remote_prepare(err);
}

void tsr_remote_prefetch_header(const tsr_remote_file *file)
{
    (void)file;
}

void tsr_remote_keep_header(const tsr_remote_file *file, const void *data, size_t size)
{
    (void)file, (void)data, (void)size;
}

void tsr_remote_prefetch(const tsr_remote_file *file, uint64_t offset, uint64_t size)
{
    (void)file, (void)offset, (void)size;
}

tsr_status tsr_objects_open(tsr_objects **objects, const char *address, const atomic_bool *cancel, tsr_err *err)
{
    (void)address, (void)cancel;
    *objects = NULL;
    return tsr_remote_prepare(err);
}

void tsr_objects_close(tsr_objects *objects)
{
    (void)objects;
}

const tsr_remote *tsr_objects_there(const tsr_objects *objects)
{
    (void)objects;
    return NULL;
}

uint64_t tsr_objects_sent(const tsr_objects *objects)
{
    (void)objects;
    return 0;
}

tsr_status tsr_objects_put(tsr_objects *objects, const tsr_object *object, tsr_multipart *upload,
                           char etag[TSR_ETAG_TEXT], tsr_err *err)
{
    (void)objects, (void)object, (void)upload, (void)etag;
    return tsr_remote_prepare(err);
}

tsr_status tsr_objects_remove(tsr_objects *objects, const char *name, tsr_err *err)
{
    (void)objects, (void)name;
    return tsr_remote_prepare(err);
}

tsr_status tsr_objects_sweep(tsr_objects *objects, bool (*is_own)(const char *name, const void *data), const void *data,
                             tsr_err *err)
{
    (void)objects, (void)is_own, (void)data;
    return tsr_remote_prepare(err);
}

tsr_status tsr_objects_abandon(tsr_objects *objects, const char *name, const char *id, tsr_err *err)
{
    (void)objects, (void)name, (void)id;
    return tsr_remote_prepare(err);
}
#endif
