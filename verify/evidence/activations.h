/* Inputs of linear layers, in BF16: from a file, or drawn.
 *
 * Drawn: every element is nearly normal (the sum of 12 uniform numbers less 6, so that no machine's libm matters), with
 * mean 0 and variance 1; one channel in 128, chosen by the seed, is 32 times as large in every token: the outlier
 * channels that make activations hard to quantize. All of it depends on the seed and the layer's name only.
 * From a file (safetensors): the tensor that has the weight's name, its module's, or MODULE.input, of [M, K] (leading
 * dimensions are joined), in BF16, F16 or F32; the first `tokens` rows of it. */
#ifndef TSR_VERIFY_EVIDENCE_ACTIVATIONS_H
#define TSR_VERIFY_EVIDENCE_ACTIVATIONS_H

#include "formats/checkpoint/checkpoint.h"

/* The reason for skipping a tensor whose activations are all 0: every product would be 0, whatever the weights. */
#define TSR_ZERO_ACTIVATIONS "its activations in the file are all 0: nothing could be told by them"

enum { TSR_OUTLIER_ONE_IN = 128, TSR_OUTLIER_FACTOR = 32 };

/* splitmix64's output function: one number for each `x`, as good as random. */
uint64_t tsr_mix_bits(uint64_t x);

/* The seed for random numbers that belong to `name`. */
uint64_t tsr_seed_of(uint64_t seed, const char *name);

void tsr_activations_draw(uint64_t seed, size_t m, size_t k, uint16_t *x);

/* The tensor of the file that holds the inputs of this weight, or NULL. */
const tsr_tensor *tsr_activations_find(const tsr_checkpoint *file, const char *weight);

/* Reads rows [0, m); m is lowered to the number of rows there are. TSR_E_SHAPE: rows that are not k long. TSR_E_VALUE:
 * NaN or Inf.
 * TSR_E_UNSUPPORTED: another dtype. */
tsr_status tsr_activations_read(const tsr_checkpoint *file, const tsr_tensor *tensor, size_t *m, size_t k, uint16_t *x,
                                tsr_err *err) TSR_WARN_UNUSED;

bool tsr_activations_are_zero(const uint16_t *x, size_t n);

#endif
