/* How a tensor's elements stand for values. */
#ifndef TSR_FORMATS_MODEL_CODING_H
#define TSR_FORMATS_MODEL_CODING_H

#include "formats/checkpoint/checkpoint.h"

#include <stddef.h>

typedef enum tsr_coding {
    TSR_PLAIN,
    TSR_CODED_E4M3,   /* F8_E4M3 [R, C] or [M, R, C] */
    TSR_CODED_INT8,   /* I8 [R, C], two's complement */
    TSR_CODED_PACKED, /* I32 [R, ceil(C * bits / 32)]: code + 2^(bits-1), the first in the lowest bits */
    TSR_UNREAD,       /* only of tsr_weights_survey: what Tessera does not interpret. Nobody may take it for values */
} tsr_coding;

/* What a tensor's codes are by its name, its dtype and its scale's name; TSR_PLAIN: none that Tessera reads. */
tsr_coding tsr_coding_of(const tsr_checkpoint *checkpoint, const tsr_tensor *tensor);

/* The tensor called the first `length` characters of `name`, and `suffix`; NULL when there is none. */
const tsr_tensor *tsr_find_sibling(const tsr_checkpoint *checkpoint, const char *name, size_t length,
                                   const char *suffix);

#endif
