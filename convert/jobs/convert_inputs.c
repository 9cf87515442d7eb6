/* Opens the inputs of `convert`. */
#include "convert/jobs/convert_inputs.h"

#include "common/file.h"
#include "common/text.h"
#include "convert/plans/ranks/deepseek_mp_plan.h"
#include "formats/remote/address.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

enum { MAX_CONFIG_BYTES = 16 << 20 };

tsr_status tsr_open_source(const tsr_job_source *from, const char *path, tsr_convert_inputs *in, tsr_err *err)
{
    TSR_TRY(tsr_checkpoint_open(&in->checkpoints[in->n], path, from->ignore.items, from->ignore.count, err));
    in->sources[in->n] = in->checkpoints[in->n];
    in->n++;
    return TSR_OK;
}

/* Where the files of ranks are: a folder, or an address that was opened to look for them. */
typedef struct place {
    const char *path;
    tsr_remote *remote; /* NULL: a folder */
} place;

static tsr_status open_place(place *p, const char *path, tsr_err *err)
{
    *p = (place){.path = path};
    return tsr_is_remote(path) ? tsr_remote_open(&p->remote, path, err) : TSR_OK;
}

/* Sets *there if a place has a file of this name, or one that begins with it if the name ends in '/'. */
static tsr_status has(const place *p, const char *name, bool *there, tsr_err *err)
{
    char path[2 * PATH_MAX];
    size_t n;
    snprintf(path, sizeof path, "%s/%s", p->path, name);
    if (p->remote == NULL)
        return tsr_exists(path, there, err);
    const tsr_remote_file *const files = tsr_remote_files(p->remote, &n);
    *there = false;
    for (size_t i = 0; i < n; i++)
        *there = *there || (tsr_ends_with(name, "/") ? strncmp(files[i].name, name, strlen(name)) == 0
                                                     : strcmp(files[i].name, name) == 0);
    return TSR_OK;
}

static tsr_status open_ranks(const place *p, const tsr_job_source *from, tsr_convert_inputs *in, tsr_err *err)
{
    for (size_t k = 0; k < TSR_MAX_CONVERTED; k++) {
        char name[32], path[PATH_MAX];
        bool there;
        snprintf(name, sizeof name, "rank-%zu/", k);
        TSR_TRY(has(p, name, &there, err));
        if (!there && k > 0)
            return TSR_OK;
        snprintf(path, sizeof path, "%s/rank-%zu", from->path, k);
        TSR_TRY(tsr_open_source(from, path, in, err));
    }
    return TSR_OK;
}

tsr_status tsr_open_ranks(const tsr_job_source *from, tsr_convert_inputs *in, tsr_err *err)
{
    place p;
    TSR_TRY(open_place(&p, from->path, err));
    const tsr_status status = open_ranks(&p, from, in, err);
    tsr_remote_close(p.remote);
    return status;
}

/* Finds the number of ranks from the name of rank 0's file. */
static tsr_status count_ranks(const place *p, unsigned *ranks, tsr_err *err)
{
    char name[64];
    *ranks = 0;
    for (unsigned n = 1; n <= TSR_MAX_CONVERTED; n++) {
        snprintf(name, sizeof name, TSR_RANK_FILE, 0u, n);
        bool there;
        TSR_TRY(has(p, name, &there, err));
        if (!there)
            continue;
        if (*ranks != 0)
            return tsr_fail(err, TSR_E_FORMAT, "%s: files of %u ranks and of %u ranks; keep only one set", p->path,
                            *ranks, n);
        *ranks = n;
    }
    return *ranks > 0
               ? TSR_OK
               : tsr_fail(err, TSR_E_FORMAT,
                          "%s: no model0-mpN.safetensors, as written by --to deepseek-mp or convert.py", p->path);
}

static tsr_status open_rank_files(const place *p, const tsr_job_source *from, tsr_convert_inputs *in, tsr_err *err)
{
    unsigned ranks;
    TSR_TRY(count_ranks(p, &ranks, err));
    for (unsigned k = 0; k < ranks; k++) {
        char name[64];
        bool there;
        snprintf(name, sizeof name, TSR_RANK_FILE, k, ranks);
        TSR_TRY(has(p, name, &there, err));
        if (!there)
            return tsr_fail(err, TSR_E_IO, "%s/%s: %s", p->path, name, strerror(ENOENT));
        TSR_TRY(tsr_checkpoint_open_shard(&in->checkpoints[in->n], from->path, name, from->ignore.items,
                                          from->ignore.count, err));
        in->sources[in->n] = in->checkpoints[in->n];
        in->n++;
    }
    return TSR_OK;
}

tsr_status tsr_open_rank_files(const tsr_job_source *from, tsr_convert_inputs *in, tsr_err *err)
{
    place p;
    TSR_TRY(open_place(&p, from->path, err));
    const tsr_status status = open_rank_files(&p, from, in, err);
    tsr_remote_close(p.remote);
    return status;
}

tsr_status tsr_plan_rank_files(const tsr_job_source *from, const char *config, const tsr_convert_inputs *in,
                               tsr_plan *plan, tsr_err *err)
{
    tsr_arena arena = {0};
    const char *text = NULL;
    size_t size = 0;
    tsr_status status = config == NULL ? TSR_OK : tsr_read_file(config, MAX_CONFIG_BYTES, &arena, &text, &size, err);
    if (status == TSR_OK)
        status = tsr_from_deepseek_mp_plan(plan, in->sources, in->n, text, size, from->max_shard_bytes, err);
    tsr_arena_free(&arena);
    return status;
}

tsr_status tsr_warn_of_ignored(tsr_plan *plan, const tsr_job_source *from, tsr_checkpoint *const *opened, size_t n,
                               tsr_err *err)
{
    tsr_status status = TSR_OK;
    for (size_t i = 0; i < from->ignore.count && status == TSR_OK; i++) {
        bool fits = false;
        for (size_t k = 0; k < n && opened[k] != NULL; k++)
            fits = fits || opened[k]->ignored[i];
        if (!fits)
            status = tsr_plan_warn(plan, err, "--ignore-file '%s' matches no file", from->ignore.items[i]);
    }
    return tsr_plan_ended(plan, status);
}

void tsr_close_inputs(tsr_convert_inputs *in)
{
    tsr_decoded_view_free(&in->view);
    tsr_scheme_free(&in->scheme);
    for (size_t i = 0; i < in->n; i++)
        tsr_checkpoint_close(in->checkpoints[i]);
}
