/* A tensor's values, piece by piece, in double: whatever its dtype, scales applied.
 *
 * This is the oracle's own reading of the bytes: it shares no arithmetic with what writes or casts checkpoints.
 * BF16, F16, F32, F64, the e4m3 and e8m0 types, BOOL and integers below 2^53 are exact; so is value(code) * scale,
 * which needs at most 4 + 24 significant bits. (A consumer that multiplies in FP32 rounds this product once.) NaN and
 * Inf come out as such, from a code, from a scale, or from a float. */
#ifndef TSR_VERIFY_WEIGHTS_WEIGHT_READER_H
#define TSR_VERIFY_WEIGHTS_WEIGHT_READER_H

#include "formats/model/weights.h"
#include "verify/weights/decode.h"

/* A checkpoint and what its tensors mean. Both are borrowed. */
typedef struct tsr_side {
    const tsr_checkpoint *checkpoint;
    const tsr_weights *weights;
} tsr_side;

/* One tensor as a stack of matrices; a vector is one row. */
typedef struct tsr_view {
    const tsr_checkpoint *checkpoint;
    tsr_weight weight; /* .scale NULL: plain */
    uint64_t matrices, rows, cols;
    const struct tsr_derived *derived; /* NULL: the values are stored */
} tsr_view;

/* Rows [row, row + rows) and columns [col, col + cols) of one matrix. */
typedef struct tsr_piece {
    uint64_t matrix, row, col, rows, cols;
} tsr_piece;

/* How values that are not stored are made of others. */
typedef struct tsr_derived {
    /* out[piece->rows * piece->cols] = the piece's values. */
    tsr_status (*values)(const tsr_view *view, const tsr_piece *piece, double *out, tsr_err *err);
    /* Bytes that values() takes at most for pieces of this size. */
    uint64_t (*memory)(const tsr_view *view, const tsr_piece *piece);
} tsr_derived;

/* One thread's buffers and what is in them. Zero-initialised is empty and valid. */
typedef struct tsr_weight_reader {
    const tsr_view *view;
    tsr_piece piece;
    unsigned char *bytes; /* of the piece, gapless; of packed codes the words that they lie in */
    double *derived;      /* of a view with `derived`: the piece's values, instead of all that follows */
    double *scales;       /* of the piece: [scale_rows, scale_cols], from block (first_row, first_col) on */
    double *zero_points;  /* likewise; of codes without zero points all 0 */
    unsigned char *raw_scales;
    size_t bytes_capacity, scales_capacity, derived_capacity;
    uint64_t first_row, first_col, scale_rows, scale_cols;
} tsr_weight_reader;

/* Describes `weight` of `checkpoint`; both are borrowed. TSR_E_UNSUPPORTED: complex numbers. */
tsr_status tsr_view_init(tsr_view *view, const tsr_checkpoint *checkpoint, const tsr_weight *weight,
                         tsr_err *err) TSR_WARN_UNUSED;

/* Bytes of an element, rounded up. */
uint64_t tsr_view_width(const tsr_view *view);

/* A tensor that is one (of any whole-byte dtype) without scale. */
tsr_weight tsr_plain_weight(const tsr_tensor *tensor);

/* Reads the bytes and the scales of a piece that lies inside the view. */
tsr_status tsr_weight_reader_load(tsr_weight_reader *reader, const tsr_view *view, const tsr_piece *piece,
                                  tsr_err *err) TSR_WARN_UNUSED;

/* out[0 .. n) = elements [row, col .. col + n) of the loaded piece, counted from its corner. */
void tsr_weight_reader_row(const tsr_weight_reader *reader, uint64_t row, uint64_t col, size_t n, double *out);

/* Of n codes at [row, col ..), how many are not what rounding x gives: |x - y| is more than half a step at x (4 %
 * allowed of e4m3's, and 2^-9 of an integer's quotient, for tools that divide in BF16), and not because x is beyond the
 * largest code. *first is the first of them. y is what tsr_weight_reader_row gave, of a view with scales. Scales that
 * are no positive numbers count nothing. */
uint64_t tsr_weight_reader_misrounded(const tsr_weight_reader *reader, uint64_t row, uint64_t col, size_t n,
                                      const double *x, const double *y, size_t *first);

/* Whether both loaded pieces hold the same bytes with the same meaning: equal dtypes, codes and scales. */
bool tsr_weight_reader_same(const tsr_weight_reader *a, const tsr_weight_reader *b);

/* Bytes that a reader needs at most for pieces of this size. */
uint64_t tsr_weight_reader_memory(const tsr_view *view, const tsr_piece *piece);

void tsr_weight_reader_free(tsr_weight_reader *reader);

#endif
