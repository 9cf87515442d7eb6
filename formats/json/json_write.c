/* Writes JSON with commas, indentation and escapes. */
#include "formats/json/json_write.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void new_line(tsr_text *text)
{
    if (text->json_flat_depth == 0)
        tsr_text_printf(text, "\n%*s", (int)(2 * text->json_depth), "");
}

/* Writes a comma if needed, then the indentation of the next member or element. */
static void separate(tsr_text *text)
{
    if (text->json_after_key) {
        text->json_after_key = false;
        return;
    }
    const uint64_t bit = (uint64_t)1 << text->json_depth;
    if ((text->json_used & bit) != 0)
        tsr_text_append(text, ", ", text->json_flat_depth == 0 ? 1 : 2);
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
    tsr_json_quoted_part(text, value, strlen(value));
}

void tsr_json_quoted_part(tsr_text *text, const char *value, size_t size)
{
    size_t from = 0;
    tsr_text_append(text, "\"", 1);
    for (size_t i = tsr_plain_size(value, size); i < size; i += tsr_plain_size(value + i, size - i)) {
        uint32_t c = 0xFFFD;
        const size_t n = tsr_utf8_decode(value + i, size - i, &c), next = i + (n == 0 ? 1 : n);
        if (n == 0 || tsr_is_hidden(c) || c == '"' || c == '\\') {
            tsr_text_append(text, value + from, i - from);
            tsr_text_printf(text, c == '"' || c == '\\' ? "\\%c" : "\\u%04x", n == 0 ? 0xFFFD : c);
            from = next;
        }
        i = next;
    }
    tsr_text_append(text, value + from, size - from);
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
    tsr_json_string_part(text, value, strlen(value));
}

void tsr_json_string_part(tsr_text *text, const char *value, size_t size)
{
    separate(text);
    tsr_json_quoted_part(text, value, size);
}

void tsr_json_u64(tsr_text *text, uint64_t value)
{
    separate(text);
    tsr_text_u64(text, value);
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

void tsr_json_member_string(tsr_text *text, const char *key, const char *value)
{
    tsr_json_key(text, key);
    if (value == NULL)
        tsr_json_null(text);
    else
        tsr_json_string(text, value);
}

void tsr_json_member_u64(tsr_text *text, const char *key, uint64_t value)
{
    tsr_json_key(text, key);
    tsr_json_u64(text, value);
}

void tsr_json_member_bool(tsr_text *text, const char *key, bool value)
{
    tsr_json_key(text, key);
    tsr_json_bool(text, value);
}

void tsr_json_member_number(tsr_text *text, const char *key, double value)
{
    tsr_json_key(text, key);
    tsr_json_number(text, value);
}

void tsr_json_member_u64s(tsr_text *text, const char *key, const uint64_t *values, size_t n)
{
    tsr_json_member_array(text, key, true);
    for (size_t i = 0; i < n; i++)
        tsr_json_u64(text, values[i]);
    tsr_json_end_array(text);
}

void tsr_json_member_object(tsr_text *text, const char *key, bool flat)
{
    tsr_json_key(text, key);
    tsr_json_begin_object(text, flat);
}

void tsr_json_member_array(tsr_text *text, const char *key, bool flat)
{
    tsr_json_key(text, key);
    tsr_json_begin_array(text, flat);
}

void tsr_json_begin_document(tsr_text *text, const char *schema)
{
    tsr_json_begin_object(text, false);
    tsr_json_member_string(text, "schema", schema);
    tsr_json_member_string(text, "version", TSR_VERSION);
}

void tsr_json_end_document(tsr_text *text)
{
    tsr_json_end_object(text);
    tsr_text_append(text, "\n", 1);
}

void tsr_json_member_strings(tsr_text *text, const char *key, const char *const *values, size_t n)
{
    tsr_json_member_array(text, key, n <= 1);
    for (size_t i = 0; i < n; i++)
        tsr_json_string(text, values[i]);
    tsr_json_end_array(text);
}

void tsr_json_member_empty(tsr_text *text, const char *key)
{
    tsr_json_member_object(text, key, true);
    tsr_json_end_object(text);
}
