/* Opens the devices of a check, and runs the passes of both models on them, at the same time if each has its own. */
#include "verify/forward/check_parts.h"

#include "common/checked.h"
#include "common/parallel/parallel_for.h"
#include "verify/forward/cuda/forward_cuda.h"
#include "verify/forward/forward_blas.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- devices ---- */

/* Opens the operations of the CPU. `no_gpu` is the reason why no GPU is used. */
static tsr_status open_cpu(const tsr_forward_request *r, tsr_ops *ops, unsigned threads, const char *no_gpu,
                           tsr_err *err)
{
    *ops = tsr_ops_of_cpu(threads, r->run.cancel);
    if (r->precision == TSR_PRECISION_BF16)
        return tsr_fail(err, TSR_E_DEVICE, "--precision bf16 needs a GPU; fp32 and fp64 also run on the CPU (%s)",
                        no_gpu);
    return r->precision == TSR_PRECISION_FP32 ? tsr_ops_use_blas(ops, err) : TSR_OK;
}

static tsr_status open_first(const tsr_forward_request *r, tsr_ops *ops, bool *on_gpu, tsr_err *err)
{
    const unsigned threads = (unsigned)r->run.threads;
    const tsr_gpu_choice gpu = {.precision = r->precision, .threads = threads, .cancel = r->run.cancel};
    tsr_err note = {.msg = "--device cpu"};
    tsr_status status = TSR_E_DEVICE;
    if (r->device != TSR_DEVICE_CPU)
        status = tsr_ops_of_cuda(ops, &gpu, r->device == TSR_DEVICE_CUDA ? err : &note);
    *on_gpu = status == TSR_OK;
    return status == TSR_OK || r->device == TSR_DEVICE_CUDA ? status : open_cpu(r, ops, threads, note.msg, err);
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
            status = tsr_ops_of_cuda(next, &(tsr_gpu_choice){d->n, r->precision, d->ops->threads, r->run.cancel}, err);
        else
            status = open_cpu(r, next, d->ops->threads, "--device cpu", err);
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

bool tsr_forward_runs_whole(const tsr_forward *f)
{
    const bool products = f->collector != NULL && f->collector->products != NULL;
    return f->indexer.kept > 0 || (products && f->router.chosen > 0);
}

tsr_status tsr_forward_check_tokens(const tsr_forward *f, const tsr_tokens *tokens, uint64_t passes, uint64_t memory,
                                    tsr_err *err)
{
    const char *const path = f->side->checkpoint->path;
    const size_t least =
        tsr_forward_runs_whole(f) ? 2 * tokens->count : tokens->longest; /* 2: for both models in a comparison */
    const uint64_t states = passes * tsr_forward_states_memory(f, tokens->count),
                   layer = passes * tsr_forward_layer_memory(f, least, tokens->longest);
    uint64_t statistics;
    char of_them[64] = "";
    if (f->family->layers == TSR_WINDOW_UNKNOWN && tokens->longest > f->window)
        return tsr_fail(err, TSR_E_UNSUPPORTED,
                        "%s/" TSR_CONFIG_NAME ": unexpected sliding_window %zu for this family; --count must not be "
                        "larger",
                        path, f->window);
    if (memory == 0)
        return TSR_OK;
    TSR_TRY(tsr_forward_statistics_memory(f, &statistics, err));
    if (statistics > 0)
        snprintf(of_them, sizeof of_them, " (%llu MB of them for statistics)", U64(statistics / 1000000 + 1));
    if (states + statistics + layer > memory)
        return tsr_fail(
            err, TSR_E_NOT_APPLICABLE,
            "%s: %zu tokens, the longest sequence with %zu, need %llu MB%s, more than --memory; use fewer tokens "
            "(--count, --batch) or more memory",
            path, tokens->count, tokens->longest, U64((states + statistics + layer) / 1000000 + 1), of_them);
    const uint64_t room = (memory - states - statistics) / passes;
    f->ops->room = f->ops->room == 0 ? room : tsr_min_u64(f->ops->room, room);
    return TSR_OK;
}

tsr_status tsr_forward_embed_states(tsr_forward *f, const tsr_tokens *tokens, double *x, tsr_err *err)
{
    const size_t n = tokens->count * f->width;
    tsr_activation *held;
    TSR_TRY(f->ops->make(f->ops, n, false, &held, err));
    tsr_status status = tsr_forward_embed(f, tokens, held, err);
    if (status == TSR_OK)
        status = f->ops->get(f->ops, x, held, n, err);
    f->ops->drop(f->ops, held, n);
    return status;
}

/* More room does not make a layer without experts faster, but allocating it takes time. */
static const uint64_t kRoomOfDenseLayer = (uint64_t)16 << 30;

/* Returns the end of the sequences from `from` on for which there is room at a time, at least one. */
static size_t end_of_room(const tsr_forward *f, const tsr_tokens *tokens, size_t from)
{
    const uint64_t room = f->router.chosen > 0 ? f->ops->room : tsr_min_u64(f->ops->room, kRoomOfDenseLayer);
    size_t to = from + 1, longest = tokens->first[to] - tokens->first[from];
    for (; to < tokens->sequences; to++) {
        longest = (size_t)tsr_max_u64(longest, tokens->first[to + 1] - tokens->first[to]);
        if (tsr_forward_layer_memory(f, tokens->first[to + 1] - tokens->first[from], longest) > room)
            break;
    }
    return to;
}

/* Returns the end of the sequences from `from` on that run at a time: all if there is no limit or they must, and
 * otherwise groups of nearly as many tokens each. */
static size_t end_of_group(const tsr_forward *f, const tsr_tokens *tokens, size_t from)
{
    if (f->ops->room == 0 || tsr_forward_runs_whole(f))
        return tokens->sequences;
    size_t to = end_of_room(f, tokens, from);
    const size_t begin = tokens->first[from], rest = tokens->count - begin;
    const size_t groups = (size_t)tsr_ceil_div(rest, tokens->first[to] - begin);
    while (to > from + 1 && tokens->first[to - 1] - begin >= tsr_ceil_div(rest, groups))
        to--;
    return to;
}

/* Copies rows [first, first + n) of the states to x, or x to these rows of the outputs. */
static tsr_status move_rows(const tsr_forward *f, const tsr_forward_states *states, size_t rows_of_part, size_t first,
                            size_t n, tsr_activation *x, bool out, tsr_err *err)
{
    for (size_t row = first, some; row < first + n; row += some) {
        const size_t part = row / rows_of_part, at = row % rows_of_part * f->width;
        tsr_activation *const held = tsr_at(f->ops, x, (row - first) * f->width);
        some = (size_t)tsr_min_u64(rows_of_part - row % rows_of_part, first + n - row);
        TSR_TRY(out ? f->ops->get(f->ops, states->out[part] + at, held, some * f->width, err)
                    : f->ops->put(f->ops, held, states->in[part] + at, some * f->width, err));
    }
    return TSR_OK;
}

/* Runs a layer over sequences [from, to). */
static tsr_status run_group(tsr_forward *f, size_t layer, const tsr_tokens *tokens, size_t from, size_t to,
                            const tsr_forward_states *states, uint32_t *choices, bool *routed, tsr_err *err)
{
    const size_t first = tokens->first[from], n = tokens->first[to] - first,
                 rows = tokens->count / tsr_max_u64(states->parts, 1);
    uint32_t *const chosen = choices == NULL ? NULL : choices + first * f->router.chosen;
    tsr_tokens group = {0};
    tsr_activation *x = NULL;
    tsr_status status = tsr_tokens_take(tokens, from, to, &group, err);
    if (status == TSR_OK && states->held != NULL)
        status =
            tsr_forward_layer(f, layer, &group, tsr_at(f->ops, states->held, first * f->width), chosen, routed, err);
    else if (status == TSR_OK) {
        TSR_GOTO(f->ops->make(f->ops, n * f->width, false, &x, err));
        TSR_GOTO(move_rows(f, states, rows, first, n, x, false, err));
        TSR_GOTO(tsr_forward_layer(f, layer, &group, x, chosen, routed, err));
        status = move_rows(f, states, rows, first, n, x, true, err);
    }
out:
    f->ops->drop(f->ops, x, n * f->width);
    tsr_tokens_free(&group);
    return status;
}

tsr_status tsr_forward_run_layer(tsr_forward *f, size_t layer, const tsr_tokens *tokens,
                                 const tsr_forward_states *states, uint32_t *choices, bool *routed, tsr_err *err)
{
    for (size_t from = 0, to; from < tokens->sequences; from = to) {
        to = end_of_group(f, tokens, from);
        f->ops->repeats = to - from < tokens->sequences;
        TSR_TRY(run_group(f, layer, tokens, from, to, states, choices, routed, err));
    }
    return TSR_OK;
}
