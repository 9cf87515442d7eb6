/* Names of output heads, which files of models with tied embeddings do not hold. */
#pragma once

#include "formats/checkpoint/checkpoint.h"

/* Returns the weight of the output head in the class of this model, by its name alone: "lm_head.weight" for most.
 * Static storage. */
const tsr_tensor *tsr_head_of(const tsr_checkpoint *checkpoint);
