/* Opens the devices of a check, and runs the passes of both models on them, at the same time if each has its own. */
#include "verify/forward/check_parts.h"

#include "common/checked.h"
#include "common/parallel/parallel_for.h"
#include "verify/forward/forward_cuda.h"

#include <stdlib.h>

/* ---- devices ---- */

static tsr_status open_first(const tsr_forward_request *r, tsr_ops *ops, bool *on_gpu, tsr_err *err)
{
    const unsigned threads = (unsigned)r->run.threads;
    tsr_err note;
    tsr_status status = TSR_E_DEVICE;
    if (r->device != TSR_DEVICE_CPU)
        status = tsr_ops_of_cuda(ops, 0, threads, r->run.cancel, r->device == TSR_DEVICE_CUDA ? err : &note);
    *on_gpu = status == TSR_OK;
    if (status == TSR_OK || r->device == TSR_DEVICE_CUDA)
        return status;
    *ops = tsr_ops_of_cpu(threads, r->run.cancel);
    return TSR_OK;
}

/* Divides the tables and the threads between the two models. With a single table, or a single model, all are for
 * both. */
static void divide_devices(tsr_forward_devices *d, bool two_models)
{
    const size_t for_source = two_models && d->n > 1 ? (size_t)tsr_ceil_div(d->n, 2) : d->n;
    d->passes = for_source < d->n ? 2 : 1;
    d->of_source = d->ops;
    d->of_source->beside = d->ops + 1;
    d->of_source->n_beside = for_source - 1;
    d->of_model = d->ops + (for_source < d->n ? for_source : 0);
    if (d->passes == 1)
        return;
    d->of_model->beside = d->of_model + 1;
    d->of_model->n_beside = d->n - for_source - 1;
    for (size_t i = 0; i < d->n; i++)
        d->ops[i].threads = d->ops[i].threads > 1 ? d->ops[i].threads / 2 : 1;
}

tsr_status tsr_forward_open_devices(const tsr_forward_request *r, tsr_forward_devices *d, tsr_err *err)
{
    bool on_gpu;
    d->n = 0;
    TSR_TRY(open_first(r, d->ops, &on_gpu, err));
    tsr_status status = TSR_OK;
    for (d->n = 1; status == TSR_OK && d->n < r->devices; d->n += status == TSR_OK) {
        tsr_ops *const next = &d->ops[d->n];
        if (on_gpu)
            status = tsr_ops_of_cuda(next, d->n, d->ops->threads, r->run.cancel, err);
        else
            *next = tsr_ops_of_cpu(d->ops->threads, r->run.cancel);
    }
    if (status != TSR_OK)
        tsr_forward_close_devices(d);
    else
        divide_devices(d, r->model != NULL);
    return status;
}

void tsr_forward_close_devices(tsr_forward_devices *d)
{
    while (d->n > 0) {
        d->n--;
        d->ops[d->n].close(&d->ops[d->n]);
    }
}

/* ---- passes ---- */

static tsr_status run_pass(void *context, size_t i, size_t worker, tsr_err *err)
{
    const tsr_forward_both *const both = context;
    (void)worker;
    return both->run(both, i == 0 ? &both->check->source : &both->check->model, i, err);
}

tsr_status tsr_forward_run_both(const tsr_forward_both *both, tsr_err *err)
{
    tsr_forward_both copy = *both;
    return tsr_parallel_for(2, both->check->devices.passes, both->check->request->run.cancel, run_pass, &copy, err);
}

tsr_status tsr_forward_check_tokens(const tsr_forward *f, const tsr_tokens *tokens, uint64_t passes, uint64_t memory,
                                    tsr_err *err)
{
    const char *const path = f->side->checkpoint->path;
    const uint64_t needed = passes * tsr_forward_memory(f, tokens->count, tokens->longest);
    if (f->family->layers == TSR_WINDOW_UNKNOWN && tokens->longest > f->window)
        return tsr_fail(err, TSR_E_UNSUPPORTED,
                        "%s/" TSR_CONFIG_NAME ": unexpected sliding_window %zu for this family; --count must not be "
                        "larger",
                        path, f->window);
    if (memory == 0 || needed <= memory)
        return TSR_OK;
    return tsr_fail(err, TSR_E_NOT_APPLICABLE,
                    "%s: %zu tokens need %llu MB, more than --memory; use fewer tokens (--count, --batch) or more "
                    "memory",
                    path, tokens->count, U64(needed / 1000000 + 1));
}

tsr_status tsr_forward_embed_states(tsr_forward *f, const tsr_tokens *tokens, double *x, tsr_err *err)
{
    const size_t n = tokens->count * f->hidden;
    double *held;
    TSR_TRY(f->ops->make(f->ops, n, &held, err));
    tsr_status status = tsr_forward_embed(f, tokens, held, err);
    if (status == TSR_OK)
        status = f->ops->get(f->ops, x, held, n, err);
    f->ops->drop(f->ops, held, n);
    return status;
}

tsr_status tsr_forward_run_layer(tsr_forward *f, size_t layer, const tsr_tokens *tokens,
                                 const tsr_forward_states *states, uint32_t *choices, bool *routed, tsr_err *err)
{
    const size_t n = tokens->count * f->hidden, each = n / states->parts;
    double *held;
    TSR_TRY(f->ops->make(f->ops, n, &held, err));
    tsr_status status = TSR_OK;
    for (size_t i = 0; status == TSR_OK && i < states->parts; i++)
        status = f->ops->put(f->ops, held + i * each, states->in[i], each, err);
    if (status == TSR_OK)
        status = tsr_forward_layer(f, layer, tokens, held, choices, routed, err);
    for (size_t i = 0; status == TSR_OK && i < states->parts; i++)
        status = f->ops->get(f->ops, states->out[i], held + i * each, each, err);
    f->ops->drop(f->ops, held, n);
    return status;
}
