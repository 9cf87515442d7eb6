/* Inputs of linear layers in BF16: from a file, or generated.
 *
 * Generated elements are nearly normal with mean 0 and variance 1: the sum of 12 uniform numbers minus 6, so that they
 * do not depend on a machine's libm. One channel in 128, chosen by the seed, is 32 times as large in every token. Such
 * outlier channels make activations hard to quantize. Everything depends only on the seed and the layer's name.
 *
 * From a file (safetensors): the tensor with the weight's name, its module's name, or MODULE.input, of [M, K] (leading
 * dimensions are joined), in BF16, F16 or F32. Its first `tokens` rows are used. */
#pragma once

#include "formats/checkpoint/checkpoint.h"

/* Reason for skipping a tensor whose activations are all 0: every product would be 0 for any weights. */
#define TSR_ZERO_ACTIVATIONS "its activations in the file are all 0: they show nothing"

enum { TSR_OUTLIER_ONE_IN = 128, TSR_OUTLIER_FACTOR = 32 };

/* The output function of splitmix64: a pseudo-random number for each `x`. */
uint64_t tsr_mix_bits(uint64_t x);

/* Returns the seed of the random numbers for `name`. */
uint64_t tsr_seed_of(uint64_t seed, const char *name);

void tsr_activations_draw(uint64_t seed, size_t m, size_t k, uint16_t *x);

/* Returns the tensor of the file with the inputs of this weight, or NULL. */
const tsr_tensor *tsr_activations_find(const tsr_checkpoint *file, const char *weight);

/* Reads rows [0, m). Lowers m to the number of existing rows. TSR_E_SHAPE: rows are not k long. TSR_E_VALUE: NaN or
 * Inf. TSR_E_UNSUPPORTED: another dtype. */
tsr_status tsr_activations_read(const tsr_checkpoint *file, const tsr_tensor *tensor, size_t *m, size_t k, uint16_t *x,
                                tsr_err *err);

bool tsr_activations_are_zero(const uint16_t *x, size_t n);
