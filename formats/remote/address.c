/* Reads and composes URLs. */
#include "formats/remote/address.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

static bool begins(const char *text, const char *with)
{
    return strncasecmp(text, with, strlen(with)) == 0;
}

tsr_address_kind tsr_address_kind_of(const char *address)
{
    return begins(address, "https://") || begins(address, "http://") ? TSR_ADDRESS_URL
           : begins(address, "hf://")                                ? TSR_ADDRESS_HUB
           : begins(address, "s3://")                                ? TSR_ADDRESS_S3
                                                                     : TSR_ADDRESS_NONE;
}

bool tsr_is_remote(const char *path)
{
    return tsr_address_kind_of(path) != TSR_ADDRESS_NONE;
}

bool tsr_address_is_foreign(const char *path)
{
    const size_t n = strspn(path, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+.-");
    return n > 0 && strncmp(path + n, "://", 3) == 0 && tsr_address_kind_of(path) == TSR_ADDRESS_NONE;
}

/* Returns the host of a URL with its port, and the length. */
static const char *authority(const char *url, size_t *size)
{
    const char *const scheme = strstr(url, "://"), *const host = scheme == NULL ? url : scheme + 3;
    *size = strcspn(host, "/?#");
    return host;
}

/* Returns true for a host of this machine: localhost, 127.x.x.x, [::1]. */
static bool is_loopback(const char *host, size_t size)
{
    char name[64];
    unsigned a, b, c;
    int end = 0;
    if (size >= 5 && strncmp(host, "[::1]", 5) == 0)
        return size == 5 || host[5] == ':';
    const size_t n = strcspn(host, ":/?#");
    snprintf(name, sizeof name, "%.*s", n < size ? (int)n : (int)size, host);
    return strcasecmp(name, "localhost") == 0 ||
           (sscanf(name, "127.%3u.%3u.%3u%n", &a, &b, &c, &end) == 3 && name[end] == '\0');
}

tsr_status tsr_url_check(const char *url, const char *shown, tsr_err *err)
{
    size_t size;
    const char *const host = authority(url, &size);
    for (const unsigned char *p = (const unsigned char *)url; *p != '\0'; p++) {
        if (*p <= ' ' || *p >= 0x7F || *p == '\\')
            return tsr_fail(err, TSR_E_USAGE,
                            "%s: a URL has no blanks, backslashes, control characters or letters beyond ASCII; "
                            "write them as %%20",
                            shown);
    }
    if (!begins(url, "https://") && !begins(url, "http://"))
        return tsr_fail(err, TSR_E_USAGE, "%s: not an address of HTTP", shown);
    if (memchr(host, '@', size) != NULL)
        return tsr_fail(err, TSR_E_USAGE,
                        "%.*s...: a password in an address is visible to all users; write it into ~/.netrc", 8, url);
    if (size == 0 || *host == ':')
        return tsr_fail(err, TSR_E_USAGE, "%s: no host", shown);
    if (begins(url, "http://") && !is_loopback(host, size))
        return tsr_fail(err, TSR_E_USAGE, "%s: http:// is read from this machine only; use https://", shown);
    return TSR_OK;
}

const char *tsr_url_origin(const char *url, char *origin, size_t size)
{
    size_t n;
    const char *const host = authority(url, &n), *const scheme = begins(url, "https") ? "https" : "http";
    const char *const port = strcmp(scheme, "https") == 0 ? ":443" : ":80";
    if (n > strlen(port) && strncmp(host + n - strlen(port), port, strlen(port)) == 0)
        n -= strlen(port);
    snprintf(origin, size, "%s://%.*s", scheme, (int)n, host);
    for (char *p = origin; *p != '\0'; p++)
        *p = (char)tolower((unsigned char)*p);
    return origin;
}

bool tsr_url_same_origin(const char *a, const char *b)
{
    char x[512], y[512];
    return strcmp(tsr_url_origin(a, x, sizeof x), tsr_url_origin(b, y, sizeof y)) == 0 && strlen(x) < sizeof x - 1;
}

size_t tsr_url_shown_size(const char *url)
{
    return strcspn(url, "?#");
}

void tsr_url_escape(tsr_text *url, const char *text, const char *keep)
{
    for (const unsigned char *p = (const unsigned char *)text; *p != '\0'; p++) {
        const bool plain = (*p < 0x80 && isalnum(*p)) || strchr("-._~", *p) != NULL || strchr(keep, *p) != NULL;
        tsr_text_printf(url, plain ? "%c" : "%%%02X", *p);
    }
}

static int digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                  : -1;
}

char *tsr_url_unescape(const char *text, size_t size, tsr_arena *arena)
{
    char *const out = tsr_arena_alloc(arena, size + 1);
    size_t n = 0;
    for (size_t i = 0; out != NULL && i < size; i++) {
        if (text[i] != '%') {
            out[n++] = text[i];
            continue;
        }
        if (size - i < 3 || digit(text[i + 1]) < 0 || digit(text[i + 2]) < 0)
            return NULL;
        const int code = 16 * digit(text[i + 1]) + digit(text[i + 2]);
        if (code == 0)
            return NULL;
        out[n++] = (char)code;
        i += 2;
    }
    return out;
}
