/* Files of a checkpoint that hold no tensors: tokenizers, templates, code. */
#include "formats/checkpoint/checkpoint.h"

#include "common/text.h"
#include "formats/json/json_index.h"

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

tsr_status tsr_checkpoint_side_text(const tsr_checkpoint *c, const char *name, tsr_arena *arena, const char **text,
                                    size_t *size, tsr_err *err)
{
    *text = NULL;
    for (size_t i = 0; i < c->n_side_files; i++) {
        const tsr_tensor file = tsr_checkpoint_side_file(c, i);
        if (strcmp(file.name, name) != 0)
            continue;
        const char *const path = c->files[file.file].path;
        if (file.bytes > TSR_MAX_CONFIG_BYTES)
            return tsr_fail(err, TSR_E_FORMAT, "%s: %llu bytes exceed the limit for a configuration file", path,
                            (unsigned long long)file.bytes);
        char *const data = tsr_arena_alloc(arena, file.bytes + 1);
        if (data == NULL)
            return tsr_out_of_memory(err, "for a configuration");
        TSR_TRY(tsr_checkpoint_read(c, &file, 0, data, file.bytes, err));
        *text = data;
        *size = file.bytes;
        tsr_json_index checked = {0};
        TSR_TRY(tsr_json_index_read(&checked, path, data, file.bytes, err));
        tsr_json_index_free(&checked);
        return TSR_OK;
    }
    return TSR_OK;
}
