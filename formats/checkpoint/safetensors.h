/* One safetensors file: its header read with every rule checked, or written.
 *
 * Layout: u64 little-endian N; N bytes of JSON; the tensors' bytes, without gap or overlap, to the end of the file.
 * Rules: safetensors/src/tensor.rs and its README ("Format"). */
#ifndef TSR_FORMATS_CHECKPOINT_SAFETENSORS_H
#define TSR_FORMATS_CHECKPOINT_SAFETENSORS_H

#include "common/arena.h"
#include "common/status.h"
#include "common/text.h"
#include "formats/checkpoint/archive.h"
#include "formats/checkpoint/dtype.h"

#include <stddef.h>
#include <stdint.h>

enum { TSR_MAX_RANK = 8 };

#define TSR_MAX_HEADER_BYTES 100000000u /* the cap of the format's own reader */

/* The .source of a tensor that no file holds, but that is made of others on the way, decoded or taken out of them as it is:
 * its .offset is the maker's own. */
#define TSR_SOURCE_DECODED  UINT16_MAX
#define TSR_SOURCE_GATHERED (UINT16_MAX - 1)

/* The place and meaning of one tensor's bytes. Names are borrowed from the owner's arena. */
typedef struct tsr_tensor {
    const char *name;
    uint64_t shape[TSR_MAX_RANK];
    uint64_t offset; /* of the first byte, from the start of the file */
    uint64_t bytes;
    uint32_t file;   /* index in the owner's table of files */
    uint16_t source; /* which checkpoint, for plans that read several; opening sets 0 */
    uint8_t rank;
    uint8_t dtype; /* a tsr_dtype */
} tsr_tensor;

static inline bool tsr_tensor_is_made(const tsr_tensor *t)
{
    return t->source >= TSR_SOURCE_GATHERED;
}

/* A growing table of tensors. Zero-initialised is empty; `items` is freed by tsr_tensors_free. */
typedef struct tsr_tensors {
    tsr_tensor *items;
    size_t count, capacity;
} tsr_tensors;

tsr_status tsr_tensors_add(tsr_tensors *tensors, const tsr_tensor *tensor, tsr_err *err) TSR_WARN_UNUSED;
void tsr_tensors_free(tsr_tensors *tensors);

/* Product of the shape; shapes in a tsr_tensor have been checked, so it fits. 1 for a scalar. */
uint64_t tsr_tensor_elements(const tsr_tensor *tensor);

/* "[576, 7168]" into `text` (at least 192 bytes). Returns text. */
const char *tsr_shape_text(const tsr_tensor *tensor, char *text, size_t size);

/* ", file offset 4096" of an element by its flat index; empty for a tensor that no file holds. `text` has at least 48 bytes.
 * Returns text. */
const char *tsr_offset_text(const tsr_tensor *tensor, uint64_t element, char *text, size_t size);

/* Reads and checks the header of `in`, and appends its tensors in the order of their bytes, each with `.file = file`.
 * *header_hash is the XXH3-64 of the header.
 * TSR_E_FORMAT for every broken rule, with the tensor and the offsets; Git-LFS pointers are named as such. */
tsr_status tsr_safetensors_read(const tsr_input *in, uint32_t file, tsr_arena *arena, tsr_tensors *tensors,
                                uint64_t *header_hash, tsr_err *err) TSR_WARN_UNUSED;

/* Parses a header in memory: `text` without the 8 length bytes; `data_bytes` of tensors follow it in the file. */
tsr_status tsr_safetensors_parse(const char *path, const char *text, size_t length, uint64_t data_bytes, uint32_t file,
                                 tsr_arena *arena, tsr_tensors *tensors, tsr_err *err) TSR_WARN_UNUSED;

/* Appends the 8 length bytes and the header for `tensors` (in the order of their bytes, their offsets follow
 * from it), padded with spaces to a multiple of 8, with `__metadata__` {"format":"pt"}. */
void tsr_safetensors_write_header(tsr_text *out, tsr_tensor *const *tensors, size_t count);

#endif
