/* Units that other ranks carry out: asking for them, and adding what they came to. */
#include "convert/engine/engine_run.h"

#include "convert/engine/ranks_wire.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

unsigned tsr_crew_remote_workers(const tsr_crew *c)
{
    return c->ranks == NULL ? 0 : c->ranks->n_workers;
}

tsr_remote tsr_remote_of(const tsr_crew *c, unsigned index)
{
    unsigned rank = 1;
    for (; index >= c->ranks->threads[rank]; rank++)
        index -= c->ranks->threads[rank];
    return (tsr_remote){.rank = rank, .channel = (int)index + TSR_CHANNEL_THREADS};
}

static tsr_status is_gone(const tsr_ranks *ranks, unsigned rank, tsr_err *err)
{
    return tsr_fail(err, TSR_E_IO, "rank %u on %s cannot be reached any more; finished files are kept", rank,
                    ranks->standings[rank].host);
}

static tsr_status ask(const tsr_ranks *ranks, const tsr_remote *to, const tsr_request *q, tsr_answer *a, tsr_err *err)
{
    const tsr_transport *const t = ranks->transport;
    if (!t->send(to->rank, to->channel, q, sizeof *q) || !t->receive(to->rank, to->channel, a, sizeof *a))
        return is_gone(ranks, to->rank, err);
    return a->status == TSR_OK ? TSR_OK
                               : tsr_fail(err, (tsr_status)a->status, "%s (rank %u on %s)", a->err.msg, to->rank,
                                          ranks->standings[to->rank].host);
}

/* The bytes behind an answer. */
static tsr_status receive_more(const tsr_ranks *ranks, tsr_remote *from, uint64_t bytes, tsr_err *err)
{
    if (bytes > from->capacity) {
        char *const data = realloc(from->data, bytes);
        if (data == NULL) /* the other side would wait for ever: the run ends, and with it the process */
            return tsr_out_of_memory(err, "for what another rank has made");
        from->data = data;
        from->capacity = bytes;
    }
    return bytes == 0 || ranks->transport->receive(from->rank, from->channel, from->data, bytes)
               ? TSR_OK
               : is_gone(ranks, from->rank, err);
}

/* Units write to places of their own. What is zero in one is zero already, or another's. */
static tsr_status merge_held(tsr_run *r, size_t index, const tsr_answer *a, const char *from, tsr_err *err)
{
    const tsr_step *const step = &r->plan->steps[index];
    for (unsigned i = 0; i < TSR_MAX_OUTPUTS; i++) {
        const tsr_held_part *const part = &a->held[i];
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
        from += part->bytes;
    }
    return TSR_OK;
}

static tsr_status add_unit(tsr_run *r, const tsr_work *w, const tsr_answer *a, const char *data, tsr_err *err)
{
    tsr_step_state *const s = r->steps[w->index];
    const bool appended = tsr_is_appended(r, &r->plan->steps[w->index]) && !r->verifying;
    if (!r->verifying)
        s->partials[w->unit] = a->stats;
    if (appended)
        TSR_TRY(tsr_run_append(r, w->index, w->unit, data, a->appended, err));
    data += a->appended;
    if (a->blocks > 0 && (s->blocks == NULL || !tsr_block_cells_take(s->blocks, data, a->blocks)))
        return tsr_fail(err, TSR_E_IO, "another rank has found figures of other blocks");
    TSR_TRY(merge_held(r, w->index, a, data + a->blocks, err));
    const tsr_stretches done = {.bytes = appended ? a->appended : a->bytes_out, .digest = a->digest};
    return tsr_run_count_unit(r, w->index, a->bytes_in, &done, err);
}

tsr_status tsr_remote_do(tsr_remote *remote, const tsr_work *w, tsr_err *err)
{
    tsr_run *const r = w->run;
    const tsr_ranks *const ranks = r->crew->ranks;
    const tsr_step *const step = &r->plan->steps[w->amax ? 0 : w->index];
    tsr_request q = {.asked = w->amax ? TSR_ASKED_AMAX : TSR_ASKED_UNIT,
                     .verifying = r->verifying,
                     .index = w->index,
                     .unit = w->unit};
    tsr_answer a;
    if (!w->amax) {
        q.amax = step->amax == NULL ? 0 : r->amaxes[step->amax->index].amax;
        pthread_mutex_lock(&r->crew->lock);
        ranks->touched[step->file * ranks->transport->size + remote->rank] = 1;
        pthread_mutex_unlock(&r->crew->lock);
    }
    TSR_TRY(ask(ranks, remote, &q, &a, err));
    TSR_TRY(receive_more(ranks, remote, tsr_answer_bytes(&a), err));
    atomic_fetch_add(&r->crew->elsewhere, 1);
    if (!w->amax)
        return add_unit(r, w, &a, remote->data, err);
    tsr_run_count_amax(r, w->index, a.amax, a.bytes_in);
    return TSR_OK;
}

tsr_status tsr_run_settle_file(tsr_run *r, size_t file, tsr_err *err)
{
    const tsr_ranks *const ranks = r->crew->ranks;
    const tsr_request q = {.asked = TSR_ASKED_SETTLE, .verifying = r->verifying, .index = file};
    bool looked = false;
    for (unsigned rank = 1; ranks != NULL && rank < ranks->transport->size; rank++) {
        const tsr_remote to = {.rank = rank, .channel = TSR_CHANNEL_FILES};
        tsr_answer a;
        uint8_t *const touched = &ranks->touched[file * ranks->transport->size + rank];
        if (*touched != 0)
            TSR_TRY(ask(ranks, &to, &q, &a, err));
        looked = looked || *touched != 0;
        *touched = 0;
    }
    /* Opening has a network file system ask for the size that the file has by now. */
    if (looked && !r->verifying) {
        char path[PATH_MAX];
        const int fd = open(tsr_part_path(r->dst, file, path), O_RDONLY | O_CLOEXEC);
        if (fd < 0)
            return tsr_fail_errno(err, "%s: cannot open", path);
        close(fd);
    }
    return TSR_OK;
}
