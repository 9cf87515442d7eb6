/* Reads and checks the header of a safetensors file. The input is untrusted until every rule has been checked. */
#include "formats/checkpoint/safetensors.h"

#include "common/checked.h"
#include "common/grow.h"
#include "formats/json/json.h"
#include "formats/json/json_write.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

tsr_status tsr_tensors_add(tsr_tensors *tensors, const tsr_tensor *tensor, tsr_err *err)
{
    if (!tsr_grow(&tensors->items, tensors->count, &tensors->capacity, sizeof *tensors->items))
        return tsr_fail(err, TSR_E_NOMEM, "out of memory for a table of %zu tensors", tensors->count + 1);
    tensors->items[tensors->count++] = *tensor;
    return TSR_OK;
}

void tsr_tensors_free(tsr_tensors *tensors)
{
    free(tensors->items);
    *tensors = (tsr_tensors){0};
}

bool tsr_same_shape(const tsr_tensor *a, const tsr_tensor *b)
{
    return a->rank == b->rank && memcmp(a->shape, b->shape, a->rank * sizeof *a->shape) == 0;
}

uint64_t tsr_tensor_elements(const tsr_tensor *tensor)
{
    uint64_t n = 1;
    for (unsigned i = 0; i < tensor->rank; i++)
        n *= tensor->shape[i];
    return n;
}

const tsr_tensor *tsr_tensor_of_error(const tsr_err *err, const tsr_tensor *const *tensors, uint32_t n,
                                      const tsr_tensor *first)
{
    for (uint32_t i = 0; err != NULL && i < n; i++) {
        if (strcmp(err->tensor, tensors[i]->name) == 0)
            return tensors[i];
    }
    return first;
}

const char *tsr_offset_text(const tsr_tensor *tensor, uint64_t element, char *text, size_t size)
{
    text[0] = '\0';
    if (!tsr_tensor_is_made(tensor))
        snprintf(text, size, ", file offset %llu",
                 U64(tensor->offset + element * tsr_dtype_bytes((tsr_dtype)tensor->dtype)));
    return text;
}

const char *tsr_shape_text(const tsr_tensor *tensor, char *text, size_t size)
{
    size_t used = (size_t)snprintf(text, size, "[");
    for (unsigned i = 0; i < tensor->rank && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, i == 0 ? "%llu" : ", %llu", U64(tensor->shape[i]));
    if (used < size)
        snprintf(text + used, size - used, "]");
    return text;
}

/* State while a header is read, for positions in messages. */
typedef struct header_reader {
    tsr_json_reader json;
    const char *path;
    tsr_arena *arena;
    uint64_t data_offset, data_bytes;
    tsr_err *err;
} header_reader;

static tsr_status read_shape(header_reader *h, tsr_tensor *t)
{
    tsr_err *const err = h->err;
    bool more;
    t->rank = 0;
    TSR_TRY(tsr_json_enter_array(&h->json, err));
    for (;;) {
        TSR_TRY(tsr_json_next_element(&h->json, &more, err));
        if (!more)
            return TSR_OK;
        if (t->rank == TSR_MAX_RANK)
            return tsr_fail(err, TSR_E_UNSUPPORTED, "%s: '%s': more than %d dimensions", h->path, t->name,
                            TSR_MAX_RANK);
        TSR_TRY(tsr_json_read_u64(&h->json, &t->shape[t->rank], err));
        t->rank++;
    }
}

