/* Reads "sources" and "reads" of a manifest. */
#include "verify/manifest/manifest_sources.h"

#include "common/checked.h"
#include "common/file.h"
#include "common/grow.h"
#include "formats/json/json.h"

#include <stdlib.h>
#include <string.h>

typedef struct reading {
    tsr_json_reader json;
    tsr_manifest_sources *to;
    uint64_t end; /* end of the window before, in its file */
    bool first;   /* the next source is the first of its list */
} reading;

static tsr_status refuse(const reading *r, tsr_err *err, const char *what)
{
    return tsr_fail(err, TSR_E_FORMAT, "%s: %s, which Tessera does not write", r->json.name, what);
}

static tsr_status read_sum(reading *r, tsr_manifest_digest *sum, tsr_err *err)
{
    tsr_json_text value;
    TSR_TRY(tsr_json_read_string(&r->json, &value, err));
    return tsr_manifest_digest_parse(value.data, value.size, sum) ? TSR_OK
                                                                  : refuse(r, err, "a sum without 32 hex digits");
}

/* ---- windows ---- */

/* Returns true if a window has bytes. Sets *end to the end of its range in the file. */
static bool measure(const tsr_manifest_window *w, uint64_t *end)
{
    uint64_t span;
    return w->rows > 0 && w->row_bytes > 0 && w->pitch >= w->row_bytes && tsr_mul_u64(w->rows - 1, w->pitch, &span) &&
           tsr_add_u64(span, w->row_bytes, &span) && tsr_add_u64(w->offset, span, end);
}

/* Reads a window: four numbers, or the bytes of one run after the window before. */
static tsr_status read_window(void *context, tsr_err *err)
{
    reading *const r = context;
    tsr_manifest_sources *const to = r->to;
    tsr_json_kind kind;
    tsr_manifest_window w = {.offset = r->end, .rows = 1};
    bool more;
    TSR_TRY(tsr_json_peek(&r->json, &kind, err));
    if (kind != TSR_JSON_ARRAY) {
        TSR_TRY(tsr_json_read_u64(&r->json, &w.row_bytes, err));
        w.pitch = w.row_bytes;
    } else {
        uint64_t *const numbers[] = {&w.offset, &w.rows, &w.row_bytes, &w.pitch};
        TSR_TRY(tsr_json_enter_array(&r->json, err));
        for (size_t i = 0; i < 4; i++) {
            TSR_TRY(tsr_json_next_element(&r->json, &more, err));
            if (!more)
                return refuse(r, err, "a window of fewer than four numbers");
            TSR_TRY(tsr_json_read_u64(&r->json, numbers[i], err));
        }
        TSR_TRY(tsr_json_next_element(&r->json, &more, err));
        if (more)
            return refuse(r, err, "a window of more than four numbers");
    }
    uint64_t behind, bytes;
    if (!measure(&w, &behind) || !tsr_mul_u64(w.rows, w.row_bytes, &bytes) || !tsr_add_u64(w.offset, bytes, &r->end))
        return refuse(r, err, "an empty window, or one beyond any file");
    if (!tsr_grow(&to->windows, to->n_windows, &to->windows_capacity, sizeof *to->windows))
        return tsr_out_of_memory(err, "for a manifest");
    to->windows[to->n_windows++] = w;
    return TSR_OK;
}

/* ---- steps ---- */

static tsr_status read_input(void *context, tsr_err *err)
{
    reading *const r = context;
    tsr_manifest_sources *const to = r->to;
    tsr_manifest_input in = {.first_window = to->n_windows};
    tsr_json_text key;
    bool more, windows = false;
    r->end = 0;
    TSR_TRY(tsr_json_enter_object(&r->json, err));
    for (;;) {
        TSR_TRY(tsr_json_next_member(&r->json, &key, &more, err));
        if (!more)
            break;
        if (tsr_json_is(key, "input"))
            TSR_TRY(tsr_json_read_u64(&r->json, &in.number, err));
        else if (tsr_json_is(key, "source"))
            TSR_TRY(tsr_json_read_u64(&r->json, &in.source, err));
        else if (tsr_json_is(key, "offset") && !windows)
            TSR_TRY(tsr_json_read_u64(&r->json, &r->end, err));
        else if (tsr_json_is(key, "file"))
            TSR_TRY(tsr_json_read_text(&r->json, &r->to->arena, &in.file, err));
        else if (tsr_json_is(key, "name"))
            TSR_TRY(tsr_json_read_text(&r->json, &r->to->arena, &in.name, err));
        else if (tsr_json_is(key, "windows") && !windows)
            TSR_TRY(tsr_json_read_array(&r->json, read_window, r, err));
        else
            TSR_TRY(tsr_json_skip(&r->json, NULL, err));
        windows = windows || tsr_json_is(key, "windows");
    }
    in.n_windows = to->n_windows - in.first_window;
    if (in.file == NULL || in.name == NULL || in.n_windows == 0)
        return refuse(r, err, "an input without file, name or windows");
    if (!tsr_grow(&to->inputs, to->n_inputs, &to->inputs_capacity, sizeof *to->inputs))
        return tsr_out_of_memory(err, "for a manifest");
    to->inputs[to->n_inputs++] = in;
    return TSR_OK;
}

