/* Reads a tensor's values piece by piece in double, for any dtype, with scales applied.
 *
 * This is the oracle's own reader: it shares no arithmetic with writing or casting. BF16, F16, F32, F64, the e4m3 and
 * e8m0 types, BOOL and integers below 2^53 are exact. So is value(code) * scale, which needs at most 4 + 24 significant
 * bits. (A consumer that multiplies in FP32 rounds this product once.) If there is a global scale, the format itself
 * defines scale * global, or scale / global, as rounded to FP32. NaN and Inf from a code, a scale or a float are passed
 * on.
 *
 * Rows and columns are those of the values. Codes of some formats are stored transposed: AWQ and GPTQ store columns of
 * rows, and the values of gpt-oss are the transpose of its codes. */
#pragma once

#include "common/block.h"
#include "formats/weights/weights.h"
#include "verify/values/decode.h"
#include "verify/values/group_scale.h"

/* A checkpoint and its paired weights. Both are borrowed. */
typedef struct tsr_side {
    const tsr_checkpoint *checkpoint;
    const tsr_weights *weights;
} tsr_side;

/* A mistake of writers that is deliberately repeated when reading. If the values are then right, the writer made it. */
typedef enum tsr_misreading {
    TSR_AS_STORED,
    TSR_NIBBLES_SWAPPED, /* the odd column in the low four bits of each byte */
    TSR_AWQ_IN_ORDER,    /* codes and zero points of AWQ without its interleaving */
    TSR_CODES_IN_ORDER,  /* its codes only */
    TSR_GROUPS_IN_ORDER, /* group_index left out */
    TSR_ZEROS_HIGHER,    /* zero points one higher */
    TSR_ZEROS_LOWER,     /* one lower */
    TSR_GLOBAL_INVERTED, /* the global scale divides instead of multiplying, or the reverse */
    TSR_MISREADINGS,
} tsr_misreading;

/* One tensor as a stack of matrices; a vector is one row. */
typedef struct tsr_view {
    const tsr_checkpoint *checkpoint;
    tsr_weight weight; /* .scale NULL: plain */
    uint64_t matrices, rows, cols;
    tsr_block block; /* size of a block of values that share a scale */
    tsr_misreading misreading;
    const struct tsr_derived *derived; /* NULL: the values are stored */
} tsr_view;

/* Rows [row, row + rows) and columns [col, col + cols) of one matrix. */
typedef struct tsr_piece {
    uint64_t matrix, row, col, rows, cols;
} tsr_piece;

/* The derivation of values that are not stored from others. */
typedef struct tsr_derived {
    /* Sets out[piece->rows * piece->cols] to the piece's values. */
    tsr_status (*values)(const tsr_view *view, const tsr_piece *piece, double *out, tsr_err *err);
    /* Returns the most bytes that values() needs for pieces of this size. */
    uint64_t (*memory)(const tsr_view *view, const tsr_piece *piece);
} tsr_derived;

/* Buffers of one thread and their contents. A zero-initialized one is empty and valid. */
typedef struct tsr_weight_reader {
    const tsr_view *view;
    tsr_piece piece;
    unsigned char *bytes;      /* bytes of the piece, contiguous; for packed codes the bytes or words that contain
                                * them */
    unsigned char *codes;      /* transposed codes: [rows, cols], one per byte */
    double *derived;           /* a view with `derived`: the piece's values; the following members are unused */
    double *scales;            /* scales of the piece: [scale_rows, scale_cols], from block (first_row, first_col) on */
    double *zero_points;       /* as `scales`, minus the middle of unsigned codes; all 0 without zero points */
    uint32_t *groups;          /* [cols]: for a reordered weight, the column of `scales` for each column */
    double global;             /* the factor that scales of this matrix were multiplied by; 0: none */
    unsigned char *raw_scales; /* as stored; later reused for zero points or groups */
    size_t bytes_capacity, codes_capacity, scales_capacity, groups_capacity, derived_capacity;
    uint64_t first_row, first_col, scale_rows, scale_cols;
} tsr_weight_reader;

/* Makes a view of `weight` of `checkpoint`; both are borrowed. TSR_E_UNSUPPORTED: complex numbers. */
tsr_status tsr_view_init(tsr_view *view, const tsr_checkpoint *checkpoint, const tsr_weight *weight, tsr_err *err);

/* Makes a view of the matrix of codes as kernels read it, outputs by inputs, even if the values of an unquantized
 * checkpoint are its transpose (gpt-oss). */
tsr_status tsr_view_of_codes(tsr_view *view, const tsr_checkpoint *checkpoint, const tsr_weight *weight, tsr_err *err);

/* Returns true if the file has the matrix of values in column-major order. */
bool tsr_view_lies_across(const tsr_view *view);

/* Returns the bytes of an element, rounded up. */
uint64_t tsr_view_width(const tsr_view *view);

/* Returns a weight for a plain tensor of any whole-byte dtype, without scale. */
tsr_weight tsr_plain_weight(const tsr_tensor *tensor);

/* Reads the bytes and the scales of a piece that lies inside the view. */
tsr_status tsr_weight_reader_load(tsr_weight_reader *reader, const tsr_view *view, const tsr_piece *piece,
                                  tsr_err *err);

/* Reads the values of a piece of a tensor into out[piece->rows * piece->cols]. */
tsr_status tsr_read_values(const tsr_checkpoint *checkpoint, const tsr_weight *weight, const tsr_piece *piece,
                           double *out, tsr_err *err);

/* Sets out[0 .. n) to elements [row, col .. col + n) of the loaded piece, counted from its corner. */
void tsr_weight_reader_row(const tsr_weight_reader *reader, uint64_t row, uint64_t col, size_t n, double *out);

/* Counts the codes of n at [row, col ..) that are not x rounded under their scales (tsr_count_misrounded). *first is
 * the first of them. y is the result of tsr_weight_reader_row for a view with scales. Codes whose scales are not
 * positive numbers are not counted. */
uint64_t tsr_weight_reader_misrounded(const tsr_weight_reader *reader, uint64_t row, uint64_t col, size_t n,
                                      const double *x, const double *y, size_t *first);

/* Returns which values the codes of a quantized weight have. */
tsr_codes tsr_codes_of(const tsr_weight *weight);

/* Returns true if the view has small groups with a known scale rule (NVFP4, MXFP4, MXFP6, MXFP8), and sets *rule. */
bool tsr_weight_reader_rule(const tsr_weight_reader *reader, tsr_group_rule *rule);

/* Returns the scale of the value at [row, col], counted from the piece's corner. */
double tsr_weight_reader_scale(const tsr_weight_reader *reader, uint64_t row, uint64_t col);

/* Returns true if both loaded pieces hold the same bytes with the same meaning: equal dtypes, codes, scales and
 * groups. */
bool tsr_weight_reader_same(const tsr_weight_reader *a, const tsr_weight_reader *b);

/* Returns the most bytes that a reader needs for pieces of this size. */
uint64_t tsr_weight_reader_memory(const tsr_view *view, const tsr_piece *piece);

void tsr_weight_reader_free(tsr_weight_reader *reader);
