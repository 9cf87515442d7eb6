/* The pull reader. It does not recurse: an open object or array is only a depth and an expected closing byte. */
#include "formats/json/json.h"

#include <string.h>

tsr_json_reader tsr_json_open(const char *name, const char *text, size_t size)
{
    return (tsr_json_reader){.name = name, .text = text, .size = size};
}

static tsr_status bad(const tsr_json_reader *r, const char *what, tsr_err *err)
{
    size_t line = 1, column = 1;
    for (size_t i = 0; err != NULL && i < r->pos && i < r->size; i++) {
        column = r->text[i] == '\n' ? 1 : column + 1;
        line += r->text[i] == '\n';
    }
    return tsr_fail(err, TSR_E_FORMAT, "%s: not valid JSON at byte %zu (line %zu, column %zu): %s", r->name, r->pos,
                    line, column, what);
}

static void skip_space(tsr_json_reader *r)
{
    while (r->pos < r->size) {
        const char c = r->text[r->pos];
        if (c != ' ' && c != '\n' && c != '\r' && c != '\t')
            break;
        r->pos++;
    }
}

/* Returns the next byte that is not white space, or 0 at the end (a NUL byte is not valid JSON either). */
static char look(tsr_json_reader *r)
{
    skip_space(r);
    return r->pos < r->size ? r->text[r->pos] : '\0';
}

tsr_status tsr_json_peek(tsr_json_reader *r, tsr_json_kind *kind, tsr_err *err)
{
    const char c = look(r);
    switch (c) {
    case '{':
        *kind = TSR_JSON_OBJECT;
        return TSR_OK;
    case '[':
        *kind = TSR_JSON_ARRAY;
        return TSR_OK;
    case '"':
        *kind = TSR_JSON_STRING;
        return TSR_OK;
    case 't':
        *kind = TSR_JSON_TRUE;
        return TSR_OK;
    case 'f':
        *kind = TSR_JSON_FALSE;
        return TSR_OK;
    case 'n':
        *kind = TSR_JSON_NULL;
        return TSR_OK;
    case 'I':
    case 'N':
        *kind = TSR_JSON_NOT_FINITE;
        return TSR_OK;
    default:
        if (c == '-' && r->pos + 1 < r->size && r->text[r->pos + 1] == 'I') {
            *kind = TSR_JSON_NOT_FINITE;
            return TSR_OK;
        }
        if (c == '-' || (c >= '0' && c <= '9')) {
            *kind = TSR_JSON_NUMBER;
            return TSR_OK;
        }
        return bad(r, r->pos >= r->size ? "the text ends before a value" : "invalid value", err);
    }
}

static tsr_status enter(tsr_json_reader *r, char open, const char *what, tsr_err *err)
{
    if (look(r) != open)
        return bad(r, what, err);
    if (r->depth == TSR_JSON_MAX_DEPTH)
        return bad(r, "nested too deeply", err);
    r->pos++;
    r->depth++;
    r->fresh = true;
    return TSR_OK;
}

tsr_status tsr_json_enter_object(tsr_json_reader *r, tsr_err *err)
{
    return enter(r, '{', "expected an object", err);
}

tsr_status tsr_json_enter_array(tsr_json_reader *r, tsr_err *err)
{
    return enter(r, '[', "expected an array", err);
}

/* Skips the comma between members or elements, or the closing byte. */
static tsr_status next(tsr_json_reader *r, char close, bool *more, tsr_err *err)
{
    const char c = look(r);
    *more = c != close;
    if (!*more) {
        r->pos++;
        r->depth--;
        r->fresh = false;
        return TSR_OK;
    }
    if (r->fresh) {
        r->fresh = false;
        return TSR_OK;
    }
    if (c != ',')
        return bad(r, close == '}' ? "expected ',' or '}'" : "expected ',' or ']'", err);
    const size_t comma = r->pos++;
    if (look(r) != close)
        return TSR_OK;
    r->pos = comma;
    return bad(r, close == '}' ? "a comma before '}'" : "a comma before ']'", err);
}

tsr_status tsr_json_next_member(tsr_json_reader *r, tsr_json_text *key, bool *more, tsr_err *err)
{
    TSR_TRY(next(r, '}', more, err));
    if (!*more)
        return TSR_OK;
    TSR_TRY(tsr_json_read_string(r, key, err));
    if (look(r) != ':')
        return bad(r, "expected ':' after a key", err);
    r->pos++;
    return TSR_OK;
}

