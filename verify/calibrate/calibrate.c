/* Runs one model over its tokens, layer by layer, with a collector. */
#include "verify/calibrate/calibrate.h"

#include "verify/forward/check_parts.h"
#include "verify/forward/tokens/token_file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct running {
    const tsr_forward_request *request;
    tsr_forward_devices devices;
    tsr_forward forward;
    tsr_tokens tokens;
    double *x; /* [count][hidden], on the host */
    double began;
} running;

static tsr_status read_tokens(running *r, tsr_err *err)
{
    const tsr_forward_request *const q = r->request;
    const char *const path = q->source->checkpoint->path;
    const tsr_token_limits limits = {q->sequences, q->length, r->forward.vocabulary};
    TSR_TRY(tsr_tokens_read_file(&r->tokens, q->tokens, path, limits, err));
    if (r->forward.family->windows == TSR_WINDOW_UNKNOWN && r->tokens.longest > r->forward.window)
        return tsr_fail(err, TSR_E_UNSUPPORTED,
                        "%s/" TSR_CONFIG_NAME ": unexpected sliding_window %zu for this family; --count must not be "
                        "larger",
                        path, r->forward.window);
    const uint64_t needed = tsr_forward_memory(&r->forward, r->tokens.count, r->tokens.longest);
    if (q->run.memory == 0 || needed <= q->run.memory)
        return TSR_OK;
    return tsr_fail(err, TSR_E_NOT_APPLICABLE,
                    "%s: %zu tokens need %llu MB, more than --memory; use fewer tokens (--count, --batch) or more "
                    "memory",
                    path, r->tokens.count, U64(needed / 1000000 + 1));
}

static void tell(const running *r, size_t layer)
{
    const tsr_run_options *const run = &r->request->run;
    const tsr_progress progress = {
        .items_done = layer + 1, .items_total = r->forward.layers, .items = "layer", .seconds = tsr_now() - r->began};
    if (run->progress != NULL)
        run->progress(&progress, run->progress_data);
}

static tsr_status embed(running *r, tsr_err *err)
{
    tsr_forward *const f = &r->forward;
    const size_t n = r->tokens.count * f->hidden;
    double *held;
    r->x = malloc((n + 1) * sizeof *r->x);
    if (r->x == NULL)
        return tsr_out_of_memory(err, "for hidden states");
    TSR_TRY(f->ops->make(f->ops, n, &held, err));
    tsr_status status = tsr_forward_embed(f, &r->tokens, held, err);
    if (status == TSR_OK)
        status = f->ops->get(f->ops, r->x, held, n, err);
    f->ops->drop(f->ops, held, n);
    return status;
}

static tsr_status run_layers(running *r, tsr_err *err)
{
    const tsr_forward_states states = {.parts = 1, .in = {r->x}, .out = {r->x}};
    for (size_t layer = 0; layer < r->forward.layers; layer++) {
        bool routed;
        TSR_TRY(tsr_forward_run_layer(&r->forward, layer, &r->tokens, &states, NULL, &routed, err));
        if (r->forward.collector->products != NULL)
            TSR_TRY(tsr_input_products_end_layer(r->forward.collector->products, err));
        tell(r, layer);
    }
    return TSR_OK;
}

tsr_status tsr_calibrate(const tsr_forward_request *request, tsr_collector *collector, tsr_forward_figures *figures,
                         tsr_err *err)
{
    running r = {.request = request};
    tsr_status status;
    *collector = (tsr_collector){.threads = request->run.threads, .products = collector->products};
    TSR_TRY(tsr_forward_open_devices(request, &r.devices, err));
    r.began = tsr_now();
    status = tsr_forward_open(&r.forward, request->source, err);
    r.forward.ops = r.devices.of_source;
    r.forward.collector = collector;
    if (collector->products != NULL)
        collector->products->ops = r.devices.of_source;
    if (status == TSR_OK)
        status = read_tokens(&r, err);
    if (status == TSR_OK)
        status = embed(&r, err);
    if (status == TSR_OK)
        status = run_layers(&r, err);
    *figures = (tsr_forward_figures){.sequences = r.tokens.sequences,
                                     .tokens = r.tokens.count,
                                     .weight_bytes = r.forward.bytes_read,
                                     .activation_bytes = r.devices.ops->most,
                                     .devices = r.devices.n};
    snprintf(figures->device, sizeof figures->device, "%s", r.devices.ops->name);
    if (collector->products != NULL)
        tsr_input_products_drop(collector->products);
    free(r.x);
    tsr_tokens_free(&r.tokens);
    tsr_forward_close(&r.forward);
    tsr_forward_close_devices(&r.devices);
    return status;
}
