/* Maps tensor names to tensors with a hash table. */
#include "formats/checkpoint/checkpoint.h"

#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

/* Returns a number below 64 that depends on the last four bytes of a name. Most searches are for scales and zero points
 * of other schemes than that of the checkpoint. Their endings occur in no tensor's name. */
static unsigned ending_of(const char *name, size_t size)
{
    uint32_t last = 0;
    const size_t n = size < sizeof last ? size : sizeof last;
    memcpy(&last, name + size - n, n);
    return last * 0x9E3779B1u >> 26;
}

/* Returns the slot of a name, or the free slot for it. */
static size_t slot_of(const tsr_checkpoint *c, const char *name, size_t size)
{
    size_t slot = (size_t)XXH3_64bits(name, size) & c->by_name_mask;
    while (c->by_name[slot] != 0 && strcmp(c->tensors.items[c->by_name[slot] - 1].name, name) != 0)
        slot = (slot + 1) & c->by_name_mask;
    return slot;
}

tsr_status tsr_checkpoint_index_names(tsr_checkpoint *c, tsr_err *err)
{
    size_t slots = 16;
    while (slots < 2 * c->tensors.count)
        slots *= 2;
    c->by_name_mask = slots - 1;
    c->by_name = calloc(slots, sizeof *c->by_name);
    if (c->by_name == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "%s: out of memory for %zu tensor names", c->path, c->tensors.count);
    for (size_t i = 0; i < c->tensors.count; i++) {
        const tsr_tensor *const t = &c->tensors.items[i];
        const size_t size = strlen(t->name), slot = slot_of(c, t->name, size);
        if (c->by_name[slot] != 0) {
            const tsr_tensor *const other = &c->tensors.items[c->by_name[slot] - 1];
            return tsr_fail(err, TSR_E_FORMAT, "%s: duplicate tensor '%s': at file offset %llu, and in %s at %llu",
                            c->files[t->file].path, t->name, (unsigned long long)t->offset, c->files[other->file].name,
                            (unsigned long long)other->offset);
        }
        c->by_name[slot] = (uint32_t)i + 1;
        c->endings |= (uint64_t)1 << ending_of(t->name, size);
    }
    return TSR_OK;
}

const tsr_tensor *tsr_checkpoint_find(const tsr_checkpoint *c, const char *name)
{
    const size_t size = strlen(name);
    if ((c->endings >> ending_of(name, size) & 1) == 0)
        return NULL;
    const uint32_t entry = c->by_name[slot_of(c, name, size)];
    return entry == 0 ? NULL : &c->tensors.items[entry - 1];
}
