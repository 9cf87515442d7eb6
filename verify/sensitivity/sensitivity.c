/* Runs the source once, and for each layer a second time with the weights of its groups exchanged. */
#include "verify/sensitivity/sensitivity.h"

#include "common/checked.h"
#include "common/parallel/parallel_for.h"
#include "formats/names/model.h"
#include "verify/forward/check_parts.h"
#include "verify/forward/tokens/token_file.h"
#include "verify/sensitivity/weight_error.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct running {
    const tsr_sensitivity_request *request;
    tsr_forward_devices devices;
    tsr_forward forward;
    tsr_tokens tokens;
    size_t n;     /* elements of the states of all tokens */
    double *last; /* [tokens][width]: the source's states after its last layer */
    tsr_sensitivity *groups;
    size_t n_groups, done;
    double began;
} running;

static void tell(const running *r)
{
    const tsr_run_options *const run = &r->request->forward.run;
    const tsr_progress progress = {
        .items_done = r->done, .items_total = r->n_groups, .items = "group", .seconds = tsr_now() - r->began};
    if (run->progress != NULL)
        run->progress(&progress, run->progress_data);
}

/* ---- errors of weights ---- */

/* Adds up the errors of the weights of a group. Also checks that the quantized checkpoint has all of them, with the
 * same shapes. */
static tsr_status measure_errors(const running *r, tsr_sensitivity *g, tsr_err *err)
{
    const tsr_sensitivity_request *const q = r->request;
    const tsr_side *const source = q->forward.source, *const other = q->quantized;
    for (size_t i = g->group; i < source->checkpoint->tensors.count; i++) {
        const char *const name = source->checkpoint->tensors.items[i].name;
        double error;
        if (q->group_of[i] != g->group)
            continue;
        const tsr_weight *const x = tsr_weights_find(source->weights, source->checkpoint, name);
        const tsr_weight *const y = tsr_weights_find(other->weights, other->checkpoint, name);
        if (x == NULL || y == NULL)
            return tsr_fail(err, TSR_E_MISMATCH, "%s: lacks '%s', which %s has", other->checkpoint->path, name,
                            source->checkpoint->path);
        TSR_TRY(tsr_weight_error(source, x, other, y, q->importance, &q->forward.run, &error, err));
        g->error += error;
    }
    return TSR_OK;
}

/* ---- divergences ---- */

/* Rows of the logits of the source and of a pass with an exchanged group. */
typedef struct rows {
    const double *x, *y; /* [n][width] */
    size_t width;
    double *kl; /* [n] */
} rows;

static tsr_status compare_row(void *context, size_t i, size_t worker, tsr_err *err)
{
    const rows *const p = context;
    const double *const x = p->x + i * p->width, *const y = p->y + i * p->width;
    (void)worker, (void)err;
    p->kl[i] = tsr_divergence(x, tsr_log_sum(x, p->width), y, tsr_log_sum(y, p->width), p->width);
    return TSR_OK;
}

/* Adds the divergences of n positions. */
static tsr_status add_rows(const running *r, tsr_sensitivity *g, rows *p, size_t n, tsr_err *err)
{
    const tsr_run_options *const run = &r->request->forward.run;
    TSR_TRY(tsr_parallel_for(n, run->threads, run->cancel, compare_row, p, err));
    for (size_t i = 0; i < n; i++) {
        g->kl += p->kl[i] / (double)r->tokens.count;
        g->kl_max = fmax(g->kl_max, p->kl[i]);
    }
    return TSR_OK;
}

static void exchange(running *r, const tsr_sensitivity *g)
{
    r->forward.exchange = (tsr_exchange){r->request->quantized, r->request->group_of, g->group};
}

static void exchange_none(running *r)
{
    r->forward.exchange = (tsr_exchange){.side = NULL};
}

/* Compares the logits of states [n_groups][tokens][width] with the source's. `head`: the states are the source's own,
 * and the group is the head. */
static tsr_status compare_heads(running *r, tsr_sensitivity *groups, size_t n_groups, const double *states, bool head,
                                tsr_err *err)
{
    tsr_forward *const f = &r->forward;
    const size_t width = f->vocabulary, most = tsr_forward_chunk(f, r->tokens.count);
    double *const logits = malloc(2 * most * width * sizeof *logits);
    rows p = {.x = logits, .y = logits + most * width, .width = width, .kl = malloc((most + 1) * sizeof *p.kl)};
    tsr_status status = logits == NULL || p.kl == NULL ? tsr_out_of_memory(err, "for logits") : TSR_OK;
    for (size_t row = 0; status == TSR_OK && row < r->tokens.count; row += most) {
        const size_t n = (size_t)tsr_min_u64(most, r->tokens.count - row), at = row * f->width;
        status = tsr_forward_logits_of(f, r->last + at, n, logits, err);
        for (size_t i = 0; status == TSR_OK && i < n_groups; i++) {
            if (head)
                exchange(r, &groups[i]);
            status = tsr_forward_logits_of(f, states + i * r->n + at, n, logits + most * width, err);
            exchange_none(r);
            if (status == TSR_OK)
                status = add_rows(r, &groups[i], &p, n, err);
        }
    }
    free(logits);
    free(p.kl);
    return status;
}

