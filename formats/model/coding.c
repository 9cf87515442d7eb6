/* Tensors by their names. */
#include "formats/model/coding.h"

#include "common/text.h"

#include <stdio.h>
#include <string.h>

size_t tsr_module_length(const char *name)
{
    static const char kWeight[] = ".weight";
    return strlen(name) - (tsr_ends_with(name, kWeight) ? sizeof kWeight - 1 : 0);
}

size_t tsr_experts_length(const char *name, size_t *digits)
{
    static const char kExperts[] = ".experts.";
    const char *const at = strstr(name, kExperts), *const number = at == NULL ? NULL : at + sizeof kExperts - 1;
    *digits = number == NULL ? 0 : strspn(number, "0123456789");
    return number == NULL ? 0 : (size_t)(number - name);
}

const tsr_tensor *tsr_find_sibling(const tsr_checkpoint *c, const char *name, size_t length, const char *suffix)
{
    char text[1200];
    if (length + strlen(suffix) >= sizeof text)
        return NULL;
    snprintf(text, sizeof text, "%.*s%s", (int)length, name, suffix);
    return tsr_checkpoint_find(c, text);
}
