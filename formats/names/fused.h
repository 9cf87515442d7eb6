/* Fused layers: linear layers with the same input that loaders concatenate by rows. All members must be quantized
 * alike. */
#ifndef TSR_FORMATS_NAMES_FUSED_H
#define TSR_FORMATS_NAMES_FUSED_H

#include "formats/checkpoint/checkpoint.h"

enum { TSR_FUSED_MEMBERS = 3 };

typedef struct tsr_fused {
    const char *name;                       /* what loaders call the fused layer */
    const char *members[TSR_FUSED_MEMBERS]; /* last components of the modules, in the order of joining; NULL: no more */
    const char *parent;                     /* the component before them; NULL: any */
} tsr_fused;

/* The group in which a module ("model.layers.0.self_attn.q_proj") is a member, by its last two components, or NULL. */
const tsr_fused *tsr_fused_find(const char *module);
const tsr_fused *tsr_fused_find_in(const char *module, size_t length);

/* The members of the fused layer that `weight` ("….q_proj.weight") belongs to, as far as the checkpoint has them, in
 * the order of joining, `weight` among them. Returns how many; 1 for a weight that is in no fused layer. */
size_t tsr_fused_members(const tsr_checkpoint *checkpoint, const tsr_tensor *weight,
                         const tsr_tensor *members[TSR_FUSED_MEMBERS]);

#endif
