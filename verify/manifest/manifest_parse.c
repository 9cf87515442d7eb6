/* Reads a manifest and checks that it is consistent. */
#include "verify/manifest/manifest_parse.h"

#include "common/checked.h"
#include "common/file.h"
#include "common/grow.h"
#include "common/text.h"
#include "formats/checkpoint/checkpoint.h"
#include "formats/json/json.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <stdlib.h>
#include <string.h>

static const char kSchema[] = "tessera-manifest/1", kLastLine[] = "\n  \"manifest_xxh128\": \"", kEnd[] = "\"\n}\n";
enum { HEX = 32 };

tsr_manifest_digest tsr_manifest_digest_of(const void *data, size_t size)
{
    const XXH128_hash_t hash = XXH3_128bits(data, size);
    return (tsr_manifest_digest){.high = hash.high64, .low = hash.low64};
}

static bool same(tsr_manifest_digest a, tsr_manifest_digest b)
{
    return a.high == b.high && a.low == b.low;
}

bool tsr_manifest_digest_parse(const char *hex, size_t size, tsr_manifest_digest *digest)
{
    static const char kDigits[] = "0123456789abcdef";
    uint64_t half[2] = {0, 0};
    for (size_t i = 0; i < size; i++) {
        const char *const digit = memchr(kDigits, hex[i], 16);
        if (size != HEX || digit == NULL)
            return false;
        half[i / 16] = half[i / 16] << 4 | (uint64_t)(digit - kDigits);
    }
    *digest = (tsr_manifest_digest){.high = half[0], .low = half[1]};
    return size == HEX;
}

/* ---- its own digest ---- */

/* Checks the last line, which has the digest of all lines before it. */
static tsr_status check_whole(const char *path, const char *text, size_t size, tsr_err *err)
{
    const size_t last = sizeof kLastLine - 1, end = sizeof kEnd - 1;
    tsr_manifest_digest recorded;
    const bool has = size >= last + HEX + end && memcmp(text + size - end, kEnd, end) == 0 &&
                     memcmp(text + size - end - HEX - last, kLastLine, last) == 0 &&
                     tsr_manifest_digest_parse(text + size - end - HEX, HEX, &recorded);
    if (!has)
        return tsr_fail(err, TSR_E_FORMAT,
                        "%s: not a manifest of Tessera, or truncated: its last line must be the digest of the file",
                        path);
    if (!same(recorded, tsr_manifest_digest_of(text, size - end - HEX - last + 1)))
        return tsr_fail(err, TSR_E_FORMAT,
                        "%s: damaged: its last line is not the digest of the preceding lines; use another copy, or "
                        "repeat the command that made the output",
                        path);
    return TSR_OK;
}

/* ---- values ---- */

typedef struct reading {
    tsr_json_reader json;
    tsr_manifest *manifest;
    struct cut *cut; /* the file whose tensors are read */
} reading;

static tsr_status refuse(const reading *r, tsr_err *err, const char *what, const char *name)
{
    return tsr_fail(err, TSR_E_FORMAT, "%s: at byte %zu: %s%s%s", r->json.name, r->json.pos, what,
                    name == NULL ? "" : " of ", name == NULL ? "" : name);
}

static tsr_status read_digest(reading *r, tsr_manifest_digest *digest, tsr_err *err)
{
    tsr_json_text value;
    TSR_TRY(tsr_json_read_string(&r->json, &value, err));
    return tsr_manifest_digest_parse(value.data, value.size, digest)
               ? TSR_OK
               : refuse(r, err, "expected a digest of 32 hex digits", NULL);
}

static tsr_status add_piece(reading *r, uint64_t bytes, tsr_manifest_digest digest, tsr_err *err)
{
    tsr_manifest *const s = r->manifest;
    if (!tsr_grow(&s->pieces, s->n_pieces, &s->pieces_capacity, sizeof *s->pieces))
        return tsr_out_of_memory(err, "for a manifest");
    s->pieces[s->n_pieces++] = (tsr_manifest_piece){.bytes = bytes, .digest = digest, .file = (uint32_t)s->n_files};
    return TSR_OK;
}

/* ---- pieces ---- */

/* A tensor, a header or a whole file, as described by the manifest. */
typedef struct range {
    const char *name;
    bool has_offset, has_bytes, has_digest;
    uint64_t offset, bytes;
    tsr_manifest_digest digest;
    size_t first_piece, n_pieces;
} range;

