/* A growing buffer, and JSON written onto it. */
#include "common/text.h"

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
    const int size = vsnprintf(NULL, 0, fmt, args);
    if (size < 0) {
        text->failed = true;
    } else if (reserve(text, (size_t)size)) {
        vsnprintf(text->data + text->size, (size_t)size + 1, fmt, again);
        text->size += (size_t)size;
    }
    va_end(again);
    va_end(args);
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

bool tsr_ends_with(const char *text, const char *suffix)
{
    const size_t n = strlen(text), m = strlen(suffix);
    return n > m && strcmp(text + n - m, suffix) == 0;
}

/* ---- characters ---- */

/* The length of the UTF-8 character at `p`, at most `size` bytes; 0 when it is none. */
static size_t decode(const unsigned char *p, size_t size, uint32_t *code)
{
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

/* Controls, and what separates lines or turns the direction of text around. */
static bool is_hidden(uint32_t c)
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

void tsr_text_visible(tsr_text *to, const char *from, size_t size)
{
    const unsigned char *const p = (const unsigned char *)from;
    for (size_t i = 0; i < size;) {
        uint32_t c = 0;
        const size_t n = decode(p + i, size - i, &c);
        if (n == 0)
            tsr_text_printf(to, "\\x%02x", p[i]);
        else if (is_hidden(c))
            spell_out(to, c);
        else
            tsr_text_append(to, p + i, n);
        i += n == 0 ? 1 : n;
    }
}

/* ---- JSON ---- */

static void new_line(tsr_text *text)
{
    if (text->json_flat_depth == 0)
        tsr_text_printf(text, "\n%*s", (int)(2 * text->json_depth), "");
}

/* A comma where one is due, then the place for the next member or element. */
static void separate(tsr_text *text)
{
    if (text->json_after_key) {
        text->json_after_key = false;
        return;
    }
    const uint64_t bit = (uint64_t)1 << text->json_depth;
    if ((text->json_used & bit) != 0)
        tsr_text_printf(text, text->json_flat_depth == 0 ? "," : ", ");
    text->json_used |= bit;
    if (text->json_depth > 0)
        new_line(text);
}

static void begin(tsr_text *text, char open, bool flat)
{
    separate(text);
    tsr_text_append(text, &open, 1);
    text->json_depth++;
    text->json_used &= ~((uint64_t)1 << text->json_depth);
    if (flat && text->json_flat_depth == 0)
        text->json_flat_depth = text->json_depth;
}

static void end(tsr_text *text, char close)
{
    const bool used = (text->json_used >> text->json_depth & 1) != 0;
    text->json_depth--;
    if (used)
        new_line(text);
    if (text->json_flat_depth > text->json_depth)
        text->json_flat_depth = 0;
    tsr_text_append(text, &close, 1);
}

void tsr_json_begin_object(tsr_text *text, bool flat)
{
    begin(text, '{', flat);
}

void tsr_json_end_object(tsr_text *text)
{
    end(text, '}');
}

void tsr_json_begin_array(tsr_text *text, bool flat)
{
    begin(text, '[', flat);
}

void tsr_json_end_array(tsr_text *text)
{
    end(text, ']');
}

void tsr_json_quoted(tsr_text *text, const char *value)
{
    const unsigned char *const p = (const unsigned char *)value;
    const size_t size = strlen(value);
    size_t from = 0;
    tsr_text_append(text, "\"", 1);
    for (size_t i = 0; i < size;) {
        uint32_t c = 0xFFFD;
        const size_t n = decode(p + i, size - i, &c), next = i + (n == 0 ? 1 : n);
        if (n == 0 || is_hidden(c) || c == '"' || c == '\\') {
            tsr_text_append(text, p + from, i - from);
            tsr_text_printf(text, c == '"' || c == '\\' ? "\\%c" : "\\u%04x", n == 0 ? 0xFFFD : c);
            from = next;
        }
        i = next;
    }
    tsr_text_append(text, p + from, size - from);
    tsr_text_append(text, "\"", 1);
}

void tsr_json_key(tsr_text *text, const char *key)
{
    separate(text);
    tsr_json_quoted(text, key);
    tsr_text_append(text, ": ", 2);
    text->json_after_key = true;
}

void tsr_json_string(tsr_text *text, const char *value)
{
    separate(text);
    tsr_json_quoted(text, value);
}

void tsr_json_u64(tsr_text *text, uint64_t value)
{
    separate(text);
    tsr_text_printf(text, "%llu", (unsigned long long)value);
}

void tsr_json_bool(tsr_text *text, bool value)
{
    tsr_json_raw(text, value ? "true" : "false", value ? 4 : 5);
}

void tsr_json_null(tsr_text *text)
{
    tsr_json_raw(text, "null", 4);
}

void tsr_json_number(tsr_text *text, double value)
{
    if (!isfinite(value)) {
        tsr_json_null(text);
        return;
    }
    static const int kDigits[] = {6, 9, 17};
    char number[40];
    for (size_t i = 0; i < sizeof kDigits / sizeof *kDigits; i++) {
        snprintf(number, sizeof number, "%.*g", kDigits[i], value);
        if (strtod(number, NULL) == value)
            break;
    }
    tsr_json_raw(text, number, strlen(number));
}

void tsr_json_raw(tsr_text *text, const char *json, size_t size)
{
    separate(text);
    tsr_text_append(text, json, size);
}
