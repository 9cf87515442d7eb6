/* The functions that move codes, one per pair of formats, and their arguments. */
#pragma once

#include "convert/ops/move/move_op.h"
#include "convert/ops/rows/row_decoder.h"

struct tsr_moving;

/* Moves the codes of one unit. Thread-safe. */
typedef tsr_status tsr_relation(const struct tsr_moving *m, tsr_err *err);

/* The parameters of a step. */
typedef struct tsr_move_params {
    tsr_weight weight;
    tsr_row_view view;
    tsr_move move;
    tsr_relation *relation;
    const tsr_row_decoder *decoder;
    const tsr_tensor *made; /* the step's input by name and shape, for reports; no file contains it */
    uint64_t matrix_rows;   /* rows of one matrix of the view */
} tsr_move_params;

/* One unit: rows [row, row + rows) of the view. Codes go to its window of the first output; all other outputs are
 * buffered as a whole. */
typedef struct tsr_moving {
    const tsr_move_params *p;
    const tsr_step *step;
    const tsr_unit *u;
    uint64_t row, rows;
    const tsr_cpu_kernels *kernels;
    tsr_quant_stats *stats;
} tsr_moving;

/* Functions that move MXFP4, MXFP8, NVFP4 and block FP8. */
tsr_relation tsr_move_mxfp4, tsr_move_mxfp8, tsr_move_nvfp4, tsr_move_fp8, tsr_move_mxfp4_to_fp8,
    tsr_move_mxfp4_to_nvfp4, tsr_move_fp8_to_mxfp8;

/* Integers, packed. */
tsr_relation tsr_move_packed, tsr_move_awq, tsr_move_gptq, tsr_move_nibbles;
