/* Declares what recurrent blocks share: projections, their parts, and convolution. */
#pragma once

#include "verify/forward/forward_parts.h"

/* The recurrent block of a layer. Names of its weights are parts of `module`. */
typedef struct tsr_mixer {
    tsr_forward *f;
    size_t layer;
    const tsr_tokens *tokens;
    const char *module;
} tsr_mixer;

/* Reads a size of config.json that is at `key` or `other` (may be NULL), from 1 to TSR_MAX_HEAD. */
tsr_status tsr_mixer_size(const tsr_mixer *mixer, const char *key, const char *other, size_t *value, tsr_err *err);

/* Computes y [n][rows] = MODULE.PART x for x [n][cols], rounded as served. */
tsr_status tsr_mixer_project(const tsr_mixer *mixer, const char *part, const tsr_activation *x, size_t rows,
                             size_t cols, tsr_held *y, tsr_err *err);

/* Activations of a token, `width` columns each. */
typedef struct tsr_mixer_part {
    tsr_held *held;
    size_t width;
} tsr_mixer_part;

/* Copies the columns of x [rows][..] to n parts, one after another. */
tsr_status tsr_mixer_deal(const tsr_mixer *mixer, const tsr_held *x, size_t rows, const tsr_mixer_part *parts, size_t n,
                          tsr_err *err);

/* Replaces n parts by their convolution. Their filters of `taps` are one after another in MODULE.NAME.weight, and their
 * biases, if there are any, in MODULE.NAME.bias. */
tsr_status tsr_mixer_convolve(const tsr_mixer *mixer, const char *name, const tsr_mixer_part *parts, size_t n,
                              size_t taps, tsr_err *err);

/* Reads n elements of MODULE.PART, from malloc. */
tsr_status tsr_mixer_elements(const tsr_mixer *mixer, const char *part, size_t n, double **values, tsr_err *err);

/* Runs a recurrence with the rates exp(MODULE.A_log) and the shifts MODULE.dt_bias. Sets tokens, rate, shift and out of
 * `args`. Computes out [n][heads][v_dim], rounded as served. */
tsr_status tsr_mixer_recur(const tsr_mixer *mixer, tsr_op_recur args, tsr_held *out, tsr_err *err);

/* Applies the norm MODULE.NAME to x [rows][groups][width], each group by itself. Its gain is [groups][width], and does
 * not begin at 1 in any family. */
tsr_status tsr_mixer_norm(const tsr_mixer *mixer, const char *name, const tsr_held *x, size_t groups, size_t width,
                          tsr_err *err);

/* Returns the gate x = act(z) x of activations z and x, both [rows][width]. */
tsr_op_gate tsr_mixer_gate(tsr_gate kind, const tsr_held *z, const tsr_held *x, size_t width);
