/* Functions shared by the files of the forward pass, and private to them. */
#ifndef TSR_VERIFY_FORWARD_FORWARD_PARTS_H
#define TSR_VERIFY_FORWARD_FORWARD_PARTS_H

#include "verify/forward/forward.h"

enum { TSR_MAX_NAME = 256 };

/* The weight called by the format, or NULL where it is missing: with `err` not NULL, TSR_E_FORMAT then. */
tsr_status tsr_forward_find(const tsr_forward *forward, const tsr_weight **weight, tsr_err *err, const char *format,
                            ...) TSR_PRINTF(4, 5);

/* A vector of n elements, from malloc; *values is NULL where it is missing and `needed` is false. */
tsr_status tsr_forward_vector(const tsr_forward *forward, const char *name, size_t n, bool needed, double **values,
                              tsr_err *err) TSR_WARN_UNUSED;

/* MODULE.weight and, where there is one, MODULE.bias: *y [n][rows], from malloc; x [n][cols]. */
tsr_status tsr_forward_linear(const tsr_forward *forward, const char *module, const double *x, size_t n, size_t rows,
                              size_t cols, double **y, tsr_err *err) TSR_WARN_UNUSED;

/* y = x / RMS(x) * gain, for `rows` rows of n; x and y may be the same. */
void tsr_forward_norm(const tsr_forward *forward, const double *x, size_t rows, size_t n, const double *gain,
                      double *y);

/* y [count][hidden] += the attention of layer `layer` over x. */
tsr_status tsr_forward_attention(const tsr_forward *forward, size_t layer, const tsr_tokens *tokens, double *x,
                                 double *y, tsr_err *err) TSR_WARN_UNUSED;

/* y [n][hidden] += its MLP, or router and experts, over x; choices and routed as in tsr_forward_layer. */
tsr_status tsr_forward_mlp(const tsr_forward *forward, size_t layer, const double *x, size_t n, double *y,
                           uint32_t *choices, bool *routed, tsr_err *err) TSR_WARN_UNUSED;

#endif
