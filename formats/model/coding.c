/* Tensors by their names. */
#include "formats/model/coding.h"

#include <stdio.h>
#include <string.h>

const tsr_tensor *tsr_find_sibling(const tsr_checkpoint *c, const char *name, size_t length, const char *suffix)
{
    char text[1200];
    if (length + strlen(suffix) >= sizeof text)
        return NULL;
    snprintf(text, sizeof text, "%.*s%s", (int)length, name, suffix);
    return tsr_checkpoint_find(c, text);
}
