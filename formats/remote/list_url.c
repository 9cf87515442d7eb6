/* Lists the files of a folder on a web server, from the page that the server makes of it. */
#include "formats/remote/remote_open.h"

#ifdef TSR_HAVE_CURL
#include "common/grow.h"
#include "common/text.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { LARGEST_PAGE = 16 << 20, MOST_FOLDERS = 256, MOST_FILES = 100000 };

/* The names that were found. */
typedef struct found {
    tsr_remote *remote;
    const char **names; /* relative to the address; a folder ends in '/' */
    size_t n, capacity, folders;
} found;

static tsr_status add_name(found *f, const char *name, tsr_err *err)
{
    for (size_t i = 0; i < f->n; i++) {
        if (strcmp(f->names[i], name) == 0)
            return TSR_OK; /* pages link to a file by its icon and by its name */
    }
    if (!tsr_grow(&f->names, f->n, &f->capacity, sizeof *f->names))
        return tsr_out_of_memory(err, "for a list of files");
    f->names[f->n++] = name;
    return TSR_OK;
}

/* Copies the value of an attribute and replaces "&amp;", the only entity that names in addresses need. */
static char *copy_value(const char *from, size_t size, tsr_arena *arena)
{
    char *const text = tsr_arena_dup(arena, from, size);
    for (char *p = text; p != NULL && (p = strstr(p, "&amp;")) != NULL; p++)
        memmove(p + 1, p + 5, strlen(p + 5) + 1);
    return text;
}

/* Takes a link of the page of folder `sub` ("" or "folder/") if it leads to a file or folder in it. */
static tsr_status take_link(found *f, const char *folder_url, const char *sub, const char *link, tsr_err *err)
{
    const size_t n = strlen(folder_url);
    const char *const path = strchr(strstr(folder_url, "://") + 3, '/');
    if (strncmp(link, folder_url, n) == 0)
        link += n;
    else if (*link == '/' && path != NULL && strncmp(link, path, strlen(path)) == 0)
        link += strlen(path);
    if (strncmp(link, "./", 2) == 0)
        link += 2;
    const size_t size = strcspn(link, "?#"), slash = strcspn(link, "/");
    if (size == 0 || link[size] != '\0' || *link == '/' || strstr(link, "://") != NULL || slash + 1 < size ||
        strncmp(link, "..", 2) == 0 || strncasecmp(link, "mailto:", 7) == 0)
        return TSR_OK;
    const char *const name = tsr_url_unescape(link, size, &f->remote->arena);
    const char *const whole = name == NULL ? NULL : tsr_arena_printf(&f->remote->arena, "%s%s", sub, name);
    if (whole == NULL)
        return tsr_fail(err, TSR_E_FORMAT, "%s: a link that is not valid: '%s'", f->remote->address, link);
    /* Hidden folders are not part of a model. */
    return link[slash] == '/' && *name == '.' ? TSR_OK : add_name(f, whole, err);
}

/* Takes all links of a page: the values of href in tags. */
static tsr_status take_links(found *f, const char *folder_url, const char *sub, const char *page, tsr_err *err)
{
    for (const char *p = page; (p = strcasestr(p, "href=")) != NULL;) {
        p += 5;
        const char quote = *p == '"' || *p == '\'' ? *p++ : '\0';
        const char *const end = quote != '\0' ? strchrnul(p, quote) : p + strcspn(p, " >\t\r\n");
        const char *const link = copy_value(p, (size_t)(end - p), &f->remote->arena);
        if (link == NULL)
            return tsr_out_of_memory(err, "for a list of files");
        TSR_TRY(take_link(f, folder_url, sub, link, err));
        if (f->n > MOST_FILES)
            return tsr_fail(err, TSR_E_FORMAT, "%s: more than %d files", f->remote->address, MOST_FILES);
        p = end;
    }
    return TSR_OK;
}

/* Lists a folder; its folders are added to the names, and listed when their turn comes. */
static tsr_status list_folder(found *f, const char *sub, tsr_err *err)
{
    tsr_remote *const r = f->remote;
    tsr_text url = {0};
    const char *page;
    size_t size;
    tsr_text_append(&url, r->base, strlen(r->base));
    tsr_url_escape(&url, sub, "/");
    tsr_status status = tsr_text_status(&url, err);
    const char *const shown = tsr_arena_printf(&r->arena, "%s/%s", r->address, sub);
    if (status == TSR_OK)
        status = shown == NULL ? tsr_out_of_memory(err, NULL)
                               : tsr_remote_fetch(r, url.data, shown, LARGEST_PAGE, &page, &size, err);
    if (status == TSR_OK)
        status = take_links(f, url.data, sub, page, err);
    tsr_text_free(&url);
    return status;
}

