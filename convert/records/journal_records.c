/* Writes and reads the records of a journal, line by line. */
#include "convert/records/journal_records.h"

#include "common/file.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A journal belongs to one version of Tessera, because another one may write other bytes, statistics or records. */
static const char kMagic[] = "tessera " TSR_VERSION " ";

/* Hexadecimal digits of the statistics and the source sum of a step. */
enum { HEX_OF_STEP = 2 * (sizeof(tsr_quant_stats) + sizeof(tsr_source_sum)) };

/* Appends " <hash>\n" to the record that begins at `start`. */
static void seal(tsr_text *t, size_t start)
{
    if (!t->failed)
        tsr_text_printf(t, " %016llx\n", (unsigned long long)XXH3_64bits(t->data + start, t->size - start));
}

void tsr_records_add_head(tsr_text *t, const tsr_plan *plan, const tsr_shard *shard)
{
    size_t start = t->size;
    tsr_text_printf(t, "%s%016llx %s", kMagic, (unsigned long long)plan->fingerprint, plan->command);
    seal(t, start);
    for (size_t i = 0; shard != NULL && i < shard->n_words; i++) {
        start = t->size;
        tsr_text_printf(t, TSR_WORD_RECORD "%s", shard->words[i]);
        seal(t, start);
    }
    for (size_t i = 0; i < plan->n_files + plan->n_texts; i++) {
        start = t->size;
        tsr_text_printf(t, TSR_OUTPUT_RECORD "%s",
                        i < plan->n_files ? plan->files[i].name : plan->texts[i - plan->n_files].name);
        seal(t, start);
    }
}

/* Checks the record at `line`, of `size` bytes without newline. *body: its bytes without the hash. Returns false if it
 * is torn. */
static bool unseal(const char *line, size_t size, size_t *body)
{
    if (size < 17 || line[size - 17] != ' ')
        return false;
    char hash[17];
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)XXH3_64bits(line, size - 17));
    *body = size - 17;
    return memcmp(hash, line + size - 16, 16) == 0;
}

static bool parse_hex(const char *text, void *data, size_t size)
{
    static const char kDigits[] = "0123456789abcdef";
    unsigned char *const to = data;
    for (size_t i = 0; i < size; i++) {
        const char *const high = memchr(kDigits, text[2 * i], 16), *const low = memchr(kDigits, text[2 * i + 1], 16);
        if (high == NULL || low == NULL)
            return false;
        to[i] = (unsigned char)((high - kDigits) << 4 | (low - kDigits));
    }
    return true;
}

static void note_record(tsr_finished *to, size_t index, uint64_t digest)
{
    to->unordered = to->unordered || index < to->last;
    to->last = index + 1;
    to->digests[index] = digest;
    to->finished[index] = true;
}

/* Reads the number at *at and the space after it, and advances *at. (sscanf would first search for the end of the whole
 * journal.) */
static bool take_number(const char **at, int base, uint64_t *value)
{
    char *end;
    if (!isxdigit((unsigned char)**at))
        return false;
    *value = strtoull(*at, &end, base);
    *at = end + 1;
    return *end == ' ';
}

/* Reads "file <index> <digest> <hex>". Returns false if it does not match this plan. */
static bool take_file_record(tsr_finished *to, const tsr_plan *plan, const char *record, size_t size)
{
    uint64_t index, digest;
    const char *at = record + 5;
    if (!take_number(&at, 10, &index) || !take_number(&at, 16, &digest) || index >= plan->n_files)
        return false;
    const tsr_out_file *const f = &plan->files[index];
    if (at > record + size || (size_t)(record + size - at) != f->n_steps * HEX_OF_STEP)
        return false;
    for (size_t s = f->first_step; s < f->first_step + f->n_steps; s++, at += HEX_OF_STEP) {
        if (!parse_hex(at, &to->rows.stats[s], sizeof *to->rows.stats) ||
            !parse_hex(at + 2 * sizeof *to->rows.stats, &to->rows.sums[s], sizeof *to->rows.sums))
            return false;
    }
    note_record(to, index, digest);
    return true;
}

