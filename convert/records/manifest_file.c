/* Composes the manifest as JSON. */
#include "convert/records/manifest_file.h"

#include "convert/records/source_sums.h"
#include "formats/json/json_write.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The text that was not passed on yet, and the hash state of the rest. */
typedef struct spool {
    tsr_text text;
    XXH3_state_t hash;
    tsr_manifest_put_fn *put;
    void *to;
} spool;

enum { SPOOLED = 256 * 1024 };

/* Passes the text on if it has at least `least` bytes. */
static tsr_status spill(spool *s, size_t least, tsr_err *err)
{
    TSR_TRY(tsr_text_status(&s->text, err));
    if (s->text.size < least)
        return TSR_OK;
    (void)XXH3_128bits_update(&s->hash, s->text.data, s->text.size);
    TSR_TRY(s->put(s->to, s->text.data, s->text.size, err));
    s->text.size = 0;
    return TSR_OK;
}

/* ---- digests ---- */

static const char *spell(tsr_digest digest, char hex[33])
{
    snprintf(hex, 33, "%016llx%016llx", (unsigned long long)digest.high64, (unsigned long long)digest.low64);
    return hex;
}

static void member_digest(tsr_text *t, const char *key, tsr_digest digest)
{
    char hex[33];
    tsr_json_member_string(t, key, spell(digest, hex));
}

/* Appends the list of pieces. A tensor of one piece has none, because its digest is that of the piece. */
static void add_pieces(tsr_text *t, const tsr_digests *d, size_t step, unsigned i)
{
    const uint64_t n = tsr_digests_count(d, step, i);
    const tsr_digest *const digests = tsr_digests_at(d, step, i);
    char hex[33];
    if (n < 2)
        return;
    tsr_json_member_array(t, "pieces", true);
    for (uint64_t k = 0; k < n; k++) {
        tsr_json_begin_array(t, true);
        tsr_json_u64(t, tsr_piece_bytes(d, step, i, k));
        tsr_json_string(t, spell(digests[k], hex));
        tsr_json_end_array(t);
    }
    tsr_json_end_array(t);
}

/* ---- files ---- */

static void add_tensor(tsr_text *t, const tsr_digests *d, const tsr_file_part *part)
{
    tsr_json_begin_object(t, true);
    tsr_json_member_string(t, "name", part->tensor->name);
    tsr_json_member_u64(t, "offset", part->tensor->offset);
    tsr_json_member_u64(t, "bytes", part->tensor->bytes);
    member_digest(t, "xxh128",
                  tsr_digest_of_digests(tsr_digests_at(d, part->step, part->output),
                                        tsr_digests_count(d, part->step, part->output)));
    add_pieces(t, d, part->step, part->output);
    tsr_json_end_object(t);
}

static tsr_status add_tensors(spool *s, const tsr_digests *d, size_t file, const tsr_file_part *parts, size_t n,
                              tsr_err *err)
{
    tsr_text *const t = &s->text;
    const tsr_out_file *const f = &d->plan->files[file];
    if (!f->raw) {
        tsr_json_member_object(t, "header", true);
        tsr_json_member_u64(t, "bytes", f->header_bytes);
        member_digest(t, "xxh128", d->headers[file]);
        tsr_json_end_object(t);
    }
    tsr_json_member_array(t, "tensors", false);
    for (size_t i = 0; i < n; i++) {
        add_tensor(t, d, &parts[i]);
        TSR_TRY(spill(s, SPOOLED, err));
    }
    tsr_json_end_array(t);
    return TSR_OK;
}

static tsr_status add_file(spool *s, const tsr_digests *d, size_t file, tsr_err *err)
{
    tsr_text *const t = &s->text;
    const tsr_out_file *const f = &d->plan->files[file];
    tsr_digest all;
    tsr_file_part *const parts = malloc((TSR_MAX_OUTPUTS * f->n_steps + 1) * sizeof *parts);
    tsr_status status = parts == NULL ? tsr_out_of_memory(err, "for the manifest") : TSR_OK;
    if (status == TSR_OK)
        status = tsr_digests_file(d, file, &all, err);
    if (status == TSR_OK) {
        const size_t n = tsr_file_parts(d->plan, file, parts);
        const bool single = f->appended || (f->raw && n == 1);
        tsr_json_begin_object(t, single);
        tsr_json_member_string(t, "name", f->name);
        tsr_json_member_u64(t, "bytes", f->appended ? d->sizes[file] : f->bytes);
        member_digest(t, "xxh128", all);
        if (single)
            add_pieces(t, d, parts[0].step, parts[0].output);
        else
            status = add_tensors(s, d, file, parts, n, err);
        tsr_json_end_object(t);
    }
    free(parts);
    return status == TSR_OK ? spill(s, SPOOLED, err) : status;
}

static tsr_status add_files(spool *s, const tsr_digests *d, const tsr_written *written, size_t n, tsr_err *err)
{
    tsr_text *const t = &s->text;
    tsr_json_member_array(t, "files", false);
    for (size_t i = 0; i < d->plan->n_files; i++)
        TSR_TRY(add_file(s, d, i, err));
    for (size_t i = 0; i < n; i++) {
        tsr_json_begin_object(t, true);
        tsr_json_member_string(t, "name", written[i].name);
        tsr_json_member_u64(t, "bytes", written[i].bytes);
        member_digest(t, "xxh128", written[i].digest);
        tsr_json_end_object(t);
    }
    tsr_json_end_array(t);
    return TSR_OK;
}

