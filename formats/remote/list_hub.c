/* Lists the files of a model on the Hugging Face Hub, at one commit. */
#include "formats/remote/remote_open.h"

#ifdef TSR_HAVE_CURL
#include "formats/json/json.h"
#include "formats/remote/settings/hub_access.h"

#include <stdlib.h>
#include <string.h>

enum { LARGEST_LIST = 64 << 20 };

/* The parts of hf://ORG/NAME[@REVISION][/PLACE]. */
typedef struct hub_name {
    const char *model;    /* "ORG/NAME" */
    const char *revision; /* "main" if the address has none */
    const char *place;    /* a folder or file in the model; "": all of it */
} hub_name;

static tsr_status not_an_address(const char *address, tsr_err *err)
{
    return tsr_fail(err, TSR_E_USAGE, "%s: write hf://ORG/NAME, hf://ORG/NAME@REVISION or hf://ORG/NAME/FOLDER",
                    address);
}

static bool is_word(const char *text, size_t size)
{
    static const char kWord[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    return size > 0 && *text != '.' && strspn(text, kWord) >= size;
}

/* Returns the length of a revision: up to the next '/', or all of "refs/pr/1" and "refs/convert/NAME". */
static size_t revision_size(const char *text)
{
    size_t n = strcspn(text, "/");
    for (int i = 0; i < 2 && strncmp(text, "refs/", 5) == 0 && text[n] == '/'; i++)
        n += 1 + strcspn(text + n + 1, "/");
    return n;
}

static tsr_status split(const char *address, hub_name *name, tsr_arena *arena, tsr_err *err)
{
    const char *const org = address + strlen("hf://");
    const size_t n_org = strcspn(org, "/@");
    if (org[n_org] != '/' || !is_word(org, n_org))
        return not_an_address(address, err);
    const char *const model = org + n_org + 1, *rest;
    const size_t n_model = strcspn(model, "/@");
    if (!is_word(model, n_model))
        return not_an_address(address, err);
    rest = model + n_model;
    *name = (hub_name){.revision = "main", .model = tsr_arena_dup(arena, org, n_org + 1 + n_model)};
    if (*rest == '@') {
        const size_t n = revision_size(rest + 1);
        if (n == 0)
            return not_an_address(address, err);
        name->revision = tsr_url_unescape(rest + 1, n, arena);
        rest += 1 + n;
    }
    while (*rest == '/')
        rest++;
    size_t n = strlen(rest);
    while (n > 0 && rest[n - 1] == '/')
        n--;
    name->place = tsr_arena_dup(arena, rest, n);
    if (name->revision == NULL)
        return not_an_address(address, err);
    return tsr_arena_status(arena, TSR_OK, err);
}

/* ---- the list ---- */

/* A file of the Hub's list. */
typedef struct sibling {
    const char *name, *blob, *sha256;
    uint64_t size;
    bool has_size;
} sibling;

static tsr_status read_lfs(tsr_json_reader *r, tsr_arena *arena, sibling *s, tsr_err *err)
{
    tsr_json_kind kind;
    tsr_json_text key;
    bool more;
    TSR_TRY(tsr_json_peek(r, &kind, err));
    if (kind != TSR_JSON_OBJECT)
        return tsr_json_skip(r, NULL, err);
    TSR_TRY(tsr_json_enter_object(r, err));
    for (;;) {
        TSR_TRY(tsr_json_next_member(r, &key, &more, err));
        if (!more)
            return TSR_OK;
        TSR_TRY(tsr_json_is(key, "sha256") ? tsr_json_read_text(r, arena, &s->sha256, err)
                                           : tsr_json_skip(r, NULL, err));
    }
}

static tsr_status read_sibling(tsr_json_reader *r, tsr_arena *arena, sibling *s, tsr_err *err)
{
    tsr_json_text key;
    bool more;
    *s = (sibling){.name = NULL};
    TSR_TRY(tsr_json_enter_object(r, err));
    for (;;) {
        TSR_TRY(tsr_json_next_member(r, &key, &more, err));
        if (!more)
            return TSR_OK;
        if (tsr_json_is(key, "rfilename"))
            TSR_TRY(tsr_json_read_text(r, arena, &s->name, err));
        else if (tsr_json_is(key, "blobId"))
            TSR_TRY(tsr_json_read_text(r, arena, &s->blob, err));
        else if (tsr_json_is(key, "lfs"))
            TSR_TRY(read_lfs(r, arena, s, err));
        else if (tsr_json_is(key, "size")) {
            TSR_TRY(tsr_json_read_u64(r, &s->size, err));
            s->has_size = true;
        } else {
            TSR_TRY(tsr_json_skip(r, NULL, err));
        }
    }
}

/* Adds a file that is in the place of the address. */
static tsr_status add_sibling(tsr_remote *remote, const hub_name *of, const sibling *s, tsr_err *err)
{
    const char *const etag = s->sha256 != NULL ? s->sha256 : s->blob;
    const size_t n = strlen(of->place);
    if (s->name == NULL || etag == NULL || !s->has_size)
        return tsr_fail(err, TSR_E_FORMAT, "%s: the Hub's list has a file without a name, size or digest",
                        remote->address);
    if (remote->is_file)
        return strcmp(s->name, of->place) == 0
                   ? tsr_remote_add(remote, strrchr(remote->address, '/') + 1, s->size, etag, NULL, err)
                   : TSR_OK;
    if (n > 0 && (strncmp(s->name, of->place, n) != 0 || s->name[n] != '/'))
        return TSR_OK;
    return tsr_remote_add(remote, s->name + (n == 0 ? 0 : n + 1), s->size, etag, NULL, err);
}

static tsr_status read_list(tsr_remote *remote, const hub_name *of, tsr_json_text text, tsr_err *err)
{
    tsr_json_reader r = tsr_json_open(remote->address, text.data, text.size);
    tsr_json_text key;
    sibling s;
    bool more;
    TSR_TRY(tsr_json_enter_object(&r, err));
    for (;;) {
        TSR_TRY(tsr_json_next_member(&r, &key, &more, err));
        if (!more)
            return tsr_json_finish(&r, err);
        if (!tsr_json_is(key, "siblings")) {
            TSR_TRY(tsr_json_skip(&r, NULL, err));
            continue;
        }
        TSR_TRY(tsr_json_enter_array(&r, err));
        for (;;) {
            TSR_TRY(tsr_json_next_element(&r, &more, err));
            if (!more)
                break;
            TSR_TRY(read_sibling(&r, &remote->arena, &s, err));
            TSR_TRY(add_sibling(remote, of, &s, err));
        }
    }
}

/* Asks the Hub which commit the revision is, and for the files there. */
static tsr_status list(tsr_remote *remote, const hub_name *of, const char *endpoint, tsr_err *err)
{
    tsr_arena *const arena = &remote->arena;
    tsr_text url = {0}, base = {0};
    tsr_json_text text = {0};
    tsr_text_printf(&url, "%s/api/models/%s/revision/", endpoint, of->model);
    tsr_url_escape(&url, of->revision, "");
    tsr_text_printf(&url, "?blobs=true");
    tsr_status status = tsr_text_status(&url, err);
    if (status == TSR_OK)
        status = tsr_remote_fetch(remote, url.data, remote->address, LARGEST_LIST, &text.data, &text.size, err);
    if (status == TSR_OK) {
        remote->commit = tsr_json_find_string(text.data, text.size, "sha", arena);
        if (remote->commit == NULL || strspn(remote->commit, "0123456789abcdef") != strlen(remote->commit) ||
            strlen(remote->commit) < 40)
            status = tsr_fail(err, TSR_E_FORMAT, "%s: the Hub's answer has no commit; is HF_ENDPOINT right?",
                              remote->address);
    }
    if (status == TSR_OK) {
        tsr_text_printf(&base, "%s/%s/resolve/%s/", endpoint, of->model, remote->commit);
        tsr_url_escape(&base, of->place, "/");
        if (*of->place != '\0' && !remote->is_file)
            tsr_text_printf(&base, "/");
        remote->base = base.failed ? NULL : tsr_arena_dup(arena, base.data, base.size);
        status = tsr_arena_status(arena, tsr_text_status(&base, err), err);
    }
    if (status == TSR_OK)
        status = read_list(remote, of, text, err);
    tsr_text_free(&url);
    tsr_text_free(&base);
    return status;
}

tsr_status tsr_remote_list_hub(tsr_remote *remote, const char *address, tsr_err *err)
{
    hub_name name = {.model = NULL};
    size_t n = strlen(address);
    while (n > 0 && address[n - 1] == '/')
        n--;
    remote->address = tsr_arena_dup(&remote->arena, address, n);
    TSR_TRY(split(address, &name, &remote->arena, err));
    remote->is_file = tsr_ends_with(name.place, ".safetensors") || tsr_ends_with(name.place, ".safetensors.zst");
    const char *const endpoint = tsr_hub_endpoint(&remote->arena);
    remote->base = endpoint;
    if (remote->address == NULL || endpoint == NULL)
        return tsr_out_of_memory(err, "for an address");
    TSR_TRY(tsr_url_check(endpoint, "HF_ENDPOINT", err));
    remote->access.remedy = "access is refused; set HF_TOKEN, and accept the conditions on the model's page";
    TSR_TRY(tsr_hub_token(&remote->access.bearer, &remote->arena, err));
    TSR_TRY(tsr_remote_connect(remote, err));
    TSR_TRY(list(remote, &name, endpoint, err));
    return remote->n_files > 0 ? TSR_OK
                               : tsr_fail(err, TSR_E_FORMAT, "%s: there is no such file or folder at commit %s",
                                          remote->address, remote->commit);
}
#endif