static tsr_status read_offsets(header_reader *h, tsr_tensor *t)
{
    tsr_err *const err = h->err;
    uint64_t at[2];
    bool more;
    TSR_TRY(tsr_json_enter_array(&h->json, err));
    for (int i = 0; i < 3; i++) {
        TSR_TRY(tsr_json_next_element(&h->json, &more, err));
        if (more != (i < 2))
            return tsr_fail(err, TSR_E_FORMAT, "%s: '%s': data_offsets must be [begin, end]", h->path, t->name);
        if (more)
            TSR_TRY(tsr_json_read_u64(&h->json, &at[i], err));
    }
    if (at[1] < at[0])
        return tsr_fail(err, TSR_E_FORMAT, "%s: '%s': data_offsets [%llu, %llu] end before they begin", h->path,
                        t->name, U64(at[0]), U64(at[1]));
    if (at[1] > h->data_bytes)
        return tsr_fail_as(err, TSR_ERROR_TRUNCATED, TSR_E_FORMAT,
                           "%s: '%s': data_offsets [%llu, %llu] exceed the %llu bytes of data in the file; the file is "
                           "truncated or its header is wrong",
                           h->path, t->name, U64(at[0]), U64(at[1]), U64(h->data_bytes));
    t->offset = at[0];
    t->bytes = at[1] - at[0];
    return TSR_OK;
}

static tsr_status check_size(const header_reader *h, const tsr_tensor *t)
{
    uint64_t elements = 1, bits = 0;
    bool fits = true;
    for (unsigned i = 0; i < t->rank; i++)
        fits = fits && tsr_mul_u64(elements, t->shape[i], &elements);
    fits = fits && tsr_mul_u64(elements, tsr_dtype_bits(t->dtype), &bits);
    if (fits && bits % 8 == 0 && bits / 8 == t->bytes)
        return TSR_OK;
    char shape[256];
    tsr_shape_text(t, shape, sizeof shape);
    if (!fits)
        return tsr_fail(h->err, TSR_E_FORMAT, "%s: '%s': the size of shape %s overflows", h->path, t->name, shape);
    if (bits % 8 != 0)
        return tsr_fail(h->err, TSR_E_FORMAT, "%s: '%s': shape %s of %s is not a whole number of bytes", h->path,
                        t->name, shape, tsr_dtype_name(t->dtype));
    return tsr_fail(h->err, TSR_E_FORMAT,
                    "%s: '%s': data_offsets [%llu, %llu] hold %llu bytes, but shape %s of %s "
                    "needs %llu",
                    h->path, t->name, U64(t->offset), U64(t->offset + t->bytes), U64(t->bytes), shape,
                    tsr_dtype_name(t->dtype), U64(bits / 8));
}

static tsr_status read_tensor(header_reader *h, tsr_tensor *t)
{
    tsr_err *const err = h->err;
    tsr_json_reader *const r = &h->json;
    bool more, has_dtype = false, has_shape = false, has_offsets = false;
    TSR_TRY(tsr_json_enter_object(r, err));
    for (;;) {
        tsr_json_text key, name;
        TSR_TRY(tsr_json_next_member(r, &key, &more, err));
        if (!more)
            break;
        bool *const seen = tsr_json_is(key, "dtype")          ? &has_dtype
                           : tsr_json_is(key, "shape")        ? &has_shape
                           : tsr_json_is(key, "data_offsets") ? &has_offsets
                                                              : NULL;
        if (seen == NULL) {
            TSR_TRY(tsr_json_skip(r, NULL, err));
            continue;
        }
        if (*seen)
            return tsr_fail(err, TSR_E_FORMAT, "%s: '%s': duplicate key '%.*s'", h->path, t->name, (int)key.size,
                            key.data);
        *seen = true;
        if (seen == &has_shape) {
            TSR_TRY(read_shape(h, t));
        } else if (seen == &has_offsets) {
            TSR_TRY(read_offsets(h, t));
        } else {
            tsr_dtype dtype;
            const char *word;
            TSR_TRY(tsr_json_read_string(r, &name, err));
            if (name.escaped) {
                TSR_TRY(tsr_json_decode(r, name, h->arena, &word, err));
                name = (tsr_json_text){.data = word, .size = strlen(word)};
            }
            if (!tsr_dtype_from_name(name.data, name.size, &dtype))
                return tsr_fail(err, TSR_E_FORMAT, "%s: '%s': unknown dtype '%.*s'", h->path, t->name,
                                (int)tsr_min_u64(name.size, 40), name.data);
            t->dtype = (uint8_t)dtype;
        }
    }
    if (!has_dtype || !has_shape || !has_offsets)
        return tsr_fail(err, TSR_E_FORMAT, "%s: '%s': no %s", h->path, t->name,
                        !has_dtype   ? "dtype"
                        : !has_shape ? "shape"
                                     : "data_offsets");
    return check_size(h, t);
}

