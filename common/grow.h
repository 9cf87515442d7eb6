/* Arrays from malloc that grow by an item at a time. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* Makes room for an item of `size` bytes behind `count` of them: doubles an array that is full. `items` is the address
 * of the pointer to the array. Returns false without memory; nothing changes then. */
static inline bool tsr_grow(void *items, size_t count, size_t *capacity, size_t size)
{
    if (count < *capacity)
        return true;
    const size_t wanted = *capacity == 0 ? 64 : 2 * *capacity;
    void *array;
    memcpy(&array, items, sizeof array);
    array = realloc(array, wanted * size);
    if (array == NULL)
        return false;
    memcpy(items, &array, sizeof array);
    *capacity = wanted;
    return true;
}
