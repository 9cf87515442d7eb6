/* Prepares requests, checks the replies against the known state of a file, and decides what to repeat. */
#include "formats/remote/request.h"

#ifdef TSR_HAVE_CURL
#include "common/parallel/threads.h"
#include "formats/remote/address.h"
#include "formats/remote/settings/places.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum {
    TRIES = 9,       /* attempts without a new byte */
    FIRST_TRIES = 2, /* the weight of a failure to connect, besides 1, while an address is opened */
    HOPS = 5,
    BUFFER = 256 << 10, /* receive buffer of a connection */
    LONGEST_WAIT = 300, /* seconds that a server may ask for */
};
/* SHA-256 of an empty body, which S3 requires and libcurl adds from version 8 on only. */
static const char kDigestOfNothing[] = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
static const double kFirstDelay = 0.1; /* seconds; doubled with each failure */

static const char *name_of(const tsr_transfer *t)
{
    return t->file != NULL ? t->file->path : t->shown;
}

/* ---- the known state of a file ---- */

/* Compares a reply with the state of a file on the Hub: there X-Linked-ETag is the digest of the file, and the server
 * to which the Hub redirects has an ETag of its own. */
static const char *compare_linked(tsr_transfer *t)
{
    tsr_remote_file *const f = t->file;
    const tsr_reply *const r = &t->reply;
    if (*r->commit != '\0' && strcasecmp(r->commit, f->commit) != 0)
        return "it has another commit";
    if (r->has_linked_size && r->linked_size != f->size)
        return "its size differs";
    if (*r->linked_etag != '\0')
        return tsr_etag_is_same(r->linked_etag, f->etag) ? NULL : "its ETag differs";
    if (!t->at_target)
        return *r->etag == '\0' || r->code / 100 == 3 || tsr_etag_is_same(r->etag, f->etag) ? NULL : "its ETag differs";
    if (f->target_etag == NULL && *r->etag != '\0')
        f->target_etag = strdup(r->etag);
    return f->target_etag == NULL || *r->etag == '\0' || tsr_etag_is_same(r->etag, f->target_etag) ? NULL
                                                                                                   : "its ETag differs";
}

/* Returns how a reply with bytes, or a redirect, differs from the known state of its file; NULL: it does not. */
static const char *compare_state(tsr_transfer *t)
{
    const tsr_remote_file *const f = t->file;
    const tsr_reply *const r = &t->reply;
    if (f->commit != NULL)
        return compare_linked(t);
    if (r->code / 100 == 3)
        return NULL;
    if (f->etag != NULL)
        return *r->etag != '\0' && strcmp(r->etag, f->etag) == 0 ? NULL : "its ETag differs";
    return *r->modified != '\0' && strcmp(r->modified, f->modified) == 0 ? NULL : "its modification time differs";
}

/* Returns true if the head of a reply promises exactly the bytes that are missing. */
static bool is_wanted_range(const tsr_transfer *t)
{
    const tsr_reply *const r = &t->reply;
    const uint64_t first = t->offset + t->done, last = t->offset + t->size - 1;
    if (r->code == 206)
        return r->ranged && r->first == first && r->last == last && r->total == t->file->size &&
               (!r->has_length || r->length == last - first + 1);
    /* A server may answer a request for the whole file without a range. */
    return r->code == 200 && first == 0 && t->size == t->file->size && (!r->has_length || r->length == t->size);
}

/* Judges the head of a reply once: sets t->fits if its body is wanted, or else t->fault. */
static void hear(tsr_transfer *t)
{
    const long code = t->reply.code;
    if (t->heard)
        return;
    t->heard = true;
    t->fits = false;
    t->fault = NULL;
    if (t->kind == TSR_TRANSFER_DOCUMENT) {
        t->fits = code == 200;
    } else if (t->kind == TSR_TRANSFER_SEND) {
        t->fits = code / 100 == 2;
    } else if (t->kind == TSR_TRANSFER_RANGE && (code == 200 || code == 206)) {
        t->fault = compare_state(t);
        t->fits = t->fault == NULL && is_wanted_range(t);
    }
}

/* ---- functions that libcurl calls ---- */

static size_t take_line(char *line, size_t size, size_t n, void *transfer)
{
    tsr_transfer *const t = transfer;
    if (size * n > 5 && strncmp(line, "HTTP/", 5) == 0)
        t->heard = false;
    tsr_reply_take(&t->reply, line, size * n);
    return size * n;
}

