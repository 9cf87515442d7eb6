/* Writes and reads the records of objects that a store has. */
#include "convert/uploads/sent_record.h"

#include "common/file.h"
#include "common/text.h"
#include "formats/checkpoint/checkpoint.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define VERSION "tessera sent 1"

enum { LARGEST_RECORD = 256 << 20 };

const char *tsr_sent_path(const char *dst, size_t index, const char *kind, char path[PATH_MAX])
{
    snprintf(path, PATH_MAX, "%s/" TSR_STATE_DIR "/%zu.%s", dst, index, kind);
    return path;
}

static void add_digest(tsr_text *t, tsr_digest digest)
{
    tsr_text_printf(t, "%016llx%016llx\n", U64(digest.high64), U64(digest.low64));
}

tsr_status tsr_sent_write(const char *dst, size_t index, const tsr_sent *sent, const tsr_digests *d, tsr_err *err)
{
    char path[PATH_MAX];
    tsr_text t = {0};
    uint64_t n = 0;
    tsr_text_printf(&t, VERSION "\nname %s\nbytes %llu\ndigest %016llx\netag %s\n", sent->name, U64(sent->bytes),
                    U64(sent->digest), sent->etag);
    const tsr_digest *const pieces = d == NULL ? NULL : tsr_digests_of(d, index, &n);
    if (d != NULL) {
        tsr_text_printf(&t, "size %llu\n", U64(d->sizes[index]));
        add_digest(&t, d->headers[index]);
    }
    for (uint64_t i = 0; i < n; i++)
        add_digest(&t, pieces[i]);
    if (!t.failed)
        tsr_text_printf(&t, "%016llx\n", U64(XXH3_64bits(t.data, t.size)));
    tsr_status status = tsr_text_status(&t, err);
    if (status == TSR_OK)
        status = tsr_write_file(tsr_sent_path(dst, index, "sent", path), t.data, t.size, err);
    tsr_text_free(&t);
    return status;
}

/* Takes the next line, which ends the text before it, if it begins with `word`. Returns the rest of it; NULL: it is
 * another line. */
static char *take_line(char **text, const char *word)
{
    char *const line = *text, *const end = strchr(line, '\n');
    const size_t n = strlen(word);
    if (end == NULL || strncmp(line, word, n) != 0)
        return NULL;
    *end = '\0';
    *text = end + 1;
    return line + n;
}

static bool take_hex(char **text, uint64_t *value)
{
    unsigned long long number;
    if (strspn(*text, "0123456789abcdef") < 16 || sscanf(*text, "%16llx", &number) != 1)
        return false;
    *value = number;
    *text += 16;
    return true;
}

static bool take_digest(char **text, tsr_digest *digest)
{
    uint64_t high, low;
    char *line = take_line(text, "");
    const bool ok = line != NULL && take_hex(&line, &high) && take_hex(&line, &low) && *line == '\0';
    if (ok)
        *digest = (tsr_digest){.high64 = high, .low64 = low};
    return ok;
}

/* Reads the lines before the last one. */
static bool parse(char *text, size_t index, tsr_sent *sent, tsr_digests *d)
{
    uint64_t n = 0;
    const char *const version = take_line(&text, VERSION), *const name = take_line(&text, "name "),
                      *const bytes = take_line(&text, "bytes ");
    char *digest = take_line(&text, "digest ");
    const char *const etag = take_line(&text, "etag ");
    if (version == NULL || *version != '\0' || name == NULL || strlen(name) >= sizeof sent->name || bytes == NULL ||
        !tsr_parse_decimal(bytes, &sent->bytes) || digest == NULL || !take_hex(&digest, &sent->digest) ||
        etag == NULL || strlen(etag) >= sizeof sent->etag)
        return false;
    strcpy(sent->name, name);
    strcpy(sent->etag, etag);
    if (d == NULL)
        return *text == '\0';
    const char *const size = take_line(&text, "size ");
    tsr_digest *const pieces = tsr_digests_of(d, index, &n);
    bool ok = size != NULL && tsr_parse_decimal(size, &d->sizes[index]) && take_digest(&text, &d->headers[index]);
    for (uint64_t i = 0; i < n && ok; i++)
        ok = take_digest(&text, &pieces[i]);
    return ok && *text == '\0';
}

tsr_status tsr_sent_read(const char *dst, size_t index, tsr_sent *sent, tsr_digests *d, bool *known, tsr_err *err)
{
    enum { LAST_LINE = 17 };
    char path[PATH_MAX];
    tsr_arena scratch = {0};
    const char *text;
    size_t size;
    uint64_t hash;
    *known = false;
    if (access(tsr_sent_path(dst, index, "sent", path), F_OK) != 0)
        return TSR_OK;
    const tsr_status status = tsr_read_file(path, LARGEST_RECORD, &scratch, &text, &size, err);
    if (status == TSR_OK && size > LAST_LINE && strlen(text) == size) {
        char *const copy = (char *)text, *last = copy + size - LAST_LINE; /* the arena's copy may be changed */
        *known = take_hex(&last, &hash) && *last == '\n' && XXH3_64bits(text, size - LAST_LINE) == hash;
        copy[size - LAST_LINE] = '\0';
        *known = *known && parse(copy, index, sent, d);
    }
    if (!*known && d != NULL)
        tsr_digests_clear(d, index);
    tsr_arena_free(&scratch);
    return status;
}
