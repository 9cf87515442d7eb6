/* Takes lines from the input of a fuzz target. */
#pragma once

#include <stddef.h>
#include <string.h>

typedef struct span {
    const char *data;
    size_t size;
} span;

/* Takes the bytes up to the next line feed, which is dropped; without one, takes the rest. */
static inline span take_line(span *from)
{
    const char *const end = from->size == 0 ? NULL : memchr(from->data, '\n', from->size);
    const span line = {from->data, end == NULL ? from->size : (size_t)(end - from->data)};
    const size_t taken = line.size + (end != NULL);
    from->data += taken;
    from->size -= taken;
    return line;
}