tsr_status tsr_json_next_element(tsr_json_reader *r, bool *more, tsr_err *err)
{
    return next(r, ']', more, err);
}

tsr_status tsr_json_read_array(tsr_json_reader *r, tsr_json_element_fn *element, void *context, tsr_err *err)
{
    bool more;
    TSR_TRY(tsr_json_enter_array(r, err));
    for (;;) {
        TSR_TRY(tsr_json_next_element(r, &more, err));
        if (!more)
            return TSR_OK;
        TSR_TRY(element(context, err));
    }
}

/* Returns the length of the UTF-8 sequence at p (at most `room` bytes), or 0 if it is invalid. RFC 3629 forbids
 * overlong forms, surrogates and values above U+10FFFF. */
static size_t utf8_length(const unsigned char *p, size_t room)
{
    const unsigned char a = p[0];
    if (a < 0x80)
        return 1;
    if (a < 0xC2 || a > 0xF4)
        return 0;
    const size_t n = a < 0xE0 ? 2 : a < 0xF0 ? 3 : 4;
    if (room < n)
        return 0;
    const unsigned char lowest = a == 0xE0 ? 0xA0 : a == 0xF0 ? 0x90 : 0x80;
    const unsigned char highest = a == 0xED ? 0x9F : a == 0xF4 ? 0x8F : 0xBF;
    if (p[1] < lowest || p[1] > highest)
        return 0;
    for (size_t i = 2; i < n; i++) {
        if ((p[i] & 0xC0) != 0x80)
            return 0;
    }
    return n;
}

/* Parses four hexadecimal digits at p. Returns -1 if they are invalid. */
static int hex4(const char *p, size_t room)
{
    if (room < 4)
        return -1;
    int value = 0;
    for (int i = 0; i < 4; i++) {
        const char c = p[i];
        const int digit = c >= '0' && c <= '9'   ? c - '0'
                          : c >= 'a' && c <= 'f' ? c - 'a' + 10
                          : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                 : -1;
        if (digit < 0)
            return -1;
        value = value * 16 + digit;
    }
    return value;
}

/* Returns the code point of the escape at p (after "\u"), with surrogate pairs joined; -1 if invalid. */
static int32_t unicode_escape(const char *p, size_t room, size_t *used)
{
    const int first = hex4(p, room);
    *used = 4;
    if (first < 0 || (first >= 0xDC00 && first <= 0xDFFF))
        return -1;
    if (first < 0xD800 || first > 0xDBFF)
        return first;
    if (room < 10 || p[4] != '\\' || p[5] != 'u')
        return -1;
    const int second = hex4(p + 6, room - 6);
    if (second < 0xDC00 || second > 0xDFFF)
        return -1;
    *used = 10;
    return 0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00);
}

tsr_status tsr_json_read_string(tsr_json_reader *r, tsr_json_text *value, tsr_err *err)
{
    if (look(r) != '"')
        return bad(r, "expected a string", err);
    r->pos++;
    *value = (tsr_json_text){.data = r->text + r->pos};
    const size_t begin = r->pos;
    while (r->pos < r->size) {
        const unsigned char c = (unsigned char)r->text[r->pos];
        if (c == '"') {
            value->size = r->pos - begin;
            r->pos++;
            return TSR_OK;
        }
        if (c < 0x20)
            return bad(r, "a control character inside a string", err);
        if (c == '\\') {
            value->escaped = true;
            const size_t room = r->size - r->pos - 1;
            const char kind = room > 0 ? r->text[r->pos + 1] : '\0';
            size_t used = 0;
            if (kind == 'u' ? unicode_escape(r->text + r->pos + 2, room - 1, &used) < 0
                            : kind == '\0' || strchr("\"\\/bfnrt", kind) == NULL)
                return bad(r, "a broken escape", err);
            r->pos += 2 + used;
            continue;
        }
        const size_t n = utf8_length((const unsigned char *)r->text + r->pos, r->size - r->pos);
        if (n == 0)
            return bad(r, "not UTF-8", err);
        r->pos += n;
    }
    return bad(r, "the text ends inside a string", err);
}

static bool is_digit(const tsr_json_reader *r)
{
    return r->pos < r->size && r->text[r->pos] >= '0' && r->text[r->pos] <= '9';
}