/* Checks `__metadata__`, which maps strings to strings. Its values are not used, but an invalid one makes the file
 * invalid. */
static tsr_status read_metadata(header_reader *h)
{
    tsr_json_text key, value;
    tsr_json_kind kind;
    bool more;
    TSR_TRY(tsr_json_peek(&h->json, &kind, h->err));
    if (kind == TSR_JSON_NULL) /* null means the same as an absent `__metadata__` */
        return tsr_json_skip(&h->json, NULL, h->err);
    TSR_TRY(tsr_json_enter_object(&h->json, h->err));
    for (;;) {
        TSR_TRY(tsr_json_next_member(&h->json, &key, &more, h->err));
        if (!more)
            return TSR_OK;
        if (tsr_json_read_string(&h->json, &value, h->err) != TSR_OK)
            return tsr_fail(h->err, TSR_E_FORMAT, "%s: __metadata__: '%.*s' is not a string", h->path,
                            (int)tsr_min_u64(key.size, 80), key.data);
    }
}

static int by_offset(const void *a, const void *b)
{
    const tsr_tensor *const x = a, *const y = b;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    /* An empty tensor sorts before the tensor at the same offset. */
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? -1 : 1;
    return strcmp(x->name, y->name);
}

/* Checks that tensors leave no gaps, do not overlap, and end at the end of the file. */
static tsr_status check_coverage(const header_reader *h, tsr_tensor *tensors, size_t count)
{
    if (count > 1)
        qsort(tensors, count, sizeof *tensors, by_offset);
    uint64_t end = 0;
    for (size_t i = 0; i < count; i++) {
        const tsr_tensor *const t = &tensors[i];
        if (t->offset < end && strcmp(t->name, tensors[i - 1].name) == 0)
            return tsr_fail(h->err, TSR_E_FORMAT, "%s: duplicate tensor '%s' in the header", h->path, t->name);
        if (t->offset != end)
            return tsr_fail(h->err, TSR_E_FORMAT,
                            "%s: '%s' begins at data offset %llu, but the bytes before it end at "
                            "%llu: %s",
                            h->path, t->name, U64(t->offset), U64(end),
                            t->offset < end ? "tensors overlap" : "a hole in the data");
        end += t->bytes;
        tensors[i].offset += h->data_offset;
    }
    if (end != h->data_bytes)
        return tsr_fail(h->err, TSR_E_FORMAT,
                        "%s: %llu extra bytes after the last tensor, which ends at file offset %llu", h->path,
                        U64(h->data_bytes - end), U64(h->data_offset + end));
    return TSR_OK;
}

static tsr_status read_header_text(header_reader *h, uint32_t file, tsr_tensors *tensors)
{
    tsr_err *const err = h->err;
    const size_t first = tensors->count;
    bool more, has_metadata = false;
    TSR_TRY(tsr_json_enter_object(&h->json, err));
    for (;;) {
        tsr_json_text key;
        TSR_TRY(tsr_json_next_member(&h->json, &key, &more, err));
        if (!more)
            break;
        if (tsr_json_is(key, "__metadata__")) {
            if (has_metadata)
                return tsr_fail(err, TSR_E_FORMAT, "%s: duplicate __metadata__", h->path);
            has_metadata = true;
            TSR_TRY(read_metadata(h));
            continue;
        }
        tsr_tensor tensor = {.file = file};
        TSR_TRY(tsr_json_decode(&h->json, key, h->arena, &tensor.name, err));
        if (tensor.name[0] == '\0')
            return tsr_fail(err, TSR_E_FORMAT, "%s: a tensor without a name", h->path);
        TSR_TRY(read_tensor(h, &tensor));
        TSR_TRY(tsr_tensors_add(tensors, &tensor, err));
    }
    TSR_TRY(tsr_json_finish(&h->json, err));
    const size_t count = tensors->count - first;
    return check_coverage(h, count == 0 ? NULL : tensors->items + first, count);
}

