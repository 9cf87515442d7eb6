/* Fused layers: linear layers with the same input that loaders concatenate by rows. All members must be quantized
 * alike. */
#pragma once

#include "formats/checkpoint/checkpoint.h"

enum { TSR_FUSED_MEMBERS = 3 };

typedef struct tsr_fused {
    const char *name;                       /* the loaders' name of the fused layer */
    const char *members[TSR_FUSED_MEMBERS]; /* last components of the modules, in the order of joining; NULL: end */
    const char *parent;                     /* the component before them; NULL: any */
} tsr_fused;

/* Returns the fused layer that a module ("model.layers.0.self_attn.q_proj") is a member of, by its last two components,
 * or NULL. */
const tsr_fused *tsr_fused_find(const char *module);
const tsr_fused *tsr_fused_find_in(const char *module, size_t length);

/* Returns true if the `length` characters are the loaders' name of a fused layer: "gate_up_proj". */
bool tsr_is_fused_name(const char *name, size_t length);

/* Finds the members of the fused layer of `weight` ("….q_proj.weight") that the checkpoint has, in the order of
 * joining, including `weight`. Returns their number; 1 for a weight that is in no fused layer. */
size_t tsr_fused_members(const tsr_checkpoint *checkpoint, const tsr_tensor *weight,
                         const tsr_tensor *members[TSR_FUSED_MEMBERS]);