static tsr_status read_piece(void *context, tsr_err *err)
{
    reading *const r = context;
    uint64_t bytes;
    tsr_manifest_digest digest;
    bool more;
    TSR_TRY(tsr_json_enter_array(&r->json, err));
    TSR_TRY(tsr_json_next_element(&r->json, &more, err));
    if (!more)
        return refuse(r, err, "an empty piece", NULL);
    TSR_TRY(tsr_json_read_u64(&r->json, &bytes, err));
    TSR_TRY(tsr_json_next_element(&r->json, &more, err));
    if (!more || bytes == 0)
        return refuse(r, err, "a piece without bytes or digest", NULL);
    TSR_TRY(read_digest(r, &digest, err));
    TSR_TRY(tsr_json_next_element(&r->json, &more, err));
    return more ? refuse(r, err, "a piece with three values", NULL) : add_piece(r, bytes, digest, err);
}

static tsr_status read_pieces(reading *r, range *s, tsr_err *err)
{
    if (s->n_pieces > 0)
        return refuse(r, err, "pieces twice", s->name);
    s->first_piece = r->manifest->n_pieces;
    TSR_TRY(tsr_json_read_array(&r->json, read_piece, r, err));
    s->n_pieces = r->manifest->n_pieces - s->first_piece;
    return s->n_pieces > 0 ? TSR_OK : refuse(r, err, "no pieces", s->name);
}

/* Adds a digest to a digest of digests. */
static void take(XXH3_state_t *hash, tsr_manifest_digest digest)
{
    unsigned char bytes[16];
    for (unsigned i = 0; i < 8; i++) {
        bytes[i] = (unsigned char)(digest.high >> (56 - 8 * i));
        bytes[8 + i] = (unsigned char)(digest.low >> (56 - 8 * i));
    }
    (void)XXH3_128bits_update(hash, bytes, sizeof bytes);
}

static tsr_manifest_digest taken(const XXH3_state_t *hash)
{
    const XXH128_hash_t all = XXH3_128bits_digest(hash);
    return (tsr_manifest_digest){.high = all.high64, .low = all.low64};
}

/* Ends a range: checks that its pieces add up to its bytes and its digest. They are at `offset` of the file. */
static tsr_status end_range(reading *r, range *s, const char *tensor, uint64_t offset, tsr_err *err)
{
    tsr_manifest *const manifest = r->manifest;
    if (!s->has_bytes || !s->has_digest)
        return refuse(r, err, "no bytes or no xxh128", s->name);
    if (s->n_pieces == 0) {
        s->first_piece = manifest->n_pieces;
        s->n_pieces = 1;
        TSR_TRY(add_piece(r, s->bytes, s->digest, err));
    }
    XXH3_state_t hash;
    (void)XXH3_128bits_reset(&hash);
    uint64_t bytes = 0;
    for (size_t i = s->first_piece; i < s->first_piece + s->n_pieces; i++) {
        tsr_manifest_piece *const p = &manifest->pieces[i];
        if (p->bytes > s->bytes - bytes)
            return refuse(r, err, "pieces larger than the bytes", s->name);
        p->offset = offset + bytes;
        p->tensor = tensor;
        bytes += p->bytes;
        take(&hash, p->digest);
    }
    if (bytes != s->bytes)
        return refuse(r, err, "pieces smaller than the bytes", s->name);
    if (!same(s->n_pieces > 1 ? taken(&hash) : manifest->pieces[s->first_piece].digest, s->digest))
        return refuse(r, err, "pieces that do not match the digest", s->name);
    return TSR_OK;
}

/* ---- files ---- */

/* Rejects a repeated member, because another reader might use the other one. */
static bool once(const reading *r, bool *has, const range *s, tsr_err *err)
{
    const bool again = *has;
    *has = true;
    if (again)
        (void)refuse(r, err, "duplicate offset, bytes or xxh128", s->name);
    return !again;
}

/* Reads one member of a range. Sets the flag to false if it has no member of this name. */
static tsr_status read_member(reading *r, tsr_json_text key, range *s, bool *known, tsr_err *err)
{
    *known = true;
    if (tsr_json_is(key, "name"))
        return s->name != NULL ? refuse(r, err, "two names", s->name)
                               : tsr_json_read_text(&r->json, &r->manifest->arena, &s->name, err);
    if (tsr_json_is(key, "pieces"))
        return read_pieces(r, s, err);
    if (tsr_json_is(key, "offset"))
        return once(r, &s->has_offset, s, err) ? tsr_json_read_u64(&r->json, &s->offset, err) : TSR_E_FORMAT;
    if (tsr_json_is(key, "bytes"))
        return once(r, &s->has_bytes, s, err) ? tsr_json_read_u64(&r->json, &s->bytes, err) : TSR_E_FORMAT;
    if (tsr_json_is(key, "xxh128"))
        return once(r, &s->has_digest, s, err) ? read_digest(r, &s->digest, err) : TSR_E_FORMAT;
    *known = false;
    return TSR_OK;
}

