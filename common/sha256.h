/* SHA-256 of bytes in memory, as stores of objects require it. */
#pragma once

#include <stddef.h>

enum { TSR_SHA256_TEXT = 65 };

/* Writes the digest in hexadecimal, NUL-terminated, to `text`. Returns text. */
const char *tsr_sha256_text(const void *data, size_t size, char text[TSR_SHA256_TEXT]);

/* Does the same without special instructions of the processor: the form for processors without them. */
const char *tsr_sha256_text_plain(const void *data, size_t size, char text[TSR_SHA256_TEXT]);
