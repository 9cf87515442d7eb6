/* Reads and writes the record of a multipart upload. */
#include "convert/uploads/part_log.h"

#include "common/file.h"
#include "common/text.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LARGEST_LOG = 16 << 20, HASH = 16 };

static tsr_status add_line(tsr_part_log *log, tsr_text *line, tsr_err *err)
{
    if (!line->failed)
        tsr_text_printf(line, " %016llx\n", U64(XXH3_64bits(line->data, line->size)));
    tsr_status status = tsr_text_status(line, err);
    if (status == TSR_OK)
        status = tsr_write_at(log->fd, log->path, line->data, line->size, log->end, err);
    log->end += status == TSR_OK ? line->size : 0;
    return status;
}

/* Records that the upload has begun, durably: an id that is lost would leave parts in the store. Or records a part. */
static tsr_status note(const tsr_multipart *upload, size_t part, tsr_err *err)
{
    tsr_part_log *const log = upload->data;
    const bool begun = part == upload->n_parts;
    tsr_text line = {0};
    tsr_status status = TSR_OK;
    if (begun)
        tsr_text_printf(&line, "upload %llu %016llx %llu %s", U64(log->bytes), U64(log->digest),
                        U64(upload->part_bytes), upload->id);
    else
        tsr_text_printf(&line, "part %zu %s", part, upload->etags[part]);
    if (begun) {
        log->end = 0;
        status = tsr_resize(log->fd, 0) != 0 ? tsr_fail_errno(err, "%s: cannot truncate", log->path) : TSR_OK;
    }
    if (status == TSR_OK)
        status = add_line(log, &line, err);
    if (status == TSR_OK && begun)
        status = tsr_sync(log->fd) != 0 ? tsr_fail_errno(err, "%s: cannot sync", log->path)
                                        : tsr_sync_parent(log->path, err);
    tsr_text_free(&line);
    return status;
}

/* Returns the length of the next line without its hash and the blank before that; 0: there is no intact line. */
static size_t intact_line(const char *text, const char *end)
{
    char hash[HASH + 1];
    const char *const newline = memchr(text, '\n', (size_t)(end - text));
    if (newline == NULL || newline - text < HASH + 2)
        return 0;
    const size_t n = (size_t)(newline - text) - HASH - 1;
    snprintf(hash, sizeof hash, "%016llx", U64(XXH3_64bits(text, n)));
    return memcmp(hash, text + n + 1, HASH) == 0 ? n : 0;
}

/* Reads the first line. Returns the id of the upload, which the caller frees; NULL: there is none. `same`: it is of
 * this file. */
static char *read_begin(const tsr_part_log *log, const tsr_multipart *upload, const char *line, size_t size, bool *same)
{
    char begin[80];
    snprintf(begin, sizeof begin, "upload %llu %016llx %llu ", U64(log->bytes), U64(log->digest),
             U64(upload->part_bytes));
    const size_t n = strlen(begin);
    *same = size > n && memcmp(line, begin, n) == 0;
    const char *const id = memrchr(line, ' ', size);
    return size < strlen("upload ") || memcmp(line, "upload ", strlen("upload ")) != 0 || id == NULL
               ? NULL
               : strndup(id + 1, size - (size_t)(id + 1 - line));
}

/* Reads the line of a part. Returns false if it is none. */
static bool read_part(tsr_multipart *upload, const char *line, size_t size)
{
    char copy[TSR_ETAG_TEXT + 64];
    uint64_t part;
    if (size >= sizeof copy)
        return false;
    memcpy(copy, line, size);
    copy[size] = '\0';
    const char *at = copy + strlen("part ");
    if (strncmp(copy, "part ", strlen("part ")) != 0 || !tsr_take_decimal(&at, &part) || *at != ' ' ||
        part >= upload->n_parts || strlen(at + 1) >= TSR_ETAG_TEXT)
        return false;
    free(upload->etags[part]);
    upload->etags[part] = strdup(at + 1);
    return upload->etags[part] != NULL;
}

static void read_lines(tsr_part_log *log, const char *text, size_t size, tsr_multipart *upload, char **other)
{
    const char *const end = text + size;
    bool same = false;
    size_t n = intact_line(text, end);
    char *const id = n == 0 ? NULL : read_begin(log, upload, text, n, &same);
    if (!same) {
        *other = id;
        return;
    }
    upload->id = id;
    do {
        text += n + 1 + HASH + 1;
        log->end += n + 1 + HASH + 1;
        n = intact_line(text, end);
    } while (n > 0 && read_part(upload, text, n));
}

tsr_status tsr_part_log_open(tsr_part_log *log, const char *path, uint64_t bytes, uint64_t digest,
                             tsr_multipart *upload, char **other, tsr_err *err)
{
    tsr_arena scratch = {0};
    const char *text;
    size_t size;
    *other = NULL;
    *log = (tsr_part_log){.fd = tsr_open(path, O_RDWR | O_CREAT), .bytes = bytes, .digest = digest};
    snprintf(log->path, sizeof log->path, "%s", path);
    if (log->fd < 0)
        return tsr_fail_errno(err, "%s: cannot create", path);
    const tsr_status status = tsr_read_file(path, LARGEST_LOG, &scratch, &text, &size, err);
    if (status == TSR_OK)
        read_lines(log, text, size, upload, other);
    tsr_arena_free(&scratch);
    upload->note = note;
    upload->data = log;
    return status;
}

void tsr_part_log_close(tsr_part_log *log)
{
    if (log->fd >= 0)
        close(log->fd);
    log->fd = -1;
}
