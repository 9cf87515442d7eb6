/* Formats error messages, which the innermost function writes once. */
#include "common/status.h"

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

/* Names shorter than LONG_NAME bytes are not shortened; of longer ones at least LEAST_OF_NAME bytes are kept. */
enum { LONG_NAME = 200, LEAST_OF_NAME = 100 };

/* Returns the longest run of text without a space, which is a name; the whole text if no run is long. */
static size_t find_longest(const char *text, size_t *begin)
{
    size_t most = 0;
    for (size_t i = 0, n; text[i] != '\0'; i += n + (text[i + n] == ' ')) {
        n = strcspn(text + i, " ");
        if (n > most) {
            most = n;
            *begin = i;
        }
    }
    if (most >= LONG_NAME)
        return most;
    *begin = 0;
    return strlen(text);
}

static bool is_inside_character(char c)
{
    return ((unsigned char)c & 0xC0) == 0x80; /* a continuation byte of UTF-8 */
}

/* Removes the middle of the longest names until the text fits in `room` bytes with its NUL. The fault follows the names
 * in a message, and the end of a name is more specific than its beginning, so more of the end is kept. */
static void shorten(char *text, size_t room)
{
    static const char kGap[] = "...";
    for (size_t n; (n = strlen(text)) > room;) {
        size_t begin, end;
        const size_t length = find_longest(text, &begin), excess = n - room + strlen(kGap),
                     kept = length > excess + LEAST_OF_NAME ? length - excess : LEAST_OF_NAME;
        end = begin + length - (kept - kept / 3);
        begin += kept / 3;
        while (begin > 0 && is_inside_character(text[begin]))
            begin--;
        while (is_inside_character(text[end]))
            end++;
        memcpy(text + begin, kGap, strlen(kGap));
        memmove(text + begin + strlen(kGap), text + end, n - end + 1);
    }
}

typedef struct sentence {
    char usual[sizeof((tsr_err *)0)->msg], *longer; /* longer: NULL if the text fits or memory is exhausted */
} sentence;

static char *write_sentence(sentence *s, const char *fmt, va_list args)
{
    va_list again;
    va_copy(again, args);
    if (vsnprintf(s->usual, sizeof s->usual, fmt, args) < (int)sizeof s->usual || vasprintf(&s->longer, fmt, again) < 0)
        s->longer = NULL;
    va_end(again);
    return s->longer == NULL ? s->usual : s->longer;
}

void tsr_write_message(tsr_err *err, const char *fmt, va_list args)
{
    sentence s; /* formatted to a copy, because the message may be one of the arguments */
    char *const text = write_sentence(&s, fmt, args);
    shorten(text, sizeof err->msg - 1);
    strcpy(err->msg, text);
    err->tensor[0] = '\0';
    err->id = TSR_ERROR_NONE;
    free(s.longer);
}

tsr_status tsr_fail(tsr_err *err, tsr_status status, const char *fmt, ...)
{
    if (err != NULL) {
        va_list args;
        va_start(args, fmt);
        tsr_write_message(err, fmt, args);
        va_end(args);
    }
    return status;
}

tsr_status tsr_fail_as(tsr_err *err, tsr_error_id id, tsr_status status, const char *fmt, ...)
{
    if (err != NULL) {
        va_list args;
        va_start(args, fmt);
        tsr_write_message(err, fmt, args);
        va_end(args);
        err->id = id;
    }
    return status;
}

tsr_status tsr_fail_tensor(tsr_err *err, tsr_error_id id, tsr_status status, const char *tensor, const char *fmt, ...)
{
    if (err == NULL)
        return status;
    va_list args;
    va_start(args, fmt);
    tsr_write_message(err, fmt, args);
    va_end(args);
    err->id = id;
    return tsr_fail_at(err, tsr_prepend(err, status, "'%s'", tensor), tensor);
}

tsr_status tsr_fail_with(tsr_err *err, tsr_status status, const tsr_err *why)
{
    if (err != NULL)
        *err = *why;
    return status;
}

/* Appends what the user can do about an error that comes from a limit of the process, not of the machine. */
static void add_remedy(int code, char *text, size_t size)
{
    struct rlimit limit;
    text[0] = '\0';
    if (code == EFBIG && getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
        snprintf(text, size, " (ulimit -f allows %llu bytes: raise it)", (unsigned long long)limit.rlim_cur);
    else if (code == EFBIG)
        snprintf(text, size, " for this file system: smaller files with --max-shard-size");
    else if (code == EMFILE && getrlimit(RLIMIT_NOFILE, &limit) == 0)
        snprintf(text, size, " (ulimit -n allows %llu, and all files of a checkpoint stay open: raise it)",
                 (unsigned long long)limit.rlim_cur);
    else if (code == ENFILE)
        snprintf(text, size, " (the whole machine's limit: sysctl fs.file-max)");
}

tsr_status tsr_fail_errno(tsr_err *err, const char *fmt, ...)
{
    const int code = errno;
    if (err != NULL) {
        char remedy[128];
        sentence s;
        va_list args;
        va_start(args, fmt);
        const char *const what = write_sentence(&s, fmt, args);
        va_end(args);
        add_remedy(code, remedy, sizeof remedy);
        (void)tsr_fail(err, TSR_E_IO, "%s: %s%s", what, strerror(code), remedy);
        free(s.longer);
    }
    if (code == ENOSPC || code == EDQUOT)
        return TSR_E_NOSPACE;
    return code == ENOMEM ? TSR_E_NOMEM : TSR_E_IO;
}

tsr_status tsr_out_of_memory(tsr_err *err, const char *what)
{
    return tsr_fail(err, TSR_E_NOMEM, "out of memory%s%s", what == NULL ? "" : " ", what == NULL ? "" : what);
}

tsr_status tsr_fail_at(tsr_err *err, tsr_status status, const char *tensor)
{
    if (err != NULL && strlen(tensor) < sizeof err->tensor)
        strcpy(err->tensor, tensor);
    return status;
}

tsr_status tsr_prepend(tsr_err *err, tsr_status status, const char *fmt, ...)
{
    if (err == NULL)
        return status;
    sentence head;
    va_list args;
    va_start(args, fmt);
    const char *const what = write_sentence(&head, fmt, args);
    va_end(args);
    tsr_err whole = *err;
    (void)tsr_fail(&whole, status, "%s: %s", what, err->msg);
    strcpy(err->msg, whole.msg);
    free(head.longer);
    return status;
}