static size_t take_body(char *data, size_t size, size_t n, void *transfer)
{
    tsr_transfer *const t = transfer;
    const size_t bytes = size * n;
    hear(t);
    if (!t->fits) {
        const bool error = t->reply.code >= 400;
        if (error)
            tsr_reply_say(&t->reply, data, bytes);
        /* 0 ends the request. The connection can be used again only if the body is read. */
        const bool small = t->reply.code / 100 == 3 || (t->kind == TSR_TRANSFER_PROBE && t->reply.code == 206);
        return error || small ? bytes : 0;
    }
    if (t->kind == TSR_TRANSFER_DOCUMENT || t->kind == TSR_TRANSFER_SEND) {
        if (bytes > t->limit - t->text.size) {
            t->fault = "too large";
            return 0;
        }
        tsr_text_append(&t->text, data, bytes);
        return bytes;
    }
    if (bytes > t->size - t->done) {
        t->fault = "more bytes than announced";
        return 0;
    }
    memcpy(t->data + t->done, data, bytes);
    t->done += bytes;
    t->tries = 0;
    return bytes;
}

/* ---- an attempt ---- */

static bool add_header(const tsr_requests *with, tsr_transfer *t, const char *name, const char *value)
{
    const size_t size = strlen(name) + strlen(value) + 1;
    char *const line = malloc(size);
    if (line == NULL)
        return false;
    snprintf(line, size, "%s%s", name, value);
    void *const longer = with->curl.slist_append(t->headers, line);
    free(line);
    if (longer != NULL)
        t->headers = longer;
    return longer != NULL;
}

/* Adds credentials, if the URL has the origin that they are for. */
static bool add_access(const tsr_requests *with, tsr_transfer *t, const char *url)
{
    const tsr_access *const a = with->access;
    const tsr_curl *const c = &with->curl;
    bool ok = true;
    if (!tsr_url_same_origin(url, a->origin) || (t->at_target && a->user != NULL))
        return true;
    if (a->bearer != NULL)
        ok = add_header(with, t, "Authorization: Bearer ", a->bearer);
    if (a->user != NULL) {
        (void)c->easy_setopt(t->easy, CURLOPT_AWS_SIGV4, a->scope);
        (void)c->easy_setopt(t->easy, CURLOPT_USERPWD, a->user);
        ok = add_header(with, t,
                        "x-amz-content-sha256: ", t->size > 0 && t->sha256 != NULL ? t->sha256 : kDigestOfNothing);
        if (a->session != NULL)
            ok = ok && add_header(with, t, "x-amz-security-token: ", a->session);
    }
    if (a->netrc)
        (void)c->easy_setopt(t->easy, CURLOPT_NETRC, (long)CURL_NETRC_OPTIONAL);
    return ok;
}

/* Adds the range, and the condition that the file has not changed. */
static bool add_range(const tsr_requests *with, tsr_transfer *t)
{
    char range[64];
    const tsr_remote_file *const f = t->file;
    if (t->kind == TSR_TRANSFER_DOCUMENT || t->kind == TSR_TRANSFER_SEND)
        return true;
    snprintf(range, sizeof range, "%llu-%llu", t->kind == TSR_TRANSFER_PROBE ? 0ull : U64(t->offset + t->done),
             t->kind == TSR_TRANSFER_PROBE ? 0ull : U64(t->offset + t->size - 1));
    (void)with->curl.easy_setopt(t->easy, CURLOPT_RANGE, range);
    if (f == NULL)
        return true;
    const char *const etag = f->commit == NULL ? f->etag : t->at_target ? f->target_etag : NULL;
    if (etag != NULL)
        return *etag != '"' || add_header(with, t, "If-Match: ", etag);
    return f->modified == NULL || add_header(with, t, "If-Unmodified-Since: ", f->modified);
}

/* Adds the method and the bytes to send. They are in memory, because older versions of libcurl sign only such bytes. */
static bool add_body(const tsr_requests *with, tsr_transfer *t)
{
    const tsr_curl *const c = &with->curl;
    if (t->kind != TSR_TRANSFER_SEND)
        return true;
    (void)c->easy_setopt(t->easy, CURLOPT_CUSTOMREQUEST, t->method);
    if (strcmp(t->method, "DELETE") == 0)
        return true;
    (void)c->easy_setopt(t->easy, CURLOPT_POSTFIELDS, t->data == NULL ? "" : t->data);
    (void)c->easy_setopt(t->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)t->size);
    return add_header(with, t, "Content-Type: ", "application/octet-stream");
}

