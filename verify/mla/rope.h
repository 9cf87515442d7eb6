/* Rotary position embedding of config.json: one angular frequency per pair of elements.
 *
 * Types: default; linear (Chen et al. 2023); llama3 (transformers, modeling_rope_utils.py); yarn (Peng et al. 2023),
 * also named deepseek_yarn; proportional (transformers: the first pairs of a head, with the frequencies of all). */
#pragma once

#include "common/arena.h"
#include "formats/checkpoint/checkpoint.h"

typedef struct tsr_rope {
    size_t pairs;
    double *frequency; /* [pairs], radians per position */
    double gain;       /* factor of cos and sin; 1 except for yarn */
    double mscale_all; /* yarn: 0.1 mscale_all_dim ln(factor) + 1, squared in DeepSeek's softmax scale; else 1 */
} tsr_rope;

/* Returns rope_theta, or `otherwise` if config.json has none. */
double tsr_rope_base(const tsr_checkpoint *checkpoint, double otherwise);

/* Reads RoPE for heads of which `dim` elements, an even number, are rotated. `base` is that of a config.json without
 * rope_theta. TSR_E_UNSUPPORTED: unknown type. TSR_E_FORMAT: two different rope_theta. */
tsr_status tsr_rope_read(tsr_rope *rope, const tsr_checkpoint *checkpoint, size_t dim, double base, tsr_arena *arena,
                         tsr_err *err);

/* Like tsr_rope_read, with this base even if config.json has rope_theta. */
tsr_status tsr_rope_read_of_base(tsr_rope *rope, const tsr_checkpoint *checkpoint, size_t dim, double base,
                                 tsr_arena *arena, tsr_err *err);

/* Makes RoPE of the default type with this base. */
tsr_status tsr_rope_of_base(tsr_rope *rope, const tsr_checkpoint *checkpoint, size_t dim, double base, tsr_arena *arena,
                            tsr_err *err);

/* Returns true if config.json has the object rope_parameters.SECTION, with settings for layers of one type. */
bool tsr_rope_has_section(const tsr_checkpoint *checkpoint, const char *section);

/* Like tsr_rope_read, from rope_parameters.SECTION. */
tsr_status tsr_rope_read_section(tsr_rope *rope, const tsr_checkpoint *checkpoint, size_t dim, const char *section,
                                 double base, tsr_arena *arena, tsr_err *err);