static tsr_status skip_digits(tsr_json_reader *r, tsr_err *err)
{
    if (!is_digit(r))
        return bad(r, "a digit expected", err);
    while (is_digit(r))
        r->pos++;
    return TSR_OK;
}

static tsr_status skip_number(tsr_json_reader *r, tsr_err *err)
{
    if (r->text[r->pos] == '-')
        r->pos++;
    if (r->pos < r->size && r->text[r->pos] == '0') {
        r->pos++;
        if (is_digit(r))
            return bad(r, "a number with a leading zero", err);
    } else {
        TSR_TRY(skip_digits(r, err));
    }
    if (r->pos < r->size && r->text[r->pos] == '.') {
        r->pos++;
        TSR_TRY(skip_digits(r, err));
    }
    if (r->pos < r->size && (r->text[r->pos] | 0x20) == 'e') {
        r->pos++;
        if (r->pos < r->size && (r->text[r->pos] == '+' || r->text[r->pos] == '-'))
            r->pos++;
        TSR_TRY(skip_digits(r, err));
    }
    return TSR_OK;
}

static tsr_status skip_word(tsr_json_reader *r, const char *word, tsr_err *err)
{
    const size_t n = strlen(word);
    if (r->size - r->pos < n || memcmp(r->text + r->pos, word, n) != 0)
        return bad(r, "invalid value", err);
    r->pos += n;
    return TSR_OK;
}

tsr_status tsr_json_read_u64(tsr_json_reader *r, uint64_t *value, tsr_err *err)
{
    look(r);
    if (!is_digit(r))
        return bad(r, "expected a non-negative integer", err);
    tsr_json_text span;
    TSR_TRY(tsr_json_skip(r, &span, err));
    *value = 0;
    for (size_t i = 0; i < span.size; i++) {
        const char c = span.data[i];
        if (c < '0' || c > '9')
            return bad(r, "expected an integer without fraction or exponent", err);
        if (__builtin_mul_overflow(*value, 10, value) || __builtin_add_overflow(*value, (uint64_t)(c - '0'), value))
            return bad(r, "an integer of more than 64 bits", err);
    }
    return TSR_OK;
}

tsr_status tsr_json_skip(tsr_json_reader *r, tsr_json_text *span, tsr_err *err)
{
    skip_space(r);
    const size_t begin = r->pos;
    const unsigned floor = r->depth;
    char closers[TSR_JSON_MAX_DEPTH]; /* closing byte of each level that this value has opened */
    do {
        tsr_json_text ignored;
        bool more = true;
        if (r->depth > floor) {
            const char close = closers[r->depth - 1];
            TSR_TRY(close == '}' ? tsr_json_next_member(r, &ignored, &more, err)
                                 : tsr_json_next_element(r, &more, err));
        }
        if (!more)
            continue;
        tsr_json_kind kind;
        TSR_TRY(tsr_json_peek(r, &kind, err));
        switch (kind) {
        case TSR_JSON_OBJECT:
            TSR_TRY(tsr_json_enter_object(r, err));
            closers[r->depth - 1] = '}';
            break;
        case TSR_JSON_ARRAY:
            TSR_TRY(tsr_json_enter_array(r, err));
            closers[r->depth - 1] = ']';
            break;
        case TSR_JSON_STRING:
            TSR_TRY(tsr_json_read_string(r, &ignored, err));
            break;
        case TSR_JSON_NUMBER:
            TSR_TRY(skip_number(r, err));
            break;
        case TSR_JSON_TRUE:
            TSR_TRY(skip_word(r, "true", err));
            break;
        case TSR_JSON_FALSE:
            TSR_TRY(skip_word(r, "false", err));
            break;
        case TSR_JSON_NULL:
            TSR_TRY(skip_word(r, "null", err));
            break;
        case TSR_JSON_NOT_FINITE:
            r->pos += r->text[r->pos] == '-';
            TSR_TRY(skip_word(r, r->text[r->pos] == 'N' ? "NaN" : "Infinity", err));
            break;
        }
    } while (r->depth > floor);
    if (span != NULL)
        *span = (tsr_json_text){.data = r->text + begin,
                                .size = r->pos - begin,
                                .escaped = memchr(r->text + begin, '\\', r->pos - begin) != NULL};
    return TSR_OK;
}

