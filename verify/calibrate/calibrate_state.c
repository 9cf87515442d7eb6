/* Writes, reads and removes OUT.partial/. */
#include "verify/calibrate/calibrate_state.h"

#include "common/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

/* The first bytes of `progress`. The collector follows, and the XXH3-64 of all of it. */
typedef struct head {
    char magic[24];
    uint64_t fingerprint, layers, states; /* states: XXH3-64 of the hidden states */
} head;

static const char kMagic[24] = "tessera calibrate 1\n";

enum { MOST_PROGRESS = 1 << 30 };

tsr_status tsr_calibrate_state_open(tsr_calibrate_state *s, const char *out, tsr_err *err)
{
    *s = (tsr_calibrate_state){.folder = NULL};
    if (asprintf(&s->folder, "%s.partial", out) < 0 || asprintf(&s->progress, "%s/progress", s->folder) < 0 ||
        asprintf(&s->products, "%s/products", s->folder) < 0 || asprintf(&s->states[0], "%s/states-0", s->folder) < 0 ||
        asprintf(&s->states[1], "%s/states-1", s->folder) < 0 ||
        asprintf(&s->unfinished, "%s/unfinished", s->folder) < 0)
        return tsr_out_of_memory(err, "for the state of a run");
    return tsr_make_dirs(s->folder, err);
}

/* Replaces a file in one step. A killed run may have left an unfinished one. */
static tsr_status replace(const tsr_calibrate_state *s, const char *path, const void *data, size_t size, tsr_err *err)
{
    TSR_TRY(tsr_remove_file(s->unfinished, err));
    return tsr_replace_file(path, s->unfinished, data, size, err);
}

tsr_status tsr_calibrate_state_save(const tsr_calibrate_state *s, size_t layers, const tsr_collector *collector,
                                    const double *x, size_t n, tsr_err *err)
{
    const tsr_input_products *const products = collector->products;
    if (products != NULL && tsr_sync_data(products->fd) != 0)
        return tsr_fail_errno(err, "%s: cannot sync", products->path);
    head h = {.fingerprint = s->fingerprint, .layers = layers, .states = XXH3_64bits(x, n * sizeof *x)};
    tsr_text text = {0};
    memcpy(h.magic, kMagic, sizeof h.magic);
    tsr_text_append(&text, &h, sizeof h);
    tsr_collector_store(collector, &text);
    const uint64_t digest = text.failed ? 0 : XXH3_64bits(text.data, text.size);
    tsr_text_append(&text, &digest, sizeof digest);
    tsr_status status = tsr_text_status(&text, err);
    if (status == TSR_OK)
        status = replace(s, s->states[layers % 2], x, n * sizeof *x, err);
    if (status == TSR_OK)
        status = replace(s, s->progress, text.data, text.size, err);
    tsr_text_free(&text);
    return status;
}

static tsr_status damaged(const char *path, tsr_err *err)
{
    return tsr_fail(err, TSR_E_FORMAT, "%s: damaged; remove the folder to start over", path);
}

static tsr_status read_states(const tsr_calibrate_state *s, const head *h, double *x, size_t n, tsr_err *err)
{
    const char *const path = s->states[h->layers % 2];
    const int fd = tsr_open(path, O_RDONLY);
    if (fd < 0)
        return tsr_fail_errno(err, "%s: cannot open", path);
    tsr_status status = tsr_read_at(fd, path, x, n * sizeof *x, 0, err);
    (void)close(fd);
    if (status == TSR_OK && XXH3_64bits(x, n * sizeof *x) != h->states)
        status = damaged(path, err);
    return status;
}

tsr_status tsr_calibrate_state_load(const tsr_calibrate_state *s, size_t *layers, tsr_collector *collector, double *x,
                                    size_t n, tsr_err *err)
{
    tsr_arena arena = {0};
    const char *data = NULL;
    size_t size = 0;
    uint64_t digest;
    head h;
    *layers = 0;
    if (access(s->progress, F_OK) != 0 && tsr_is_absent(errno))
        return TSR_OK;
    tsr_status status = tsr_read_file(s->progress, MOST_PROGRESS, &arena, &data, &size, err);
    if (status == TSR_OK && size < sizeof h + sizeof digest)
        status = damaged(s->progress, err);
    if (status == TSR_OK) {
        memcpy(&h, data, sizeof h);
        memcpy(&digest, data + size - sizeof digest, sizeof digest);
        if (XXH3_64bits(data, size - sizeof digest) != digest || memcmp(h.magic, kMagic, sizeof h.magic) != 0)
            status = damaged(s->progress, err);
        else if (h.fingerprint != s->fingerprint)
            status =
                tsr_fail(err, TSR_E_EXISTS,
                         "%s: begun with another model, other tokens, other options or another version; repeat that "
                         "command to resume it, or remove the folder to start over",
                         s->folder);
        else if (!tsr_collector_take_up(collector, data + sizeof h, size - sizeof h - sizeof digest))
            status = damaged(s->progress, err);
    }
    if (status == TSR_OK)
        status = read_states(s, &h, x, n, err);
    if (status == TSR_OK)
        *layers = (size_t)h.layers;
    tsr_arena_free(&arena);
    return status;
}

tsr_status tsr_calibrate_state_remove(const tsr_calibrate_state *s, tsr_err *err)
{
    TSR_TRY(tsr_remove_file(s->progress, err));
    TSR_TRY(tsr_remove_file(s->products, err));
    TSR_TRY(tsr_remove_file(s->states[0], err));
    TSR_TRY(tsr_remove_file(s->states[1], err));
    TSR_TRY(tsr_remove_file(s->unfinished, err));
    return rmdir(s->folder) == 0 || errno == ENOENT ? TSR_OK : tsr_fail_errno(err, "%s: cannot remove it", s->folder);
}

void tsr_calibrate_state_free(tsr_calibrate_state *s)
{
    free(s->folder);
    free(s->progress);
    free(s->products);
    free(s->states[0]);
    free(s->states[1]);
    free(s->unfinished);
    *s = (tsr_calibrate_state){.folder = NULL};
}
