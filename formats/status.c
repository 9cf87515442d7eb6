/* Error messages: written once, by the function that knows most. */
#include "formats/status.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

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

tsr_status tsr_fail_errno(tsr_err *err, const char *fmt, ...)
{
    const int code = errno;
    if (err != NULL) {
        va_list args;
        va_start(args, fmt);
        vsnprintf(err->msg, sizeof err->msg, fmt, args);
        va_end(args);
        const size_t used = strlen(err->msg);
        snprintf(err->msg + used, sizeof err->msg - used, ": %s", strerror(code));
    }
    if (code == ENOSPC || code == EDQUOT)
        return TSR_E_NOSPACE;
    return code == ENOMEM ? TSR_E_NOMEM : TSR_E_IO;
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
