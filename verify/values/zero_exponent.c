/* Reads the groups in question. */
#include "verify/values/zero_exponent.h"

#include <string.h>

enum { GROUP = 32 }; /* codes to a scale, in both kinds */

/* Returns true if codes are zeros of either sign. */
static bool is_zeros(const tsr_weight *w, const unsigned char *codes, size_t size)
{
    /* all bits except signs, of three bytes at a time: four codes of 6 bits fill three bytes */
    static const unsigned char kFour[] = {0x77, 0x77, 0x77}, kSix[] = {0xdf, 0xf7, 0x7d}, kEight[] = {0x7f, 0x7f, 0x7f};
    const unsigned char *const value = w->bits == 4 ? kFour : w->bits == 6 ? kSix : kEight;
    for (size_t i = 0; i < size; i++) {
        if ((codes[i] & value[i % 3]) != 0)
            return false;
    }
    return true;
}

tsr_status tsr_zero_exponent_find(const tsr_checkpoint *c, const tsr_weight *w, const unsigned char *scales,
                                  uint64_t at, size_t n, uint64_t *where, const tsr_tensor **found, tsr_err *err)
{
    if (!tsr_kind_has_small_groups(w->kind) || w->scale_dtype != TSR_F8_E8M0 || w->block.cols != GROUP)
        return TSR_OK;
    const size_t size = (size_t)GROUP * w->bits / 8;
    const unsigned char *p = scales;
    while ((p = memchr(p, 0, (size_t)(scales + n - p))) != NULL) {
        unsigned char codes[GROUP];
        const uint64_t group = at + (uint64_t)(p - scales);
        TSR_TRY(tsr_checkpoint_read(c, w->data, group * size, codes, size, err));
        if (!is_zeros(w, codes, size)) {
            *where = group;
            *found = w->scale;
            return TSR_OK;
        }
        p++;
    }
    return TSR_OK;
}