static tsr_status read_range(reading *r, range *s, tsr_err *err)
{
    tsr_json_text key;
    bool more, known;
    *s = (range){.name = NULL};
    TSR_TRY(tsr_json_enter_object(&r->json, err));
    for (;;) {
        TSR_TRY(tsr_json_next_member(&r->json, &key, &more, err));
        if (!more)
            return TSR_OK;
        TSR_TRY(read_member(r, key, s, &known, err));
        if (!known)
            TSR_TRY(tsr_json_skip(&r->json, NULL, err));
    }
}

/* Running totals of the current file, from its header and tensors. */
typedef struct cut {
    bool any, tensors;
    uint64_t end;
    size_t n;
    tsr_manifest_digest only;
    XXH3_state_t hash;
} cut;

static tsr_status add_part(reading *r, range *s, cut *c, bool header, tsr_err *err)
{
    if (!header && (s->name == NULL || !s->has_offset || s->offset != c->end))
        return refuse(r, err, "a tensor without a name, or not after the previous one", s->name);
    TSR_TRY(end_range(r, s, header ? NULL : s->name, c->end, err));
    if (!tsr_add_u64(c->end, s->bytes, &c->end))
        return refuse(r, err, "more bytes than a file can have", s->name);
    if (c->n++ == 0)
        (void)XXH3_128bits_reset(&c->hash);
    c->only = s->digest;
    take(&c->hash, s->digest);
    return TSR_OK;
}

static tsr_status read_header(reading *r, cut *c, tsr_err *err)
{
    range s;
    if (c->any)
        return refuse(r, err, "a header after tensors", NULL);
    c->any = true;
    TSR_TRY(read_range(r, &s, err));
    return add_part(r, &s, c, true, err);
}

static tsr_status read_tensor(void *context, tsr_err *err)
{
    reading *const r = context;
    range s;
    TSR_TRY(read_range(r, &s, err));
    return add_part(r, &s, r->cut, false, err);
}

static tsr_status read_tensors(reading *r, cut *c, tsr_err *err)
{
    if (c->tensors)
        return refuse(r, err, "tensors twice", NULL);
    c->any = c->tensors = true;
    r->cut = c;
    return tsr_json_read_array(&r->json, read_tensor, r, err);
}

/* Returns true for a path below the output that is not one of Tessera's own files. */
static bool is_safe(const char *name)
{
    if (!tsr_is_printable(name))
        return false;
    for (const char *at = name;; at += strcspn(at, "/") + 1) {
        const size_t n = strcspn(at, "/");
        if (n == 0 || (n == 1 && at[0] == '.') || (n == 2 && memcmp(at, "..", 2) == 0) || n > 255)
            return false;
        if (at[n] == '\0')
            return strncmp(name, TSR_STATE_DIR "/", sizeof TSR_STATE_DIR) != 0 && strcmp(name, TSR_MANIFEST_NAME) != 0;
    }
}

static tsr_status end_file(reading *r, range *s, const cut *c, size_t first, tsr_err *err)
{
    tsr_manifest *const manifest = r->manifest;
    if (s->name == NULL || !is_safe(s->name))
        return refuse(r, err, "a file without a name, or with a name that no output has", NULL);
    if (c->any && (s->n_pieces > 0 || !s->has_bytes || !s->has_digest || c->n == 0 || c->end != s->bytes ||
                   !same(c->n == 1 ? c->only : taken(&c->hash), s->digest)))
        return refuse(r, err, "a header and tensors that do not add up to the file", s->name);
    if (!c->any)
        TSR_TRY(end_range(r, s, NULL, 0, err));
    if (!tsr_add_u64(manifest->bytes, s->bytes, &manifest->bytes))
        return refuse(r, err, "with these, more bytes than files can have", s->name);
    if (!tsr_grow(&manifest->files, manifest->n_files, &manifest->files_capacity, sizeof *manifest->files))
        return tsr_out_of_memory(err, "for a manifest");
    manifest->files[manifest->n_files++] = (tsr_manifest_file){
        .name = s->name, .bytes = s->bytes, .first_piece = first, .n_pieces = manifest->n_pieces - first};
    return TSR_OK;
}

