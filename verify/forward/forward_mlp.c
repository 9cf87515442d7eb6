/* The MLP of a layer: dense, or a router with experts, each of which runs over all tokens that were routed to it. */
#include "verify/forward/forward_parts.h"

#include "verify/weights/weight_product.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* *out [n][hidden] = W_down (silu(W_gate x) * W_up x), from malloc. */
static tsr_status gated(const tsr_forward *f, const char *module, const double *x, size_t n, double **out, tsr_err *err)
{
    char name[TSR_MAX_NAME];
    const tsr_weight *w;
    double *gate = NULL, *up = NULL;
    tsr_status status;
    *out = NULL;
    TSR_GOTO(tsr_forward_find(f, &w, err, "%s.gate_proj.weight", module));
    const size_t inner = (size_t)(w->coding == TSR_PLAIN ? w->values->shape[0] : w->rows);
    snprintf(name, sizeof name, "%s.gate_proj", module);
    TSR_GOTO(tsr_forward_linear(f, name, x, n, inner, f->hidden, &gate, err));
    snprintf(name, sizeof name, "%s.up_proj", module);
    TSR_GOTO(tsr_forward_linear(f, name, x, n, inner, f->hidden, &up, err));
    for (size_t i = 0; i < n * inner; i++)
        gate[i] = gate[i] / (1 + exp(-gate[i])) * up[i];
    snprintf(name, sizeof name, "%s.down_proj", module);
    TSR_GOTO(tsr_forward_linear(f, name, gate, n, f->hidden, inner, out, err));
out:
    free(gate);
    free(up);
    return status;
}

/* ---- routing ---- */

typedef struct routing {
    const tsr_forward *f;
    size_t experts;
    const double *bias; /* [experts], or NULL */
    double *scores;     /* [n][experts] */
    uint32_t *choices;  /* [n][chosen] */
    double *weights;    /* [n][chosen] */
    double *keys;       /* [experts]: by which the current token ranks experts; -inf: excluded */
    double *of_group;   /* [groups] */
} routing;

static void score(const tsr_forward *f, double *x, size_t n)
{
    for (size_t i = 0; i < n && f->router.sigmoid; i++)
        x[i] = 1 / (1 + exp(-x[i]));
    if (!f->router.sigmoid)
        tsr_soften(x, n);
}

/* The index of the largest element, the first of them when several are equal. */
static size_t best(const double *x, size_t n)
{
    size_t at = 0;
    for (size_t i = 1; i < n; i++)
        at = x[i] > x[at] ? i : at;
    return at;
}

/* Excludes the experts of all groups but the best. */
static void keep_groups(const routing *r)
{
    const struct tsr_router *const router = &r->f->router;
    const size_t size = r->experts / router->groups;
    for (size_t g = 0; g < router->groups; g++) {
        double *const keys = r->keys + g * size, second = -INFINITY;
        const size_t first = best(keys, size);
        for (size_t i = 0; i < size; i++)
            second = i == first ? second : fmax(second, keys[i]);
        r->of_group[g] = keys[first] + (router->sigmoid && size > 1 ? second : 0);
    }
    for (size_t left = router->groups - router->groups_kept; left > 0; left--) {
        size_t worst = 0;
        for (size_t g = 1; g < router->groups; g++)
            worst = r->of_group[g] <= r->of_group[worst] ? g : worst;
        for (size_t i = 0; i < size; i++)
            r->keys[worst * size + i] = -INFINITY;
        r->of_group[worst] = INFINITY;
    }
}

static void choose(const routing *r, size_t token)
{
    const struct tsr_router *const router = &r->f->router;
    const double *const scores = r->scores + token * r->experts;
    uint32_t *const choices = r->choices + token * router->chosen;
    double *const weights = r->weights + token * router->chosen, sum = 0;
    for (size_t e = 0; e < r->experts; e++)
        r->keys[e] = fmax(scores[e] + (r->bias != NULL ? r->bias[e] : 0), -DBL_MAX); /* NaN too: chosen at most once */
    if (router->groups > 1)
        keep_groups(r);
    for (size_t i = 0; i < router->chosen; i++) {
        const size_t e = best(r->keys, r->experts);
        choices[i] = (uint32_t)e;
        sum += weights[i] = scores[e];
        r->keys[e] = -INFINITY;
    }
    for (size_t i = 0; i < router->chosen; i++) {
        if (router->normalized)
            weights[i] /= sum;
        if (!router->normalized || router->sigmoid)
            weights[i] *= router->scale;
    }
}

/* ---- experts ---- */

