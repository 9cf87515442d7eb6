/* Credentials of a remote address. They are sent to one origin only and appear in no text. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>

/* Strings are NULL if there are none. */
typedef struct tsr_access {
    const char *origin;  /* the origin that may receive the rest */
    const char *bearer;  /* a token of the Hub */
    const char *scope;   /* for CURLOPT_AWS_SIGV4: "aws:amz:REGION:s3" */
    const char *user;    /* "KEY:SECRET" of AWS */
    const char *session; /* the session token of AWS */
    bool netrc;          /* ~/.netrc may have a login */
    const char *remedy;  /* the advice where the server refuses access */
} tsr_access;

/* Returns a variable of the environment; NULL: it is unset or empty. */
static inline const char *tsr_setting(const char *name)
{
    const char *const value = getenv(name);
    return value == NULL || *value == '\0' ? NULL : value;
}
