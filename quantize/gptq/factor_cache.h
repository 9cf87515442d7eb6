/* Keeps the factors of a few Hessians, which the units of a run share.
 *
 * The first unit that needs a factor computes it; others wait. Layers with one input use the same factor. */
#pragma once

#include "quantize/gptq/hessian_factor.h"

/* Factors that are kept: those of two layers, so that a run may go from one to the next, and back. */
enum { TSR_FACTORS = 2 };

typedef struct tsr_factor_cache tsr_factor_cache;

/* Returns an empty cache, or NULL when memory is exhausted. */
tsr_factor_cache *tsr_factor_cache_new(void);

/* Sets the number of threads that compute a factor. The default is 1. */
void tsr_factor_cache_set_threads(tsr_factor_cache *cache, uint64_t threads);

/* Finds or computes the factor of h [cols, cols] (see tsr_hessian_factorize). `h` identifies it. The caller returns
 * *factor by tsr_factor_cache_release. Thread-safe; a thread must not hold two factors. */
tsr_status tsr_factor_cache_take(tsr_factor_cache *cache, const unsigned char *h, size_t cols, const char *what,
                                 const tsr_cpu_kernels *kernels, const tsr_hessian_factor **factor, tsr_err *err);

void tsr_factor_cache_release(tsr_factor_cache *cache, const tsr_hessian_factor *factor);

void tsr_factor_cache_free(tsr_factor_cache *cache);
