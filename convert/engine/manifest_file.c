/* The manifest as JSON. */
#include "convert/engine/manifest_file.h"

#include "convert/engine/source_sums.h"
#include "formats/json/json_write.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* Where there is only one piece, its digest stands above. */
static void add_pieces(tsr_text *t, const tsr_digests *d, size_t step, unsigned i)
{
    const uint64_t n = tsr_digests_count(d, step, i);
    const tsr_digest *const digests = tsr_digests_at(d, step, i);
    char hex[33];
    if (n < 2)
        return;
    tsr_json_key(t, "pieces");
    tsr_json_begin_array(t, true);
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

static void add_tensors(tsr_text *t, const tsr_digests *d, size_t file, const tsr_file_part *parts, size_t n)
{
    const tsr_out_file *const f = &d->plan->files[file];
    if (!f->raw) {
        tsr_json_key(t, "header");
        tsr_json_begin_object(t, true);
        tsr_json_member_u64(t, "bytes", f->header_bytes);
        member_digest(t, "xxh128", d->headers[file]);
        tsr_json_end_object(t);
    }
    tsr_json_key(t, "tensors");
    tsr_json_begin_array(t, false);
    for (size_t i = 0; i < n; i++)
        add_tensor(t, d, &parts[i]);
    tsr_json_end_array(t);
}

static tsr_status add_file(tsr_text *t, const tsr_digests *d, size_t file, tsr_err *err)
{
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
            add_tensors(t, d, file, parts, n);
        tsr_json_end_object(t);
    }
    free(parts);
    return status;
}

static tsr_status add_files(tsr_text *t, const tsr_digests *d, const tsr_written *written, size_t n, tsr_err *err)
{
    tsr_json_key(t, "files");
    tsr_json_begin_array(t, false);
    for (size_t i = 0; i < d->plan->n_files; i++)
        TSR_TRY(add_file(t, d, i, err));
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

/* ---- where it comes from ---- */

static void add_source(tsr_text *t, const tsr_checkpoint *c)
{
    char hex[17];
    tsr_json_begin_object(t, false);
    if (c->config != NULL)
        member_digest(t, "config_xxh128", XXH3_128bits(c->config, c->config_size));
    tsr_json_key(t, "files");
    tsr_json_begin_array(t, false);
    for (size_t i = 0; i < c->n_files + c->n_side_files; i++) {
        const tsr_file *const f = &c->files[i];
        tsr_json_begin_object(t, true);
        tsr_json_member_string(t, "name", f->name);
        tsr_json_member_u64(t, "bytes", f->size);
        if (i < c->n_files) {
            snprintf(hex, sizeof hex, "%016llx", (unsigned long long)f->header_hash);
            tsr_json_member_string(t, "header_xxh3_64", hex);
        }
        tsr_json_end_object(t);
    }
    tsr_json_end_array(t);
    tsr_json_end_object(t);
}

/* The command line, and the files that its options name. */
static void add_reproduction(tsr_text *t, const tsr_plan_made_with *with)
{
    if (with->command == NULL)
        return;
    tsr_json_key(t, "reproduce");
    tsr_json_begin_object(t, false);
    tsr_json_member_string(t, "command", with->command);
    tsr_json_member_strings(t, "options", with->words, with->n_words);
    tsr_json_key(t, "inputs");
    tsr_json_begin_array(t, false);
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
    tsr_json_key(t, "counts");
    tsr_json_begin_object(t, true);
    tsr_json_member_u64(t, "source_tensors", plan->n_notes);
    tsr_json_member_u64(t, "tensors", tensors);
    tsr_json_member_u64(t, "files", plan->n_files + written);
    tsr_json_end_object(t);
}

/* The last line: the digest of all that stands before it. */
static void seal(tsr_text *t)
{
    static const char kEnd[] = "\n}";
    char hex[33];
    if (t->failed)
        return;
    t->size -= sizeof kEnd - 1;
    tsr_text_append(t, ",\n", 2);
    if (!t->failed)
        tsr_text_printf(t, "  \"manifest_xxh128\": \"%s\"\n}\n", spell(XXH3_128bits(t->data, t->size), hex));
}

tsr_status tsr_manifest_compose(const tsr_digests *d, const tsr_quant_stats *rows, const tsr_written *written, size_t n,
                                tsr_text *t, tsr_err *err)
{
    const tsr_plan *const plan = d->plan;
    tsr_json_begin_object(t, false);
    tsr_json_member_string(t, "schema", "tessera-manifest/1");
    tsr_json_member_string(t, "version", TSR_VERSION);
    tsr_json_member_string(t, "command", plan->command);
    add_reproduction(t, &plan->made_with);
    add_counts(t, plan, n);
    tsr_json_key(t, "sources");
    tsr_json_begin_array(t, false);
    for (size_t k = 0; k < plan->n_sources; k++)
        add_source(t, plan->sources[k]);
    tsr_json_end_array(t);
    TSR_TRY(tsr_source_sums_write(t, plan, rows, err));
    TSR_TRY(add_files(t, d, written, n, err));
    tsr_json_end_object(t);
    seal(t);
    return tsr_text_status(t, err);
}
