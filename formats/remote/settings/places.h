/* Files and folders on this machine that reading from servers needs. */
#pragma once

#include "common/status.h"

#include <limits.h>
#include <stdbool.h>

/* Takes a path; `written`: files are made in it. */
typedef tsr_status tsr_place_fn(const char *path, bool written, void *to, tsr_err *err);

/* Calls `take` for each place: host names, certificates, credentials, the cache of headers. They need not exist. */
tsr_status tsr_remote_places(tsr_place_fn *take, void *to, tsr_err *err);

/* Returns the certificates of authorities that SSL_CERT_FILE or CURL_CA_BUNDLE names; NULL: none. */
const char *tsr_place_of_certificates(void);

/* Writes the folder of cached headers to `path`: tessera/headers in XDG_CACHE_HOME or ~/.cache. Returns path; NULL: no
 * HOME. */
const char *tsr_place_of_headers(char path[PATH_MAX]);
