/* Reads the header of a GGUF file: its tensors and single metadata values.
 *
 * Source: the specification in ggml, docs/gguf.md, versions 2 and 3. Numbers are little-endian. */
#pragma once

#include "common/arena.h"
#include "common/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TSR_GGUF_DIMENSIONS = 4, TSR_GGUF_F32 = 0 };

typedef struct tsr_gguf_tensor {
    const char *name;
    uint32_t type;                      /* TSR_GGUF_F32, or another type of ggml */
    uint64_t size[TSR_GGUF_DIMENSIONS]; /* the first is contiguous; those that are absent are 1 */
    uint64_t offset;                    /* position of the data in the file */
} tsr_gguf_tensor;

typedef struct tsr_gguf {
    const char *type; /* the value of general.type, or "" */
    tsr_gguf_tensor *tensors;
    size_t count;
} tsr_gguf;

/* Returns true if the file begins like a GGUF file. */
bool tsr_gguf_is(const void *data, size_t size);

/* Reads the header of a file of `size` bytes at `data`. Names and tables are in the arena. `path` is for messages.
 * TSR_E_FORMAT: the header is damaged, or the data of a tensor of type F32 is not within the file. */
tsr_status tsr_gguf_read(tsr_gguf *gguf, const char *path, const void *data, size_t size, tsr_arena *arena,
                         tsr_err *err);
