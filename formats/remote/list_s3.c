/* Lists the objects below a prefix of a bucket of S3. */
#include "formats/remote/remote_open.h"

#ifdef TSR_HAVE_CURL
#include "formats/remote/settings/aws_access.h"

#include <stdlib.h>
#include <string.h>

enum { LARGEST_PAGE = 16 << 20, MOST_PAGES = 1000 };

/* ---- XML ---- */

bool tsr_xml_find(tsr_xml_span in, const char *name, tsr_xml_span *content)
{
    const size_t n = strlen(name);
    for (const char *p = in.begin; p < in.end && (p = memchr(p, '<', (size_t)(in.end - p))) != NULL; p++) {
        if ((size_t)(in.end - p) < n + 2 || strncmp(p + 1, name, n) != 0 || p[n + 1] != '>')
            continue;
        content->begin = p + n + 2;
        for (const char *q = content->begin; q < in.end && (q = memchr(q, '<', (size_t)(in.end - q))) != NULL; q++) {
            if ((size_t)(in.end - q) >= n + 3 && q[1] == '/' && strncmp(q + 2, name, n) == 0 && q[n + 2] == '>') {
                content->end = q;
                return true;
            }
        }
        return false;
    }
    return false;
}

const char *tsr_xml_text(tsr_xml_span in, const char *name, tsr_arena *arena)
{
    static const struct {
        const char *entity, *text;
    } kEntities[] = {{"&amp;", "&"},  {"&lt;", "<"},  {"&gt;", ">"},   {"&quot;", "\""}, {"&#34;", "\""},
                     {"&apos;", "'"}, {"&#39;", "'"}, {"&#x27;", "'"}, {"&#x22;", "\""}};
    tsr_xml_span content;
    if (!tsr_xml_find(in, name, &content))
        return NULL;
    char *const text = tsr_arena_alloc(arena, (size_t)(content.end - content.begin) + 1);
    size_t n = 0;
    for (const char *p = content.begin; text != NULL && p < content.end; p++) {
        size_t i = 0;
        const size_t count = sizeof kEntities / sizeof *kEntities;
        while (*p == '&' && i < count && strncmp(p, kEntities[i].entity, strlen(kEntities[i].entity)) != 0)
            i++;
        if (*p == '&' && i == count)
            return NULL;
        text[n++] = *p == '&' ? *kEntities[i].text : *p;
        p += *p == '&' ? strlen(kEntities[i].entity) - 1 : 0;
    }
    return text;
}

/* ---- the list ---- */

/* The parts of s3://BUCKET[/PREFIX]. */
typedef struct s3_name {
    const char *bucket;
    const char *prefix; /* ends in '/', or is empty; the key of a single file */
} s3_name;

/* Adds an object, unless it is the mark of a folder or is in a hidden one. */
static tsr_status add_object(tsr_remote *remote, const s3_name *of, tsr_xml_span object, tsr_err *err)
{
    uint64_t size;
    tsr_arena *const arena = &remote->arena;
    const char *const key = tsr_xml_text(object, "Key", arena), *const etag = tsr_xml_text(object, "ETag", arena),
                      *const bytes = tsr_xml_text(object, "Size", arena);
    const size_t n = strlen(of->prefix);
    if (key == NULL || etag == NULL || bytes == NULL || !tsr_parse_decimal(bytes, &size) ||
        strncmp(key, of->prefix, n) != 0)
        return tsr_fail(err, TSR_E_FORMAT, "%s: the server's list has an object without a valid key, size or ETag",
                        remote->address);
    if (remote->is_file)
        return key[n] == '\0' ? tsr_remote_add(remote, strrchr(remote->address, '/') + 1, size, etag, NULL, err)
                              : TSR_OK;
    if (key[n] == '\0' || tsr_ends_with(key, "/"))
        return TSR_OK;
    return tsr_remote_add(remote, key + n, size, etag, NULL, err);
}

static tsr_status take_page(tsr_remote *remote, const s3_name *of, tsr_xml_span page, const char **next, tsr_err *err)
{
    tsr_xml_span object;
    const char *const more = tsr_xml_text(page, "IsTruncated", &remote->arena);
    if (more == NULL)
        return tsr_fail(err, TSR_E_FORMAT, "%s: the server's answer is not a list of objects", remote->address);
    *next = strcmp(more, "true") == 0 ? tsr_xml_text(page, "NextContinuationToken", &remote->arena) : NULL;
    if (strcmp(more, "true") == 0 && *next == NULL)
        return tsr_fail(err, TSR_E_FORMAT, "%s: the server's list has no continuation", remote->address);
    while (tsr_xml_find(page, "Contents", &object)) {
        TSR_TRY(add_object(remote, of, object, err));
        page.begin = object.end;
    }
    return TSR_OK;
}

