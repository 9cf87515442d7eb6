/* Digests and writes an output of a unit, one piece at a time. */
#include "convert/io/outgoing.h"

#include "common/checked.h"
#include "common/file.h"

/* Digests and writes the bytes before `end`. After a failure nothing more is written. */
static void take(tsr_outgoing *o, uint64_t end)
{
    while (o->done < end) {
        char *const from = o->data + o->done;
        const uint64_t n = tsr_min_u64(TSR_IO_PIECE - (o->offset + o->done) % TSR_IO_PIECE, end - o->done);
        if (o->kernels != NULL)
            o->kernels->hash_xxh3(&o->hash, from, n);
        if (o->cached && o->status == TSR_OK)
            o->status = tsr_write_at(o->file->fd, o->file->name, from, n, o->offset + o->done, &o->err);
        o->done += n;
    }
}

/* Accepts the bytes that an operation has made. Pieces end at multiples of TSR_IO_PIECE in the file, so that no
 * page is written twice. */
static void accept_made(tsr_sink *sink, uint64_t bytes)
{
    tsr_outgoing *const o = (tsr_outgoing *)sink;
    const uint64_t rest = (o->offset + bytes) % TSR_IO_PIECE;
    take(o, bytes == o->size ? bytes : bytes - tsr_min_u64(rest, bytes));
}

void tsr_outgoing_begin(tsr_outgoing *o, const tsr_cpu_kernels *kernels, const tsr_io_file *file, void *data,
                        uint64_t size, uint64_t offset)
{
    o->sink.accept = accept_made;
    o->kernels = kernels;
    o->file = file;
    o->data = data;
    o->size = size;
    o->offset = offset;
    o->done = 0;
    o->cached = !tsr_io_writes_directly(file, data, size, offset);
    o->status = TSR_OK;
    if (kernels != NULL)
        (void)XXH3_128bits_reset(&o->hash);
}

tsr_status tsr_outgoing_end(tsr_outgoing *o, tsr_io *io, tsr_io_batch *batch, tsr_digest *digest, tsr_err *err)
{
    take(o, o->size);
    if (o->kernels != NULL)
        *digest = XXH3_128bits_digest(&o->hash);
    if (!o->cached)
        return tsr_io_write(io, batch, o->file, o->data, o->size, o->offset, err);
    return o->status == TSR_OK ? TSR_OK : tsr_fail_with(err, o->status, &o->err);
}
