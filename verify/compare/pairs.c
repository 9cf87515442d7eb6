/* Pairs the tensors of two checkpoints by name. */
#include "verify/compare/pairs.h"

#include "common/glob.h"
#include "formats/weights/kv_names.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct pairing {
    const tsr_side *side[2];
    const tsr_compare_options *options;
    tsr_comparison *out;
} pairing;

const char *tsr_pair_name(const tsr_pair *pair)
{
    return (pair->a == NULL ? pair->b : pair->a)->values->name;
}

const char *tsr_pair_coordinates(const tsr_pair *pair, uint64_t index, char *text, size_t size)
{
    const tsr_tensor *const t = pair->a->values;
    uint64_t at[TSR_MAX_RANK];
    for (unsigned i = t->rank; i-- > 0; index /= t->shape[i])
        at[i] = index % t->shape[i];
    size_t n = (size_t)snprintf(text, size, "[");
    for (unsigned i = 0; i < t->rank; i++)
        n += (size_t)snprintf(text + n, size - n, "%s%llu", i == 0 ? "" : ", ", U64(at[i]));
    snprintf(text + n, size - n, "]");
    return text;
}

/* Pairs a tensor that only side `here` has, or that has another shape on the other side, with values derived from other
 * tensors of the other side, if possible. */
static tsr_status pair_with_made(pairing *r, unsigned here, tsr_pair *p, tsr_err *err)
{
    const tsr_weight *stand_in;
    TSR_TRY(tsr_derived_find(r->side[1 - here], r->side[here], here == 0 ? p->a : p->b, &r->out->arena,
                             &p->made[1 - here], &stand_in, err));
    if (p->made[1 - here] == NULL)
        return TSR_OK;
    *(here == 0 ? &p->b : &p->a) = stand_in;
    p->state = TSR_PAIR_IDENTICAL;
    return TSR_OK;
}

static tsr_status add_pair(pairing *r, const tsr_weight *x, const tsr_weight *y, tsr_err *err)
{
    const tsr_weight *const one = x == NULL ? y : x;
    tsr_pair p = {.a = x,
                  .b = y,
                  .state = x == NULL   ? TSR_PAIR_EXTRA
                           : y == NULL ? TSR_PAIR_MISSING
                                       : TSR_PAIR_IDENTICAL};
    if (r->options->n_globs > 0 && tsr_glob_find(r->options->globs, r->options->n_globs, one->values->name) == NULL)
        return TSR_OK;
    if (x != NULL && y != NULL && !tsr_same_shape(x->values, y->values)) {
        p.state = TSR_PAIR_MISSHAPED;
        TSR_TRY(pair_with_made(r, 1, &p, err));
        if (p.made[0] == NULL)
            TSR_TRY(pair_with_made(r, 0, &p, err));
    } else if (x == NULL || y == NULL) {
        const unsigned here = x == NULL ? 1 : 0;
        if (tsr_derived_replaces(r->side[here], r->side[1 - here], one))
            return TSR_OK; /* compared through the tensors that replace it */
        TSR_TRY(pair_with_made(r, here, &p, err));
    }
    r->out->pairs[r->out->count++] = p;
    return TSR_OK;
}

tsr_status tsr_pairs_find(const tsr_side *one, const tsr_side *other, const tsr_compare_options *options,
                          tsr_comparison *out, tsr_err *err)
{
    pairing p = {.side = {one, other}, .options = options, .out = out}, *const r = &p;
    const tsr_weights *const a = r->side[0]->weights, *const b = r->side[1]->weights;
    out->pairs = calloc(a->count + b->count + 1, sizeof *out->pairs);
    if (out->pairs == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "out of memory for %zu tensors", a->count + b->count);
    for (size_t i = 0; i < a->count; i++) {
        const tsr_weight *const x = &a->items[i];
        TSR_TRY(add_pair(r, x, tsr_weights_find_same(b, r->side[1]->checkpoint, x->values->name), err));
    }
    for (size_t i = 0; i < b->count; i++) {
        const tsr_weight *const y = &b->items[i];
        const tsr_weight *const x = tsr_weights_find_same(a, r->side[0]->checkpoint, y->values->name);
        /* Older tools store one scale for keys and values. */
        if (x == NULL || tsr_weights_find_same(b, r->side[1]->checkpoint, x->values->name) != y)
            TSR_TRY(add_pair(r, x, y, err));
    }
    if (out->count > 0)
        return TSR_OK;
    if (a->count + b->count == 0)
        return tsr_fail(err, TSR_E_UNSUPPORTED, "%s and %s have no tensors: nothing to compare",
                        r->side[0]->checkpoint->path, r->side[1]->checkpoint->path);
    return tsr_fail(err, TSR_E_USAGE, "--tensors: no tensor's name matches");
}