/* ---- sources ---- */

static void add_source(tsr_text *t, const tsr_checkpoint *c)
{
    char hex[17];
    tsr_json_begin_object(t, false);
    if (c->remote != NULL)
        tsr_json_member_string(t, "address", tsr_remote_address(c->remote));
    if (c->remote != NULL && tsr_remote_commit(c->remote) != NULL)
        tsr_json_member_string(t, "commit", tsr_remote_commit(c->remote));
    if (c->config_file.data != NULL) /* the source itself, not the view that the plan reads */
        member_digest(t, "config_xxh128", XXH3_128bits(c->config_file.data, c->config_file.size));
    tsr_json_member_array(t, "files", false);
    for (size_t i = 0; i < c->n_files + c->n_side_files; i++) {
        const tsr_file *const f = &c->files[i];
        tsr_json_begin_object(t, true);
        tsr_json_member_string(t, "name", f->name);
        tsr_json_member_u64(t, "bytes", f->size);
        if (f->remote != NULL && f->remote->etag != NULL)
            tsr_json_member_string(t, "etag", f->remote->etag);
        else if (f->remote != NULL && f->remote->modified != NULL)
            tsr_json_member_string(t, "last_modified", f->remote->modified);
        if (i < c->n_files) {
            snprintf(hex, sizeof hex, "%016llx", (unsigned long long)f->header_hash);
            tsr_json_member_string(t, "header_xxh3_64", hex);
        }
        tsr_json_end_object(t);
    }
    tsr_json_end_array(t);
    tsr_json_end_object(t);
}

/* Appends the command line and the files that its options name. */
static void add_reproduction(tsr_text *t, const tsr_plan_provenance *with)
{
    if (with->command == NULL)
        return;
    tsr_json_member_object(t, "reproduce", false);
    tsr_json_member_string(t, "command", with->command);
    tsr_json_member_strings(t, "options", with->words, with->n_words);
    tsr_json_member_array(t, "inputs", false);
    for (size_t i = 0; i < with->n_inputs; i++) {
        const tsr_plan_input *const in = &with->inputs[i];
        tsr_json_begin_object(t, false);
        tsr_json_member_string(t, "option", in->option);
        tsr_json_member_string(t, "name", in->name);
        tsr_json_member_u64(t, "bytes", in->bytes);
        member_digest(t, "xxh128", (tsr_digest){.high64 = in->digest[0], .low64 = in->digest[1]});
        if (in->text != NULL)
            tsr_json_member_string(t, "text", in->text);
        tsr_json_end_object(t);
    }
    tsr_json_end_array(t);
    tsr_json_end_object(t);
}

static void add_counts(tsr_text *t, const tsr_plan *plan, size_t written)
{
    uint64_t tensors = 0;
    for (size_t i = 0; i < plan->n_files; i++)
        tensors += plan->files[i].raw ? 0 : plan->files[i].n_tensors;
    tsr_json_member_object(t, "counts", true);
    tsr_json_member_u64(t, "source_tensors", plan->n_notes);
    tsr_json_member_u64(t, "tensors", tensors);
    tsr_json_member_u64(t, "files", plan->n_files + written);
    tsr_json_end_object(t);
}

/* Appends what was read of the sources, step by step. */
static tsr_status add_reads(spool *s, const tsr_plan *plan, const tsr_step_rows *rows, tsr_err *err)
{
    tsr_json_member_array(&s->text, "reads", false);
    for (size_t i = 0; i < plan->n_steps; i++) {
        TSR_TRY(tsr_source_sum_write(&s->text, plan, &plan->steps[i], &rows->sums[i], err));
        TSR_TRY(spill(s, SPOOLED, err));
    }
    tsr_json_end_array(&s->text);
    return TSR_OK;
}

/* Appends the last line: the digest of all text before it. */
static tsr_status seal(spool *s, tsr_err *err)
{
    char hex[33];
    tsr_text_append(&s->text, ",\n", 2);
    TSR_TRY(spill(s, 1, err));
    tsr_text_printf(&s->text, "  \"manifest_xxh128\": \"%s\"\n}\n", spell(XXH3_128bits_digest(&s->hash), hex));
    return spill(s, 1, err);
}

static tsr_status compose(spool *s, const tsr_digests *d, const tsr_step_rows *rows, const tsr_written *written,
                          size_t n, tsr_err *err)
{
    tsr_text *const t = &s->text;
    const tsr_plan *const plan = d->plan;
    tsr_json_begin_document(t, "tessera-manifest/1");
    tsr_json_member_string(t, "command", plan->command);
    add_reproduction(t, &plan->provenance);
    add_counts(t, plan, n);
    tsr_json_member_array(t, "sources", false);
    for (size_t k = 0; k < plan->n_sources; k++)
        add_source(t, plan->sources[k]);
    tsr_json_end_array(t);
    TSR_TRY(add_reads(s, plan, rows, err));
    TSR_TRY(add_files(s, d, written, n, err));
    return seal(s, err);
}

tsr_status tsr_manifest_compose(const tsr_digests *d, const tsr_step_rows *rows, const tsr_written *written, size_t n,
                                tsr_manifest_put_fn *put, void *to, tsr_err *err)
{
    spool s = {.put = put, .to = to};
    (void)XXH3_128bits_reset(&s.hash);
    const tsr_status status = compose(&s, d, rows, written, n, err);
    tsr_text_free(&s.text);
    return status;
}
