/* Opens the inputs of `convert`. */
#include "convert/jobs/convert_inputs.h"

#include "common/file.h"
#include "convert/plans/ranks/deepseek_mp_plan.h"

#include <limits.h>
#include <stdio.h>
#include <unistd.h>

enum { MAX_CONFIG_BYTES = 16 << 20 };

tsr_status tsr_open_source(const tsr_job_source *from, const char *path, tsr_convert_inputs *in, tsr_err *err)
{
    TSR_TRY(tsr_checkpoint_open(&in->checkpoints[in->n], path, from->ignore.items, from->ignore.count, err));
    in->sources[in->n] = in->checkpoints[in->n];
    in->n++;
    return TSR_OK;
}

tsr_status tsr_open_ranks(const tsr_job_source *from, tsr_convert_inputs *in, tsr_err *err)
{
    for (size_t k = 0; k < TSR_MAX_CONVERTED; k++) {
        char path[PATH_MAX];
        snprintf(path, sizeof path, "%s/rank-%zu", from->path, k);
        bool there;
        TSR_TRY(tsr_exists(path, &there, err));
        if (!there && k > 0)
            return TSR_OK;
        TSR_TRY(tsr_open_source(from, path, in, err));
    }
    return TSR_OK;
}

tsr_status tsr_open_rank_files(const tsr_job_source *from, tsr_convert_inputs *in, tsr_err *err)
{
    unsigned ranks = 0;
    char path[2 * PATH_MAX], name[64];
    for (unsigned n = 1; n <= TSR_MAX_CONVERTED; n++) {
        snprintf(name, sizeof name, TSR_RANK_FILE, 0u, n);
        snprintf(path, sizeof path, "%s/%s", from->path, name);
        bool there;
        TSR_TRY(tsr_exists(path, &there, err));
        if (!there)
            continue;
        if (ranks != 0)
            return tsr_fail(err, TSR_E_FORMAT, "%s: files of %u ranks and of %u ranks; keep only one set", from->path,
                            ranks, n);
        ranks = n;
    }
    if (ranks == 0)
        return tsr_fail(err, TSR_E_FORMAT,
                        "%s: no model0-mpN.safetensors, as written by --to deepseek-mp or convert.py", from->path);
    for (unsigned k = 0; k < ranks; k++) {
        snprintf(name, sizeof name, TSR_RANK_FILE, k, ranks);
        snprintf(path, sizeof path, "%s/%s", from->path, name);
        if (access(path, F_OK) != 0)
            return tsr_fail_errno(err, "%s", path);
        TSR_TRY(tsr_checkpoint_open_shard(&in->checkpoints[in->n], from->path, name, from->ignore.items,
                                          from->ignore.count, err));
        in->sources[in->n] = in->checkpoints[in->n];
        in->n++;
    }
    return TSR_OK;
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
