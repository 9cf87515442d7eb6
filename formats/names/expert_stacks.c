/* Two tables: the names of stacks, and the families with an unusual layout of stacks. */
#include "formats/names/expert_stacks.h"

#include <stdlib.h>
#include <string.h>

static const char kExperts[] = ".experts.";

/* Granite's parallel experts have names of their own and must be looked up first. */
static const tsr_stack kStacks[] = {
    {".block_sparse_moe.", "input_linear", ".block_sparse_moe.experts.", {"gate_proj", "up_proj"}},
    {".block_sparse_moe.", "output_linear", ".block_sparse_moe.experts.", {"down_proj", NULL}},
    {kExperts, "gate_up_proj", kExperts, {"gate_proj", "up_proj"}},
    {kExperts, "down_proj", kExperts, {"down_proj", NULL}},
};

/* Layouts of stacks in transformers, in memory and on disk (modeling_llama4.py, modeling_gpt_oss.py), or only on disk
 * (conversion_mapping.py transposes Qwen3-VL's). */
static const tsr_stack_layout kLayouts[] = {
    {"gpt_oss", true, true},
    {"llama4", true, false},
    {"qwen3_vl_moe", true, false},
};

enum { STACKS = sizeof kStacks / sizeof *kStacks };

const tsr_stack *tsr_stack_find(const char *name)
{
    for (size_t i = 0; i < STACKS; i++) {
        const char *const at = strstr(name, kStacks[i].set);
        const size_t length = strlen(kStacks[i].leaf);
        const char *const leaf = at == NULL ? NULL : at + strlen(kStacks[i].set);
        if (leaf != NULL && strncmp(leaf, kStacks[i].leaf, length) == 0 &&
            (leaf[length] == '\0' || strcmp(leaf + length, ".weight") == 0 || strcmp(leaf + length, "_bias") == 0 ||
             strcmp(leaf + length, ".bias") == 0))
            return &kStacks[i];
    }
    return NULL;
}

unsigned tsr_stack_projections(const tsr_stack *stack)
{
    return stack->projections[1] == NULL ? 1 : 2;
}

bool tsr_stack_takes_hidden(const tsr_stack *stack)
{
    return stack->projections[1] != NULL;
}

const char *tsr_stack_expert_name(tsr_arena *arena, const tsr_stack *stack, const char *stacked, uint64_t expert,
                                  unsigned projection, const char *ending)
{
    const int before = (int)(strstr(stacked, stack->set) - stacked);
    return tsr_arena_printf(arena, "%.*s%s%llu.%s%s", before, stacked, stack->experts, (unsigned long long)expert,
                            stack->projections[projection], ending);
}

/* Parses the number at the start of `text` and returns the text after it. NULL: there is none, or it has a sign or too
 * many digits. */
static const char *read_number(const char *text, uint64_t *number)
{
    char *end;
    if (*text < '0' || *text > '9' || (text[0] == '0' && text[1] != '.'))
        return NULL;
    *number = strtoull(text, &end, 10);
    return end - text <= 9 ? end : NULL;
}

bool tsr_stack_place(const char *name, tsr_stacked_expert *place)
{
    for (size_t i = 0; i < STACKS; i++) {
        const tsr_stack *const s = &kStacks[i];
        const char *const at = strstr(name, s->experts);
        const char *rest = at == NULL ? NULL : read_number(at + strlen(s->experts), &place->expert);
        for (unsigned p = 0; rest != NULL && *rest == '.' && p < tsr_stack_projections(s); p++) {
            const size_t length = strlen(s->projections[p]);
            if (strncmp(rest + 1, s->projections[p], length) != 0 || rest[1 + length] != '.')
                continue;
            place->stack = s;
            place->before = (size_t)(at - name);
            place->projection = p;
            place->ending = rest + 1 + length;
            return true;
        }
    }
    return false;
}

tsr_stack_layout tsr_stack_layout_of(const char *model_type)
{
    for (size_t i = 0; model_type != NULL && i < sizeof kLayouts / sizeof *kLayouts; i++) {
        if (strncmp(model_type, kLayouts[i].model_type, strlen(kLayouts[i].model_type)) == 0)
            return kLayouts[i];
    }
    return (tsr_stack_layout){.model_type = model_type};
}

bool tsr_stack_contradicts(const tsr_stack *stack, const tsr_stack_layout *layout, uint64_t a, uint64_t b,
                           uint64_t hidden)
{
    const uint64_t out = layout->turned ? b : a, in = layout->turned ? a : b;
    return hidden != 0 && (tsr_stack_takes_hidden(stack) ? in : out) != hidden;
}
