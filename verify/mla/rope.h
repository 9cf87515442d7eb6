/* Rotary position embedding as config.json states it: one angular frequency a pair of elements.
 *
 * Types: default; linear (Chen et al. 2023); llama3 (transformers, modeling_rope_utils.py); yarn (Peng et al. 2023). */
#ifndef TSR_VERIFY_MLA_ROPE_H
#define TSR_VERIFY_MLA_ROPE_H

#include "common/arena.h"
#include "formats/checkpoint/checkpoint.h"

typedef struct tsr_rope {
    size_t pairs;
    double *frequency; /* [pairs], radians a position; in the arena */
    double gain;       /* of cos and sin: 1 but for yarn */
    double mscale_all; /* yarn's 0.1 mscale_all_dim ln(factor) + 1, whose square DeepSeek's softmax scale has; else 1 */
} tsr_rope;

/* For heads of which `dim` elements, an even number, are turned. TSR_E_UNSUPPORTED: another type. */
tsr_status tsr_rope_read(tsr_rope *rope, const tsr_checkpoint *checkpoint, size_t dim, tsr_arena *arena,
                         tsr_err *err) TSR_WARN_UNUSED;

/* The same for layers of one type, whose settings may stand in an object of their own, rope_parameters.SECTION. Where
 * there is no such object and `base` is not 0, they are those of the type default with this base. */
tsr_status tsr_rope_read_section(tsr_rope *rope, const tsr_checkpoint *checkpoint, size_t dim, const char *section,
                                 double base, tsr_arena *arena, tsr_err *err) TSR_WARN_UNUSED;

#endif
