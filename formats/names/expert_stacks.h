/* Stacks: the experts of a layer in one tensor. Tables have the names of stacks, the meaning of their rows, the layout
 * of each family, and the names of the experts' single tensors. */
#pragma once

#include "common/arena.h"
#include "formats/checkpoint/checkpoint.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One naming: "….experts.gate_up_proj" is gate_proj and up_proj of all experts. */
typedef struct tsr_stack {
    const char *set;            /* the part before the leaf: ".experts." */
    const char *leaf;           /* "gate_up_proj" */
    const char *experts;        /* replaces `set` in the names of single experts; followed by the expert's number */
    const char *projections[2]; /* the projections that its rows belong to; the second may be NULL */
} tsr_stack;

/* Finds the entry for a stack of this name, for "NAME.weight", or for its bias "NAME_bias". NULL: not a stack. */
const tsr_stack *tsr_stack_find(const char *name);

/* Returns 2 for gate and up, 1 for down. */
unsigned tsr_stack_projections(const tsr_stack *stack);

/* Returns true if its columns are the model's hidden size (gate and up); false if its rows are (down). */
bool tsr_stack_takes_hidden(const tsr_stack *stack);

/* Returns the name of one projection of an expert: "….experts.3.up_proj.weight" for "….experts.gate_up_proj", the
 * second projection, expert 3, with `ending` ".weight". In `arena`; NULL when memory is exhausted. */
const char *tsr_stack_expert_name(tsr_arena *arena, const tsr_stack *stack, const char *stacked, uint64_t expert,
                                  unsigned projection, const char *ending);

/* The other direction. */
typedef struct tsr_stacked_expert {
    const tsr_stack *stack;
    size_t before; /* characters of the name before stack->experts */
    uint64_t expert;
    unsigned projection;
    const char *ending; /* ending of the name: ".weight", ".bias" or another */
} tsr_stacked_expert;

/* Finds the position of a tensor of this name in a stack. Returns false if it belongs to none. A name can match only
 * one stack. */
bool tsr_stack_place(const char *name, tsr_stacked_expert *place);

/* A family's layout of stacks of plain weights. */
typedef struct tsr_stack_layout {
    const char *model_type; /* or its beginning */
    bool turned;            /* [experts, in, out] */
    bool interleaved;       /* rows of gate and up alternate; otherwise all of gate comes first */
} tsr_stack_layout;

/* Returns the layout of the model_type (NULL: unknown). Families without a row in the table store [experts, out, in],
 * gate first. */
tsr_stack_layout tsr_stack_layout_of(const char *model_type);

/* Returns true if hidden_size shows that a stack of [E, a, b] does not have this layout (0: unknown). */
bool tsr_stack_contradicts(const tsr_stack *stack, const tsr_stack_layout *layout, uint64_t a, uint64_t b,
                           uint64_t hidden);