/* Asks for the size and state of each file. */
static tsr_status probe_all(found *f, tsr_err *err)
{
    tsr_remote *const r = f->remote;
    tsr_transfer *const all = calloc(f->n + 1, sizeof *all);
    tsr_text url = {0};
    tsr_status status = all == NULL ? tsr_out_of_memory(err, "for a list of files") : TSR_OK;
    for (size_t i = 0; i < f->n && status == TSR_OK; i++) {
        url.size = 0;
        tsr_text_append(&url, r->base, strlen(r->base));
        if (!r->is_file)
            tsr_url_escape(&url, f->names[i], "/");
        all[i] = (tsr_transfer){
            .kind = TSR_TRANSFER_PROBE,
            .url = url.failed ? NULL : tsr_arena_dup(&r->arena, url.data, url.size),
            .shown = r->is_file ? r->address : tsr_arena_printf(&r->arena, "%s/%s", r->address, f->names[i]),
        };
        status = tsr_arena_status(&r->arena, tsr_text_status(&url, err), err);
    }
    const size_t n = status == TSR_OK ? f->n : 0;
    for (size_t i = 0; i < n; i++)
        tsr_transfers_add(r->transfers, &all[i]);
    for (size_t i = 0; i < n; i++) {
        tsr_err *const to = status == TSR_OK ? err : NULL;
        const tsr_reply *const reply = &all[i].reply;
        tsr_status one = tsr_transfers_wait(r->transfers, &all[i], to);
        if (one == TSR_OK && !reply->ranged && !(reply->has_length && reply->length == 0))
            one = tsr_fail(to, TSR_E_UNSUPPORTED,
                           "%s: the server sends whole files only, no ranges; download the model first", all[i].shown);
        if (one == TSR_OK)
            one = tsr_remote_add(r, f->names[i], reply->ranged ? reply->total : 0,
                                 *reply->etag == '\0' ? NULL : reply->etag,
                                 *reply->modified == '\0' ? NULL : reply->modified, to);
        status = status == TSR_OK ? one : status;
    }
    tsr_text_free(&url);
    free(all);
    return status;
}

static tsr_status list_all(found *f, tsr_err *err)
{
    tsr_remote *const r = f->remote;
    if (r->is_file)
        return add_name(f, strrchr(r->address, '/') + 1, err);
    TSR_TRY(list_folder(f, "", err));
    for (size_t i = 0; i < f->n; i++) {
        const char *const name = f->names[i];
        if (!tsr_ends_with(name, "/"))
            continue;
        if (++f->folders > MOST_FOLDERS)
            return tsr_fail(err, TSR_E_FORMAT, "%s: more than %d folders", r->address, MOST_FOLDERS);
        TSR_TRY(list_folder(f, name, err));
    }
    size_t files = 0;
    for (size_t i = 0; i < f->n; i++) {
        if (!tsr_ends_with(f->names[i], "/"))
            f->names[files++] = f->names[i];
    }
    f->n = files;
    return files > 0 ? TSR_OK
                     : tsr_fail(err, TSR_E_FORMAT,
                                "%s: the page at this address links to no files in the folder; the server has to list "
                                "its folders (nginx: autoindex on), or name a single .safetensors file",
                                r->address);
}

tsr_status tsr_remote_list_url(tsr_remote *r, const char *address, tsr_err *err)
{
    size_t n = tsr_url_shown_size(address);
    char *const shown = tsr_arena_dup(&r->arena, address, n);
    if (shown == NULL)
        return tsr_out_of_memory(err, "for an address");
    TSR_TRY(tsr_url_check(address, shown, err));
    r->is_file = tsr_ends_with(shown, ".safetensors") || tsr_ends_with(shown, ".safetensors.zst");
    if (address[n] != '\0')
        return tsr_fail(err, TSR_E_USAGE,
                        "%s: an address has no '?' or '#': a signature in it would be visible to other users and in "
                        "reports; use ~/.netrc, or s3://",
                        shown);
    while (!r->is_file && n > 0 && shown[n - 1] == '/')
        shown[--n] = '\0';
    r->address = shown;
    r->base =
        r->is_file ? tsr_arena_dup(&r->arena, address, strlen(address)) : tsr_arena_printf(&r->arena, "%s/", shown);
    r->access.netrc = true;
    r->access.remedy = "access is refused; is there a login for this host in ~/.netrc?";
    if (r->base == NULL)
        return tsr_out_of_memory(err, "for an address");
    TSR_TRY(tsr_remote_connect(r, err));
    found f = {.remote = r};
    tsr_status status = list_all(&f, err);
    if (status == TSR_OK)
        status = probe_all(&f, err);
    free(f.names);
    return status;
}
#endif
