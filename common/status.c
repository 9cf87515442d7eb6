/* Error messages: written once, by the function that knows most. */
#include "common/status.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

tsr_status tsr_fail(tsr_err *err, tsr_status status, const char *fmt, ...)
{
    if (err != NULL) {
        va_list args;
        va_start(args, fmt);
        vsnprintf(err->msg, sizeof err->msg, fmt, args);
        va_end(args);
    }
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
        va_list args;
        va_start(args, fmt);
        vsnprintf(err->msg, sizeof err->msg, fmt, args);
        va_end(args);
        const size_t used = strlen(err->msg);
        char remedy[128];
        add_remedy(code, remedy, sizeof remedy);
        snprintf(err->msg + used, sizeof err->msg - used, ": %s%s", strerror(code), remedy);
    }
    if (code == ENOSPC || code == EDQUOT)
        return TSR_E_NOSPACE;
    return code == ENOMEM ? TSR_E_NOMEM : TSR_E_IO;
}

tsr_status tsr_out_of_memory(tsr_err *err, const char *what)
{
    return tsr_fail(err, TSR_E_NOMEM, "out of memory%s%s", what == NULL ? "" : " ", what == NULL ? "" : what);
}

tsr_status tsr_prepend(tsr_err *err, tsr_status status, const char *fmt, ...)
{
    if (err == NULL)
        return status;
    char head[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(head, sizeof head, fmt, args);
    va_end(args);
    tsr_err inner = *err;
    snprintf(err->msg, sizeof err->msg, "%s: %s", head, inner.msg);
    return status;
}
