/* The layout of an archive's tail, used by archive.c, which reads it, and archive_write.c, which writes it. */
#pragma once

#include <stdint.h>

/* The tail is two skippable frames. Tessera's: magic, size, signature, XXH64 of the rest of the file, a hash per frame,
 * a width per frame. The seek table: magic, size, {packed, plain} per frame including Tessera's skippable frame,
 * footer. */
enum {
    TSR_INFO_MAGIC = 0x184D2A5D,
    TSR_SEEK_MAGIC = 0x184D2A5E,
    TSR_SKIPPABLE_HEAD = 8,
    TSR_SIGNATURE_BYTES = 8,
    TSR_INFO_FIXED = TSR_SKIPPABLE_HEAD + TSR_SIGNATURE_BYTES + 8,
    TSR_INFO_ENTRY = 9, /* hash, width */
    TSR_SEEK_ENTRY = 8,
    TSR_FOOTER_BYTES = 9,
    TSR_TAIL_FIXED = TSR_INFO_FIXED + TSR_SKIPPABLE_HEAD + TSR_SEEK_ENTRY + TSR_FOOTER_BYTES,
};

#define TSR_FOOTER_MAGIC      0x8F92EAB1u
#define TSR_ARCHIVE_SIGNATURE "TSRARCH1"                /* TSR_SIGNATURE_BYTES bytes, without the NUL */
#define TSR_MAX_FRAMES        (UINT64_C(0x8000000) - 1) /* limit of zstd's seekable format */

/* Byte offsets of the parts of a tail for `frames` frames. */
typedef struct tsr_archive_layout {
    uint64_t hashes, widths, seek, entries, footer, bytes;
} tsr_archive_layout;

static inline tsr_archive_layout tsr_archive_lay_out(uint64_t frames)
{
    tsr_archive_layout l;
    l.hashes = TSR_INFO_FIXED;
    l.widths = l.hashes + 8 * frames;
    l.seek = l.widths + frames;
    l.entries = l.seek + TSR_SKIPPABLE_HEAD;
    l.footer = l.entries + TSR_SEEK_ENTRY * (frames + 1);
    l.bytes = l.footer + TSR_FOOTER_BYTES;
    return l;
}

static inline void tsr_put_32(uint8_t *to, uint64_t value)
{
    for (int i = 0; i < 4; i++)
        to[i] = (uint8_t)(value >> (8 * i));
}

static inline void tsr_put_64(uint8_t *to, uint64_t value)
{
    tsr_put_32(to, value);
    tsr_put_32(to + 4, value >> 32);
}

static inline uint32_t tsr_get_32(const uint8_t *from)
{
    return (uint32_t)from[0] | (uint32_t)from[1] << 8 | (uint32_t)from[2] << 16 | (uint32_t)from[3] << 24;
}

static inline uint64_t tsr_get_64(const uint8_t *from)
{
    return tsr_get_32(from) | (uint64_t)tsr_get_32(from + 4) << 32;
}

/* Returns the XXH64 of all bytes of a tail after the position of that hash. */
uint64_t tsr_archive_tail_hash(const uint8_t *tail, const tsr_archive_layout *l);
