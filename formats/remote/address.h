/* Addresses of remote checkpoints, and the URLs that they stand for. */
#pragma once

#include "common/arena.h"
#include "common/status.h"
#include "common/text.h"

#include <stdbool.h>
#include <stddef.h>

typedef enum tsr_address_kind { TSR_ADDRESS_NONE, TSR_ADDRESS_URL, TSR_ADDRESS_HUB, TSR_ADDRESS_S3 } tsr_address_kind;

/* Returns the kind of an address by its scheme: https:// or http://, hf://, s3://. TSR_ADDRESS_NONE: a path. */
tsr_address_kind tsr_address_kind_of(const char *address);

/* Returns true if a path is an address of a kind above. */
bool tsr_is_remote(const char *path);

/* Returns true if a path has a scheme ("ftp://host") and is not one of those above. */
bool tsr_address_is_foreign(const char *path);

/* Rejects a URL that has a user, a control character or no host, or that is http:// to another machine. TSR_E_USAGE.
 * `shown` names it in messages. */
tsr_status tsr_url_check(const char *url, const char *shown, tsr_err *err);

/* Writes "https://host:port" of a URL in lower case and without the scheme's own port. Returns `origin`. */
const char *tsr_url_origin(const char *url, char *origin, size_t size);

/* Returns true if two URLs have the same scheme, host and port. */
bool tsr_url_same_origin(const char *a, const char *b);

/* Returns the length of a URL without its query and fragment. Only this part appears in messages. */
size_t tsr_url_shown_size(const char *url);

/* Appends a text with all bytes escaped (%20) that have a meaning in URLs, except those of `keep`. */
void tsr_url_escape(tsr_text *url, const char *text, const char *keep);

/* Returns `size` bytes with escapes resolved; NULL: an invalid escape, an escaped NUL, or no memory. */
char *tsr_url_unescape(const char *text, size_t size, tsr_arena *arena);
