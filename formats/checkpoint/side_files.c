/* Files of a checkpoint that hold no tensors: tokenizers, templates, code. */
#include "formats/checkpoint/checkpoint.h"

#include "common/text.h"
#include "formats/json/json_index.h"

#include <stdlib.h>
#include <string.h>

tsr_tensor tsr_checkpoint_side_file(const tsr_checkpoint *c, size_t i)
{
    const size_t file = c->n_files + i;
    return (tsr_tensor){
        .name = c->files[file].name,
        .dtype = TSR_U8,
        .rank = 1,
        .shape = {c->files[file].size},
        .bytes = c->files[file].size,
        .file = (uint32_t)file,
    };
}

static int by_name(const void *key, const void *file)
{
    return strcmp(key, ((const tsr_file *)file)->name);
}

bool tsr_checkpoint_find_side_file(const tsr_checkpoint *c, const char *name, tsr_tensor *file)
{
    const tsr_file *const first = c->files + c->n_files;
    const tsr_file *const found =
        c->n_side_files == 0 ? NULL : bsearch(name, first, c->n_side_files, sizeof *first, by_name);
    if (found != NULL)
        *file = tsr_checkpoint_side_file(c, (size_t)(found - first));
    return found != NULL;
}

tsr_status tsr_checkpoint_check_side_file(const tsr_checkpoint *c, size_t i, tsr_err *err)
{
    static const char kPointer[] = "version https://git-lfs";
    const tsr_tensor file = tsr_checkpoint_side_file(c, i);
    const char *const path = c->files[file.file].path;
    char head[sizeof kPointer - 1];
    if (file.bytes == 0 && (tsr_ends_with(file.name, ".json") || tsr_ends_with(file.name, ".model") ||
                            tsr_ends_with(file.name, ".tiktoken")))
        return tsr_fail(err, TSR_E_FORMAT,
                        "%s: the file is empty; download it again, or exclude it with --ignore-file '%s'", path,
                        file.name);
    if (file.bytes < sizeof head || file.bytes >= 1024) /* LFS pointers are smaller, by their specification */
        return TSR_OK;
    TSR_TRY(tsr_checkpoint_read(c, &file, 0, head, sizeof head, err));
    return memcmp(head, kPointer, sizeof head) != 0
               ? TSR_OK
               : tsr_fail_as(err, TSR_ERROR_GIT_LFS, TSR_E_FORMAT,
                             "%s: a Git LFS pointer, not the file itself; run 'git lfs pull' there, or exclude it with "
                             "--ignore-file '%s'",
                             path, file.name);
}

/* Reads the file to *found. */
static tsr_status read_text(const tsr_checkpoint *c, const tsr_tensor *file, tsr_arena *arena, tsr_side_text *found,
                            tsr_err *err)
{
    char *const text = tsr_arena_alloc(arena, file->bytes + 1);
    if (text == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "%s: out of memory", c->files[file->file].path);
    *found = (tsr_side_text){c->files[file->file].path, text, file->bytes};
    return tsr_checkpoint_read(c, file, 0, text, file->bytes, err);
}

tsr_status tsr_checkpoint_side_json(const tsr_checkpoint *c, const char *name, tsr_arena *arena, tsr_side_text *found,
                                    tsr_err *err)
{
    tsr_tensor file;
    *found = (tsr_side_text){.text = NULL};
    if (!tsr_checkpoint_find_side_file(c, name, &file))
        return TSR_OK;
    TSR_TRY(read_text(c, &file, arena, found, err));
    tsr_json_reader r = tsr_json_open(found->path, found->text, found->size);
    TSR_TRY(tsr_json_skip(&r, NULL, err));
    return tsr_json_finish(&r, err);
}

tsr_status tsr_checkpoint_side_text(const tsr_checkpoint *c, const char *name, tsr_arena *arena, const char **text,
                                    size_t *size, tsr_err *err)
{
    tsr_tensor file;
    tsr_side_text found;
    tsr_json_index checked = {0};
    *text = NULL;
    if (!tsr_checkpoint_find_side_file(c, name, &file))
        return TSR_OK;
    if (file.bytes > TSR_MAX_CONFIG_BYTES)
        return tsr_fail(err, TSR_E_FORMAT, "%s: %llu bytes exceed the limit for a configuration file",
                        c->files[file.file].path, (unsigned long long)file.bytes);
    TSR_TRY(read_text(c, &file, arena, &found, err));
    *text = found.text;
    *size = found.size;
    TSR_TRY(tsr_json_index_read(&checked, found.path, found.text, found.size, err));
    tsr_json_index_free(&checked);
    return TSR_OK;
}