/* Returns the length of the option with its value at the beginning of `command`: up to the next " --". */
static size_t option_length(const char *command, size_t size)
{
    const char *const next = memmem(command, size, " --", 3);
    return next == NULL ? size : (size_t)(next - command);
}

static bool has_option(const char *command, size_t size, const char *option, size_t length)
{
    for (size_t at = 0, n; at < size; at += n + 1) {
        n = option_length(command + at, size - at);
        if (n == length && memcmp(command + at, option, n) == 0)
            return true;
    }
    return false;
}

/* Appends the options of command `a` that are missing in `b`. */
static void add_difference(tsr_text *t, const char *a, size_t a_size, const char *b, size_t b_size)
{
    const size_t start = t->size;
    for (size_t at = 0, n; at < a_size; at += n + 1) {
        n = option_length(a + at, a_size - at);
        if (!has_option(b, b_size, a + at, n))
            tsr_text_printf(t, "%s%.*s", t->size == start ? "" : " ", (int)n, a + at);
    }
    if (t->size == start)
        tsr_text_printf(t, "nothing of these");
}

/* Returns the error for a journal that was begun by another command, `then`, or with another source. */
static tsr_status refuse_other_plan(const char *then, size_t size, const char *now, const char *dst,
                                    const char *to_start_over, tsr_err *err)
{
    const size_t n = strlen(now);
    tsr_text a = {0}, b = {0};
    if (n == size && memcmp(then, now, n) == 0)
        return tsr_fail_as(err, TSR_ERROR_CHANGED_SOURCE, TSR_E_MISMATCH,
                           "%s: the source has changed since this output was begun (files, sizes, times or headers "
                           "differ); %s starts over",
                           dst, to_start_over);
    add_difference(&a, then, size, now, n);
    add_difference(&b, now, n, then, size);
    const bool whole = !a.failed && !b.failed;
    const tsr_status status =
        tsr_fail_as(err, TSR_ERROR_OTHER_OPTIONS, TSR_E_EXISTS,
                    "%s: begun with other options: then %s, now %s; repeat those to resume, or use %s to start over",
                    dst, whole ? a.data : "?", whole ? b.data : "?", to_start_over);
    tsr_text_free(&a);
    tsr_text_free(&b);
    return status;
}

bool tsr_records_begun(const char *text, size_t size)
{
    const char *const end = memchr(text, '\n', size);
    size_t body;
    return end != NULL && unseal(text, (size_t)(end - text), &body);
}

/* Returns the error for a journal whose first record is not of this version. */
static tsr_status refuse_other_version(const char *line, size_t body, const char *path, const char *to_start_over,
                                       tsr_err *err)
{
    const size_t begin = strlen("tessera ");
    const bool known = body > begin && memcmp(line, kMagic, begin) == 0;
    const char *const end = known ? memchr(line + begin, ' ', body - begin) : NULL;
    return tsr_fail(err, TSR_E_MISMATCH,
                    "%s: begun by version %.*s of Tessera, and this is " TSR_VERSION
                    ": complete it with that version, or use %s to start over. 'tessera verify manifest' checks a "
                    "finished output of any version",
                    path, end == NULL ? 1 : (int)(end - line - (ptrdiff_t)begin), end == NULL ? "?" : line + begin,
                    to_start_over);
}

/* Checks the first record, of `body` bytes. */
static tsr_status check_head(const char *line, size_t body, const tsr_plan *plan, const char *path, const char *dst,
                             const char *to_start_over, tsr_err *err)
{
    const size_t at = sizeof kMagic - 1;
    char fingerprint[17];
    snprintf(fingerprint, sizeof fingerprint, "%016llx", (unsigned long long)plan->fingerprint);
    if (body < at + 17 || memcmp(line, kMagic, at) != 0)
        return refuse_other_version(line, body, path, to_start_over, err);
    return memcmp(line + at, fingerprint, 16) == 0
               ? TSR_OK
               : refuse_other_plan(line + at + 17, body - at - 17, plan->command, dst, to_start_over, err);
}

