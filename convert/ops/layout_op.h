/* Declares the steps between checkpoints and the weight layouts of kernels/cpu/ft_layout.h. They work in bands of
 * output features. Each band is read once, quantized or unpacked, laid out and written, in one pass. */
#pragma once

#include "convert/plan/plan.h"
#include "formats/weights/weights.h"
#include "kernels/cpu/ft_layout.h"
#include "quantize/int_weight.h"

enum { TSR_LAYOUT_PARTS = 3 };

/* A matrix with K input and N output features, made of the weights [N_i, K] one after another. */
typedef struct tsr_layout {
    tsr_ft_format format;
    tsr_int_scheme scheme;              /* how floating-point parts are quantized; .group also applies to packed
                                         * parts */
    tsr_dtype scale_dtype;              /* stored dtype: BF16, F16 or F32; codes are computed with the scheme's own
                                         * scale dtype */
    tsr_weight parts[TSR_LAYOUT_PARTS]; /* all floating point, or all packed and symmetric */
    size_t n_parts;
    uint64_t k, n;
} tsr_layout;

/* The tensors of a layout that a step reads or writes. */
typedef struct tsr_layout_tensors {
    tsr_tensor *codes;  /* K * N * bits / 8 bytes */
    tsr_tensor *scales; /* [N], or [K / group, N] */
    tsr_tensor *zeros;  /* zero points, all 0, shaped like scales, for readers that require them; NULL: none */
} tsr_layout_tensors;

/* Checks shapes without reading weights. TSR_E_SHAPE if K or N does not fit the layout, if a part ends inside a packed
 * word or an interleave period, or if groups do not divide K. The message names the nearest size that fits. */
tsr_status tsr_layout_check(const tsr_layout *layout, const char *name, tsr_err *err);

/* Adds the step that lays weights out. `layout` is copied. Sets dtype, shape and bytes of its tensors, except the
 * shape of the codes. */
tsr_status tsr_plan_layout(tsr_plan *plan, const tsr_layout *layout, const tsr_layout_tensors *to,
                           const tsr_tensor *reported, tsr_err *err);

/* Output features [first, first + columns) of a layout, converted back to compressed-tensors' packed form. Codes and
 * scales stay unchanged, except that a group of zeros gets scale 1 where the layout may have 0. */
typedef struct tsr_unlayout {
    tsr_ft_format format;
    uint64_t k, n, first, columns, group;
    tsr_tensor codes, scales; /* as stored in the source: K * N * bits / 8 bytes, then [N] or [K / group, N] */
    const char *name;         /* name of the weight to write: "X.weight" */
} tsr_unlayout;

tsr_status tsr_plan_unlayout(tsr_plan *plan, const tsr_unlayout *from, tsr_err *err);