/* ---- passes ---- */

/* Runs one layer over states on the host. `in` and `out` may be the same. */
static tsr_status run_layer(running *r, size_t layer, const tsr_tokens *tokens, const double *in, double *out,
                            tsr_err *err)
{
    const tsr_forward_states states = {.parts = 1, .in = {in}, .out = {out}};
    bool routed;
    return tsr_forward_run_layer(&r->forward, layer, tokens, &states, NULL, &routed, err);
}

/* Runs a layer with one group exchanged. *choice are the tokens that the layer attends to then. */
static tsr_status run_group(running *r, size_t layer, const double *x, const tsr_sensitivity *group, double *states,
                            tsr_token_choice *choice, tsr_err *err)
{
    tsr_token_choice *const of_pass = &r->forward.choice, before = *of_pass;
    tsr_status status = tsr_token_choice_repeat(&before, 1, of_pass, err);
    exchange(r, group);
    if (status == TSR_OK)
        status = run_layer(r, layer, &r->tokens, x, states, err);
    exchange_none(r);
    *choice = *of_pass;
    *of_pass = before;
    return status;
}

/* Runs the groups [n] of a layer, whose input is x. Each has its own copy of the states from there on. */
static tsr_status run_groups(running *r, size_t layer, const double *x, tsr_sensitivity *groups, size_t n, tsr_err *err)
{
    tsr_tokens tokens = {0};
    tsr_token_choice choice = {0}; /* made by all groups */
    double *const states = malloc((n * r->n + 1) * sizeof *states);
    tsr_status status =
        states == NULL ? tsr_out_of_memory(err, "for hidden states") : tsr_tokens_repeat(&r->tokens, n, &tokens, err);
    for (size_t i = 0; status == TSR_OK && i < n; i++) {
        tsr_token_choice own = {0};
        status = run_group(r, layer, x, &groups[i], states + i * r->n, &own, err);
        if (status == TSR_OK && i == 0)
            status = tsr_token_choice_repeat(&own, n, &choice, err);
        else if (status == TSR_OK)
            tsr_token_choice_place(&choice, i * r->tokens.count, &own);
        tsr_token_choice_free(&own);
    }
    const tsr_token_choice of_source = r->forward.choice;
    r->forward.choice = choice;
    for (size_t l = layer + 1; status == TSR_OK && l < r->forward.layers; l++)
        status = run_layer(r, l, &tokens, states, states, err);
    if (status == TSR_OK)
        status = compare_heads(r, groups, n, states, false, err);
    tsr_token_choice_free(&r->forward.choice);
    r->forward.choice = of_source;
    tsr_tokens_free(&tokens);
    free(states);
    return status;
}

/* Returns the bytes for n groups at a time. */
static uint64_t memory_of_groups(const running *r, size_t n)
{
    const tsr_forward *const f = &r->forward;
    const size_t tokens = n * r->tokens.count, at_once = tsr_forward_runs_whole(f) ? tokens : r->tokens.longest;
    return tsr_forward_states_memory(f, tokens) + tsr_forward_layer_memory(f, at_once, r->tokens.longest);
}

/* Returns how many of n groups run at a time within the memory. */
static size_t groups_at_a_time(const running *r, size_t n)
{
    const uint64_t memory = r->request->forward.run.memory;
    while (n > 1 && memory != 0 && memory_of_groups(r, n) > memory)
        n--;
    return n;
}

/* Measures groups [n], which are all of one layer, or all heads if layer is the number of layers. */
static tsr_status measure_groups(running *r, size_t layer, const double *x, tsr_sensitivity *groups, size_t n,
                                 tsr_err *err)
{
    const size_t step = layer < r->forward.layers ? groups_at_a_time(r, n) : 1;
    for (size_t i = 0; i < n; i += step) {
        const size_t count = (size_t)tsr_min_u64(step, n - i);
        TSR_TRY(layer < r->forward.layers ? run_groups(r, layer, x, groups + i, count, err)
                                          : compare_heads(r, groups + i, count, r->last, true, err));
        for (size_t k = i; k < i + count; k++) {
            groups[k].measured = true;
            r->done++;
            tell(r);
        }
    }
    return TSR_OK;
}

