/* Writes and reads the frames of a file of block statistics, and its header. */
#include "formats/blocks/block_file.h"

#include <stdlib.h>
#include <string.h>
#include <zstd.h>

static const char kMagic[8] = "TSRBLOCK";

enum { HEADER_BYTES = 24, LEVEL = 1 };

/* A frame that belongs to no tensor may unpack to more than this. */
static uint64_t most_of_record(void)
{
    return tsr_block_record_bound(TSR_BLOCK_LONGEST_NAME, TSR_BLOCK_MOST_CELLS, TSR_BINS_E4M3);
}

/* ---- writing ---- */

static ZSTD_CCtx *new_context(void)
{
    ZSTD_CCtx *const context = ZSTD_createCCtx();
    if (context == NULL)
        return NULL;
    (void)ZSTD_CCtx_setParameter(context, ZSTD_c_compressionLevel, LEVEL);
    (void)ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1);
    return context;
}

tsr_status tsr_blocks_add_frame(tsr_text *to, const void *data, size_t size, tsr_err *err)
{
    ZSTD_CCtx *const context = new_context();
    const size_t bound = ZSTD_compressBound(size);
    void *const packed = malloc(bound);
    const size_t n = context == NULL || packed == NULL ? 0 : ZSTD_compress2(context, packed, bound, data, size);
    tsr_status status = TSR_OK;
    if (n == 0 || ZSTD_isError(n))
        status = tsr_fail(err, TSR_E_NOMEM, "out of memory to compress %zu bytes of block figures", size);
    else
        tsr_text_append(to, packed, n);
    free(packed);
    ZSTD_freeCCtx(context);
    return status == TSR_OK ? tsr_text_status(to, err) : status;
}

static void put(uint8_t *to, uint64_t value, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++)
        to[i] = (uint8_t)(value >> 8 * i);
}

static uint64_t get(const uint8_t *from, unsigned bytes)
{
    uint64_t value = 0;
    for (unsigned i = 0; i < bytes; i++)
        value |= (uint64_t)from[i] << 8 * i;
    return value;
}

tsr_status tsr_blocks_add_header(tsr_text *to, uint64_t tensors, tsr_err *err)
{
    uint8_t header[HEADER_BYTES] = {0};
    memcpy(header, kMagic, sizeof kMagic);
    put(header + 8, TSR_BLOCKS_VERSION, 4);
    put(header + 16, tensors, 8);
    return tsr_blocks_add_frame(to, header, sizeof header, err);
}

/* ---- reading ---- */

static tsr_status fail_at(const tsr_blocks_reader *r, size_t at, const char *fault, tsr_err *err)
{
    return tsr_fail(err, TSR_E_FORMAT,
                    "%s: damaged at byte %zu: %s; the checkpoint itself is not affected; remove this file to read the "
                    "report without it",
                    r->path, at, fault);
}

/* Decompresses the next frame into the buffer; *size is its size. */
static tsr_status next_frame(tsr_blocks_reader *r, size_t *size, tsr_err *err)
{
    const uint8_t *const frame = r->data + r->at;
    const size_t packed = ZSTD_findFrameCompressedSize(frame, r->size - r->at);
    const unsigned long long plain = ZSTD_getFrameContentSize(frame, r->size - r->at);
    if (ZSTD_isError(packed))
        return fail_at(r, r->at, r->at == r->size ? "it ends before its last tensor" : "not a complete zstd frame",
                       err);
    if (plain == ZSTD_CONTENTSIZE_UNKNOWN || plain == ZSTD_CONTENTSIZE_ERROR || plain > most_of_record())
        return fail_at(r, r->at, "a frame without its size, or larger than the figures of all tensors", err);
    if (plain > r->room_size) {
        uint8_t *const room = realloc(r->room, (size_t)plain);
        if (room == NULL)
            return tsr_out_of_memory(err, "for a tensor's blocks");
        r->room = room;
        r->room_size = (size_t)plain;
    }
    const size_t got = ZSTD_decompressDCtx(r->context, r->room, r->room_size, frame, packed);
    if (ZSTD_isError(got) || got != plain)
        return fail_at(r, r->at, ZSTD_isError(got) ? ZSTD_getErrorName(got) : "a frame of an unexpected size", err);
    *size = got;
    r->at += packed;
    return TSR_OK;
}

tsr_status tsr_blocks_reader_begin(tsr_blocks_reader *r, const char *path, const void *data, size_t size, tsr_err *err)
{
    *r = (tsr_blocks_reader){.path = path, .data = data, .size = size, .context = ZSTD_createDCtx()};
    size_t got;
    if (r->context == NULL)
        return tsr_out_of_memory(err, "for zstd");
    TSR_TRY(next_frame(r, &got, err));
    if (got != HEADER_BYTES || memcmp(r->room, kMagic, sizeof kMagic) != 0)
        return fail_at(r, 0, "no header of block figures", err);
    if (get(r->room + 8, 4) != TSR_BLOCKS_VERSION)
        return tsr_fail(err, TSR_E_UNSUPPORTED,
                        "%s: unsupported version %llu of block figures; this Tessera reads version %d", path,
                        U64(get(r->room + 8, 4)), TSR_BLOCKS_VERSION);
    r->left = get(r->room + 16, 8);
    return TSR_OK;
}

tsr_status tsr_blocks_reader_next(tsr_blocks_reader *r, tsr_block_record *record, bool *more, tsr_err *err)
{
    const size_t at = r->at;
    size_t size;
    tsr_err why;
    *more = r->left > 0;
    if (!*more)
        return r->at == r->size ? TSR_OK : fail_at(r, r->at, "extra bytes after the last tensor", err);
    r->left--;
    TSR_TRY(next_frame(r, &size, err));
    return tsr_block_record_read(r->room, size, record, &why) == TSR_OK ? TSR_OK : fail_at(r, at, why.msg, err);
}

void tsr_blocks_reader_end(tsr_blocks_reader *r)
{
    free(r->room);
    ZSTD_freeDCtx(r->context);
    *r = (tsr_blocks_reader){0};
}
