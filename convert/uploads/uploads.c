/* Sends finished files and texts, and records them. */
#include "convert/uploads/uploads.h"

#include "common/file.h"
#include "convert/uploads/part_log.h"
#include "convert/uploads/uploads_state.h"
#include "formats/blocks/block_file.h"
#include "formats/checkpoint/listing.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

tsr_status tsr_uploads_begin(tsr_uploads **uploads, const char *address, const tsr_plan *plan, const char *dst,
                             const atomic_bool *cancel, tsr_err *err)
{
    tsr_uploads *const u = calloc(1, sizeof *u);
    *uploads = u;
    if (u == NULL)
        return tsr_out_of_memory(err, "for an address");
    *u = (tsr_uploads){.address = address, .plan = plan, .dst = dst, .summary = {.address = address}};
    return tsr_objects_open(&u->objects, address, cancel, err);
}

void tsr_uploads_end(tsr_uploads *u)
{
    if (u != NULL)
        tsr_objects_close(u->objects);
    free(u);
}

uint64_t tsr_uploads_sent(const tsr_uploads *u)
{
    return tsr_objects_sent(u->objects);
}

tsr_uploads_summary tsr_uploads_summarize(const tsr_uploads *u)
{
    return u->summary;
}

/* ---- one object ---- */

/* Sends an object in parts, and continues an upload that an earlier run began. */
static tsr_status send_parts(tsr_uploads *u, size_t index, const tsr_object *object, tsr_multipart *upload,
                             tsr_sent *sent, tsr_err *err)
{
    char path[PATH_MAX], *other;
    tsr_part_log log;
    tsr_status status = tsr_part_log_open(&log, tsr_sent_path(u->dst, index, "parts", path), object->size, sent->digest,
                                          upload, &other, err);
    /* A store that keeps the parts of another file costs space, but nothing is wrong. */
    if (status == TSR_OK && other != NULL)
        (void)!tsr_objects_abandon(u->objects, object->name, other, NULL);
    free(other);
    if (status == TSR_OK)
        status = tsr_objects_put(u->objects, object, upload, sent->etag, err);
    tsr_part_log_close(&log);
    return status;
}

/* Sends an open file and records it. */
static tsr_status send_file(tsr_uploads *u, size_t index, const tsr_object *object, uint64_t digest,
                            const tsr_digests *digests, tsr_err *err)
{
    char path[PATH_MAX];
    tsr_multipart upload;
    tsr_sent sent = {.bytes = object->size, .digest = digest};
    snprintf(sent.name, sizeof sent.name, "%s", object->name);
    TSR_TRY(tsr_multipart_begin(&upload, object, err));
    tsr_status status = upload.n_parts > 0 ? send_parts(u, index, object, &upload, &sent, err)
                                           : tsr_objects_put(u->objects, object, &upload, sent.etag, err);
    tsr_multipart_free(&upload);
    if (status == TSR_OK)
        status = tsr_sent_write(u->dst, index, &sent, digests, err);
    if (status == TSR_OK)
        status = tsr_remove_file(tsr_sent_path(u->dst, index, "parts", path), err);
    u->summary.objects += status == TSR_OK;
    u->summary.bytes += status == TSR_OK ? object->size : 0;
    return status;
}

static tsr_status open_object(tsr_object *object, const char *dst, const char *name, char path[PATH_MAX], tsr_err *err)
{
    *object = (tsr_object){.name = name, .path = tsr_output_path(dst, name, path)};
    return tsr_open_input(path, &object->fd, &object->size, NULL, err);
}

tsr_status tsr_uploads_add(tsr_uploads *u, const tsr_digests *digests, size_t file, uint64_t digest, tsr_err *err)
{
    char path[PATH_MAX];
    tsr_object object;
    TSR_TRY(open_object(&object, u->dst, u->plan->files[file].name, path, err));
    const tsr_status status = send_file(u, file, &object, digest, digests, err);
    close(object.fd);
    return status == TSR_OK ? tsr_remove_file(path, err) : status;
}

/* ---- texts ---- */

/* Computes the XXH3-64 of a file. */
static tsr_status hash_file(const tsr_object *object, uint64_t *hash, tsr_err *err)
{
    enum { PIECE = 1 << 20 };
    char *const piece = malloc(PIECE);
    XXH3_state_t state;
    tsr_status status = piece == NULL ? tsr_out_of_memory(err, "for an upload") : TSR_OK;
    (void)XXH3_64bits_reset(&state);
    for (uint64_t at = 0; status == TSR_OK && at < object->size; at += PIECE) {
        const size_t n = object->size - at < PIECE ? (size_t)(object->size - at) : PIECE;
        status = tsr_read_at(object->fd, object->path, piece, n, at, err);
        if (status == TSR_OK)
            (void)XXH3_64bits_update(&state, piece, n);
    }
    *hash = XXH3_64bits_digest(&state);
    free(piece);
    return status;
}

/* Sends a text, unless the store has it from an earlier run. */
static tsr_status send_text(tsr_uploads *u, size_t index, const char *name, bool withdrawn, tsr_err *err)
{
    char path[PATH_MAX];
    tsr_object object;
    tsr_sent old;
    uint64_t digest = 0;
    bool known = false;
    TSR_TRY(open_object(&object, u->dst, name, path, err));
    tsr_status status = hash_file(&object, &digest, err);
    if (status == TSR_OK)
        status = tsr_sent_read(u->dst, index, &old, NULL, &known, err);
    const bool same = known && !withdrawn && strcmp(old.name, name) == 0 && old.digest == digest &&
                      old.bytes == object.size && tsr_uploads_has(u, &old);
    u->summary.kept += same;
    if (status == TSR_OK && !same)
        status = send_file(u, index, &object, digest, NULL, err);
    close(object.fd);
    return status;
}

static bool is_file_name(const char *name, const void *uploads)
{
    const tsr_uploads *const u = uploads;
    bool is = false;
    for (size_t i = 0; i < u->plan->n_files && !is; i++)
        is = strcmp(u->plan->files[i].name, name) == 0;
    return is;
}

/* Gives up uploads that kills have left. They cost space, but the output is right: a store that does not list or end
 * them is no failure. */
static void sweep(tsr_uploads *u)
{
    if (u->summary.objects > 0)
        (void)!tsr_objects_sweep(u->objects, is_file_name, u, NULL);
}

tsr_status tsr_uploads_finish(tsr_uploads *u, bool blocks, tsr_err *err)
{
    const tsr_plan *const plan = u->plan;
    const struct {
        const char *name;
        bool there;
    } kMade[] = {{TSR_BLOCKS_NAME, blocks},
                 {TSR_REPORT_NAME, plan->report != NULL},
                 {TSR_CARD_NAME, plan->card.write != NULL},
                 {TSR_MANIFEST_NAME, true}};
    const size_t first = plan->n_files, n_made = sizeof kMade / sizeof *kMade;
    for (size_t i = 0; i < n_made; i++) {
        if (kMade[i].there)
            TSR_TRY(send_text(u, first + i, kMade[i].name, false, err));
    }
    for (int turn = 0; turn < 3; turn++) { /* other texts, indexes, configurations */
        for (size_t i = 0; i < plan->n_texts; i++) {
            const char *const name = plan->texts[i].name;
            if (turn == (tsr_is_config_path(name) ? 2 : tsr_is_index_path(name) ? 1 : 0))
                TSR_TRY(send_text(u, first + n_made + i, name, turn > 0 && u->withdrawn, err));
        }
    }
    sweep(u);
    return tsr_uploads_write_head(u, true, err);
}
