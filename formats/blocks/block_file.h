/* The file quantization_blocks.zst: records of tensors (block_record.h) in zstd frames, beside
 * quantization_report.json.
 *
 * The first frame holds the header, and each following frame the record of one tensor. Every frame states its size and
 * ends with zstd's checksum of its contents. docs/blocks.md has the byte layout. */
#pragma once

#include "common/status.h"
#include "common/text.h"
#include "formats/blocks/block_record.h"

#define TSR_BLOCKS_NAME "quantization_blocks.zst"

enum { TSR_BLOCKS_VERSION = 1 };

/* Limit of the bytes of all planes of a file: one byte per this many weights, within a minimum and a maximum. Maps are
 * folded until they fit. */
#define TSR_BLOCKS_MOST_PLANES      (UINT64_C(144) << 20)
#define TSR_BLOCKS_LEAST_PLANES     (UINT64_C(1) << 19)
#define TSR_BLOCKS_WEIGHTS_PER_BYTE 256

/* Limits that a reader accepts. */
#define TSR_BLOCKS_MOST_BYTES (UINT64_C(1) << 30)

/* Appends a frame of `size` bytes. The same input and version of libzstd give the same bytes. Thread-safe. */
tsr_status tsr_blocks_add_frame(tsr_text *to, const void *data, size_t size, tsr_err *err);

/* Appends the frame of the header. */
tsr_status tsr_blocks_add_header(tsr_text *to, uint64_t tensors, tsr_err *err);

/* Reads a file in memory record by record, with a buffer for one record. */
typedef struct tsr_blocks_reader {
    const char *path;
    const uint8_t *data;
    size_t size, at; /* at: offset of the next frame */
    uint64_t left;   /* records */
    uint8_t *room;   /* buffer of [room_size] for the current record; freed by tsr_blocks_reader_end */
    size_t room_size;
    struct ZSTD_DCtx_s *context;
} tsr_blocks_reader;

/* Checks the header. The reader must be ended even after a failure. TSR_E_FORMAT: with path and offset. */
tsr_status tsr_blocks_reader_begin(tsr_blocks_reader *reader, const char *path, const void *data, size_t size,
                                   tsr_err *err);

/* Reads the next record, which is valid until the next call. Sets *more to false if there is none; then checks that the
 * file ends there. */
tsr_status tsr_blocks_reader_next(tsr_blocks_reader *reader, tsr_block_record *record, bool *more, tsr_err *err);

void tsr_blocks_reader_end(tsr_blocks_reader *reader);