tsr_status tsr_records_read(const char *text, size_t size, const tsr_plan *plan, const tsr_records_of *of,
                            tsr_finished *to, size_t *good, tsr_err *err)
{
    *good = 0;
    while (*good < size) {
        const char *const line = text + *good, *const end = memchr(line, '\n', size - *good);
        size_t body;
        if (end == NULL || !unseal(line, (size_t)(end - line), &body))
            break;
        if (*good == 0)
            TSR_TRY(check_head(line, body, plan, of->path, of->dst, of->to_start_over, err));
        else if (to != NULL && body > 5 && memcmp(line, "file ", 5) == 0 && !take_file_record(to, plan, line, body))
            break;
        *good += (size_t)(end - line) + 1;
    }
    return TSR_OK;
}

tsr_status tsr_finished_begin(tsr_finished *f, const tsr_plan *plan, const char *dst, tsr_err *err)
{
    *f = (tsr_finished){.digests = calloc(plan->n_files + 1, sizeof *f->digests),
                        .finished = calloc(plan->n_files + 1, sizeof *f->finished)};
    const bool ok = tsr_step_rows_begin(&f->rows, plan->n_steps);
    return ok && f->digests != NULL && f->finished != NULL ? TSR_OK
                                                           : tsr_fail(err, TSR_E_NOMEM, "%s: out of memory", dst);
}

void tsr_finished_free(tsr_finished *f)
{
    free(f->digests);
    free(f->finished);
    tsr_step_rows_free(&f->rows);
}

tsr_status tsr_finished_read(tsr_finished *to, const tsr_plan *plan, const tsr_records_of *of, tsr_err *err)
{
    tsr_arena scratch = {0};
    const char *text;
    size_t size, good;
    memset(to->finished, 0, plan->n_files * sizeof *to->finished);
    tsr_status status = tsr_read_file(of->path, TSR_MAX_JOURNAL_BYTES, &scratch, &text, &size, err);
    if (status == TSR_OK)
        status = tsr_records_read(text, size, plan, of, to, &good, err);
    tsr_arena_free(&scratch);
    return status;
}

tsr_status tsr_records_list(const char *text, size_t size, const char *kind, tsr_arena *arena, tsr_names *names,
                            tsr_err *err)
{
    const size_t n = strlen(kind);
    *names = (tsr_names){0};
    size_t most = 0;
    for (size_t i = 0; i < size; i++)
        most += text[i] == '\n';
    names->items = tsr_arena_alloc(arena, (most + 1) * sizeof *names->items);
    bool ok = names->items != NULL;
    for (size_t at = 0, body; ok && at < size;) {
        const char *const line = text + at, *const end = memchr(line, '\n', size - at);
        if (end == NULL || !unseal(line, (size_t)(end - line), &body))
            break;
        at += (size_t)(end - line) + 1;
        if (body < n || memcmp(line, kind, n) != 0)
            continue;
        const char *const name = tsr_arena_dup(arena, line + n, body - n);
        names->items[names->count++] = name;
        ok = name != NULL;
    }
    return ok ? TSR_OK : tsr_out_of_memory(err, "for the names in a journal");
}

static void add_hex(tsr_text *t, const void *data, size_t size)
{
    static const char kDigits[] = "0123456789abcdef";
    const unsigned char *const bytes = data;
    for (size_t i = 0; i < size; i++)
        tsr_text_append(t, (char[]){kDigits[bytes[i] >> 4], kDigits[bytes[i] & 15]}, 2);
}

void tsr_records_add_file(tsr_text *t, const tsr_plan *plan, size_t index, uint64_t digest, const tsr_step_rows *rows)
{
    const tsr_out_file *const f = &plan->files[index];
    const size_t start = t->size;
    tsr_text_printf(t, "file %zu %016llx ", index, (unsigned long long)digest);
    for (size_t s = f->first_step; s < f->first_step + f->n_steps; s++) {
        add_hex(t, &rows->stats[s], sizeof *rows->stats);
        add_hex(t, &rows->sums[s], sizeof *rows->sums);
    }
    seal(t, start);
}
