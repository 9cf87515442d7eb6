/* Units that other ranks carry out: asking for them, and adding what they came to. */
#include "convert/engine/engine_run.h"

#include "common/checked.h"
#include "convert/engine/engine_wire.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static tsr_status is_wrong(const tsr_remote *from, tsr_err *err)
{
    return tsr_fail(err, TSR_E_IO, "rank %u has answered what it was not asked", from->rank);
}

/* Units write to places of their own. What is zero in one is zero already, or another's. */
static tsr_status merge_held(tsr_run *r, size_t index, const tsr_held_part *parts, const char **data, tsr_err *err)
{
    const tsr_step *const step = &r->plan->steps[index];
    for (unsigned i = 0; i < TSR_MAX_OUTPUTS; i++) {
        const tsr_held_part *const part = &parts[i];
        const char *const from = *data;
        if (part->bytes == 0)
            continue;
        if (i >= step->n_out || !tsr_is_held(step, i) || part->first > step->out[i]->bytes ||
            part->bytes > step->out[i]->bytes - part->first)
            return tsr_fail(err, TSR_E_IO, "another rank has made what '%s' has no place for", step->out[i]->name);
        char *const to = (char *)r->steps[index]->held[i] + part->first;
        for (uint64_t k = 0; k < part->bytes; k++) {
            if (from[k] != 0)
                to[k] = from[k];
        }
        *data += part->bytes;
    }
    return TSR_OK;
}

/* Takes the digests of an appended file, which another rank has verified. */
static tsr_status take_appended(tsr_run *r, size_t index, const tsr_unit_answer *a, const char *data, tsr_err *err)
{
    const size_t file = r->plan->steps[index].file;
    if (a->bytes_out > r->plan->files[file].bytes ||
        a->appended != tsr_ceil_div(a->bytes_out, TSR_DIGEST_PIECE) * sizeof(tsr_digest))
        return tsr_fail(err, TSR_E_IO, "another rank has digested another file than '%s'", r->plan->files[file].name);
    memcpy(&r->digests.pieces[r->digests.steps[index].first], data, a->appended);
    r->digests.sizes[file] = a->bytes_out;
    return TSR_OK;
}

static tsr_status add_unit(tsr_run *r, const tsr_work *w, const tsr_unit_answer *a, const char *data, tsr_err *err)
{
    tsr_step_state *const s = r->steps[w->index];
    const tsr_step *const step = &r->plan->steps[w->index];
    const bool appended = tsr_is_appended(r, step) && !r->verifying;
    size_t given;
    if (!r->verifying)
        s->partials[w->unit] = a->stats;
    if (appended)
        TSR_TRY(tsr_run_append(r, w->index, w->unit, data, a->appended, err));
    else if (tsr_is_appended(r, step))
        TSR_TRY(take_appended(r, w->index, a, data, err));
    for (unsigned i = 0; i < step->n_out; i++) {
        if (tsr_is_by_unit(&r->digests, w->index, i))
            tsr_digests_at(&r->digests, w->index, i)[w->unit] = a->digests[i];
    }
    data += a->appended;
    if (a->blocks > 0 && (s->blocks == NULL || !tsr_block_cells_take(s->blocks, data, a->blocks)))
        return tsr_fail(err, TSR_E_IO, "another rank has found figures of other blocks");
    data += a->blocks;
    TSR_TRY(merge_held(r, w->index, a->held, &data, err));
    if (tsr_gives(r, w->index, &given))
        TSR_TRY(merge_held(r, given, a->held + TSR_MAX_OUTPUTS, &data, err));
    return tsr_run_count_unit(r, w->index, a->bytes_in, appended ? a->appended : a->bytes_out, err);
}

/* Bytes that follow an answer. */
static uint64_t bytes_behind(const tsr_unit_answer *a)
{
    uint64_t bytes = a->appended + a->blocks;
    for (unsigned i = 0; i < 2 * TSR_MAX_OUTPUTS; i++)
        bytes += a->held[i].bytes;
    return bytes;
}

/* Notes who has which file open. */
static void touch(tsr_run *r, size_t file, unsigned rank)
{
    pthread_mutex_lock(&r->crew->lock);
    r->crew->touched[file * tsr_ranks_count(r->crew->ranks) + rank] = 1;
    pthread_mutex_unlock(&r->crew->lock);
}

tsr_status tsr_remote_do(tsr_remote *remote, const tsr_work *w, tsr_err *err)
{
    tsr_run *const r = w->run;
    const tsr_step *const step = &r->plan->steps[w->amax ? 0 : w->index];
    size_t given;
    const tsr_request q = {.asked = w->amax ? TSR_ASKED_AMAX : TSR_ASKED_UNIT,
                           .flags = (r->verifying ? TSR_ASKED_TO_VERIFY : 0u) |
                                    (!w->amax && tsr_gives(r, w->index, &given) ? TSR_ASKED_TO_GIVE : 0u),
                           .index = w->index,
                           .part = w->unit,
                           .number = w->amax || step->amax == NULL ? 0 : r->amaxes[step->amax->index].amax};
    tsr_unit_answer a;
    if (!w->amax)
        touch(r, step->file, remote->rank);
    TSR_TRY(tsr_remote_ask(remote, &q, err));
    if (remote->bytes < sizeof a)
        return is_wrong(remote, err);
    memcpy(&a, remote->answer, sizeof a);
    if (remote->bytes - sizeof a != bytes_behind(&a))
        return is_wrong(remote, err);
    atomic_fetch_add(&r->crew->elsewhere, 1);
    atomic_fetch_add(&r->crew->read_elsewhere, a.bytes_read);
    if (!w->amax)
        return add_unit(r, w, &a, remote->answer + sizeof a, err);
    tsr_run_count_amax(r, w->index, a.amax, a.bytes_in);
    return TSR_OK;
}

tsr_status tsr_run_settle_file(tsr_run *r, size_t file, tsr_err *err)
{
    const unsigned ranks = tsr_ranks_count(r->crew->ranks);
    const tsr_request q = {.asked = TSR_ASKED_SETTLE, .flags = r->verifying ? TSR_ASKED_TO_VERIFY : 0, .index = file};
    bool looked = false;
    for (unsigned rank = 1; rank < ranks; rank++) {
        uint8_t *const touched = &r->crew->touched[file * ranks + rank];
        if (*touched == 0)
            continue;
        tsr_remote to = tsr_remote_aside(r->crew->ranks, rank);
        TSR_TRY(tsr_remote_ask(&to, &q, err));
        looked = true;
        *touched = 0;
    }
    /* Opening has a network file system ask for the size that the file has by now. */
    if (looked && !r->verifying) {
        char path[PATH_MAX];
        const int fd = tsr_open(tsr_part_path(r->dst, file, path), O_RDONLY);
        if (fd < 0)
            return tsr_fail_errno(err, "%s: cannot open", path);
        close(fd);
    }
    return TSR_OK;
}
