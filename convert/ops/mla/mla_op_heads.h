/* Declares access to the heads of kv_b_proj, for the operations that split or fold it: where a head is, and how it is
 * decoded and transposed. */
#pragma once

#include "convert/ops/mla/mla_op.h"
#include "convert/ops/rows/rows.h"

/* The parameters of a step. */
typedef struct tsr_mla_params {
    tsr_mla_shape mla;
    tsr_mla_form form;
    tsr_weight kv_b;
    tsr_weight other; /* q_b_proj or o_proj, when folding */
    bool values, transposed[2];
    tsr_tensor decoded; /* describes kv_b_proj as FP32, for positions in messages */
} tsr_mla_params;

/* A rectangle of a weight of rank 2. `data` holds only the rectangle, as stored in a unit's buffer, with rows `ld`
 * elements apart. `scales` are those of the whole weight, or NULL. */
typedef struct tsr_mla_piece {
    const tsr_weight *weight;
    uint64_t row, col, rows, cols, ld;
    const void *data;
    const void *scales;
} tsr_mla_piece;

/* Returns the bytes of an element. */
static inline size_t tsr_mla_width(const tsr_weight *w)
{
    return tsr_dtype_bytes((tsr_dtype)w->data->dtype);
}

/* Allocates parameters in the plan's arena. Returns NULL when memory is exhausted. */
tsr_mla_params *tsr_mla_keep(tsr_plan *plan, const tsr_weight *kv_b, const tsr_mla_shape *mla);

/* Decodes a piece to dense BF16 or FP32 in `out`. A plain weight can only be decoded to FP32. */
tsr_status tsr_mla_decode_heads(const tsr_cpu_kernels *k, const tsr_mla_piece *x, tsr_dtype dtype, void *out,
                                void *scratch, tsr_err *err);

/* Writes the transpose of a dense matrix of rows x cols elements of `width` bytes; if not `transposed`, a copy. */
void tsr_mla_place(void *to, const void *from, uint64_t rows, uint64_t cols, size_t width, bool transposed);

/* Returns the number of rows of a head that make values or keys. */
uint64_t tsr_mla_rows(const tsr_mla_params *p, bool values);

/* Returns the row of kv_b_proj where this part of the head begins. */
uint64_t tsr_mla_first_row(const tsr_mla_params *p, uint64_t head, bool values);

/* Returns the window of the head's part in kv_b_proj. */
tsr_window tsr_mla_head_window(const tsr_mla_params *p, uint64_t head, bool values);

/* Returns the head's part as a piece. `data` and `scales` are as in tsr_mla_piece. */
tsr_mla_piece tsr_mla_head_piece(const tsr_mla_params *p, uint64_t head, bool values, const void *data,
                                 const void *scales);
