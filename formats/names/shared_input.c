/* Names inputs by the table of fused layers. */
#include "formats/names/shared_input.h"

#include "formats/names/coding.h"
#include "formats/names/fused.h"

#include <stdio.h>
#include <string.h>

bool tsr_shared_input_of(const char *module, size_t length, tsr_shared_input *input)
{
    size_t digits;
    const size_t experts = tsr_experts_length(module, &digits);
    const char *const dot = memrchr(module, '.', length), *const leaf = dot == NULL ? module : dot + 1;
    const tsr_fused *const fused = tsr_fused_find_in(module, length);
    const size_t before = experts != 0 ? experts : (size_t)(leaf - module);
    *input = (tsr_shared_input){.expert = experts != 0};
    input->common = experts != 0 && (fused != NULL || tsr_is_fused_name(leaf, length - (size_t)(leaf - module)));
    const int n = fused == NULL ? snprintf(input->name, sizeof input->name, "%.*s", (int)length, module)
                                : snprintf(input->name, sizeof input->name, "%.*s%s", (int)before, module, fused->name);
    return n >= 0 && (size_t)n < sizeof input->name;
}
