/* Tests finding the layer and the part of a tensor by its name. */
#include "report/model/place.h"

#include <criterion/criterion.h>

static const struct {
    const char *name, *module;
    unsigned stack;
    uint32_t layer, expert;
} kNames[] = {
    {"model.layers.3.mlp.experts.17.down_proj.weight", "experts.down_proj", 12, 3, 17},
    {"model.layers.3.mlp.shared_experts.down_proj.weight", "shared_experts.down_proj", 12, 3, TSR_NO_NUMBER},
    {"model.layers.60.self_attn.q_proj.weight_scale_inv", "q_proj", 12, 60, TSR_NO_NUMBER},
    {"model.layers.0.mlp.experts.gate_up_proj", "experts.gate_up_proj", 12, 0, TSR_NO_NUMBER},
    {"visual.blocks.7.attn.qkv.weight", "qkv", 13, 7, TSR_NO_NUMBER},
    {"layers.2.ffn.experts.255.w1.weight", "experts.w1", 6, 2, 255},
    {"lm_head.weight", "lm_head", 0, TSR_NO_NUMBER, TSR_NO_NUMBER},
    {"model.layers.0", "layers", 12, 0, TSR_NO_NUMBER},
    {"weight", "weight", 0, TSR_NO_NUMBER, TSR_NO_NUMBER},
    {"3.4", "3", 1, 4, TSR_NO_NUMBER},
    {"model.layers.99999999.w", "w", 0, TSR_NO_NUMBER, TSR_NO_NUMBER},
    {"..1..", "", 1, 1, TSR_NO_NUMBER},
    {"", "", 0, TSR_NO_NUMBER, TSR_NO_NUMBER},
};

Test(place, is_in_the_name)
{
    for (size_t i = 0; i < sizeof kNames / sizeof *kNames; i++) {
        const tsr_place p = tsr_place_of(kNames[i].name);
        char module[TSR_MAX_MODULE];
        cr_expect_eq(p.stack_size, kNames[i].stack, "'%s': %u", kNames[i].name, p.stack_size);
        cr_expect_eq(p.layer, kNames[i].layer, "'%s': layer %u", kNames[i].name, p.layer);
        cr_expect_eq(p.expert, kNames[i].expert, "'%s': expert %u", kNames[i].name, p.expert);
        cr_expect_str_eq(tsr_module_of(kNames[i].name, module), kNames[i].module, "'%s': '%s'", kNames[i].name, module);
    }
}

Test(place, cuts_what_is_too_long)
{
    char name[4096], module[TSR_MAX_MODULE];
    for (size_t i = 0; i < sizeof name - 1; i++)
        name[i] = i % 5 == 4 ? '.' : 'e';
    name[sizeof name - 1] = '\0';
    cr_expect_lt(strlen(tsr_module_of(name, module)), sizeof module);
    memset(name, 'x', sizeof name - 1);
    cr_expect_lt(strlen(tsr_module_of(name, module)), sizeof module);
}