/* Names the kind of file that begins with `head` although its name ends in .safetensors; NULL: unknown. */
static const char *name_contents(const unsigned char *head, size_t size, tsr_error_id *id)
{
    static const struct {
        const char *bytes, *what;
        size_t n;
        bool any_case;
        tsr_error_id id;
    } kKinds[] = {
#define KIND_AS(id, bytes, any_case, what) {bytes, what, sizeof bytes - 1, any_case, id}
#define KIND(bytes, any_case, what)        KIND_AS(TSR_ERROR_NONE, bytes, any_case, what)
        KIND_AS(TSR_ERROR_GIT_LFS, "version https://git-lfs", false,
                "a Git LFS pointer, not the file itself: run 'git lfs pull' there"),
        KIND("<!doctype html", true, "an HTML page, as from a failed download: download the file again"),
        KIND("<html", true, "an HTML page, as from a failed download: download the file again"),
        KIND("<?xml", true, "an XML text, as from a failed download: download the file again"),
        KIND_AS(TSR_ERROR_OTHER_FORMATS, "GGUF", false, "a GGUF file, which Tessera does not read"),
        KIND_AS(TSR_ERROR_OTHER_FORMATS, "PK\x03\x04", false,
                "a zip archive, such as torch.save writes: convert it to safetensors with PyTorch first"),
        KIND_AS(TSR_ERROR_OTHER_FORMATS, "\x80\x02", false,
                "a Python pickle: convert it to safetensors with PyTorch first"),
        KIND_AS(TSR_ERROR_OTHER_FORMATS, "\x80\x04", false,
                "a Python pickle: convert it to safetensors with PyTorch first"),
        KIND("\x28\xB5\x2F\xFD", false, "compressed with zstd: Tessera reads it if its name ends in .safetensors.zst"),
        KIND("\x1F\x8B", false, "compressed with gzip: unpack it first"),
        KIND("\x89HDF", false, "an HDF5 file, which Tessera does not read"),
        KIND("\x93NUMPY", false, "a NumPy array, which Tessera does not read"),
        KIND("{", false, "JSON: possibly an index, or an error message of the server it was downloaded from"),
        KIND("Entry not found", false, "the Hub's error message 'no such file'"),
        KIND("Repository not found", false, "the Hub's error message 'no such repository'"),
        KIND("Invalid username or password", false, "the Hub's error message for a download without login"),
        KIND("Access to model", false, "the Hub's error message for a download without access"),
#undef KIND
#undef KIND_AS
    };
    while (size > 0 && (*head == ' ' || *head == '\n' || *head == '\r' || *head == '\t')) {
        head++;
        size--;
    }
    for (size_t i = 0; i < sizeof kKinds / sizeof *kKinds; i++) {
        if (kKinds[i].n <= size && (kKinds[i].any_case ? strncasecmp((const char *)head, kKinds[i].bytes, kKinds[i].n)
                                                       : memcmp(head, kKinds[i].bytes, kKinds[i].n)) == 0) {
            *id = kKinds[i].id;
            return kKinds[i].what;
        }
    }
    return NULL;
}

/* Rejects a file that is too short or has an absurd header length. It is usually another kind of file, which the
 * message names. */