tsr_status tsr_json_finish(tsr_json_reader *r, tsr_err *err)
{
    skip_space(r);
    return r->pos == r->size ? TSR_OK : bad(r, "extra text after the end of the value", err);
}

static char *put_utf8(char *to, int32_t c)
{
    if (c < 0x80) {
        *to++ = (char)c;
    } else if (c < 0x800) {
        *to++ = (char)(0xC0 | c >> 6);
        *to++ = (char)(0x80 | (c & 0x3F));
    } else if (c < 0x10000) {
        *to++ = (char)(0xE0 | c >> 12);
        *to++ = (char)(0x80 | (c >> 6 & 0x3F));
        *to++ = (char)(0x80 | (c & 0x3F));
    } else {
        *to++ = (char)(0xF0 | c >> 18);
        *to++ = (char)(0x80 | (c >> 12 & 0x3F));
        *to++ = (char)(0x80 | (c >> 6 & 0x3F));
        *to++ = (char)(0x80 | (c & 0x3F));
    }
    return to;
}

/* Decodes the escape at text.data[*at], which was checked before, into at most 4 bytes. */
static size_t unescape(tsr_json_text text, size_t *at, char bytes[4])
{
    static const char kEscapes[] = "\"\\/bfnrt", kMeanings[] = "\"\\/\b\f\n\r\t";
    const char kind = text.data[*at + 1];
    size_t used = 0;
    *at += 2;
    if (kind != 'u') {
        bytes[0] = kMeanings[strchr(kEscapes, kind) - kEscapes];
        return 1;
    }
    const int32_t c = unicode_escape(text.data + *at, text.size - *at, &used);
    *at += used;
    return (size_t)(put_utf8(bytes, c) - bytes);
}

tsr_status tsr_json_decode(const tsr_json_reader *r, tsr_json_text text, tsr_arena *arena, const char **out,
                           tsr_err *err)
{
    /* An escape is at least as long as its decoded text. */
    char *const copy = tsr_arena_dup(arena, text.data, text.size);
    if (copy == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "%s: out of memory", r->name);
    *out = copy;
    if (!text.escaped)
        return TSR_OK;
    char *to = copy;
    for (size_t i = 0; i < text.size;) {
        char bytes[4];
        if (text.data[i] != '\\') {
            *to++ = text.data[i++];
            continue;
        }
        const size_t n = unescape(text, &i, bytes);
        if (bytes[0] == '\0')
            return tsr_fail(err, TSR_E_FORMAT, "%s: a name contains a NUL character", r->name);
        memcpy(to, bytes, n);
        to += n;
    }
    *to = '\0';
    return TSR_OK;
}

/* Iterates over the bytes of a text with escapes decoded. */
typedef struct decoding {
    tsr_json_text text;
    size_t at;
    char bytes[4]; /* bytes of the last escape: `given` of `n` have been returned */
    size_t n, given;
} decoding;

/* Returns the next byte, or -1 at the end. */
static int next_byte(decoding *d)
{
    if (d->given < d->n)
        return (unsigned char)d->bytes[d->given++];
    if (d->at == d->text.size)
        return -1;
    if (!d->text.escaped || d->text.data[d->at] != '\\')
        return (unsigned char)d->text.data[d->at++];
    d->n = unescape(d->text, &d->at, d->bytes);
    d->given = 1;
    return (unsigned char)d->bytes[0];
}

bool tsr_json_same(tsr_json_text a, tsr_json_text b)
{
    if (!a.escaped && !b.escaped)
        return a.size == b.size && memcmp(a.data, b.data, a.size) == 0;
    decoding from_a = {.text = a}, from_b = {.text = b};
    for (;;) {
        const int x = next_byte(&from_a), y = next_byte(&from_b);
        if (x != y || x < 0)
            return x == y;
    }
}

/* FNV-1a, folded, because its low bits alone are poorly distributed. */
uint64_t tsr_json_hash(tsr_json_text text)
{
    uint64_t hash = UINT64_C(0xCBF29CE484222325);
    decoding d = {.text = text};
    for (int c; (c = next_byte(&d)) >= 0;)
        hash = (hash ^ (unsigned)c) * UINT64_C(0x100000001B3);
    return hash ^ hash >> 32;
}

bool tsr_json_is(tsr_json_text text, const char *literal)
{
    return tsr_json_same(text, (tsr_json_text){.data = literal, .size = strlen(literal)});
}