/* Computes the source's states x after its last layer. */
static tsr_status run_source(running *r, double *x, tsr_err *err)
{
    TSR_TRY(tsr_forward_embed_states(&r->forward, &r->tokens, x, err));
    for (size_t layer = 0; layer < r->forward.layers; layer++)
        TSR_TRY(run_layer(r, layer, &r->tokens, x, x, err));
    return TSR_OK;
}

/* Returns the layer of a group, the number of layers for the head, and SIZE_MAX for weights that the pass lacks. */
static size_t layer_of(const running *r, const tsr_sensitivity *g)
{
    const char *const name = r->request->forward.source->checkpoint->tensors.items[g->group].name;
    const size_t root = strlen(r->forward.root);
    uint64_t layer;
    if (strcmp(name, r->forward.head) == 0)
        return r->forward.layers;
    if (strncmp(name, r->forward.root, root) != 0 || strncmp(name + root, "layers.", 7) != 0 ||
        !tsr_layer_of(name, &layer) || layer >= r->forward.layers)
        return SIZE_MAX;
    return (size_t)layer;
}

/* Sorts the groups by layer, and those of one layer by their first tensor. */
static tsr_status sort_by_layer(running *r, tsr_err *err)
{
    tsr_sensitivity *const sorted = malloc((r->n_groups + 1) * sizeof *sorted);
    size_t n = 0;
    if (sorted == NULL)
        return tsr_out_of_memory(err, "for groups of weights");
    for (size_t layer = 0; layer <= r->forward.layers + 1; layer++) {
        for (size_t i = 0; i < r->n_groups; i++) {
            const size_t own = layer_of(r, &r->groups[i]);
            if (tsr_min_u64(own, r->forward.layers + 1) == layer)
                sorted[n++] = r->groups[i];
        }
    }
    memcpy(r->groups, sorted, n * sizeof *sorted);
    free(sorted);
    return TSR_OK;
}

static tsr_status measure(running *r, double *x, tsr_err *err)
{
    TSR_TRY(sort_by_layer(r, err));
    for (size_t i = 0; i < r->n_groups && layer_of(r, &r->groups[i]) != SIZE_MAX; i++)
        TSR_TRY(measure_errors(r, &r->groups[i], err));
    TSR_TRY(run_source(r, r->last, err));
    TSR_TRY(tsr_forward_embed_states(&r->forward, &r->tokens, x, err));
    for (size_t layer = 0, first = 0, end; layer <= r->forward.layers; layer++, first = end) {
        for (end = first; end < r->n_groups && layer_of(r, &r->groups[end]) == layer;)
            end++;
        TSR_TRY(measure_groups(r, layer, x, r->groups + first, end - first, err));
        if (layer < r->forward.layers)
            TSR_TRY(run_layer(r, layer, &r->tokens, x, x, err));
    }
    return TSR_OK;
}

static tsr_status run(running *r, tsr_err *err)
{
    const tsr_forward_request *const q = &r->request->forward;
    TSR_TRY(tsr_forward_open(&r->forward, q->source, err));
    r->forward.ops = r->devices.of_source;
    const tsr_token_limits limits = {q->sequences, q->length, r->forward.vocabulary};
    TSR_TRY(tsr_tokens_read_file(&r->tokens, q->tokens, q->source->checkpoint->path, limits, err));
    TSR_TRY(tsr_forward_check_tokens(&r->forward, &r->tokens, 1, q->run.memory, err));
    r->n = r->tokens.count * r->forward.width;
    r->last = malloc((2 * r->n + 1) * sizeof *r->last);
    return r->last == NULL ? tsr_out_of_memory(err, "for hidden states") : measure(r, r->last + r->n, err);
}

tsr_status tsr_sensitivities_measure(const tsr_sensitivity_request *request, tsr_sensitivity *groups, size_t n,
                                     tsr_forward_figures *figures, tsr_err *err)
{
    running r = {.request = request, .groups = groups, .n_groups = n, .began = tsr_now()};
    TSR_TRY(tsr_forward_open_devices(&request->forward, &r.devices, err));
    const tsr_status status = run(&r, err);
    *figures = (tsr_forward_figures){.sequences = r.tokens.sequences,
                                     .tokens = r.tokens.count,
                                     .weight_bytes = r.forward.bytes_read,
                                     .activation_bytes = r.devices.ops->most,
                                     .devices = r.devices.n};
    snprintf(figures->device, sizeof figures->device, "%s", r.devices.ops->name);
    free(r.last);
    tsr_tokens_free(&r.tokens);
    tsr_forward_close(&r.forward);
    tsr_forward_close_devices(&r.devices);
    return status;
}