static tsr_status check_length(const tsr_input *in, uint64_t *length, tsr_err *err)
{
    const char *const path = in->path;
    const uint64_t size = in->size;
    enum { HEAD = 64 };
    unsigned char head[HEAD] = {0};
    const size_t read = (size_t)tsr_min_u64(size, sizeof head);
    TSR_TRY(tsr_input_read(in, head, read, 0, err));
    *length = 0;
    for (int i = 0; i < 8; i++)
        *length |= (uint64_t)head[i] << (8 * i);
    const bool plausible = size >= 8 && *length <= TSR_MAX_HEADER_BYTES && *length <= size - 8;
    const bool object = size > 8 && memchr("{ \n\r\t", head[8], 5) != NULL; /* position of a JSON header */
    tsr_error_id id;
    const char *const what = plausible && object ? NULL : name_contents(head, read, &id);
    if (what != NULL)
        return tsr_fail_as(err, id, TSR_E_FORMAT, "%s: not a safetensors file but %s", path, what);
    if (size < 8)
        return tsr_fail(err, TSR_E_FORMAT,
                        "%s: %llu bytes: too short for a safetensors file (8 bytes of header length)", path, U64(size));
    if (*length > TSR_MAX_HEADER_BYTES)
        return tsr_fail(err, TSR_E_FORMAT,
                        "%s: a header of %llu bytes, above the format's limit of %u: not a safetensors "
                        "file, or a damaged one",
                        path, U64(*length), TSR_MAX_HEADER_BYTES);
    if (*length > size - 8)
        return tsr_fail_as(err, TSR_ERROR_TRUNCATED, TSR_E_FORMAT,
                           "%s: the header needs %llu bytes, but the file has %llu: it is truncated", path,
                           U64(*length + 8), U64(size));
    return TSR_OK;
}

tsr_status tsr_safetensors_parse(const char *path, const char *text, size_t length, uint64_t data_bytes, uint32_t file,
                                 tsr_arena *arena, tsr_tensors *tensors, tsr_err *err)
{
    header_reader h = {
        .json = tsr_json_open(path, text, length),
        .path = path,
        .arena = arena,
        .data_offset = 8 + length,
        .data_bytes = data_bytes,
        .err = err,
    };
    return read_header_text(&h, file, tensors);
}

tsr_status tsr_safetensors_read(const tsr_input *in, uint32_t file, tsr_arena *arena, tsr_tensors *tensors,
                                uint64_t *header_hash, tsr_err *err)
{
    const char *const path = in->path;
    uint64_t length = 0;
    TSR_TRY(check_length(in, &length, err));
    char *const whole = malloc((size_t)length + 9), *const text = whole + 8; /* with the 8 length bytes */
    if (whole == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "%s: out of memory for a header of %llu bytes", path, U64(length));
    tsr_status status = tsr_input_read(in, text, (size_t)length, 8, err);
    if (status == TSR_OK) {
        *header_hash = XXH3_64bits(text, (size_t)length);
        status = tsr_safetensors_parse(path, text, (size_t)length, in->size - 8 - length, file, arena, tensors, err);
    }
    if (status == TSR_OK && in->remote != NULL && in->archive == NULL) {
        for (int i = 0; i < 8; i++)
            whole[i] = (char)(length >> (8 * i) & 0xFF);
        tsr_remote_keep_header(in->remote, whole, (size_t)length + 8);
    }
    free(whole);
    return status;
}

static void put(tsr_text *out, const char *json)
{
    tsr_text_append(out, json, strlen(json));
}

void tsr_safetensors_write_header(tsr_text *out, tsr_tensor *const *tensors, size_t count)
{
    const size_t start = out->size;
    unsigned char length[8] = {0};
    tsr_text_append(out, length, sizeof length);
    put(out, "{\"__metadata__\":{\"format\":\"pt\"}");
    uint64_t begin = 0;
    for (size_t i = 0; i < count; i++) {
        const tsr_tensor *const t = tensors[i];
        put(out, ",");
        tsr_json_quoted(out, t->name);
        put(out, ":{\"dtype\":");
        tsr_json_quoted(out, tsr_dtype_name(t->dtype));
        put(out, ",\"shape\":[");
        for (unsigned d = 0; d < t->rank; d++) {
            put(out, d == 0 ? "" : ",");
            tsr_text_u64(out, t->shape[d]);
        }
        put(out, "],\"data_offsets\":[");
        tsr_text_u64(out, begin);
        put(out, ",");
        tsr_text_u64(out, begin += t->bytes);
        put(out, "]}");
    }
    put(out, "}");
    static const char kSpaces[] = "       ";
    tsr_text_append(out, kSpaces, (8 - (out->size - start) % 8) % 8);
    if (out->failed)
        return;
    const uint64_t n = out->size - start - 8;
    for (int i = 0; i < 8; i++)
        out->data[start + (size_t)i] = (char)(n >> (8 * i) & 0xFF);
}
