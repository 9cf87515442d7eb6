/* Chooses experts on the host; this takes negligible time. */
#include "verify/forward/forward_parts.h"

#include "verify/values/weight_product.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

typedef struct routing {
    const struct tsr_router *router;
    size_t experts;
    const double *bias; /* [experts], or NULL */
    double *keys;       /* [experts]: rank of experts for the current token; -inf: excluded */
    double *of_group;   /* [groups] */
} routing;

static void score(const routing *r, double *x)
{
    if (r->router->scoring == TSR_SCORE_SOFTMAX)
        tsr_soften(x, r->experts);
    for (size_t i = 0; i < r->experts && r->router->scoring == TSR_SCORE_SIGMOID; i++)
        x[i] = 1 / (1 + exp(-x[i]));
    for (size_t i = 0; i < r->experts && r->router->scoring == TSR_SCORE_ROOT; i++)
        x[i] = sqrt(fmax(x[i], 0) + log1p(exp(-fabs(x[i]))));
}

/* Returns the index of the largest element, the first of several equal ones. */
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
    const struct tsr_router *const router = r->router;
    const size_t size = r->experts / router->groups;
    for (size_t g = 0; g < router->groups; g++) {
        double *const keys = r->keys + g * size, second = -INFINITY;
        const size_t first = best(keys, size);
        for (size_t i = 0; i < size; i++)
            second = i == first ? second : fmax(second, keys[i]);
        r->of_group[g] = keys[first] + (router->paired && size > 1 ? second : 0);
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

static void choose(const routing *r, const double *scores, uint32_t *choices)
{
    const struct tsr_router *const router = r->router;
    for (size_t e = 0; e < r->experts; e++)
        /* -DBL_MAX replaces NaN, so that no expert is chosen twice. */
        r->keys[e] = fmax(scores[e] + (r->bias != NULL ? r->bias[e] : 0), -DBL_MAX);
    if (router->groups > 1)
        keep_groups(r);
    for (size_t i = 0; i < router->chosen; i++) {
        choices[i] = (uint32_t)best(r->keys, r->experts);
        r->keys[choices[i]] = -INFINITY;
    }
}

static void weigh(const routing *r, const double *scores, const uint32_t *choices, double *weights)
{
    const struct tsr_router *const router = r->router;
    double sum = 0;
    for (size_t i = 0; i < router->chosen; i++)
        sum += weights[i] = scores[choices[i]];
    for (size_t i = 0; i < router->chosen; i++) {
        if (router->normalized)
            weights[i] /= sum;
        if (!router->normalized || router->paired)
            weights[i] *= router->scale;
    }
}

tsr_status tsr_forward_route(const tsr_forward *f, const char *name, size_t experts, const double *bias, double *logits,
                             size_t n, bool chosen, uint32_t *choices, double *weights, tsr_err *err)
{
    const struct tsr_router *const router = &f->router;
    if (router->chosen == 0 || router->chosen > experts / router->groups * router->groups_kept ||
        experts % router->groups != 0)
        return tsr_fail(err, TSR_E_SHAPE,
                        "%s: '%s' has %zu experts, but config.json chooses %zu from %zu of %zu groups",
                        f->side->checkpoint->path, name, experts, router->chosen, router->groups_kept, router->groups);
    const routing r = {router, experts, bias, malloc(experts * sizeof(double)),
                       malloc(router->groups * sizeof(double))};
    const tsr_status status = r.keys == NULL || r.of_group == NULL ? tsr_out_of_memory(err, "for routing") : TSR_OK;
    for (size_t i = 0; status == TSR_OK && i < n; i++) {
        score(&r, logits + i * experts);
        if (!chosen)
            choose(&r, logits + i * experts, choices + i * router->chosen);
        weigh(&r, logits + i * experts, choices + i * router->chosen, weights + i * router->chosen);
    }
    free(r.keys);
    free(r.of_group);
    return status;
}
