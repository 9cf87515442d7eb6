/* Lists the tensors of a checkpoint by name and shape, layer by layer. */
#include "tests/make/make_checkpoint.h"

#include <stdio.h>
#include <stdlib.h>

static struct tensor *add_tensor(struct plan *plan, enum fill fill, const char *prefix, const char *name)
{
    if (plan->count == plan->capacity) {
        plan->capacity = plan->capacity ? 2 * plan->capacity : 256;
        plan->tensors = realloc(plan->tensors, plan->capacity * sizeof *plan->tensors);
        if (!plan->tensors) {
            die("out of memory");
        }
    }
    struct tensor *tensor = &plan->tensors[plan->count++];
    *tensor = (struct tensor){.fill = fill};
    if (asprintf(&tensor->name, "%s%s", prefix, name) < 0) {
        die("out of memory");
    }
    return tensor;
}

void add_vector(struct plan *plan, enum fill fill, const char *prefix, const char *name, uint64_t length)
{
    struct tensor *tensor = add_tensor(plan, fill, prefix, name);
    tensor->rank = 1;
    tensor->dims[0] = length;
}

void add_norm(struct plan *plan, const char *prefix, const char *name, uint64_t length)
{
    add_vector(plan, FILL_NORM, prefix, name, length);
}

void add_filled(struct plan *plan, enum fill fill, const char *prefix, const char *name, uint64_t rows,
                uint64_t columns)
{
    struct tensor *tensor = add_tensor(plan, fill, prefix, name);
    tensor->rank = 2;
    tensor->dims[0] = rows;
    tensor->dims[1] = columns;
}

void add_matrix(struct plan *plan, const char *prefix, const char *name, uint64_t rows, uint64_t columns)
{
    add_filled(plan, FILL_WEIGHT, prefix, name, rows, columns);
}

void add_stack(struct plan *plan, const char *prefix, const char *name, uint64_t depth, uint64_t rows, uint64_t columns)
{
    struct tensor *tensor = add_tensor(plan, FILL_WEIGHT, prefix, name);
    tensor->rank = 3;
    tensor->dims[0] = depth;
    tensor->dims[1] = rows;
    tensor->dims[2] = columns;
}

const char *layer_prefix(char buffer[64], uint64_t layer)
{
    snprintf(buffer, 64, "model.layers.%llu.", (unsigned long long)layer);
    return buffer;
}

void add_mlp(struct plan *plan, const char *prefix, uint64_t hidden, uint64_t intermediate)
{
    add_matrix(plan, prefix, "gate_proj.weight", intermediate, hidden);
    add_matrix(plan, prefix, "up_proj.weight", intermediate, hidden);
    add_matrix(plan, prefix, "down_proj.weight", hidden, intermediate);
}

void add_experts(struct plan *plan, const char *prefix, uint64_t experts, uint64_t hidden, uint64_t intermediate)
{
    for (uint64_t expert = 0; expert < experts; expert++) {
        char name[128];
        snprintf(name, sizeof name, "%smlp.experts.%llu.", prefix, (unsigned long long)expert);
        add_mlp(plan, name, hidden, intermediate);
    }
}

void add_attention(struct plan *plan, const char *prefix, uint64_t hidden, uint64_t key_value_rows)
{
    add_norm(plan, prefix, "input_layernorm.weight", hidden);
    add_matrix(plan, prefix, "self_attn.q_proj.weight", hidden, hidden);
    add_matrix(plan, prefix, "self_attn.k_proj.weight", key_value_rows, hidden);
    add_matrix(plan, prefix, "self_attn.v_proj.weight", key_value_rows, hidden);
    add_matrix(plan, prefix, "self_attn.o_proj.weight", hidden, hidden);
    add_norm(plan, prefix, "post_attention_layernorm.weight", hidden);
}

void add_ends(struct plan *plan, uint64_t vocabulary, uint64_t hidden)
{
    add_matrix(plan, "", "model.embed_tokens.weight", vocabulary, hidden);
    add_norm(plan, "", "model.norm.weight", hidden);
    add_matrix(plan, "", "lm_head.weight", vocabulary, hidden);
}
