/* One attempt at a request: prepares it for libcurl, and judges the reply. */
#pragma once

#include "formats/remote/curl_library.h"
#include "formats/remote/transfer.h"

#ifdef TSR_HAVE_CURL
/* The members that all requests of an address share. */
typedef struct tsr_requests {
    tsr_curl curl;
    const tsr_access *access;
    long stall; /* seconds without a byte after which an attempt has failed */
} tsr_requests;

/* Prepares t->easy for the next attempt. TSR_E_NOMEM: no memory. */
tsr_status tsr_request_begin(const tsr_requests *with, tsr_transfer *t, tsr_err *err);

/* Takes the result of an attempt. Returns true if the request has ended, with t->status; otherwise it is repeated
 * after t->not_before. */
bool tsr_request_end(const tsr_requests *with, tsr_transfer *t, CURLcode code);
#endif
