/* Compares an index with the headers, entry by entry. */
#include "formats/checkpoint/checkpoint.h"
#include "formats/json/json.h"

#include <stdlib.h>
#include <string.h>

static const uint64_t kMaxBytes = 256u << 20;

/* Checks one entry of weight_map: its file name must be plain, and that file must hold the tensor. */
static tsr_status check_entry(const tsr_checkpoint *c, const char *index, const char *tensor, const char *file,
                              bool *seen, tsr_err *err)
{
    if (strchr(file, '/') != NULL || strchr(file, '\\') != NULL || strcmp(file, "..") == 0)
        return tsr_fail(
            err, TSR_E_FORMAT,
            "%s: '%s' is mapped to '%s', a path outside the directory; an index may name only files beside it", index,
            tensor, file);
    const tsr_tensor *const t = tsr_checkpoint_find(c, tensor);
    if (t != NULL && strcmp(c->files[t->file].name, file) == 0) {
        seen[t - c->tensors.items] = true;
        return TSR_OK;
    }
    for (size_t i = 0; i < c->n_files; i++) {
        if (strcmp(c->files[i].name, file) != 0)
            continue;
        if (t == NULL)
            return tsr_fail_as(err, TSR_ERROR_STALE_INDEX, TSR_E_FORMAT,
                               "%s: '%s' is mapped to %s, which has no such tensor: the index is stale", index, tensor,
                               file);
        return tsr_fail_as(err, TSR_ERROR_STALE_INDEX, TSR_E_FORMAT,
                           "%s: '%s' is mapped to %s, but is in %s: the index is stale", index, tensor, file,
                           c->files[t->file].name);
    }
    return tsr_fail(err, TSR_E_FORMAT, "%s: '%s' is mapped to %s, which does not exist; is the download complete?",
                    index, tensor, file);
}

static tsr_status check_index_text(const tsr_checkpoint *c, const char *path, const char *text, size_t size,
                                   tsr_arena *names, bool *seen, tsr_err *err)
{
    tsr_json_reader r = tsr_json_open(path, text, size);
    tsr_json_text key, value;
    bool more, has_map = false;
    TSR_TRY(tsr_json_enter_object(&r, err));
    for (;;) {
        TSR_TRY(tsr_json_next_member(&r, &key, &more, err));
        if (!more)
            break;
        if (!tsr_json_is(key, "weight_map")) {
            TSR_TRY(tsr_json_skip(&r, NULL, err));
            continue;
        }
        has_map = true;
        TSR_TRY(tsr_json_enter_object(&r, err));
        for (;;) {
            const char *tensor, *file;
            TSR_TRY(tsr_json_next_member(&r, &key, &more, err));
            if (!more)
                break;
            TSR_TRY(tsr_json_read_string(&r, &value, err));
            TSR_TRY(tsr_json_decode(&r, key, names, &tensor, err));
            TSR_TRY(tsr_json_decode(&r, value, names, &file, err));
            TSR_TRY(check_entry(c, path, tensor, file, seen, err));
        }
    }
    TSR_TRY(tsr_json_finish(&r, err));
    if (!has_map)
        return tsr_fail(err, TSR_E_FORMAT, "%s: no weight_map", path);
    for (size_t i = 0; i < c->tensors.count; i++) {
        if (!seen[i])
            return tsr_fail_as(err, TSR_ERROR_STALE_INDEX, TSR_E_FORMAT,
                               "%s: the index is stale: it omits '%s', which is in %s (loaders would drop it "
                               "silently); exclude that file with --ignore-file %s",
                               path, c->tensors.items[i].name, c->files[c->tensors.items[i].file].name,
                               c->files[c->tensors.items[i].file].name);
    }
    return TSR_OK;
}

tsr_status tsr_check_shard_index(tsr_checkpoint *c, const char *name, tsr_err *err)
{
    tsr_arena scratch = {0};
    const char *text;
    size_t size;
    bool *const seen = calloc(c->tensors.count + 1, sizeof *seen);
    c->index_path = tsr_arena_printf(&c->arena, "%s/%s", c->dir, name);
    tsr_status status = TSR_OK;
    if (seen == NULL || c->index_path == NULL)
        status = tsr_fail(err, TSR_E_NOMEM, "%s: out of memory", c->path);
    if (status == TSR_OK)
        status = tsr_checkpoint_index(c, &scratch, &text, &size, err);
    if (status == TSR_OK)
        status = check_index_text(c, c->index_path, text, size, &scratch, seen, err);
    free(seen);
    tsr_arena_free(&scratch);
    return status;
}

tsr_status tsr_checkpoint_index(const tsr_checkpoint *c, tsr_arena *arena, const char **text, size_t *size,
                                tsr_err *err)
{
    return tsr_checkpoint_text(c, strrchr(c->index_path, '/') + 1, kMaxBytes, arena, text, size, err);
}
