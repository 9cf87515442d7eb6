/* Lists, opens and reads the files of a checkpoint's directory, on disk or on a server. */
#include "formats/checkpoint/checkpoint.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <limits.h>
#include <string.h>

tsr_status tsr_checkpoint_list(const tsr_checkpoint *c, tsr_listing *l, tsr_err *err)
{
    return c->remote != NULL ? tsr_listing_take(l, c->remote, err) : tsr_listing_read(l, c->dir, err);
}

/* Returns a stamp that identifies a file of a server and its state. */
static tsr_stamp stamp_of(const tsr_remote_file *f)
{
    const char *const state = f->etag != NULL ? f->etag : f->modified != NULL ? f->modified : "";
    return (tsr_stamp){.device = UINT64_MAX,
                       .inode = XXH3_64bits(f->path, strlen(f->path)),
                       .size = f->size,
                       .mtime_ns = (int64_t)XXH3_64bits(state, strlen(state))};
}

/* Describes a file of an address, which needs no opening. */
static tsr_status take_remote(const tsr_checkpoint *c, const char *name, tsr_file *file, tsr_err *err)
{
    const tsr_remote_file *const f = tsr_remote_find(c->remote, name);
    if (f == NULL)
        return tsr_fail(err, TSR_E_FORMAT, "%s/%s: there is no such file", c->path, name);
    file->remote = f;
    file->path = f->path;
    file->size = f->size;
    file->stamp = stamp_of(f);
    return TSR_OK;
}

tsr_status tsr_checkpoint_open_file(tsr_checkpoint *c, const char *name, tsr_file *file, tsr_err *err)
{
    *file = (tsr_file){.fd = -1, .name = tsr_arena_dup(&c->arena, name, strlen(name))};
    if (file->name == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "%s: out of memory", name);
    if (c->remote != NULL)
        return take_remote(c, name, file, err);
    file->path = c->dir == NULL ? c->path : tsr_arena_printf(&c->arena, "%s/%s", c->dir, name);
    if (file->path == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "%s: out of memory", name);
    if (c->dir != NULL)
        TSR_TRY(tsr_check_inside(c->dir, file->path, err));
    return tsr_open_input(file->path, &file->fd, &file->size, &file->stamp, err);
}

tsr_status tsr_checkpoint_has(const tsr_checkpoint *c, const char *name, bool *exists, tsr_err *err)
{
    char path[PATH_MAX];
    *exists = c->remote != NULL && tsr_remote_find(c->remote, name) != NULL;
    if (c->remote != NULL)
        return TSR_OK;
    TSR_TRY(tsr_join_path(path, c->dir, name, err));
    return tsr_exists(path, exists, err);
}

tsr_status tsr_checkpoint_text(const tsr_checkpoint *c, const char *name, uint64_t limit, tsr_arena *arena,
                               const char **text, size_t *size, tsr_err *err)
{
    char path[PATH_MAX];
    tsr_file file = {.fd = -1};
    if (c->remote == NULL) {
        TSR_TRY(tsr_join_path(path, c->dir, name, err));
        TSR_TRY(tsr_check_inside(c->dir, path, err));
        return tsr_read_file(path, limit, arena, text, size, err);
    }
    TSR_TRY(take_remote(c, name, &file, err));
    if (file.size > limit)
        return tsr_fail(err, TSR_E_FORMAT, "%s: %llu bytes exceed the limit of %llu for such a file", file.path,
                        U64(file.size), U64(limit));
    char *const data = tsr_arena_alloc(arena, file.size + 1);
    if (data == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "%s: out of memory for %llu bytes", file.path, U64(file.size));
    *text = data;
    *size = file.size;
    return tsr_remote_read(file.remote, data, file.size, 0, err);
}