/* Adds the output of expert e to y, for the tokens that chose it. `rows` has room for the inputs of all tokens. */
static tsr_status run_expert(const routing *r, const char *mlp, size_t e, const double *x, size_t n, double *rows,
                             double *y, tsr_err *err)
{
    const size_t hidden = r->f->hidden, chosen = r->f->router.chosen;
    char module[TSR_MAX_NAME];
    double *out = NULL;
    size_t taken = 0;
    for (size_t i = 0; i < n * chosen; i++) {
        if (r->choices[i] == e)
            memcpy(rows + taken++ * hidden, x + i / chosen * hidden, hidden * sizeof *rows);
    }
    if (taken == 0)
        return TSR_OK;
    snprintf(module, sizeof module, "%s.experts.%zu", mlp, e);
    const tsr_status status = gated(r->f, module, rows, taken, &out, err);
    taken = 0;
    for (size_t i = 0; status == TSR_OK && i < n * chosen; i++) {
        if (r->choices[i] != e)
            continue;
        for (size_t k = 0; k < hidden; k++)
            y[i / chosen * hidden + k] += r->weights[i] * out[taken * hidden + k];
        taken++;
    }
    free(out);
    return status;
}

static tsr_status open_routing(routing *r, const char *mlp, const double *x, size_t n, double **bias, tsr_err *err)
{
    const struct tsr_router *const router = &r->f->router;
    char name[TSR_MAX_NAME];
    if (router->chosen == 0 || router->chosen > r->experts / router->groups * router->groups_kept ||
        r->experts % router->groups != 0)
        return tsr_fail(
            err, TSR_E_SHAPE, "%s: '%s.gate' has %zu experts, of which config.json chooses %zu from %zu of %zu groups",
            r->f->side->checkpoint->path, mlp, r->experts, router->chosen, router->groups_kept, router->groups);
    snprintf(name, sizeof name, "%s.gate.e_score_correction_bias", mlp);
    TSR_TRY(tsr_forward_vector(r->f, name, r->experts, false, bias, err));
    r->bias = *bias;
    snprintf(name, sizeof name, "%s.gate", mlp);
    TSR_TRY(tsr_forward_linear(r->f, name, x, n, r->experts, r->f->hidden, &r->scores, err));
    r->weights = malloc((n * router->chosen + 1) * sizeof *r->weights);
    r->choices = malloc((n * router->chosen + 1) * sizeof *r->choices);
    r->keys = malloc(r->experts * sizeof *r->keys);
    r->of_group = malloc(router->groups * sizeof *r->of_group);
    return r->weights == NULL || r->choices == NULL || r->keys == NULL || r->of_group == NULL
               ? tsr_out_of_memory(err, "for routing")
               : TSR_OK;
}

static tsr_status route(const tsr_forward *f, const char *mlp, size_t experts, const double *x, size_t n, double *y,
                        uint32_t *choices, tsr_err *err)
{
    routing r = {.f = f, .experts = experts};
    double *bias = NULL, *const rows = malloc((n * f->hidden + 1) * sizeof *rows);
    tsr_status status = TSR_OK;
    if (rows == NULL)
        return tsr_out_of_memory(err, "for experts");
    TSR_GOTO(open_routing(&r, mlp, x, n, &bias, err));
    for (size_t i = 0; i < n; i++) {
        score(f, r.scores + i * experts, experts);
        choose(&r, i);
    }
    for (size_t e = 0; e < experts; e++)
        TSR_GOTO(run_expert(&r, mlp, e, x, n, rows, y, err));
    if (choices != NULL)
        memcpy(choices, r.choices, n * f->router.chosen * sizeof *choices);
out:
    free(rows);
    free(bias);
    free(r.scores);
    free(r.weights);
    free(r.choices);
    free(r.keys);
    free(r.of_group);
    return status;
}

/* y += the MLP under this name. */
static tsr_status add_gated(const tsr_forward *f, const char *module, const double *x, size_t n, double *y,
                            tsr_err *err)
{
    double *out;
    const tsr_status status = gated(f, module, x, n, &out, err);
    for (size_t i = 0; status == TSR_OK && i < n * f->hidden; i++)
        y[i] += out[i];
    free(out);
    return status;
}

tsr_status tsr_forward_mlp(const tsr_forward *f, size_t layer, const double *x, size_t n, double *y, uint32_t *choices,
                           bool *routed, tsr_err *err)
{
    char mlp[TSR_MAX_NAME / 2], shared[TSR_MAX_NAME];
    const tsr_weight *gate, *w;
    snprintf(mlp, sizeof mlp, "model.layers.%zu.mlp", layer);
    TSR_TRY(tsr_forward_find(f, &gate, NULL, "%s.gate.weight", mlp));
    *routed = gate != NULL;
    if (gate == NULL)
        return add_gated(f, mlp, x, n, y, err);
    TSR_TRY(route(f, mlp, (size_t)gate->values->shape[0], x, n, y, choices, err));
    snprintf(shared, sizeof shared, "%s.shared_experts", mlp);
    TSR_TRY(tsr_forward_find(f, &w, NULL, "%s.gate_proj.weight", shared));
    return w == NULL ? TSR_OK : add_gated(f, shared, x, n, y, err);
}
