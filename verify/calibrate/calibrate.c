/* Runs one model over its tokens, layer by layer, with a collector. */
#include "verify/calibrate/calibrate.h"

#include "common/file.h"
#include "verify/forward/check_parts.h"
#include "verify/forward/tokens/token_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

typedef struct running {
    const tsr_forward_request *request;
    tsr_forward_devices devices;
    tsr_forward forward;
    tsr_tokens tokens;
    const tsr_calibrate_options *options;
    size_t n;  /* elements of the hidden states [count][width] */
    double *x; /* the states on the host, or `held`: in memory of the operations, if they fit there */
    tsr_activation *held;
    size_t finished;     /* layers */
    double began, saved; /* times */
} running;

static tsr_status read_tokens(running *r, tsr_err *err)
{
    const tsr_forward_request *const q = r->request;
    const tsr_token_limits limits = {q->sequences, q->length, r->forward.vocabulary};
    TSR_TRY(tsr_tokens_read_file(&r->tokens, q->tokens, q->source->checkpoint->path, limits, err));
    return tsr_forward_check_tokens(&r->forward, &r->tokens, 1, q->run.memory, err);
}

static void tell(const running *r, size_t layer)
{
    const tsr_run_options *const run = &r->request->run;
    const tsr_progress progress = {
        .items_done = layer + 1, .items_total = r->forward.layers, .items = "layer", .seconds = tsr_now() - r->began};
    if (run->progress != NULL)
        run->progress(&progress, run->progress_data);
}

/* Computes the fingerprint of everything that the result depends on. */
static void identify(const running *r)
{
    const char *const device = r->devices.ops->name;
    uint64_t hash = tsr_checkpoint_fingerprint(r->request->source->checkpoint, r->options->products != NULL);
    hash = XXH3_64bits_withSeed(device, strlen(device), hash);
    hash = XXH3_64bits_withSeed(r->tokens.first, (r->tokens.sequences + 1) * sizeof *r->tokens.first, hash);
    r->options->state->fingerprint = XXH3_64bits_withSeed(r->tokens.ids, r->tokens.count * sizeof *r->tokens.ids, hash);
}

/* Takes up the states x of an earlier run, or begins with the embeddings. */
static tsr_status load_states(running *r, tsr_collector *collector, double *x, tsr_err *err)
{
    tsr_forward *const f = &r->forward;
    TSR_TRY(tsr_calibrate_state_load(r->options->state, &r->finished, collector, x, r->n, err));
    if (r->held == NULL)
        return r->finished > 0 ? TSR_OK : tsr_forward_embed_states(f, &r->tokens, x, err);
    return r->finished > 0 ? f->ops->put(f->ops, r->held, x, r->n, err)
                           : tsr_forward_embed(f, &r->tokens, r->held, err);
}

static tsr_status begin(running *r, tsr_collector *collector, tsr_err *err)
{
    const tsr_input_products *const products = r->options->products;
    tsr_ops *const ops = r->forward.ops;
    r->n = r->tokens.count * r->forward.width;
    identify(r);
    if (ops->room == 0 || r->n * ops->element <= ops->room / 4)
        TSR_TRY(ops->make(ops, r->n, false, &r->held, err));
    double *const x = malloc((r->n + 1) * sizeof *x);
    const tsr_status status =
        x == NULL ? tsr_out_of_memory(err, "for hidden states") : load_states(r, collector, x, err);
    if (r->held == NULL)
        r->x = x;
    else
        free(x);
    if (status == TSR_OK && products != NULL && tsr_resize(products->fd, products->bytes) != 0)
        return tsr_fail_errno(err, "%s: cannot resize", products->path);
    return status;
}

/* Stores the states after a layer, and the statistics so far. */
static tsr_status save_states(const running *r, size_t layer, tsr_err *err)
{
    tsr_ops *const ops = r->forward.ops;
    double *const copy = r->held == NULL ? NULL : malloc((r->n + 1) * sizeof *copy), *const x =
                                                                                         copy == NULL ? r->x : copy;
    tsr_status status = x == NULL ? tsr_out_of_memory(err, "for hidden states") : TSR_OK;
    if (status == TSR_OK && r->held != NULL)
        status = ops->get(ops, x, r->held, r->n, err);
    if (status == TSR_OK)
        status = tsr_calibrate_state_save(r->options->state, layer + 1, r->forward.collector, x, r->n, err);
    free(copy);
    return status;
}

/* Ends a layer, and stores the state if enough time has passed. */
static tsr_status end_layer(running *r, size_t layer, tsr_err *err)
{
    if (r->options->products != NULL)
        TSR_TRY(tsr_input_products_end_layer(r->options->products, err));
    tell(r, layer);
    const bool continued =
        layer + 1 < r->forward.layers && r->forward.shares[layer + 1]; /* the state lacks the choice */
    if (continued || tsr_now() - r->saved < r->options->save_seconds)
        return TSR_OK;
    TSR_TRY(save_states(r, layer, err));
    r->saved = tsr_now();
    return TSR_OK;
}

static tsr_status run_layers(running *r, tsr_err *err)
{
    const tsr_forward_states states = {.parts = 1, .in = {r->x}, .out = {r->x}, .held = r->held};
    r->saved = tsr_now();
    for (size_t layer = r->finished; layer < r->forward.layers; layer++) {
        bool routed;
        tsr_collector_begin_layer(r->forward.collector);
        TSR_TRY(tsr_forward_run_layer(&r->forward, layer, &r->tokens, &states, NULL, &routed, err));
        TSR_TRY(end_layer(r, layer, err));
    }
    return TSR_OK;
}

tsr_status tsr_calibrate(const tsr_forward_request *request, const tsr_calibrate_options *options,
                         tsr_collector *collector, tsr_forward_figures *figures, size_t *resumed, tsr_err *err)
{
    running r = {.request = request, .options = options};
    tsr_status status;
    *collector = (tsr_collector){.products = options->products};
    TSR_TRY(tsr_forward_open_devices(request, &r.devices, err));
    r.began = tsr_now();
    status = tsr_forward_open(&r.forward, request->source, err);
    r.forward.ops = r.devices.of_source;
    r.forward.collector = collector;
    collector->ops = r.devices.of_source;
    if (collector->products != NULL)
        collector->products->ops = r.devices.of_source;
    if (status == TSR_OK)
        status = read_tokens(&r, err);
    if (status == TSR_OK)
        status = begin(&r, collector, err);
    if (status == TSR_OK)
        status = run_layers(&r, err);
    *figures = (tsr_forward_figures){.sequences = r.tokens.sequences,
                                     .tokens = r.tokens.count,
                                     .weight_bytes = r.forward.bytes_read,
                                     .activation_bytes = r.devices.ops->most,
                                     .devices = r.devices.n};
    *resumed = r.finished;
    snprintf(figures->device, sizeof figures->device, "%s", r.devices.ops->name);
    if (collector->products != NULL)
        tsr_input_products_drop(collector->products);
    free(r.x);
    r.devices.of_source->drop(r.devices.of_source, r.held, r.n);
    tsr_tokens_free(&r.tokens);
    tsr_forward_close(&r.forward);
    tsr_forward_close_devices(&r.devices);
    return status;
}
