/* Reads the header of one safetensors file with every rule checked, or writes one.
 *
 * Layout: u64 little-endian N; N bytes of JSON; the tensors' bytes, without gaps or overlap, to the end of the file.
 * Rules: safetensors/src/tensor.rs and its README ("Format"). */
#pragma once

#include "common/arena.h"
#include "common/status.h"
#include "common/text.h"
#include "formats/checkpoint/archive.h"
#include "formats/checkpoint/dtype.h"

#include <stddef.h>
#include <stdint.h>

enum { TSR_MAX_RANK = 8 };

#define TSR_MAX_HEADER_BYTES 100000000u /* the limit of safetensors' own reader */

/* Values of .source for a tensor that no file holds but that is computed from others, by decoding or copying. The code
 * that makes it defines the meaning of .offset. */
#define TSR_SOURCE_DECODED  UINT16_MAX
#define TSR_SOURCE_GATHERED (UINT16_MAX - 1)

/* The position and meaning of one tensor's bytes. Names are borrowed from the owner's arena. */
typedef struct tsr_tensor {
    const char *name;
    uint64_t shape[TSR_MAX_RANK];
    uint64_t offset; /* offset of the first byte in the file */
    uint64_t bytes;
    uint32_t file;   /* index in the owner's table of files */
    uint16_t source; /* number of the checkpoint, for plans that read several; opening sets 0 */
    uint8_t rank;
    uint8_t dtype; /* a tsr_dtype */
} tsr_tensor;

static inline bool tsr_tensor_is_made(const tsr_tensor *t)
{
    return t->source >= TSR_SOURCE_GATHERED;
}

/* A growing table of tensors. A zero-initialized one is empty; `items` is freed by tsr_tensors_free. */
typedef struct tsr_tensors {
    tsr_tensor *items;
    size_t count, capacity;
} tsr_tensors;

tsr_status tsr_tensors_add(tsr_tensors *tensors, const tsr_tensor *tensor, tsr_err *err);
void tsr_tensors_free(tsr_tensors *tensors);

/* Returns the product of the shape, 1 for a scalar. It does not overflow, because shapes were checked. */
uint64_t tsr_tensor_elements(const tsr_tensor *tensor);

/* Returns that of n tensors which the error records, such as a scale; otherwise `first`. */
const tsr_tensor *tsr_tensor_of_error(const tsr_err *err, const tsr_tensor *const *tensors, uint32_t n,
                                      const tsr_tensor *first);

bool tsr_same_shape(const tsr_tensor *a, const tsr_tensor *b);

/* Writes the shape, "[576, 7168]", to `text` (at least 192 bytes) and returns `text`. */
const char *tsr_shape_text(const tsr_tensor *tensor, char *text, size_t size);

/* Writes ", file offset 4096" for the element with this flat index to `text` (at least 48 bytes) and returns `text`. It
 * is empty for a tensor that no file holds. */
const char *tsr_offset_text(const tsr_tensor *tensor, uint64_t element, char *text, size_t size);

/* Reads and checks the header of `in`, and appends its tensors sorted by offset, each with `.file = file`. *header_hash
 * receives the XXH3-64 of the header.
 * TSR_E_FORMAT for every broken rule, with the tensor and the offsets. The message identifies Git LFS pointers. */
tsr_status tsr_safetensors_read(const tsr_input *in, uint32_t file, tsr_arena *arena, tsr_tensors *tensors,
                                uint64_t *header_hash, tsr_err *err);

/* Parses a header in memory: `text` without the 8 length bytes. `data_bytes` of tensors follow it in the file. */
tsr_status tsr_safetensors_parse(const char *path, const char *text, size_t length, uint64_t data_bytes, uint32_t file,
                                 tsr_arena *arena, tsr_tensors *tensors, tsr_err *err);

/* Appends the 8 length bytes and the header for `tensors`, whose offsets follow from their order. It is padded with
 * spaces to a multiple of 8 and has `__metadata__` {"format":"pt"}. */
void tsr_safetensors_write_header(tsr_text *out, tsr_tensor *const *tensors, size_t count);
