/* Detects the format of a token file, and reads it. */
#include "verify/forward/tokens/token_file.h"

#include "common/checked.h"
#include "common/file.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_FILE = 1 << 30 };

/* ---- numbers in text ---- */

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Returns true if the text has only numbers and separators. */
static bool is_numbers(const char *text, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        if (!is_digit(text[i]) && strchr(" \t\r\n,;-[]", text[i]) == NULL)
            return false;
    }
    return true;
}

static tsr_status read_numbers(tsr_tokens *t, const char *path, const char *text, size_t size, tsr_token_limits limits,
                               tsr_err *err)
{
    size_t line = 1;
    tsr_status status = tsr_tokens_reserve(t, tsr_min_u64(limits.sequences, size), size / 2 + 1, err);
    for (size_t i = 0; status == TSR_OK && i < size && t->sequences < limits.sequences;) {
        uint64_t id = 0;
        if (!is_digit(text[i])) {
            if ((text[i] == '\n' || text[i] == ']') && t->count > t->first[t->sequences])
                tsr_tokens_end_sequence(t);
            if (text[i] == '-')
                status = tsr_fail(err, TSR_E_VALUE, "%s, line %zu: a token must not be negative", path, line);
            line += text[i++] == '\n';
            continue;
        }
        while (i < size && is_digit(text[i]) && id < limits.vocabulary)
            id = 10 * id + (uint64_t)(text[i++] - '0');
        if (id >= limits.vocabulary)
            status = tsr_fail(err, TSR_E_VALUE, "%s, line %zu: a token is not below the vocabulary size %llu", path,
                              line, U64(limits.vocabulary));
        else if (t->count - t->first[t->sequences] < limits.length)
            t->ids[t->count++] = id;
    }
    if (status == TSR_OK && t->sequences < limits.sequences && t->count > t->first[t->sequences])
        tsr_tokens_end_sequence(t);
    return status;
}

/* ---- integers in bytes ---- */

/* Reads `count` little-endian integers of `width` bytes. Each `row` of them are a sequence, whose first
 * `limits.length` are kept. With row 0 they are cut into sequences of that length. */
static tsr_status read_integers(tsr_tokens *t, const char *path, const unsigned char *bytes, size_t count, size_t width,
                                size_t row, tsr_token_limits limits, tsr_err *err)
{
    const size_t step = row > 0 ? row : limits.length;
    const size_t sequences = (size_t)tsr_min_u64(tsr_ceil_div(count, step), limits.sequences);
    TSR_TRY(tsr_tokens_reserve(t, sequences, count, err));
    for (size_t s = 0; s < sequences; s++) {
        const size_t end = (size_t)tsr_min_u64(count, s * step + tsr_min_u64(step, limits.length));
        for (size_t i = s * step; i < end; i++) {
            uint64_t id = 0;
            for (size_t k = width; k > 0; k--)
                id = id << 8 | bytes[i * width + k - 1];
            if (id >= limits.vocabulary)
                return tsr_fail(err, TSR_E_VALUE, "%s: token %zu is not from 0 to %llu, below the vocabulary", path, i,
                                U64(limits.vocabulary - 1));
            t->ids[t->count++] = id;
        }
        tsr_tokens_end_sequence(t);
    }
    return TSR_OK;
}

/* Reads the integers after "'shape': (" in a header. Returns false if there are more than 2. */
static bool read_shape(const char *header, size_t shape[2], size_t *rank)
{
    const char *at = strstr(header, "'shape': (");
    *rank = 0;
    if (at == NULL)
        return false;
    for (at += 10; *at != ')' && *at != '\0'; at += strspn(at, ", ")) {
        char *end;
        if (!is_digit(*at) || *rank == 2)
            return false;
        shape[(*rank)++] = strtoull(at, &end, 10);
        at = end;
    }
    return *rank > 0;
}

/* Reads NumPy's format, versions 1 to 3 (numpy.lib.format). */
static tsr_status read_npy(tsr_tokens *t, const char *path, const unsigned char *bytes, size_t size,
                           tsr_token_limits limits, tsr_err *err)
{
    enum { MAX_HEADER = 4096 };
    char header[MAX_HEADER + 1];
    const size_t at = size > 6 && bytes[6] >= 2 ? 12 : 10;
    size_t shape[2] = {0, 0}, rank = 0, length = 0, count;
    for (size_t i = at; size >= at && i > 8; i--)
        length = length << 8 | bytes[i - 1];
    if (size < at || length > MAX_HEADER || length > size - at)
        return tsr_fail(err, TSR_E_FORMAT, "%s: invalid .npy header", path);
    memcpy(header, bytes + at, length);
    header[length] = '\0';
    const bool narrow = strstr(header, "'<i4'") != NULL || strstr(header, "'<u4'") != NULL;
    const bool wide = strstr(header, "'<i8'") != NULL || strstr(header, "'<u8'") != NULL;
    if ((!narrow && !wide) || strstr(header, "'fortran_order': False") == NULL || !read_shape(header, shape, &rank))
        return tsr_fail(err, TSR_E_FORMAT,
                        "%s: tokens must be 32-bit or 64-bit integers, [sequences, length] or [tokens], in C order",
                        path);
    const size_t width = narrow ? 4 : 8;
    if (__builtin_mul_overflow(shape[0], rank == 2 ? shape[1] : 1, &count) || count > (size - at - length) / width)
        return tsr_fail(err, TSR_E_FORMAT, "%s: the file ends before the end of its array", path);
    return read_integers(t, path, bytes + at + length, count, width, rank == 2 ? shape[1] : 0, limits, err);
}

/* ---- any ---- */

static tsr_status read_text(tsr_tokens *t, const char *path, const char *model, tsr_token_limits limits, tsr_err *err)
{
    unsigned char *ids;
    size_t bytes;
    TSR_TRY(tsr_tokenize(path, model, &ids, &bytes, err));
    const tsr_status status = read_integers(t, path, ids, bytes / 4, 4, 0, limits, err);
    free(ids);
    return status;
}

static tsr_status read_any(tsr_tokens *t, const char *path, const char *model, const char *text, size_t size,
                           tsr_token_limits limits, tsr_err *err)
{
    const unsigned char *const bytes = (const unsigned char *)text;
    if (size >= 6 && memcmp(bytes, "\x93NUMPY", 6) == 0)
        return read_npy(t, path, bytes, size, limits, err);
    if (memchr(text, '\0', size) != NULL)
        return size % 4 == 0
                   ? read_integers(t, path, bytes, size / 4, 4, 0, limits, err)
                   : tsr_fail(err, TSR_E_FORMAT, "%s: size %zu is not a multiple of 4: not int32 tokens", path, size);
    return is_numbers(text, size) ? read_numbers(t, path, text, size, limits, err)
                                  : read_text(t, path, model, limits, err);
}

tsr_status tsr_tokens_read_file(tsr_tokens *t, const char *path, const char *model, tsr_token_limits limits,
                                tsr_err *err)
{
    tsr_arena arena = {0};
    const char *text;
    size_t size;
    tsr_status status = tsr_read_file(path, MAX_FILE, &arena, &text, &size, err);
    if (status == TSR_OK)
        status = read_any(t, path, model, text, size, limits, err);
    if (status == TSR_OK && t->count == 0)
        status = tsr_fail(err, TSR_E_FORMAT, "%s: no tokens; write them as integers, one sequence per line", path);
    tsr_arena_free(&arena);
    return status;
}
