/* The experts of a layer in one tensor: what such a stack is called, what its rows are, which way round a family stores it,
 * and what each expert's own tensors are called where they are stored one by one. */
#ifndef TSR_FORMATS_NAMES_EXPERT_STACKS_H
#define TSR_FORMATS_NAMES_EXPERT_STACKS_H

#include "common/arena.h"
#include "formats/checkpoint/checkpoint.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One spelling: "….experts.gate_up_proj" is gate_proj and up_proj of all experts. */
typedef struct tsr_stack {
    const char *set;            /* the part before the leaf: ".experts." */
    const char *leaf;           /* "gate_up_proj" */
    const char *experts;        /* replaces `set` in single experts' names; the expert's number follows it */
    const char *projections[2]; /* what its rows are; the second may be NULL */
} tsr_stack;

/* The spelling of a stack of this name, also of "NAME.weight", and of its bias: "NAME_bias". NULL: it is none. */
const tsr_stack *tsr_stack_find(const char *name);

/* 2 of gate and up, 1 of down. */
unsigned tsr_stack_projections(const tsr_stack *stack);

/* Returns true if its columns are the model's hidden size (gate and up); false if its rows are (down). */
bool tsr_stack_takes_hidden(const tsr_stack *stack);

/* "….experts.3.up_proj.weight" of "….experts.gate_up_proj": the second projection of expert 3, with `ending` ".weight".
 * In `arena`; NULL when memory is exhausted. */
const char *tsr_stack_expert_name(tsr_arena *arena, const tsr_stack *stack, const char *stacked, uint64_t expert,
                                  unsigned projection, const char *ending);

/* The other direction. */
typedef struct tsr_stacked_expert {
    const tsr_stack *stack;
    size_t before; /* characters of the name before stack->experts */
    uint64_t expert;
    unsigned projection;
    const char *ending; /* in the name: ".weight", ".bias" or another ending */
} tsr_stacked_expert;

/* Finds the place of a tensor of this name in a stack. Returns false if it belongs to none. A name may fit one stack
 * only. */
bool tsr_stack_place(const char *name, tsr_stacked_expert *place);

/* A family's layout of stacks of plain weights. */
typedef struct tsr_stack_layout {
    const char *model_type; /* or its beginning */
    bool turned;            /* [experts, in, out] */
    bool interleaved;       /* gate and up take turns, row by row; elsewhere all of gate comes first */
} tsr_stack_layout;

/* The layout of the model_type (NULL: unknown). Those that no row names store [experts, out, in], gate first. */
tsr_stack_layout tsr_stack_layout_of(const char *model_type);

/* Returns true if a stack of [E, a, b] contradicts the layout, by hidden_size (0: unknown). */
bool tsr_stack_contradicts(const tsr_stack *stack, const tsr_stack_layout *layout, uint64_t a, uint64_t b,
                           uint64_t hidden);

#endif
