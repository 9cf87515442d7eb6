/* Reads the header of a GGUF file, with every size checked against the file. */
#include "formats/importance/gguf.h"

#include "common/checked.h"

#include <string.h>

enum { MOST_TENSORS = 1 << 20, MOST_NAME = 1 << 12, DEFAULT_ALIGNMENT = 32, MOST_NESTED = 4 };

/* Types of metadata values. */
enum { GGUF_U32 = 4, GGUF_STRING = 8, GGUF_ARRAY = 9 };

typedef struct cursor {
    const char *path;
    const unsigned char *data;
    size_t size, at;
    tsr_err *err;
} cursor;

static tsr_status damaged(const cursor *c, const char *what)
{
    return tsr_fail(c->err, TSR_E_FORMAT, "%s: offset %zu: %s: the GGUF file is damaged or incomplete", c->path, c->at,
                    what);
}

/* Reads n little-endian numbers of `size` bytes; 0 after a failure. */
static tsr_status take(cursor *c, void *to, size_t n, size_t size)
{
    memset(to, 0, n * size);
    if (n * size > c->size - c->at)
        return damaged(c, "the header ends early");
    memcpy(to, c->data + c->at, n * size);
    c->at += n * size;
    return TSR_OK;
}

static tsr_status take_u32(cursor *c, uint32_t *x)
{
    return take(c, x, 1, sizeof *x);
}

static tsr_status take_u64(cursor *c, uint64_t *x)
{
    return take(c, x, 1, sizeof *x);
}

static tsr_status skip(cursor *c, uint64_t count, uint64_t each)
{
    uint64_t bytes;
    if (!tsr_mul_u64(count, each, &bytes) || bytes > c->size - c->at)
        return damaged(c, "a value is longer than the file");
    c->at += (size_t)bytes;
    return TSR_OK;
}

/* Reads a string. *text points into the file. */
static tsr_status take_string(cursor *c, const char **text, uint64_t *length)
{
    TSR_TRY(take_u64(c, length));
    *text = (const char *)c->data + c->at;
    return skip(c, *length, 1);
}

/* Returns the bytes of a value of a fixed size; 0 for other types. */
static size_t bytes_of(uint32_t type)
{
    static const uint8_t kBytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    return type < sizeof kBytes ? kBytes[type] : 0;
}

static tsr_status skip_value(cursor *c, uint32_t type, unsigned depth)
{
    const char *text;
    uint64_t count;
    if (bytes_of(type) != 0)
        return skip(c, 1, bytes_of(type));
    if (type == GGUF_STRING)
        return take_string(c, &text, &count);
    if (type != GGUF_ARRAY || depth == MOST_NESTED)
        return damaged(c, "unknown type of a value");
    TSR_TRY(take_u32(c, &type));
    TSR_TRY(take_u64(c, &count));
    if (bytes_of(type) != 0)
        return skip(c, count, bytes_of(type));
    for (uint64_t i = 0; i < count; i++)
        TSR_TRY(skip_value(c, type, depth + 1));
    return TSR_OK;
}

/* Reads general.type and general.alignment, and skips other values. */
static tsr_status read_values(cursor *c, uint64_t count, tsr_gguf *gguf, uint32_t *alignment, tsr_arena *arena)
{
    for (uint64_t i = 0; i < count; i++) {
        const char *key, *text;
        uint64_t length, size;
        uint32_t type;
        TSR_TRY(take_string(c, &key, &length));
        TSR_TRY(take_u32(c, &type));
        if (length == 12 && memcmp(key, "general.type", 12) == 0 && type == GGUF_STRING) {
            TSR_TRY(take_string(c, &text, &size));
            gguf->type = tsr_arena_dup(arena, text, size < MOST_NAME ? (size_t)size : MOST_NAME);
        } else if (length == 17 && memcmp(key, "general.alignment", 17) == 0 && type == GGUF_U32) {
            TSR_TRY(take_u32(c, alignment));
        } else {
            TSR_TRY(skip_value(c, type, 0));
        }
    }
    if (*alignment == 0 || *alignment % 8 != 0)
        return damaged(c, "general.alignment is not a multiple of 8");
    return TSR_OK;
}

static tsr_status read_tensor(cursor *c, tsr_gguf_tensor *t, tsr_arena *arena)
{
    const char *name;
    uint64_t length;
    uint32_t rank;
    TSR_TRY(take_string(c, &name, &length));
    if (length > MOST_NAME || memchr(name, '\0', (size_t)length) != NULL)
        return damaged(c, "invalid name of a tensor");
    TSR_TRY(take_u32(c, &rank));
    if (rank > TSR_GGUF_DIMENSIONS)
        return damaged(c, "a tensor has more than four dimensions");
    *t = (tsr_gguf_tensor){.name = tsr_arena_dup(arena, name, (size_t)length), .size = {1, 1, 1, 1}};
    TSR_TRY(take(c, t->size, rank, sizeof *t->size));
    TSR_TRY(take_u32(c, &t->type));
    return take_u64(c, &t->offset);
}

/* Makes the offset relative to the file. */
static tsr_status place(const cursor *c, tsr_gguf_tensor *t, uint64_t data)
{
    uint64_t bytes = sizeof(float), end;
    bool fits = true;
    for (unsigned i = 0; i < TSR_GGUF_DIMENSIONS; i++)
        fits = fits && tsr_mul_u64(bytes, t->size[i], &bytes);
    fits = fits && tsr_add_u64(t->offset, data, &t->offset) && tsr_add_u64(t->offset, bytes, &end) && end <= c->size;
    if (t->type == TSR_GGUF_F32 && !fits)
        return tsr_fail(c->err, TSR_E_FORMAT, "%s: '%s' is not within the file: the GGUF file is damaged or incomplete",
                        c->path, t->name);
    return TSR_OK;
}

bool tsr_gguf_is(const void *data, size_t size)
{
    return size >= 4 && memcmp(data, "GGUF", 4) == 0;
}

tsr_status tsr_gguf_read(tsr_gguf *gguf, const char *path, const void *data, size_t size, tsr_arena *arena,
                         tsr_err *err)
{
    cursor c = {.path = path, .data = data, .size = size, .err = err};
    uint32_t version, alignment = DEFAULT_ALIGNMENT;
    uint64_t tensors, values;
    *gguf = (tsr_gguf){.type = ""};
    TSR_TRY(skip(&c, 4, 1));
    TSR_TRY(take_u32(&c, &version));
    if (version != 2 && version != 3)
        return tsr_fail(err, TSR_E_UNSUPPORTED, "%s: GGUF version %u: versions 2 and 3, little-endian, are read", path,
                        version);
    TSR_TRY(take_u64(&c, &tensors));
    TSR_TRY(take_u64(&c, &values));
    if (tensors > MOST_TENSORS)
        return damaged(&c, "more than a million tensors");
    TSR_TRY(read_values(&c, values, gguf, &alignment, arena));
    gguf->tensors = tsr_arena_alloc(arena, ((size_t)tensors + 1) * sizeof *gguf->tensors);
    if (gguf->tensors == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "%s: out of memory", path);
    for (; gguf->count < tensors; gguf->count++)
        TSR_TRY(read_tensor(&c, &gguf->tensors[gguf->count], arena));
    const uint64_t begin = tsr_round_up(c.at, alignment);
    for (size_t i = 0; i < gguf->count && gguf->tensors[i].name != NULL; i++)
        TSR_TRY(place(&c, &gguf->tensors[i], begin));
    return tsr_arena_status(arena, TSR_OK, err);
}
