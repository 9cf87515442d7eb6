/* The heads of kv_b_proj, for the operations that split it and that fold it: where a head lies, and how it is decoded
 * and transposed. */
#ifndef TSR_CONVERT_OPS_MLA_MLA_OP_HEADS_H
#define TSR_CONVERT_OPS_MLA_MLA_OP_HEADS_H

#include "convert/ops/mla/mla_op.h"
#include "convert/ops/rows/rows.h"

/* The parameters of a step. */
typedef struct tsr_mla_params {
    tsr_mla_shape mla;
    tsr_mla_form form;
    tsr_weight kv_b;
    tsr_weight other; /* folding: q_b_proj or o_proj */
    bool values, transposed[2];
    tsr_tensor decoded; /* kv_b_proj as FP32: for coordinates */
} tsr_mla_params;

/* A rectangle of a weight of rank 2. `data` is the rectangle alone, as it lies in a unit's buffer with rows `ld`
 * elements apart; `scales` are those of the whole weight, or NULL. */
typedef struct tsr_mla_piece {
    const tsr_weight *weight;
    uint64_t row, col, rows, cols, ld;
    const void *data;
    const void *scales;
} tsr_mla_piece;

/* Bytes of an element. */
static inline size_t tsr_mla_width(const tsr_weight *w)
{
    return tsr_dtype_bytes((tsr_dtype)w->data->dtype);
}

/* New parameters in the plan's arena; NULL when memory is exhausted. */
tsr_mla_params *tsr_mla_keep(tsr_plan *plan, const tsr_weight *kv_b, const tsr_mla_shape *mla);

/* Decodes a piece to dense BF16 or FP32 in `out`; a plain weight only to FP32. */
tsr_status tsr_mla_decode_heads(const tsr_cpu_kernels *k, const tsr_mla_piece *x, tsr_dtype dtype, void *out,
                                void *scratch, tsr_err *err) TSR_WARN_UNUSED;

/* Writes the transpose of a dense matrix of rows x cols elements, `width` bytes each; or, not transposed, a copy. */
void tsr_mla_place(void *to, const void *from, uint64_t rows, uint64_t cols, size_t width, bool transposed);

/* The rows of one head that make values, or those that make keys. */
uint64_t tsr_mla_rows(const tsr_mla_params *p, bool values);

/* The row of kv_b_proj at which the part of this head begins. */
uint64_t tsr_mla_first_row(const tsr_mla_params *p, uint64_t head, bool values);

/* Returns the window of the head's part in kv_b_proj. */
tsr_window tsr_mla_head_window(const tsr_mla_params *p, uint64_t head, bool values);

/* The head's part as a piece; `data` and `scales` as in tsr_mla_piece. */
tsr_mla_piece tsr_mla_head_piece(const tsr_mla_params *p, uint64_t head, bool values, const void *data,
                                 const void *scales);

#endif
