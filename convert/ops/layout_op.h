/* The steps between checkpoints and the weight layouts of kernels/cpu/ft_layout.h, in bands of output features: each
 * is read once, quantized or unpacked, laid out and written, in one pass. */
#ifndef TSR_CONVERT_OPS_LAYOUT_OP_H
#define TSR_CONVERT_OPS_LAYOUT_OP_H

#include "convert/plan/plan.h"
#include "formats/weights/weights.h"
#include "kernels/cpu/ft_layout.h"
#include "quantize/int_weight.h"

enum { TSR_LAYOUT_PARTS = 3 };

/* A matrix of K input and N output features: the weights [N_i, K], one after another. */
typedef struct tsr_layout {
    tsr_ft_format format;
    tsr_int_scheme scheme;              /* how floating-point parts are quantized; .group holds for packed ones, too */
    tsr_dtype scale_dtype;              /* as stored: BF16, F16 or F32; codes are made with the scheme's own */
    tsr_weight parts[TSR_LAYOUT_PARTS]; /* all floating point, or all packed and symmetric */
    size_t n_parts;
    uint64_t k, n;
} tsr_layout;

/* The tensors of a layout that one step reads or writes. */
typedef struct tsr_layout_tensors {
    tsr_tensor *codes;  /* K * N * bits / 8 bytes */
    tsr_tensor *scales; /* [N], or [K / group, N] */
    tsr_tensor *zeros;  /* like scales and nothing but 0, for readers that ask for it; NULL: none */
} tsr_layout_tensors;

/* Checks shapes without reading weights. TSR_E_SHAPE if K or N does not fit the layout, if a part ends inside a packed
 * word or an interleave period, or if groups do not divide K. The message names the nearest size that fits. */
tsr_status tsr_layout_check(const tsr_layout *layout, const char *name, tsr_err *err) TSR_WARN_UNUSED;

/* Adds the step that lays weights out. `layout` is copied. Sets dtype, shape and bytes of its tensors, except the
 * shape of the codes. */
tsr_status tsr_plan_layout(tsr_plan *plan, const tsr_layout *layout, const tsr_layout_tensors *to,
                           const tsr_tensor *reported, tsr_err *err) TSR_WARN_UNUSED;

/* Output features [first, first + columns) of a layout, back to compressed-tensors' packed form: codes and scales as
 * they are, but that a group of zeros has scale 1 there where it may be 0 here. */
typedef struct tsr_unlayout {
    tsr_ft_format format;
    uint64_t k, n, first, columns, group;
    tsr_tensor codes, scales; /* as they lie in the source: bytes K * N * bits / 8, then [N] or [K / group, N] */
    const char *name;         /* of the weight that is made: "X.weight" */
} tsr_unlayout;

tsr_status tsr_plan_unlayout(tsr_plan *plan, const tsr_unlayout *from, tsr_err *err) TSR_WARN_UNUSED;

#endif
