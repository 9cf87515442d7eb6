/* A growing buffer, with state for writing JSON. */
#include "common/text.h"

#include "common/checked.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool reserve(tsr_text *text, size_t more)
{
    if (text->failed)
        return false;
    const size_t need = text->size + more + 1;
    if (need <= text->capacity)
        return true;
    size_t capacity = text->capacity == 0 ? 256 : text->capacity;
    while (capacity < need)
        capacity *= 2;
    char *const data = realloc(text->data, capacity);
    if (data == NULL) {
        text->failed = true;
        return false;
    }
    text->data = data;
    text->capacity = capacity;
    return true;
}

void tsr_text_append(tsr_text *text, const void *data, size_t size)
{
    if (!reserve(text, size))
        return;
    if (size > 0)
        memcpy(text->data + text->size, data, size);
    text->size += size;
    text->data[text->size] = '\0';
}

void tsr_text_printf(tsr_text *text, const char *fmt, ...)
{
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    const size_t room = text->capacity - text->size;
    const int size = vsnprintf(room > 0 ? text->data + text->size : NULL, room, fmt, args);
    if (size < 0) {
        text->failed = true;
    } else if (reserve(text, (size_t)size)) {
        if ((size_t)size >= room)
            vsnprintf(text->data + text->size, (size_t)size + 1, fmt, again);
        text->size += (size_t)size;
    }
    va_end(again);
    va_end(args);
}

void tsr_text_u64(tsr_text *text, uint64_t value)
{
    char digits[20];
    size_t first = sizeof digits;
    do {
        digits[--first] = (char)('0' + value % 10);
        value /= 10;
    } while (value > 0);
    tsr_text_append(text, digits + first, sizeof digits - first);
}

void tsr_text_free(tsr_text *text)
{
    free(text->data);
    *text = (tsr_text){0};
}

tsr_status tsr_text_status(const tsr_text *text, tsr_err *err)
{
    return text->failed ? tsr_out_of_memory(err, "while composing a text file") : TSR_OK;
}

int tsr_by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

int tsr_by_number(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

const char *tsr_plural(uint64_t n)
{
    return n == 1 ? "" : "s";
}

bool tsr_ends_with(const char *text, const char *suffix)
{
    const size_t n = strlen(text), m = strlen(suffix);
    return n > m && strcmp(text + n - m, suffix) == 0;
}

bool tsr_ends_in_parts(const char *name, const char *parts)
{
    return tsr_ends_with(name, parts) && name[strlen(name) - strlen(parts) - 1] == '.';
}

bool tsr_is_printable(const char *text)
{
    while ((unsigned char)*text >= 0x20 && *text != 0x7F)
        text++;
    return *text == '\0';
}

/* ---- characters ---- */

size_t tsr_utf8_decode(const char *text, size_t size, uint32_t *code)
{
    const unsigned char *const p = (const unsigned char *)text;
    const size_t n = p[0] < 0x80 ? 1 : p[0] < 0xC2 ? 0 : p[0] < 0xE0 ? 2 : p[0] < 0xF0 ? 3 : p[0] < 0xF5 ? 4 : 0;
    if (n == 0 || n > size)
        return 0;
    *code = n == 1 ? p[0] : p[0] & (0x7Fu >> n);
    for (size_t i = 1; i < n; i++) {
        if ((p[i] & 0xC0) != 0x80)
            return 0;
        *code = *code << 6 | (p[i] & 0x3F);
    }
    const bool too_long = (n == 3 && *code < 0x800) || (n == 4 && *code < 0x10000);
    return too_long || *code > 0x10FFFF || (*code >= 0xD800 && *code < 0xE000) ? 0 : n;
}

bool tsr_is_hidden(uint32_t c)
{
    return c < 0x20 || (c >= 0x7F && c < 0xA0) || c == 0x061C || c == 0x200E || c == 0x200F ||
           (c >= 0x2028 && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069) || c == 0xFEFF;
}

static void spell_out(tsr_text *to, uint32_t c)
{
    if (c == '\n' || c == '\t' || c == '\r')
        tsr_text_printf(to, "\\%c", c == '\n' ? 'n' : c == '\t' ? 't' : 'r');
    else
        tsr_text_printf(to, c < 0x80 ? "\\x%02x" : "\\u%04x", c);
}

size_t tsr_plain_size(const char *text, size_t size)
{
    size_t n = 0;
    while (n < size && text[n] >= ' ' && text[n] <= '~' && text[n] != '"' && text[n] != '\\')
        n++;
    return n;
}

void tsr_text_visible(tsr_text *to, const char *from, size_t size)
{
    for (size_t i = 0; i < size;) {
        const size_t plain = tsr_plain_size(from + i, size - i);
        tsr_text_append(to, from + i, plain);
        i += plain;
        if (i == size)
            return;
        uint32_t c = 0;
        const size_t n = tsr_utf8_decode(from + i, size - i, &c);
        if (n == 0)
            tsr_text_printf(to, "\\x%02x", (unsigned char)from[i]);
        else if (tsr_is_hidden(c))
            spell_out(to, c);
        else
            tsr_text_append(to, from + i, n);
        i += n == 0 ? 1 : n;
    }
}

bool tsr_take_decimal(const char **text, uint64_t *value)
{
    const char *p = *text;
    uint64_t n = 0;
    if (*p < '0' || *p > '9' || (*p == '0' && p[1] >= '0' && p[1] <= '9'))
        return false;
    for (; *p >= '0' && *p <= '9'; p++) {
        if (!tsr_mul_u64(n, 10, &n) || !tsr_add_u64(n, (uint64_t)(*p - '0'), &n))
            return false;
    }
    *text = p;
    *value = n;
    return true;
}

bool tsr_parse_decimal(const char *text, uint64_t *value)
{
    return tsr_take_decimal(&text, value) && *text == '\0';
}

bool tsr_take_real(const char **text, double *value)
{
    const size_t length = strspn(*text, "+-.0123456789eE");
    char *end;
    *value = strtod(*text, &end);
    if (length == 0 || end == *text || end > *text + length || !isfinite(*value))
        return false;
    *text = end;
    return true;
}

const char *tsr_bytes_text(double bytes, char *text)
{
    static const char *const kUnits[] = {"B", "kB", "MB", "GB", "TB", "PB"};
    size_t unit = 0;
    while (bytes >= 999.5 && unit + 1 < sizeof kUnits / sizeof *kUnits) {
        bytes /= 1000;
        unit++;
    }
    snprintf(text, 32,
             unit == 0 || bytes >= 100 ? "%.0f %s"
             : bytes >= 10             ? "%.1f %s"
                                       : "%.2f %s",
             bytes, kUnits[unit]);
    return text;
}
