/* Makes the entries of a compressed cache (DeepSeek-V4): projections, compression, norm, RoPE. */
#include "verify/forward/forward_parts.h"

#include <stdio.h>
#include <stdlib.h>

/* Makes the sequences of entries: one for each whole window of `rate` tokens. */
static tsr_status count_entries(const tsr_tokens *tokens, size_t rate, tsr_tokens *entries, tsr_err *err)
{
    TSR_TRY(tsr_tokens_reserve(entries, tokens->sequences, tokens->count / rate, err));
    for (size_t s = 0; s < tokens->sequences; s++) {
        for (size_t n = (tokens->first[s + 1] - tokens->first[s]) / rate; n > 0; n--)
            entries->ids[entries->count++] = 0;
        tsr_tokens_end_sequence(entries);
    }
    return TSR_OK;
}

static tsr_status fill_entries(tsr_forward *f, const tsr_compressor *c, const tsr_tokens *entries, tsr_held *out,
                               tsr_err *err)
{
    const size_t width = c->overlaps ? 2 * c->dim : c->dim;
    char name[TSR_MAX_NAME];
    tsr_held values = {0}, gates = {0};
    double *bias = NULL;
    tsr_status status = TSR_OK;
    snprintf(name, sizeof name, "%s.wkv", c->module);
    TSR_GOTO(tsr_forward_linear(f, name, c->x, c->tokens->count, width, f->hidden, &values, err));
    TSR_GOTO(tsr_forward_round(f, values.x, values.n, err));
    snprintf(name, sizeof name, "%s.wgate", c->module);
    TSR_GOTO(tsr_forward_linear(f, name, c->x, c->tokens->count, width, f->hidden, &gates, err));
    TSR_GOTO(tsr_forward_round(f, gates.x, gates.n, err));
    snprintf(name, sizeof name, "%s.ape", c->module);
    TSR_GOTO(tsr_forward_elements(f, name, c->rate * width, &bias, err));
    const tsr_op_compress args = {.tokens = c->tokens,
                                  .entries = entries,
                                  .values = values.x,
                                  .gates = gates.x,
                                  .bias = bias,
                                  .out = out->x,
                                  .dim = c->dim,
                                  .rate = c->rate,
                                  .overlaps = c->overlaps};
    TSR_GOTO(f->ops->compress(f->ops, &args, err));
    status = tsr_forward_round(f, out->x, out->n, err);
out:
    tsr_let_go(f, &values);
    tsr_let_go(f, &gates);
    free(bias);
    return status;
}

tsr_status tsr_forward_compress(tsr_forward *f, const tsr_compressor *c, tsr_tokens *entries, tsr_held *out,
                                tsr_err *err)
{
    char name[TSR_MAX_NAME];
    TSR_TRY(count_entries(c->tokens, c->rate, entries, err));
    TSR_TRY(tsr_hold_unset(f, out, entries->count * c->dim, err));
    TSR_TRY(fill_entries(f, c, entries, out, err));
    snprintf(name, sizeof name, "%s.norm.weight", c->module);
    TSR_TRY(tsr_forward_norm(f, name, out->x, entries->count, c->dim, out->x, err));
    const tsr_op_turn turn = {.rope = &f->rope,
                              .tokens = entries,
                              .x = out->x,
                              .ld = c->dim,
                              .at = c->dim - f->compression.turned,
                              .heads = 1,
                              .step = c->dim,
                              .rate = c->rate,
                              .adjacent = true};
    TSR_TRY(f->ops->turn(f->ops, &turn, err));
    return tsr_forward_round(f, out->x, out->n, err);
}