static tsr_status read_file(void *context, tsr_err *err)
{
    reading *const r = context;
    const size_t first = r->manifest->n_pieces;
    range s = {.name = NULL};
    cut c = {.any = false};
    tsr_json_text key;
    bool more, known;
    if (r->manifest->n_files == UINT32_MAX)
        return refuse(r, err, "too many files", NULL);
    TSR_TRY(tsr_json_enter_object(&r->json, err));
    for (;;) {
        TSR_TRY(tsr_json_next_member(&r->json, &key, &more, err));
        if (!more)
            return end_file(r, &s, &c, first, err);
        TSR_TRY(read_member(r, key, &s, &known, err));
        if (known)
            continue;
        if (tsr_json_is(key, "header"))
            TSR_TRY(read_header(r, &c, err));
        else if (tsr_json_is(key, "tensors"))
            TSR_TRY(read_tensors(r, &c, err));
        else
            TSR_TRY(tsr_json_skip(&r->json, NULL, err));
    }
}

/* ---- the whole manifest ---- */

static tsr_status check_names(const reading *r, tsr_err *err)
{
    const tsr_manifest *const s = r->manifest;
    const char **const names = malloc((s->n_files + 1) * sizeof *names);
    if (names == NULL)
        return tsr_out_of_memory(err, "for a manifest");
    for (size_t i = 0; i < s->n_files; i++)
        names[i] = s->files[i].name;
    qsort(names, s->n_files, sizeof *names, tsr_by_text);
    tsr_status status = TSR_OK;
    for (size_t i = 1; i < s->n_files && status == TSR_OK; i++) {
        if (strcmp(names[i - 1], names[i]) == 0)
            status = refuse(r, err, "two entries", names[i]);
    }
    free(names);
    return status;
}

static tsr_status read_once(reading *r, const char **text, const char *what, tsr_err *err)
{
    return *text != NULL ? refuse(r, err, "duplicate member", what)
                         : tsr_json_read_text(&r->json, &r->manifest->arena, text, err);
}

static tsr_status read_whole(reading *r, tsr_json_text key, const char **schema, bool *files, tsr_err *err)
{
    if (tsr_json_is(key, "version"))
        return read_once(r, &r->manifest->version, "version", err);
    if (tsr_json_is(key, "command"))
        return read_once(r, &r->manifest->command, "command", err);
    if (tsr_json_is(key, "files")) {
        if (*files)
            return refuse(r, err, "files twice", NULL);
        *files = true;
        return tsr_json_read_array(&r->json, read_file, r, err);
    }
    if (!tsr_json_is(key, "schema"))
        return tsr_json_skip(&r->json, NULL, err);
    TSR_TRY(read_once(r, schema, "schema", err));
    return strcmp(*schema, kSchema) == 0
               ? TSR_OK
               : tsr_fail(err, TSR_E_UNSUPPORTED, "%s: unsupported schema '%.80s'; this is Tessera %s, which reads %s",
                          r->json.name, *schema, TSR_VERSION, kSchema);
}

static tsr_status read_all(reading *r, tsr_err *err)
{
    const char *schema = NULL;
    tsr_json_text key;
    bool more, files = false;
    TSR_TRY(tsr_json_enter_object(&r->json, err));
    for (;;) {
        TSR_TRY(tsr_json_next_member(&r->json, &key, &more, err));
        if (!more)
            break;
        TSR_TRY(read_whole(r, key, &schema, &files, err));
    }
    TSR_TRY(tsr_json_finish(&r->json, err));
    if (schema == NULL || !files || r->manifest->version == NULL || r->manifest->command == NULL)
        return refuse(r, err, "no schema, version, command or files", NULL);
    return check_names(r, err);
}

tsr_status tsr_manifest_read(tsr_manifest *s, const char *path, tsr_err *err)
{
    const char *text;
    size_t size;
    *s = (tsr_manifest){.version = NULL};
    TSR_TRY(tsr_read_file(path, TSR_MAX_MANIFEST_BYTES, &s->arena, &text, &size, err));
    TSR_TRY(check_whole(path, text, size, err));
    s->digest = tsr_manifest_digest_of(text, size);
    reading r = {.json = tsr_json_open(path, text, size), .manifest = s};
    return read_all(&r, err);
}

void tsr_manifest_free(tsr_manifest *s)
{
    free(s->files);
    free(s->pieces);
    tsr_arena_free(&s->arena);
    *s = (tsr_manifest){.version = NULL};
}
