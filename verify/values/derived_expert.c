/* Finds an expert's rows in a stack, by its name and the model family. */
#include "verify/values/derived_expert.h"

#include "common/text.h"
#include "formats/checkpoint/config.h"
#include "formats/names/expert_stacks.h"

#include <stdio.h>
#include <string.h>

/* ---- finding ---- */

/* Returns the layout of this checkpoint's stacks of plain weights. Codes have other layouts (gpt-oss' are
 * transposed). */
static tsr_stack_layout layout_of(const tsr_checkpoint *c, const tsr_weight *stack)
{
    static const char *const kPaths[] = {"model_type", "text_config.model_type"};
    tsr_stack_layout layout = {.model_type = NULL};
    if (stack->scale != NULL) {
        layout.turned = layout.interleaved = stack->transposed;
        return layout;
    }
    for (size_t i = 0; i < 2 && !layout.turned; i++) {
        tsr_arena arena = {0};
        layout = tsr_stack_layout_of(tsr_config_find_string(c, kPaths[i], &arena));
        layout.model_type = NULL;
        tsr_arena_free(&arena);
    }
    return layout;
}

/* Finds the stack "….experts.gate_up_proj" with this ending, then with ".weight" before or instead of it. */
static const tsr_weight *find_stack(const tsr_side *from, const char *name, const tsr_stacked_expert *at, bool bias)
{
    static const char *const kEndings[2][2] = {{"", ".weight"}, {"_bias", ".bias"}};
    char text[1200];
    for (size_t i = 0; i < 2; i++) {
        snprintf(text, sizeof text, "%.*s%s%s%s", (int)at->before, name, at->stack->set, at->stack->leaf,
                 kEndings[bias][i]);
        const tsr_weight *const found = tsr_weights_find(from->weights, from->checkpoint, text);
        if (found != NULL && found->values->rank == (bias ? 2 : 3))
            return found;
    }
    return NULL;
}

/* Returns the weight that the bias of a stack belongs to, which determines the layout of gate and up. */
static const tsr_weight *weight_of(const tsr_side *from, const char *name, const tsr_stacked_expert *at,
                                   const tsr_weight *bias)
{
    const tsr_weight *const weight = find_stack(from, name, at, false);
    return weight == NULL ? bias : weight;
}

bool tsr_derived_expert_find(const tsr_side *from, const tsr_weight *wanted, tsr_derived_tensor *made)
{
    tsr_stacked_expert at;
    const tsr_tensor *const t = wanted->values;
    if (!tsr_stack_place(t->name, &at))
        return false;
    const bool bias = strcmp(at.ending, ".bias") == 0;
    const tsr_weight *const stack = find_stack(from, t->name, &at, bias);
    if (stack == NULL || t->rank != (bias ? 1 : 2) || (!bias && strcmp(at.ending, ".weight") != 0))
        return false;
    const tsr_stack_layout layout = layout_of(from->checkpoint, bias ? weight_of(from, t->name, &at, stack) : stack);
    const unsigned n = tsr_stack_projections(at.stack);
    const bool turned = layout.turned && !bias, interleaved = layout.interleaved && n == 2;
    const uint64_t *const shape = stack->values->shape;
    const uint64_t all = shape[turned ? 2 : 1], rows = t->shape[0];
    if (at.expert >= shape[0] || rows * n != all || (!bias && t->shape[1] != shape[turned ? 1 : 2]))
        return false;
    *made = (tsr_derived_tensor){.kind = TSR_DERIVED_EXPERT,
                                 .stack = stack,
                                 .expert = at.expert,
                                 .first = at.projection * (interleaved ? 1 : rows),
                                 .step = interleaved ? 2 : 1,
                                 .turned = turned,
                                 .vector = bias};
    return true;
}

bool tsr_derived_expert_replaces(const tsr_side *from, const tsr_side *with, const tsr_weight *stack)
{
    const char *const name = stack->values->name;
    const tsr_stack *const k = tsr_stack_find(name);
    const bool bias = tsr_ends_with(name, "_bias") || tsr_ends_with(name, ".bias");
    if (k == NULL || stack->values->rank != (bias ? 2 : 3))
        return false;
    for (uint64_t expert = 0; expert < stack->values->shape[0]; expert++) {
        for (unsigned i = 0; i < tsr_stack_projections(k); i++) {
            tsr_arena arena = {0};
            tsr_derived_tensor made;
            const char *const one = tsr_stack_expert_name(&arena, k, name, expert, i, bias ? ".bias" : ".weight");
            const tsr_weight *const there = one == NULL ? NULL : tsr_weights_find(with->weights, with->checkpoint, one);
            const bool fits = there != NULL && tsr_weights_find(from->weights, from->checkpoint, one) == NULL &&
                              tsr_derived_expert_find(from, there, &made) && made.stack == stack;
            tsr_arena_free(&arena);
            if (!fits)
                return false;
        }
    }
    return true;
}

/* ---- making ---- */

/* Returns the number of stored rows that `n` rows span. */
static uint64_t span_of(const tsr_derived_tensor *m, uint64_t n)
{
    return (n - 1) * m->step + 1;
}

tsr_status tsr_derived_expert_values(const tsr_view *view, const tsr_derived_tensor *m, const tsr_piece *p, double *out,
                                     double *scratch, tsr_err *err)
{
    const uint64_t n = m->vector ? p->cols : p->rows, across = m->vector ? 1 : p->cols;
    const uint64_t first = m->first + (m->vector ? p->col : p->row) * m->step, span = span_of(m, n);
    const bool lies = m->turned || m->vector; /* a row of the expert is a column of the stack */
    tsr_piece stored = {.matrix = m->vector ? 0 : m->expert,
                        .row = m->vector ? m->expert : p->col,
                        .col = first,
                        .rows = across,
                        .cols = span};
    if (!lies)
        stored = (tsr_piece){.matrix = m->expert, .row = first, .col = p->col, .rows = span, .cols = across};
    TSR_TRY(tsr_read_values(view->checkpoint, m->stack, &stored, scratch, err));
    for (uint64_t r = 0; r < n; r++) {
        for (uint64_t c = 0; c < across; c++)
            out[r * across + c] = scratch[lies ? c * span + r * m->step : r * m->step * across + c];
    }
    return TSR_OK;
}

uint64_t tsr_derived_expert_scratch(const tsr_derived_tensor *m, const tsr_piece *p)
{
    return m->vector ? span_of(m, p->cols) : span_of(m, p->rows) * p->cols;
}
