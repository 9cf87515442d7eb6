/* Parses tensor names and finds tensors and modules by name. */
#include "formats/names/coding.h"

#include "common/text.h"

#include <stdlib.h>
#include <string.h>

size_t tsr_module_length(const char *name)
{
    static const char kWeight[] = ".weight";
    return strlen(name) - (tsr_ends_with(name, kWeight) ? sizeof kWeight - 1 : 0);
}

typedef struct module_name {
    const char *text;
    size_t length;
} module_name;

static int compare_module(const void *key, const void *item)
{
    const module_name *const name = key;
    const char *const other = *(const char *const *)item;
    const int order = strncmp(name->text, other, name->length);
    return order == 0 && other[name->length] != '\0' ? -1 : order;
}

const void *tsr_find_module(const void *items, size_t count, size_t size, const char *name, size_t length)
{
    const module_name key = {name, length};
    return count == 0 ? NULL : bsearch(&key, items, count, size, compare_module);
}

size_t tsr_experts_length(const char *name, size_t *digits)
{
    static const char kExperts[] = ".experts.";
    const char *const at = strstr(name, kExperts), *const number = at == NULL ? NULL : at + sizeof kExperts - 1;
    *digits = number == NULL ? 0 : strspn(number, "0123456789");
    return number == NULL ? 0 : (size_t)(number - name);
}

const tsr_tensor *tsr_find_joined(const tsr_checkpoint *c, const char *head, size_t length, const char *middle,
                                  const char *tail)
{
    char small[512];
    const size_t between = strlen(middle), end = strlen(tail), size = length + between + end + 1;
    char *const name = size <= sizeof small ? small : malloc(size);
    if (name == NULL)
        return NULL;
    memcpy(name, head, length);
    memcpy(name + length, middle, between);
    memcpy(name + length + between, tail, end + 1);
    const tsr_tensor *const found = tsr_checkpoint_find(c, name);
    if (name != small)
        free(name);
    return found;
}

const tsr_tensor *tsr_find_sibling(const tsr_checkpoint *c, const char *name, size_t length, const char *suffix)
{
    return tsr_find_joined(c, name, length, "", suffix);
}