tsr_status tsr_request_begin(const tsr_requests *with, tsr_transfer *t, tsr_err *err)
{
    const tsr_curl *const c = &with->curl;
    const char *const target = t->file != NULL ? t->file->target : t->target;
    const char *const url = target != NULL ? target : t->file != NULL ? t->file->url : t->url;
    t->at_target = target != NULL;
    t->reply = (tsr_reply){.code = 0};
    t->heard = t->fits = false;
    t->fault = NULL;
    t->problem[0] = '\0';
    t->text.size = 0;
    c->easy_reset(t->easy);
    (void)c->easy_setopt(t->easy, CURLOPT_PRIVATE, t);
    (void)c->easy_setopt(t->easy, CURLOPT_NOSIGNAL, 1L);
    (void)c->easy_setopt(t->easy, CURLOPT_ERRORBUFFER, t->problem);
    (void)c->easy_setopt(t->easy, CURLOPT_USERAGENT, "tessera/" TSR_VERSION);
    /* Ranges arrive faster through several connections than through one that HTTP/2 would share. */
    (void)c->easy_setopt(t->easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    (void)c->easy_setopt(t->easy, CURLOPT_BUFFERSIZE, (long)BUFFER);
    if (tsr_place_of_certificates() != NULL)
        (void)c->easy_setopt(t->easy, CURLOPT_CAINFO, tsr_place_of_certificates());
    (void)c->easy_setopt(t->easy, CURLOPT_CONNECTTIMEOUT, with->stall);
    (void)c->easy_setopt(t->easy, CURLOPT_LOW_SPEED_LIMIT, 1L);
    (void)c->easy_setopt(t->easy, CURLOPT_LOW_SPEED_TIME, with->stall);
    (void)c->easy_setopt(t->easy, CURLOPT_HEADERFUNCTION, take_line);
    (void)c->easy_setopt(t->easy, CURLOPT_HEADERDATA, t);
    (void)c->easy_setopt(t->easy, CURLOPT_WRITEFUNCTION, take_body);
    (void)c->easy_setopt(t->easy, CURLOPT_WRITEDATA, t);
    if (c->easy_setopt(t->easy, CURLOPT_URL, url) != CURLE_OK || !add_access(with, t, url) || !add_range(with, t) ||
        !add_body(with, t) || c->easy_setopt(t->easy, CURLOPT_HTTPHEADER, t->headers) != CURLE_OK)
        return tsr_fail(err, TSR_E_NOMEM, "%s: out of memory for a request", name_of(t));
    return TSR_OK;
}

/* ---- the end of an attempt ---- */

static bool end_with(tsr_transfer *t, tsr_status status)
{
    t->status = status;
    return true;
}

/* Repeats the request later, or gives up after too many failures. `wait`: the seconds that the server asked for. */
static bool try_again(tsr_transfer *t, double wait, const char *why)
{
    double delay = kFirstDelay;
    if (++t->tries >= TRIES || wait > LONGEST_WAIT) {
        const tsr_status status =
            t->kind == TSR_TRANSFER_SEND
                ? tsr_fail(&t->err, TSR_E_IO,
                           "%s: cannot write it after several attempts: %s; repeat the command to resume", name_of(t),
                           why)
            : t->kind != TSR_TRANSFER_RANGE
                ? tsr_fail(&t->err, TSR_E_IO, "%s: no answer after several attempts: %s", name_of(t), why)
                : tsr_fail(&t->err, TSR_E_IO, "%s: cannot read %llu bytes at offset %llu after %d attempts: %s",
                           name_of(t), U64(t->size - t->done), U64(t->offset + t->done), TRIES, why);
        return end_with(t, status);
    }
    for (unsigned i = 1; i < t->tries; i++)
        delay *= 2;
    /* Requests that failed together are not repeated together. */
    const double now = tsr_now(), scatter = now * 1e4 - (double)(uint64_t)(now * 1e4);
    t->not_before = now + (wait > delay ? wait : delay) * (1 + 0.25 * scatter);
    return false;
}

static bool fail_changed(tsr_transfer *t, const char *how)
{
    return end_with(t, tsr_fail_as(&t->err, TSR_ERROR_CHANGED_WHILE_READ, TSR_E_IO,
                                   "%s: changed while it was read (%s); run again to start with its new state",
                                   name_of(t), how));
}

/* Follows a redirect. It must not lead from https:// to http://. */
static bool follow(const tsr_requests *with, tsr_transfer *t)
{
    char *to = NULL;
    tsr_err why;
    (void)with->curl.easy_getinfo(t->easy, CURLINFO_REDIRECT_URL, &to);
    const char *const how = t->file != NULL ? compare_state(t) : NULL;
    if (how != NULL)
        return fail_changed(t, how);
    if (to == NULL || ++t->hops > HOPS)
        return end_with(t, tsr_fail(&t->err, TSR_E_IO, "%s: %s", name_of(t),
                                    to == NULL ? "a redirect without an address (of s3://: is AWS_REGION right?)"
                                               : "too many redirects"));
    const char *const from = t->file != NULL ? t->file->url : t->url;
    if (tsr_url_check(to, name_of(t), &why) != TSR_OK ||
        (strncasecmp(from, "https", 5) == 0 && strncasecmp(to, "https", 5) != 0))
        return end_with(
            t, tsr_fail(&t->err, TSR_E_IO, "%s: the server redirects to an address without encryption", name_of(t)));
    char *const copy = strdup(to), **const target = t->file != NULL ? &t->file->target : &t->target;
    if (copy == NULL)
        return end_with(t, tsr_fail(&t->err, TSR_E_NOMEM, "%s: out of memory", name_of(t)));
    free(*target);
    *target = copy;
    return false;
}

/* Forgets where a file was redirected to, because such addresses expire. */
static bool resolve_again(tsr_transfer *t)
{
    free(t->file->target);
    free(t->file->target_etag);
    t->file->target = t->file->target_etag = NULL;
    t->hops = 0;
    return try_again(t, 0, "the address that the server redirects to is refused");
}

static bool fail_refused(const tsr_requests *with, tsr_transfer *t)
{
    const long code = t->reply.code;
    const bool missing = code == 404 || code == 410;
    const bool sends = t->kind == TSR_TRANSFER_SEND;
    const char *const what = missing && sends             ? "there is no such bucket or upload"
                             : missing                    ? "there is no such file or folder"
                             : code == 401 || code == 403 ? with->access->remedy
                             : sends                      ? "the store refuses it"
                                                          : "the server does not do this";
    return end_with(t, tsr_fail(&t->err, missing && !sends ? TSR_E_FORMAT : TSR_E_IO, "%s: %s (status %ld%s%s)",
                                name_of(t), what, code, *t->reply.said == '\0' ? "" : ": ", t->reply.said));
}

/* Returns true if the store refuses a request for a reason that may pass: bytes that were damaged on the way, a
 * connection that was too slow, another request at the same time. */
static bool may_pass(const tsr_transfer *t)
{
    static const char *const kCodes[] = {"RequestTimeout", "BadDigest", "XAmzContentSHA256Mismatch", "IncompleteBody",
                                         "OperationAborted"};
    bool any = false;
    for (size_t i = 0; i < sizeof kCodes / sizeof *kCodes; i++)
        any = any || strstr(t->reply.said, kCodes[i]) != NULL;
    return any && t->kind == TSR_TRANSFER_SEND && (t->reply.code == 400 || t->reply.code == 409);
}

/* Takes a reply that has neither what was requested nor a redirect. */
static bool take_refusal(const tsr_requests *with, tsr_transfer *t)
{
    char why[80];
    const long code = t->reply.code;
    if (code == 412)
        return fail_changed(t, "the server has another version");
    if (t->kind == TSR_TRANSFER_RANGE && t->at_target && code >= 400 && code < 408)
        return resolve_again(t);
    if (t->kind == TSR_TRANSFER_RANGE && code == 416)
        return fail_changed(t, "it is shorter");
    if (may_pass(t))
        return try_again(t, 0, t->reply.said);
    if (code == 408 || code == 425 || code == 429 || (code >= 500 && code != 501 && code != 505)) {
        curl_off_t seconds = 0;
        (void)with->curl.easy_getinfo(t->easy, CURLINFO_RETRY_AFTER, &seconds);
        snprintf(why, sizeof why, "status %ld", code);
        return try_again(t, (double)seconds, why);
    }
    if (code == 200 && t->kind == TSR_TRANSFER_RANGE)
        return end_with(t, tsr_fail(&t->err, TSR_E_UNSUPPORTED,
                                    "%s: the server sends whole files only, no ranges; download the model first",
                                    name_of(t)));
    if (code == 206)
        return try_again(t, 0, "the server sent another range than was requested");
    return fail_refused(with, t);
}

/* Takes a failure of the connection. */
static bool take_failure(const tsr_requests *with, tsr_transfer *t, CURLcode code)
{
    const char *const why = t->problem[0] != '\0' ? t->problem : with->curl.easy_strerror(code);
    switch (code) {
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_URL_MALFORMAT:
    case CURLE_UNKNOWN_OPTION:
    case CURLE_NOT_BUILT_IN:
        return end_with(t, tsr_fail(&t->err, TSR_E_IO, "%s: %s", name_of(t), why));
    case CURLE_OUT_OF_MEMORY:
        return end_with(t, tsr_fail(&t->err, TSR_E_NOMEM, "%s: out of memory", name_of(t)));
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_CONNECT:
        /* Before the first byte of a job, the address is more likely to be wrong than the server to be restarted. */
        t->tries += t->kind == TSR_TRANSFER_DOCUMENT || t->kind == TSR_TRANSFER_PROBE ? FIRST_TRIES : 0;
        return try_again(t, 0, why);
    default:
        return try_again(t, 0, why);
    }
}

/* Takes the reply to bytes that were sent. A store may begin an answer with success and then write an error. */
static bool take_answer(tsr_transfer *t)
{
    if (tsr_text_status(&t->text, &t->err) != TSR_OK)
        return end_with(t, TSR_E_NOMEM);
    const char *const text = t->text.size == 0 ? "" : t->text.data;
    if (strstr(text, "<Error>") != NULL) {
        tsr_reply_say(&t->reply, text, t->text.size);
        return strstr(text, "InternalError") != NULL || strstr(text, "SlowDown") != NULL ||
                       strstr(text, "ServiceUnavailable") != NULL
                   ? try_again(t, 0, t->reply.said)
                   : end_with(t,
                              tsr_fail(&t->err, TSR_E_IO, "%s: the store refuses it (%s)", name_of(t), t->reply.said));
    }
    const char *const end = t->element == NULL ? text : strstr(text, t->element);
    return end == NULL ? try_again(t, 0, "the reply was too short") : end_with(t, TSR_OK);
}

bool tsr_request_end(const tsr_requests *with, tsr_transfer *t, CURLcode code)
{
    with->curl.slist_free_all(t->headers);
    t->headers = NULL;
    hear(t);
    const long status = t->reply.code;
    if (t->fault != NULL && (t->kind == TSR_TRANSFER_DOCUMENT || t->kind == TSR_TRANSFER_SEND))
        return end_with(t, tsr_fail(&t->err, TSR_E_FORMAT, "%s: more than %zu bytes", name_of(t), t->limit));
    if (t->fault != NULL && t->fits) {
        t->done = 0;
        return try_again(t, 0, t->fault);
    }
    if (t->fault != NULL)
        return fail_changed(t, t->fault);
    if (t->kind == TSR_TRANSFER_RANGE && t->fits && t->done == t->size)
        return end_with(t, TSR_OK);
    if (status < 200 || (t->fits && code != CURLE_OK)) /* 100: only the request to go on was answered */
        return take_failure(with, t, code);
    if (t->fits && t->kind == TSR_TRANSFER_SEND)
        return take_answer(t);
    if (t->fits)
        return t->kind == TSR_TRANSFER_DOCUMENT ? end_with(t, tsr_text_status(&t->text, &t->err))
                                                : try_again(t, 0, "the reply was too short");
    if (t->kind == TSR_TRANSFER_SEND && status / 100 == 3)
        return end_with(t, tsr_fail(&t->err, TSR_E_IO,
                                    "%s: the store redirects to another address (status %ld); is "
                                    "AWS_REGION right?",
                                    name_of(t), status));
    if (status == 301 || status == 302 || status == 303 || status == 307 || status == 308)
        return follow(with, t);
    if (t->kind == TSR_TRANSFER_PROBE && (status == 200 || status == 206 || status == 416))
        return end_with(t, TSR_OK);
    return take_refusal(with, t);
}
#endif
