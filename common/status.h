/* Status codes, and the one-line error that is returned with them.
 *
 * Every fallible function returns a tsr_status and takes a caller-owned `tsr_err *` (may be NULL) last. The innermost
 * function writes the message: first the object, then the fact, then what to do about it. An outer caller may prepend a
 * file or tensor name once; it never rewrites the message. */
#pragma once

#include "common/error_ids.h"

#include <stdarg.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A call whose status is not used is warned of. (void) in front of it states that it need not be. */
#ifdef __clang__
#define TSR_NODISCARD __attribute__((warn_unused_result))
#else
#define TSR_NODISCARD [[nodiscard]]
#endif

__extension__ typedef enum TSR_NODISCARD tsr_status {
    TSR_OK = 0,
    TSR_E_USAGE,          /* invalid or contradictory options */
    TSR_E_FORMAT,         /* a file breaks the rules of its format */
    TSR_E_SHAPE,          /* a shape that the target cannot represent */
    TSR_E_UNSUPPORTED,    /* valid input that Tessera does not support */
    TSR_E_VALUE,          /* NaN or Inf where a number is required */
    TSR_E_MISMATCH,       /* source, options or output differ from the record of an earlier run */
    TSR_E_EXISTS,         /* the destination is in use */
    TSR_E_IO,             /* a system call failed: permission, device error */
    TSR_E_NOSPACE,        /* disk full */
    TSR_E_NOMEM,          /* memory exhausted, or --memory too small */
    TSR_E_CANCELLED,      /* the user interrupted */
    TSR_E_DEVICE,         /* no usable GPU */
    TSR_E_NOT_APPLICABLE, /* valid input without anything that a check applies to; an error if the check was requested
                           * by name */
    TSR_E_NOTHING,        /* nothing to do: the request would change nothing */
} tsr_status;

typedef struct tsr_err {
    char msg[1024];
    char tensor[512]; /* the tensor that caused it; empty: none, or its name is too long */
    tsr_error_id id;  /* the section of docs/errors.md that explains it */
} tsr_err;

#define TSR_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))

/* Writes the message. If it does not fit, the longest names lose their middle, so that the fault after them is kept. */
void tsr_write_message(tsr_err *err, const char *fmt, va_list args) TSR_PRINTF(2, 0);

/* Writes the message (if err is not NULL) and returns `status`. */
tsr_status tsr_fail(tsr_err *err, tsr_status status, const char *fmt, ...) TSR_PRINTF(3, 4);

/* Like tsr_fail, for an error that docs/errors.md explains. */
tsr_status tsr_fail_as(tsr_err *err, tsr_error_id id, tsr_status status, const char *fmt, ...) TSR_PRINTF(4, 5);

/* Like tsr_fail_as, for an error in a tensor: puts its name before the message, "'m.weight': ", and records it. */
tsr_status tsr_fail_tensor(tsr_err *err, tsr_error_id id, tsr_status status, const char *tensor, const char *fmt, ...)
    TSR_PRINTF(5, 6);

/* Copies an error that was stored elsewhere (if err is not NULL) and returns `status`. */
tsr_status tsr_fail_with(tsr_err *err, tsr_status status, const tsr_err *why);

/* Like tsr_fail, for a failed system call: appends ": " and strerror(errno). ENOSPC and EDQUOT become TSR_E_NOSPACE,
 * ENOMEM becomes TSR_E_NOMEM, everything else TSR_E_IO. At a limit of the process, the message says how to raise it. */
tsr_status tsr_fail_errno(tsr_err *err, const char *fmt, ...) TSR_PRINTF(2, 3);

/* Like tsr_fail(err, TSR_E_NOMEM, ...): "out of memory", followed by `what` ("while planning") if it is not NULL. */
tsr_status tsr_out_of_memory(tsr_err *err, const char *what);

/* Records the tensor that caused the error (if err is not NULL and the name fits) and returns `status`. */
tsr_status tsr_fail_at(tsr_err *err, tsr_status status, const char *tensor);

/* Puts "what: " before a callee's message and keeps its section and tensor. Returns `status`. */
tsr_status tsr_prepend(tsr_err *err, tsr_status status, const char *fmt, ...) TSR_PRINTF(3, 4);

/* Casts an unsigned 64-bit number to the type that %llu expects. */
#define U64(x) ((unsigned long long)(x))

#define TSR_TRY(call)                              \
    do {                                           \
        const tsr_status tsr_try_status_ = (call); \
        if (tsr_try_status_ != TSR_OK)             \
            return tsr_try_status_;                \
    } while (0)

/* For functions with a single exit: `status` and the label `out` belong to the function. */
#define TSR_GOTO(call)        \
    do {                      \
        status = (call);      \
        if (status != TSR_OK) \
            goto out;         \
    } while (0)

#ifdef __cplusplus
}
#endif