/* Fetches all pages of the list. */
static tsr_status list(tsr_remote *remote, const s3_name *of, const char *bucket_url, tsr_err *err)
{
    const char *next = NULL;
    tsr_text url = {0};
    tsr_status status = TSR_OK;
    for (unsigned pages = 0; status == TSR_OK && (pages == 0 || next != NULL); pages++) {
        tsr_xml_span page;
        size_t size;
        if (pages == MOST_PAGES)
            return tsr_fail(err, TSR_E_FORMAT, "%s: more than a million objects", remote->address);
        url.size = 0;
        tsr_text_printf(&url, "%s?", bucket_url);
        /* Signatures need the parameters in this order. */
        if (next != NULL) {
            tsr_text_printf(&url, "continuation-token=");
            tsr_url_escape(&url, next, "");
            tsr_text_printf(&url, "&");
        }
        tsr_text_printf(&url, "list-type=2&prefix=");
        tsr_url_escape(&url, of->prefix, "");
        status = tsr_text_status(&url, err);
        if (status == TSR_OK)
            status = tsr_remote_fetch(remote, url.data, remote->address, LARGEST_PAGE, &page.begin, &size, err);
        if (status != TSR_OK)
            break;
        page.end = page.begin + size;
        status = take_page(remote, of, page, &next, err);
    }
    tsr_text_free(&url);
    return status;
}

/* ---- the address ---- */

static tsr_status split(tsr_remote *remote, const char *address, s3_name *name, tsr_err *err)
{
    static const char kBucket[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    const char *const bucket = address + strlen("s3://");
    const size_t n_bucket = strspn(bucket, kBucket);
    size_t n = strlen(address);
    if (n_bucket == 0 || (bucket[n_bucket] != '/' && bucket[n_bucket] != '\0'))
        return tsr_fail(err, TSR_E_USAGE, "%s: write s3://BUCKET/PREFIX", address);
    while (n > 0 && address[n - 1] == '/')
        n--;
    remote->address = tsr_arena_dup(&remote->arena, address, n);
    remote->is_file = tsr_ends_with(address, ".safetensors") || tsr_ends_with(address, ".safetensors.zst");
    name->bucket = tsr_arena_dup(&remote->arena, bucket, n_bucket);
    const size_t before = strlen("s3://") + n_bucket + 1;
    name->prefix = n <= before ? tsr_arena_dup(&remote->arena, "", 0)
                               : tsr_arena_printf(&remote->arena, "%.*s%s", (int)(n - before), address + before,
                                                  remote->is_file ? "" : "/");
    return tsr_arena_status(&remote->arena, TSR_OK, err);
}

/* Returns the URL of a bucket. With an endpoint of its own, and for names with dots, which certificates do not cover,
 * the bucket is in the path. */
static const char *url_of_bucket(const tsr_aws_settings *s, const char *bucket, tsr_arena *arena)
{
    if (s->endpoint != NULL) {
        size_t n = strlen(s->endpoint);
        while (n > 0 && s->endpoint[n - 1] == '/')
            n--;
        return tsr_arena_printf(arena, "%.*s/%s/", (int)n, s->endpoint, bucket);
    }
    return strchr(bucket, '.') == NULL ? tsr_arena_printf(arena, "https://%s.s3.%s.amazonaws.com/", bucket, s->region)
                                       : tsr_arena_printf(arena, "https://s3.%s.amazonaws.com/%s/", s->region, bucket);
}

tsr_status tsr_remote_list_s3(tsr_remote *remote, const char *address, tsr_err *err)
{
    s3_name name = {0};
    tsr_aws_settings s;
    tsr_text base = {0};
    tsr_arena *const arena = &remote->arena;
    TSR_TRY(split(remote, address, &name, err));
    TSR_TRY(tsr_aws_settings_read(&s, arena, err));
    if (s.region == NULL)
        s.region = "us-east-1";
    const char *const bucket = url_of_bucket(&s, name.bucket, arena);
    if (bucket == NULL)
        return tsr_out_of_memory(err, "for an address");
    TSR_TRY(tsr_url_check(bucket, s.endpoint != NULL ? "AWS_ENDPOINT_URL" : "AWS_REGION", err));
    remote->access.remedy = s.key == NULL
                                ? "access is refused; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
                                : "access is refused with this key; are AWS_PROFILE and AWS_REGION right?";
    if (s.key != NULL) {
        remote->access.scope = tsr_arena_printf(arena, "aws:amz:%s:s3", s.region);
        remote->access.user = tsr_arena_printf(arena, "%s:%s", s.key, s.secret);
        remote->access.session = s.session;
    }
    tsr_text_append(&base, bucket, strlen(bucket));
    tsr_url_escape(&base, name.prefix, "/");
    remote->base = base.failed ? NULL : tsr_arena_dup(arena, base.data, base.size);
    tsr_text_free(&base);
    remote->bucket = bucket;
    remote->prefix = name.prefix;
    TSR_TRY(tsr_arena_status(arena, remote->base == NULL ? TSR_E_NOMEM : TSR_OK, err));
    TSR_TRY(tsr_remote_connect(remote, err));
    TSR_TRY(list(remote, &name, bucket, err));
    return remote->n_files > 0 || remote->is_output
               ? TSR_OK
               : tsr_fail(err, TSR_E_FORMAT, "%s: there is no object with this prefix", remote->address);
}
#endif