static tsr_status read_read(void *context, tsr_err *err)
{
    reading *const r = context;
    tsr_manifest_sources *const to = r->to;
    tsr_manifest_step read = {.first_input = to->n_inputs};
    tsr_json_text key;
    bool more, sum = false;
    TSR_TRY(tsr_json_enter_object(&r->json, err));
    for (;;) {
        TSR_TRY(tsr_json_next_member(&r->json, &key, &more, err));
        if (!more)
            break;
        if (tsr_json_is(key, "xxh128_sum"))
            TSR_TRY(read_sum(r, &read.sum, err));
        else if (tsr_json_is(key, "inputs"))
            TSR_TRY(tsr_json_read_array(&r->json, read_input, r, err));
        else
            TSR_TRY(tsr_json_skip(&r->json, NULL, err));
        sum = sum || tsr_json_is(key, "xxh128_sum");
    }
    read.n_inputs = to->n_inputs - read.first_input;
    if (!sum || read.n_inputs == 0)
        return refuse(r, err, "an entry of what was read without a sum or inputs");
    if (!tsr_grow(&to->reads, to->n_reads, &to->reads_capacity, sizeof *to->reads))
        return tsr_out_of_memory(err, "for a manifest");
    to->reads[to->n_reads++] = read;
    return TSR_OK;
}

/* ---- sources ---- */

/* Reads a digest of 16 hex digits. */
static tsr_status read_header(reading *r, tsr_manifest_origin *file, tsr_err *err)
{
    tsr_json_text value;
    tsr_manifest_digest digest;
    char hex[33] = "0000000000000000";
    TSR_TRY(tsr_json_read_string(&r->json, &value, err));
    if (value.size != 16)
        return refuse(r, err, "a header digest without 16 hex digits");
    memcpy(hex + 16, value.data, 16);
    if (!tsr_manifest_digest_parse(hex, 32, &digest))
        return refuse(r, err, "a header digest without 16 hex digits");
    file->header = digest.low;
    file->has_header = true;
    return TSR_OK;
}

static tsr_status read_file(void *context, tsr_err *err)
{
    reading *const r = context;
    tsr_manifest_sources *const to = r->to;
    tsr_manifest_origin file = {.name = NULL};
    tsr_json_text key;
    bool more, bytes = false;
    TSR_TRY(tsr_json_enter_object(&r->json, err));
    for (;;) {
        TSR_TRY(tsr_json_next_member(&r->json, &key, &more, err));
        if (!more)
            break;
        if (tsr_json_is(key, "name"))
            TSR_TRY(tsr_json_read_text(&r->json, &r->to->arena, &file.name, err));
        else if (tsr_json_is(key, "bytes"))
            TSR_TRY(tsr_json_read_u64(&r->json, &file.bytes, err));
        else if (tsr_json_is(key, "header_xxh3_64"))
            TSR_TRY(read_header(r, &file, err));
        else
            TSR_TRY(tsr_json_skip(&r->json, NULL, err));
        bytes = bytes || tsr_json_is(key, "bytes");
    }
    if (file.name == NULL || !bytes)
        return refuse(r, err, "a source file without name or bytes");
    if (!tsr_grow(&to->files, to->n_files, &to->files_capacity, sizeof *to->files))
        return tsr_out_of_memory(err, "for a manifest");
    to->files[to->n_files++] = file;
    return TSR_OK;
}

/* Reads the first source. Later ones are skipped. */
static tsr_status read_source(void *context, tsr_err *err)
{
    reading *const r = context;
    tsr_manifest_sources *const to = r->to;
    tsr_json_text key;
    bool more;
    if (!r->first)
        return tsr_json_skip(&r->json, NULL, err);
    r->first = false;
    TSR_TRY(tsr_json_enter_object(&r->json, err));
    for (;;) {
        TSR_TRY(tsr_json_next_member(&r->json, &key, &more, err));
        if (!more)
            return TSR_OK;
        if (tsr_json_is(key, "files"))
            TSR_TRY(tsr_json_read_array(&r->json, read_file, r, err));
        else if (tsr_json_is(key, "config_xxh128"))
            TSR_TRY(read_sum(r, &to->config, err));
        else
            TSR_TRY(tsr_json_skip(&r->json, NULL, err));
        to->has_config = to->has_config || tsr_json_is(key, "config_xxh128");
    }
}

tsr_status tsr_manifest_sources_read(tsr_manifest_sources *to, const char *path, tsr_err *err)
{
    const char *text;
    size_t size;
    tsr_json_text key;
    bool more;
    *to = (tsr_manifest_sources){.any = false};
    TSR_TRY(tsr_read_file(path, TSR_MAX_MANIFEST_BYTES, &to->arena, &text, &size, err));
    reading r = {.json = tsr_json_open(path, text, size), .to = to};
    TSR_TRY(tsr_json_enter_object(&r.json, err));
    for (;;) {
        TSR_TRY(tsr_json_next_member(&r.json, &key, &more, err));
        if (!more)
            break;
        r.first = true;
        if (tsr_json_is(key, "sources"))
            TSR_TRY(tsr_json_read_array(&r.json, read_source, &r, err));
        else if (tsr_json_is(key, "reads") && to->any)
            return refuse(&r, err, "reads twice");
        else if (tsr_json_is(key, "reads"))
            TSR_TRY(tsr_json_read_array(&r.json, read_read, &r, err));
        else
            TSR_TRY(tsr_json_skip(&r.json, NULL, err));
        to->any = to->any || tsr_json_is(key, "reads");
    }
    return to->any
               ? TSR_OK
               : tsr_fail(err, TSR_E_UNSUPPORTED, "%s: it has no digests of the source; write the output again", path);
}

void tsr_manifest_sources_free(tsr_manifest_sources *to)
{
    free(to->reads);
    free(to->inputs);
    free(to->windows);
    free(to->files);
    tsr_arena_free(&to->arena);
    *to = (tsr_manifest_sources){.any = false};
}
