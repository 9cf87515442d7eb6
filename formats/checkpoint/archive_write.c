/* Packs frames and writes the tail of an archive. */
#include "formats/checkpoint/archive.h"
#include "formats/checkpoint/archive_tail.h"
#include "formats/checkpoint/byte_planes.h"

#define XXH_INLINE_ALL
#include <xxhash.h>
#include <zstd.h>

#include <stdlib.h>
#include <string.h>

uint64_t tsr_archive_tail_hash(const uint8_t *tail, const tsr_archive_layout *l)
{
    return XXH64(tail + TSR_INFO_FIXED, l->bytes - TSR_INFO_FIXED, 0);
}

uint64_t tsr_archive_tail_bytes(uint64_t frames)
{
    return tsr_archive_lay_out(frames).bytes;
}

void tsr_archive_note(void *tail, uint64_t frames, uint64_t frame, const void *plain, size_t size, unsigned width,
                      size_t packed)
{
    const tsr_archive_layout l = tsr_archive_lay_out(frames);
    uint8_t *const t = tail;
    tsr_put_64(t + l.hashes + 8 * frame, XXH64(plain, size, 0));
    t[l.widths + frame] = (uint8_t)width;
    tsr_put_32(t + l.entries + TSR_SEEK_ENTRY * frame, packed);
    tsr_put_32(t + l.entries + TSR_SEEK_ENTRY * frame + 4, size);
}

void tsr_archive_seal(void *tail, uint64_t frames)
{
    const tsr_archive_layout l = tsr_archive_lay_out(frames);
    uint8_t *const t = tail;
    tsr_put_32(t, TSR_INFO_MAGIC);
    tsr_put_32(t + 4, l.seek - TSR_SKIPPABLE_HEAD);
    memcpy(t + TSR_SKIPPABLE_HEAD, TSR_ARCHIVE_SIGNATURE, TSR_SIGNATURE_BYTES);
    tsr_put_32(t + l.seek, TSR_SEEK_MAGIC);
    tsr_put_32(t + l.seek + 4, l.bytes - l.entries);
    tsr_put_32(t + l.entries + TSR_SEEK_ENTRY * frames, l.seek);
    tsr_put_32(t + l.entries + TSR_SEEK_ENTRY * frames + 4, 0);
    tsr_put_32(t + l.footer, frames + 1);
    t[l.footer + 4] = 0;
    tsr_put_32(t + l.footer + 5, TSR_FOOTER_MAGIC);
    tsr_put_64(t + TSR_INFO_FIXED - 8, tsr_archive_tail_hash(t, &l));
}

size_t tsr_archive_frame_bound(size_t size)
{
    return ZSTD_compressBound(size);
}

static ZSTD_CCtx *new_context(int level)
{
    ZSTD_CCtx *const context = ZSTD_createCCtx();
    if (context == NULL)
        return NULL;
    (void)ZSTD_CCtx_setParameter(context, ZSTD_c_compressionLevel, level);
    (void)ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1);
    return context;
}

size_t tsr_archive_context_bytes(size_t size, int level)
{
    ZSTD_CCtx *const context = new_context(level);
    void *const zeros = calloc(1, size + 1), *const out = malloc(ZSTD_compressBound(size));
    size_t bytes = 0;
    if (context != NULL && zeros != NULL && out != NULL) {
        (void)ZSTD_compress2(context, out, ZSTD_compressBound(size), zeros, size);
        bytes = ZSTD_sizeof_CCtx(context);
    }
    free(zeros);
    free(out);
    ZSTD_freeCCtx(context);
    return bytes;
}

tsr_status tsr_archive_pack(const void *plain, size_t size, unsigned width, int level, void *scratch, void *out,
                            size_t *packed, tsr_err *err)
{
    ZSTD_CCtx *const context = new_context(level);
    if (context == NULL)
        return tsr_out_of_memory(err, "for compressing");
    if (width > 1)
        tsr_byte_planes_split(plain, size, width, scratch);
    *packed = ZSTD_compress2(context, out, tsr_archive_frame_bound(size), width > 1 ? scratch : plain, size);
    ZSTD_freeCCtx(context);
    return ZSTD_isError(*packed)
               ? tsr_fail(err, TSR_E_NOMEM, "zstd cannot compress %zu bytes: %s", size, ZSTD_getErrorName(*packed))
               : TSR_OK;
}
