/* Parses the head of a reply. */
#include "formats/remote/reply.h"

#include "common/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static void copy(char *to, size_t room, const char *from, size_t size)
{
    snprintf(to, room, "%.*s", (int)(size < room ? size : room - 1), from);
}

/* Reads "bytes 0-99/1000" or "bytes * /1000" without the blank. */
static void take_range(tsr_reply *r, const char *value)
{
    uint64_t first = 0, last = 0, total;
    if (strncasecmp(value, "bytes ", 6) != 0)
        return;
    value += 6;
    const bool none = strncmp(value, "*/", 2) == 0;
    if (none)
        value += 2;
    else if (!tsr_take_decimal(&value, &first) || *value++ != '-' || !tsr_take_decimal(&value, &last) ||
             *value++ != '/' || last < first)
        return;
    if (!tsr_parse_decimal(value, &total))
        return;
    r->ranged = true;
    r->first = first;
    r->last = last;
    r->total = total;
}

void tsr_reply_take(tsr_reply *r, const char *line, size_t size)
{
    char value[512];
    if (size > 5 && strncmp(line, "HTTP/", 5) == 0) {
        const char *const code = memchr(line, ' ', size);
        *r = (tsr_reply){.code = code == NULL ? 0 : strtol(code, NULL, 10)};
        return;
    }
    const char *const colon = memchr(line, ':', size);
    if (colon == NULL)
        return;
    const size_t name = (size_t)(colon - line);
    const char *from = colon + 1, *to = line + size;
    while (from < to && (*from == ' ' || *from == '\t'))
        from++;
    while (to > from && (to[-1] == ' ' || to[-1] == '\r' || to[-1] == '\n'))
        to--;
    copy(value, sizeof value, from, (size_t)(to - from));
    const struct {
        const char *name;
        char *to;
        size_t room;
    } kTexts[] = {
        {"etag", r->etag, sizeof r->etag},
        {"last-modified", r->modified, sizeof r->modified},
        {"x-linked-etag", r->linked_etag, sizeof r->linked_etag},
        {"x-repo-commit", r->commit, sizeof r->commit},
        {"x-error-message", r->said, sizeof r->said},
    };
    for (size_t i = 0; i < sizeof kTexts / sizeof *kTexts; i++) {
        if (strlen(kTexts[i].name) == name && strncasecmp(line, kTexts[i].name, name) == 0)
            copy(kTexts[i].to, kTexts[i].room, value, strlen(value));
    }
    r->explained = r->explained || (name == 15 && strncasecmp(line, "x-error-message", name) == 0);
    if (name == 13 && strncasecmp(line, "content-range", name) == 0)
        take_range(r, value);
    if (name == 14 && strncasecmp(line, "content-length", name) == 0)
        r->has_length = tsr_parse_decimal(value, &r->length);
    if (name == 13 && strncasecmp(line, "x-linked-size", name) == 0)
        r->has_linked_size = tsr_parse_decimal(value, &r->linked_size);
}

void tsr_reply_say(tsr_reply *r, const char *body, size_t size)
{
    size_t n = strlen(r->said);
    bool tag = false;
    if (r->explained)
        return;
    for (size_t i = 0; i < size && n + 1 < sizeof r->said; i++) {
        const char c = body[i];
        tag = c == '<' || (tag && c != '>');
        const bool blank = tag || c == '>' || c <= ' ' || c >= 0x7F;
        if (!blank)
            r->said[n++] = c;
        else if (n > 0 && r->said[n - 1] != ' ')
            r->said[n++] = ' ';
    }
    r->said[n] = '\0';
}

bool tsr_etag_is_same(const char *a, const char *b)
{
    a += strncmp(a, "W/", 2) == 0 ? 2 : 0;
    b += strncmp(b, "W/", 2) == 0 ? 2 : 0;
    const size_t quoted_a = *a == '"', quoted_b = *b == '"';
    const size_t n = strcspn(a + quoted_a, "\""), m = strcspn(b + quoted_b, "\"");
    return n == m && n > 0 && memcmp(a + quoted_a, b + quoted_b, n) == 0;
}
